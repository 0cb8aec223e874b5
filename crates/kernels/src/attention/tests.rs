use super::*;
use crate::reference;
use proptest::prelude::*;

/// A random attention problem at odd sizes: p prompt tokens of which some spans are kept, decode rows after them.
#[derive(Debug, Clone)]
struct Problem {
    shape: AttentionShape,
    rows: usize,
    first_position: usize,
    spans: Vec<(usize, usize, Segment)>,
    seed: u64,
    spread: f32,
    /// A number of the queries, or of the keys, that is not finite.
    poison: Option<(bool, usize, f32)>,
}

/// Whether both are undefined, or differ by less than a tolerance.
fn agree(actual: f32, expected: f64, tolerance: f64) -> bool {
    (actual.is_nan() && expected.is_nan()) || (f64::from(actual) - expected).abs() < tolerance
}

fn problem() -> impl Strategy<Value = Problem> {
    (
        1usize..4,
        1usize..4,
        prop::sample::select(vec![1usize, 7, 16, 32, 33, 64, 80]),
        prop_oneof![1usize..3, 1usize..90],
        3usize..300,
        prop::option::of((1usize..100, prop::sample::select(vec![0usize, 1, 4, 70]))),
        any::<u64>(),
        prop::sample::select(vec![0.1f32, 1.0, 6.0]),
        prop::option::of(prop::sample::select(vec![0.5f32, 20.0])),
        any::<[bool; 2]>(),
        prop::option::weighted(
            0.3,
            (
                any::<bool>(),
                any::<usize>(),
                prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY]),
            ),
        ),
    )
        .prop_map(
            |(
                kv_heads,
                group,
                head_dim,
                rows,
                p,
                narrowed,
                seed,
                spread,
                soft_cap,
                [bos, prompt],
                poison,
            )| {
                let (window, sinks) = narrowed.unzip();
                let mut spans = vec![];
                if bos {
                    spans.push((0, 1, Segment::Bos));
                }
                if prompt {
                    spans.push((1, p - 2, Segment::Prompt));
                }
                spans.push((p - 1, rows, Segment::Decode));
                Problem {
                    shape: AttentionShape {
                        query_heads: kv_heads * group,
                        kv_heads,
                        head_dim,
                        scale: 1.0 / (head_dim as f32).sqrt(),
                        soft_cap,
                        window,
                        sinks: sinks.unwrap_or(0),
                    },
                    rows,
                    first_position: p - 1,
                    spans,
                    seed,
                    spread,
                    poison,
                }
            },
        )
}

/// Keys or values in one of the types.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Q8(Vec<Q8Block>),
}

impl Stored {
    fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(numbers) => Elements::F32(numbers),
            Self::F16(bits) => Elements::F16(bits),
            Self::Q8(blocks) => Elements::Q8(blocks),
        }
    }
}

/// Reproducible values of roughly unit variance (SplitMix64, sum of uniforms).
pub(super) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..len).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 1.73).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn equals_the_plain_version(problem in problem()) {
        let Problem { shape, rows, first_position, spans, seed, spread, poison } = problem;
        let mut q: Vec<f32> = noise(seed, rows * shape.query_heads * shape.head_dim)
            .into_iter().map(|x| x * spread).collect();
        // Every third problem has keys that only some heads have.
        let heads: Vec<std::ops::Range<usize>> = (0..spans.len()).map(|i| {
            let (first, all) = ((seed >> 3) as usize + i, shape.kv_heads);
            if seed % 3 == 0 { first % all..first % all + 1 + first % (all - first % all) } else { 0..all }
        }).collect();
        // A little slack behind each head, as a preallocated cache has.
        let mut buffers: Vec<(Vec<f32>, Vec<f32>, usize)> = spans.iter().enumerate().map(|(i, &(_, len, _))| {
            let stride = (len + 3) * shape.head_dim;
            let make = |salt| noise(seed ^ salt ^ i as u64, shape.kv_heads * stride);
            (make(0xabc), make(0xdef), stride)
        }).collect();
        if let Some((in_queries, place, number)) = poison {
            let numbers = if in_queries { &mut q } else { &mut buffers[place % spans.len()].0 };
            let place = place % numbers.len();
            numbers[place] = number;
        }
        // One of three types each; blocks only where heads are of whole ones.
        let store = |numbers: &[f32]| match (seed >> 16) % 3 {
            1 => Stored::F16(numbers.iter().map(|&x| half::f16::from_f32(x).to_bits()).collect()),
            2 if shape.head_dim % Q8Block::ELEMENTS == 0 => {
                Stored::Q8(numbers.as_chunks().0.iter().map(Q8Block::rounded).collect())
            }
            _ => Stored::F32(numbers.to_vec()),
        };
        let stored: Vec<[Stored; 2]> =
            buffers.iter().map(|(keys, values, _)| [store(keys), store(values)]).collect();
        let spans: Vec<KeySpan<'_>> = spans.iter().zip(&buffers)
            .zip(&stored)
            .zip(&heads)
            .map(|(((&(first_position, len, segment), (_, _, head_stride)), [keys, values]), heads)| KeySpan {
                first_head: heads.start,
                heads: heads.len(),
                keys: keys.elements(),
                values: values.elements(),
                head_stride: *head_stride, len, first_position, segment,
            }).collect();
        let queries = Queries { data: &q, rows, first_position };
        let expected = reference::attention(&shape, &queries, &spans);

        for instructions in Instructions::available() {
        let mut output = vec![f32::NAN; q.len()];
        let positions = first_position + 1;
        let limits = ReadLimits {
            positions: 1..positions.saturating_sub(1).max(1),
            of_head: (seed >> 5) as usize % 5,
            least_of_head: 0.003,
            of_mean: (seed >> 9) as usize % 9,
            least_of_mean: 0.0,
        };
        let mut received = Received::with_reads(positions, Some(limits.clone()));
        let rows_and_heads = rows * shape.query_heads;
        let mut statistics = AttentionStatistics {
            mass: vec![[0.0; SEGMENTS]; rows_and_heads],
            entropy: vec![[f32::NAN; SEGMENTS]; rows_and_heads],
        };
        run(instructions, &shape, &queries, &spans, &mut output, Some(&mut statistics), Some(&mut received));
        for (x, e) in output.iter().zip(&expected.output) {
            prop_assert!(agree(*x, *e, 2e-5), "output {x} {e}");
        }
        let mut plain = vec![f32::NAN; q.len()];
        run(instructions, &shape, &queries, &spans, &mut plain, None, None);
        let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&plain), bits(&output));

        let mut sum = vec![0.0; positions];
        let mut max = vec![0f64; positions];
        for i in 0..rows * shape.query_heads {
            for g in 0..SEGMENTS {
                let (m, e) = (statistics.mass[i][g], f64::from(statistics.entropy[i][g]));
                prop_assert!(agree(m, expected.mass[i][g], 1e-5), "mass {m} {}", expected.mass[i][g]);
                if expected.mass[i][g] > 1e-6 {
                    prop_assert!((e - expected.entropy[i][g]).abs() < 1e-4, "entropy {e} {}", expected.entropy[i][g]);
                }
            }
            for &(position, p) in &expected.probabilities[i] {
                if position < positions {
                    sum[position] += p;
                    max[position] = if p > max[position] || p.is_nan() { p } else { max[position] };
                }
            }
        }
        for position in 0..positions {
            prop_assert!(agree(received.sum[position], sum[position], 1e-4));
            let largest = if sum[position].is_nan() { f64::NAN } else { max[position] };
            prop_assert!(agree(received.max[position], largest, 1e-5));
        }
        prop_assert_eq!(received.reads.len(), rows);
        let heads = shape.query_heads;
        for (row, reads) in received.reads.iter().enumerate() {
            let mut mean = vec![0.0; positions];
            for head in 0..heads {
                let mut own = vec![0.0; positions];
                for &(position, p) in expected.probabilities[row * heads + head].iter().filter(|(at, _)| *at < positions) {
                    own[position] = p;
                    mean[position] += p / heads as f64;
                }
                check_reads(reads.of_head(head), &own, &limits.positions, limits.of_head, limits.least_of_head)?;
            }
            prop_assert!(reads.of_head(heads).is_empty());
            check_reads(&reads.mean, &mean, &limits.positions, limits.of_mean, 1e-30)?;
        }
        }
    }
}

/// That a list has the strongest positions in order, each with its attention, and lacks none that belongs there.
fn check_reads(
    reads: &[Read],
    attention: &[f64],
    listed: &std::ops::Range<usize>,
    most: usize,
    least: f32,
) -> Result<(), TestCaseError> {
    let within = 1e-5;
    let mut bar = f64::from(least);
    prop_assert!(reads.len() <= most);
    for (index, read) in reads.iter().enumerate() {
        let position = read.position as usize;
        prop_assert!(listed.contains(&position));
        prop_assert!((f64::from(read.attention) - attention[position]).abs() < within);
        prop_assert!(read.attention >= least);
        let before = reads[..index].last();
        prop_assert!(before.is_none_or(|before| before.attention >= read.attention));
        prop_assert!(reads[..index].iter().all(|before| before.position != read.position));
    }
    if let Some(last) = reads.last().filter(|_| reads.len() == most) {
        bar = bar.max(f64::from(last.attention));
    }
    for position in listed.clone().filter(|_| most > 0) {
        let is_listed = reads.iter().any(|read| read.position as usize == position);
        let x = attention[position];
        prop_assert!(is_listed || x.is_nan() || x < bar + within, "{x} at {position} is missing");
        prop_assert!(!is_listed || !x.is_nan());
    }
    Ok(())
}

/// More positions than a chunk has: the strongest of all are found, wherever they lie.
#[test]
fn the_strongest_positions_of_a_long_prompt() {
    let shape = AttentionShape {
        query_heads: 4,
        kv_heads: 2,
        head_dim: 16,
        scale: 1.5,
        soft_cap: None,
        window: None,
        sinks: 0,
    };
    let len = 1500;
    let (keys, values) = (noise(7, 2 * len * 16), noise(8, 2 * len * 16));
    let q = noise(9, 3 * 4 * 16);
    // Spans that no chunk is aligned with.
    let span = |first: usize, len: usize, segment| KeySpan {
        keys: Elements::from(&keys[first * 16..]),
        values: Elements::from(&values[first * 16..]),
        first_head: 0,
        heads: 2,
        head_stride: 1500 * 16,
        len,
        first_position: first,
        segment,
    };
    let spans = [span(0, 1, Segment::Bos), span(1, 1400, Segment::Prompt), span(1401, 99, Segment::Decode)];
    let queries = Queries { data: &q, rows: 3, first_position: 1497 };
    let expected = reference::attention(&shape, &queries, &spans);
    let limits =
        ReadLimits { positions: 1..1401, of_head: 8, least_of_head: 1e-4, of_mean: 32, least_of_mean: 0.0 };
    let mut received = Received::with_reads(1402, Some(limits.clone()));
    let mut output = vec![0.0; q.len()];
    attention_with_statistics(&shape, &queries, &spans, &mut output, Some(&mut received));
    for (row, reads) in received.reads.iter().enumerate() {
        let mut mean = vec![0.0; 1500];
        for head in 0..4 {
            let mut own = vec![0.0; 1500];
            for &(position, p) in &expected.probabilities[row * 4 + head] {
                own[position] = p;
                mean[position] += p / 4.0;
            }
            assert_eq!(reads.of_head(head).len(), 8);
            check_reads(reads.of_head(head), &own, &limits.positions, 8, 1e-4).expect("of a head");
        }
        assert_eq!(reads.mean.len(), 32);
        check_reads(&reads.mean, &mean, &limits.positions, 32, 0.0).expect("of the mean");
    }
}

#[test]
fn a_row_without_keys_is_undefined() {
    let shape = AttentionShape {
        query_heads: 2,
        kv_heads: 1,
        head_dim: 8,
        scale: 1.0,
        soft_cap: None,
        window: None,
        sinks: 0,
    };
    let q = noise(1, 16);
    let mut output = vec![f32::NAN; 16];
    let queries = Queries { data: &q, rows: 1, first_position: 5 };
    let statistics = attention_with_statistics(&shape, &queries, &[], &mut output, None);
    assert!(output.iter().all(|x| x.is_nan()));
    assert!(statistics.mass[0].iter().all(|x| x.is_nan()));
    assert!(statistics.entropy[0].iter().all(|x| x.is_nan()));
}

#[test]
fn splitting_keys_changes_nothing_that_matters() {
    // Many tiles and one row: the split path; the same row among many: the unsplit path.
    let shape = AttentionShape {
        query_heads: 3,
        kv_heads: 1,
        head_dim: 64,
        scale: 0.125,
        soft_cap: None,
        window: None,
        sinks: 0,
    };
    let len = 5000;
    let (keys, values) = (noise(2, len * 64), noise(3, len * 64));
    let q = noise(4, 8 * 3 * 64);
    let span = KeySpan {
        keys: keys[..].into(),
        values: values[..].into(),
        first_head: 0,
        heads: 1,
        head_stride: len * 64,
        len,
        first_position: 0,
        segment: Segment::Prompt,
    };
    let mut many = vec![0.0; q.len()];
    attention(&shape, &Queries { data: &q, rows: 8, first_position: len }, &[span], &mut many);
    let mut one = vec![0.0; 3 * 64];
    attention(&shape, &Queries { data: &q[..192], rows: 1, first_position: len }, &[span], &mut one);
    for (a, b) in one.iter().zip(&many) {
        assert!((a - b).abs() < 1e-6);
    }
}

/// Chunks that begin elsewhere, of other sizes: a row has the same bits in each.
#[test]
fn a_row_of_a_chunk_has_the_same_bits_wherever_the_chunk_begins() {
    for (kv_heads, group, dim) in [(3, 1, 64), (1, 3, 64), (2, 2, 33), (1, 8, 32)] {
        let shape = AttentionShape {
            query_heads: kv_heads * group,
            kv_heads,
            head_dim: dim,
            scale: 0.2,
            soft_cap: None,
            window: None,
            sinks: 0,
        };
        let len = 330;
        let row = shape.query_heads * dim;
        let (keys, values) = (noise(2, kv_heads * len * dim), noise(3, kv_heads * len * dim));
        let q = noise(4, len * row);
        let span = KeySpan {
            keys: keys[..].into(),
            values: values[..].into(),
            first_head: 0,
            heads: kv_heads,
            head_stride: len * dim,
            len,
            first_position: 0,
            segment: Segment::Prompt,
        };
        for instructions in Instructions::available() {
            let from = |first: usize| {
                let queries = Queries { data: &q[first * row..], rows: len - first, first_position: first };
                let mut output = vec![0.0; (len - first) * row];
                run(instructions, &shape, &queries, &[span], &mut output, None, None);
                output
            };
            let all = from(0);
            for rows in [FEW_ROWS + 1, 7, 16, 21, 64, 65, 128, 193, 197, 224] {
                let first = len - rows;
                assert!(from(first) == all[first * row..], "{instructions:?}, {shape:?}, {rows} rows");
            }
        }
    }
}
