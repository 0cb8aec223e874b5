//! The model that is served: what requests are checked against before they reach the engine.

use crate::job::{Job, Message};
use crate::scheduler::kv_need;
use crate::{Loaded, Options};
use layerscope_engine::{Decoder, Error, Model, Policy, Result, names_a_file};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(crate) struct Served {
    pub(crate) model: Model,
    /// The first is that of requests that name none.
    pub(crate) policies: Vec<Policy>,
    /// The model's name in requests.
    pub(crate) name: String,
    /// When it was loaded, seconds since 1970.
    pub(crate) created: u64,
    limits: Limits,
    kv_memory: u64,
    messages: Mutex<Sender<Message>>,
    queued: Arc<AtomicUsize>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) max_sequences: usize,
    pub(crate) queue: usize,
    pub(crate) timeout: Duration,
    pub(crate) default_max_tokens: usize,
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
        let Loaded { model, policies } = loaded;
        let name = options.name.clone().unwrap_or_else(|| as_id(&model.name));
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
        };
        let (messages, queued) = (Mutex::new(messages), Arc::default());
        Ok(Self { model, policies, name, created, limits, kv_memory, messages, queued })
    }

    pub(crate) fn decoder(&self) -> &Arc<Decoder> {
        &self.model.decoder
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

    /// The id of requests that name no policy.
    pub(crate) fn id(&self) -> String {
        self.name.clone()
    }

    /// The id under a policy.
    pub(crate) fn id_under(&self, policy: &Policy) -> String {
        format!("{}@{policy}", self.name)
    }

    /// The policy that a model id names; `None` where it names another model.
    ///
    /// # Errors
    /// [`Error::Input`] on a policy that the model does not have.
    pub(crate) fn policy(&self, id: &str) -> Option<Result<Policy>> {
        match id.strip_prefix(&self.name)? {
            "" => self.policies.first().cloned().map(Ok),
            rest => Some(self.policy_named(rest.strip_prefix('@')?)),
        }
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
        Policy::parse_for(name, self.model.config())
    }

    /// Has jobs run.
    ///
    /// # Errors
    /// Where too many wait, or one takes more memory than there is; none of them runs then.
    pub(crate) fn submit(&self, jobs: Vec<Job>) -> std::result::Result<(), Refusal> {
        let need = jobs.iter().map(|job| kv_need(self.decoder(), job)).max().unwrap_or(0);
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
