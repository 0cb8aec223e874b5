//! A schedule: after which layers the prompt gets shorter, and how much of it stays.

use crate::Depth;
use std::fmt;
use std::ops::Range;

/// The largest budgets of the default schedule, tokens: those of the SlimInfer paper for Llama-3.1-8B.
const DEFAULT_AT_MOST: [usize; 3] = [8_192, 4_096, 2_048];
/// Its layers, of a model of 32.
const DEFAULT_LAYERS: [usize; 3] = [10, 20, 30];

/// Pruning layers, ascending, each with what of the prompt goes on from its attention.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    prunings: Vec<Pruning>,
    is_default: bool,
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

    fn parse(text: &str) -> Option<Self> {
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
    /// The default for a model of so many layers: the SlimInfer paper's for Llama-3.1-8B, layers 10, 20 and 30 of 32
    /// keeping 8K, 4K and 2K tokens, with the layers scaled to the depth, and of prompts below 32K tokens a quarter, an
    /// eighth and a sixteenth.
    pub fn scaled_to(layers: usize) -> Self {
        let mut prunings: Vec<Pruning> = vec![];
        for (index, (layer, at_most)) in DEFAULT_LAYERS.into_iter().zip(DEFAULT_AT_MOST).enumerate() {
            let layer = layer * layers / 32;
            if prunings.last().is_none_or(|before| before.layer < layer) {
                prunings.push(Pruning { layer, keep: Keep::Scaled { one_of: 4 << index, at_most } });
            }
        }
        Self { prunings, is_default: true }
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
        (ascending && !prunings.is_empty()).then_some(Self { prunings, is_default: false })
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

    /// Whether it is [`Self::scaled_to`] rather than given.
    pub fn is_default(&self) -> bool {
        self.is_default
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pruning) in self.prunings.iter().enumerate() {
            write!(f, "{}{}={}", if index == 0 { "" } else { "+" }, pruning.layer, pruning.keep)?;
        }
        Ok(())
    }
}
