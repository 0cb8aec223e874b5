//! How much memory a model and a sequence need, before they take it, and how much is free.

use crate::kv::KvPrecision;
use crate::{Device, Error, ModelConfig, Result};
use sysinfo::{MemoryRefreshKind, System};

/// Prompt rows that go through the layers at once: bounds the memory of activations, and products of so many run at full
/// speed.
pub(crate) fn rows_at_once(device: &Device) -> usize {
    match device {
        Device::Cpu => 512,
        Device::Cuda(_) => 8_192,
    }
}

/// Rows that are unembedded at once: many, so that unpacking the weights is a small part of the product, within the bytes of logits that
/// an allocator keeps for the next ones; 64 where a vocabulary is so large that fewer would fit.
pub fn logit_rows(vocab: usize) -> usize {
    const BYTES: usize = 24 << 20;
    (BYTES / size_of::<f32>() / vocab.max(1)).clamp(64, 512)
}

/// What a model, and perhaps a sequence, take. All in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct MemoryNeed {
    /// Weights as they are kept.
    pub weights: u64,
    /// The tokenizer's tables, about.
    pub tokenizer: u64,
    /// Keys and values.
    pub kv: u64,
    /// The largest activations that are there at once.
    pub activations: u64,
    /// What a recording keeps of a prompt: residual streams, distributions, attention received.
    pub probes: u64,
    /// Keys and values of one token at one layer.
    pub kv_token_layer: u64,
    /// Layers L.
    pub layers: u64,
    /// Prompt rows that go through the layers at once.
    #[serde(skip)]
    rows_at_once: usize,
}

impl MemoryNeed {
    /// Of weights of `bytes` alone, on a device.
    pub(crate) fn of_weights(config: &ModelConfig, kv: KvPrecision, bytes: u64, device: &Device) -> Self {
        let kv_token_layer = 2 * kv.bytes(config.kv_width()) as u64;
        let layers = config.layers as u64;
        Self {
            weights: bytes,
            tokenizer: 0,
            kv: 0,
            activations: 0,
            probes: 0,
            kv_token_layer,
            layers,
            rows_at_once: rows_at_once(device),
        }
    }

    /// With a tokenizer whose tables take so many bytes.
    pub(crate) fn with_tokenizer(self, bytes: u64) -> Self {
        Self { tokenizer: bytes, ..self }
    }

    /// With a sequence that keeps `kept` tokens at each layer.
    pub fn with_sequence(self, config: &ModelConfig, kept: &[usize]) -> Self {
        let tokens = kept.iter().fold(0u64, |sum, &tokens| sum.saturating_add(tokens as u64));
        let rows = self.rows_at_once.min(kept.iter().copied().max().unwrap_or(0)) as u64;
        // Residual stream, its norm and sums; queries, rotated and attended; keys and values; the MLP's three.
        let width = 6 * config.hidden
            + 4 * config.query_width()
            + 4 * config.kv_width()
            + 3 * config.active_feed_forward();
        let row_bytes = (width * size_of::<f32>()) as u64;
        let logits = (2 * config.vocab * size_of::<f32>()) as u64;
        Self {
            kv: tokens.saturating_mul(self.kv_token_layer),
            activations: rows.saturating_mul(row_bytes).saturating_add(logits),
            ..self
        }
    }

    /// With keys and values in another type.
    #[must_use]
    pub fn with_kv(self, config: &ModelConfig, kv: KvPrecision) -> Self {
        let kv_token_layer = 2 * kv.bytes(config.kv_width()) as u64;
        let tokens = self.kv / self.kv_token_layer.max(1);
        Self { kv: tokens.saturating_mul(kv_token_layer), kv_token_layer, ..self }
    }

    /// With the recording of a prompt of `prompt_len` tokens and `steps` decode steps.
    pub fn with_probes(self, config: &ModelConfig, prompt_len: usize, steps: usize) -> Self {
        let (prompt_len, steps, layers) = (prompt_len as u64, steps as u64, self.layers);
        let float = size_of::<f32>() as u64;
        let row = steps.saturating_mul(config.hidden as u64 * float);
        // The residual stream at each boundary, and as many again for each kind of cutoff, for knockouts and for each KV head's.
        let streams = row.saturating_mul((4 + config.kv_heads as u64) * (layers + 1));
        // Logits and their distributions, and a block that is compared with them or, on a GPU, joined to them.
        let block = steps.max(logit_rows(config.vocab) as u64);
        let rows = steps.saturating_mul(2).saturating_add(block);
        let distributions = rows.saturating_mul(config.vocab as u64 * float);
        let received = prompt_len.saturating_mul(layers * 4 * float);
        let probes = streams.saturating_add(distributions).saturating_add(received);
        Self { probes, ..self }
    }

    /// With so many more residual streams `[d]` of single tokens.
    pub fn with_residuals(self, config: &ModelConfig, tokens: usize) -> Self {
        let bytes = (tokens as u64).saturating_mul((config.hidden * size_of::<f32>()) as u64);
        Self { probes: self.probes.saturating_add(bytes), ..self }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        [self.weights, self.tokenizer, self.kv, self.activations, self.probes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }
}

/// Memory that can be taken without driving others out, bytes; `None` where the system does not tell.
pub fn available_memory() -> Option<u64> {
    let mut system = System::new().ok()?;
    system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
    // A container may be given less than the machine has. What it caches of files does not count: that makes way.
    let limit = system.cgroup_limits().map(|limits| limits.total_memory.saturating_sub(limits.rss));
    let machine = Some(system.available_memory()).filter(|&bytes| bytes > 0);
    match (machine, limit) {
        (Some(machine), Some(limit)) => Some(machine.min(limit)),
        (machine, _) => machine,
    }
}

/// That a need can be met on a device, or a sentence with three ways out. `LAYERSCOPE_MEMORY_CHECK=off` lets everything pass.
///
/// # Errors
/// [`Error::OutOfMemory`] naming what was to be loaded, what it needs and what is free.
pub fn check(name: &str, need: &MemoryNeed, device: &Device) -> Result<()> {
    if std::env::var_os("LAYERSCOPE_MEMORY_CHECK").is_some_and(|value| value == "off") {
        return Ok(());
    }
    match device.free_memory()? {
        Some(free) => check_against(name, need, free),
        None => Ok(()),
    }
}

fn check_against(name: &str, need: &MemoryNeed, free: u64) -> Result<()> {
    let size = |bytes: u64| readable_bytes(bytes as f64);
    let total = need.total();
    if total <= free {
        return Ok(());
    }
    let parts = [("weights", need.weights), ("keys and values", need.kv), ("recording", need.probes)];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|&(_, bytes)| bytes > 0)
        .map(|(name, bytes)| format!("{name} {}", size(bytes)))
        .collect();
    let fixed = total - need.kv;
    let room = free.saturating_sub(fixed) / need.kv_token_layer.saturating_mul(need.layers).max(1);
    let shorter = match room {
        0 => "take a smaller model or one quantised to fewer bits".to_owned(),
        room => format!("take a sequence of at most {room} tokens, or a policy that keeps fewer, e.g. speed"),
    };
    let sentence = format!(
        "{name} needs {} of memory ({}) but {} are free: {shorter}, free {} more, or, if you know better, set \
         LAYERSCOPE_MEMORY_CHECK=off",
        size(total),
        parts.join(", "),
        size(free),
        size(total - free)
    );
    Err(Error::OutOfMemory { needed: total, free, sentence })
}

/// Bytes for people, in powers of 1024.
pub fn readable_bytes(bytes: f64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = (bytes.max(1.0).log2() / 10.0).floor().clamp(0.0, 4.0);
    let value = bytes / 1024f64.powf(power);
    let unit = units[power as usize];
    if power == 0.0 { format!("{value} {unit}") } else { format!("{value:.1} {unit}") }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Shape;

    const GIB: u64 = 1 << 30;

    fn need(prompt_len: usize) -> MemoryNeed {
        let shape = Shape::named("llama-3.1-8b").unwrap();
        let weights = MemoryNeed::of_weights(shape.config(), KvPrecision::F16, 16 * GIB, &Device::Cpu);
        weights.with_sequence(shape.config(), &[prompt_len; 32])
    }

    #[test]
    fn keys_and_values_are_counted_to_the_byte() {
        // 32 layers, 8 heads of 128, keys and values, two bytes each.
        assert_eq!(need(131_072).kv, 131_072 * 32 * 2 * 8 * 128 * 2);
        assert_eq!(need(0).kv, 0);
        // Residual streams of 4,096 numbers.
        let shape = Shape::named("llama-3.1-8b").unwrap();
        let with = need(10).with_residuals(shape.config(), 1_000);
        assert_eq!(with.total() - need(10).total(), 1_000 * 4_096 * 4);
    }

    #[test]
    fn too_much_is_a_sentence_with_ways_out() {
        assert!(check_against("m", &need(1_024), 24 * GIB).is_ok());
        let long = check_against("m.gguf", &need(131_072), 24 * GIB).unwrap_err();
        assert_eq!(long.exit_code(), 2);
        let long = long.to_string();
        for part in ["m.gguf", "weights 16.0 GiB", "keys and values 16.0 GiB", "24.0 GiB are free", "tokens"]
        {
            assert!(long.contains(part), "{long}");
        }
        let heavy = check_against("m.gguf", &need(10), 4 * GIB).unwrap_err().to_string();
        assert!(heavy.contains("fewer bits"), "{heavy}");
        // As many tokens as it says do fit.
        let room: usize = long.split("at most ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(check_against("m", &need(room), 24 * GIB).is_ok());
    }

    #[test]
    fn this_machine_has_memory() {
        assert!(available_memory().is_none_or(|bytes| bytes > 1 << 20));
    }
}
