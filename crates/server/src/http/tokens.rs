//! `/tokenize`, `/detokenize` and `/tokenizer_info`.

use super::answer::beside;
use super::body::Body;
use super::chat::{ChatMessage, messages};
use super::completions::encode;
use super::error::Refused;
use crate::http::State;
use axum::Json;
use axum::extract::State as Extracted;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
pub(super) struct TokenizeRequest {
    prompt: Option<String>,
    /// A conversation, which goes through the chat template.
    messages: Option<Vec<ChatMessage>>,
    /// Whether the BoS token stands before a prompt, where the model wants one.
    add_special_tokens: Option<bool>,
}

pub(super) async fn tokenize(
    Extracted(state): Extracted<State>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Value>, Refused> {
    let special = request.add_special_tokens != Some(false);
    let tokens = beside(&state, move |served| match (request.prompt, request.messages) {
        (Some(prompt), None) => encode(served.tokenizer(), &prompt, special),
        (None, Some(turns)) => Ok(served.tokenizer().encode_prompt(&messages(turns)?)?),
        _ => Err(Refused::field("prompt", "give either \"prompt\" or \"messages\"")),
    })
    .await?;
    let context = state.served()?.config().context;
    Ok(Json(json!({"tokens": tokens, "count": tokens.len(), "max_model_len": context})))
}

#[derive(Debug, Deserialize)]
pub(super) struct DetokenizeRequest {
    tokens: Vec<u32>,
}

pub(super) async fn detokenize(
    Extracted(state): Extracted<State>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<Value>, Refused> {
    let text = beside(&state, move |served| Ok(served.tokenizer().decode(&request.tokens)?)).await?;
    Ok(Json(json!({"prompt": text})))
}

pub(super) async fn info(Extracted(state): Extracted<State>) -> Result<Json<Value>, Refused> {
    let served = state.served()?;
    let tokenizer = served.tokenizer();
    let text = |id: Option<u32>| id.map(|id| tokenizer.token_text(id));
    let eos = tokenizer.eos_ids().first().copied();
    Ok(Json(json!({
        "bos_token": text(tokenizer.bos_id()),
        "eos_token": text(eos),
        "pad_token": text(eos),
        "bos_token_id": tokenizer.bos_id(),
        "eos_token_id": eos,
        "adds_bos": tokenizer.adds_bos(),
        "chat_template": tokenizer.chat_template(),
        "vocab_size": tokenizer.vocab_size(),
        "max_model_len": served.config().context,
    })))
}
