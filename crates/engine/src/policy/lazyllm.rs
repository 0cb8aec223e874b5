//! `lazyllm`: dynamic pruning of prompt tokens, which may come back (LazyLLM, Fu et al. 2024, arXiv 2407.14057).

mod revival;

use super::registry::{Argument, argument};
use super::schedule::Schedule;
use super::{PolicyKind, PolicyRules, Reach, RunningSelection, Selection, SequenceSetup};
use crate::{Depth, Result};
use revival::DroppedTokens;
pub use revival::RevivalCounters;
use std::fmt;
use std::sync::Arc;

/// Prompt tokens go on from each pruning layer by the attention that the last token pays them there: its probabilities over
/// the keys that it sees, summed over heads. Position 0 and the last prompt token always go on.
///
/// A *stage* is the layers from one pruning to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenPruning {
    /// When, and how much stays.
    pub schedule: Schedule,
}

impl TokenPruning {
    /// Of so many prefill tokens (the prompt but its last), those that go on from each pruning layer.
    pub fn kept(&self, prefill_len: usize) -> Vec<usize> {
        let prunings = self.schedule.prunings().iter();
        let onward = prunings.scan(prefill_len, |kept, pruning| {
            *kept = pruning.keep.tokens(prefill_len + 1).min(*kept);
            Some(*kept)
        });
        onward.collect()
    }

    /// Prefill tokens that have keys in a stage (by number, from 0) after the prefill.
    pub fn tokens_of_stage(&self, stage: usize, prefill_len: usize) -> usize {
        stage.checked_sub(1).map_or(prefill_len, |before| self.kept(prefill_len)[before])
    }
}

/// Prompt tokens leave the prefill after the attention of pruning layers, and come back where a decode token reads them.
#[derive(Debug)]
pub(super) struct LazyLlm(TokenPruning);

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "lazyllm",
    syntax: "lazyllm[:LAYER=KEPT+…]",
    description: "After the attention of each LAYER only the KEPT prompt tokens (8k or 25%) that the last token reads most go \
                  on; decode chooses anew, and a token that was dropped goes on from there when it is chosen",
    standard_name: Some("lazyllm"),
    parse,
};

fn parse(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    Ok(Arc::new(LazyLlm(TokenPruning::parse(argument)?)))
}

impl TokenPruning {
    /// The pruning of a policy's name, for a model of so many layers.
    ///
    /// # Errors
    /// [`crate::Error::Input`] on a name that is none.
    pub fn named(name: &str, layers: usize) -> Result<Self> {
        Self::parse(&argument(name, layers)?)
    }

    fn parse(argument: &Argument<'_>) -> Result<Self> {
        let items: Vec<&str> = argument.items().collect();
        let schedule = match items.is_empty() {
            true => Schedule::halving(argument.layers),
            false => Schedule::parse(&items, argument.layers).ok_or_else(|| argument.malformed_schedule())?,
        };
        Ok(Self { schedule })
    }
}

impl Reach for TokenPruning {
    fn pruning_points(&self) -> Vec<Depth> {
        self.schedule.pruning_points()
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        self.tokens_of_stage(self.schedule.passed(depth), prefill_len)
    }
}

impl Selection for TokenPruning {
    fn refers_to_stored(&self) -> bool {
        true
    }

    fn begin(&self, sequence: &SequenceSetup<'_>) -> Result<Option<Box<dyn RunningSelection>>> {
        Ok(Some(Box::new(DroppedTokens::new(self, sequence.prefill_len, sequence.decode_len))))
    }
}

impl PolicyRules for LazyLlm {
    fn reach(&self) -> &dyn Reach {
        &self.0
    }

    fn selection(&self) -> &dyn Selection {
        &self.0
    }

    fn plan(&self, prefill_len: usize, _: usize, _: &dyn Fn(usize) -> String) -> Option<String> {
        let prunings = self.0.schedule.prunings().iter().zip(self.0.kept(prefill_len));
        let steps: Vec<String> =
            prunings.map(|(pruning, kept)| format!("{} after layer {}", kept + 1, pruning.layer)).collect();
        Some(format!(
            "of {} prompt tokens go on: {}; the others wait with their residual streams, and KV grows as they come back",
            prefill_len + 1,
            steps.join(", ")
        ))
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "tokens are dropped between a layer's attention and its MLP, where LazyLLM drops them after the layer, and position \
             0 never is",
        )
    }
}

impl fmt::Display for LazyLlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = self.0.schedule.to_string();
        f.write_str(KIND.name)?;
        if schedule.is_empty() { Ok(()) } else { write!(f, ":{schedule}") }
    }
}
