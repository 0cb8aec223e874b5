//! The data of one recorded prompt, with the definition of every figure. Shared by all steps from recording
//! to report.
//!
//! Layers ℓ = 0 … L−1, heads h = 0 … H−1 (query heads), decode steps s = 0 … N−1. Step s is the query at position
//! p−1+s of a sequence whose prompt has p tokens. Undefined values are NaN in memory and null in files.

use crate::reads::RowReads;
use crate::summary;
use ndarray::{Array2, Array3};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Everything recorded for one prompt.
#[derive(Debug, Clone)]
pub struct PromptRecord {
    /// The prompt, its figures by layer and by head, frontier and attention knockout.
    pub summary: PromptSummary,
    /// Figures by layer and decode step.
    pub steps: StepFigures,
    /// Attention received by each prompt position, per layer.
    pub received: ReceivedFigures,
    /// The prompt positions that each decode step reads most, `[L, N]`, within [`crate::reads::limits`]; `None` where they were not
    /// recorded.
    pub reads: Option<Array2<RowReads>>,
}

/// One recorded prompt without its long tables. Undefined values are NaN.
#[derive(Debug, Clone)]
pub struct PromptSummary {
    /// Unique name of the prompt within the run.
    pub id: String,
    /// Its category.
    pub category: String,
    /// The prompt as the user wrote it.
    pub text: String,
    /// Prompt tokens p.
    pub p: usize,
    /// Decode steps N.
    pub steps: usize,
    /// Token ids of the prompt; length p.
    pub prompt_tokens: Vec<u32>,
    /// How each prompt token is shown; length p.
    pub prompt_token_text: Vec<String>,
    /// The continuation; length N.
    pub generated: Vec<u32>,
    /// How each token of the continuation is shown; length N.
    pub generated_token_text: Vec<String>,
    /// The continuation as text.
    pub generated_text: String,
    /// Whether the continuation was given, not generated.
    pub answer_given: bool,
    /// What a right text contains, if the prompt file says that.
    pub expected: Option<String>,
    /// Mean over steps of KL(f32 weights ‖ weights as run), nats; `None` when the run itself is f32.
    pub native_kl: Option<f64>,
    /// Wall-clock times.
    pub timings: Timings,
    /// Per-layer means.
    pub layers: LayerFigures,
    /// Per-head means over steps, `[L, H]`.
    pub heads: AttentionMeans,
    /// The exact cutoff frontier, in the recorded order.
    pub frontier: Vec<FrontierRow>,
    /// Attention knockout, in the recorded order.
    pub knockout: Vec<KnockoutRow>,
}

impl PromptSummary {
    /// The divergence at a cutoff; undefined if it was not recorded.
    pub fn at(&self, anchor: Anchor, cutoff: usize) -> Divergence {
        let row = self.frontier.iter().find(|row| (row.anchor, row.cutoff) == (anchor, cutoff));
        row.map_or(Divergence::UNDEFINED, |row| row.divergence)
    }

    /// What becomes of the text at a cutoff; unknown if it was not recorded.
    pub fn text_at(&self, anchor: Anchor, cutoff: usize) -> TextUnderCutoff {
        let row = self.frontier.iter().find(|row| (row.anchor, row.cutoff) == (anchor, cutoff));
        row.map_or(TextUnderCutoff::UNKNOWN, |row| row.text)
    }

    /// The divergence at each cutoff 1 … L; undefined if it was not recorded.
    pub fn frontier_of(&self, anchor: Anchor) -> Vec<Divergence> {
        let mut divergences = vec![Divergence::UNDEFINED; self.layers.bos_mass.len()];
        for row in self.frontier.iter().filter(|row| row.anchor == anchor) {
            if let Some(place) = row.cutoff.checked_sub(1).and_then(|at| divergences.get_mut(at)) {
                *place = row.divergence;
            }
        }
        divergences
    }

    /// The divergence when the prompt is hidden from one layer; undefined if it was not recorded.
    pub fn knockout_at(&self, layer: usize) -> Divergence {
        let row = self.knockout.iter().find(|row| row.layer == layer);
        row.map_or(Divergence::UNDEFINED, |row| row.divergence)
    }

    /// A figure of [`LAYER_FIGURES`] or [`KNOCKOUT_KL`] at layers 0 … L−1, without the embedding's value.
    pub fn by_layer(&self, figure: &str) -> Vec<f64> {
        let layers = self.layers.bos_mass.len();
        if figure == KNOCKOUT_KL {
            return (0..layers).map(|layer| self.knockout_at(layer).kl).collect();
        }
        let named = self.layers.named();
        let values = named.iter().find(|(name, _)| *name == figure).map_or(&[][..], |(_, values)| values);
        values[values.len().saturating_sub(layers)..].to_vec()
    }

    /// The same without the prompt's tokens, which take most of its memory.
    #[must_use]
    pub fn without_prompt_tokens(self) -> Self {
        Self { prompt_tokens: vec![], prompt_token_text: vec![], ..self }
    }
}

/// Name of attention knockout's KL, which is not a column of `layers.parquet`.
pub const KNOCKOUT_KL: &str = "knockout_kl";

/// Number of per-layer figures.
const FIGURES: usize = 12;

/// Names of the per-layer figures, which are also their columns in `layers.parquet`.
pub const LAYER_FIGURES: [&str; FIGURES] = [
    "bos_mass",
    "prompt_mass",
    "decode_mass",
    "prompt_entropy",
    "prompt_entropy_nats",
    "selectivity",
    "lens_kl",
    "lens_top1_agreement",
    "curvature_prompt_deg",
    "straightening_prompt_deg",
    "curvature_decode_deg",
    "straightening_decode_deg",
];

/// A prompt's per-layer figures: means over heads and decode steps, length L; the curves of the residual stream have
/// length L+1, with the embedding output at index 0 and layer ℓ at ℓ+1.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerFigures {
    /// Mass on position 0, length L.
    pub bos_mass: Vec<f64>,
    /// Mass on positions 1 … p−2, length L.
    pub prompt_mass: Vec<f64>,
    /// Mass on positions ≥ p−1, length L.
    pub decode_mass: Vec<f64>,
    /// Entropy within the prompt divided by ln(p−2), mean over the heads and steps with a defined value,
    /// length L.
    pub prompt_entropy: Vec<f64>,
    /// The same in nats, length L.
    pub prompt_entropy_nats: Vec<f64>,
    /// prompt_mass · (1 − prompt_entropy) per head and step, then averaged, length L.
    pub selectivity: Vec<f64>,
    /// Logit lens KL(final ‖ lens), nats, length L.
    pub lens_kl: Vec<f64>,
    /// Share of steps whose lens token is the last layer's, length L.
    pub lens_top1_agreement: Vec<f64>,
    /// Curvature over prompt positions, degrees, length L+1.
    pub curvature_prompt_deg: Vec<f64>,
    /// The same minus its value after layer 0, length L+1.
    pub straightening_prompt_deg: Vec<f64>,
    /// Curvature over decode positions, degrees, length L+1.
    pub curvature_decode_deg: Vec<f64>,
    /// The same minus its value after layer 0, length L+1.
    pub straightening_decode_deg: Vec<f64>,
}

impl LayerFigures {
    /// All figures with their names, in the order of [`LAYER_FIGURES`].
    pub fn named(&self) -> [(&'static str, &[f64]); FIGURES] {
        let values: [&[f64]; FIGURES] = [
            &self.bos_mass,
            &self.prompt_mass,
            &self.decode_mass,
            &self.prompt_entropy,
            &self.prompt_entropy_nats,
            &self.selectivity,
            &self.lens_kl,
            &self.lens_top1_agreement,
            &self.curvature_prompt_deg,
            &self.straightening_prompt_deg,
            &self.curvature_decode_deg,
            &self.straightening_decode_deg,
        ];
        std::array::from_fn(|index| (LAYER_FIGURES[index], values[index]))
    }
}

/// Attention figures averaged over one axis: `[L, H]` (over steps) or `[L, N]` (over heads).
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionMeans {
    /// Mass on position 0.
    pub bos_mass: Array2<f64>,
    /// Mass on positions 1 … p−2.
    pub prompt_mass: Array2<f64>,
    /// Mass on positions ≥ p−1.
    pub decode_mass: Array2<f64>,
    /// Entropy within the prompt over ln(p−2).
    pub prompt_entropy: Array2<f64>,
    /// The same in nats.
    pub prompt_entropy_nats: Array2<f64>,
    /// prompt_mass · (1 − prompt_entropy).
    pub selectivity: Array2<f64>,
}

impl AttentionMeans {
    /// The figures in the order of the tables' columns.
    pub(crate) fn columns(&self) -> [&Array2<f64>; 6] {
        let Self { bos_mass, prompt_mass, decode_mass, prompt_entropy, prompt_entropy_nats, selectivity } =
            self;
        [bos_mass, prompt_mass, decode_mass, prompt_entropy, prompt_entropy_nats, selectivity]
    }
}

/// A prompt's figures per layer and decode step.
#[derive(Debug, Clone)]
pub struct StepFigures {
    /// Position of each step's query, length N.
    pub positions: Vec<usize>,
    /// The token that each step generates, length N.
    pub token_ids: Vec<u32>,
    /// Means over heads, `[L, N]`.
    pub attention: AttentionMeans,
    /// Logit lens, `[L, N]`.
    pub lens: LensFigures,
}

/// The probes' measurements of one prompt, before averaging.
#[derive(Debug, Clone)]
pub struct ProbedFigures {
    /// Attention masses and entropies of the decode queries.
    pub attention: AttentionFigures,
    /// Attention received by each prompt position, per layer.
    pub received: ReceivedFigures,
    /// The prompt positions that each decode step reads most, `[L, N]`; `None` where they were not asked for.
    pub reads: Option<Array2<RowReads>>,
    /// Mean curvature over prompt positions 0 … p−1, degrees; length L+1, index 0 is the embedding output.
    pub curvature_prompt_deg: Vec<f64>,
    /// Mean curvature over decode positions p−1 … p−2+N, degrees; length L+1.
    pub curvature_decode_deg: Vec<f64>,
    /// Logit lens of the decode queries.
    pub lens: LensFigures,
}

/// Attention of the decode queries; every array is `[L, H, N]`.
#[derive(Debug, Clone)]
pub struct AttentionFigures {
    /// Mass on position 0.
    pub bos_mass: Array3<f32>,
    /// Mass on positions 1 … p−2 (decode-to-prefill attention mass).
    pub prompt_mass: Array3<f32>,
    /// Mass on positions ≥ p−1.
    pub decode_mass: Array3<f32>,
    /// Entropy of the attention within the prompt, divided by ln(p−2): in \[0, 1\]; NaN if undefined.
    pub prompt_entropy: Array3<f32>,
    /// The same in nats; NaN if undefined.
    pub prompt_entropy_nats: Array3<f32>,
}

/// Attention received by prompt positions 0 … p−1 from the decode queries; arrays are `[L, p]`.
#[derive(Debug, Clone)]
pub struct ReceivedFigures {
    /// Mean over heads and steps.
    pub mean: Array2<f32>,
    /// Maximum over heads and steps.
    pub max: Array2<f32>,
}

/// Logit lens: final norm and unembedding applied to the residual stream after each block; arrays are `[L, N]`.
#[derive(Debug, Clone)]
pub struct LensFigures {
    /// KL(final ‖ lens), nats.
    pub kl: Array2<f32>,
    /// The lens's most likely token.
    pub top1: Array2<u32>,
}

/// Which prompt tokens keep their KV at every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Anchor {
    /// Position 0, whatever token that is.
    Bos,
    /// No prompt token.
    None,
}

impl Anchor {
    /// Both anchors, in the order in which they are reported.
    pub const ALL: [Self; 2] = [Self::Bos, Self::None];

    /// Its name in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bos => "bos",
            Self::None => "none",
        }
    }

    /// The anchor of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|anchor| anchor.name() == name)
    }

    /// Number of anchored prompt tokens.
    pub fn tokens(self) -> usize {
        match self {
            Self::Bos => 1,
            Self::None => 0,
        }
    }
}

/// How far next-token distributions moved from the full model's, averaged over the decode steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Divergence {
    /// Mean KL(full ‖ changed), nats.
    pub kl: f64,
    /// Share of steps with the same argmax, in \[0, 1\].
    pub top1: f64,
    /// Mean negative log-likelihood of the continuation, less that under the full model, nats.
    pub dnll: f64,
}

impl Divergence {
    /// The full model against itself.
    pub const ZERO: Self = Self { kl: 0.0, top1: 1.0, dnll: 0.0 };
    /// Nothing is known.
    pub const UNDEFINED: Self = Self { kl: f64::NAN, top1: f64::NAN, dnll: f64::NAN };

    /// Means of each figure; a figure that is undefined in any of them is undefined.
    pub fn mean(divergences: &[Self]) -> Self {
        Self::by_figure(divergences, |figure| figure.sum::<f64>() / divergences.len() as f64)
    }

    /// Means of each figure over those that define it.
    pub fn mean_of_defined(divergences: &[Self]) -> Self {
        Self::by_figure(divergences, |figure| summary::mean(figure))
    }

    fn by_figure(divergences: &[Self], mean: impl Fn(&mut dyn Iterator<Item = f64>) -> f64) -> Self {
        let of = |figure: fn(&Self) -> f64| mean(&mut divergences.iter().map(figure));
        Self { kl: of(|one| one.kl), top1: of(|one| one.top1), dnll: of(|one| one.dnll) }
    }
}

/// One cutoff of the frontier.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FrontierRow {
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// Prompt tokens keep KV in layers 0 … cutoff−1; 1 … L.
    pub cutoff: usize,
    /// What it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// What becomes of the text.
    #[serde(flatten)]
    pub text: TextUnderCutoff,
}

/// What becomes of the full model's greedy text of N tokens under a cutoff.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TextUnderCutoff {
    /// Whether the greedy text under the cutoff is the same. Null where the continuation was given and the full model would write
    /// another.
    pub unchanged: Option<bool>,
    /// The decode step whose token is the first to differ, 0 … N−1; null where none does. Before it, both texts are the same
    /// computation.
    pub departs: Option<usize>,
    /// Whether the greedy text, as the model ends it, contains the expected answer. Null where no answer is expected; where the full
    /// model does not give it, false at cutoff L and null below.
    pub answered: Option<bool>,
}

impl TextUnderCutoff {
    /// The full model's own text.
    pub const SAME: Self = Self { unchanged: Some(true), departs: None, answered: None };
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { unchanged: None, departs: None, answered: None };

    /// A text whose first other token is at a step, if there is one.
    pub fn departing(departs: Option<usize>) -> Self {
        Self { unchanged: Some(departs.is_none()), departs, answered: None }
    }
}

/// One layer of attention knockout: the prompt hidden from the decode queries at this layer alone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KnockoutRow {
    /// The layer.
    pub layer: usize,
    /// What hiding the prompt there costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// What hiding it from one KV head of the layer costs, for each head; empty where that was not measured.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_kv_head: Vec<Divergence>,
}

/// A prompt under a policy, along the full model's text or the given answer.
#[derive(Debug, Clone)]
pub struct PolicyRecord {
    /// The prompt.
    pub prompt_id: String,
    /// Name of the policy.
    pub policy: String,
    /// How far the policy moves the next-token distributions from the full model's.
    pub divergence: Divergence,
    /// Attention of the decode queries, means over heads, `[L, N]`.
    pub attention: AttentionMeans,
}

impl PolicyRecord {
    /// Means over decode steps of a figure, by layer; those without a defined step are NaN.
    pub fn by_layer(figure: &Array2<f64>) -> Vec<f64> {
        figure.outer_iter().map(|steps| summary::mean(steps.iter().copied())).collect()
    }
}

/// From which layer on a span of prompt tokens may vanish: what removing it costs, by the layer from which it is removed.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SpanRecord {
    /// The prompt.
    #[serde(skip)]
    pub prompt_id: String,
    /// First position of the span.
    pub first: usize,
    /// One more than its last position.
    pub end: usize,
    /// Its text.
    pub text: String,
    /// One row per layer looked at, ascending; the last is that of L, which removes nothing.
    pub layers: Vec<SpanRow>,
}

/// A span removed from one layer on: its rows stop at the entrance of that layer, and no token reads them there or above.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct SpanRow {
    /// The first layer without the span, 0 … L.
    pub layer: usize,
    /// What it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Share of the decode queries' attention that goes to the span at this layer of the full model, mean over heads and
    /// steps; NaN at L.
    pub decode_mass: f64,
    /// Where attention goes at the layers without the span.
    #[serde(flatten)]
    pub masses: SpanMasses,
    /// Whether the greedy text without the span contains the answer; none where no answer was looked for.
    pub found: Option<bool>,
}

/// Shares of the decode queries' attention at the layers from which on a span is removed: means over these layers, heads and
/// steps. NaN where it is removed from none.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct SpanMasses {
    /// On the span, of the full model.
    #[serde(rename = "span_mass_full")]
    pub span_full: f64,
    /// On the rest of the prompt, positions 1 … p−2, of the full model.
    #[serde(rename = "rest_mass_full")]
    pub rest_full: f64,
    /// On position 0, without the span.
    #[serde(rename = "bos_mass_after")]
    pub bos_after: f64,
    /// On the rest of the prompt, without the span.
    #[serde(rename = "rest_mass_after")]
    pub rest_after: f64,
    /// On positions ≥ p−1, without the span.
    #[serde(rename = "decode_mass_after")]
    pub decode_after: f64,
}

impl SpanMasses {
    /// Nothing is known.
    pub const UNDEFINED: Self = Self {
        span_full: f64::NAN,
        rest_full: f64::NAN,
        bos_after: f64::NAN,
        rest_after: f64::NAN,
        decode_after: f64::NAN,
    };
}

/// Wall-clock times of one prompt, seconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Timings {
    /// Prompt to first token (time to first token, TTFT).
    pub prefill_s: f64,
    /// All further greedy tokens; 0 where the answer was given.
    pub decode_s: f64,
    /// The teacher-forced pass with every probe.
    pub probe_s: f64,
    /// Frontier and attention knockout.
    pub frontier_s: f64,
}
