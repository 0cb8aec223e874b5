//! Figures for Prometheus.

use crate::job::Figures;
use crate::served::Under;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Models under policies that have figures of their own; those that come later share one label.
const MOST_LABELS: usize = 64;
/// The policy of that label.
const OTHER: &str = "other";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, EncodeLabelSet)]
struct Label {
    model: String,
    policy: String,
}

pub(crate) struct Metrics {
    registry: Registry,
    ttft: Family<Label, Histogram>,
    tpot: Family<Label, Histogram>,
    queue: Family<Label, Histogram>,
    kv: Family<Label, Gauge>,
    prefix_kv: Gauge,
    prompt_tokens: Family<Label, Counter>,
    prefix_tokens: Family<Label, Counter>,
    running: Gauge,
    waiting: Gauge,
    known: Mutex<Vec<Label>>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        fn seconds() -> Family<Label, Histogram> {
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.001, 2.0, 18)))
        }
        let mut registry = Registry::with_prefix("layerscope");
        let (ttft, tpot, queue) = (seconds(), seconds(), seconds());
        let kv = Family::<Label, Gauge>::default();
        let (prompt_tokens, prefix_tokens) = (Family::default(), Family::default());
        let (prefix_kv, running, waiting) = (Gauge::default(), Gauge::default(), Gauge::default());
        let units = [
            ("time_to_first_token", "From a request's arrival to its first token", &ttft),
            ("time_per_output_token", "Mean time per token after the first", &tpot),
            ("queue", "From a request's arrival to its first pass", &queue),
        ];
        for (name, help, family) in units {
            registry.register_with_unit(name, help, Unit::Seconds, family.clone());
        }
        registry.register_with_unit("kv", "Keys and values of running sequences", Unit::Bytes, kv.clone());
        registry.register_with_unit(
            "prefix_kv",
            "Keys and values kept of sequences that have ended",
            Unit::Bytes,
            prefix_kv.clone(),
        );
        registry.register("prompt_tokens", "Prompt tokens of admitted requests", prompt_tokens.clone());
        registry.register(
            "prefix_tokens",
            "Of them, those whose keys and values were taken over",
            prefix_tokens.clone(),
        );
        registry.register("running_sequences", "Sequences that run", running.clone());
        registry.register("waiting_sequences", "Sequences that wait", waiting.clone());
        let known = Mutex::default();
        Self {
            registry,
            ttft,
            tpot,
            queue,
            kv,
            prefix_kv,
            prompt_tokens,
            prefix_tokens,
            running,
            waiting,
            known,
        }
    }

    /// All figures as text, in the OpenMetrics format.
    pub(crate) fn text(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    fn label(&self, under: &Under) -> Label {
        let label = Label { model: under.named.name.clone(), policy: under.policy.to_string() };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.contains(&label) {
            return label;
        }
        let is_new = known.iter().filter(|known| known.policy != OTHER).count() < MOST_LABELS;
        let label = if is_new { label } else { Label { policy: OTHER.to_owned(), ..label } };
        if !known.contains(&label) {
            known.push(label.clone());
        }
        label
    }

    /// A request was admitted.
    pub(crate) fn prompt_tokens(&self, under: &Under, tokens: usize, taken_over: usize) {
        let label = self.label(under);
        self.prompt_tokens.get_or_create(&label).inc_by(tokens as u64);
        self.prefix_tokens.get_or_create(&label).inc_by(taken_over as u64);
    }

    /// A sequence has ended.
    pub(crate) fn ended(&self, under: &Under, figures: &Figures) {
        let label = self.label(under);
        self.queue.get_or_create(&label).observe(figures.queued_s);
        if let Some(ttft) = figures.ttft_s {
            self.ttft.get_or_create(&label).observe(ttft);
        }
        if let Some(tpot) = figures.tpot_s {
            self.tpot.get_or_create(&label).observe(tpot);
        }
    }

    pub(crate) fn load(&self, running: usize, waiting: usize) {
        self.running.set(running as i64);
        self.waiting.set(waiting as i64);
    }

    /// Bytes of keys and values of the sequences that run, and of kept prefixes.
    pub(crate) fn kv<'a>(&self, sequences: impl Iterator<Item = (&'a Under, usize)>, prefixes: u64) {
        let mut by_label: BTreeMap<Label, usize> = BTreeMap::new();
        for (under, bytes) in sequences {
            *by_label.entry(self.label(under)).or_default() += bytes;
        }
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for label in known {
            let bytes = by_label.get(&label).copied().unwrap_or(0);
            self.kv.get_or_create(&label).set(bytes as i64);
        }
        self.prefix_kv.set(prefixes as i64);
    }
}
