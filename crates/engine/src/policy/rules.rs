//! What a policy is: its parts, each as under `full` where the policy does not say otherwise.

use super::full::Full;
use super::{PrefillPattern, Reach, Retention, Selection, Visibility};
use crate::ModelConfig;
use std::fmt;
use std::sync::Arc;

/// Said of every policy whose weights were not trained for it.
pub const UNTRAINED: &str = "efficiency-faithful, quality not representative";

/// What has to be said of policies whose paper trains the model for them, where training is no part of the weights.
pub const ZERO_SHOT: &str =
    "zero-shot: not trained for its cutoff, as the paper's model is; training keeps more quality there";

/// A policy, composed of four parts. `Display` is the name that parses back.
///
/// | part | says | SPEED | streaming | LazyLLM | SlimInfer | a set of heads | MInference |
/// |---|---|---|---|---|---|---|---|
/// | [`Reach`] | which prompt rows run through which depth | ✓ | | ✓ | ✓ | | |
/// | [`PrefillPattern`] | which keys prompt rows read in the prefill | | | | | | ✓ |
/// | [`Retention`] | which KV stays, by layer and KV head | | ✓ | | ✓ | ✓ | |
/// | [`Selection`] | what a decode row reads of it | | | ✓ | ✓ | | |
///
/// The last prompt token is the first decode token: it runs full depth, as decode tokens do.
pub trait PolicyRules: fmt::Display + Send + Sync {
    /// Which prompt rows run through which depth.
    fn reach(&self) -> &dyn Reach {
        &Full
    }

    /// Which KV stays after the prefill.
    fn retention(&self) -> &dyn Retention {
        &Full
    }

    /// What decode rows read of the KV that is stored.
    fn selection(&self) -> &dyn Selection {
        &Full
    }

    /// Which keys prompt rows read in the prefill; `None`: all that they see.
    fn prefill_pattern(&self) -> Option<&dyn PrefillPattern> {
        None
    }

    /// Which rows exist at which layers, where a cutoff and its anchors say it all.
    fn visibility(&self) -> Option<Visibility> {
        None
    }

    /// Where keys and values come from at layers that rows do not run through; `None`: there are none.
    fn cross_layer_kv(&self) -> Option<CrossLayerKv> {
        None
    }

    /// The same with what it leaves to the model's shape; `None` where it leaves nothing.
    fn for_model(&self, _config: &ModelConfig) -> Option<Arc<dyn PolicyRules>> {
        None
    }

    /// # Errors
    /// [`crate::Error::Input`] if it was made for a model of another shape.
    fn check(&self, _config: &ModelConfig) -> crate::Result<()> {
        Ok(())
    }

    /// SHA-256 of the weights that it was searched on, where it was.
    fn searched_on(&self) -> Option<&str> {
        None
    }

    /// What it does with a prompt of `prefill_len` + 1 tokens in a model of `layers`, for people, where its name does not say
    /// it; `bytes` tells the size of so many layer-tokens of KV.
    fn plan(&self, _prefill_len: usize, _layers: usize, _bytes: &dyn Fn(usize) -> String) -> Option<String> {
        None
    }

    /// What has to be said wherever its output is shown.
    fn caveat(&self) -> Option<&'static str> {
        None
    }
}

/// Cross-layer KV projection: where keys and values come from at layers that rows do not run through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CrossLayerKv {
    /// From the residual stream with which a row left, through each layer's own attention norm and projections.
    OwnNorms,
    /// SingleInputKV: from the residual stream at the entrance of this layer, through the attention norm of this layer and the
    /// projections of each layer above; of rows that run through them, decode rows among them, too.
    SharedNorm(usize),
}
