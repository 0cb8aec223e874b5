//! The figures that maps can show.

use layerscope_diagnostics::record::{AttentionMeans, PromptSummary};
use ndarray::Array2;
use serde::{Deserialize, Serialize};

/// A figure of layer × prompt token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum TokenFigure {
    /// Attention received, mean over heads and steps.
    #[default]
    ReceivedMean,
    /// Attention received, largest over heads and steps.
    ReceivedMax,
}

impl TokenFigure {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::ReceivedMean, Self::ReceivedMax];

    /// Its displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceivedMean => "Attention received, mean",
            Self::ReceivedMax => "Attention received, max",
        }
    }

    /// Its description with unit.
    pub fn description(self) -> &'static str {
        match self {
            Self::ReceivedMean => "share of attention on the token, mean over heads and decode steps",
            Self::ReceivedMax => "share of attention on the token, largest over heads and decode steps",
        }
    }
}

/// A figure of layer × decode step, or of layer × head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub enum StepFigure {
    /// Mass on position 0.
    BosMass,
    /// Mass on positions 1 … p−2.
    #[default]
    PromptMass,
    /// Mass on positions ≥ p−1.
    DecodeMass,
    /// Entropy within the prompt.
    PromptEntropy,
    /// prompt_mass · (1 − prompt_entropy).
    Selectivity,
    /// Logit lens KL; not of heads.
    LensKl,
}

impl StepFigure {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::PromptMass,
        Self::BosMass,
        Self::DecodeMass,
        Self::PromptEntropy,
        Self::Selectivity,
        Self::LensKl,
    ];

    /// The figures that exist per head.
    pub fn of_heads() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|figure| *figure != Self::LensKl)
    }

    /// Its displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::BosMass => "BoS mass",
            Self::PromptMass => "Prompt mass",
            Self::DecodeMass => "Decode mass",
            Self::PromptEntropy => "Prompt entropy",
            Self::Selectivity => "Selectivity",
            Self::LensKl => "Logit lens KL",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::BosMass | Self::PromptMass | Self::DecodeMass => "share of attention",
            Self::PromptEntropy => "share of ln(p−2)",
            Self::Selectivity => "prompt mass · (1 − entropy)",
            Self::LensKl => "nats",
        }
    }

    /// The figure's values in attention figures; `None` for the logit lens.
    pub fn of(self, means: &AttentionMeans) -> Option<&Array2<f64>> {
        Some(match self {
            Self::BosMass => &means.bos_mass,
            Self::PromptMass => &means.prompt_mass,
            Self::DecodeMass => &means.decode_mass,
            Self::PromptEntropy => &means.prompt_entropy,
            Self::Selectivity => &means.selectivity,
            Self::LensKl => return None,
        })
    }
}

/// A figure of each query head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadFigure {
    /// What hiding the prompt from its KV head costs.
    Knockout,
    /// Where its attention goes.
    #[serde(untagged)]
    Attention(StepFigure),
}

impl Default for HeadFigure {
    fn default() -> Self {
        Self::Attention(StepFigure::default())
    }
}

impl HeadFigure {
    /// The figures that a prompt has.
    pub fn of_prompt(prompt: &PromptSummary) -> Vec<Self> {
        let knockout = Some(Self::Knockout).filter(|_| knockout_by_head(prompt).is_some());
        StepFigure::of_heads().map(Self::Attention).chain(knockout).collect()
    }

    /// Its displayed name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Attention(figure) => figure.name(),
            Self::Knockout => "Knockout KL",
        }
    }

    /// Its unit.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Attention(figure) => figure.unit(),
            Self::Knockout => "nats, prompt hidden from the KV head alone",
        }
    }

    /// Its values, `[L, H]`; `None` where a prompt has none.
    pub fn values(self, prompt: &PromptSummary) -> Option<Array2<f64>> {
        match self {
            Self::Attention(figure) => figure.of(&prompt.heads).cloned(),
            Self::Knockout => knockout_by_head(prompt),
        }
    }
}

/// KL with the prompt hidden from the KV head that each query head reads, `[L, H]`; `None` where that was not measured.
fn knockout_by_head(prompt: &PromptSummary) -> Option<Array2<f64>> {
    let (layers, heads) = prompt.heads.prompt_mass.dim();
    let kv_heads = prompt.knockout.first()?.by_kv_head.len();
    if kv_heads == 0 || heads % kv_heads != 0 {
        return None;
    }
    let mut values = Array2::from_elem((layers, heads), f64::NAN);
    for row in prompt.knockout.iter().filter(|row| row.layer < layers && row.by_kv_head.len() == kv_heads) {
        for head in 0..heads {
            values[[row.layer, head]] = row.by_kv_head[head / (heads / kv_heads)].kl;
        }
    }
    Some(values)
}
