//! Messages between window and engine: commands and events.
//!
//! Both are plain data: with a remote engine they cross a pipe ([`super::remote`]), whose protocol has a number of its own.

use super::remote::plain;
use crate::data::TileKey;
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::PatchMap;
use layerscope_diagnostics::prompts::PromptFile;
use layerscope_diagnostics::record::SpanRecord;
use layerscope_engine::{
    AdapterTraining, DeviceChoice, HeldOutFigures, ModelSource, PatternTile, PromptText, Sampling,
    WeightsPrecision,
};
use layerscope_recording::patching::PatchRequest;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A command to the engine. The engine runs one at a time, in order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Command {
    /// Load a model, which replaces the loaded one; the loaded one stays if this fails or is cancelled.
    LoadModel {
        /// Where it comes from.
        #[serde(with = "plain::source")]
        source: ModelSource,
        /// How its weights are kept.
        precision: WeightsPrecision,
        /// The device.
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
        /// The adapter to record with.
        adapter: Option<PathBuf>,
    },
    /// Train an adapter of the loaded model; a folder with an unfinished training of the same choices goes on.
    Adapt {
        /// The prompts.
        prompts: PromptFile,
        /// How to train.
        training: Training,
        /// The adapter's folder.
        folder: PathBuf,
    },
    /// Generate under several policies, one after the other, so that times are correct.
    Generate {
        /// The sides; a side is known by its index.
        sides: Vec<Under>,
        /// At most this many tokens each.
        max_new_tokens: usize,
        /// How tokens are chosen; random ones from the same seed on every side.
        sampling: Sampling,
    },
    /// Read the attention pattern of the given layers over a prompt and its continuation, for every head and step.
    ReadPattern {
        /// Token ids of the prompt.
        prompt_tokens: Vec<u32>,
        /// Token ids of the continuation.
        continuation: Vec<u32>,
        /// The requested layers.
        layers: Vec<usize>,
    },
    /// Compute tiles of the attention pattern of a text; the text runs first, unless it is the one that ran last.
    PatternTiles {
        /// The text.
        text: Arc<TextTokens>,
        /// Name of the policy that it is read under.
        policy: String,
        /// The tiles, in this order.
        tiles: Vec<TileKey>,
    },
    /// Remove a span of a recorded prompt from each layer on, with the run's model, and write the result to
    /// the run folder.
    RemoveSpan {
        /// The run folder.
        folder: PathBuf,
        /// The prompt.
        prompt_id: String,
        /// Positions of the span.
        span: Range<usize>,
    },
    /// Patch activations of a recorded prompt into the run of another, with the run's model, and add the map to the run folder.
    Patch {
        /// The run folder.
        folder: PathBuf,
        /// The clean and the corrupted prompt.
        prompts: [String; 2],
        /// What is asked.
        request: PatchRequest,
        /// The adapter that the run was recorded with.
        adapter: Option<PathBuf>,
    },
    /// Stop the running command within one token or one prefill chunk, and drop queued commands.
    Cancel,
}

/// A prompt and what follows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextTokens {
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Token ids of the continuation.
    pub continuation: Vec<u32>,
}

/// What a side of a generation runs, and under what.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Under {
    /// The prompt.
    pub prompt: PromptText,
    /// Name of a policy, as [`layerscope_engine::Policy::parse`] takes it.
    pub policy: String,
    /// The adapter's folder.
    pub adapter: Option<PathBuf>,
}

/// How to train an adapter; everything else is as by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Training {
    /// Name of the policy to train for.
    pub policy: String,
    /// Minutes of training, without preparing the prompts.
    pub minutes: f64,
    /// Rank of the adapter.
    pub rank: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Decode rows of each prompt.
    pub max_new_tokens: usize,
}

/// An event from the engine.
///
/// Progress events (`Loading`, `PromptProgress`, `PromptsPrepared`, `TrainingStep`, `Prefilled`, `ReadingPattern`,
/// `RemovingSpan`, `Patching`) are dropped while the channel is full. Other events are never dropped, except those of a cancelled command.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// Progress of loading.
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
    /// Progress of a prompt.
    PromptProgress {
        /// Its share done, in \[0, 1\]: its tokens count half, the frontier's layers the other half.
        share: f32,
        /// The current step.
        stage: RecordingStage,
    },
    /// All prompts ran and what will be recommended is known; the rest of what is recorded follows.
    Recommended {
        /// One line.
        headline: String,
    },
    /// A prompt is recorded and durable in the run folder.
    PromptFinished {
        /// Its id.
        id: String,
    },
    /// A prompt failed; recording continues with the others.
    PromptFailed {
        /// Its id.
        id: String,
        /// The reason, one sentence.
        reason: String,
    },
    /// The recording ended; finished prompts are in the folder.
    RecordingEnded {
        /// The run folder.
        folder: PathBuf,
        /// Whether it was cancelled before the last prompt.
        cancelled: bool,
    },
    /// Prompts are run through the full model, before a training.
    PromptsPrepared {
        /// Prompts done.
        done: usize,
        /// Prompts in all.
        all: usize,
    },
    /// A prompt cannot be trained on; training goes on with the others.
    PromptLeftOut {
        /// Its id.
        id: String,
        /// The reason, one sentence.
        reason: String,
    },
    /// A training begins, or goes on.
    TrainingStarted {
        /// The policy, as the engine names it.
        policy: String,
        /// Its cutoff, where that is all it is.
        cutoff: Option<usize>,
        /// Prompts to train on.
        trained: usize,
        /// Prompts held out.
        held_out: usize,
        /// Steps done earlier, in the same folder.
        resumed: usize,
    },
    /// A step of training is done.
    TrainingStep {
        /// Its number, from 1 on.
        step: usize,
        /// Its loss, nats.
        loss: f64,
        /// How much of the training is done, in \[0, 1\].
        done: f64,
    },
    /// Held-out prompts were measured.
    HeldOut {
        /// After so many steps.
        step: usize,
        /// What was measured under the policy.
        figures: HeldOutFigures,
        /// Mean KL at some cutoffs, `(cutoff, nats)`, ascending.
        frontier: Vec<(usize, f64)>,
    },
    /// The training ended; the adapter is in its folder.
    TrainingEnded {
        /// The adapter's folder.
        folder: PathBuf,
        /// What it took, and what it changed.
        training: AdapterTraining,
        /// Whether it was cancelled.
        cancelled: bool,
    },
    /// A generation under one policy begins.
    GenerationStarted {
        /// Index of the side.
        side: usize,
        /// The policy's name.
        policy: String,
        /// The adapter's name.
        adapter: Option<String>,
        /// Prompt tokens p.
        prompt_tokens: usize,
        /// Bytes of KV that it will hold.
        kv_bytes: u64,
        /// A caveat to show with the output.
        caveat: Option<String>,
    },
    /// Progress of prefill.
    Prefilled {
        /// Index of the side.
        side: usize,
        /// Tokens done.
        done: usize,
        /// Prompt tokens p.
        all: usize,
    },
    /// A token was generated.
    Token(Box<LiveToken>),
    /// A generation ended or was cancelled.
    GenerationEnded {
        /// Index of the side.
        side: usize,
        /// Time to first token, seconds; `None` if it was stopped before.
        ttft_s: Option<f64>,
        /// Mean time per output token after the first, seconds; `None` for fewer than two tokens.
        tpot_s: Option<f64>,
        /// Bytes of KV allocated.
        kv_bytes: u64,
        /// The rest of the text: an incomplete character as U+FFFD, or empty.
        text_rest: String,
        /// Whether the user stopped it.
        cancelled: bool,
    },
    /// Progress of prefill for a pattern; not sent if the KV is stored.
    ReadingPattern {
        /// Tokens done.
        done: usize,
        /// Prompt tokens p.
        all: usize,
    },
    /// The attention pattern of a layer.
    Pattern(Pattern),
    /// A tile of the attention pattern of the text that was asked for last.
    PatternTile {
        /// Which.
        key: TileKey,
        /// The tile.
        tile: Arc<PatternTile>,
    },
    /// Progress of removing a span.
    RemovingSpan(DiffusionEvent),
    /// A span was removed from each layer on; the result is in the run folder.
    SpanRemoved {
        /// The run folder.
        folder: PathBuf,
        /// The result.
        #[serde(with = "plain::span")]
        record: SpanRecord,
    },
    /// Progress of patching.
    Patching(PatchEvent),
    /// A map of patches is done, or as much of it as was computed before a cancel; it is in the run folder.
    Patched {
        /// The run folder.
        folder: PathBuf,
        /// The map.
        #[serde(with = "plain::patches")]
        map: Arc<PatchMap>,
        /// False where the folder keeps an earlier map of the same question, of which more is computed.
        kept: bool,
    },
    /// A command failed, with one sentence for the user. No other event reports the failure.
    Failed(String),
    /// A command ended: done, failed, cancelled or dropped. Sent exactly once per command, except
    /// [`Command::Cancel`].
    Idle,
}

/// A step of recording a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordingStage {
    /// Prefill and decode.
    Tokens {
        /// Tokens done.
        done: usize,
        /// p + N.
        all: usize,
    },
    /// The largest cutoffs of all prompts, from which the recommendation follows.
    LargestCutoffs {
        /// Prompts done.
        done: usize,
        /// Prompts of the run.
        all: usize,
    },
    /// The exact frontier.
    Frontier {
        /// Layers done.
        done: usize,
        /// Layers L.
        all: usize,
    },
    /// The texts under cutoffs, in which the answer is looked for.
    Texts {
        /// Tokens done.
        done: usize,
        /// Most tokens that they can have.
        all: usize,
    },
}

/// A loaded model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedModel {
    /// Its displayed name.
    pub name: String,
    /// SHA-256 as in a run's manifest.
    pub sha256: String,
    /// Its file or folder; `None` for a built-in model.
    pub path: Option<PathBuf>,
    /// Layers L.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Longest sequence, tokens.
    pub context: usize,
    /// Precision of its weights, as text.
    pub precision: String,
    /// Its device.
    pub device: String,
    /// Whether it has a chat template, without which there are no conversations.
    pub has_chat_template: bool,
}

/// A generated token with its measurements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveToken {
    /// Index of the side.
    pub side: usize,
    /// Its decode step; 0 is the first token.
    pub step: usize,
    /// Its id.
    pub id: u32,
    /// How the token is shown by itself.
    pub token: String,
    /// The text that it adds: empty within a character, and the text of several tokens when it completes one.
    pub text: String,
    /// The most likely tokens, most likely first.
    pub top: Vec<Candidate>,
    /// Seconds since the generation began.
    pub elapsed_s: f64,
    /// Attention of its query by layer, means over heads, length L; empty for the first token, whose query is
    /// part of the prefill.
    pub attention: Vec<LiveAttention>,
}

/// A candidate for the next token.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its id.
    pub id: u32,
    /// How it is shown.
    pub token: String,
    /// Its probability, in \[0, 1\].
    pub probability: f64,
}

/// One layer's attention at one decode step, means over heads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LiveAttention {
    /// Mass on position 0.
    pub bos_mass: f32,
    /// Mass on positions 1 … p−2.
    pub prompt_mass: f32,
    /// Mass on positions ≥ p−1.
    pub decode_mass: f32,
    /// Entropy within the prompt divided by ln(p−2), mean over the heads with a defined value; NaN if there
    /// are none.
    pub prompt_entropy: f32,
}

/// Attention of one layer's decode queries on the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
