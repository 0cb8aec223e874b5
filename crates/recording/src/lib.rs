//! Recording: measures every prompt of a file with probes and frontier, and writes the run folder.

pub mod continuations;
pub mod patching;
pub mod policies;
mod recorded_with;
pub mod sets;
mod shard;
pub mod spans;

pub use shard::Shard;

use layerscope_cutoff::Answer;
use layerscope_cutoff::answers::judge_answers;
use layerscope_cutoff::frontier::{CausalMap, PromptFrontier, frontier};
use layerscope_diagnostics::machine::Machine;
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_diagnostics::prompts::{Prompt, PromptFile};
use layerscope_diagnostics::record::{Anchor, PromptRecord, PromptSummary};
use layerscope_diagnostics::run::{
    AdapterRecord, BosToken, Manifest, ModelInfo, RunWriter, Settings, TrainingRecord,
};
use layerscope_engine::{
    Error, ErrorKind, Interrupt, Model, ModelAdapter, Result, WeightsPrecision, check_interrupt,
};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

/// Progress of a recording.
#[derive(Debug)]
pub enum RecordingEvent<'a> {
    /// This many of the prompts are in the folder already and are not run again.
    Resumed {
        /// Prompts already done.
        done: usize,
        /// Prompts of the file, or of the share of it that is recorded.
        all: usize,
    },
    /// A prompt begins.
    Started {
        /// Its id.
        id: &'a str,
        /// Its number of tokens p, plus the N decode steps.
        tokens: usize,
    },
    /// This many of its p + N tokens are processed.
    Tokens(usize),
    /// The frontier has processed this many layers.
    FrontierLayers {
        /// Layers done.
        done: usize,
        /// Layers L.
        all: usize,
    },
    /// The texts under cutoffs, in which the answer is looked for, have so many tokens.
    Texts {
        /// Tokens done.
        done: usize,
        /// Most tokens that they can have.
        all: usize,
    },
    /// The prompt is recorded and durable.
    Finished(&'a PromptRecord),
    /// The prompt failed; recording continues with the others.
    Failed {
        /// Its id.
        id: &'a str,
        /// The reason, one sentence.
        reason: &'a str,
    },
}

/// What is recorded of each prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Decode steps, at most: of the greedy continuation or the prompt's answer.
    pub max_new_tokens: usize,
    /// Whether attention knockout goes by KV head, too; [`CausalMap::affordable`] where nothing is said.
    pub heads: Option<bool>,
    /// The share of the prompts that is recorded; all where there is none.
    pub shard: Option<Shard>,
}

impl Recorded {
    /// So many decode steps; heads where they are affordable.
    pub fn steps(max_new_tokens: usize) -> Self {
        Self { max_new_tokens, heads: None, shard: None }
    }

    /// Attention knockout of some prompts.
    fn map(self, model: &Model, prompts: &[Prompt]) -> CausalMap {
        let encoded = prompts.iter().filter_map(|prompt| model.tokenizer.encode_prompt(&prompt.content).ok());
        match self.heads {
            Some(true) => CausalMap::Heads,
            Some(false) => CausalMap::Layers,
            None => {
                let lengths: Vec<usize> = encoded.map(|tokens| tokens.len()).collect();
                CausalMap::affordable(model.config(), &lengths, self.max_new_tokens)
            }
        }
    }
}

/// Records one prompt.
///
/// # Errors
/// [`Error::Input`] on a prompt that cannot be run; [`Error::Interrupted`].
pub fn record_prompt(
    model: &Model,
    prompt: &Prompt,
    recorded: Recorded,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(RecordingEvent<'_>),
) -> Result<PromptRecord> {
    let map = recorded.map(model, std::slice::from_ref(prompt));
    let max_new_tokens = recorded.max_new_tokens;
    let tokenizer = &model.tokenizer;
    let prompt_tokens = tokenizer.encode_prompt(&prompt.content)?;
    let answer = match &prompt.answer {
        None => None,
        Some(answer) => {
            let mut tokens = tokenizer.encode_fitting(answer)?;
            tokens.truncate(max_new_tokens);
            Some(tokens)
        }
    };
    let continuation = match &answer {
        Some(tokens) => Decoding::Given(tokens),
        None => Decoding::Greedy { tokens: max_new_tokens, excluded: tokenizer.eos_ids() },
    };
    let steps = answer.as_ref().map_or(max_new_tokens, Vec::len);
    let runs = if model.adapter.is_some() { 2 } else { 1 };
    observe(RecordingEvent::Started { id: &prompt.id, tokens: runs * (prompt_tokens.len() + steps) });
    let mut run = probe::run(&model.reference()?, &prompt_tokens, &continuation, interrupt, &mut |done| {
        observe(RecordingEvent::Tokens(done));
    })?;
    if model.adapter.is_some() {
        let before = prompt_tokens.len() + steps;
        run = probe::run_adapted(&model.decoder, &prompt_tokens, run, interrupt, &mut |done| {
            observe(RecordingEvent::Tokens(before + done));
        })?;
    }
    let start = Instant::now();
    let layers = model.config().layers;
    let mut frontier = frontier(&model.decoder, &run, map, interrupt, &mut |done| {
        observe(RecordingEvent::FrontierLayers { done, all: layers });
    })?;
    let expected = prompt.expected();
    if let (Some(text), Some(&last)) = (expected, prompt_tokens.last()) {
        let room = (model.config().context + 1).saturating_sub(prompt_tokens.len());
        let answer = Answer { text, max_new_tokens: max_new_tokens.min(room) };
        judge_answers(model, &mut run, last, &mut frontier, &answer, interrupt, &mut |done, all| {
            observe(RecordingEvent::Texts { done, all });
        })?;
    }
    let PromptFrontier { rows, knockout, .. } = frontier;
    run.timings.frontier_s = start.elapsed().as_secs_f64();
    let shown = |tokens: &[u32]| tokens.iter().map(|&id| tokenizer.token_text(id)).collect();
    let figures = run.figures;
    let by_step = figures.by_step(prompt_tokens.len(), &run.continuation);
    let summary = PromptSummary {
        id: prompt.id.clone(),
        category: prompt.category.clone(),
        text: prompt.text(),
        p: prompt_tokens.len(),
        steps: run.continuation.len(),
        prompt_token_text: shown(&prompt_tokens),
        prompt_tokens,
        generated_token_text: shown(&run.continuation),
        generated_text: tokenizer.decode(&run.continuation)?,
        generated: run.continuation,
        answer_given: answer.is_some(),
        expected: expected.map(str::to_owned),
        native_kl: run.generation_kl.filter(|_| model.precision == WeightsPrecision::Native),
        timings: run.timings,
        layers: figures.by_layer(),
        heads: figures.by_head(),
        frontier: rows,
        knockout,
    };
    Ok(PromptRecord { summary, steps: by_step, received: figures.received, reads: figures.reads })
}

/// Records every prompt of a file into a run folder, except those that the folder already has. `command` is
/// stored in the manifest of a new run: the arguments of `layerscope` that repeat it, or empty.
///
/// A prompt that cannot be run is stored as failed, with the reason; recording continues with the next.
///
/// # Errors
/// [`Error::Input`] if the folder has another run; [`Error::Interrupted`], which keeps finished prompts;
/// [`Error::Failure`] if the folder cannot be written.
pub fn record(
    model: &Model,
    prompts: &PromptFile,
    recorded: Recorded,
    folder: &Path,
    command: &[String],
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(RecordingEvent<'_>),
) -> Result<Manifest> {
    if recorded.max_new_tokens == 0 {
        return Err(Error::input("--max-new-tokens must be at least 1"));
    }
    let map = recorded.map(model, &prompts.prompts);
    let each = Recorded { heads: Some(map == CausalMap::Heads), ..recorded };
    let wanted = Manifest {
        machine: Some(Machine::with(model.decoder.device())),
        command: command.to_vec(),
        ..manifest(model, prompts, each.max_new_tokens, map)?
    };
    let mut writer = RunWriter::create_or_resume(folder, wanted)?;
    let own = prompts.prompts.iter().filter(|p| recorded.shard.is_none_or(|shard| shard.has(&p.id)));
    let all = own.clone().count();
    let pending: Vec<&Prompt> = own.filter(|p| !writer.is_done(&p.id)).collect();
    observe(RecordingEvent::Resumed { done: all - pending.len(), all });
    for prompt in pending {
        let recorded =
            check_interrupt(interrupt).and_then(|()| record_prompt(model, prompt, each, interrupt, observe));
        match recorded {
            Ok(record) => {
                writer.append(&record)?;
                observe(RecordingEvent::Finished(&record));
            }
            Err(error) if error.kind() == ErrorKind::Input => {
                writer.fail(&prompt.id, &error)?;
                observe(RecordingEvent::Failed { id: &prompt.id, reason: &error.to_string() });
            }
            Err(error) => {
                writer.finish()?;
                return Err(error);
            }
        }
    }
    writer.finish().cloned()
}

fn adapter_record(adapter: &ModelAdapter) -> AdapterRecord {
    let made_for = adapter.made_for.as_ref();
    AdapterRecord {
        name: adapter.name.clone(),
        sha256: adapter.sha256.clone(),
        rows: adapter.rows.name().to_owned(),
        policy: made_for.map(|made_for| made_for.policy.clone()),
        training: made_for.and_then(|made_for| made_for.training.as_ref()).map(|training| TrainingRecord {
            steps: training.steps,
            tokens: training.tokens,
            seconds: training.seconds,
            prompts: training.prompts,
            held_out: training.held_out,
            kl_before: training.before.kl,
            kl_after: training.after.kl,
            kl_full_depth: training.full_depth.map(|figures| figures.kl),
        }),
    }
}

fn manifest(model: &Model, prompts: &PromptFile, max_new_tokens: usize, map: CausalMap) -> Result<Manifest> {
    let config = model.config();
    let windowed: Vec<usize> = (0..config.layers).filter(|&l| config.windows[l].is_some()).collect();
    // The `bos` anchor keeps position 0, whatever its token is.
    let first = prompts
        .prompts
        .iter()
        .find_map(|prompt| model.tokenizer.encode_prompt(&prompt.content).ok()?.first().copied());
    let info = ModelInfo {
        name: model.name.clone(),
        sha256: model.sha256().to_owned(),
        architecture: config.architecture.clone(),
        layers: config.layers,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        hidden: config.hidden,
        feed_forward: config.feed_forward,
        vocab: config.vocab,
        context: config.context,
        window: windowed.first().and_then(|&l| config.windows[l]),
        windowed_layers: windowed,
        bos: first.map(|id| BosToken { id, text: model.tokenizer.token_text(id) }),
        weight_bytes: Some(model.decoder.step_weight_bytes() as u64),
        row_weights: Some(config.row_weights()),
        adapter: model.adapter.as_ref().map(adapter_record),
    };
    let settings = Settings {
        max_new_tokens,
        anchors: Anchor::ALL.to_vec(),
        prompts_file: prompts.name.clone(),
        prompts_sha256: prompts.sha256.clone(),
        other: BTreeMap::from([("heads".to_owned(), (map == CausalMap::Heads).into())]),
    };
    let ids = prompts.prompts.iter().map(|p| p.id.clone()).collect();
    let spans = prompts.prompts.iter().filter_map(|p| Some((p.id.clone(), p.span.clone()?)));
    let mut manifest = Manifest::new(
        info,
        model.precision.name(),
        model.decoder.device().kind(),
        model.decoder.kv_precision().bytes(1),
        settings,
        ids,
    );
    manifest.prompts.spans = spans.collect();
    Ok(manifest)
}
