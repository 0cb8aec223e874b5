//! Tiles of the attention pattern against what attention puts out, under every kind of policy: probabilities times values are what the
//! hook point behind attention shows. Cells against the single pairs.

use super::reference::TINY;
use super::sequence;
use super::windows::family;
use layerscope_engine::{
    Decoder, Device, HookPoint, Hooks, Interrupt, PatternHeads, PatternText, PatternTile, Policy, Session,
    Site, TextPattern, TileRequest, UNSEEN,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex};

const STEPS: usize = 5;

fn read(decoder: &Arc<Decoder>, policy: &Policy, tokens: &[u32], p: usize) -> TextPattern {
    let text = PatternText { prompt: &tokens[..p], continuation: &tokens[p..], policy };
    TextPattern::read(decoder, text, &[0], 1 << 30, &Interrupt::new(false), &mut |_| {}).unwrap()
}

fn tile(pattern: &TextPattern, request: TileRequest) -> PatternTile {
    pattern.tile(&request, &Interrupt::new(false)).unwrap()
}

/// Every pair of a layer and head.
fn pairs(pattern: &TextPattern, layer: usize, heads: PatternHeads) -> Vec<f32> {
    let all = 0..pattern.rows();
    tile(pattern, TileRequest { layer, heads, rows: all.clone(), keys: all, cell: [1, 1] }).max
}

/// Rows `[heads, head_dim]` by site, layer and position.
type Shown = BTreeMap<(Site, usize, usize), Vec<f32>>;

/// Values, and what attention makes of them, as hooks see them.
fn shown(decoder: &Arc<Decoder>, policy: &Policy, tokens: &[u32], p: usize) -> Shown {
    let shown = Mutex::new(Shown::new());
    let mut hooks = Hooks::none();
    for layer in 0..decoder.config().layers {
        for site in [Site::Value, Site::WeightedValues] {
            let shown = &shown;
            hooks.add(HookPoint { layer, site }, move |context, rows| {
                for (position, row) in context.positions.iter().zip(rows.outer_iter()) {
                    shown.lock().unwrap().insert((site, layer, *position), row.iter().copied().collect());
                }
                Ok(None)
            });
        }
    }
    let steps = tokens.len() - p;
    let mut session = Session::new(decoder, policy.clone(), p, steps).unwrap();
    session.prefill(&tokens[..p], &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    session.truncate(p - 1).unwrap();
    session.teacher_forced(&tokens[p - 1..p + steps - 1], &mut hooks, &mut vec![]).unwrap();
    drop(hooks);
    shown.into_inner().unwrap()
}

/// That probabilities of all layers and heads, times values, are what attention puts out.
fn check(decoder: &Arc<Decoder>, name: &str, p: usize) {
    let config = decoder.config();
    let policy = Policy::parse(name, config.layers).unwrap();
    let tokens = match config.vocab > 1_000 {
        true => sequence(p + STEPS, 4),
        false => (0..(p + STEPS) as u32).map(|i| 1 + i * 29 % 61).collect(),
    };
    let pattern = read(decoder, &policy, &tokens, p);
    assert_eq!(pattern.rows(), p + STEPS - 1);
    let shown = shown(decoder, &policy, &tokens, p);
    let (rows, dim, group) = (pattern.rows(), config.head_dim, config.heads / config.kv_heads);
    for layer in 0..config.layers {
        for head in 0..config.heads {
            let pairs = pairs(&pattern, layer, PatternHeads::One(head));
            for (row, of_row) in pairs.chunks_exact(rows).enumerate() {
                let what = format!("{name}, p {p}, layer {layer}, head {head}, row {row}");
                assert!(of_row[row + 1..].iter().all(|&x| x == UNSEEN), "{what}");
                let read: Vec<(usize, f32)> =
                    of_row[..=row].iter().copied().enumerate().filter(|(_, x)| !x.is_nan()).collect();
                let Some(z) = shown.get(&(Site::WeightedValues, layer, row)) else {
                    assert!(read.is_empty(), "{what}: a row that does not exist reads");
                    continue;
                };
                let sum: f32 = read.iter().map(|(_, x)| x).sum();
                assert!((sum - 1.0).abs() < 1e-4, "{what}: {sum}");
                for index in 0..dim {
                    let value = |key: usize| shown[&(Site::Value, layer, key)][head / group * dim + index];
                    let expected = z[head * dim + index];
                    let actual: f32 = read.iter().map(|&(key, x)| x * value(key)).sum();
                    assert!((actual - expected).abs() < 1e-3, "{what}: {actual} {expected}");
                }
            }
        }
    }
}

#[test]
fn probabilities_times_values_are_what_attention_puts_out() {
    for name in [
        "full",
        "speed:2+bos",
        "speed:1",
        "selfonly:2+bos",
        "pop:2",
        "swiftkv:1",
        "streaming:32+sinks=4",
        "keep:0+3.1+bos+window=16",
        "snapkv:40%",
        "h2o:40%",
        "kvzip:40%",
        "minference:vertical=8+slash=16",
        "flexprefill",
    ] {
        check(&TINY.decoder, name, 90);
    }
    check(&TINY.decoder, "minference:vertical=8+slash=16", 300);
    check(&TINY.decoder, "full", 600);
    check(&TINY.decoder, "full", 1);
}

#[test]
fn windows_and_soft_caps_are_the_models() {
    for name in ["gemma2", "gemma3"] {
        for policy in ["full", "speed:2+bos"] {
            check(&family(name, &Device::Cpu), policy, 130);
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_on_a_gpu() {
    check(&super::on_gpu(), "full", 70);
    check(&super::on_gpu(), "speed:2+bos", 70);
}

static LONG: LazyLock<TextPattern> = LazyLock::new(|| {
    let policy = Policy::parse("full", TINY.decoder.config().layers).unwrap();
    read(&TINY.decoder, &policy, &sequence(605, 1), 600)
});

/// A cell of single pairs, in f64: the maximum and the mean of what is read. Products of other shapes add in another order, so
/// that f32 scores, and with them probabilities, differ by a few parts in a million.
fn plain(pairs: &[f32], rows: &Range<usize>, keys: &Range<usize>) -> [f32; 2] {
    let all = rows.clone().flat_map(|row| keys.clone().map(move |key| pairs[row * LONG.rows() + key]));
    let seen: Vec<f32> = all.filter(|x| *x != UNSEEN).collect();
    let read: Vec<f64> = seen.iter().filter(|x| !x.is_nan()).map(|&x| f64::from(x)).collect();
    if seen.is_empty() {
        return [UNSEEN; 2];
    }
    let max = read.iter().copied().fold(f64::NAN, f64::max);
    [max as f32, (read.iter().sum::<f64>() / read.len() as f64) as f32]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cells_are_maxima_and_means_of_their_pairs(
        layer in 0..4_usize, choice in 0..6_usize, rows in (0..700_usize, 0..700_usize), keys in (0..700_usize, 0..700_usize),
        tall in 1..200_usize, wide in 1..200_usize,
    ) {
        let config = TINY.decoder.config();
        let heads = match choice {
            0 => PatternHeads::Mean,
            1 => PatternHeads::Max,
            head => PatternHeads::One(head % config.heads),
        };
        let ordered = |(a, b): (usize, usize)| a.min(b)..a.max(b) + 1;
        let (rows, keys) = (ordered(rows), ordered(keys));
        let request = TileRequest { layer, heads, rows: rows.clone(), keys: keys.clone(), cell: [tall, wide] };
        let actual = tile(&LONG, request);
        let within = |range: &Range<usize>| range.start.min(LONG.rows())..range.end.min(LONG.rows());
        let (rows, keys) = (within(&rows), within(&keys));
        prop_assert_eq!((actual.rows, actual.columns), (rows.len().div_ceil(tall), keys.len().div_ceil(wide)));
        let single = pairs(&LONG, layer, heads);
        for (index, (max, mean)) in actual.max.iter().zip(&actual.mean).enumerate() {
            let (row, column) = (rows.start + index / actual.columns * tall, keys.start + index % actual.columns * wide);
            let expected = plain(&single, &(row..rows.end.min(row + tall)), &(column..keys.end.min(column + wide)));
            for (actual, expected) in [*max, *mean].into_iter().zip(expected) {
                let same = actual == expected || (actual - expected).abs() < 1e-5 || actual.is_nan() && expected.is_nan();
                prop_assert!(same, "{} {}", actual, expected);
            }
        }
    }
}

#[test]
fn means_and_maxima_are_over_the_heads() {
    let heads = TINY.decoder.config().heads;
    let of_heads: Vec<Vec<f32>> = (0..heads).map(|head| pairs(&LONG, 1, PatternHeads::One(head))).collect();
    let (mean, max) = (pairs(&LONG, 1, PatternHeads::Mean), pairs(&LONG, 1, PatternHeads::Max));
    for index in (0..mean.len()).filter(|index| mean[*index] != UNSEEN) {
        let all = of_heads.iter().map(|of_head| of_head[index]);
        assert!((mean[index] - all.clone().sum::<f32>() / heads as f32).abs() < 1e-6);
        assert_eq!(max[index], all.fold(0.0, f32::max));
    }
}

#[test]
fn a_text_keeps_as_many_layers_as_there_is_room_for() {
    let config = TINY.decoder.config();
    let policy = Policy::full(config.layers);
    let tokens = sequence(40, 1);
    let text = PatternText { prompt: &tokens, continuation: &[], policy: &policy };
    assert_eq!(text.rows(), 40);
    let room = 2 * TextPattern::layer_bytes(config, text.rows()) + 1;
    let never = Interrupt::new(false);
    let mut done = 0;
    let pattern =
        TextPattern::read(&TINY.decoder, text, &[2], room, &never, &mut |rows| done = rows).unwrap();
    assert_eq!((pattern.layers().collect::<Vec<_>>(), done), (vec![2, 3], 40));
    assert!(pattern.has_layer(3) && !pattern.has_layer(0));
    let request = TileRequest { layer: 0, heads: PatternHeads::Mean, rows: 0..4, keys: 0..4, cell: [1, 1] };
    let error = pattern.tile(&request, &never).unwrap_err().to_string();
    assert!(error.contains("layer 0"), "{error}");
    let wrong = TileRequest { layer: 2, heads: PatternHeads::One(99), ..request.clone() };
    assert!(pattern.tile(&wrong, &never).unwrap_err().to_string().contains("head 99"));
    let nothing = TileRequest { layer: 2, cell: [0, 1], ..request.clone() };
    assert!(pattern.tile(&nothing, &never).is_err());
    let beyond = tile(&pattern, TileRequest { layer: 2, rows: 50..60, ..request.clone() });
    assert_eq!((beyond.rows, beyond.max.len()), (0, 0));
    let stopped = Interrupt::new(true);
    assert!(pattern.tile(&TileRequest { layer: 2, ..request }, &stopped).is_err());
    assert!(TextPattern::read(&TINY.decoder, text, &[99], room, &never, &mut |_| {}).is_err());
}
