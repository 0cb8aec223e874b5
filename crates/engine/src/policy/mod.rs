//! Policies: which prompt tokens exist at which layers. One small type for each, addressed by name.

mod anchors;
mod full;
mod head_set;
mod keep;
mod lazyllm;
mod pop;
mod prefill_pattern;
mod reach;
mod registry;
mod retention;
mod rules;
mod schedule;
mod scored;
mod selection;
mod selfonly;
mod sliminfer;
mod sparse;
mod speed;
mod streaming;
mod swiftkv;
#[cfg(test)]
mod tests;
pub(crate) mod top;
mod window;

use crate::memory::rows_at_once;
use crate::{Decoder, Depth, Device, ModelConfig, Result};
pub use anchors::Anchors;
pub use head_set::{HeadSet, HeadSetFile};
pub use keep::Ends;
use layerscope_kernels::AttentionShape;
pub use lazyllm::{RevivalCounters, TokenPruning};
pub use prefill_pattern::{PrefillPattern, PromptChunk};
pub use reach::{Arrived, Cutoff, Reach, Visibility};
pub use registry::{POLICIES, PolicyKind, names_a_file, policies_help};
pub use retention::{Eviction, LayerKv, Retention, StoredHead};
pub use rules::{CrossLayerKv, PolicyRules, UNTRAINED, ZERO_SHOT};
pub use schedule::{Keep, Pruning, Schedule};
pub use selection::{RunningSelection, Selection, SequenceSetup};
use serde::{Serialize, Serializer};
pub use sliminfer::{BLOCK, BlockPruning, Pooling, QUERY_WINDOW, TransferCounters, UNIT};
pub use sparse::{FoundPattern, HeadPattern, HeadPatterns, search_head_patterns};
use std::fmt;
use std::sync::Arc;
pub use window::SinksAndWindow;

/// A policy for a model of so many layers; cheap to clone. Two are equal if their names are.
///
/// The last prompt token is the first decode token and runs full depth. Positions are never renumbered.
#[derive(Clone)]
pub struct Policy {
    rules: Arc<dyn PolicyRules>,
    layers: usize,
    /// Of each layer, how many positions up to its own a row sees; empty where all layers see everything.
    windows: Arc<[Option<usize>]>,
}

/// Layer-tokens: how many tokens, summed over layers.
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
        Self { rules: Arc::new(rules), layers, windows: Arc::default() }
    }

    /// The policy of a name: `full`, `speed:24`, `speed:24+bos+5+100-120`, `pop:24` and whatever else is among
    /// [`POLICIES`].
    ///
    /// # Errors
    /// [`crate::Error::Input`] on an unknown name or a cutoff that the model does not have.
    pub fn parse(name: &str, layers: usize) -> Result<Self> {
        Ok(Self { rules: registry::parse(name, layers)?, layers, windows: Arc::default() })
    }

    /// [`Self::parse`] for a model.
    ///
    /// # Errors
    /// As [`Self::parse`].
    pub fn parse_for(name: &str, config: &ModelConfig) -> Result<Self> {
        let policy = Self::parse(name, config.layers)?;
        policy.rules.check(config)?;
        Ok(policy.for_model(config))
    }

    /// The same for a model: what the name leaves open follows its shape, and KV that no later row sees leaves layers with
    /// windows.
    #[must_use]
    pub fn for_model(self, config: &ModelConfig) -> Self {
        let rules = self.rules.for_model(config);
        Self { rules: rules.unwrap_or(self.rules), ..self }.with_windows(&config.windows)
    }

    /// The same where a row of each layer sees so many positions up to its own; all where there is none.
    #[must_use]
    pub fn with_windows(self, windows: &[Option<usize>]) -> Self {
        Self { windows: windows.into(), ..self }
    }

    /// How many stored positions up to its own a prefill row of a layer sees at most; `None` where it sees all.
    pub fn visible_at(&self, layer: usize) -> Option<usize> {
        let sliding = self.sliding(layer).map(|seen| seen.sinks.saturating_add(seen.window));
        sliding.or(self.windows.get(layer).copied().flatten())
    }

    /// What rows see at a layer from which KV leaves as soon as no later row sees it; `None` where it stays, or leaves otherwise.
    pub(crate) fn sliding(&self, layer: usize) -> Option<SinksAndWindow> {
        let own = self.windows.get(layer).copied().flatten();
        let own = own.map(|window| SinksAndWindow { sinks: 0, window });
        match self.rules.retention().eviction() {
            Eviction::Sliding(window) => {
                Some(own.filter(|own| own.window <= window.window).unwrap_or(window))
            }
            Eviction::Never | Eviction::BeforeDecode => {
                own.filter(|_| !self.rules.selection().refers_to_stored())
            }
        }
    }

    /// Prefill tokens that a layer keeps, for the KV head that keeps most or for one of them.
    fn kept(&self, layer: LayerKv, kv_head: Option<usize>) -> usize {
        let retention = self.rules.retention();
        match (retention.eviction(), kv_head) {
            (Eviction::Sliding(_), _) => self.unevicted(layer).stored,
            (Eviction::Never | Eviction::BeforeDecode, None) => retention.kept(self.unevicted(layer)),
            (Eviction::Never | Eviction::BeforeDecode, Some(head)) => {
                retention.kept_by_head(self.unevicted(layer), head)
            }
        }
    }

    /// A layer without what no later row sees.
    pub(crate) fn unevicted(&self, layer: LayerKv) -> LayerKv {
        let Some(window) = self.sliding(layer.layer) else { return layer };
        let unseen = window.unseen(layer.prefill_len);
        let before = |position: usize| self.stored_of(layer.layer, position.min(layer.prefill_len));
        LayerKv { stored: layer.stored - (before(unseen.end) - before(unseen.start)), ..layer }
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
    /// `prompt_len` tokens and `decode_len` decode tokens (the last prompt token is the first of them); length L. Of a layer's
    /// KV heads it is that of the one with most, or the mean where heads compete.
    pub fn capacity(&self, prompt_len: usize, decode_len: usize) -> Vec<usize> {
        let kept = |layer| self.kept(layer, None) + decode_len;
        self.stored(prompt_len).map(kept).collect()
    }

    /// [`Self::capacity`] of each of `kv_heads` KV heads; `[layer][kv_head]`.
    pub fn capacity_by_head(&self, prompt_len: usize, decode_len: usize, kv_heads: usize) -> Vec<Vec<usize>> {
        let kept = |layer, head| self.kept(layer, Some(head)) + decode_len;
        let of_layer = |layer| (0..kv_heads).map(|head| kept(layer, head)).collect();
        self.stored(prompt_len).map(of_layer).collect()
    }

    /// Tokens whose KV each layer has at most at any time: [`Self::capacity`], or what the prefill puts there before a part
    /// of it is evicted.
    pub fn most_held(&self, prompt_len: usize, decode_len: usize, device: &Device) -> Vec<usize> {
        let read_again = self.read_again(prompt_len);
        let held = |layer: LayerKv| {
            let stored = match self.sliding(layer.layer) {
                Some(window) => window.most_of(layer.stored, rows_at_once(device)),
                None => layer.stored,
            };
            self.kept(layer, None).max(stored + read_again) + decode_len
        };
        self.stored(prompt_len).map(held).collect()
    }

    /// Tokens of one layer's KV that are in memory at most, where the model runs: those of [`Self::most_held`] (under policies that
    /// run by layer, of one layer at a time, beside what the others keep, or hold until heads have competed), those of a layer that
    /// is written anew as others are evicted from it, and, where KV moves, those in transit.
    pub fn in_memory(&self, prompt_len: usize, decode_len: usize, device: &Device) -> Vec<usize> {
        let held = self.most_held(prompt_len, decode_len, device);
        let kept = self.capacity(prompt_len, decode_len);
        let one_more = held.iter().copied().max().filter(|_| held != kept || self.runs_by_layer());
        let read_again = self.read_again(prompt_len);
        let mut tokens = match self.runs_by_layer() {
            true if self.rules.retention().shares_out() => {
                held.iter().map(|held| held - read_again).collect()
            }
            true => kept,
            false => held,
        };
        tokens.extend(one_more);
        tokens
            .extend(Some(self.rules.retention().in_transit(prompt_len.saturating_sub(1))).filter(|&n| n > 0));
        tokens
    }

    /// Whether all rows of the prefill run through a layer before any runs through the next one, so that what the layer does not
    /// keep is evicted first.
    pub(crate) fn runs_by_layer(&self) -> bool {
        self.evicts_before_decode() && self.rules.cross_layer_kv().is_none()
    }

    /// Tokens that the prefill reads a second time.
    pub(crate) fn read_again(&self, prompt_len: usize) -> usize {
        if self.rules.retention().reads_twice() { prompt_len.saturating_sub(1) } else { 0 }
    }

    /// Where the stages of the prefill end, ascending; the last one with the last layer.
    pub(crate) fn stage_ends(&self) -> Vec<Depth> {
        let mut ends = self.rules.reach().pruning_points();
        let first = if self.runs_by_layer() { 1 } else { self.layers };
        ends.extend((first..=self.layers).map(Depth::entering));
        ends.sort_unstable();
        ends.dedup();
        ends
    }

    /// Residual streams `[d]` of prompt rows that wait at most between stages: those that have yet to enter one, those that are
    /// kept, and, where a policy decides once all have arrived, those that arrive.
    pub fn rows_waiting(&self, prompt_len: usize) -> usize {
        let prefill_len = prompt_len.saturating_sub(1);
        let rows = |depth| self.rules.reach().rows_at(depth, prefill_len) + self.read_again(prompt_len);
        let late = self.rules.selection().refers_to_stored();
        let ends = self.stage_ends();
        let before = std::iter::once(Depth::entering(0)).chain(ends.iter().copied());
        let stages = ends.iter().zip(before).take(ends.len() - 1);
        let waiting = stages.map(|(&end, start)| match late {
            true => rows(start) + rows(end),
            false => rows(end).max(if start > Depth::entering(0) { rows(start) } else { 0 }),
        });
        waiting.max().unwrap_or(0)
    }

    /// Which rows exist at which layers, where a cutoff and its anchors say it all; `None` under other policies.
    pub fn visibility(&self) -> Option<Visibility> {
        self.rules.visibility()
    }

    /// Which rows exist at which layers, where they are those of the full model or of a cutoff, and prompt rows read what these
    /// read: what an adapter of decode rows can be trained for. What of it the policy evicts before decode is not said.
    pub fn rows_by_cutoff(&self) -> Option<Visibility> {
        self.visibility().or_else(|| {
            let reach = self.rules.reach();
            let visibility = match reach.cutoff() {
                Some(Cutoff { layer, anchors }) => {
                    Visibility { cutoff: *layer, anchors: anchors.clone(), self_only: false }
                }
                None => Visibility { cutoff: self.layers, anchors: Anchors::none(), self_only: false },
            };
            Some(visibility).filter(|_| self.evicts_before_decode())
        })
    }

    /// Up to which layer all prompt rows run, and whether position 0 goes on to the last, where the prompt's keys and values are the
    /// full model's wherever there are any, and stay; `None` under other policies. Sequences whose prompts begin alike can share
    /// them then.
    pub(crate) fn full_prompt_rows(&self) -> Option<(usize, bool)> {
        let rules = self.rules();
        let is_plain = rules.prefill_pattern().is_none()
            && rules.cross_layer_kv().is_none()
            && rules.retention().eviction() == Eviction::Never
            && !rules.selection().refers_to_stored();
        let found = match (rules.reach().cutoff(), rules.reach().pruning_points().is_empty()) {
            (Some(Cutoff { layer, anchors }), _) => {
                anchors.are_bos_alone().then(|| (*layer, anchors.contains(0)))
            }
            (None, true) => Some((self.layers, true)),
            (None, false) => None,
        };
        found.filter(|_| is_plain)
    }

    /// Whether each KV head keeps a part of the prompt that is chosen once, before decode.
    pub fn evicts_before_decode(&self) -> bool {
        self.rules.retention().eviction() == Eviction::BeforeDecode
    }

    /// What it does with a prompt of so many tokens, for people, where its name does not say it; `bytes` tells the size of so
    /// many layer-tokens of KV.
    pub fn plan(&self, prompt_len: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        self.rules.plan(prompt_len.saturating_sub(1), self.layers, bytes)
    }

    /// Whether K and V of all rows at a layer are projected from a layer below, decode rows among them.
    pub(crate) fn shares_norm_at(&self, layer: usize) -> bool {
        matches!(self.rules.cross_layer_kv(), Some(CrossLayerKv::SharedNorm(from)) if from <= layer)
    }

    /// Each layer as the prefill leaves it, before anything is evicted.
    pub(crate) fn stored(&self, prompt_len: usize) -> impl Iterator<Item = LayerKv> {
        let prefill_len = prompt_len.saturating_sub(1);
        let stored = move |layer| self.stored_of(layer, prefill_len);
        (0..self.layers).map(move |layer| LayerKv { layer, prefill_len, stored: stored(layer) })
    }

    /// How many of the first `len` prefill tokens a layer stores, before anything is evicted.
    fn stored_of(&self, layer: usize, len: usize) -> usize {
        match self.rules.cross_layer_kv() {
            None => self.rules.reach().rows_at(Depth::entering(layer), len),
            Some(_) => len,
        }
    }

    /// Sizes of a layer's attention, with what the policy lets all rows see.
    pub(crate) fn attention_shape(&self, decoder: &Decoder, layer: usize) -> AttentionShape {
        let shape = decoder.attention_shape(layer);
        match self.rules.retention().eviction() {
            Eviction::Sliding(window) => window.narrowed(shape),
            Eviction::Never | Eviction::BeforeDecode => shape,
        }
    }

    /// Prefill rows (the prompt but its last token, or twice that) that run through each layer's attention and through its
    /// feed-forward network.
    pub fn prefill_rows(&self, prompt_len: usize) -> Vec<[usize; 2]> {
        let prefill_len = prompt_len.saturating_sub(1);
        let rows = |half| self.rules.reach().rows_at(half, prefill_len) + self.read_again(prompt_len);
        let halves: Vec<usize> = Depth::halves(Depth::of_layers(0..self.layers)).map(rows).collect();
        halves.chunks_exact(2).map(|halves| [halves[0], halves[1]]).collect()
    }

    /// The work of a prompt of `prompt_len` tokens and `decode_len` decode tokens (the last prompt token is the first of
    /// them).
    pub fn layer_tokens(&self, prompt_len: usize, decode_len: usize) -> LayerTokens {
        let prefill_len = prompt_len.saturating_sub(1);
        let rows = |depth| self.rules.reach().rows_at(depth, prefill_len) + self.read_again(prompt_len);
        let halves = Depth::halves(Depth::of_layers(0..self.layers));
        let block = halves.map(|half| rows(half) + decode_len).sum::<usize>() / 2;
        let projected = match self.rules.cross_layer_kv() {
            None => 0,
            Some(_) => (0..self.layers).map(|layer| prefill_len - rows(Depth::entering(layer))).sum(),
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
