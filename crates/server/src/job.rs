//! What a request asks of the thread that runs the model, and what comes back.

use crate::served::Under;
use layerscope_engine::Choice;
use layerscope_eval::{Likelihood, TokenLikelihood};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// What goes to the engine's thread.
pub(crate) enum Message {
    Job(Box<Job>),
    /// Ends once everything has run.
    Stop,
}

/// A sequence that is to run.
pub(crate) struct Job {
    pub(crate) under: Under,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) task: Task,
    /// Nobody listens once this is closed, and the sequence ends.
    pub(crate) events: UnboundedSender<Event>,
    pub(crate) arrived: Instant,
}

/// What a sequence does behind its prompt.
pub(crate) enum Task {
    Generate(Generate),
    /// Likelihoods of continuations, each behind the prompt alone.
    Score(Vec<Vec<u32>>),
}

impl Task {
    /// Whether all it yields is a generated text, and no likelihood of given tokens.
    pub(crate) fn generates_alone(&self) -> bool {
        matches!(self, Self::Generate(generate) if generate.forced.is_empty())
    }
}

/// Text to generate.
#[derive(Debug, Clone)]
pub(crate) struct Generate {
    /// Tokens that run behind the prompt as decode rows before any is chosen.
    pub(crate) forced: Vec<u32>,
    pub(crate) max_new_tokens: usize,
    pub(crate) choice: Choice,
    pub(crate) stop_tokens: Vec<u32>,
    /// For each token its likelihood and those of so many most likely ones.
    pub(crate) likelihoods: Option<usize>,
}

/// What a sequence yields.
#[derive(Debug)]
pub(crate) enum Event {
    /// It runs now; so many tokens of its prompt were taken over from another.
    Started { taken_over: usize },
    /// What the model says of the next of the given tokens.
    Forced(Vec<(u32, TokenLikelihood)>),
    /// A token was chosen.
    Token { token: u32, likelihood: Option<TokenLikelihood>, figures: Figures },
    /// The likelihood of the next continuation.
    Scored(Likelihood),
    /// It has ended.
    Ended { reason: EndReason, figures: Figures },
    /// It cannot go on.
    Failed(Failure),
}

/// Why a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndReason {
    /// The model ended it, or a stop text did.
    Stop,
    /// It has as many tokens as were asked for.
    Length,
}

impl EndReason {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// What a sequence took.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub(crate) struct Figures {
    /// Bytes of keys and values that were allocated after the prefill.
    pub(crate) kv_bytes: usize,
    /// From arrival to the first pass, seconds.
    pub(crate) queued_s: f64,
    /// From arrival to the first token, seconds.
    pub(crate) ttft_s: Option<f64>,
    /// Mean time per token after the first, seconds.
    pub(crate) tpot_s: Option<f64>,
}

/// Why a sequence cannot go on.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The request cannot be met.
    Input(String),
    /// It took longer than requests may.
    Late,
    /// The engine failed.
    Engine(String),
}

impl From<layerscope_engine::Error> for Failure {
    fn from(error: layerscope_engine::Error) -> Self {
        match error.kind() {
            layerscope_engine::ErrorKind::Input => Self::Input(error.to_string()),
            _ => Self::Engine(error.to_string()),
        }
    }
}
