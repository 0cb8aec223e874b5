#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::fixtures::{Held, random};
use crate::cuda::{Device, Pool};
use crate::distribution::Distribution;
use crate::reference;

/// Whole and broken packs, one part and several, the last as short as can be.
const VOCABULARIES: [usize; 9] = [1, 7, 33, 257, 4099, 8192, 8193, 8196, 50_257];

fn summaries_of(logits: Numbers<'_>, vocab: usize) -> Buffer {
    let output = logits.device().reserve(logits.len() / vocab * size_of::<DistributionSummary>()).unwrap();
    summarize(logits, vocab, &output).unwrap();
    output
}

fn summary(device: &Device, logits: &[f32]) -> DistributionSummary {
    let held = Held::new(device, Element::F32, 0, logits);
    summaries_of(held.numbers(), logits.len()).to_vec().unwrap()[0]
}

/// Each row of `logits` compared with the reference row `of` it, `tokens` asked for.
fn comparisons(
    [reference, logits]: [Numbers<'_>; 2],
    vocab: usize,
    of: &[u32],
    tokens: &[u32],
) -> Vec<ComparisonOnDevice> {
    let device = logits.device();
    let summaries = summaries_of(reference, vocab);
    let (of, tokens) = (device.upload(of).unwrap(), device.upload(tokens).unwrap());
    let output = device.reserve(logits.len() / vocab * size_of::<ComparisonOnDevice>()).unwrap();
    compare(reference, &summaries, logits, vocab, &of, &tokens, &output).unwrap();
    output.to_vec().unwrap()
}

fn compared(device: &Device, reference: &[f32], logits: &[f32]) -> ComparisonOnDevice {
    let [x, y] = [reference, logits].map(|row| Held::new(device, Element::F32, 0, row));
    comparisons([x.numbers(), y.numbers()], logits.len(), &[0], &[0])[0]
}

/// Logits as a model has them: most far below the largest.
fn row(seed: u64, vocab: usize) -> Vec<f32> {
    random(seed, vocab, 1.0).iter().map(|x| 12.0 * x * x * x + 3.0 * x).collect()
}

#[test]
fn summaries_equal_the_plain_ones() {
    let device = Device::for_tests();
    for vocab in VOCABULARIES {
        let rows = if vocab > 10_000 { 1 } else { 3 };
        let logits: Vec<f32> = (0..rows).flat_map(|seed| row(seed, vocab)).collect();
        for first in [0, 1] {
            let held = Held::new(&device, Element::F32, first, &logits);
            let summaries = summaries_of(held.numbers(), vocab).to_vec::<DistributionSummary>().unwrap();
            assert_eq!(summaries.len(), rows as usize);
            for (logits, summary) in logits.chunks_exact(vocab).zip(summaries) {
                let log_p = reference::log_softmax(logits);
                let entropy: f64 = log_p.iter().map(|p| p.exp() * p).sum();
                assert!((summary.negative_entropy - entropy).abs() < 1e-6, "{vocab}: {summary:?}, {entropy}");
                let normaliser = f64::from(logits[0]) - log_p[0];
                assert!((summary.log_normaliser - normaliser).abs() < 2e-7, "{vocab}");
                assert_eq!(summary.argmax as usize, Distribution::new(logits).argmax());
                assert_eq!(summary.finite, 1);
            }
        }
    }
}

#[test]
fn comparisons_equal_the_plain_ones() {
    let device = Device::for_tests();
    for vocab in VOCABULARIES {
        let [x, y] = [10, 20].map(|seed| [row(seed, vocab), row(seed + 1, vocab)].concat());
        let (of, tokens) = ([1, 0], [0, vocab as u32 - 1]);
        for first in [0, 1] {
            let [reference, logits] = [&x, &y].map(|rows| Held::new(&device, Element::F32, first, rows));
            let actual = comparisons([reference.numbers(), logits.numbers()], vocab, &of, &tokens);
            for (row, comparison) in actual.into_iter().enumerate() {
                let p = &x[of[row] as usize * vocab..][..vocab];
                let q = &y[row * vocab..][..vocab];
                let expected = reference::kl_divergence(p, q);
                assert!(
                    (comparison.kl - expected).abs() < 1e-6 * (1.0 + expected),
                    "{vocab}: {comparison:?}, {expected}"
                );
                let logit = q[tokens[row] as usize];
                let nll = -reference::log_softmax(q)[tokens[row] as usize];
                assert_eq!(comparison.token_logit, logit);
                assert!((comparison.log_normaliser - f64::from(logit) - nll).abs() < 2e-7);
                assert_eq!(comparison.argmax as usize, Distribution::new(q).argmax());
                assert_eq!(comparison.finite, 1);
            }
        }
    }
}

#[test]
fn nearly_equal_rows_differ_by_next_to_nothing() {
    let device = Device::for_tests();
    for (seed, vocab) in [(1, 300), (2, 32_000), (3, 262_144)] {
        // Flat, peaked, and as models have them.
        for sharpness in [0.01, 1.0, 4.0] {
            let p: Vec<f32> = row(seed, vocab).iter().map(|x| x * sharpness).collect();
            let same = compared(&device, &p, &p);
            assert!(same.kl < 1e-12, "{vocab} {sharpness}: {same:?}");
            for noise in [1e-3, 1e-2, 0.1] {
                // Shifted as a whole as well, which changes nothing.
                let q: Vec<f32> =
                    p.iter().zip(random(seed + 9, vocab, noise)).map(|(x, by)| x + by + 2.5).collect();
                let (kl, expected) = (compared(&device, &p, &q).kl, reference::kl_divergence(&p, &q));
                assert!((kl - expected).abs() < 1e-7, "{vocab} {sharpness} {noise}: {kl} {expected}");
            }
        }
    }
}

#[test]
fn very_unlikely_tokens_yield_no_nan() {
    let device = Device::for_tests();
    let mut p = row(30, 9000);
    // A whole part of nothing else, and tokens here and there.
    p[8192..].fill(-2e38);
    p[6] = -3e38;
    p[7] = -1e30;
    let q: Vec<f32> = p.iter().zip(random(31, 9000, 0.5)).map(|(x, by)| x + by).collect();
    assert!((compared(&device, &p, &q).kl - reference::kl_divergence(&p, &q)).abs() < 1e-6);
    let actual = summary(&device, &p);
    let entropy: f64 = reference::log_softmax(&p).iter().map(|p| p.exp() * p).sum();
    assert!((actual.negative_entropy - entropy).abs() < 1e-6 && actual.finite == 1);
    // Only one token can come.
    let mut certain = vec![-1e30; 8200];
    certain[8199] = 1.0;
    let actual = summary(&device, &certain);
    assert_eq!((actual.negative_entropy, actual.log_normaliser, actual.argmax), (0.0, 1.0, 8199));
    assert_eq!(compared(&device, &certain, &certain).kl, 0.0);
}

#[test]
fn what_is_not_finite_is_reported() {
    let device = Device::for_tests();
    for at in [0, 1000, 8191, 8192, 8999] {
        for undefined in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let clean = row(40, 9000);
            let mut damaged = clean.clone();
            damaged[at] = undefined;
            assert_eq!(summary(&device, &damaged).finite, 0);
            assert_eq!(compared(&device, &clean, &damaged).finite, 0);
            assert_eq!(most_likely(&device, &damaged, &[at as u32])[1], 0, "even where it is passed over");
        }
    }
}

#[test]
fn what_there_is_none_of_comes_out_as_nan() {
    let device = Device::for_tests();
    let held = Held::new(&device, Element::F32, 0, &row(50, 33));
    let actual = comparisons([held.numbers(), held.numbers()], 33, &[1], &[33])[0];
    assert!(actual.kl.is_nan() && actual.token_logit.is_nan() && actual.finite == 1);
}

fn most_likely(device: &Device, logits: &[f32], excluded: &[u32]) -> [u32; 2] {
    let held = Held::new(device, Element::F32, 0, logits);
    let buffer = device.reserve(size_of_val(excluded)).unwrap();
    buffer.write(0, excluded).unwrap();
    let output = device.reserve(8).unwrap();
    argmax(held.numbers(), (!excluded.is_empty()).then_some((&buffer, excluded.len())), &output).unwrap();
    let output = output.to_vec::<u32>().unwrap();
    [output[0], output[1]]
}

#[test]
fn the_most_likely_token_is_the_first_of_equals_that_is_not_passed_over() {
    let device = Device::for_tests();
    for vocab in [1usize, 7, 33, 4099, 8192, 8196, 20_001] {
        let mut logits: Vec<f32> = row(60, vocab).iter().map(|x| x.min(5.0)).collect();
        let last = vocab - 1;
        for at in [last, last / 2, last / 3] {
            logits[at] = 5.0;
        }
        let best: Vec<usize> = (0..vocab).filter(|&i| logits[i] == 5.0).collect();
        assert_eq!(most_likely(&device, &logits, &[]), [best[0] as u32, 1], "{vocab}");
        for passed in 1..best.len().min(4) {
            let excluded: Vec<u32> = best[..passed].iter().map(|&i| i as u32).collect();
            assert_eq!(most_likely(&device, &logits, &excluded), [best[passed] as u32, 1], "{vocab}");
        }
    }
    // Two parts that one lane joins.
    let mut many = vec![0.0; 33 * PART];
    (many[7], many[32 * PART]) = (1.0, 1.0);
    assert_eq!(most_likely(&device, &many, &[]), [7, 1]);
    assert_eq!(most_likely(&device, &[1.0, 2.0], &[1, 0]), [u32::MAX, 1]);
    let equal = [f32::MIN; 9];
    assert_eq!(most_likely(&device, &equal, &[0, 1, 99]), [2, 1]);
}

#[test]
fn a_graph_finds_the_token_of_what_there_is_then() {
    let device = Device::for_tests();
    let held = Held::new(&device, Element::F32, 0, &row(70, 9000));
    let output = device.reserve(8).unwrap();
    let memory = Pool::new(&device);
    let work = || argmax(held.numbers(), None, &output);
    device.with_memory(&memory, work).unwrap();
    let (graph, ()) = device.capture(&memory, work).unwrap();
    for token in [8999usize, 3] {
        held.buffer.write(4 * token, &[100.0 + token as f32]).unwrap();
        held.buffer.write(4 * (9002 - token), &[0f32]).unwrap();
        graph.launch().unwrap();
        assert_eq!(output.to_vec::<u32>().unwrap(), [token as u32, 1]);
    }
}
