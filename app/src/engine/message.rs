//! What the window and the engine say to each other: one type for commands, one for events.
//!
//! Both are plain data, so that an engine in another process or on another machine can stand at the other end.

use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_diagnostics::record::SpanRecord;
use layerscope_engine::{DeviceChoice, ModelSource, PromptText, WeightsPrecision};
use std::ops::Range;
use std::path::PathBuf;

/// What the window asks of the engine. The engine does one thing at a time, in the order asked.
#[derive(Debug, Clone)]
pub enum Command {
    /// Load a model; it replaces the one that is loaded, which stays where that fails or is cancelled.
    LoadModel {
        /// Where it comes from.
        source: ModelSource,
        /// How its weights are kept.
        precision: WeightsPrecision,
        /// Where it is to run.
        device: DeviceChoice,
    },
    /// Record prompts with the loaded model into a run folder; a folder with the same run in it is resumed.
    Record {
        /// The prompts.
        prompts: PromptFile,
        /// Decode steps of each prompt.
        max_new_tokens: usize,
        /// The run folder.
        folder: PathBuf,
    },
    /// Generate from one prompt under several policies, one after the other and never at once, so that times are true.
    Generate {
        /// The prompt.
        prompt: PromptText,
        /// Names of policies, as [`layerscope_engine::Policy::parse`] takes them; the index of a policy is its side.
        policies: Vec<String>,
        /// At most this many tokens each.
        max_new_tokens: usize,
    },
    /// Read the attention pattern of the given layers over a prompt and its continuation, for every head and step.
    ReadPattern {
        /// Token ids of the prompt.
        prompt_tokens: Vec<u32>,
        /// Token ids of the continuation.
        continuation: Vec<u32>,
        /// The layers wanted.
        layers: Vec<usize>,
    },
    /// Remove a span of a recorded prompt from each layer on, with the run's model, and keep what comes of it in the run folder.
    RemoveSpan {
        /// The run folder.
        folder: PathBuf,
        /// The prompt.
        prompt_id: String,
        /// Positions of the span.
        span: Range<usize>,
    },
    /// Stop what is being done, within one token or one chunk of prefill; commands that wait are dropped.
    Cancel,
}

/// What the engine tells the window.
///
/// How far something has come (`Loading`, `PromptProgress`, `Prefilled`, `ReadingPattern`, `RemovingSpan`) is left out while the window is
/// far behind with taking events; the others never are, save those of a command that is cancelled meanwhile.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// So many of all layers are loaded.
    Loading {
        /// Layers loaded.
        done: usize,
        /// Layers of the model.
        all: usize,
    },
    /// A model is loaded.
    Loaded(LoadedModel),
    /// A recording begins.
    RecordingStarted {
        /// Prompts recorded earlier, in the same folder.
        done: usize,
        /// Prompts in all.
        all: usize,
    },
    /// A prompt is being recorded.
    PromptStarted {
        /// Its id.
        id: String,
        /// Its p tokens and N decode steps.
        tokens: usize,
    },
    /// So far the prompt has come.
    PromptProgress {
        /// Its share done, in \[0, 1\]: its tokens count half, the frontier's layers the other half.
        share: f32,
        /// What is being done.
        stage: RecordingStage,
    },
    /// A prompt is recorded and durable in the run folder.
    PromptFinished {
        /// Its id.
        id: String,
    },
    /// A prompt could not be recorded; the others go on.
    PromptFailed {
        /// Its id.
        id: String,
        /// Why, in one sentence.
        reason: String,
    },
    /// The recording ended; all that finished is in the folder.
    RecordingEnded {
        /// The run folder.
        folder: PathBuf,
        /// Whether it was cancelled before the last prompt.
        cancelled: bool,
    },
    /// A generation under one policy begins.
    GenerationStarted {
        /// Index of the policy.
        side: usize,
        /// Its name.
        policy: String,
        /// Prompt tokens p.
        prompt_tokens: usize,
        /// Bytes of KV that it will hold.
        kv_bytes: usize,
        /// What has to be said where its output is shown.
        caveat: Option<&'static str>,
    },
    /// So many prompt tokens went through the model.
    Prefilled {
        /// Index of the policy.
        side: usize,
        /// Tokens done.
        done: usize,
        /// Prompt tokens p.
        all: usize,
    },
    /// A token was generated.
    Token(Box<LiveToken>),
    /// A generation ended, of itself or cancelled.
    GenerationEnded {
        /// Index of the policy.
        side: usize,
        /// Time to first token, seconds; `None` where it was stopped before.
        ttft_s: Option<f64>,
        /// Mean time per output token after the first, seconds; `None` for fewer than two tokens.
        tpot_s: Option<f64>,
        /// Bytes of KV allocated.
        kv_bytes: usize,
        /// Text held back until now: a character that was never completed, as U+FFFD, or nothing.
        text_rest: String,
        /// Whether the user stopped it.
        cancelled: bool,
    },
    /// So many tokens went through the model, for a pattern; not told where they did so earlier.
    ReadingPattern {
        /// Tokens done.
        done: usize,
        /// Prompt tokens p.
        all: usize,
    },
    /// The attention pattern of a layer.
    Pattern(Pattern),
    /// So far the removing of a span has come.
    RemovingSpan(DiffusionEvent),
    /// A span was removed from each layer on; what came of it is in the run folder.
    SpanRemoved {
        /// The run folder.
        folder: PathBuf,
        /// What came of it.
        record: SpanRecord,
    },
    /// What was asked for cannot be done, or broke off; one sentence for the user. No other event tells of that end.
    Failed(String),
    /// A command is over, done, failed, cancelled or dropped: exactly one for each but [`Command::Cancel`].
    Idle,
}

/// What recording a prompt goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordingStage {
    /// Prefill and decode.
    Tokens {
        /// Tokens done.
        done: usize,
        /// p + N.
        all: usize,
    },
    /// The exact frontier.
    Frontier {
        /// Layers done.
        done: usize,
        /// Layers L.
        all: usize,
    },
}

/// A model that is ready.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadedModel {
    /// Its name for people.
    pub name: String,
    /// SHA-256 as in a run's manifest.
    pub sha256: String,
    /// Layers L.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Longest sequence, tokens.
    pub context: usize,
    /// Precision of its weights, for people.
    pub precision: &'static str,
    /// Where it runs.
    pub device: String,
}

/// A generated token with what there was to see.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveToken {
    /// Index of the policy.
    pub side: usize,
    /// Decode step that yielded it; 0 is the first token.
    pub step: usize,
    /// Its id.
    pub id: u32,
    /// How the token is shown by itself.
    pub token: String,
    /// The text that it adds: nothing while a character is not whole, more than one token's once it is.
    pub text: String,
    /// The most likely tokens, most likely first.
    pub top: Vec<Candidate>,
    /// Seconds since the generation began.
    pub elapsed_s: f64,
    /// Attention of its query by layer, means over heads, length L; empty for the first token, whose query is part of
    /// the prefill.
    pub attention: Vec<LiveAttention>,
}

/// A token that could have been next.
#[derive(Debug, Clone, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// How it is shown.
    pub token: String,
    /// Its probability, in \[0, 1\].
    pub probability: f64,
}

/// One layer's attention at one decode step, means over heads.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiveAttention {
    /// Mass on position 0.
    pub bos_mass: f32,
    /// Mass on positions 1 … p−2.
    pub prompt_mass: f32,
    /// Mass on positions ≥ p−1.
    pub decode_mass: f32,
    /// Entropy within the prompt over ln(p−2), mean over the heads where it is defined; NaN where none is.
    pub prompt_entropy: f32,
}

/// How the decode queries of one layer read the prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Pattern {
    /// The layer.
    pub layer: usize,
    /// Query heads H.
    pub heads: usize,
    /// Decode steps N.
    pub steps: usize,
    /// Prompt tokens p.
    pub positions: usize,
    /// Attention probabilities `[H, N, p]`.
    pub values: Vec<f32>,
}
