//! A schedule for `sliminfer` from a run's attention knockout and frontier.
//!
//! The best layer to score blocks at is the one with the largest knockout KL: after its attention. Scores below that layer
//! predict badly which blocks the output needs: on SmolLM2, keeping a quarter of the prompt costs 0.01 nats when the blocks
//! are scored at that layer, and 0.33 one layer earlier. Layers from the recommended cutoff on
//! do not need the prompt, so almost all of it is dropped there.

use crate::recommend::{RankedLayer, Recommendation};
use serde::Serialize;

/// Share of the prompt kept from the layer that reads it, percent: the first share of the default schedule.
const KEPT_AFTER_READING: f64 = 25.0;
/// Share kept from the layer below the cutoff, percent: the last share of the default schedule.
const KEPT_AT_THE_CUTOFF: f64 = 6.25;

/// A schedule with what it is based on. What it costs is measured by `bench --quality`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BlockSchedule {
    /// The policy, as `--policy` takes it.
    pub policy: String,
    /// The layer whose reading of the prompt moves the output most, with the KL that hiding the prompt from it alone costs.
    pub reading_layer: RankedLayer,
    /// The layer below the recommended cutoff, where it comes later and there is a cutoff.
    pub last_layer_needed: Option<usize>,
}

/// A schedule from a recommendation; `None` where no knockout KL exceeds the tolerance, or the last layer has the largest.
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
