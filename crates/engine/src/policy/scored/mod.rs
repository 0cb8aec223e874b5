//! Retention by scores: each KV head keeps the prompt tokens that score best, and evicts the others once before decode. The methods
//! that are measured against sets of KV heads.

mod expected;
mod h2o;
mod kvzip;
mod observed;
mod snapkv;
mod tova;

use super::registry::Argument;
use super::schedule::Keep;
use super::top::largest;
use super::{Eviction, LayerKv, PolicyKind, PolicyRules, Retention, StoredHead};
use crate::Result;
use std::fmt;
use std::sync::Arc;

pub(super) const KINDS: [PolicyKind; 6] =
    [snapkv::KIND, snapkv::PYRAMID, h2o::KIND, tova::KIND, expected::KIND, kvzip::KIND];

/// How tokens score.
trait Method: fmt::Display + Send + Sync {
    /// The policy's name.
    fn kind(&self) -> &'static PolicyKind;

    /// Of how many of the last prefill rows it looks at the queries.
    fn observed_rows(&self) -> usize;

    /// Scores of what a KV head stores, of which it will keep `count`; an infinite one is kept.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn scores(&self, stored: &StoredHead<'_>, count: usize) -> Result<Vec<f32>>;

    /// How many tokens a layer keeps; `mean` for most methods, which is what layers keep in the mean.
    fn count(&self, _layer: LayerKv, mean: usize) -> usize {
        mean
    }

    /// As [`Retention::shares_out`].
    fn shares_out(&self) -> bool {
        false
    }

    /// As [`Retention::reads_twice`].
    fn reads_twice(&self) -> bool {
        false
    }

    /// What has to be said wherever its output is shown.
    fn caveat(&self) -> Option<&'static str> {
        None
    }
}

/// A method and how much of a layer's prompt tokens it keeps.
struct Scored<M> {
    method: M,
    keep: Keep,
}

impl<M: Method + 'static> Scored<M> {
    fn rules(method: M, keep: Keep) -> Arc<dyn PolicyRules> {
        Arc::new(Self { method, keep })
    }

    fn count(&self, layer: LayerKv) -> usize {
        let mean = self.keep.tokens(layer.stored).min(layer.stored);
        self.method.count(layer, mean).min(layer.stored)
    }
}

/// What KEEP says, and the values of the options that may follow it, in the order of `options`; `None` where one is not given.
fn parse<const N: usize>(argument: &Argument<'_>, options: [&str; N]) -> Result<(Keep, [Option<usize>; N])> {
    parse_items(argument, argument.items(), options)
}

/// The same of some of an argument's items.
fn parse_items<'a, const N: usize>(
    argument: &Argument<'_>,
    items: impl Iterator<Item = &'a str>,
    options: [&str; N],
) -> Result<(Keep, [Option<usize>; N])> {
    let (mut keep, mut values) = (None, [None; N]);
    for item in items {
        let Some((name, number)) = item.split_once('=') else {
            let given = keep.replace(Keep::parse(item).ok_or_else(|| argument.malformed())?);
            given.map_or(Ok(()), |_| Err(argument.malformed()))?;
            continue;
        };
        let value = options.iter().position(|option| *option == name).map(|index| &mut values[index]);
        match (value, number.parse()) {
            (Some(value @ None), Ok(number)) if number > 0 => *value = Some(number),
            _ => return Err(argument.malformed()),
        }
    }
    keep.map(|keep| (keep, values)).ok_or_else(|| argument.malformed())
}

impl<M: Method + 'static> Retention for Scored<M> {
    fn eviction(&self) -> Eviction {
        Eviction::BeforeDecode
    }

    fn kept(&self, layer: LayerKv) -> usize {
        self.count(layer)
    }

    fn keep_mask(&self, stored: &StoredHead<'_>) -> Result<Vec<bool>> {
        let tokens = stored.positions.len();
        let count =
            self.count(LayerKv { layer: stored.layer, prefill_len: stored.prefill_len, stored: tokens });
        if count == tokens {
            return Ok(vec![true; tokens]);
        }
        let mut keep = vec![false; tokens];
        for slot in largest(&self.method.scores(stored, count)?, count) {
            keep[slot] = true;
        }
        Ok(keep)
    }

    fn shares_out(&self) -> bool {
        self.method.shares_out()
    }

    fn scores(&self, stored: &StoredHead<'_>) -> Result<Vec<f32>> {
        self.method.scores(stored, self.keep.tokens(stored.positions.len()))
    }

    fn observed_rows(&self) -> usize {
        self.method.observed_rows()
    }

    fn reads_twice(&self) -> bool {
        self.method.reads_twice()
    }
}

impl<M: Method + 'static> PolicyRules for Scored<M> {
    fn retention(&self) -> &dyn Retention {
        self
    }

    fn plan(&self, prefill_len: usize, layers: usize, bytes: &dyn Fn(usize) -> String) -> Option<String> {
        let kept = |layer| self.count(LayerKv { layer, prefill_len, stored: prefill_len }) + 1;
        let all: usize = (0..layers).map(kept).sum();
        Some(format!(
            "of {} prompt tokens a KV head keeps {} in the mean, {} in all",
            prefill_len + 1,
            all / layers.max(1),
            bytes(all)
        ))
    }

    fn caveat(&self) -> Option<&'static str> {
        self.method.caveat()
    }
}

impl<M: Method> fmt::Display for Scored<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}{}", self.method.kind().name, self.keep, self.method)
    }
}
