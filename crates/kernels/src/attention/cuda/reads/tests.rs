#![allow(clippy::unwrap_used)]

use super::*;
use crate::attention::tests::noise;
use proptest::prelude::*;

/// All positions that may be listed, sorted.
fn plain(attention: &[f32], within: &Range<usize>, most: usize, least: f32) -> Vec<Read> {
    let read = |position: usize| Read { position: position as u32, attention: attention[position] };
    let mut reads: Vec<Read> = within.clone().filter(|&at| at < attention.len()).map(read).collect();
    reads.retain(|read| read.attention > 0.0 && read.attention >= least);
    reads.sort_by(|a, b| b.attention.total_cmp(&a.attention).then(a.position.cmp(&b.position)));
    reads.truncate(most);
    reads
}

/// Few different values, so that there are ties, and many zeros.
fn attention(seed: u64, len: usize, poison: Option<usize>) -> Vec<f32> {
    let mut numbers: Vec<f32> = noise(seed, len).iter().map(|x| (x * 8.0).round().max(0.0) / 64.0).collect();
    if let Some(place) = poison
        && !numbers.is_empty()
    {
        numbers[place % len] = f32::NAN;
    }
    numbers
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_strongest_are_those_of_a_sorted_list(
        rows in 1usize..4, heads in 1usize..5, count in 1usize..400, seed in any::<u64>(), start in 0usize..4, cut in 0usize..4,
        of_head in 0usize..12, of_mean in 0usize..40, least in 0.0f32..0.1, poison in proptest::option::of(any::<usize>()),
    ) {
        let device = Device::for_tests();
        let numbers = attention(seed, rows * heads * count, poison);
        let buffer = device.upload(&numbers).unwrap();
        let positions = start..count.saturating_sub(cut).max(start);
        let limits = ReadLimits { positions: positions.clone(), of_head, least_of_head: least, of_mean, least_of_mean: least };
        let found = strongest(Numbers::all(&buffer, Element::F32), [rows, heads, count], &limits).unwrap();
        prop_assert_eq!(found.len(), rows);
        for (row, found) in found.iter().enumerate() {
            let head = |head: usize| &numbers[(row * heads + head) * count..][..count];
            prop_assert_eq!(found.ends.len(), heads);
            for index in 0..heads {
                prop_assert_eq!(found.of_head(index), plain(head(index), &positions, of_head, least));
            }
            let mean = |at: usize| (0..heads).fold(0.0, |sum: f32, index| sum + head(index)[at]) * (1.0 / heads as f32);
            let means: Vec<f32> = (0..count).map(mean).collect();
            prop_assert_eq!(&found.mean, &plain(&means, &positions, of_mean, least));
        }
    }
}

#[test]
fn without_positions_lists_are_empty() {
    let device = Device::for_tests();
    let buffer = device.upload(&[0f32]).unwrap();
    let limits =
        ReadLimits { positions: 0..9, of_head: 2, least_of_head: 0.0, of_mean: 2, least_of_mean: 0.0 };
    let found = strongest(Numbers::all(&buffer, Element::F32), [2, 3, 0], &limits).unwrap();
    assert_eq!(found, vec![RowReads { ends: vec![0; 3], ..RowReads::default() }; 2]);
}
