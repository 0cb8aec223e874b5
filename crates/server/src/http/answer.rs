//! What answers of several kinds have in common.

use super::error::Refused;
use crate::http::State;
use crate::job::{EndReason, Figures, Generate, Job, Task};
use crate::served::{Served, Under};
use crate::text::{Piece, Update, follow};
use layerscope_engine::Policy;
use layerscope_eval::{Likelihood, TokenLikelihood};
use serde::Serialize;
use serde_json::{Value, json};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc::{Receiver, channel, unbounded_channel};

/// Pieces that wait for a slow client before the text is held back.
const PIECES_AHEAD: usize = 64;
/// Most likely tokens that a request may ask for beside each token.
pub(super) const MOST_TOP: usize = 20;
/// Sequences of one request.
pub(super) const MOST_SEQUENCES: usize = 256;

/// A sequence to run: its prompt, and what to do behind it.
pub(super) struct Wanted {
    pub(super) prompt: Arc<[u32]>,
    pub(super) task: Task,
    pub(super) stop: Vec<String>,
}

/// Has sequences run; what comes of them.
pub(super) fn start(
    served: &Served,
    under: &Under,
    wanted: Vec<Wanted>,
) -> Result<Receiver<Update>, Refused> {
    if wanted.len() > MOST_SEQUENCES {
        return Err(Refused::bad(format!(
            "a request has at most {MOST_SEQUENCES} sequences; send several requests"
        )));
    }
    let config = served.config();
    let (updates, receiver) = channel(PIECES_AHEAD);
    let (mut jobs, mut followed) = (vec![], vec![]);
    for (index, Wanted { prompt, task, stop }) in wanted.into_iter().enumerate() {
        if prompt.is_empty() {
            return Err(Refused::bad("the prompt is empty: it has no tokens to run the model on"));
        }
        let given = match &task {
            Task::Generate(generate) => std::slice::from_ref(&generate.forced),
            Task::Score(continuations) => continuations,
        };
        let vocab = config.vocab as u32;
        if let Some(token) = prompt.iter().chain(given.iter().flatten()).find(|token| **token >= vocab) {
            return Err(Refused::bad(format!("token {token} is beyond the vocabulary of {vocab}")));
        }
        config.check_sequence(prompt.len(), crate::sequence::decode_len(&task).max(1))?;
        let (events, inbox) = unbounded_channel();
        jobs.push(Job { under: under.clone(), prompt, task, events, arrived: Instant::now() });
        followed.push((index, inbox, stop));
    }
    served.submit(jobs)?;
    for (index, inbox, stop) in followed {
        let tokenizer = Arc::clone(served.tokenizer());
        tokio::spawn(follow(index, tokenizer, inbox, stop, updates.clone()));
    }
    Ok(receiver)
}

/// A sequence's pieces, put together.
#[derive(Debug, Default)]
pub(super) struct Whole {
    pub(super) text: String,
    pub(super) tokens: Vec<u32>,
    pub(super) likelihoods: Vec<(u32, TokenLikelihood)>,
    pub(super) forced: Vec<(u32, TokenLikelihood)>,
    pub(super) scored: Vec<Likelihood>,
    pub(super) taken_over: usize,
    pub(super) end: Option<(EndReason, Figures)>,
}

impl Whole {
    /// Takes the next piece.
    pub(super) fn add(&mut self, piece: Piece) {
        self.text += &piece.text;
        self.tokens.extend(piece.tokens);
        self.likelihoods.extend(piece.likelihoods);
        self.forced.extend(piece.forced);
        self.scored.extend(piece.scored);
        self.taken_over += piece.taken_over.unwrap_or(0);
        self.end = self.end.or(piece.end);
    }

    pub(super) fn reason(&self) -> &'static str {
        self.end.map_or("stop", |(reason, _)| reason.name())
    }
}

/// All of `count` sequences, in their order.
pub(super) async fn collect(mut updates: Receiver<Update>, count: usize) -> Result<Vec<Whole>, Refused> {
    let mut all: Vec<Whole> = (0..count).map(|_| Whole::default()).collect();
    while let Some((index, update)) = updates.recv().await {
        all[index].add(update?);
    }
    match all.iter().all(|whole| whole.end.is_some()) {
        true => Ok(all),
        false => Err(Refused::engine("the engine has ended")),
    }
}

/// Tokens that a request took.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
}

#[derive(Debug, Clone, Copy, Default, Serialize)]
struct PromptDetails {
    cached_tokens: usize,
}

impl Usage {
    /// Of a request with so many prompt tokens.
    pub(super) fn of<'a>(prompt_tokens: usize, wholes: impl IntoIterator<Item = &'a Whole>) -> Self {
        let mut usage = Self { prompt_tokens, ..Self::default() };
        for whole in wholes {
            usage.completion_tokens += whole.tokens.len();
            usage.prompt_tokens_details.cached_tokens += whole.taken_over;
        }
        usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
        usage
    }
}

/// What OpenAI's answers do not say: the policy, and what each sequence took.
pub(super) fn extension<'a>(policy: &Policy, wholes: impl IntoIterator<Item = &'a Whole>) -> Value {
    let figures = wholes.into_iter().map(|whole| whole.end.map(|(_, figures)| figures)).collect::<Vec<_>>();
    json!({"policy": policy.to_string(), "sequences": figures})
}

/// A number that nobody else gets; no secret.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// How a request's answer, or each of its chunks, begins.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) object: &'static str,
    pub(super) created: u64,
    pub(super) model: String,
    pub(super) system_fingerprint: String,
}

impl Head {
    pub(super) fn new(served: &Served, prefix: &str, object: &'static str, model: String) -> Self {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let id = format!("{prefix}-{:016x}{:016x}", random(), random());
        Self { id, object, created, model, system_fingerprint: served.fingerprint.clone() }
    }
}

/// The members of two objects as one.
pub(super) fn with(head: &impl Serialize, more: Value) -> Value {
    let mut value = serde_json::to_value(head).unwrap_or(Value::Null);
    if let (Value::Object(all), Value::Object(more)) = (&mut value, more) {
        all.extend(more);
    }
    value
}

/// An answer: choices, what they took, and what OpenAI's answers do not say.
pub(super) fn answer(
    head: &Head,
    choices: &[Value],
    prompt_tokens: usize,
    policy: &Policy,
    wholes: &[Whole],
) -> Value {
    let usage = Usage::of(prompt_tokens, wholes);
    with(head, json!({"choices": choices, "usage": usage, "layerscope": extension(policy, wholes)}))
}

/// Runs work that takes a while, such as tokenizing a long prompt, beside the connections.
pub(super) async fn beside<T: Send + 'static>(
    state: &State,
    work: impl FnOnce(&Served) -> Result<T, Refused> + Send + 'static,
) -> Result<T, Refused> {
    let state = state.clone();
    let done = tokio::task::spawn_blocking(move || work(state.served()?)).await;
    done.unwrap_or_else(|_| Err(Refused::engine("the server failed; please report this")))
}

/// A text of so many new tokens.
pub(super) fn generate(
    served: &Served,
    max_new_tokens: usize,
    choice: layerscope_engine::Choice,
    likelihoods: Option<usize>,
    ignore_eos: bool,
) -> Generate {
    let stop_tokens = if ignore_eos { vec![] } else { served.tokenizer().eos_ids().to_vec() };
    Generate { forced: vec![], max_new_tokens, choice, stop_tokens, likelihoods }
}
