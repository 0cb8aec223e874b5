//! `manifest.json`: the model, settings, prompts and status of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use layerscope_engine::{Error, Result};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::json_file::JsonFile;
use super::time;
use crate::machine::Machine;
use crate::prompts::check_name;
use crate::record::Anchor;

/// Version of the run folder's layout; newer ones are rejected.
pub const SCHEMA_VERSION: u32 = 4;

/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";

const FILE: JsonFile =
    JsonFile { schema: SCHEMA_VERSION, what: "a run's manifest", mend: "restore it or record the run again" };

/// What `manifest.json` holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// [`SCHEMA_VERSION`] of the writer.
    pub schema: u32,
    /// Version of layerscope that began the run.
    pub layerscope: String,
    /// Whether every prompt is done or has failed and the tables hold them all.
    pub status: Status,
    /// Counts the manifest's versions, so that a reader notices a recording going on.
    #[serde(default)]
    pub revision: u64,
    /// The recorded model.
    pub model: ModelInfo,
    /// Weights precision: `native` or `f32`.
    pub weights: String,
    /// What the run was computed on, e.g. `cpu`.
    pub device: String,
    /// The machine on which the run began; null in runs of older versions.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// The arguments of `layerscope` that record the run again, defaults spelled out; model, prompts and run folder by
    /// file name alone, since where they lay is nobody's business. Empty where the run was not begun on a command line,
    /// and in runs of older versions.
    #[serde(default)]
    pub command: Vec<String>,
    /// Bytes of one element of K or V as the run kept it.
    pub kv_element_bytes: usize,
    /// How the run was recorded.
    pub settings: Settings,
    /// Which prompts there are and how each fared.
    pub prompts: PromptStates,
    /// Mean over the done prompts of KL(f32 weights ‖ weights as run), nats; null where the run is f32.
    pub native_kl: Option<f64>,
    /// When the run began: UTC, RFC 3339.
    pub created: String,
    /// When the manifest last changed: UTC, RFC 3339.
    pub updated: String,
}

/// How far a run got.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Recording goes on or was interrupted; the same command resumes it.
    Running,
    /// Every prompt is done or has failed, and the tables hold all that are done.
    Complete,
}

/// The recorded model's name and numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ModelInfo {
    /// File or folder name.
    pub name: String,
    /// SHA-256 of the weights, lower-case hexadecimal.
    pub sha256: String,
    /// Architecture, e.g. `llama`.
    pub architecture: String,
    /// Layers L.
    pub layers: usize,
    /// Query heads H.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the feed-forward network.
    pub feed_forward: usize,
    /// Vocabulary size.
    pub vocab: usize,
    /// Longest sequence, tokens.
    pub context: usize,
    /// The sliding-window layers, ascending; their masses are over the keys that the layer can see.
    #[serde(default)]
    pub windowed_layers: Vec<usize>,
    /// Keys that a sliding-window layer sees, tokens.
    #[serde(default)]
    pub window: Option<usize>,
    /// The token at position 0 that the `bos` anchor keeps; not a BoS for models without one.
    pub bos: Option<BosToken>,
    /// Bytes of the weights that a decode step reads, where known; of experts those that a token chooses.
    #[serde(default)]
    pub weight_bytes: Option<u64>,
    /// Weights that a row is multiplied with in a layer's attention and in its feed-forward network, where known; of experts those
    /// that a token chooses.
    #[serde(default)]
    pub row_weights: Option<[u64; 2]>,
    /// The adapter beside the weights, where there is one. Divergences refer to the model without it, along that model's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<AdapterRecord>,
}

/// An adapter that a run was recorded with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AdapterRecord {
    /// Name of its folder.
    pub name: String,
    /// SHA-256 of its matrices' file, lower-case hexadecimal.
    pub sha256: String,
    /// The rows it acts on: `decode` or `all`.
    pub rows: String,
    /// The policy that it was made for, where its folder says so.
    pub policy: Option<String>,
    /// How it was trained, where its folder says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingRecord>,
}

/// What the training of an adapter took, and what it changed on prompts that were held out of it: mean KL from the full model without
/// the adapter, nats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrainingRecord {
    /// Steps.
    pub steps: usize,
    /// Decode rows that were trained on.
    pub tokens: usize,
    /// Seconds, without preparing the prompts.
    pub seconds: f64,
    /// Prompts that it was trained on.
    pub prompts: usize,
    /// Prompts that were held out.
    pub held_out: usize,
    /// Under the policy, without the adapter.
    pub kl_before: f64,
    /// Under the policy, with it.
    pub kl_after: f64,
    /// At full depth, with it; null where training was interrupted.
    pub kl_full_depth: Option<f64>,
}

/// The token at position 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BosToken {
    /// Its id.
    pub id: u32,
    /// How it is shown.
    pub text: String,
}

/// How a run is recorded; a run resumes only under the same settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Settings {
    /// Most tokens generated per prompt.
    pub max_new_tokens: usize,
    /// Anchors of the frontier.
    pub anchors: Vec<Anchor>,
    /// Name of the prompt file.
    pub prompts_file: String,
    /// SHA-256 of the prompt file's bytes, lower-case hexadecimal.
    pub prompts_sha256: String,
    /// Further settings, by name.
    #[serde(flatten)]
    pub other: BTreeMap<String, Value>,
}

/// The prompts of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PromptStates {
    /// Every prompt's id, in the order of the prompt file, which is the order of the tables.
    pub ids: Vec<String>,
    /// Those recorded, in the same order.
    pub done: Vec<String>,
    /// Those that could not be recorded; resuming tries them again.
    pub failed: Vec<FailedPrompt>,
    /// The part of its text of which a prompt asks from which layer on it may vanish, by id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub spans: BTreeMap<String, String>,
}

/// A prompt that could not be recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FailedPrompt {
    /// Its id.
    pub id: String,
    /// One sentence.
    pub reason: String,
    /// Whether its next-token distribution is undefined, so that the model's weights are damaged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub undefined: bool,
}

impl Manifest {
    /// The manifest of a new run, with the prompts' ids in the order of the prompt file. The caller sets
    /// machine and command.
    pub fn new(
        model: ModelInfo,
        weights: impl Into<String>,
        device: impl Into<String>,
        kv_element_bytes: usize,
        settings: Settings,
        prompt_ids: Vec<String>,
    ) -> Self {
        let now = time::now();
        Self {
            schema: SCHEMA_VERSION,
            layerscope: env!("CARGO_PKG_VERSION").into(),
            status: Status::Running,
            revision: 0,
            model,
            weights: weights.into(),
            device: device.into(),
            machine: None,
            command: Vec::new(),
            kv_element_bytes,
            settings,
            prompts: PromptStates { ids: prompt_ids, ..PromptStates::default() },
            native_kl: None,
            created: now.clone(),
            updated: now,
        }
    }

    /// Whether every prompt is done or has failed.
    pub fn nothing_left(&self) -> bool {
        let done: BTreeSet<&str> = self.prompts.done.iter().map(String::as_str).collect();
        let failed: BTreeSet<&str> = self.prompts.failed.iter().map(|f| f.id.as_str()).collect();
        let mut ids = self.prompts.ids.iter().map(String::as_str);
        ids.all(|id| done.contains(id) || failed.contains(id))
    }

    /// Reads the manifest at `path`, in the run folder `run`.
    pub(super) fn read(run: &Path, path: &Path) -> Result<Self> {
        let bytes = layerscope_files::read(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Error::input(format!(
                "{} holds no run: there is no {MANIFEST} in it; name the --out folder of layerscope record",
                run.display()
            )),
            _ => Error::io("read", path, &error),
        })?;
        let manifest: Self = FILE.parse(path, &bytes)?;
        manifest.check().map_err(|problem| FILE.damaged(path, &problem))?;
        Ok(manifest)
    }

    /// Checks what our writer guarantees.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        for id in &self.prompts.ids {
            check_name(id).map_err(|problem| format!("a prompt id has {problem}"))?;
        }
        let ids: BTreeSet<&String> = self.prompts.ids.iter().collect();
        if ids.len() != self.prompts.ids.len() {
            return Err("a prompt id occurs twice".into());
        }
        if let Some(id) = self.prompts.spans.keys().find(|id| !ids.contains(id)) {
            return Err(format!("the prompt {id:?} has a span but is not in the list"));
        }
        let failed = self.prompts.failed.iter().map(|failed| &failed.id);
        if let Some(id) = self.prompts.done.iter().chain(failed).find(|id| !ids.contains(id)) {
            return Err(format!("the prompt {id:?} is done but not in the list"));
        }
        if self.model.layers == 0 || self.model.heads == 0 {
            return Err("a model without layers or heads".into());
        }
        if !(1..=self.model.heads).contains(&self.model.kv_heads) {
            return Err(format!(
                "a model with {} heads and {} KV heads",
                self.model.heads, self.model.kv_heads
            ));
        }
        Ok(())
    }

    /// The bytes of `manifest.json`.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        FILE.bytes(self)
    }

    /// Increments the revision and sets the time.
    pub(super) fn touch(&mut self) {
        self.revision = self.revision.saturating_add(1);
        self.updated = time::now();
    }

    /// Why a recording with `wanted` cannot resume this run: "… not …".
    pub(super) fn difference(&self, wanted: &Self) -> Option<String> {
        if self.schema != wanted.schema {
            return Some(format!("layerscope {}, whose tables have other columns", self.layerscope));
        }
        let differs = |what: &str, here: &dyn std::fmt::Display, there: &dyn std::fmt::Display| {
            Some(format!("{what} {here}, not {there}"))
        };
        if self.model.sha256 != wanted.model.sha256 {
            return Some(format!(
                "another model ({}, SHA-256 {}…, not {}, {}…)",
                self.model.name,
                start(&self.model.sha256),
                wanted.model.name,
                start(&wanted.model.sha256)
            ));
        }
        if let Some(difference) = adapter_difference(&self.model.adapter, &wanted.model.adapter) {
            return Some(difference);
        }
        if self.weights != wanted.weights {
            return differs("--weights", &self.weights, &wanted.weights);
        }
        let (here, there) = (&self.settings, &wanted.settings);
        if here.prompts_sha256 != there.prompts_sha256 {
            return Some(format!(
                "other prompts ({}, SHA-256 {}…, not {}, {}…)",
                here.prompts_file,
                start(&here.prompts_sha256),
                there.prompts_file,
                start(&there.prompts_sha256)
            ));
        }
        if self.prompts.ids != wanted.prompts.ids {
            return Some("another choice of prompts from the same file".into());
        }
        if here.max_new_tokens != there.max_new_tokens {
            return differs("--max-new-tokens", &here.max_new_tokens, &there.max_new_tokens);
        }
        if here.anchors != there.anchors {
            let names = |anchors: &[Anchor]| {
                let names: Vec<_> = anchors.iter().map(|anchor| anchor.name()).collect();
                names.join(" and ")
            };
            return differs("the anchors", &names(&here.anchors), &names(&there.anchors));
        }
        let keys: BTreeSet<&String> = here.other.keys().chain(there.other.keys()).collect();
        keys.into_iter().find_map(|key| {
            let (here, there) = (here.other.get(key), there.other.get(key));
            let shown = |value: Option<&Value>| value.map_or("unset".to_owned(), Value::to_string);
            (here != there).then(|| differs(key, &shown(here), &shown(there))).flatten()
        })
    }
}

/// Why a recording with one adapter cannot resume that with another: "… not …".
fn adapter_difference(here: &Option<AdapterRecord>, there: &Option<AdapterRecord>) -> Option<String> {
    let known = |of: &AdapterRecord| format!("{}, SHA-256 {}…", of.name, start(&of.sha256));
    match (here, there) {
        (Some(here), Some(there)) if here.sha256 != there.sha256 => {
            Some(format!("another adapter ({}, not {})", known(here), known(there)))
        }
        (Some(here), None) => Some(format!("the adapter {}, not without", here.name)),
        (None, Some(there)) => Some(format!("no adapter, not with {}", there.name)),
        _ => None,
    }
}

/// A hash prefix for messages.
fn start(hash: &str) -> &str {
    hash.get(..8).unwrap_or(hash)
}
