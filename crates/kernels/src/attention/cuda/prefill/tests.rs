#![allow(clippy::unwrap_used)]

use super::{Kernel, Prefill, attention, supports};
use crate::attention::sparse::tests::{ALL, random_sets};
use crate::cuda::{Device, Element, Numbers};
use crate::{AttentionShape, KeySpan, Queries, Segment, SparseKeys, reference};
use half::bf16;

/// What is asked for, apart from numbers.
#[derive(Clone, Copy, Debug)]
struct Case {
    head_dim: usize,
    kv_heads: usize,
    group: usize,
    rows: usize,
    first_slot: usize,
    /// Slots beyond the last row's own, which hold NaN.
    unwritten: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
    /// Size of queries: the larger, the fewer keys share the weight.
    size: f32,
}

const PLAIN: Case = Case {
    head_dim: 64,
    kv_heads: 1,
    group: 1,
    rows: 5,
    first_slot: 0,
    unwritten: 0,
    window: None,
    soft_cap: None,
    size: 1.0,
};

impl Case {
    fn shape(&self) -> AttentionShape {
        AttentionShape {
            query_heads: self.kv_heads * self.group,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            soft_cap: self.soft_cap,
            window: self.window,
            sinks: 0,
        }
    }

    fn capacity(&self) -> usize {
        self.first_slot + self.rows + self.unwritten
    }
}

/// Numbers between −1 and 1, the same for the same seed, exact in bf16.
fn random(len: usize, seed: u64) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bf16::from_f32((state >> 40) as f32 / (1 << 23) as f32 - 1.0)
    };
    (0..len).map(|_| draw()).collect()
}

fn scaled(numbers: &[bf16], by: f32) -> Vec<bf16> {
    numbers.iter().map(|x| bf16::from_f32(x.to_f32() * by)).collect()
}

/// Overwrites what is in unwritten slots.
fn poison(case: &Case, numbers: &mut [bf16]) {
    for head in numbers.chunks_exact_mut(case.capacity() * case.head_dim) {
        head[(case.first_slot + case.rows) * case.head_dim..].fill(bf16::NAN);
    }
}

fn run(case: &Case, queries: &[bf16], keys: &[bf16], values: &[bf16]) -> Vec<f32> {
    run_sparse(case, queries, keys, values, None)
}

fn run_sparse(
    case: &Case,
    queries: &[bf16],
    keys: &[bf16],
    values: &[bf16],
    sparse: Option<&SparseKeys>,
) -> Vec<f32> {
    let device = Device::for_tests();
    let shape = case.shape();
    assert!(supports(&shape, &device));
    let bits = |numbers: &[bf16]| {
        let bits: Vec<u16> = numbers.iter().map(|x| x.to_bits()).collect();
        device.upload(&bits).unwrap()
    };
    let (queries, keys, values) = (bits(queries), bits(keys), bits(values));
    let output = device.allocate(queries.bytes()).unwrap();
    let output = Numbers::all(&output, Element::Bf16);
    let prefill = Prefill {
        shape,
        queries: Numbers::all(&queries, Element::Bf16),
        keys: Numbers::all(&keys, Element::Bf16),
        values: Numbers::all(&values, Element::Bf16),
        capacity: case.capacity(),
        first_slot: case.first_slot,
        rows: case.rows,
        sparse,
        output,
    };
    attention(&prefill).unwrap();
    output.to_vec().unwrap()
}

fn wide(numbers: &[bf16]) -> Vec<f32> {
    numbers.iter().map(|x| x.to_f32()).collect()
}

/// Compares with the plain version on random numbers: each number, and all of them together, where rounding averages out.
fn check(case: &Case) {
    check_sparse(case, None);
}

fn check_sparse(case: &Case, sparse: Option<&SparseKeys>) {
    let shape = case.shape();
    let (query_len, key_len) =
        (case.rows * shape.query_heads * case.head_dim, case.kv_heads * case.capacity() * case.head_dim);
    let seed = (case.head_dim * 31 + case.rows * 7 + case.first_slot) as u64;
    let queries = scaled(&random(query_len, seed), case.size);
    let (mut keys, mut values) = (random(key_len, seed + 1), random(key_len, seed + 2));
    poison(case, &mut keys);
    poison(case, &mut values);
    let output = run_sparse(case, &queries, &keys, &values, sparse);

    let (queries, keys, values) = (wide(&queries), wide(&keys), wide(&values));
    let span = KeySpan {
        keys: keys.as_slice().into(),
        values: values.as_slice().into(),
        first_head: 0,
        heads: case.kv_heads,
        head_stride: case.capacity() * case.head_dim,
        len: case.first_slot + case.rows,
        first_position: 0,
        segment: Segment::Prompt,
    };
    let rows = Queries { data: &queries, rows: case.rows, first_position: case.first_slot };
    let expected = match sparse {
        None => reference::attention(&shape, &rows, &[span]).output,
        Some(sparse) => reference::sparse_attention(&shape, &rows, &span, sparse),
    };
    let mut squares = 0.0;
    for (index, (&is, &should)) in output.iter().zip(&expected).enumerate() {
        let difference = (f64::from(is) - should).abs();
        let (row, column) = (index / case.head_dim, index % case.head_dim);
        assert!(
            difference <= 6e-3,
            "{case:?}: row and head {row}, column {column}: {is} instead of {should}"
        );
        squares += difference * difference;
    }
    let typical = (squares / output.len() as f64).sqrt();
    assert!(typical <= 1.2e-3, "{case:?}: off by {typical} on the whole");
}

#[test]
fn every_head_size_matches_the_plain_version() {
    for (head_dim, group) in [(64, 1), (80, 3), (96, 4), (128, 2), (256, 1)] {
        check(&Case { head_dim, group, rows: 5, first_slot: 200, unwritten: 3, ..PLAIN });
        check(&Case { head_dim, rows: 130, unwritten: 70, ..PLAIN });
    }
}

#[test]
fn rows_read_their_sets_alone() {
    let sets = |case: &Case, shares| {
        random_sets(case.first_slot, case.rows, case.shape().query_heads, shares, case.rows as u64)
    };
    for (head_dim, group) in [(64, 3), (80, 1), (96, 2), (128, 2), (256, 1)] {
        for (rows, first_slot) in [(200, 0), (70, 192), (5, 130)] {
            let case = Case { head_dim, group, rows, first_slot, unwritten: 30, ..PLAIN };
            for shares in [[0.5, 0.3], [0.0, 0.0], [0.0, 0.8]] {
                check_sparse(&case, Some(&sets(&case, shares)));
            }
        }
    }
    let case = Case { kv_heads: 2, group: 2, rows: 150, first_slot: 64, soft_cap: Some(5.0), ..PLAIN };
    check_sparse(&case, Some(&sets(&case, [0.3, 0.5])));
    // Where all is read, the same tiles come in the same order.
    let all = sets(&case, ALL);
    let shape = case.shape();
    let queries = random(case.rows * shape.query_heads * case.head_dim, 1);
    let numbers = |seed| random(case.kv_heads * case.capacity() * case.head_dim, seed);
    let (keys, values) = (numbers(2), numbers(3));
    assert_eq!(run_sparse(&case, &queries, &keys, &values, Some(&all)), run(&case, &queries, &keys, &values));
}

#[test]
fn heads_of_a_group_share_keys() {
    for group in [1, 3, 4, 7] {
        check(&Case { kv_heads: 2, group, rows: 7, first_slot: 3, unwritten: 9, ..PLAIN });
    }
}

#[test]
fn rows_and_slots_need_not_fill_tiles() {
    for rows in [1, 5, 64, 127, 130] {
        for first_slot in [0, 3, 200] {
            check(&Case { head_dim: 80, rows, first_slot, unwritten: rows % 3, ..PLAIN });
        }
    }
}

#[test]
fn windows_end_where_they_should() {
    for window in [1, 17, 64, 100, 5000] {
        for (rows, first_slot) in [(130, 0), (33, 200)] {
            check(&Case { rows, first_slot, window: Some(window), unwritten: 5, ..PLAIN });
        }
    }
    check(&Case { head_dim: 256, rows: 150, first_slot: 31, window: Some(40), ..PLAIN });
}

#[test]
fn soft_caps_bend_scores() {
    for (head_dim, cap) in [(64, 0.5), (256, 30.0)] {
        check(&Case { head_dim, rows: 20, first_slot: 60, soft_cap: Some(cap), size: 12.0, ..PLAIN });
    }
}

#[test]
fn weights_that_a_few_keys_share_are_right_as_the_largest_score_moves() {
    check(&Case { rows: 70, first_slot: 150, size: 60.0, ..PLAIN });
    check(&Case { head_dim: 128, rows: 40, first_slot: 150, size: 400.0, window: Some(90), ..PLAIN });
}

/// Keys of zeros weigh the same, and values say which slot and head they are of: each mean is of just what a row sees.
#[test]
fn each_row_sees_just_its_keys() {
    // With this first slot a warp's first row is the last but one of a tile's keys, and with the first window another's first
    // row sees just the last of a tile's.
    let case =
        Case { head_dim: 128, kv_heads: 2, group: 2, rows: 133, first_slot: 30, unwritten: 60, ..PLAIN };
    for window in [None, Some(64), Some(16)] {
        let case = Case { window, ..case };
        let shape = case.shape();
        let queries = random(case.rows * shape.query_heads * case.head_dim, 3);
        let mut keys = vec![bf16::ZERO; case.kv_heads * case.capacity() * case.head_dim];
        // A one in the column of the slot, negative in the second head.
        let mut values = keys.clone();
        for (index, row) in values.chunks_exact_mut(case.head_dim).enumerate() {
            let (head, slot) = (index / case.capacity(), index % case.capacity());
            row[slot % case.head_dim] = bf16::from_f32(if head == 0 { 1.0 } else { -1.0 });
        }
        poison(&case, &mut keys);
        poison(&case, &mut values);
        let output = run(&case, &queries, &keys, &values);
        for (index, &is) in output.iter().enumerate() {
            let (column, head) = (index % case.head_dim, index / case.head_dim % shape.query_heads);
            let slot = case.first_slot + index / case.head_dim / shape.query_heads;
            let first = (slot + 1).saturating_sub(window.unwrap_or(usize::MAX));
            let hits = (first..=slot).filter(|slot| slot % case.head_dim == column).count();
            let sign = if head / case.group == 0 { 1.0 } else { -1.0 };
            let should = sign * bf16::from_f32(hits as f32 / (slot + 1 - first) as f32).to_f32();
            assert!((is - should).abs() <= should.abs() / 128.0, "slot {slot}, head {head}, column {column}");
        }
    }
}

#[test]
fn every_kernel_fits_the_least_shared_memory_of_a_gpu() {
    let dims: Vec<usize> = (1..=512).filter(|&dim| Kernel::of(dim).is_some()).collect();
    assert_eq!(dims.len(), 5);
    assert!(dims.into_iter().all(|dim| Kernel::of(dim).unwrap().shared_bytes(dim) <= 99 << 10));
}

#[test]
fn nothing_is_done_for_no_rows() {
    assert_eq!(run(&Case { rows: 0, unwritten: 4, ..PLAIN }, &[], &random(256, 1), &random(256, 2)), []);
}

#[test]
fn shapes_that_it_does_not_take_are_told() {
    let device = Device::for_tests();
    let shape = PLAIN.shape();
    assert!(supports(&shape, &device));
    assert!(!supports(&AttentionShape { head_dim: 72, ..shape }, &device));
    assert!(!supports(&AttentionShape { scale: 0.0, ..shape }, &device));
    assert!(!supports(&AttentionShape { window: Some(9), sinks: 4, ..shape }, &device));
}
