//! What a cutoff saves: KV bytes and FLOPs, and what those predict for TTFT and TPOT.
//!
//! With p prompt tokens, n decode tokens, a anchors, L layers, a cutoff c, and b bytes of one token's K and V at one
//! layer: KV_full = (p + n)·L·b and KV_SPEED = (p − a)·c·b + (a + n)·L·b. A layer with a window of w keys keeps at most the w − 1
//! prompt tokens that a later one still sees. The last prompt token is the first decode token and goes through all layers, so a
//! prompt of p tokens followed by N decode steps is a [`Workload`] of p − 1 prompt tokens and N decode tokens: what is allocated.
//!
//! FLOPs of a prefill: at each layer 2 for each weight and row, of experts those that a token chooses, and 4·H·d_head for each key
//! that a row attends to. The time to first token is taken to go with them and with those of the last prompt token's row and the
//! unembedding; the time per output token with the bytes that a step reads: weights, and the KV halfway through the decode.

use layerscope_diagnostics::run::ModelInfo;
use layerscope_engine::Policy;
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

    /// The middle of the decode: n/2 decode tokens, the mean of what its steps read.
    pub fn half_decoded(self) -> Self {
        Self { decode_tokens: self.decode_tokens / 2, ..self }
    }
}

/// The share saved, 1 − cut/full, in \[0, 1\]; 0 where there is nothing to save.
pub fn saved_share(full: f64, cut: f64) -> f64 {
    if full > 0.0 { (1.0 - cut / full).clamp(0.0, 1.0) } else { 0.0 }
}

/// A model as the cost model sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CostModel {
    /// Layers L.
    pub layers: usize,
    /// Of each layer, how many keys up to its own a row sees; none where it sees all. May be shorter than L.
    pub windows: Vec<Option<usize>>,
    /// KV heads.
    pub kv_heads: usize,
    /// Bytes of one token's K and V at one layer.
    pub bytes_per_layer_token: u64,
    /// Bytes of the weights that a decode step reads: of experts those that a token chooses, of an embedding that is not the
    /// unembedding one row.
    pub step_weight_bytes: u64,
    /// Weights that a row is multiplied with in a layer's attention and in its feed-forward network.
    pub row_weights: [u64; 2],
    /// Weights of the unembedding.
    pub unembedding_weights: u64,
    /// Query heads times their width, H·d_head.
    pub query_width: u64,
}

/// What a request costs under a policy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Cost {
    /// Rows that run through a layer, summed over layers.
    pub layer_tokens: u64,
    /// KV bytes after the last decode token.
    pub kv_bytes: u64,
    /// FLOPs of the prefill: the prompt but its last token.
    pub prefill_flops: f64,
    /// FLOPs up to the first token.
    pub ttft_flops: f64,
    /// Bytes read in a decode step, mean over the steps.
    pub step_bytes: f64,
}

impl CostModel {
    /// The cost model of a recorded model whose K and V elements take `kv_element_bytes`.
    ///
    /// Unless they are known, the bytes that a step reads are estimated from the model's shape, at two a weight.
    pub fn new(model: &ModelInfo, kv_element_bytes: usize) -> Self {
        let product = |factors: &[usize]| {
            factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor as u64))
        };
        let heads = model.heads.saturating_add(model.kv_heads);
        let row_weights = model.row_weights.unwrap_or([
            product(&[2, model.hidden, heads, model.head_dim]),
            product(&[3, model.hidden, model.feed_forward]),
        ]);
        let unembedding_weights = product(&[model.vocab, model.hidden]);
        let layer = row_weights[0].saturating_add(row_weights[1]);
        let weights = layer.saturating_mul(model.layers as u64).saturating_add(unembedding_weights);
        let windowed = |layer: usize| model.window.filter(|_| model.windowed_layers.contains(&layer));
        Self {
            layers: model.layers,
            windows: (0..model.windowed_layers.last().map_or(0, |last| last + 1)).map(windowed).collect(),
            kv_heads: model.kv_heads,
            bytes_per_layer_token: bytes_per_layer_token(model.kv_heads, model.head_dim, kv_element_bytes),
            step_weight_bytes: model.weight_bytes.unwrap_or_else(|| WEIGHT_BYTES.saturating_mul(weights)),
            row_weights,
            unembedding_weights,
            query_width: product(&[model.heads, model.head_dim]),
        }
    }

    /// What a request costs under a policy.
    pub fn cost(&self, policy: &Policy, workload: Workload) -> Cost {
        let policy = policy.clone().with_windows(&self.windows);
        // The last prompt token is the first decode token.
        let prompt_len = workload.prompt_tokens + 1;
        // Keys of all KV heads.
        let kept = |decode_len: usize| {
            let by_head = policy.capacity_by_head(prompt_len, decode_len, self.kv_heads);
            by_head.into_iter().flatten().sum::<usize>() as u64
        };
        let kv_heads = self.kv_heads.max(1) as u64;
        let bytes = |keys: u64| keys.saturating_mul(self.bytes_per_layer_token / kv_heads);
        let [attention, feed_forward] = self.row_weights.map(|weights| 2.0 * weights as f64);
        let pair = 4.0 * self.query_width as f64;
        let rows = policy.prefill_rows(prompt_len);
        let prefill_flops: f64 = rows
            .iter()
            .enumerate()
            .map(|(layer, [attending, feeding])| {
                attention * *attending as f64
                    + feed_forward * *feeding as f64
                    + pair * pairs(*attending, policy.visible_at(layer))
            })
            .sum();
        let first_row = self.layers as f64 * (attention + feed_forward)
            + pair * kept(1) as f64 / kv_heads as f64
            + 2.0 * self.unembedding_weights as f64;
        Cost {
            layer_tokens: policy.layer_tokens(prompt_len, workload.decode_tokens).block as u64,
            kv_bytes: bytes(kept(workload.decode_tokens)),
            prefill_flops,
            ttft_flops: prefill_flops + first_row,
            step_bytes: bytes(kept(workload.half_decoded().decode_tokens)) as f64
                + self.step_weight_bytes as f64,
        }
    }

    /// What SPEED(`cutoff`) with or without position 0 as anchor saves over these requests together.
    pub fn savings(&self, cutoff: usize, anchor_bos: bool, workloads: &[Workload]) -> Savings {
        let full = Policy::full(self.layers);
        let cut = Policy::speed(cutoff, anchor_bos, self.layers).unwrap_or_else(|_| full.clone());
        let costs = |policy: &Policy| -> Vec<Cost> {
            workloads.iter().map(|workload| self.cost(policy, *workload)).collect()
        };
        let (full, cut) = (costs(&full), costs(&cut));
        let kv_bytes =
            |costs: &[Cost]| costs.iter().fold(0, |sum: u64, cost| sum.saturating_add(cost.kv_bytes));
        let share = |figure: &dyn Fn(&Cost, &Workload) -> f64| {
            let sum = |costs: &[Cost]| {
                costs.iter().zip(workloads).map(|(cost, workload)| figure(cost, workload)).sum()
            };
            saved_share(sum(&full), sum(&cut))
        };
        Savings {
            kv_bytes_full: kv_bytes(&full),
            kv_bytes_cut: kv_bytes(&cut),
            kv_saved: saved_share(kv_bytes(&full) as f64, kv_bytes(&cut) as f64),
            flops_saved: share(&|cost, _| cost.prefill_flops),
            predicted_ttft_saved: share(&|cost, _| cost.ttft_flops),
            predicted_tpot_saved: share(&|cost, workload| cost.step_bytes * workload.decode_tokens as f64),
        }
    }
}

/// Pairs of a row and a key that it attends to, where each of so many rows sees itself and those before it, within a window.
fn pairs(rows: usize, window: Option<usize>) -> f64 {
    let (rows, window) = (rows as f64, window.map_or(f64::INFINITY, |window| window as f64));
    let growing = rows.min(window);
    growing * (growing + 1.0) / 2.0 + if rows > window { (rows - window) * window } else { 0.0 }
}

/// What a cutoff saves over some requests together. Shares are in \[0, 1\].
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, JsonSchema)]
pub struct Savings {
    /// KV bytes of the full model after the last decode token, summed over the requests.
    pub kv_bytes_full: u64,
    /// The same under the cutoff.
    pub kv_bytes_cut: u64,
    /// Share of the KV bytes saved.
    pub kv_saved: f64,
    /// Share of the prefill's FLOPs saved: products with weights, and attention.
    pub flops_saved: f64,
    /// Prediction, not a measurement: share of the time to first token saved, if it goes with the FLOPs up to then: the prefill's,
    /// the last prompt token's and the unembedding's.
    pub predicted_ttft_saved: f64,
    /// Prediction, not a measurement: share of the time per output token saved, if it goes with the bytes read
    /// (weights and KV).
    pub predicted_tpot_saved: f64,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Llama 3.1 8B in 16 bits.
    fn llama_8b() -> CostModel {
        CostModel {
            layers: 32,
            windows: vec![],
            kv_heads: 8,
            bytes_per_layer_token: bytes_per_layer_token(8, 128, 2),
            step_weight_bytes: 16_000_000_000,
            row_weights: [2 * 4_096 * (32 + 8) * 128, 3 * 4_096 * 14_336],
            unembedding_weights: 128_256 * 4_096,
            query_width: 4_096,
        }
    }

    #[test]
    fn the_paper_s_setting_saves_a_quarter_of_the_kv() {
        let workload = Workload { prompt_tokens: 128 << 10, decode_tokens: 128 };
        let savings = llama_8b().savings(24, true, &[workload]);
        assert_eq!(llama_8b().bytes_per_layer_token, 4_096);
        assert_eq!(savings.kv_bytes_full, ((128 << 10) + 128) * 32 * 4_096);
        assert!((savings.kv_saved - 0.25).abs() < 1e-3);
        // TTFT × 1.33.
        assert!((1.0 / (1.0 - savings.predicted_ttft_saved) - 4.0 / 3.0).abs() < 1e-3);
        assert!((0.1..0.2).contains(&savings.predicted_tpot_saved));
    }

    #[test]
    fn by_hand() {
        let tiny = CostModel {
            layers: 3,
            windows: vec![],
            kv_heads: 1,
            bytes_per_layer_token: 1,
            step_weight_bytes: 100,
            row_weights: [5, 7],
            unembedding_weights: 11,
            query_width: 2,
        };
        let workload = Workload { prompt_tokens: 10, decode_tokens: 4 };
        let full = tiny.cost(&Policy::full(3), workload);
        assert_eq!((full.kv_bytes, full.layer_tokens), (42, 42));
        // Each layer: 10 rows × 2 × 12 weights, and 55 pairs × 4 × 2.
        assert_eq!(full.prefill_flops, 3.0 * (240.0 + 440.0));
        // The last prompt token: 3 × 24, 33 keys × 8, and the unembedding.
        assert_eq!(full.ttft_flops, 3.0 * 680.0 + 72.0 + 264.0 + 22.0);
        assert_eq!(full.step_bytes, 36.0 + 100.0);
        let cut = |bos| tiny.cost(&Policy::speed(2, bos, 3).expect("a cutoff"), workload);
        assert_eq!([cut(true).kv_bytes, cut(false).kv_bytes], [9 * 2 + 5 * 3, 10 * 2 + 4 * 3]);
        // The anchor's row attends to itself.
        assert_eq!(cut(true).prefill_flops, 2.0 * 680.0 + 24.0 + 8.0);
        let windowed = CostModel { windows: vec![None, Some(4)], ..tiny };
        let full = windowed.cost(&Policy::full(3), workload);
        // Three prompt tokens stay where a row sees four; 1 + 2 + 3 + 7·4 pairs there.
        assert_eq!(full.kv_bytes, 14 + (3 + 4) + 14);
        assert_eq!(full.prefill_flops, 2.0 * 680.0 + 240.0 + 8.0 * 34.0);
        // Position 0 has left the window.
        let cut = windowed.cost(&Policy::speed(1, true, 3).expect("a cutoff"), workload);
        assert_eq!(cut.kv_bytes, 14 + 4 + 5);
    }

    #[test]
    fn nothing_to_save() {
        let savings = llama_8b().savings(24, true, &[]);
        assert_eq!((savings.kv_saved, savings.predicted_tpot_saved), (0.0, 0.0));
    }

    proptest! {
        #[test]
        fn a_deeper_cutoff_saves_less(
            p in 0_usize..5_000, n in 0_usize..300, layers in 1_usize..100, bos: bool, window in proptest::option::of(1_usize..600),
        ) {
            let workload = [Workload { prompt_tokens: p, decode_tokens: n }];
            let windows = (0..layers).map(|layer| window.filter(|_| layer % 3 > 0)).collect();
            let model = CostModel { layers, windows, ..llama_8b() };
            let savings: Vec<_> = (1..=layers).map(|c| model.savings(c, bos, &workload)).collect();
            prop_assert!(savings.windows(2).all(|pair| pair[0].kv_saved >= pair[1].kv_saved
                && pair[0].flops_saved >= pair[1].flops_saved
                && pair[0].predicted_tpot_saved >= pair[1].predicted_tpot_saved));
            prop_assert_eq!(savings[layers - 1].kv_saved, 0.0);
            prop_assert_eq!(savings[layers - 1].predicted_tpot_saved, 0.0);
        }

        #[test]
        fn nothing_overflows(p in 0_usize..1 << 40, n in 0_usize..1 << 40, c: usize, layers in 0_usize..200, bos: bool, b: usize) {
            let workload = Workload { prompt_tokens: p, decode_tokens: n };
            let model = CostModel {
                layers,
                windows: vec![Some(b.max(1)); 3],
                kv_heads: 8,
                bytes_per_layer_token: bytes_per_layer_token(b, b, b),
                step_weight_bytes: u64::MAX,
                row_weights: [u64::MAX; 2],
                unembedding_weights: u64::MAX,
                query_width: u64::MAX,
            };
            let savings = model.savings(c, bos, &[workload; 2]);
            prop_assert!((0.0..=1.0).contains(&savings.kv_saved));
        }
    }
}
