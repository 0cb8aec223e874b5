#![allow(clippy::unwrap_used)]

mod graph;

use super::*;
use crate::attention::tests::noise;
use crate::{KeySpan, Queries, Segment, reference};
use half::bf16;
use proptest::prelude::*;
use proptest::{option, sample::select};

/// A span of a problem, before it is laid out.
#[derive(Debug, Clone, Copy)]
struct Keys {
    len: usize,
    first_position: usize,
    segment: Segment,
    /// Each copy has its own, `[key, head, element]`; else all share `[head, key, element]`.
    own: bool,
    /// So many keys of `len` are there from `decoded` only.
    decoded: usize,
}

#[derive(Debug, Clone)]
struct Problem {
    shape: AttentionShape,
    rows_per_copy: usize,
    copies: usize,
    first_position: usize,
    keys: Vec<Keys>,
    visible: Option<Vec<u32>>,
    element: Element,
    queries_in: Element,
    output_in: Element,
    keys_at_most: usize,
    spread: f32,
    /// A number of the queries, or of the keys of the last span, that is not finite.
    poison: Option<(bool, usize, f32)>,
}

fn span(first_position: usize, len: usize, segment: Segment) -> Keys {
    Keys { len, first_position, segment, own: false, decoded: 0 }
}

/// p prompt tokens, then the rows as decode tokens.
fn problem(query_heads: usize, kv_heads: usize, head_dim: usize, p: usize, rows: usize) -> Problem {
    let shape = AttentionShape {
        query_heads,
        kv_heads,
        head_dim,
        scale: 1.0 / (head_dim as f32).sqrt(),
        soft_cap: None,
        window: None,
        sinks: 0,
    };
    let keys =
        vec![span(0, 1, Segment::Bos), span(1, p - 2, Segment::Prompt), span(p - 1, rows, Segment::Decode)];
    Problem {
        shape,
        rows_per_copy: rows,
        copies: 1,
        first_position: p - 1,
        keys,
        visible: None,
        element: Element::F32,
        queries_in: Element::F32,
        output_in: Element::F32,
        keys_at_most: p + rows,
        spread: 1.0,
        poison: None,
    }
}

fn rounded(numbers: &mut [f32], element: Element) {
    if element == Element::Bf16 {
        numbers.iter_mut().for_each(|x| *x = bf16::from_f32(*x).to_f32());
    }
}

fn upload(device: &Device, numbers: &[f32], element: Element) -> Buffer {
    match element {
        Element::F32 => device.upload(numbers).unwrap(),
        Element::Bf16 => {
            let bits: Vec<u16> = numbers.iter().map(|&x| bf16::from_f32(x).to_bits()).collect();
            device.upload(&bits).unwrap()
        }
    }
}

/// Keys or values of a span: by copy `[head, key, element]` for the reference, and all as the device has them, with NaN in
/// between.
fn lay_out(
    problem: &Problem,
    keys: &Keys,
    seed: u64,
    poison: Option<(usize, f32)>,
) -> (Vec<Vec<f32>>, Vec<f32>) {
    let (heads, dim) = (problem.shape.kv_heads, problem.shape.head_dim);
    let copies = if keys.own { problem.copies } else { 1 };
    let mut plain = vec![];
    let mut device = vec![];
    for copy in 0..copies {
        let mut numbers = noise(seed ^ (copy as u64) << 20, heads * keys.len * dim);
        if let Some((place, number)) = poison
            && !numbers.is_empty()
        {
            let place = place % numbers.len();
            numbers[place] = number;
        }
        rounded(&mut numbers, problem.element);
        for at in 0..if keys.own { keys.len * heads } else { heads * (keys.len + SLACK) } {
            let (head, key) = if keys.own {
                (at % heads, at / heads)
            } else {
                (at / (keys.len + SLACK), at % (keys.len + SLACK))
            };
            if key < keys.len {
                device.extend_from_slice(&numbers[(head * keys.len + key) * dim..][..dim]);
            } else {
                device.extend(vec![f32::NAN; dim]);
            }
        }
        plain.push(numbers);
    }
    (plain, device)
}

/// The KV heads that have the keys of a span: all, or where positions are odd only some.
fn heads_of(problem: &Problem, span: usize) -> (usize, usize) {
    let all = problem.shape.kv_heads;
    match problem.first_position % 2 {
        0 => (0, all),
        _ => (span % all, 1 + (span + problem.copies) % (all - span % all)),
    }
}

/// Keys between the heads of a cache that nobody may use.
const SLACK: usize = 3;

struct Run {
    plain: Vec<[Vec<Vec<f32>>; 2]>,
    queries: Vec<f32>,
    output: Vec<f32>,
    mass: Vec<f32>,
    entropy: Vec<f32>,
    sum: Vec<f32>,
    max: Vec<f32>,
    /// `[rows, heads, positions]`.
    probabilities: Vec<f32>,
}

fn run(device: &Device, problem: &Problem, seed: u64, with_statistics: bool) -> Run {
    let AttentionShape { query_heads, kv_heads, head_dim, .. } = problem.shape;
    let rows = problem.rows_per_copy * problem.copies;
    let mut queries: Vec<f32> =
        noise(seed, rows * query_heads * head_dim).into_iter().map(|x| x * problem.spread).collect();
    if let Some((true, place, number)) = problem.poison {
        let place = place % queries.len();
        queries[place] = number;
    }
    rounded(&mut queries, problem.queries_in);
    let mut plain = vec![];
    let mut buffers = vec![];
    let mut spans = vec![];
    for (index, keys) in problem.keys.iter().enumerate() {
        let poison = problem.poison.filter(|(in_queries, ..)| !in_queries && index + 1 == problem.keys.len());
        let poison = poison.map(|(_, place, number)| (place, number));
        let (plain_keys, on_device) = lay_out(problem, keys, seed ^ 0xabc ^ (index as u64) << 8, poison);
        let (plain_values, values_on_device) =
            lay_out(problem, keys, seed ^ 0xdef ^ (index as u64) << 8, None);
        plain.push([plain_keys, plain_values]);
        let pair = [on_device, values_on_device].map(|numbers| upload(device, &numbers, problem.element));
        let (head_stride, key_stride, copy_stride) = match keys.own {
            true => (head_dim, kv_heads * head_dim, keys.len * kv_heads * head_dim),
            false => ((keys.len + SLACK) * head_dim, head_dim, 0),
        };
        let (first_head, heads) = heads_of(problem, index);
        let skipped = (first_head * head_stride * problem.element.bytes()) as u64;
        spans.push(DeviceKeySpan {
            keys: pair[0].address() + skipped,
            values: pair[1].address() + skipped,
            head_stride: head_stride as u64,
            key_stride: key_stride as u64,
            copy_stride: copy_stride as u64,
            len: (keys.len - keys.decoded) as u32,
            first_position: keys.first_position as u32,
            segment: keys.segment as u32,
            grows: (keys.decoded > 0).into(),
            first_head: first_head as u32,
            heads: heads as u32,
        });
        buffers.push(pair);
    }
    let positions: Vec<i32> =
        (0..rows).map(|row| (problem.first_position + row % problem.rows_per_copy) as i32).collect();
    let decoded = problem.keys.iter().map(|keys| keys.decoded).max().unwrap_or(0);
    let heads = rows * query_heads;
    let queries_there = upload(device, &queries, problem.queries_in);
    let positions = device.upload(&positions).unwrap();
    let spans_there = device.upload(&spans).unwrap();
    let visible = problem.visible.as_ref().map(|bits| device.upload(bits).unwrap());
    let decoded = device.upload(&[decoded as i32]).unwrap();
    let output = device.allocate(queries.len() * problem.output_in.bytes()).unwrap();
    let [mass, entropy] = [0; 2].map(|_| device.allocate(heads * SEGMENTS * 4).unwrap());
    let normalisers = device.allocate(heads * 2 * 4).unwrap();
    let statistics = StatisticsOnDevice {
        mass: Numbers::all(&mass, Element::F32),
        entropy: Numbers::all(&entropy, Element::F32),
    };
    let a = SpanAttention {
        shape: problem.shape,
        queries: Numbers::all(&queries_there, problem.queries_in),
        positions: &positions,
        rows,
        spans: &spans_there,
        span_count: spans.len(),
        keys_at_most: problem.keys_at_most,
        key_element: problem.element,
        rows_per_copy: problem.rows_per_copy,
        visible_spans: visible.as_ref(),
        decoded: Some(&decoded),
        output: Numbers::all(&output, problem.output_in),
        statistics: with_statistics.then_some(statistics),
        normalisers: with_statistics.then(|| Numbers::all(&normalisers, Element::F32)),
    };
    attention(&a).unwrap();
    let mut run = Run {
        plain,
        queries,
        output: a.output.to_vec().unwrap(),
        mass: vec![],
        entropy: vec![],
        sum: vec![],
        max: vec![],
        probabilities: vec![],
    };
    if with_statistics {
        let count = problem.first_position + 1;
        // What was received before stays: a half of each sum, and largest where nothing larger comes.
        let sum = device.upload(&vec![0.5f32; count]).unwrap();
        let max = device.upload(&vec![0.001f32; count]).unwrap();
        let [sum, max] = [&sum, &max].map(|buffer| Numbers::all(buffer, Element::F32));
        let probabilities = device.upload(&vec![0f32; heads * count]).unwrap();
        received(&a, count, sum, max, Some(Numbers::all(&probabilities, Element::F32))).unwrap();
        run.probabilities = probabilities.to_vec().unwrap();
        run.mass = mass.to_vec().unwrap();
        run.entropy = entropy.to_vec().unwrap();
        run.sum = sum.to_vec().unwrap();
        run.max = max.to_vec().unwrap();
    }
    run
}

fn check_problem(problem: &Problem, seed: u64) {
    let device = Device::for_tests();
    let run = run(&device, problem, seed, true);
    let (heads, dim) = (problem.shape.query_heads, problem.shape.head_dim);
    let row_numbers = heads * dim;
    let mut sum = vec![0.5; problem.first_position + 1];
    let mut max = vec![0.001f64; problem.first_position + 1];
    // Lanes without a dimension multiply a key by 0, which makes ±∞ NaN instead of −∞.
    let infinite_key =
        problem.poison.is_some_and(|(in_queries, _, number)| !in_queries && number.is_infinite());
    let close = |what: &str, x: f32, expected: f64, tolerance: f64| {
        let difference = (f64::from(x) - expected).abs();
        assert!(
            x.is_nan() && (expected.is_nan() || infinite_key)
                || difference <= tolerance * (1.0 + expected.abs()),
            "{what}: {x} {expected} {problem:?}"
        );
    };
    for copy in 0..problem.copies {
        let sees = |index: usize| problem.visible.as_ref().is_none_or(|bits| bits[copy] >> index & 1 == 1);
        let spans: Vec<KeySpan<'_>> = (problem.keys.iter().zip(&run.plain).enumerate())
            .filter(|&(index, _)| sees(index))
            .map(|(index, (keys, [plain_keys, plain_values]))| {
                let of_copy = if keys.own { copy } else { 0 };
                let (first_head, heads) = heads_of(problem, index);
                let skipped = first_head * keys.len * dim;
                KeySpan {
                    first_head,
                    heads,
                    keys: plain_keys[of_copy][skipped..].into(),
                    values: plain_values[of_copy][skipped..].into(),
                    head_stride: keys.len * dim,
                    len: keys.len,
                    first_position: keys.first_position,
                    segment: keys.segment,
                }
            })
            .collect();
        let first_row = copy * problem.rows_per_copy;
        let queries = Queries {
            data: &run.queries[first_row * row_numbers..],
            rows: problem.rows_per_copy,
            first_position: problem.first_position,
        };
        let expected = reference::attention(&problem.shape, &queries, &spans);
        let tolerance = if problem.output_in == Element::Bf16 { 4e-3 } else { 1e-5 };
        for (x, &e) in run.output[first_row * row_numbers..].iter().zip(&expected.output) {
            close("output", *x, e, tolerance);
        }
        for i in 0..problem.rows_per_copy * heads {
            for g in 0..SEGMENTS {
                let at = (first_row * heads + i) * SEGMENTS + g;
                close("mass", run.mass[at], expected.mass[i][g], 1e-5);
                let entropy = expected.entropy[i][g];
                if expected.mass[i][g] > 1e-6 {
                    close("entropy", run.entropy[at], entropy, 2e-5);
                }
                if expected.mass[i][g] == 0.0 && entropy.is_nan() {
                    assert!(run.entropy[at].is_nan() || run.mass[at] > 0.0, "{}", run.entropy[at]);
                }
            }
            let count = sum.len();
            let mut probabilities = vec![0.0; count];
            for &(position, p) in &expected.probabilities[i] {
                if let Some(probability) = probabilities.get_mut(position) {
                    *probability = p;
                }
                if let (Some(sum), Some(max)) = (sum.get_mut(position), max.get_mut(position)) {
                    *sum += p;
                    *max = if sum.is_nan() { f64::NAN } else { p.max(*max) };
                }
            }
            for (&x, &p) in run.probabilities[(first_row * heads + i) * count..].iter().zip(&probabilities) {
                close("probability", x, p, 1e-5);
            }
        }
    }
    for (position, (&s, &m)) in run.sum.iter().zip(&run.max).enumerate() {
        close(&format!("sum at {position}"), s, sum[position], 1e-5);
        close(&format!("max at {position}"), m, max[position], 1e-5);
    }
    // Statistics change nothing.
    let plain = self::run(&device, problem, seed, false);
    let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&plain.output), bits(&run.output));
}

#[test]
fn every_head_size_agrees_with_the_reference() {
    for (index, head_dim) in [1, 4, 8, 16, 18, 33, 64, 80, 96, 128, 252, 256].into_iter().enumerate() {
        for element in [Element::F32, Element::Bf16] {
            let problem = Problem { element, ..problem(4, 2, head_dim, 97, 2) };
            check_problem(&problem, index as u64);
        }
    }
}

#[test]
fn every_group_of_heads_agrees_with_the_reference() {
    for (index, (group, rows, p)) in
        [(1, 1, 300), (2, 1, 33), (3, 1, 129), (4, 1, 64), (5, 3, 40), (7, 1, 70), (8, 1, 200), (1, 2, 3)]
            .into_iter()
            .enumerate()
    {
        for (element, head_dim) in
            [(Element::F32, 64), (Element::Bf16, 64), (Element::Bf16, 128), (Element::F32, 256)]
        {
            let problem = Problem { element, ..problem(group * 2, 2, head_dim, p, rows) };
            check_problem(&problem, index as u64 + 100);
        }
    }
}

#[test]
fn many_rows_agree_with_the_reference() {
    for (rows, group, p) in [(5, 7, 40), (17, 3, 90), (33, 1, 66), (64, 2, 150), (70, 4, 100)] {
        let problem = Problem { element: Element::Bf16, ..problem(group, 1, 64, p, rows) };
        check_problem(&problem, rows as u64);
    }
}

#[test]
fn windows_and_caps_agree_with_the_reference() {
    for (index, (window, soft_cap)) in
        [(Some(1), None), (Some(7), None), (Some(40), Some(0.5)), (None, Some(20.0)), (Some(1000), None)]
            .into_iter()
            .enumerate()
    {
        for (rows, p) in [(1, 200), (20, 100)] {
            let mut problem = problem(4, 2, 32, p, rows);
            problem.shape.window = window;
            problem.shape.soft_cap = soft_cap;
            problem.spread = 4.0;
            check_problem(&problem, index as u64 + 200);
        }
    }
}

/// Sinks in a span of their own, as a store has them that gave up what is in between, and in one with all other keys.
#[test]
fn sinks_are_seen_whatever_the_window() {
    for (index, (sinks, window, rows, p)) in
        [(4, 7, 1, 200), (4, 30, 20, 100), (1, 1, 3, 70), (70, 9, 9, 300), (400, 5, 2, 90)]
            .into_iter()
            .enumerate()
    {
        let mut problem = problem(4, 2, 32, p, rows);
        (problem.shape.window, problem.shape.sinks, problem.spread) = (Some(window), sinks, 4.0);
        check_problem(&problem, index as u64 + 300);
        let first = (p / 2).max(sinks);
        if first + 1 < p {
            problem.keys[1] = span(1, sinks.saturating_sub(1), Segment::Prompt);
            problem.keys.push(span(first, p - 1 - first, Segment::Prompt));
            problem.element = Element::Bf16;
            check_problem(&problem, index as u64 + 350);
        }
    }
}

#[test]
fn long_spans_are_split_and_joined() {
    let device = Device::for_tests();
    for (p, spread, group) in [(3000, 1.0, 4), (1999, 8.0, 1), (700, 3.0, 8)] {
        let mut problem = problem(group, 1, 16, p, 1);
        // More splits than there are keys for: the last stay empty.
        problem.keys_at_most = 10_000;
        problem.spread = spread;
        problem.element = Element::Bf16;
        check_problem(&problem, p as u64);
        let buffer = device.allocate(1 << 20).unwrap();
        let a = SpanAttention {
            shape: problem.shape,
            queries: Numbers::new(&buffer, Element::F32, 0, group * 16),
            positions: &buffer,
            rows: 1,
            spans: &buffer,
            span_count: 3,
            keys_at_most: 10_000,
            key_element: Element::Bf16,
            rows_per_copy: 1,
            visible_spans: None,
            decoded: None,
            output: Numbers::new(&buffer, Element::F32, 0, group * 16),
            statistics: None,
            normalisers: None,
        };
        assert!(Plan::new(&a, &device).splits >= 8);
    }
}

#[test]
fn many_spans_of_any_length_agree_with_the_reference() {
    let mut problem = problem(4, 2, 16, 3, 3);
    problem.first_position = 400;
    let lengths = [1, 0, 17, 1, 64, 2, 0, 33];
    let mut position = 0;
    problem.keys.clear();
    for index in 0..45 {
        let segment = [Segment::Prompt, Segment::Decode, Segment::Bos][index % 3];
        problem.keys.push(span(position, lengths[index % 8], segment));
        // Some follow each other, some leave a gap, and the last lie beyond the rows.
        position += lengths[index % 8] + index % 2;
    }
    problem.keys_at_most = 700;
    check_problem(&problem, 9);
    problem.shape.window = Some(90);
    check_problem(&problem, 10);
}

#[test]
fn copies_see_their_own_keys_and_what_their_bits_say() {
    for (rows_per_copy, copies, element, head_dim) in [
        (1, 5, Element::Bf16, 16),
        (3, 4, Element::F32, 20),
        (9, 3, Element::Bf16, 64),
        (2, 2, Element::F32, 18),
    ] {
        let mut problem = problem(6, 2, head_dim, 80, rows_per_copy);
        problem.copies = copies;
        problem.element = element;
        problem.keys[2].own = true;
        problem.keys.push(span(20, 13, Segment::Prompt));
        check_problem(&problem, copies as u64);
        problem.visible =
            Some((0..copies as u32).map(|copy| [0b1111, 0b0101, 0b1110, 0, 0b0010][copy as usize]).collect());
        check_problem(&problem, copies as u64 + 50);
    }
}

#[test]
fn rows_that_see_nothing_are_undefined() {
    let mut problem = problem(2, 1, 8, 10, 3);
    problem.keys = vec![span(50, 20, Segment::Prompt), span(5, 0, Segment::Decode)];
    check_problem(&problem, 3);
    let run = run(&Device::for_tests(), &problem, 3, true);
    assert!(run.output.iter().chain(&run.mass).all(|x| x.is_nan()));
    assert!(run.entropy.iter().all(|x| x.is_nan()));
    assert!(run.sum.iter().all(|&x| x == 0.5));
    problem.keys.clear();
    check_problem(&problem, 4);
}

#[test]
fn queries_and_outputs_may_be_in_bf16() {
    let mut problem = problem(6, 2, 64, 50, 2);
    (problem.queries_in, problem.output_in, problem.element) = (Element::Bf16, Element::Bf16, Element::Bf16);
    check_problem(&problem, 5);
    (problem.queries_in, problem.element, problem.shape.head_dim) = (Element::Bf16, Element::F32, 36);
    check_problem(&problem, 6);
}

#[test]
fn a_span_is_longer_by_what_was_decoded() {
    let mut problem = problem(4, 2, 16, 40, 1);
    for decoded in [1, 5] {
        problem.keys[2] = Keys { decoded, ..span(39, 1 + decoded, Segment::Decode) };
        problem.first_position = 39 + decoded;
        check_problem(&problem, decoded as u64);
    }
}

fn any_problem() -> impl Strategy<Value = Problem> {
    (
        (1usize..3, select(vec![1usize, 2, 3, 4, 6, 8]), select(vec![2usize, 8, 24, 40, 64, 72, 128])),
        (1usize..13, 1usize..6, 3usize..400, 1usize..3000),
        (
            option::of((1usize..200, select(vec![0usize, 4, 65]))),
            option::of(select(vec![0.5f32, 30.0])),
            select(vec![0.1f32, 1.0, 6.0]),
        ),
        (any::<bool>(), any::<bool>(), option::of(prop::collection::vec(0u32..8, 5))),
        option::weighted(
            0.4,
            (any::<bool>(), any::<usize>(), select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY])),
        ),
    )
        .prop_map(
            |(
                (kv_heads, group, head_dim),
                (rows, copies, p, most),
                (narrowed, cap, spread),
                rest,
                poison,
            )| {
                let (in_bf16, own, visible) = rest;
                let mut problem = problem(kv_heads * group, kv_heads, head_dim, p, rows);
                let (window, sinks) = narrowed.unzip();
                (problem.shape.window, problem.shape.soft_cap) = (window, cap);
                problem.shape.sinks = sinks.unwrap_or(0);
                (problem.copies, problem.keys_at_most, problem.spread) = (copies, most, spread);
                problem.element = if in_bf16 { Element::Bf16 } else { Element::F32 };
                problem.keys[2].own = own;
                (problem.visible, problem.poison) = (visible, poison);
                problem
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn any_problem_agrees_with_the_reference(problem in any_problem(), seed in any::<u64>()) {
        check_problem(&problem, seed);
    }
}
