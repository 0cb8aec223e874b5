//! The model that is served: what requests are checked against before they reach the engine.

use crate::job::{Job, Message};
use crate::scheduler::kv_need;
use crate::{Loaded, Options};
use layerscope_engine::{
    AdapterRows, Decoder, Error, Model, ModelConfig, Policy, Result, Tokenizer, names_a_file,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What a model's name ends in where its adapter is left away.
const BASE: &str = ":base";

pub(crate) struct Served {
    /// The first is that of requests that name none; the second, if there is one, is the same without its adapter.
    pub(crate) models: Vec<Arc<Named>>,
    /// The first is that of requests that name none.
    pub(crate) policies: Vec<Policy>,
    /// When it was loaded, seconds since 1970.
    pub(crate) created: u64,
    /// The model's files, in answers.
    pub(crate) fingerprint: String,
    limits: Limits,
    kv_memory: u64,
    messages: Mutex<Sender<Message>>,
    queued: Arc<AtomicUsize>,
}

/// A model by its name in requests.
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) model: Model,
}

impl Named {
    pub(crate) fn adapts_decode_rows(&self) -> bool {
        self.model.adapter.as_ref().is_some_and(|adapter| adapter.rows == AdapterRows::Decode)
    }
}

/// What a request runs: a model under a policy.
#[derive(Clone)]
pub(crate) struct Under {
    pub(crate) named: Arc<Named>,
    pub(crate) policy: Policy,
}

impl Under {
    /// The id that says all of it.
    pub(crate) fn id(&self) -> String {
        format!("{}@{}", self.named.name, self.policy)
    }

    pub(crate) fn decoder(&self) -> &Arc<Decoder> {
        &self.named.model.decoder
    }

    /// Whether a token's likelihood depends on where the prompt before it ends.
    pub(crate) fn depends_on_the_prompts_end(&self) -> bool {
        self.policy.to_string() != "full" || self.named.adapts_decode_rows()
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_sequences: usize,
    pub(crate) queue: usize,
    pub(crate) timeout: Duration,
    pub(crate) default_max_tokens: usize,
    /// Whether activations of texts are not rounded.
    pub(crate) exact: bool,
}

/// Why jobs were not taken.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// As many wait as may.
    Full { waiting: usize },
    /// A sequence takes more memory than all may.
    TooLarge { need: u64, memory: u64 },
    /// The engine has ended.
    Gone,
}

impl Served {
    pub(crate) fn new(loaded: Loaded, options: &Options, messages: Sender<Message>) -> Result<Self> {
        let Loaded { model, base, policies } = loaded;
        let without_adapter = base.as_ref().unwrap_or(&model);
        let name = options.name.clone().unwrap_or_else(|| as_id(&without_adapter.name));
        if name.is_empty() || name.contains(['@', ',']) || name.chars().any(char::is_whitespace) {
            return Err(Error::input(format!(
                "--name {name:?}: a model's name in requests has no blanks, `@` or `,`; give another"
            )));
        }
        let free = model.decoder.device().free_memory()?;
        let kv_memory = options.kv_memory.or(free.map(|free| free / 2)).unwrap_or(1 << 30);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let limits = Limits {
            max_sequences: options.max_sequences,
            queue: options.queue,
            timeout: options.timeout,
            default_max_tokens: options.default_max_tokens,
            exact: options.exact,
        };
        // Hashed while the model loads, not with the first answer: a large file takes seconds.
        let fingerprint = format!("fp_{}", model.sha256().get(..12).unwrap_or_default());
        let (messages, queued) = (Mutex::new(messages), Arc::default());
        let base = base.map(|model| Named { name: format!("{name}{BASE}"), model });
        let models = std::iter::once(Named { name, model }).chain(base).map(Arc::new).collect();
        Ok(Self { models, policies, created, fingerprint, limits, kv_memory, messages, queued })
    }

    /// The name of the model that requests without a name get.
    pub(crate) fn name(&self) -> &str {
        &self.models[0].name
    }

    /// All models have the same.
    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.models[0].model.tokenizer
    }

    /// All models have the same.
    pub(crate) fn config(&self) -> &ModelConfig {
        self.models[0].model.config()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    pub(crate) fn kv_memory(&self) -> u64 {
        self.kv_memory
    }

    pub(crate) fn queued(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.queued)
    }

    /// What a model id names; `None` where it names another model.
    ///
    /// # Errors
    /// [`Error::Input`] on a policy that the model does not have.
    pub(crate) fn under(&self, id: &str) -> Option<Result<Under>> {
        let (name, policy) = match id.split_once('@') {
            Some((name, policy)) => (name, Some(policy)),
            None => (id, None),
        };
        let named = Arc::clone(self.models.iter().find(|named| named.name == name)?);
        let policy = match policy {
            None => Ok(self.policies.first()?.clone()),
            Some(policy) => self.policy_named(policy),
        };
        Some(policy.map(|policy| Under { named, policy }))
    }

    /// A policy by its name: a listed one, or any that reads no file.
    ///
    /// # Errors
    /// [`Error::Input`] on a policy that the model does not have.
    pub(crate) fn policy_named(&self, name: &str) -> Result<Policy> {
        if let Some(listed) = self.policies.iter().find(|policy| policy.to_string() == name) {
            return Ok(listed.clone());
        }
        if names_a_file(name) {
            return Err(Error::input(format!(
                "policy {name} reads a file, which only the server may name: start it with --policy {name}"
            )));
        }
        Policy::parse_for(name, self.config())
    }

    /// Has jobs run.
    ///
    /// # Errors
    /// Where too many wait, or one takes more memory than there is; none of them runs then.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> std::result::Result<(), Refusal> {
        let need = jobs.iter().map(kv_need).max().unwrap_or(0);
        if need > self.kv_memory {
            return Err(Refusal::TooLarge { need, memory: self.kv_memory });
        }
        let count = jobs.len();
        let waiting = self.queued.fetch_add(count, Ordering::Relaxed);
        if waiting + count > self.limits.queue {
            self.queued.fetch_sub(count, Ordering::Relaxed);
            return Err(Refusal::Full { waiting });
        }
        let messages = self.messages();
        jobs.into_iter()
            .try_for_each(|job| messages.send(Message::Job(Box::new(job))).map_err(|_| Refusal::Gone))
    }

    fn messages(&self) -> MutexGuard<'_, Sender<Message>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A display name without what ids may not have.
fn as_id(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or(name);
    let stem = last.strip_suffix(".gguf").unwrap_or(last);
    stem.chars()
        .map(|character| if character.is_whitespace() || "@,".contains(character) { '-' } else { character })
        .collect()
}
