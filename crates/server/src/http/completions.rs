//! `/v1/completions`, with what lm-evaluation-harness and olmo-eval ask of it.

use super::answer::{
    Head, MOST_SEQUENCES, MOST_TOP, Wanted, Whole, answer, beside, collect, generate, start, with,
};
use super::body::{Body, SamplingFields, Stop, model_of, refuse_unserved};
use super::chat::StreamOptions;
use super::error::Refused;
use super::stream::{Chunks, stream};
use crate::http::State;
use crate::job::Task;
use crate::served::{Served, Under};
use crate::text::Piece;
use axum::extract::State as Extracted;
use axum::response::{IntoResponse, Response};
use layerscope_engine::{Policy, Tokenizer};
use layerscope_eval::TokenLikelihood;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// New tokens where a request does not say how many, as OpenAI has it.
const DEFAULT_MAX_TOKENS: usize = 16;

#[derive(Debug, Deserialize)]
pub(super) struct CompletionRequest {
    model: Option<String>,
    prompt: Prompts,
    max_tokens: Option<usize>,
    n: Option<usize>,
    #[serde(default)]
    stop: Stop,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    /// So many most likely tokens beside each token.
    logprobs: Option<usize>,
    echo: Option<bool>,
    /// Where the prompt ends, in tokens: what is behind it runs as decode rows, and is echoed with its likelihoods.
    prompt_boundary: Option<Boundary>,
    /// As vLLM has it.
    prompt_logprobs: Option<usize>,
    ignore_eos: Option<bool>,
    add_special_tokens: Option<bool>,
    policy: Option<String>,
    #[serde(flatten)]
    sampling: SamplingFields,
    #[serde(flatten)]
    others: BTreeMap<String, Value>,
}

/// Texts or token ids, one prompt or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Prompts {
    Text(String),
    Tokens(Vec<u32>),
    Texts(Vec<String>),
    TokensOfEach(Vec<Vec<u32>>),
}

/// Of all prompts, or of each.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Boundary {
    One(usize),
    Each(Vec<usize>),
}

/// A text's tokens; with the BoS token before them, where the model wants one.
pub(super) fn encode(tokenizer: &Tokenizer, text: &str, special: bool) -> Result<Vec<u32>, Refused> {
    let ids = tokenizer.encode_fitting(text)?;
    Ok(if special { tokenizer.with_bos(ids) } else { ids })
}

fn tokens(served: &Served, prompts: Prompts, special: bool) -> Result<Vec<Vec<u32>>, Refused> {
    let text = |text: String| encode(served.tokenizer(), &text, special);
    match prompts {
        Prompts::Text(one) => Ok(vec![text(one)?]),
        Prompts::Texts(texts) => texts.into_iter().map(text).collect(),
        Prompts::Tokens(tokens) => Ok(vec![tokens]),
        Prompts::TokensOfEach(tokens) => Ok(tokens),
    }
}

pub(super) async fn complete(
    Extracted(state): Extracted<State>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, Refused> {
    refuse_unserved(&request.others)?;
    let served = state.served()?;
    let (id, under) = model_of(served, request.model.as_deref(), request.policy.as_deref())?;
    let special = request.add_special_tokens != Some(false);
    let texts = request.prompt.clone();
    let prompts = beside(&state, move |served| tokens(served, texts, special)).await?;
    let count = request.n.unwrap_or(1).max(1);
    if prompts.is_empty() || prompts.len().saturating_mul(count) > MOST_SEQUENCES {
        return Err(Refused::field("prompt", format!("a request has 1 to {MOST_SEQUENCES} sequences")));
    }
    let asked = Asked::new(&request, served, &under)?;
    let stop = request.stop.clone().texts()?;
    let mut sequences = vec![];
    for (index, prompt) in prompts.iter().enumerate() {
        let (prompt, forced) =
            asked.cut(prompt, boundary(request.prompt_boundary.as_ref(), index, prompts.len())?)?;
        let prompt: Arc<[u32]> = prompt.into();
        for copy in 0..count {
            let choice = request.sampling.choice(copy)?;
            let mut task = generate(
                served,
                asked.max_tokens,
                choice,
                asked.likelihoods(),
                request.ignore_eos == Some(true),
            );
            task.forced.clone_from(&forced);
            sequences.push(Wanted {
                prompt: Arc::clone(&prompt),
                task: Task::Generate(task),
                stop: stop.clone(),
            });
        }
    }
    let (sequence_count, prompt_tokens) = (sequences.len(), prompts.iter().map(Vec::len).sum());
    let updates = start(served, &under, sequences)?;
    let tokenizer = Arc::clone(served.tokenizer());
    let usage = request.stream_options.is_some_and(|options| options.include_usage);
    let head = Head::new(served, "cmpl", "text_completion", id);
    if request.stream == Some(true) {
        if asked.echo || asked.prompt_logprobs.is_some() {
            return Err(Refused::field(
                "stream",
                "echo and prompt_logprobs are not streamed; leave \"stream\" away",
            ));
        }
        let offsets = vec![0; sequence_count];
        let chunks = CompletionChunks {
            head,
            policy: under.policy,
            tokenizer,
            prompt_tokens,
            usage,
            with_likelihoods: asked.logprobs.is_some(),
            offsets,
        };
        return stream(updates, sequence_count, chunks).await;
    }
    let wholes = collect(updates, sequence_count).await?;
    let mut choices = vec![];
    for (index, whole) in wholes.iter().enumerate() {
        choices.push(asked.choice(&tokenizer, index, &prompts[index / count], whole)?);
    }
    Ok(axum::Json(answer(&head, &choices, prompt_tokens, &under.policy, &wholes)).into_response())
}

fn boundary(boundary: Option<&Boundary>, index: usize, prompts: usize) -> Result<Option<usize>, Refused> {
    match boundary {
        None => Ok(None),
        Some(Boundary::One(at)) => Ok(Some(*at)),
        Some(Boundary::Each(all)) if all.len() == prompts => Ok(Some(all[index])),
        Some(Boundary::Each(_)) => {
            Err(Refused::field("prompt_boundary", "prompt_boundary is a number, or one for each prompt"))
        }
    }
}

/// What a request asks for beside its text.
struct Asked {
    max_tokens: usize,
    logprobs: Option<usize>,
    echo: bool,
    prompt_logprobs: Option<usize>,
}

impl Asked {
    fn new(request: &CompletionRequest, served: &Served, under: &Under) -> Result<Self, Refused> {
        let asked = Self {
            max_tokens: request.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS),
            logprobs: request.logprobs,
            echo: request.echo == Some(true),
            prompt_logprobs: request.prompt_logprobs,
        };
        if asked.logprobs.max(asked.prompt_logprobs) > Some(MOST_TOP) {
            return Err(Refused::field("logprobs", format!("logprobs is at most {MOST_TOP}")));
        }
        if asked.max_tokens == 0 && !asked.echo && asked.prompt_logprobs.is_none() {
            return Err(Refused::field("max_tokens", "max_tokens is at least 1, or 0 with \"echo\": true"));
        }
        if asked.scores_prompt() && under.depends_on_the_prompts_end() && request.prompt_boundary.is_none() {
            let whole = served.models.iter().find(|named| !named.adapts_decode_rows());
            let whole = whole.map_or_else(String::new, |named| format!(", or ask {}@full", named.name));
            return Err(Refused::field(
                "prompt_boundary",
                format!(
                    "likelihoods of echoed tokens depend on where the prompt ends under {}: say it with \"prompt_boundary\" (tokens), or \
                     ask /v1/score{whole}",
                    under.id()
                ),
            ));
        }
        Ok(asked)
    }

    /// Whether likelihoods of the prompt's own tokens are asked for.
    fn scores_prompt(&self) -> bool {
        self.prompt_logprobs.is_some() || (self.echo && (self.logprobs.is_some() || self.max_tokens == 0))
    }

    fn likelihoods(&self) -> Option<usize> {
        self.logprobs.max(self.prompt_logprobs.filter(|_| self.scores_prompt()))
    }

    /// The part of a prompt that runs as such, and the part that runs as decode rows behind it.
    fn cut(&self, prompt: &[u32], boundary: Option<usize>) -> Result<(Vec<u32>, Vec<u32>), Refused> {
        let at = match boundary {
            Some(at) if at == 0 || at > prompt.len() => {
                return Err(Refused::field(
                    "prompt_boundary",
                    format!("prompt_boundary {at} is not between 1 and the prompt's {} tokens", prompt.len()),
                ));
            }
            Some(at) => at,
            None if self.scores_prompt() => 1,
            None => prompt.len(),
        };
        let at = at.min(prompt.len());
        Ok((prompt[..at].to_vec(), prompt[at..].to_vec()))
    }

    fn choice(
        &self,
        tokenizer: &Tokenizer,
        index: usize,
        prompt: &[u32],
        whole: &Whole,
    ) -> Result<Value, Refused> {
        let before = if self.echo { tokenizer.decode(prompt)? } else { String::new() };
        let mut choice = json!({
            "index": index,
            "text": format!("{before}{}", whole.text),
            "logprobs": null,
            "finish_reason": whole.reason(),
        });
        let unscored = prompt.len() - whole.forced.len();
        if self.logprobs.is_some() {
            let mut tokens = Logprobs::default();
            if self.echo {
                prompt[..unscored].iter().for_each(|&token| tokens.add(tokenizer, token, None));
                whole.forced.iter().for_each(|(token, found)| tokens.add(tokenizer, *token, Some(found)));
            }
            whole.likelihoods.iter().for_each(|(token, found)| tokens.add(tokenizer, *token, Some(found)));
            choice["logprobs"] = tokens.value();
        }
        if let Some(top) = self.prompt_logprobs {
            let entry = |(token, found): &(u32, TokenLikelihood)| {
                let mut entries = Map::new();
                let mut add = |token: u32, logprob: f64, rank: usize| {
                    let text = tokenizer.token_text(token);
                    entries.insert(
                        token.to_string(),
                        json!({"logprob": logprob, "rank": rank, "decoded_token": text}),
                    );
                };
                found
                    .top
                    .iter()
                    .take(top)
                    .enumerate()
                    .for_each(|(rank, &(token, logprob))| add(token, logprob, rank + 1));
                add(*token, found.log_probability, found.rank);
                Value::Object(entries)
            };
            let nothing = std::iter::repeat_n(Value::Null, unscored);
            choice["prompt_logprobs"] = nothing.chain(whole.forced.iter().map(entry)).collect();
        }
        Ok(choice)
    }
}

/// What the model says of tokens, as completions have it.
#[derive(Default)]
struct Logprobs {
    tokens: Vec<String>,
    of_tokens: Vec<Option<f64>>,
    top: Vec<Value>,
    offsets: Vec<usize>,
    offset: usize,
}

impl Logprobs {
    /// The next token; without what the model says of it where nothing precedes it.
    fn add(&mut self, tokenizer: &Tokenizer, token: u32, found: Option<&TokenLikelihood>) {
        let text = tokenizer.token_text(token);
        self.offsets.push(self.offset);
        self.offset += text.chars().count();
        self.of_tokens.push(found.map(|found| found.log_probability));
        self.top.push(found.map_or(Value::Null, |found| {
            let mut top = Map::new();
            // Different tokens may have the same text: the likelier one stays, but for the token itself, which is among them.
            for &(other, logprob) in found.top.iter().rev() {
                top.insert(tokenizer.token_text(other), logprob.into());
            }
            let is_top = found.top.iter().any(|&(other, _)| other == token);
            if !is_top && !found.top.is_empty() && top.contains_key(&text) {
                top.insert(format!("{text}<{token}>"), found.log_probability.into());
            } else {
                top.insert(text.clone(), found.log_probability.into());
            }
            Value::Object(top)
        }));
        self.tokens.push(text);
    }

    fn value(self) -> Value {
        let Self { tokens, of_tokens, top, offsets, .. } = self;
        json!({"tokens": tokens, "token_logprobs": of_tokens, "top_logprobs": top, "text_offset": offsets})
    }
}

struct CompletionChunks {
    head: Head,
    policy: Policy,
    tokenizer: Arc<Tokenizer>,
    prompt_tokens: usize,
    usage: bool,
    with_likelihoods: bool,
    offsets: Vec<usize>,
}

impl Chunks for CompletionChunks {
    fn begin(&mut self, _index: usize) -> Option<Value> {
        None
    }

    fn of(&mut self, index: usize, piece: &Piece) -> Vec<Value> {
        if piece.text.is_empty() && piece.likelihoods.is_empty() && piece.end.is_none() {
            return vec![];
        }
        let found = (self.with_likelihoods && !piece.likelihoods.is_empty()).then(|| {
            let mut tokens = Logprobs { offset: self.offsets[index], ..Logprobs::default() };
            piece
                .likelihoods
                .iter()
                .for_each(|(token, found)| tokens.add(&self.tokenizer, *token, Some(found)));
            self.offsets[index] = tokens.offset;
            tokens.value()
        });
        let choice = json!({
            "index": index,
            "text": piece.text,
            "logprobs": found,
            "finish_reason": piece.end.map(|(reason, _)| reason.name()),
        });
        let usage = if self.usage { json!({"usage": null}) } else { json!({}) };
        vec![with(&with(&self.head, json!({"choices": [choice]})), usage)]
    }

    fn end(&mut self, wholes: &[Whole]) -> Option<Value> {
        self.usage.then(|| answer(&self.head, &[], self.prompt_tokens, &self.policy, wholes))
    }
}
