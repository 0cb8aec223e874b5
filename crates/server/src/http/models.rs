//! `/v1/models`: the model under each of its policies.

use super::error::Refused;
use crate::http::State;
use crate::served::Served;
use axum::Json;
use axum::extract::{Path, State as Extracted};
use layerscope_engine::Policy;
use serde_json::{Value, json};

/// Prompt tokens for which the share of keys and values is told.
const TOKENS: usize = 1_024;

pub(super) async fn list(Extracted(state): Extracted<State>) -> Result<Json<Value>, Refused> {
    let served = state.served()?;
    let full = Policy::full(served.model.config().layers).for_model(served.model.config());
    let mut models: Vec<Value> =
        served.policies.first().map(|policy| model(served, &served.name, policy)).into_iter().collect();
    let full = Some(&full).filter(|full| !served.policies.contains(full));
    for policy in served.policies.iter().chain(full) {
        models.push(model(served, &served.id_under(policy), policy));
    }
    Ok(Json(json!({"object": "list", "data": models})))
}

pub(super) async fn one(
    Extracted(state): Extracted<State>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let served = state.served()?;
    match served.policy(&id) {
        Some(policy) => Ok(Json(model(served, &id, &policy?))),
        None => Err(Refused::model(&id, &served.name)),
    }
}

fn model(served: &Served, id: &str, policy: &Policy) -> Value {
    let config = served.model.config();
    let bytes = |policy: &Policy| {
        let kept = policy.capacity_by_head(TOKENS, 1, config.kv_heads);
        kept.into_iter().flatten().sum::<usize>()
    };
    let full = Policy::full(config.layers).for_model(config);
    json!({
        "id": id,
        "object": "model",
        "created": served.created,
        "owned_by": "layerscope",
        "root": served.name,
        "max_model_len": config.context,
        "layerscope": {
            "policy": policy.to_string(),
            "kv_share_at_1024_tokens": bytes(policy) as f64 / bytes(&full) as f64,
            "caveat": served.model.caveat(policy),
        },
    })
}
