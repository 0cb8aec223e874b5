//! Attention of prompt rows in which each block of rows reads, in each query head, some of the keys alone.

use super::{AttentionShape, Elements, KeySpan, Queries, attention};
use rayon::prelude::*;
use std::ops::Range;

/// Rows, and keys, of a block.
pub const SPARSE_BLOCK: usize = 64;

/// The keys that a block of rows reads in one query head, each row those at or before its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeySet {
    /// Blocks of 64 keys, ascending.
    pub blocks: Vec<u32>,
    /// Single keys, ascending, in none of these blocks and all before the first of the rows.
    pub columns: Vec<u32>,
}

impl KeySet {
    /// Pairs of a row at one of `positions` and a key that are multiplied.
    pub fn pairs(&self, positions: Range<usize>) -> u64 {
        let in_blocks = |position: usize| -> usize {
            let of_block = |&block: &u32| {
                let first = block as usize * SPARSE_BLOCK;
                (position + 1).saturating_sub(first).min(SPARSE_BLOCK)
            };
            self.blocks.iter().map(of_block).sum()
        };
        positions.map(|position| (in_blocks(position) + self.columns.len()) as u64).sum()
    }
}

/// A [`KeySet`] for each query head and block of rows. Rows are in blocks of 64 from the first on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SparseKeys {
    first_position: usize,
    rows: usize,
    /// By head, then by block of rows.
    sets: Vec<KeySet>,
}

impl SparseKeys {
    /// Of rows at `first_position` …, with a set for each of `query_heads` heads and block of rows, by head.
    ///
    /// # Panics
    /// If a set does not have the rows' own keys, or has a key twice or a column that a row does not see.
    pub fn new(first_position: usize, rows: usize, query_heads: usize, sets: Vec<KeySet>) -> Self {
        let sparse = Self { first_position, rows, sets };
        assert_eq!(
            sparse.sets.len(),
            query_heads * sparse.row_blocks(),
            "a set for each head and block of rows"
        );
        for (index, set) in sparse.sets.iter().enumerate() {
            let rows = sparse.positions(index % sparse.row_blocks());
            let is_in =
                |position: usize| set.blocks.binary_search(&((position / SPARSE_BLOCK) as u32)).is_ok();
            assert!(
                set.blocks.is_sorted_by(|a, b| a < b) && set.columns.is_sorted_by(|a, b| a < b),
                "ascending"
            );
            assert!(rows.clone().all(is_in), "rows read their own keys");
            let is_column = |&column: &u32| (column as usize) < rows.start && !is_in(column as usize);
            assert!(set.columns.iter().all(is_column), "columns before the rows and beside the blocks");
        }
        sparse
    }

    fn row_blocks(&self) -> usize {
        self.rows.div_ceil(SPARSE_BLOCK)
    }

    fn positions(&self, row_block: usize) -> Range<usize> {
        let first = row_block * SPARSE_BLOCK;
        self.first_position + first..self.first_position + self.rows.min(first + SPARSE_BLOCK)
    }

    /// The set of a head and a block of rows.
    pub fn set(&self, head: usize, row_block: usize) -> &KeySet {
        &self.sets[head * self.row_blocks() + row_block]
    }

    /// Whether a row reads a key, which is at or before its own, in a head.
    pub fn reads(&self, head: usize, row: usize, key: usize) -> bool {
        let set = self.set(head, row / SPARSE_BLOCK);
        let in_blocks = set.blocks.binary_search(&((key / SPARSE_BLOCK) as u32)).is_ok();
        in_blocks || set.columns.binary_search(&(key as u32)).is_ok()
    }

    /// Pairs of a row and a key that are multiplied, over all heads.
    pub fn pairs(&self) -> u64 {
        let sets = self.sets.iter().enumerate();
        sets.map(|(index, set)| set.pairs(self.positions(index % self.row_blocks()))).sum()
    }
}

/// [`attention`] in which rows read their [`KeySet`]s alone. `keys` are those of all positions from 0 on, of all KV heads.
///
/// # Panics
/// As [`attention`]; if the shape has a window, or the sets are of other rows.
pub fn sparse_attention(
    shape: &AttentionShape,
    queries: &Queries<'_>,
    keys: &KeySpan<'_>,
    sparse: &SparseKeys,
    output: &mut [f32],
) {
    assert!(shape.window.is_none() && keys.first_position == 0, "all rows see all keys from position 0 on");
    assert_eq!((sparse.first_position, sparse.rows), (queries.first_position, queries.rows), "rows");
    let (dim, blocks) = (shape.head_dim, sparse.row_blocks());
    let row_len = shape.query_heads * dim;
    let units: Vec<(usize, usize)> =
        (0..blocks).flat_map(|block| (0..shape.query_heads).map(move |head| (head, block))).collect();
    let outputs: Vec<Vec<f32>> = units
        .par_iter()
        .map(|&(head, block)| {
            let rows = block * SPARSE_BLOCK..queries.rows.min((block + 1) * SPARSE_BLOCK);
            let of_head = rows.clone().flat_map(|row| &queries.data[row * row_len + head * dim..][..dim]);
            let of_head: Vec<f32> = of_head.copied().collect();
            one_head(shape, head, &of_head, sparse.positions(block), keys, sparse.set(head, block))
        })
        .collect();
    for (&(head, block), rows) in units.iter().zip(&outputs) {
        for (index, row) in rows.chunks_exact(dim).enumerate() {
            let start = (block * SPARSE_BLOCK + index) * row_len + head * dim;
            output[start..start + dim].copy_from_slice(row);
        }
    }
}

/// Outputs `[rows, head_dim]` of a block of rows in one query head.
fn one_head(
    shape: &AttentionShape,
    head: usize,
    queries: &[f32],
    positions: Range<usize>,
    keys: &KeySpan<'_>,
    set: &KeySet,
) -> Vec<f32> {
    let dim = shape.head_dim;
    let kv_head = head / (shape.query_heads / shape.kv_heads);
    let Some(start) = keys.start_of(kv_head) else { return vec![f32::NAN; positions.len() * dim] };
    // Single keys side by side; every row sees all of them, whatever their positions.
    let gathered = |elements: Elements<'_>| {
        let mut gathered = Vec::with_capacity(set.columns.len() * dim);
        for &key in &set.columns {
            let first = start + key as usize * dim;
            gathered.extend(elements.to_f32(first..first + dim));
        }
        gathered
    };
    let (column_keys, column_values) = (gathered(keys.keys), gathered(keys.values));
    let one_head = KeySpan { first_head: 0, heads: 1, ..*keys };
    let mut spans = vec![];
    if !set.columns.is_empty() {
        let (keys, values) = (column_keys.as_slice().into(), column_values.as_slice().into());
        spans.push(KeySpan { keys, values, len: set.columns.len(), ..one_head });
    }
    for run in set.blocks.chunk_by(|a, b| a + 1 == *b) {
        let first = run[0] as usize * SPARSE_BLOCK;
        let end = (first + run.len() * SPARSE_BLOCK).min(keys.len);
        spans.push(KeySpan {
            keys: keys.keys.from_index(start + first * dim),
            values: keys.values.from_index(start + first * dim),
            len: end.saturating_sub(first),
            first_position: first,
            ..one_head
        });
    }
    let mut output = vec![0.0; positions.len() * dim];
    let queries = Queries { data: queries, rows: positions.len(), first_position: positions.start };
    attention(&AttentionShape { query_heads: 1, kv_heads: 1, ..*shape }, &queries, &spans, &mut output);
    output
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::Segment;
    use super::super::tests::noise;
    use super::*;
    use crate::reference;
    use proptest::prelude::*;

    /// Shares of [`random_sets`] that take every block.
    pub(crate) const ALL: [f32; 2] = [f32::INFINITY, 0.0];

    /// Random sets: of each block and key that a block of rows sees, some.
    pub(crate) fn random_sets(
        first_position: usize,
        rows: usize,
        query_heads: usize,
        [blocks, columns]: [f32; 2],
        seed: u64,
    ) -> SparseKeys {
        let mut sets = vec![];
        for head in 0..query_heads {
            for first_row in (0..rows).step_by(SPARSE_BLOCK) {
                let (first, last) =
                    (first_position + first_row, first_position + rows.min(first_row + SPARSE_BLOCK) - 1);
                let draws = noise(seed ^ (head * 1_000 + first_row) as u64, 2 * last + 2);
                let own = first / SPARSE_BLOCK;
                let is_drawn = |index: usize, share: f32| draws[index] < 2.0 * share - 1.0;
                let of_blocks: Vec<u32> = (0..=last / SPARSE_BLOCK)
                    .filter(|&block| block >= own || is_drawn(block, blocks))
                    .map(|block| block as u32)
                    .collect();
                let beside = |&key: &usize| !of_blocks.contains(&((key / SPARSE_BLOCK) as u32));
                let of_columns = (0..first).filter(beside).filter(|key| is_drawn(last + 1 + key, columns));
                sets.push(KeySet { columns: of_columns.map(|key| key as u32).collect(), blocks: of_blocks });
            }
        }
        SparseKeys::new(first_position, rows, query_heads, sets)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn rows_read_their_keys_alone(
            kv_heads in 1usize..3, group in 1usize..4,
            head_dim in prop::sample::select(vec![7usize, 16, 64]),
            rows in 1usize..200, first_position in 0usize..400,
            shares in prop::sample::select(vec![[0.5f32, 0.3], [0.0, 0.0], [0.0, 0.9], ALL]),
            soft_cap in prop::option::of(Just(5.0f32)), seed in any::<u64>(),
        ) {
            let shape = AttentionShape {
                query_heads: kv_heads * group, kv_heads, head_dim, scale: 0.4, soft_cap, window: None, sinks: 0,
            };
            let len = first_position + rows;
            let queries = noise(seed, rows * shape.query_heads * head_dim);
            let stride = (len + 5) * head_dim;
            let (keys, values) = (noise(seed + 1, kv_heads * stride), noise(seed + 2, kv_heads * stride));
            let span = KeySpan {
                first_head: 0, heads: kv_heads, keys: keys[..].into(), values: values[..].into(),
                head_stride: stride, len, first_position: 0, segment: Segment::Prompt,
            };
            let queries = Queries { data: &queries, rows, first_position };
            let sparse = random_sets(first_position, rows, shape.query_heads, shares, seed);
            let seen: usize = (first_position..len).map(|position| position + 1).sum();
            let all = shape.query_heads * seen;
            prop_assert!(sparse.pairs() as usize == all || shares != ALL);
            let mut output = vec![f32::NAN; queries.data.len()];
            sparse_attention(&shape, &queries, &span, &sparse, &mut output);
            let expected = reference::sparse_attention(&shape, &queries, &span, &sparse);
            for (x, e) in output.iter().zip(&expected) {
                prop_assert!((f64::from(*x) - e).abs() < 2e-5, "{x} {e}");
            }
            let pairs = (0..shape.query_heads).map(|head| {
                let of_row = |row: usize| (0..=first_position + row).filter(|&key| sparse.reads(head, row, key)).count();
                (0..rows).map(of_row).sum::<usize>()
            });
            prop_assert_eq!(sparse.pairs() as usize, pairs.sum::<usize>());
            if shares == ALL {
                let mut all = vec![f32::NAN; queries.data.len()];
                attention(&shape, &queries, &[span], &mut all);
                prop_assert!(all.iter().zip(&output).all(|(a, b)| (a - b).abs() < 1e-5));
            }
        }
    }
}
