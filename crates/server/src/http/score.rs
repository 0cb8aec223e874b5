//! `/v1/score`: likelihoods of continuations behind a prompt, under any policy.

use super::answer::{Head, Usage, Wanted, beside, collect, extension, start, with};
use super::body::{Body, model_of};
use super::chat::{ChatMessage, messages};
use super::completions::encode;
use super::error::Refused;
use crate::http::State;
use crate::job::Task;
use crate::served::Served;
use axum::extract::State as Extracted;
use axum::response::{IntoResponse, Response};
use layerscope_engine::PromptText;
use layerscope_eval::{Likelihood, split};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Continuations of one request.
const MOST_CONTINUATIONS: usize = 1_024;

#[derive(Debug, Deserialize)]
pub(super) struct ScoreRequest {
    model: Option<String>,
    policy: Option<String>,
    /// The prompt: a text, or token ids.
    context: Option<TextOrTokens>,
    /// Or a conversation, which goes through the chat template.
    messages: Option<Vec<ChatMessage>>,
    continuations: Vec<TextOrTokens>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum TextOrTokens {
    Text(String),
    Tokens(Vec<u32>),
}

/// The tokens of the prompt and of a continuation behind it.
type Cut = (Vec<u32>, Vec<u32>);

fn cut(served: &Served, prompt: &Prompt, continuation: TextOrTokens) -> Result<Cut, Refused> {
    let tokenizer = served.tokenizer();
    Ok(match (prompt, continuation) {
        (Prompt::Text(text), TextOrTokens::Text(more)) => {
            split(tokenizer, &PromptText::Plain(text.clone()), &more, true)?
        }
        (Prompt::Text(text), TextOrTokens::Tokens(more)) => (encode(tokenizer, text, true)?, more),
        (Prompt::Tokens(tokens), TextOrTokens::Text(more)) => {
            (tokens.clone(), tokenizer.encode_fitting(&more)?)
        }
        (Prompt::Tokens(tokens), TextOrTokens::Tokens(more)) => (tokens.clone(), more),
    })
}

enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

pub(super) async fn score(
    Extracted(state): Extracted<State>,
    Body(request): Body<ScoreRequest>,
) -> Result<Response, Refused> {
    let served = state.served()?;
    let (id, under) = model_of(served, request.model.as_deref(), request.policy.as_deref())?;
    let count = request.continuations.len();
    if count == 0 || count > MOST_CONTINUATIONS {
        return Err(Refused::field(
            "continuations",
            format!("a request has 1 to {MOST_CONTINUATIONS} continuations"),
        ));
    }
    let (context, turns, continuations) = (request.context, request.messages, request.continuations);
    let cuts: Vec<Cut> = beside(&state, move |served| {
        let prompt = match (context, turns) {
            (Some(TextOrTokens::Text(text)), None) => Prompt::Text(text),
            (Some(TextOrTokens::Tokens(tokens)), None) => Prompt::Tokens(tokens),
            (None, Some(turns)) => Prompt::Tokens(served.tokenizer().encode_prompt(&messages(turns)?)?),
            _ => return Err(Refused::field("context", "give either \"context\" or \"messages\"")),
        };
        continuations.into_iter().map(|continuation| cut(served, &prompt, continuation)).collect()
    })
    .await?;
    if let Some(index) = cuts.iter().position(|(_, continuation)| continuation.is_empty()) {
        return Err(Refused::field(
            "continuations",
            format!("continuation {index} has no tokens; give it some text"),
        ));
    }
    // Continuations that move the end of the context, by spaces there, have prompts of their own.
    let mut by_prompt: BTreeMap<Vec<u32>, Vec<usize>> = BTreeMap::new();
    for (index, (prompt, _)) in cuts.iter().enumerate() {
        by_prompt.entry(prompt.clone()).or_default().push(index);
    }
    let prompt_tokens = by_prompt.keys().map(Vec::len).sum();
    let wanted = by_prompt.iter().map(|(prompt, indices)| {
        let continuations = indices.iter().map(|&index| cuts[index].1.clone()).collect();
        Wanted { prompt: Arc::from(&prompt[..]), task: Task::Score(continuations), stop: vec![] }
    });
    let wanted: Vec<Wanted> = wanted.collect();
    let sequences = wanted.len();
    let wholes = collect(start(served, &under, wanted)?, sequences).await?;
    let mut results: Vec<Value> = vec![Value::Null; count];
    for (indices, whole) in by_prompt.values().zip(&wholes) {
        for (&index, likelihood) in indices.iter().zip(&whole.scored) {
            let (prompt, continuation) = &cuts[index];
            results[index] = result(index, prompt.len(), continuation, likelihood);
        }
    }
    let head = Head::new(served, "score", "score", id);
    let answer = with(
        &head,
        json!({
            "results": results,
            "usage": Usage::of(prompt_tokens, &wholes),
            "layerscope": extension(&under.policy, &wholes),
        }),
    );
    Ok(axum::Json(answer).into_response())
}

fn result(index: usize, prompt_tokens: usize, tokens: &[u32], likelihood: &Likelihood) -> Value {
    json!({
        "index": index,
        "logprob": likelihood.log_likelihood,
        "is_greedy": likelihood.is_greedy,
        "prompt_tokens": prompt_tokens,
        "tokens": tokens,
        "token_logprobs": likelihood.tokens,
    })
}
