//! The cost model's predictions for a policy.

use layerscope_cutoff::cost::{CostModel, Workload};
use layerscope_engine::Policy;

/// Predictions for one policy at one length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Prediction {
    /// Layer tokens computed.
    pub(crate) layer_tokens: u64,
    /// Bytes of KV.
    pub(crate) kv_bytes: u64,
    /// TTFT relative to the full model's, taken to go with the FLOPs up to the first token.
    pub(crate) ttft_ratio: f64,
    /// TPOT relative to the full model's, taken to go with the bytes that a step reads.
    pub(crate) tpot_ratio: f64,
}

pub(crate) fn predict(policy: &Policy, model: &CostModel, workload: Workload) -> Prediction {
    let (cost, full) = (model.cost(policy, workload), model.cost(&Policy::full(model.layers), workload));
    Prediction {
        layer_tokens: cost.layer_tokens,
        kv_bytes: cost.kv_bytes,
        ttft_ratio: cost.ttft_flops / full.ttft_flops,
        tpot_ratio: cost.step_bytes / full.step_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn model() -> CostModel {
        CostModel {
            layers: 30,
            windows: vec![],
            kv_heads: 3,
            bytes_per_layer_token: 1_536,
            step_weight_bytes: 98_000_000,
            row_weights: [884_736, 2_654_208],
            unembedding_weights: 28_311_552,
            query_width: 576,
        }
    }

    #[test]
    fn a_prompt_of_one_token_has_no_prefill_to_save() {
        let cut = predict(&Policy::speed(3, true, 30).expect("a cutoff"), &model(), Workload::new(1, 4));
        assert_eq!((cut.layer_tokens, cut.ttft_ratio, cut.tpot_ratio), (4 * 30, 1.0, 1.0));
    }

    #[test]
    fn projected_keys_are_kept_and_read_but_take_no_blocks() {
        let [pop, speed] = ["pop:20", "speed:20"].map(|name| {
            let policy = Policy::parse(name, 30).expect("a policy");
            predict(&policy, &model(), Workload::new(1_000, 10))
        });
        assert_eq!(pop.layer_tokens, speed.layer_tokens);
        // The last prompt token reads more keys.
        assert!(pop.ttft_ratio > speed.ttft_ratio && pop.ttft_ratio < speed.ttft_ratio + 0.001);
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
            let actual = predict(&policy, &model(), workload);
            let savings = model().savings(cutoff, anchored, &[workload]);
            prop_assert_eq!(actual.kv_bytes, savings.kv_bytes_cut);
            prop_assert!((actual.ttft_ratio - (1.0 - savings.predicted_ttft_saved)).abs() < 1e-9);
            prop_assert!((actual.tpot_ratio - (1.0 - savings.predicted_tpot_saved)).abs() < 1e-9);
            let capacity: usize = policy.capacity(length, new_tokens).iter().sum();
            prop_assert_eq!(actual.layer_tokens, capacity as u64);
        }
    }
}
