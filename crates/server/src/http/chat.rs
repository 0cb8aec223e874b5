//! `/v1/chat/completions`.

use super::answer::{Head, MOST_TOP, Wanted, Whole, answer, beside, collect, generate, start, with};
use super::body::{Body, SamplingFields, Stop, model_of, refuse_unserved};
use super::error::Refused;
use super::stream::{Chunks, stream};
use crate::http::State;
use crate::job::Task;
use crate::text::Piece;
use axum::extract::State as Extracted;
use axum::response::{IntoResponse, Response};
use layerscope_engine::{Message, Policy, PromptText, Tokenizer};
use layerscope_eval::TokenLikelihood;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Debug, Deserialize)]
pub(super) struct ChatRequest {
    model: Option<String>,
    messages: Vec<ChatMessage>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    n: Option<usize>,
    #[serde(default)]
    stop: Stop,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    logprobs: Option<bool>,
    top_logprobs: Option<usize>,
    ignore_eos: Option<bool>,
    policy: Option<String>,
    #[serde(flatten)]
    sampling: SamplingFields,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub(super) include_usage: bool,
}

/// One turn, as requests write it.
#[derive(Debug, Deserialize)]
pub(super) struct ChatMessage {
    role: String,
    content: Option<Content>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// As the chat template takes them.
pub(super) fn messages(messages: Vec<ChatMessage>) -> Result<PromptText, Refused> {
    let message = |ChatMessage { role, content }| {
        let text = match content {
            None => String::new(),
            Some(Content::Text(text)) => text,
            Some(Content::Parts(parts)) => parts
                .into_iter()
                .map(|part| match part {
                    Part { kind, text: Some(text) } if kind == "text" => Ok(text),
                    Part { kind, .. } => Err(Refused::field(
                        "messages",
                        format!("content of type {kind:?} is not served here; give text"),
                    )),
                })
                .collect::<Result<_, _>>()?,
        };
        Ok(Message::new(role, text))
    };
    messages.into_iter().map(message).collect::<Result<_, Refused>>().map(PromptText::Messages)
}

pub(super) async fn complete(
    Extracted(state): Extracted<State>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, Refused> {
    refuse_unserved(&request.others)?;
    let served = state.served()?;
    let (id, under) = model_of(served, request.model.as_deref(), request.policy.as_deref())?;
    let prompt = messages(request.messages)?;
    let prompt: Arc<[u32]> =
        beside(&state, move |served| Ok(served.tokenizer().encode_prompt(&prompt)?)).await?.into();
    let room = served.config().context.saturating_sub(prompt.len() - 1).max(1);
    let wanted = request.max_completion_tokens.or(request.max_tokens);
    let max_tokens = wanted.unwrap_or_else(|| served.limits().default_max_tokens.min(room));
    if max_tokens == 0 {
        return Err(Refused::field("max_tokens", "max_tokens is at least 1"));
    }
    let with_likelihoods = request.logprobs == Some(true);
    let top = request.top_logprobs.unwrap_or(0);
    if top > MOST_TOP || (top > 0 && !with_likelihoods) {
        return Err(Refused::field(
            "top_logprobs",
            format!("top_logprobs is at most {MOST_TOP}, with \"logprobs\": true"),
        ));
    }
    let count = request.n.unwrap_or(1).max(1);
    let stop = request.stop.texts()?;
    let mut sequences = vec![];
    for index in 0..count.min(super::answer::MOST_SEQUENCES + 1) {
        let choice = request.sampling.choice(index)?;
        let likelihoods = with_likelihoods.then_some(top);
        let task = generate(served, max_tokens, choice, likelihoods, request.ignore_eos == Some(true));
        sequences.push(Wanted {
            prompt: Arc::clone(&prompt),
            task: Task::Generate(task),
            stop: stop.clone(),
        });
    }
    let updates = start(served, &under, sequences)?;
    if request.stream == Some(true) {
        let head = Head::new(served, "chatcmpl", "chat.completion.chunk", id);
        let usage = request.stream_options.is_some_and(|options| options.include_usage);
        let tokenizer = Arc::clone(served.tokenizer());
        return stream(
            updates,
            count,
            ChatChunks {
                head,
                policy: under.policy,
                tokenizer,
                prompt_tokens: prompt.len(),
                usage,
                with_likelihoods,
            },
        )
        .await;
    }
    let wholes = collect(updates, count).await?;
    let choices: Vec<Value> = wholes
        .iter()
        .enumerate()
        .map(|(index, whole)| {
            json!({
                "index": index,
                "message": {"role": "assistant", "content": whole.text, "refusal": null},
                "logprobs": with_likelihoods.then(|| logprobs(served.tokenizer(), &whole.likelihoods)),
                "finish_reason": whole.reason(),
            })
        })
        .collect();
    let head = Head::new(served, "chatcmpl", "chat.completion", id);
    Ok(axum::Json(answer(&head, &choices, prompt.len(), &under.policy, &wholes)).into_response())
}

/// What the model says of tokens, as chats have it.
fn logprobs(tokenizer: &Tokenizer, tokens: &[(u32, TokenLikelihood)]) -> Value {
    let one = |token: u32, logprob: f64| {
        let text = tokenizer.token_text(token);
        json!({"token": text, "logprob": logprob, "bytes": text.as_bytes()})
    };
    let all = tokens.iter().map(|(token, likelihood)| {
        let top: Vec<Value> = likelihood.top.iter().map(|&(token, logprob)| one(token, logprob)).collect();
        with(&one(*token, likelihood.log_probability), json!({"top_logprobs": top}))
    });
    json!({"content": all.collect::<Vec<_>>(), "refusal": null})
}

struct ChatChunks {
    head: Head,
    policy: Policy,
    tokenizer: Arc<Tokenizer>,
    prompt_tokens: usize,
    usage: bool,
    with_likelihoods: bool,
}

impl ChatChunks {
    fn chunk(&self, index: usize, delta: Value, logprobs: Option<Value>, reason: Option<&str>) -> Value {
        let choice = json!({"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason});
        let usage = if self.usage { json!({"usage": null}) } else { json!({}) };
        with(&with(&self.head, json!({"choices": [choice]})), usage)
    }
}

impl Chunks for ChatChunks {
    fn begin(&mut self, index: usize) -> Option<Value> {
        Some(self.chunk(index, json!({"role": "assistant", "content": ""}), None, None))
    }

    fn of(&mut self, index: usize, piece: &Piece) -> Vec<Value> {
        let mut chunks = vec![];
        if !piece.text.is_empty() || !piece.likelihoods.is_empty() {
            let found = self.with_likelihoods.then(|| logprobs(&self.tokenizer, &piece.likelihoods));
            chunks.push(self.chunk(index, json!({"content": piece.text}), found, None));
        }
        if let Some((reason, _)) = piece.end {
            chunks.push(self.chunk(index, json!({}), None, Some(reason.name())));
        }
        chunks
    }

    fn end(&mut self, wholes: &[Whole]) -> Option<Value> {
        self.usage.then(|| answer(&self.head, &[], self.prompt_tokens, &self.policy, wholes))
    }
}
