//! Policies: which prompt tokens exist at which layers. One small type for each, addressed by name.

mod anchors;
mod full;
mod lazyllm;
mod pop;
mod registry;
mod rules;
mod schedule;
mod selfonly;
mod sliminfer;
mod speed;
mod streaming;
mod swiftkv;
#[cfg(test)]
mod tests;

use crate::memory::rows_at_once;
use crate::{Depth, Device, Result};
pub use anchors::Anchors;
pub use lazyllm::TokenPruning;
pub use registry::{POLICIES, PolicyKind, policies_help};
pub use rules::{Arrived, KeysValuesAbove, PolicyRules, UNTRAINED};
pub use schedule::{Keep, Pruning, Schedule};
use serde::{Serialize, Serializer};
pub(crate) use sliminfer::LAYERS_UNDER_WAY;
pub use sliminfer::{BLOCK, BlockPruning, Pooling, QUERY_WINDOW, UNIT};
use std::fmt;
use std::sync::Arc;
pub use streaming::SinksAndWindow;

/// A policy for a model of so many layers; cheap to clone. Two are equal if their names are.
///
/// The last prompt token is the first decode token and runs full depth. Positions are never renumbered.
#[derive(Clone)]
pub struct Policy {
    rules: Arc<dyn PolicyRules>,
    layers: usize,
}

/// Token-layers: how many tokens, summed over layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LayerTokens {
    /// That run through the layer's block.
    pub block: usize,
    /// That do not, and whose K and V are projected for the layer nevertheless.
    pub projected: usize,
}

impl Policy {
    /// A policy of one's own.
    pub fn new(rules: impl PolicyRules + 'static, layers: usize) -> Self {
        Self { rules: Arc::new(rules), layers }
    }

    /// The policy of a name: `full`, `speed:24`, `speed:24+bos+5+100-120`, `pop:24` and whatever else is among
    /// [`POLICIES`].
    ///
    /// # Errors
    /// [`crate::Error::Input`] on an unknown name or a cutoff that the model does not have.
    pub fn parse(name: &str, layers: usize) -> Result<Self> {
        Ok(Self { rules: registry::parse(name, layers)?, layers })
    }

    /// Everything everywhere.
    pub fn full(layers: usize) -> Self {
        Self::new(full::Full, layers)
    }

    /// SPEED at a cutoff, 1 … `layers`.
    ///
    /// # Errors
    /// [`crate::Error::Input`] on a cutoff of 0 or beyond the last layer.
    pub fn speed(cutoff: usize, anchor_bos: bool, layers: usize) -> Result<Self> {
        speed::KIND.at(cutoff, anchor_bos, layers)
    }

    /// What it is made of.
    pub fn rules(&self) -> &dyn PolicyRules {
        &*self.rules
    }

    /// What has to be said wherever its output is shown.
    pub fn caveat(&self) -> Option<&'static str> {
        self.rules.caveat()
    }

    /// Tokens whose KV each layer has room for after the prefill, before any comes back that was dropped, for a prompt of
    /// `prompt_len` tokens and `decode_len` decode tokens (the last prompt token is the first of them); length L.
    pub fn capacity(&self, prompt_len: usize, decode_len: usize) -> Vec<usize> {
        let prefill_len = prompt_len.saturating_sub(1);
        (0..self.layers).map(|layer| decode_len + self.rules.kept(layer, prefill_len)).collect()
    }

    /// Tokens whose KV each layer has at most at any time: [`Self::capacity`], or what the prefill puts there before a part
    /// of it goes.
    pub fn most_held(&self, prompt_len: usize, decode_len: usize, device: &Device) -> Vec<usize> {
        let prefill_len = prompt_len.saturating_sub(1);
        let held = |layer| {
            let rows = self.rules.rows_at(Depth::entering(layer), prefill_len);
            let stored = match self.rules.window() {
                Some(window) => window.most_of(rows, rows_at_once(device)),
                None => rows,
            };
            self.rules.kept(layer, prefill_len).max(stored) + decode_len
        };
        (0..self.layers).map(held).collect()
    }

    /// Tokens of one layer's KV that are in memory at most, where the model runs: those of [`Self::most_held`], those of a
    /// layer that is written anew as it gives up others, and, where KV moves, those under way.
    pub fn in_memory(&self, prompt_len: usize, decode_len: usize, device: &Device) -> Vec<usize> {
        let mut tokens = self.most_held(prompt_len, decode_len, device);
        let shrinks = tokens != self.capacity(prompt_len, decode_len);
        tokens.extend(tokens.iter().copied().max().filter(|_| shrinks));
        if let Some(pruning) = self.rules.block_pruning() {
            tokens.push(pruning.under_way(prompt_len.saturating_sub(1)));
        }
        tokens
    }

    /// What it does with a prompt of so many tokens, for people, where its name does not say it; `bytes` tells the size of so
    /// many token-layers of KV.
    pub fn plan(&self, prompt_len: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        let prefill_len = prompt_len.saturating_sub(1);
        let rules = self.rules();
        let blocks = || Some(rules.block_pruning()?.plan(prefill_len, bytes));
        let tokens = || Some(rules.token_pruning()?.plan(prefill_len));
        let window = || Some(rules.window()?.plan(prefill_len, self.layers, bytes));
        blocks().or_else(tokens).or_else(window)
    }

    /// The work of a prompt of `prompt_len` tokens and `decode_len` decode tokens (the last prompt token is the first of
    /// them).
    pub fn layer_tokens(&self, prompt_len: usize, decode_len: usize) -> LayerTokens {
        let prefill_len = prompt_len.saturating_sub(1);
        let rows = |depth| self.rules.rows_at(depth, prefill_len);
        let halves = Depth::halves(Depth::of_layers(0..self.layers));
        let block = halves.map(|half| rows(half) + decode_len).sum::<usize>() / 2;
        let projected = match self.rules.keys_values_above() {
            KeysValuesAbove::Nothing => 0,
            _ => (0..self.layers).map(|layer| prefill_len - rows(Depth::entering(layer))).sum(),
        };
        LayerTokens { block, projected }
    }
}

/// What has to be said of some policies, a sentence for each that needs one.
pub fn caveats(policies: &[Policy]) -> Vec<String> {
    policies.iter().filter_map(|policy| Some(format!("{policy}: {}", policy.caveat()?))).collect()
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rules.fmt(f)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Policy({self})")
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Policy {}

impl Serialize for Policy {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
