//! What a cutoff saves: KV bytes and layer work, and what that predicts for TTFT and TPOT.
//!
//! With p prompt tokens, n decode tokens, a anchors, L layers, a cutoff c, and b bytes of one token's K and V at one
//! layer: KV_full = (p + n)·L·b and KV_SPEED = (p − a)·c·b + (a + n)·L·b. The same count of layer tokens stands for the
//! FLOPs of the layers. The last prompt token is the first decode token and goes through all layers, so a prompt of p
//! tokens followed by N decode steps is a [`Workload`] of p − 1 prompt tokens and N decode tokens: what is allocated.

use layerscope_diagnostics::run::ModelInfo;
use schemars::JsonSchema;
use serde::Serialize;

/// Assumed bytes of one weight where the run does not know its model's size.
const WEIGHT_BYTES: u64 = 2;

/// Bytes of one token's K and V at one layer: b = 2 · KV heads · head width · bytes of an element.
pub fn bytes_per_layer_token(kv_heads: usize, head_dim: usize, element_bytes: usize) -> u64 {
    [kv_heads, head_dim, element_bytes]
        .into_iter()
        .fold(2, |product: u64, factor| product.saturating_mul(factor as u64))
}

/// The tokens of one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Workload {
    /// Prompt tokens but the last.
    pub prompt_tokens: usize,
    /// Decode tokens: the last prompt token and the generated ones that are fed back.
    pub decode_tokens: usize,
}

impl Workload {
    /// A prompt of p tokens and N decode steps: the last prompt token is the first decode token, at full depth under every
    /// policy, and the last generated token is not fed back.
    pub fn new(p: usize, steps: usize) -> Self {
        Self { prompt_tokens: p.saturating_sub(1), decode_tokens: steps }
    }

    /// Layer tokens of the full model: (p + n)·L.
    pub fn full_layer_tokens(self, layers: usize) -> u64 {
        let tokens = (self.prompt_tokens as u64).saturating_add(self.decode_tokens as u64);
        tokens.saturating_mul(layers as u64)
    }

    /// Layer tokens of SPEED(c) with `anchors` anchors: (p − a)·c + (a + n)·L.
    pub fn cut_layer_tokens(self, cutoff: usize, layers: usize, anchors: usize) -> u64 {
        let anchors = anchors.min(self.prompt_tokens) as u64;
        let shallow = (self.prompt_tokens as u64 - anchors).saturating_mul(cutoff as u64);
        let deep = anchors.saturating_add(self.decode_tokens as u64);
        shallow.saturating_add(deep.saturating_mul(layers as u64))
    }

    /// The prefill alone: n = 0.
    pub fn prefill(self) -> Self {
        Self { decode_tokens: 0, ..self }
    }

    /// The middle of the decode: n/2 decode tokens, the mean of what its steps read.
    pub fn half_decoded(self) -> Self {
        Self { decode_tokens: self.decode_tokens / 2, ..self }
    }
}

/// The share saved, 1 − cut/full, in \[0, 1\]; 0 where there is nothing to save.
pub fn saved_share(full: u64, cut: u64) -> f64 {
    if full == 0 { 0.0 } else { (1.0 - cut as f64 / full as f64).max(0.0) }
}

/// A model as the cost model sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct CostModel {
    /// Layers L.
    pub layers: usize,
    /// Bytes of one token's K and V at one layer.
    pub bytes_per_layer_token: u64,
    /// Bytes of the weights that a decode step reads.
    pub weight_bytes: u64,
}

impl CostModel {
    /// The cost model of a recorded model whose K and V elements take `kv_element_bytes`.
    ///
    /// Unless the model's weight bytes are known, its weights are estimated from its shape, at two bytes each:
    /// L·(2·d·(H + H_kv)·d_head + 3·d·d_ff) + V·d.
    pub fn new(model: &ModelInfo, kv_element_bytes: usize) -> Self {
        Self {
            layers: model.layers,
            bytes_per_layer_token: bytes_per_layer_token(model.kv_heads, model.head_dim, kv_element_bytes),
            weight_bytes: model.weight_bytes.unwrap_or_else(|| WEIGHT_BYTES.saturating_mul(weights(model))),
        }
    }

    /// What SPEED(`cutoff`) with `anchors` anchors saves over these requests together.
    pub fn savings(&self, cutoff: usize, anchors: usize, workloads: &[Workload]) -> Savings {
        let sum = |count: &dyn Fn(Workload) -> u64| {
            let counts = workloads.iter().map(|workload| count(*workload));
            counts.fold(0, u64::saturating_add)
        };
        let full = |workload: Workload| workload.full_layer_tokens(self.layers);
        let cut = |workload: Workload| workload.cut_layer_tokens(cutoff, self.layers, anchors);
        let bytes = |layer_tokens: u64| layer_tokens.saturating_mul(self.bytes_per_layer_token);
        // Each decode step reads all weights and the cache as it is then.
        let reads = |workload: Workload, kept: &dyn Fn(Workload) -> u64| {
            let step = bytes(kept(workload.half_decoded())).saturating_add(self.weight_bytes);
            step.saturating_mul(workload.decode_tokens as u64)
        };
        let (kv_bytes_full, kv_bytes_cut) = (bytes(sum(&full)), bytes(sum(&cut)));
        let prefill_saved = saved_share(sum(&|w| full(w.prefill())), sum(&|w| cut(w.prefill())));
        Savings {
            kv_bytes_full,
            kv_bytes_cut,
            kv_saved: saved_share(kv_bytes_full, kv_bytes_cut),
            flops_saved: prefill_saved,
            predicted_ttft_saved: prefill_saved,
            predicted_tpot_saved: saved_share(sum(&|w| reads(w, &full)), sum(&|w| reads(w, &cut))),
        }
    }
}

/// Weights that a decode step reads: the layers and the unembedding.
fn weights(model: &ModelInfo) -> u64 {
    let product = |factors: &[usize]| {
        factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor as u64))
    };
    let heads = model.heads.saturating_add(model.kv_heads);
    let attention = product(&[2, model.hidden, heads, model.head_dim]);
    let feed_forward = product(&[3, model.hidden, model.feed_forward]);
    let layer = attention.saturating_add(feed_forward);
    let layers = layer.saturating_mul(model.layers as u64);
    layers.saturating_add(product(&[model.vocab, model.hidden]))
}

/// What a cutoff saves over some requests together. Shares are in \[0, 1\].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Savings {
    /// KV bytes of the full model after the last decode token, summed over the requests.
    pub kv_bytes_full: u64,
    /// The same under the cutoff.
    pub kv_bytes_cut: u64,
    /// Share of the KV bytes saved.
    pub kv_saved: f64,
    /// Share of the prefill's token-layers saved, which stand for its FLOPs.
    pub flops_saved: f64,
    /// Prediction, not a measurement: share of the time to first token saved, if it goes with the prefill's layer work.
    pub predicted_ttft_saved: f64,
    /// Prediction, not a measurement: share of the time per output token saved, if it goes with the bytes read
    /// (weights and KV).
    pub predicted_tpot_saved: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn llama_8b() -> CostModel {
        CostModel {
            layers: 32,
            bytes_per_layer_token: bytes_per_layer_token(8, 128, 2),
            weight_bytes: 16_000_000_000,
        }
    }

    #[test]
    fn the_paper_s_setting_saves_a_quarter_of_the_kv() {
        let workload = Workload { prompt_tokens: 128 << 10, decode_tokens: 128 };
        let savings = llama_8b().savings(24, 1, &[workload]);
        assert_eq!(llama_8b().bytes_per_layer_token, 4_096);
        assert_eq!(savings.kv_bytes_full, ((128 << 10) + 128) * 32 * 4_096);
        assert!((savings.kv_saved - 0.25).abs() < 1e-3);
        // TTFT × 1.33.
        assert!((1.0 / (1.0 - savings.predicted_ttft_saved) - 4.0 / 3.0).abs() < 1e-3);
        assert!((0.1..0.2).contains(&savings.predicted_tpot_saved));
    }

    #[test]
    fn by_hand() {
        let workload = Workload { prompt_tokens: 10, decode_tokens: 4 };
        assert_eq!(workload.full_layer_tokens(3), 42);
        assert_eq!(workload.cut_layer_tokens(2, 3, 1), 9 * 2 + 5 * 3);
        assert_eq!(workload.cut_layer_tokens(2, 3, 0), 10 * 2 + 4 * 3);
    }

    #[test]
    fn nothing_to_save() {
        let savings = llama_8b().savings(24, 1, &[]);
        assert_eq!((savings.kv_saved, savings.predicted_tpot_saved), (0.0, 0.0));
    }

    proptest! {
        #[test]
        fn a_deeper_cutoff_saves_less(p in 0_usize..5_000, n in 0_usize..300, layers in 1_usize..100, a in 0_usize..2) {
            let workload = [Workload { prompt_tokens: p, decode_tokens: n }];
            let model = CostModel { layers, ..llama_8b() };
            let savings: Vec<_> = (1..=layers).map(|c| model.savings(c, a, &workload)).collect();
            prop_assert!(savings.windows(2).all(|pair| pair[0].kv_saved >= pair[1].kv_saved
                && pair[0].flops_saved >= pair[1].flops_saved
                && pair[0].predicted_tpot_saved >= pair[1].predicted_tpot_saved));
            prop_assert_eq!(savings[layers - 1].kv_saved, 0.0);
            prop_assert_eq!(savings[layers - 1].predicted_tpot_saved, 0.0);
        }

        #[test]
        fn nothing_overflows(p: usize, n: usize, c: usize, layers: usize, a: usize, b: usize) {
            let workload = Workload { prompt_tokens: p, decode_tokens: n };
            let model = CostModel {
                layers,
                bytes_per_layer_token: bytes_per_layer_token(b, b, b),
                weight_bytes: u64::MAX,
            };
            let savings = model.savings(c, a, &[workload; 2]);
            prop_assert!((0.0..=1.0).contains(&savings.kv_saved));
        }
    }
}
