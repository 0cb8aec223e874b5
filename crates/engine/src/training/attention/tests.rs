//! Attention of a unit against one in f64, and its gradients against differences of that.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::training::KeyType;

/// Numbers between −1 and 1 that look random.
fn numbers_of(seed: usize, rows: usize, columns: usize) -> Array2<f32> {
    Array2::from_shape_fn((rows, columns), |(i, j)| {
        let x = ((seed * 7_919 + i * 104_729 + j * 1_299_709 + 12_345) as f64 * 0.618_033_988_75).fract();
        (2.0 * x - 1.0) as f32
    })
}

struct Case {
    rows: usize,
    prefix: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    self_only: bool,
}

/// Σ weights · z of a unit with group 2, in f64; rows are at positions prefix, prefix + 1, …
fn loss(
    case: &Case,
    [q, k, v]: [&Array2<f64>; 3],
    [prefix_keys, prefix_values]: [&Array2<f32>; 2],
    weights: &Array2<f32>,
) -> f64 {
    let dim = k.ncols();
    let mut sum = 0.0;
    for head in 0..2 {
        for row in 0..case.rows {
            let position = case.prefix + row;
            let mut scores = vec![];
            for key in 0..=position {
                let dot: f64 = (0..dim)
                    .map(|i| {
                        let k = if key < case.prefix {
                            f64::from(prefix_keys[[key, i]])
                        } else {
                            k[[key - case.prefix, i]]
                        };
                        q[[row, head * dim + i]] * k
                    })
                    .sum();
                let score = dot * 0.7;
                let score =
                    case.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
                let is_hidden = case.window.is_some_and(|window| position - key >= window)
                    || (case.self_only && key != position && key != 0);
                scores.push(if is_hidden { f64::NEG_INFINITY } else { score });
            }
            let all: f64 = scores.iter().map(|score| score.exp()).sum();
            for (key, score) in scores.iter().enumerate() {
                for i in 0..dim {
                    let v = if key < case.prefix {
                        f64::from(prefix_values[[key, i]])
                    } else {
                        v[[key - case.prefix, i]]
                    };
                    sum += f64::from(weights[[row, head * dim + i]]) * v * score.exp() / all;
                }
            }
        }
    }
    sum
}

#[test]
fn outputs_and_gradients_are_those_of_f64_at_any_size() {
    let dim = 5;
    let cases = [(1, 0), (2, 3), (63, 0), (64, 7), (65, 0), (150, 0), (97, 33)];
    let variants =
        [(None, None, false), (Some(20), None, false), (None, Some(0.8), false), (None, None, true)];
    for (rows, prefix) in cases {
        for (window, soft_cap, self_only) in variants {
            let case = Case { rows, prefix, window, soft_cap, self_only };
            let name = format!("{rows} rows, prefix {prefix}, {window:?}, {soft_cap:?}, {self_only}");
            let [q, k, v] =
                [numbers_of(1, rows, 2 * dim), numbers_of(2, rows, dim), numbers_of(3, rows, dim)];
            let [prefix_keys, prefix_values] = [numbers_of(4, prefix, dim), numbers_of(5, prefix, dim)];
            let weights = numbers_of(6, rows, 2 * dim);
            let shape = AttentionShape {
                query_heads: 2,
                kv_heads: 1,
                head_dim: dim,
                scale: 0.7,
                window,
                soft_cap,
                sinks: 0,
            };
            let numbers = [&prefix_keys, &prefix_values].map(|part| part.iter().copied().collect());
            let constants = HeadKeys::new((0..prefix).collect(), KeyType::F32, numbers);
            let positions: Vec<usize> = (prefix..prefix + rows).collect();
            let anchors = Anchors::bos();
            let unit = Unit {
                shape,
                prefix: Some(&constants).filter(|_| prefix > 0),
                kv_head: 0,
                rows: 0..rows,
                positions: &positions,
                self_only: self_only.then_some((0, &anchors)),
            };
            let (stacked, probabilities) = unit.forward([&q, &k, &v]);
            assert_eq!(probabilities.is_some(), rows <= TILE_ROWS && soft_cap.is_none(), "{name}");
            let mut z = Array2::zeros(q.raw_dim());
            unit.scatter(&stacked, &mut z.view_mut());
            let wide = |x: &Array2<f32>| x.mapv(f64::from);
            let of = |q: &Array2<f64>, k: &Array2<f64>, v: &Array2<f64>| {
                loss(&case, [q, k, v], [&prefix_keys, &prefix_values], &weights)
            };
            let (wide_q, wide_k, wide_v) = (wide(&q), wide(&k), wide(&v));
            let expected = of(&wide_q, &wide_k, &wide_v);
            let actual: f64 = z.iter().zip(&weights).map(|(z, w)| f64::from(z * w)).sum();
            assert!((actual - expected).abs() < 1e-4 * (rows as f64).sqrt(), "{name}: {actual} {expected}");

            let saved = SavedAttention { q, k, v, z, probabilities: vec![] };
            let [dq, dk, dv] = unit.backward(&saved, probabilities.as_ref(), &weights);
            let mut by_row = Array2::zeros(saved.q.raw_dim());
            unit.scatter(&dq, &mut by_row.view_mut());
            for row in [0, rows / 2, rows - 1] {
                let moved = |which: usize, column: usize, by: f64| {
                    let mut all = [wide_q.clone(), wide_k.clone(), wide_v.clone()];
                    all[which][[row, column]] += by;
                    of(&all[0], &all[1], &all[2])
                };
                for (which, column, gradient) in [
                    (0, 1, by_row[[row, 1]]),
                    (0, 7, by_row[[row, 7]]),
                    (1, 2, dk[[row, 2]]),
                    (2, 4, dv[[row, 4]]),
                ] {
                    let expected = (moved(which, column, 1e-4) - moved(which, column, -1e-4)) / 2e-4;
                    let difference = (f64::from(gradient) - expected).abs();
                    assert!(difference < 2e-4, "{name}: {which} {row}: {gradient} {expected}");
                }
            }
        }
    }
}
