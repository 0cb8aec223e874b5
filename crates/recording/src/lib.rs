//! Recording: measures every prompt of a file with probes and frontier, and writes the run folder.

pub mod continuations;
mod knee;
pub mod patching;
pub mod policies;
mod prompt;
mod recorded_with;
pub mod sets;
mod shard;
pub mod spans;

pub use knee::Ahead;
pub use prompt::record_prompt;
pub use shard::Shard;

use layerscope_cutoff::frontier::CausalMap;
use layerscope_diagnostics::machine::Machine;
use layerscope_diagnostics::prompts::{Prompt, PromptFile};
use layerscope_diagnostics::record::{Anchor, PromptRecord};
use layerscope_diagnostics::run::{
    AdapterRecord, BosToken, Manifest, ModelInfo, RunWriter, Settings, TrainingRecord,
};
use layerscope_engine::{Error, ErrorKind, Interrupt, Model, ModelAdapter, Result, check_interrupt};
use prompt::BegunPrompt;
use std::collections::BTreeMap;
use std::path::Path;

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
    /// The largest cutoffs of so many prompts are computed.
    LargestCutoffs {
        /// Prompts done.
        done: usize,
        /// Prompts of the run.
        all: usize,
    },
    /// What will be recommended by default, known from the largest cutoffs of all prompts; the rest of what is recorded follows. It holds
    /// up to rounding, unless that turns out to have undefined figures or a prompt fails.
    Recommended(Ahead),
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
    /// Whether a new run runs all prompts first where the frontier is most of the work: what is recommended is known early then
    /// ([`RecordingEvent::Recommended`]).
    pub ahead: bool,
}

impl Recorded {
    /// So many decode steps; heads where they are affordable.
    pub fn steps(max_new_tokens: usize) -> Self {
        Self { max_new_tokens, heads: None, shard: None, ahead: false }
    }

    /// Attention knockout of prompts of so many tokens.
    fn map(self, model: &Model, lengths: &[usize]) -> CausalMap {
        match self.heads {
            Some(true) => CausalMap::Heads,
            Some(false) => CausalMap::Layers,
            None => CausalMap::affordable(model.config(), lengths, self.max_new_tokens),
        }
    }
}

/// Tokens of each prompt that can be run.
fn lengths(model: &Model, prompts: &[Prompt], max_new_tokens: usize) -> Vec<usize> {
    let encoded = prompts.iter().filter_map(|prompt| model.tokenizer.encode_prompt(&prompt.content).ok());
    let most = (model.config().context + 1).saturating_sub(max_new_tokens);
    encoded.map(|tokens| tokens.len()).filter(|&length| length <= most).collect()
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
    let steps = recorded.max_new_tokens;
    let lengths = lengths(model, &prompts.prompts, steps);
    let map = recorded.map(model, &lengths);
    let wanted = Manifest {
        machine: Some(Machine::with(model.decoder.device())),
        command: command.to_vec(),
        ..manifest(model, prompts, steps, map)?
    };
    let mut writer = RunWriter::create_or_resume(folder, wanted)?;
    let own = prompts.prompts.iter().filter(|p| recorded.shard.is_none_or(|shard| shard.has(&p.id)));
    let all = own.clone().count();
    let pending: Vec<&Prompt> = own.filter(|p| !writer.is_done(&p.id)).collect();
    observe(RecordingEvent::Resumed { done: all - pending.len(), all });
    // What is recommended depends on all prompts. A run that was interrupted goes prompt by prompt, so that it gets on even if it is
    // interrupted often.
    let ahead = recorded.ahead && recorded.shard.is_none() && writer.is_new();
    let ahead = ahead && knee::is_worthwhile(model, &lengths, steps, map)?;
    let run = |prompt, observe: &mut dyn FnMut(RecordingEvent<'_>)| {
        check_interrupt(interrupt)?;
        BegunPrompt::run(model, prompt, steps, interrupt, observe)
    };
    let mut queue: Vec<(&Prompt, Option<BegunPrompt<'_>>)> = vec![];
    if ahead {
        let mut begun = vec![];
        for prompt in pending {
            let ran = run(prompt, observe);
            begun.extend(kept(ran, prompt, &mut writer, observe)?);
        }
        match knee::recommended(model, &mut begun, writer.manifest(), interrupt, observe) {
            Ok(Some(recommended)) => observe(RecordingEvent::Recommended(recommended)),
            Ok(None) => {}
            // The prompt's own recording fails likewise, and is noted.
            Err(error) if error.kind() == ErrorKind::Input => {}
            Err(error) => {
                writer.finish()?;
                return Err(error);
            }
        }
        queue.extend(begun.into_iter().map(|begun| (begun.prompt, Some(begun))));
    } else {
        queue.extend(pending.into_iter().map(|prompt| (prompt, None)));
    }
    for (prompt, begun) in queue {
        let begun = match begun {
            Some(begun) => check_interrupt(interrupt).map(|()| {
                observe(RecordingEvent::Started { id: &prompt.id, tokens: begun.tokens });
                observe(RecordingEvent::Tokens(begun.tokens));
                begun
            }),
            None => run(prompt, observe),
        };
        let record = begun.and_then(|begun| begun.finish(map, interrupt, observe));
        if let Some(record) = kept(record, prompt, &mut writer, observe)? {
            writer.append(&record)?;
            observe(RecordingEvent::Finished(&record));
        }
    }
    writer.finish().cloned()
}

/// What came of a prompt; `None` where it cannot be run, which the folder notes.
fn kept<T>(
    came: Result<T>,
    prompt: &Prompt,
    writer: &mut RunWriter,
    observe: &mut dyn FnMut(RecordingEvent<'_>),
) -> Result<Option<T>> {
    match came {
        Ok(came) => Ok(Some(came)),
        Err(error) if error.kind() == ErrorKind::Input => {
            writer.fail(&prompt.id, &error)?;
            observe(RecordingEvent::Failed { id: &prompt.id, reason: &error.to_string() });
            Ok(None)
        }
        Err(error) => {
            writer.finish()?;
            Err(error)
        }
    }
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
