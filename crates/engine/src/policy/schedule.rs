//! A schedule: after which layers the prompt gets shorter, and how much of it stays.

use crate::{Depth, ModelConfig};
use std::fmt;
use std::ops::Range;

/// A published schedule: so many layers run with the whole prompt or what the pruning before left of it, then so many tokens
/// go on.
struct Preset {
    name: &'static str,
    /// What tells the model: layers, width of the residual stream, query heads, KV heads, width of the feed-forward network
    /// and vocabulary.
    shape: [usize; 6],
    /// Layers that a pruning comes after, counted from 1, and the tokens that go on.
    prunings: [(usize, usize); 3],
}

/// Those of the SlimInfer paper (Long et al. 2025, arXiv 2508.06447).
const PRESETS: [Preset; 2] = [
    Preset {
        name: "llama-3.1-8b",
        shape: [32, 4_096, 32, 8, 14_336, 128_256],
        prunings: [(10, 8_192), (20, 4_096), (30, 2_048)],
    },
    Preset {
        name: "qwen2.5-7b",
        shape: [28, 3_584, 28, 4, 18_944, 152_064],
        prunings: [(9, 12_288), (18, 6_144), (26, 4_096)],
    },
];

/// Pruning layers, ascending, each with what of the prompt goes on from its attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    prunings: Vec<Pruning>,
    origin: Origin,
}

/// Where a schedule comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// The policy's own, where none was asked for.
    Default,
    /// The published one for Llama-3.1-8B, scaled to a model's depth and a prompt's length.
    Scaled,
    /// A published one, by its name.
    Published(&'static str),
    /// Layers and budgets that were given.
    Given,
}

/// After the attention of a layer, so many prompt tokens go on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pruning {
    /// The layer.
    pub layer: usize,
    /// What goes on.
    pub keep: Keep,
}

/// How much of a prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Keep {
    /// So many tokens.
    Tokens(usize),
    /// So many in a hundred of its tokens.
    Percent(f64),
    /// One token of so many, and never more than that.
    Scaled {
        /// One token of so many.
        one_of: usize,
        /// Tokens.
        at_most: usize,
    },
}

impl Keep {
    /// Tokens that are kept of `prompt_len`.
    pub fn tokens(self, prompt_len: usize) -> usize {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Percent(percent) => (prompt_len as f64 * percent / 100.0).ceil() as usize,
            Self::Scaled { one_of, at_most } => prompt_len.div_ceil(one_of).min(at_most),
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.parse().ok()?;
            return (percent > 0.0 && percent <= 100.0).then_some(Self::Percent(percent));
        }
        parse_tokens(text).map(Self::Tokens)
    }
}

/// A number of tokens such as `1000` or `8k`; `None` where it is none, or 0.
pub(super) fn parse_tokens(text: &str) -> Option<usize> {
    let (number, unit) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1_024),
        None => (text, 1),
    };
    number.parse::<usize>().ok()?.checked_mul(unit).filter(|&tokens| tokens > 0)
}

/// What [`parse_tokens`] reads.
pub(super) fn shown_tokens(tokens: usize) -> String {
    if tokens.is_multiple_of(1_024) { format!("{}k", tokens / 1_024) } else { tokens.to_string() }
}

impl fmt::Display for Keep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tokens(tokens) => f.write_str(&shown_tokens(*tokens)),
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Scaled { one_of, at_most } => write!(f, "1/{one_of}, at most {at_most}"),
        }
    }
}

impl Schedule {
    /// The published schedule for Llama-3.1-8B (after 10, 20 and 30 of 32 layers 8K, 4K and 2K tokens go on), with the layers
    /// scaled to the depth of a model, and of prompts below 32K tokens a quarter, an eighth and a sixteenth.
    pub fn scaled_to(layers: usize) -> Self {
        let budgets = PRESETS[0].prunings.into_iter().enumerate();
        let keep = |(index, (_, at_most))| Keep::Scaled { one_of: 4usize << index, at_most };
        Self { origin: Origin::Scaled, ..Self::at_scaled_layers(layers, budgets.map(keep)) }
    }

    /// After each of the layers of [`Self::scaled_to`] half of the tokens that have come so far go on.
    pub fn halving(layers: usize) -> Self {
        Self::at_scaled_layers(layers, [50.0, 25.0, 12.5].into_iter().map(Keep::Percent))
    }

    fn at_scaled_layers(layers: usize, keep: impl Iterator<Item = Keep>) -> Self {
        let [depth, ..] = PRESETS[0].shape;
        let after = PRESETS[0].prunings.iter().map(|(after, _)| (after * layers / depth).max(1));
        let mut prunings: Vec<Pruning> = vec![];
        for (after, keep) in after.zip(keep) {
            if prunings.last().is_none_or(|before| before.layer < after - 1) {
                prunings.push(Pruning { layer: after - 1, keep });
            }
        }
        Self { prunings, origin: Origin::Default }
    }

    /// [`Self::scaled_to`] where no schedule was asked for.
    pub(super) fn standard(layers: usize) -> Self {
        Self { origin: Origin::Default, ..Self::scaled_to(layers) }
    }

    /// Where it stands because none was asked for: the published schedule for a model of this shape, or else the scaled one.
    pub(super) fn for_model(&self, config: &ModelConfig) -> Option<Self> {
        let ModelConfig { layers, hidden, heads, kv_heads, feed_forward, vocab, .. } = *config;
        let shape = [layers, hidden, heads, kv_heads, feed_forward, vocab];
        let published = PRESETS.iter().find(|preset| preset.shape == shape);
        (self.origin == Origin::Default)
            .then(|| published.map_or_else(|| Self::scaled_to(layers), Self::published))
    }

    fn published(preset: &Preset) -> Self {
        let prunings = preset.prunings.iter();
        let prunings =
            prunings.map(|&(after, tokens)| Pruning { layer: after - 1, keep: Keep::Tokens(tokens) });
        Self { prunings: prunings.collect(), origin: Origin::Published(preset.name) }
    }

    /// The schedule of a word, `scaled` or the name of a published one, for a model of so many layers; `None` where it is
    /// neither.
    ///
    /// # Errors
    /// The depth that the published schedule is for, where the model has another.
    pub(super) fn named(word: &str, layers: usize) -> Option<Result<Self, usize>> {
        if word == "scaled" {
            return Some(Ok(Self::scaled_to(layers)));
        }
        let preset = PRESETS.iter().find(|preset| preset.name == word)?;
        let [depth, ..] = preset.shape;
        Some(if depth == layers { Ok(Self::published(preset)) } else { Err(depth) })
    }

    /// The schedule of items such as `10=8k`, `10=8192` or `10=25%` for a model of so many layers. `None` where they are
    /// none, or name layers that the model does not have or not in ascending order.
    pub(super) fn parse(items: &[&str], layers: usize) -> Option<Self> {
        let prunings = items.iter().map(|item| {
            let (layer, keep) = item.split_once('=')?;
            let layer = layer.parse().ok().filter(|&layer| layer < layers)?;
            Some(Pruning { layer, keep: Keep::parse(keep)? })
        });
        let prunings: Vec<Pruning> = prunings.collect::<Option<_>>()?;
        let ascending = prunings.windows(2).all(|pair| pair[0].layer < pair[1].layer);
        (ascending && !prunings.is_empty()).then_some(Self { prunings, origin: Origin::Given })
    }

    /// Pruning layers, ascending.
    pub fn prunings(&self) -> &[Pruning] {
        &self.prunings
    }

    /// How many of them a row has passed that has come to a depth.
    pub fn passed(&self, depth: Depth) -> usize {
        self.prunings.iter().filter(|pruning| Depth::after_attention(pruning.layer) <= depth).count()
    }

    /// Where rows are dropped: after the attention of each pruning layer.
    pub fn pruning_points(&self) -> Vec<Depth> {
        self.prunings.iter().map(|pruning| Depth::after_attention(pruning.layer)).collect()
    }

    /// The layers of a stage (by number, from 0), which lie between two prunings, of a model of so many layers.
    pub fn layers_of_stage(&self, stage: usize, layers: usize) -> Range<usize> {
        let after = |pruning: usize| self.prunings[pruning].layer + 1;
        let start = stage.checked_sub(1).map_or(0, after);
        start..if stage < self.prunings.len() { after(stage) } else { layers }
    }

    /// What it is to be called in a sentence; `None` where the policy's name says it.
    pub(super) fn described(&self) -> Option<String> {
        match self.origin {
            Origin::Default | Origin::Given => None,
            Origin::Scaled => Some("the paper's schedule for Llama-3.1-8B, scaled to this model".to_owned()),
            Origin::Published(name) => Some(format!("the paper's schedule for {name}")),
        }
    }
}

/// As a policy's name has it; nothing where none was asked for.
impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin {
            Origin::Default => Ok(()),
            Origin::Scaled => f.write_str("scaled"),
            Origin::Published(name) => f.write_str(name),
            Origin::Given => {
                for (index, pruning) in self.prunings.iter().enumerate() {
                    write!(f, "{}{}={}", if index == 0 { "" } else { "+" }, pruning.layer, pruning.keep)?;
                }
                Ok(())
            }
        }
    }
}
