//! `lazyllm`: dynamic pruning of prompt tokens, which may come back (LazyLLM, Fu et al. 2024, arXiv 2407.14057).

use super::registry::Argument;
use super::schedule::Schedule;
use super::{PolicyKind, PolicyRules};
use crate::{Depth, Result};
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

    /// What happens to a prompt, for people.
    pub(super) fn plan(&self, prefill_len: usize) -> String {
        let prunings = self.schedule.prunings().iter().zip(self.kept(prefill_len));
        let steps: Vec<String> =
            prunings.map(|(pruning, kept)| format!("{} after layer {}", kept + 1, pruning.layer)).collect();
        format!(
            "of {} prompt tokens go on: {}; the others wait with their residual streams, and KV grows as they come back",
            prefill_len + 1,
            steps.join(", ")
        )
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
    let items: Vec<&str> = argument.items().collect();
    let schedule = match items.is_empty() {
        true => Schedule::scaled_to(argument.layers),
        false => Schedule::parse(&items, argument.layers).ok_or_else(|| argument.malformed_schedule())?,
    };
    Ok(Arc::new(LazyLlm(TokenPruning { schedule })))
}

impl PolicyRules for LazyLlm {
    fn exits(&self) -> Vec<Depth> {
        self.0.schedule.exits()
    }

    fn rows_at(&self, depth: Depth, prefill_len: usize) -> usize {
        self.0.tokens_of_stage(self.0.schedule.passed(depth), prefill_len)
    }

    fn token_pruning(&self) -> Option<&TokenPruning> {
        Some(&self.0)
    }

    fn caveat(&self) -> Option<&'static str> {
        Some(
            "tokens are dropped between a layer's attention and its MLP, where LazyLLM drops them after the layer, and position \
             0 never is; the default schedule is SlimInfer's",
        )
    }
}

impl fmt::Display for LazyLlm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(KIND.name)?;
        if self.0.schedule.is_default() { Ok(()) } else { write!(f, ":{}", self.0.schedule) }
    }
}
