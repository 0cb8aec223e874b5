//! A schedule for `sliminfer` from a run's causal map and frontier.
//!
//! Blocks are scored best where the model itself looks for what it needs: after the attention of the layer whose reading of
//! the prompt moves the output most, when the prompt is hidden from it alone. Before that layer has read, scores do not know
//! what will be needed: on SmolLM2 a quarter of the prompt costs 0.01 nats when it is chosen there, and 0.6 when it is chosen
//! at the depth that the paper's schedule scales to. From the recommended cutoff on, the prompt is needed no more, so that
//! next to nothing has to go on.

use crate::recommend::{RankedLayer, Recommendation};
use serde::Serialize;

/// Share of the prompt that goes on from the layer that reads it, percent: the first of the default schedule's.
const KEPT_AFTER_READING: f64 = 25.0;
/// Share that goes on from the layer below the cutoff, percent: the last of the default schedule's.
const KEPT_AT_THE_CUTOFF: f64 = 6.25;

/// A schedule with what it rests on. What it costs is measured by `bench --quality`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockSchedule {
    /// The policy, as `--policy` takes it.
    pub policy: String,
    /// The layer whose reading of the prompt moves the output most, with the KL that hiding the prompt from it alone costs.
    pub reading_layer: RankedLayer,
    /// The layer below the recommended cutoff, where it comes later and there is a cutoff.
    pub last_layer_needed: Option<usize>,
}

/// From a recommendation; `None` where no layer's reading moves the output by more than the tolerance, or the last does.
pub fn from_recommendation(recommendation: &Recommendation) -> Option<BlockSchedule> {
    let reading_layer = *recommendation.causal_layers.first()?;
    if reading_layer.value <= recommendation.tolerance || reading_layer.layer + 1 >= recommendation.layers {
        return None;
    }
    let below_cutoff = recommendation.point().map(|point| point.cutoff - 1);
    let last_layer_needed = below_cutoff.filter(|&layer| layer > reading_layer.layer);
    let mut policy = format!("sliminfer:{}={KEPT_AFTER_READING}%", reading_layer.layer);
    if let Some(layer) = last_layer_needed {
        policy += &format!("+{layer}={KEPT_AT_THE_CUTOFF}%");
    }
    Some(BlockSchedule { policy, reading_layer, last_layer_needed })
}
