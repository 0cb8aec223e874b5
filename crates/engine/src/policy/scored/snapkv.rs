//! `snapkv:KEEP` (SnapKV, Li et al. 2024, arXiv 2404.14469) and `pyramidkv:KEEP` (PyramidKV, Cai et al. 2024, arXiv 2406.02069).

use super::{Method, Scored, parse};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{LayerKv, PolicyKind, PolicyRules, StoredHead};
use std::fmt;
use std::sync::Arc;

/// Rows observed, as the authors' code has them where nothing else is said.
const WINDOW: usize = 32;

/// Scores are means over so many neighbours, beyond the ends of which there are zeros.
const KERNEL: usize = 5;

/// The lowest layers of the pyramid keep, beside the window, this many times what the highest keep.
const BETA: f64 = 20.0;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "snapkv",
    syntax: "snapkv:KEEP[+window=N]",
    description: "Each KV head keeps the last N prompt tokens (32) and those that these read most, KEEP in all (25% or 1k)",
    standard_name: Some("snapkv:50%"),
    parse: parse_snapkv,
};

pub(super) const PYRAMID: PolicyKind = PolicyKind {
    name: "pyramidkv",
    syntax: "pyramidkv:KEEP[+window=N]",
    description: "As snapkv, with KEEP the mean over layers: the lower a layer, the more it keeps",
    standard_name: Some("pyramidkv:50%"),
    parse: parse_pyramid,
};

struct SnapKv {
    window: usize,
    /// The model's layers, where lower ones keep more.
    pyramid: Option<usize>,
}

fn parse_snapkv(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, [window]) = parse(argument, ["window"])?;
    Ok(Scored::rules(SnapKv { window: window.unwrap_or(WINDOW), pyramid: None }, keep))
}

fn parse_pyramid(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, [window]) = parse(argument, ["window"])?;
    Ok(Scored::rules(SnapKv { window: window.unwrap_or(WINDOW), pyramid: Some(argument.layers) }, keep))
}

impl Method for SnapKv {
    fn kind(&self) -> &'static PolicyKind {
        if self.pyramid.is_some() { &PYRAMID } else { &KIND }
    }

    fn observed_rows(&self) -> usize {
        self.window
    }

    fn scores(&self, stored: &StoredHead<'_>, count: usize) -> Result<Vec<f32>> {
        let tokens = stored.positions.len();
        let before = tokens - self.window.min(tokens);
        let mut scores = pooled(&stored.received(stored.kv_head)?[..before]);
        scores.resize(tokens, f32::NEG_INFINITY);
        scores[tokens - self.window.min(count)..].fill(f32::INFINITY);
        Ok(scores)
    }

    /// Beside the window the layers' counts fall linearly from the lowest to the highest; the mean stays, as far as no layer can
    /// keep more than all.
    fn count(&self, layer: LayerKv, mean: usize) -> usize {
        let Some(layers) = self.pyramid.filter(|&layers| layers > 1 && mean > self.window) else {
            return mean;
        };
        let of_mean = (mean - self.window) as f64;
        let most = (2.0 * of_mean - of_mean / BETA).min((layer.stored - self.window) as f64);
        let least = 2.0 * of_mean - most;
        let fallen = (most - least) * layer.layer as f64 / (layers - 1) as f64;
        self.window + (most - fallen).round() as usize
    }
}

/// Means over [`KERNEL`] neighbours.
fn pooled(scores: &[f32]) -> Vec<f32> {
    let reach = KERNEL / 2;
    let neighbours = |at: usize| &scores[at.saturating_sub(reach)..scores.len().min(at + reach + 1)];
    (0..scores.len()).map(|at| neighbours(at).iter().sum::<f32>() / KERNEL as f32).collect()
}

impl fmt::Display for SnapKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.window == WINDOW { Ok(()) } else { write!(f, "+window={}", self.window) }
    }
}
