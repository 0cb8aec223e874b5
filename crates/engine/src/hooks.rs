//! Hook points: read or change any named activation while the model runs.
//!
//! Names and shapes are TransformerLens's, without the batch dimension. Every point goes through [`Hooks::visit`];
//! without hooks that is one comparison.

use crate::tensor::Tensor;
use crate::{Error, Result};
use ndarray::{ArrayD, ArrayViewD};
use std::fmt;

/// What a hook point shows, apart from its layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// Token embedding, `[position, d]`.
    Embed,
    /// Learned vectors of the positions, `[position, d]`, where a model has them.
    PositionEmbed,
    /// Residual stream before a block, `[position, d]`.
    ResidPre,
    /// Residual stream between attention and MLP, `[position, d]`.
    ResidMid,
    /// Residual stream after a block, `[position, d]`.
    ResidPost,
    /// Normalised input of attention before its learned scale, `[position, d]`.
    AttentionNormalized,
    /// Normalised input of the MLP before its learned scale, `[position, d]`.
    MlpNormalized,
    /// Attention output, normalised, before its learned scale, where a model has a norm there, `[position, d]`.
    AttentionPostNormalized,
    /// MLP output, normalised, before its learned scale, where a model has a norm there, `[position, d]`.
    MlpPostNormalized,
    /// Queries before their norm and rotary embedding, `[position, head, head_dim]`.
    Query,
    /// Keys before their norm and rotary embedding, `[position, kv_head, head_dim]`.
    Key,
    /// Values, `[position, kv_head, head_dim]`.
    Value,
    /// Queries after rotary embedding, `[position, head, head_dim]`.
    RotatedQuery,
    /// Keys after rotary embedding, `[position, kv_head, head_dim]`.
    RotatedKey,
    /// Attention scores, −∞ where hidden, `[head, query position, key position]`; keys are those in the KV store.
    AttentionScores,
    /// Attention probabilities, shaped as the scores. Where hooked, that layer's matrix is materialised.
    Pattern,
    /// Attention-weighted values of each head, `[position, head, head_dim]`.
    WeightedValues,
    /// What attention adds to the residual stream, `[position, d]`.
    AttentionOutput,
    /// Gate projection (of an MLP without gate, up projection) before the activation function, `[position, feed_forward]`.
    /// Like the two that follow, not shown where experts take the place of the MLP.
    MlpPre,
    /// Up projection, which the activated gate multiplies, `[position, feed_forward]`.
    MlpPreLinear,
    /// Input of the MLP's down projection, `[position, feed_forward]`.
    MlpPost,
    /// What the MLP or the experts add to the residual stream, `[position, d]`.
    MlpOutput,
    /// Final residual stream, normalised, before its learned scale, `[position, d]`.
    FinalNormalized,
}

/// Each site with its name; `{}` stands for the layer.
const NAMES: [(Site, &str); 23] = [
    (Site::Embed, "hook_embed"),
    (Site::PositionEmbed, "hook_pos_embed"),
    (Site::ResidPre, "blocks.{}.hook_resid_pre"),
    (Site::ResidMid, "blocks.{}.hook_resid_mid"),
    (Site::ResidPost, "blocks.{}.hook_resid_post"),
    (Site::AttentionNormalized, "blocks.{}.ln1.hook_normalized"),
    (Site::MlpNormalized, "blocks.{}.ln2.hook_normalized"),
    (Site::AttentionPostNormalized, "blocks.{}.ln1_post.hook_normalized"),
    (Site::MlpPostNormalized, "blocks.{}.ln2_post.hook_normalized"),
    (Site::Query, "blocks.{}.attn.hook_q"),
    (Site::Key, "blocks.{}.attn.hook_k"),
    (Site::Value, "blocks.{}.attn.hook_v"),
    (Site::RotatedQuery, "blocks.{}.attn.hook_rot_q"),
    (Site::RotatedKey, "blocks.{}.attn.hook_rot_k"),
    (Site::AttentionScores, "blocks.{}.attn.hook_attn_scores"),
    (Site::Pattern, "blocks.{}.attn.hook_pattern"),
    (Site::WeightedValues, "blocks.{}.attn.hook_z"),
    (Site::AttentionOutput, "blocks.{}.hook_attn_out"),
    (Site::MlpPre, "blocks.{}.mlp.hook_pre"),
    (Site::MlpPreLinear, "blocks.{}.mlp.hook_pre_linear"),
    (Site::MlpPost, "blocks.{}.mlp.hook_post"),
    (Site::MlpOutput, "blocks.{}.hook_mlp_out"),
    (Site::FinalNormalized, "ln_final.hook_normalized"),
];

/// A site of one layer (layer 0 for the sites outside blocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HookPoint {
    /// The layer.
    pub layer: usize,
    /// What it shows.
    pub site: Site,
}

impl HookPoint {
    /// The point or points of a name in a model of `layers` layers; `blocks.*.…` stands for every layer.
    ///
    /// # Errors
    /// [`Error::UnknownHook`] with the nearest names; [`Error::Input`] on a layer beyond the last.
    pub fn parse(name: &str, layers: usize) -> Result<Vec<Self>> {
        let (layer, pattern) = match name.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => (Some(layer), format!("blocks.{{}}.{rest}")),
            None => (None, name.to_owned()),
        };
        let site = NAMES.iter().find(|(_, known)| *known == pattern).map(|&(site, _)| site);
        let Some(site) = site else {
            return Err(Error::UnknownHook { name: name.to_owned(), near: near_misses(&pattern) });
        };
        match layer {
            None => Ok(vec![Self { layer: 0, site }]),
            Some("*") => Ok((0..layers).map(|layer| Self { layer, site }).collect()),
            Some(layer) => match layer.parse::<usize>() {
                Ok(layer) if layer < layers => Ok(vec![Self { layer, site }]),
                _ => Err(Error::input(format!(
                    "hook point `{name}`: layer {layer} is not between 0 and {}",
                    layers.saturating_sub(1)
                ))),
            },
        }
    }

    /// Every name, with `{}` for the layer.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMES.iter().map(|&(_, name)| name)
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(site, _)| *site == self.site).map_or("", |(_, name)| name);
        f.write_str(&name.replace("{}", &self.layer.to_string()))
    }
}

fn near_misses(pattern: &str) -> Vec<String> {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let mut scored: Vec<(f64, &str)> = HookPoint::names()
        .map(|name| {
            let whole = strsim::jaro_winkler(pattern, name);
            (whole.max(strsim::jaro_winkler(&last(pattern), &last(name))), name)
        })
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0));
    scored.iter().take(3).map(|(_, name)| name.replace("{}", "0")).collect()
}

/// Where and on which rows a hook runs.
#[derive(Debug, Clone, Copy)]
pub struct HookContext<'a> {
    /// The hook point.
    pub point: HookPoint,
    /// Position of each row; a long prompt comes in chunks.
    pub positions: &'a [usize],
}

/// Reads an activation on the CPU. `Some` replaces it, in the same shape.
pub type Hook<'a> = Box<dyn FnMut(&HookContext<'_>, ArrayViewD<'_, f32>) -> Result<Option<ArrayD<f32>>> + 'a>;

/// Reads an activation where the model runs.
pub type Observer<'a> = Box<dyn FnMut(&HookContext<'_>, &Tensor) -> Result<()> + 'a>;

enum Listener<'a> {
    Hook(Hook<'a>),
    Observer(Observer<'a>),
}

/// The hooks of a run.
///
/// ```
/// use layerscope_engine::{HookPoint, Hooks, Site};
///
/// // Zero the output of the first head of layer 3, `[position, head, head_dim]`.
/// let mut hooks = Hooks::none();
/// hooks.add(HookPoint { layer: 3, site: Site::WeightedValues }, |_, z| {
///     let mut z = z.to_owned();
///     z.index_axis_mut(ndarray::Axis(1), 0).fill(0.0);
///     Ok(Some(z))
/// });
/// ```
#[derive(Default)]
pub struct Hooks<'a> {
    hooks: Vec<(HookPoint, Listener<'a>)>,
}

impl<'a> Hooks<'a> {
    /// No hooks: every point is free.
    pub fn none() -> Self {
        Self::default()
    }

    /// Adds a hook; several at one point run in the order in which they were added.
    pub fn add(
        &mut self,
        point: HookPoint,
        hook: impl FnMut(&HookContext<'_>, ArrayViewD<'_, f32>) -> Result<Option<ArrayD<f32>>> + 'a,
    ) {
        self.hooks.push((point, Listener::Hook(Box::new(hook))));
    }

    /// Adds an observer, which gets the activation where the model runs, and cannot change it.
    pub fn observe(
        &mut self,
        point: HookPoint,
        observer: impl FnMut(&HookContext<'_>, &Tensor) -> Result<()> + 'a,
    ) {
        self.hooks.push((point, Listener::Observer(Box::new(observer))));
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// Whether anything listens at a layer.
    pub(crate) fn wants_of_layer(&self, layer: usize) -> bool {
        self.hooks.iter().any(|(at, _)| at.layer == layer)
    }

    /// Whether anything listens there.
    pub fn wants(&self, layer: usize, site: Site) -> bool {
        let point = HookPoint { layer, site };
        self.hooks.iter().any(|(at, _)| *at == point)
    }

    /// Shows an activation to the hooks of a point and returns it, changed where one of them changed it.
    pub(crate) fn visit(
        &mut self,
        layer: usize,
        site: Site,
        positions: &[usize],
        mut activation: Tensor,
    ) -> Result<Tensor> {
        if self.hooks.is_empty() {
            return Ok(activation);
        }
        let point = HookPoint { layer, site };
        let context = HookContext { point, positions };
        for (_, listener) in self.hooks.iter_mut().filter(|(at, _)| *at == point) {
            match listener {
                Listener::Observer(observer) => observer(&context, &activation)?,
                Listener::Hook(hook) => {
                    if let Some(changed) = activation.with_array(|array| hook(&context, array))?? {
                        activation = replaced(point, &activation, changed)?;
                    }
                }
            }
        }
        Ok(activation)
    }
}

fn replaced(point: HookPoint, activation: &Tensor, changed: ArrayD<f32>) -> Result<Tensor> {
    if changed.shape() != activation.dims() {
        let (expected, returned) = (activation.dims().to_vec(), changed.shape().to_vec());
        return Err(Error::HookShape { point, expected, returned });
    }
    Tensor::from_array(changed)?.like(activation)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_name_parses_back() {
        for name in HookPoint::names() {
            let name = name.replace("{}", "3");
            let points = HookPoint::parse(&name, 8).unwrap();
            assert_eq!(points.len(), 1);
            assert_eq!(points[0].to_string(), name);
        }
    }

    #[test]
    fn a_star_stands_for_every_layer() {
        let points = HookPoint::parse("blocks.*.hook_resid_post", 5).unwrap();
        assert_eq!(points.iter().map(|p| p.layer).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn unknown_names_list_near_misses() {
        let error = HookPoint::parse("blocks.3.hook_residual_post", 8).unwrap_err();
        assert!(matches!(&error, Error::UnknownHook { near, .. } if near.len() == 3));
        let message = error.to_string();
        assert!(message.contains("blocks.0.hook_resid_post"), "{message}");
        let message = HookPoint::parse("blocks.8.hook_resid_post", 8).unwrap_err().to_string();
        assert!(message.contains("between 0 and 7"), "{message}");
        let message = HookPoint::parse("pattern", 8).unwrap_err().to_string();
        assert!(message.contains("hook_pattern"), "{message}");
    }
}
