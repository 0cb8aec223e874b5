//! What a run says of policies: means over prompts.

use crate::record::{Divergence, PolicyRecord};
use crate::summary::mean;
use ndarray::Array2;
use schemars::JsonSchema;
use serde::Serialize;

/// The prompts of a run under one policy: means over prompts, heads and decode steps. Undefined figures are NaN here and null in
/// JSON.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct PolicySummary {
    /// Name of the policy.
    pub policy: String,
    /// Prompts that were recorded under it.
    pub prompts: usize,
    /// How far it moves next-token distributions from the full model's, along the recorded texts.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Mass on position 0, by layer.
    pub bos_mass: Vec<f64>,
    /// Mass on positions 1 … p−2, by layer.
    pub prompt_mass: Vec<f64>,
    /// Mass on positions ≥ p−1, by layer.
    pub decode_mass: Vec<f64>,
    /// Entropy within the prompt over ln(p−2), by layer.
    pub prompt_entropy: Vec<f64>,
    /// prompt_mass · (1 − prompt_entropy), by layer.
    pub selectivity: Vec<f64>,
}

/// A summary of each policy, in the order in which they first occur.
pub fn summarise_policies(records: &[PolicyRecord]) -> Vec<PolicySummary> {
    let mut policies: Vec<&String> = vec![];
    for record in records {
        if !policies.contains(&&record.policy) {
            policies.push(&record.policy);
        }
    }
    policies
        .into_iter()
        .map(|policy| {
            let of_policy: Vec<&PolicyRecord> =
                records.iter().filter(|record| record.policy == *policy).collect();
            let divergences: Vec<Divergence> = of_policy.iter().map(|record| record.divergence).collect();
            let by_layer = |figure: fn(&PolicyRecord) -> &Array2<f64>| -> Vec<f64> {
                let rows: Vec<Vec<f64>> =
                    of_policy.iter().map(|record| PolicyRecord::by_layer(figure(record))).collect();
                let layers = rows.first().map_or(0, Vec::len);
                (0..layers).map(|layer| mean(rows.iter().map(|row| row[layer]))).collect()
            };
            PolicySummary {
                policy: policy.clone(),
                prompts: of_policy.len(),
                divergence: Divergence::mean(&divergences),
                bos_mass: by_layer(|record| &record.attention.bos_mass),
                prompt_mass: by_layer(|record| &record.attention.prompt_mass),
                decode_mass: by_layer(|record| &record.attention.decode_mass),
                prompt_entropy: by_layer(|record| &record.attention.prompt_entropy),
                selectivity: by_layer(|record| &record.attention.selectivity),
            }
        })
        .collect()
}
