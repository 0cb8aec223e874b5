//! The cost model's predictions for a policy.

use layerscope_cutoff::cost::{CostModel, Workload};
use layerscope_engine::Policy;

/// Layer tokens of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Layer tokens computed: a proxy for FLOPs.
    pub(crate) computed: u64,
    /// Layer tokens whose KV is kept.
    pub(crate) kept: u64,
}

/// Layer tokens under a policy, the input of the predictions.
pub(crate) fn counts(policy: &Policy, workload: Workload) -> Counts {
    // The last prompt token is the first decode token.
    let (prompt_len, decode_len) = (workload.prompt_tokens + 1, workload.decode_tokens);
    let computed = policy.layer_tokens(prompt_len, decode_len).block as u64;
    let kept: usize = policy.capacity(prompt_len, decode_len).iter().sum();
    Counts { computed, kept: kept as u64 }
}

/// Predictions for one policy at one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prediction {
    /// Layer tokens computed.
    pub(crate) layer_tokens: u64,
    /// Bytes of KV.
    pub(crate) kv_bytes: u64,
    /// TTFT relative to the full model's, assumed proportional to the prefill's layer tokens; NaN without a
    /// prefill.
    pub(crate) ttft_ratio: f64,
    /// TPOT relative to the full model's, assumed proportional to the bytes that a step reads: all weights,
    /// and the KV halfway through the decode.
    pub(crate) tpot_ratio: f64,
}

pub(crate) fn predict(policy: &Policy, cost: &CostModel, workload: Workload) -> Prediction {
    let full = Policy::full(cost.layers);
    let prefill = |policy: &Policy| counts(policy, workload.prefill()).computed as f64;
    let step = |policy: &Policy| {
        let kept = counts(policy, workload.half_decoded()).kept;
        kept as f64 * cost.bytes_per_layer_token as f64 + cost.weight_bytes as f64
    };
    let all = counts(policy, workload);
    Prediction {
        layer_tokens: all.computed,
        kv_bytes: all.kept.saturating_mul(cost.bytes_per_layer_token),
        ttft_ratio: prefill(policy) / prefill(&full),
        tpot_ratio: step(policy) / step(&full),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cost() -> CostModel {
        CostModel { layers: 30, bytes_per_layer_token: 1_536, weight_bytes: 98_000_000 }
    }

    #[test]
    fn a_prompt_of_one_token_has_no_prefill_to_save() {
        let prediction = predict(&Policy::full(30), &cost(), Workload::new(1, 4));
        assert!(prediction.ttft_ratio.is_nan());
        assert_eq!((prediction.layer_tokens, prediction.tpot_ratio), (4 * 30, 1.0));
    }

    #[test]
    fn projected_keys_are_kept_and_read_but_take_no_blocks() {
        let [pop, speed] = ["pop:20", "speed:20"].map(|name| {
            let policy = Policy::parse(name, 30).expect("a policy");
            predict(&policy, &cost(), Workload::new(1_000, 10))
        });
        assert_eq!((pop.layer_tokens, pop.ttft_ratio), (speed.layer_tokens, speed.ttft_ratio));
        assert_eq!((pop.kv_bytes, pop.tpot_ratio), (1_009 * 30 * 1_536, 1.0));
        assert!(speed.tpot_ratio < 1.0);
    }

    proptest! {
        #[test]
        fn predictions_are_the_cost_models(
            length in 2_usize..5_000, new_tokens in 1_usize..300, cutoff in 1_usize..=30, anchored: bool,
        ) {
            let policy = Policy::speed(cutoff, anchored, 30).expect("a policy");
            let workload = Workload::new(length, new_tokens);
            let actual = predict(&policy, &cost(), workload);
            let savings = cost().savings(cutoff, usize::from(anchored), &[workload]);
            prop_assert_eq!(actual.kv_bytes, savings.kv_bytes_cut);
            prop_assert!((actual.ttft_ratio - (1.0 - savings.predicted_ttft_saved)).abs() < 1e-9);
            prop_assert!((actual.tpot_ratio - (1.0 - savings.predicted_tpot_saved)).abs() < 1e-9);
            let capacity: usize = policy.capacity(length, new_tokens).iter().sum();
            prop_assert_eq!(actual.layer_tokens, capacity as u64);
        }
    }
}
