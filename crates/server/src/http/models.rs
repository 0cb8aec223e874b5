//! `/v1/models`: the model under each of its policies.

use super::error::Refused;
use crate::http::State;
use crate::served::{Served, Under};
use axum::Json;
use axum::extract::{Path, State as Extracted};
use layerscope_engine::Policy;
use serde_json::{Value, json};
use std::sync::Arc;

/// Prompt tokens for which the share of keys and values is told.
const TOKENS: usize = 1_024;

pub(super) async fn list(Extracted(state): Extracted<State>) -> Result<Json<Value>, Refused> {
    let served = state.served()?;
    let full = Policy::full(served.config().layers).for_model(served.config());
    let full = Some(&full).filter(|full| !served.policies.contains(full));
    let mut models = vec![];
    for named in &served.models {
        let under = |policy: &Policy| Under { named: Arc::clone(named), policy: policy.clone() };
        models.extend(served.policies.first().map(|policy| model(served, &named.name, &under(policy))));
        for under in served.policies.iter().chain(full).map(under) {
            models.push(model(served, &under.id(), &under));
        }
    }
    Ok(Json(json!({"object": "list", "data": models})))
}

pub(super) async fn one(
    Extracted(state): Extracted<State>,
    Path(id): Path<String>,
) -> Result<Json<Value>, Refused> {
    let served = state.served()?;
    match served.under(&id) {
        Some(under) => Ok(Json(model(served, &id, &under?))),
        None => Err(Refused::model(&id, served)),
    }
}

fn model(served: &Served, id: &str, under: &Under) -> Value {
    let Under { named, policy } = under;
    let config = served.config();
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
        "root": served.name(),
        "max_model_len": config.context,
        "layerscope": {
            "policy": policy.to_string(),
            "kv_share_at_1024_tokens": bytes(policy) as f64 / bytes(&full) as f64,
            "adapter": named.model.adapter.as_ref().map(|adapter| &adapter.name),
            "caveat": named.model.caveat(policy),
        },
    })
}
