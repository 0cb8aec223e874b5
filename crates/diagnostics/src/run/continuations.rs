//! `continuations.json`: texts generated under a policy, for prompts whose full-depth text is in the run.
//!
//! The frontier is teacher-forced, so it does not show the text under a cutoff; these entries do. Prompts
//! with a given answer have none, because there is no text of the full model to compare with.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use layerscope_engine::{Error, Repetition, Result};
use serde::{Deserialize, Serialize};

use super::json_file::JsonFile;
use super::{Run, durable, layout};
use crate::undefined::number_or_null;

/// The file's name in a run folder.
pub const CONTINUATIONS: &str = "continuations.json";

const FILE: JsonFile = JsonFile {
    schema: 1,
    what: "a run's list of continuations",
    mend: "delete it and run the same layerscope record again, which writes it anew",
};

/// The content of `continuations.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuations {
    /// Version of the file's layout.
    pub schema: u32,
    /// Version of layerscope that wrote it.
    pub layerscope: String,
    /// At most one per prompt and policy.
    pub entries: Vec<Continuation>,
}

/// One prompt, continued greedily under a policy with the settings of the run: the same number of tokens, and
/// no end-of-sequence tokens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Continuation {
    /// The prompt.
    pub prompt_id: String,
    /// Name of the policy, e.g. `speed:24+bos`.
    pub policy: String,
    /// Tokens asked for.
    pub max_new_tokens: usize,
    /// The tokens.
    pub generated: Vec<u32>,
    /// How each token is shown.
    pub generated_token_text: Vec<String>,
    /// The text.
    pub generated_text: String,
    /// The prompt's mean KL(full ‖ policy) in the frontier, over the steps of the run's continuation, nats.
    /// NaN if undefined, null in the file.
    #[serde(deserialize_with = "number_or_null")]
    pub kl: f64,
    /// The decode step at which the text first differs from the run's `generated`; `None` if it never does.
    /// Up to this step, the frontier's teacher forcing and this text are the same computation.
    pub first_difference: Option<usize>,
    /// The loop at the end of the text, if any.
    pub repetition: Option<Repetition>,
}

impl Continuations {
    fn empty() -> Self {
        Self { schema: FILE.schema, layerscope: env!("CARGO_PKG_VERSION").into(), entries: vec![] }
    }

    /// The entries of a policy, largest KL first, undefined last.
    pub fn of_policy(&self, policy: &str) -> Vec<&Continuation> {
        let mut entries: Vec<_> = self.entries.iter().filter(|entry| entry.policy == policy).collect();
        let rank = |entry: &Continuation| if entry.kl.is_nan() { f64::NEG_INFINITY } else { entry.kl };
        entries.sort_by(|a, b| rank(b).total_cmp(&rank(a)));
        entries
    }

    /// A prompt's entry under a policy.
    pub fn find(&self, prompt_id: &str, policy: &str) -> Option<&Continuation> {
        self.entries.iter().find(|entry| entry.prompt_id == prompt_id && entry.policy == policy)
    }

    /// Reads the file of a run; `None` if there is none.
    pub(super) fn read(run: &Run) -> Result<Option<Self>> {
        let path = run.folder().join(CONTINUATIONS);
        let bytes = match layerscope_files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let continuations: Self = FILE.parse(&path, &bytes)?;
        continuations.check(&run.manifest().prompts.ids).map_err(|problem| FILE.damaged(&path, &problem))?;
        Ok(Some(continuations))
    }

    /// Checks what our writer guarantees.
    fn check(&self, prompt_ids: &[String]) -> std::result::Result<(), String> {
        let known: BTreeSet<&str> = prompt_ids.iter().map(String::as_str).collect();
        let mut seen = BTreeSet::new();
        for entry in &self.entries {
            let id = &entry.prompt_id;
            if !known.contains(id.as_str()) {
                return Err(format!("the run has no prompt {id:?}"));
            }
            if !seen.insert((id, &entry.policy)) {
                return Err(format!("the prompt {id:?} occurs twice under {}", entry.policy));
            }
            entry.check().map_err(|problem| format!("{problem} of prompt {id:?}"))?;
        }
        Ok(())
    }
}

impl Continuation {
    fn check(&self) -> std::result::Result<(), &'static str> {
        let tokens = self.generated.len();
        let covered = |found: Repetition| found.period.checked_mul(found.rounds);
        if self.generated_token_text.len() != tokens {
            return Err("not as many texts as tokens");
        }
        if self.first_difference.is_some_and(|step| step >= tokens) {
            return Err("a difference after the end");
        }
        if self.repetition.is_some_and(|found| !covered(found).is_some_and(|n| (1..=tokens).contains(&n))) {
            return Err("a loop longer than the text");
        }
        if self.kl.is_infinite() {
            return Err("an infinite KL");
        }
        Ok(())
    }
}

/// Adds continuations to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct ContinuationsWriter {
    folder: PathBuf,
    continuations: Continuations,
    _lock: File,
}

impl ContinuationsWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged or of a newer version, or a recording is writing to the
    /// folder; [`Error::Failure`] if it cannot be written.
    pub fn open(run: &Run) -> Result<Self> {
        let lock = durable::lock(run.folder(), layout::LOCK)?;
        let continuations = Continuations::read(run)?.unwrap_or_else(Continuations::empty);
        Ok(Self { folder: run.folder().to_owned(), continuations, _lock: lock })
    }

    /// The file's content.
    pub fn continuations(&self) -> &Continuations {
        &self.continuations
    }

    /// Adds an entry, or replaces that of the same prompt and policy; durable once this returns.
    ///
    /// # Errors
    /// [`Error::Failure`] if the folder cannot be written; earlier entries are kept.
    pub fn put(&mut self, entry: Continuation) -> Result<&Continuation> {
        let mut new = self.continuations.clone();
        new.layerscope = env!("CARGO_PKG_VERSION").into();
        let same = |other: &Continuation| other.prompt_id == entry.prompt_id && other.policy == entry.policy;
        let place = match new.entries.iter().position(same) {
            Some(place) => {
                new.entries[place] = entry;
                place
            }
            None => {
                new.entries.push(entry);
                new.entries.len() - 1
            }
        };
        durable::replace_file(&self.folder, CONTINUATIONS, &FILE.bytes(&new)?)?;
        self.continuations = new;
        Ok(&self.continuations.entries[place])
    }
}
