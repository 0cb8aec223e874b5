//! `sets.json`: which layers or KV heads may forget the prompt, from `layerscope search`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::ErrorKind;
use std::path::PathBuf;

use layerscope_engine::{Error, Result};
use serde::{Deserialize, Serialize};

use super::json_file::JsonFile;
use super::{Run, durable, layout};
use crate::record::Divergence;
use crate::undefined::number_or_null;

/// The file's name in a run folder.
pub const SETS: &str = "sets.json";

const FILE: JsonFile =
    JsonFile { schema: 1, what: "a run's list of sets", mend: "delete it and run layerscope search again" };

/// The content of `sets.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sets {
    /// Version of the file's layout.
    pub schema: u32,
    /// Version of layerscope that wrote it.
    pub layerscope: String,
    /// At most one of each kind.
    pub searches: Vec<SetSearch>,
}

/// What is dropped one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SearchUnits {
    /// KV heads of layers.
    Heads,
    /// Layers.
    Layers,
}

/// In which order units are dropped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SearchOrder {
    /// Always the one that adds least KL for each key that it frees, with all that were dropped before it.
    #[default]
    Joint,
    /// By the KL for each key that dropping it alone costs.
    Knockout,
    /// By the attention of decode rows on positions 1 … p−2, as methods that choose heads by where they look do.
    Mass,
}

/// A search: sets that keep less and less of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetSearch {
    /// What was dropped one after the other.
    pub units: SearchUnits,
    /// In which order.
    #[serde(default)]
    pub order: SearchOrder,
    /// First prompt tokens that a dropped unit still shows.
    pub first: usize,
    /// Prompt tokens before the last one that it shows.
    pub last: usize,
    /// Prompt tokens end here: layers from this one on show position 0 alone. L where they do not.
    pub cutoff: usize,
    /// Prompts that the search looked at.
    pub searched: Vec<String>,
    /// Prompts that the sets were judged on: others, where there are any.
    pub judged: Vec<String>,
    /// Sets that were run.
    pub tried: usize,
    /// Units that cost less when they were tried again: where there are many, the search may have missed better sets.
    pub cheaper_than_before: usize,
    /// Time of search and judgement, seconds.
    pub seconds: f64,
    /// From the set that keeps all to the one that keeps least.
    pub sets: Vec<JudgedSet>,
}

/// A set, and what it costs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JudgedSet {
    /// Name of the policy that keeps it.
    pub policy: String,
    /// Share of the KV bytes that it keeps at the run's lengths, decode tokens included.
    pub kv_kept: f64,
    /// Mean KL over the prompts of the search, nats.
    #[serde(deserialize_with = "number_or_null")]
    pub kl_searched: f64,
    /// Means over the prompts that it was judged on.
    #[serde(flatten)]
    pub judged: Divergence,
    /// One-sided 95 % bootstrap upper bound of their mean KL, nats.
    #[serde(deserialize_with = "number_or_null")]
    pub kl_upper95: f64,
    /// Of them, prompts whose greedy text stays the same, and those of which that is known.
    pub texts_unchanged: usize,
    /// Prompts of which that is known.
    pub texts: usize,
    /// Prompts whose answer is kept.
    pub answers_kept: usize,
    /// Prompts whose answer the full model gives.
    pub answers: usize,
}

impl SetSearch {
    /// Whether another search has the same question.
    fn asks_as(&self, other: &Self) -> bool {
        let question = |search: &Self| (search.units, search.order, search.first, search.last, search.cutoff);
        question(self) == question(other)
    }
}

impl Sets {
    fn empty() -> Self {
        Self { schema: FILE.schema, layerscope: env!("CARGO_PKG_VERSION").into(), searches: vec![] }
    }

    /// Reads the file of a run; `None` if there is none.
    pub(super) fn read(run: &Run) -> Result<Option<Self>> {
        let path = run.folder().join(SETS);
        let bytes = match layerscope_files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let sets: Self = FILE.parse(&path, &bytes)?;
        sets.check(run).map_err(|problem| FILE.damaged(&path, &problem))?;
        Ok(Some(sets))
    }

    /// Checks what our writer guarantees.
    fn check(&self, run: &Run) -> std::result::Result<(), String> {
        let (layers, ids) = (run.manifest().model.layers, &run.manifest().prompts.ids);
        let known: BTreeSet<&String> = ids.iter().collect();
        for (index, search) in self.searches.iter().enumerate() {
            if !(1..=layers).contains(&search.cutoff) {
                return Err(format!("there is no cutoff {}", search.cutoff));
            }
            if let Some(id) = search.searched.iter().chain(&search.judged).find(|id| !known.contains(id)) {
                return Err(format!("the run has no prompt {id:?}"));
            }
            if self.searches[..index].iter().any(|other| other.asks_as(search)) {
                return Err("two searches of one kind".into());
            }
            for set in &search.sets {
                if !(0.0..=1.0).contains(&set.kv_kept) {
                    return Err(format!("{} keeps {} of the KV bytes", set.policy, set.kv_kept));
                }
                if set.texts_unchanged > set.texts || set.answers_kept > set.answers {
                    return Err(format!("{} keeps more than there is", set.policy));
                }
            }
        }
        Ok(())
    }
}

/// Adds searches to a run folder; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct SetsWriter {
    folder: PathBuf,
    sets: Sets,
    _lock: File,
}

impl SetsWriter {
    /// Opens the run's file, or creates it.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged or of a newer version, or a recording is writing to the folder.
    pub fn open(run: &Run) -> Result<Self> {
        let lock = durable::lock(run.folder(), layout::LOCK)?;
        let sets = Sets::read(run)?.unwrap_or_else(Sets::empty);
        Ok(Self { folder: run.folder().to_owned(), sets, _lock: lock })
    }

    /// Adds a search, or replaces the one of the same kind; durable once this returns.
    ///
    /// # Errors
    /// [`Error::Failure`] if the folder cannot be written.
    pub fn put(&mut self, search: SetSearch) -> Result<()> {
        self.sets.searches.retain(|other| !other.asks_as(&search));
        self.sets.searches.push(search);
        self.sets.layerscope = env!("CARGO_PKG_VERSION").into();
        durable::replace_file(&self.folder, SETS, &FILE.bytes(&self.sets)?)
    }
}
