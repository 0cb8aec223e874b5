//! The figures that maps can show.

use layerscope_diagnostics::record::AttentionMeans;
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
