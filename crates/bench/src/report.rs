//! The measurements as written to files.

use crate::prediction::predict;
use crate::{BenchPlan, Machine, Quality, Sample, Statistics, Transfers};
use layerscope_cutoff::cost::{CostModel, Workload};
use layerscope_diagnostics::undefined::number_or_null;
use layerscope_engine::{Decoder, WeightsPrecision};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One policy at one length. Undefined figures are NaN here and null in JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Measurement {
    /// Name of the policy.
    pub policy: String,
    /// Prompt tokens p.
    pub length: usize,
    /// Tokens generated, N.
    pub new_tokens: usize,
    /// Repeats that were counted.
    pub repeats: usize,
    /// Time to first token, seconds.
    pub ttft_s: Statistics,
    /// Time per output token: the mean over the steps after the first, seconds. NaN where one token was generated.
    pub tpot_s: Statistics,
    /// Time from the prompt to the last of the new tokens (E2E), seconds; `None` in files of versions that did not tell it.
    #[serde(default)]
    pub e2e_s: Option<Statistics>,
    /// KV bytes allocated.
    pub kv_bytes: u64,
    /// KV bytes by the cost model.
    pub kv_bytes_model: u64,
    /// Most bytes resident at once, over all repeats; `None` where the system does not tell.
    pub peak_bytes: Option<u64>,
    /// Token-layers computed: a proxy for FLOPs.
    pub layer_tokens: u64,
    /// Median TTFT over that of `full` at the same length; `None` where `full` was not measured.
    pub ttft_ratio: Option<f64>,
    /// The same by the cost model.
    #[serde(deserialize_with = "number_or_null")]
    pub ttft_ratio_model: f64,
    /// Median TPOT over that of `full` at the same length; `None` where `full` was not measured.
    pub tpot_ratio: Option<f64>,
    /// The same by the cost model.
    #[serde(deserialize_with = "number_or_null")]
    pub tpot_ratio_model: f64,
    /// What moved where the policy keeps KV elsewhere; `None` where it does not.
    #[serde(default)]
    pub transfers: Option<Transfers>,
    /// How near the policy comes to the full model; `None` where it was not asked for.
    #[serde(default)]
    pub quality: Option<Quality>,
}

/// Measurements with all that they depend on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Report")]
pub struct BenchReport {
    /// The measurements, by length and then by policy.
    pub results: Vec<Measurement>,
    /// Name of the model, or of the shape of its random weights.
    pub model: String,
    /// How the weights were kept: `native` or `f32`.
    #[schemars(with = "String")]
    pub weights: WeightsPrecision,
    /// Bytes of the weights in memory.
    pub weight_bytes: u64,
    /// Layers L.
    pub layers: usize,
    /// What it was measured on.
    pub machine: Machine,
    /// Version of layerscope.
    pub layerscope: String,
    /// Whether it was broken off before its end.
    pub interrupted: bool,
    /// What a reader must know beside the figures, in whole sentences.
    pub notes: Vec<String>,
}

/// The measurements at one length; `samples` are indexed by policy.
pub(crate) fn measurements(
    decoder: &Decoder,
    plan: &BenchPlan,
    length: usize,
    samples: &[Vec<Sample>],
) -> Vec<Measurement> {
    let config = decoder.config();
    let cost = CostModel {
        layers: config.layers,
        windows: config.windows.clone(),
        kv_heads: config.kv_heads,
        bytes_per_layer_token: 2 * decoder.kv_precision().bytes(config.kv_heads * config.head_dim) as u64,
        step_weight_bytes: decoder.step_weight_bytes() as u64,
        row_weights: config.row_weights(),
        unembedding_weights: (config.vocab as u64).saturating_mul(config.hidden as u64),
        query_width: (config.heads as u64).saturating_mul(config.head_dim as u64),
    };
    let mut measurements = vec![];
    for (policy, samples) in plan.policies.iter().zip(samples) {
        let Some(first) = samples.first() else { continue };
        let predicted = predict(policy, &cost, Workload::new(length, plan.new_tokens));
        measurements.push(Measurement {
            policy: policy.to_string(),
            length,
            new_tokens: plan.new_tokens,
            repeats: samples.len(),
            ttft_s: Statistics::of(samples.iter().map(|sample| sample.ttft_s).collect()),
            tpot_s: Statistics::of(samples.iter().filter_map(|sample| sample.tpot_s).collect()),
            e2e_s: Some(Statistics::of(samples.iter().map(|sample| sample.e2e_s(plan.new_tokens)).collect())),
            kv_bytes: first.kv_bytes,
            kv_bytes_model: predicted.kv_bytes,
            peak_bytes: samples.iter().map(|sample| sample.peak_bytes).max().flatten(),
            layer_tokens: predicted.layer_tokens,
            ttft_ratio: None,
            ttft_ratio_model: predicted.ttft_ratio,
            tpot_ratio: None,
            tpot_ratio_model: predicted.tpot_ratio,
            transfers: Transfers::of(samples.iter().filter_map(|sample| sample.transfers.as_ref())),
            quality: None,
        });
    }
    let full = measurements.iter().find(|measurement| measurement.policy == "full");
    if let Some((ttft, tpot)) = full.map(|full| (full.ttft_s.median, full.tpot_s.median)) {
        for measurement in &mut measurements {
            measurement.ttft_ratio = Some(measurement.ttft_s.median / ttft);
            measurement.tpot_ratio = Some(measurement.tpot_s.median / tpot);
        }
    }
    measurements
}
