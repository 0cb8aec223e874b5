//! `expected:KEEP` (Expected Attention, Devoto et al. 2025, arXiv 2510.00636).

use super::{Method, Scored, parse};
use crate::Result;
use crate::policy::registry::Argument;
use crate::policy::{PolicyKind, PolicyRules, StoredHead};
use layerscope_kernels::elementwise::softmax;
use ndarray::{Array1, Array2, ArrayView2, ArrayView3, ArrayViewMut1, Axis};
use std::fmt;
use std::sync::Arc;

/// Queries to come are expected at so many positions after the prompt.
const FUTURE: usize = 512;

/// First tokens whose queries are left out, and whose keys are kept.
const SINKS: usize = 4;

pub(super) const KIND: PolicyKind = PolicyKind {
    name: "expected",
    syntax: "expected:KEEP",
    description: "Each KV head keeps KEEP prompt tokens (25% or 1k): the first 4, and those to which queries to come will attend most, \
                  weighted by the norm of their values, if such queries are distributed as the prompt's (Expected Attention)",
    standard_name: Some("expected:50%"),
    parse: parse_expected,
};

struct Expected;

fn parse_expected(argument: &Argument<'_>) -> Result<Arc<dyn PolicyRules>> {
    let (keep, []) = parse(argument, [])?;
    Ok(Scored::rules(Expected, keep))
}

impl Method for Expected {
    fn kind(&self) -> &'static PolicyKind {
        &KIND
    }

    fn observed_rows(&self) -> usize {
        usize::MAX
    }

    /// Softmax over keys of k·μ·s + kᵀΣk·s²/2, the logarithm of E[exp(s·q·k)] under a normal distribution of q with mean μ and
    /// covariance Σ (s scales scores), mean over the query heads of a KV head, times ‖v‖. A soft cap is left out.
    fn scores(&self, stored: &StoredHead<'_>, _: usize) -> Result<Vec<f32>> {
        let (dim, tokens) = (stored.shape.head_dim, stored.positions.len());
        let sinks = stored.positions.partition_point(|&position| position < SINKS);
        let mut scores = vec![f32::INFINITY; sinks];
        let (keys, values) = (stored.keys(), stored.values()?);
        let Ok(keys) = ArrayView2::from_shape((tokens - sinks, dim), &keys[sinks * dim..]) else {
            return Ok(vec![0.0; tokens]);
        };
        let scale = stored.shape.scale;
        let mut of_keys: Array1<f32> = Array1::zeros(keys.nrows());
        for queries in unrotated(stored)? {
            let Some(mean) = queries.mean_axis(Axis(0)) else { continue };
            let centred = &queries - &mean;
            let covariance = centred.t().dot(&centred) / queries.nrows() as f32;
            let (mean, covariance) = rotated_on(stored, mean, covariance)?;
            let quadratic = (keys.dot(&covariance) * keys).sum_axis(Axis(1));
            let mut expected = (keys.dot(&mean) * scale + quadratic * (scale * scale / 2.0)).to_vec();
            softmax(&mut expected);
            of_keys += &Array1::from_vec(expected);
        }
        let norms = values[sinks * dim..]
            .chunks_exact(dim)
            .map(|value| value.iter().map(|v| v * v).sum::<f32>().sqrt());
        scores.extend(of_keys.iter().zip(norms).map(|(attention, norm)| attention * norm));
        Ok(scores)
    }
}

/// The queries of the prompt behind the sinks, before their rotation: of each query head `[rows, head_dim]`.
fn unrotated(stored: &StoredHead<'_>) -> Result<Vec<Array2<f32>>> {
    let (dim, group) = (stored.shape.head_dim, stored.shape.query_heads / stored.shape.kv_heads);
    let queries = stored.queries()?;
    let rows = queries.len() / (group * dim);
    let first = stored.prefill_len - rows;
    let skipped = SINKS.saturating_sub(first).min(rows);
    let Ok(queries) = ArrayView3::from_shape((rows, group, dim), &queries) else { return Ok(vec![]) };
    let positions: Vec<usize> = (first + skipped..stored.prefill_len).collect();
    let rotation = stored.rotation(&positions)?;
    let of_head = |head: usize| {
        let mut own = queries.index_axis(Axis(1), head).slice_axis(Axis(0), (skipped..).into()).to_owned();
        if let Some([cos, sin]) = &rotation {
            let half = cos.len() / positions.len().max(1);
            for (row, mut query) in own.outer_iter_mut().enumerate() {
                for pair in 0..half {
                    let [cos, sin] = [cos, sin].map(|numbers| numbers[row * half + pair]);
                    // A rotation that also lengthens is undone by its inverse, not by its transpose.
                    let length = cos * cos + sin * sin;
                    turn(&mut query, pair, half, cos / length, -sin / length);
                }
            }
        }
        own
    };
    Ok((0..group).map(of_head).collect())
}

/// Mean and covariance under the mean rotation of the positions to come.
fn rotated_on(
    stored: &StoredHead<'_>,
    mut mean: Array1<f32>,
    mut covariance: Array2<f32>,
) -> Result<(Array1<f32>, Array2<f32>)> {
    let positions: Vec<usize> = (stored.prefill_len..stored.prefill_len + FUTURE).collect();
    let Some([cos, sin]) = stored.rotation(&positions)? else { return Ok((mean, covariance)) };
    let half = cos.len() / FUTURE;
    for pair in 0..half {
        let [cos, sin] = [&cos, &sin].map(|numbers| {
            let of_pair = numbers.iter().skip(pair).step_by(half);
            of_pair.sum::<f32>() / FUTURE as f32
        });
        turn(&mut mean.view_mut(), pair, half, cos, sin);
        covariance.outer_iter_mut().for_each(|mut row| turn(&mut row, pair, half, cos, sin));
        covariance.axis_iter_mut(Axis(1)).for_each(|mut column| turn(&mut column, pair, half, cos, sin));
    }
    Ok((mean, covariance))
}

/// Turns the elements `pair` and `pair + half` of a vector.
fn turn(x: &mut ArrayViewMut1<'_, f32>, pair: usize, half: usize, cos: f32, sin: f32) {
    let (a, b) = (x[pair], x[pair + half]);
    (x[pair], x[pair + half]) = (a * cos - b * sin, a * sin + b * cos);
}

impl fmt::Display for Expected {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}
