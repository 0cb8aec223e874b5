//! The attention pattern of the generated rows, as far as the sparse record has it.

use super::RowReads;
use layerscope_engine::{PatternHeads, UNSEEN};
use ndarray::ArrayView1;
use std::ops::Range;

/// Which part of a pattern is wanted: whole cells of queries × keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CellRange {
    /// Rows of cells, counted from position 0 on.
    pub rows: Range<usize>,
    /// Columns of cells, counted from position 0 on.
    pub columns: Range<usize>,
    /// Queries and keys of a cell.
    pub cell: [usize; 2],
}

/// The largest attention of each cell, row by row, of the decode rows of one layer: what is listed for the heads; 0 where a prompt
/// position is not listed, which is then weaker than what is; NaN where nothing is recorded (position 0 and decode keys, and rows of
/// the prompt); [`UNSEEN`] where all keys come after the queries. `bos` tells attention on position 0 by step, where that is known.
pub fn recorded_cells(
    of_steps: ArrayView1<'_, RowReads>,
    heads: PatternHeads,
    prompt_len: usize,
    range: &CellRange,
    bos: Option<&dyn Fn(usize) -> f32>,
) -> Vec<f32> {
    let (columns, [tall, wide]) = (range.columns.len(), range.cell.map(|size| size.max(1)));
    let boundary = prompt_len.saturating_sub(1);
    let listed = 1..boundary;
    let mut values = vec![f32::NAN; range.rows.len() * columns];
    for (line, row) in values.chunks_exact_mut(columns.max(1)).zip(range.rows.clone()) {
        let queries = row * tall..(row + 1) * tall;
        for (value, column) in line.iter_mut().zip(range.columns.clone()) {
            let keys = column * wide..(column + 1) * wide;
            if keys.start >= queries.end {
                *value = UNSEEN;
            } else if queries.end > boundary && keys.start < listed.end && keys.end > listed.start {
                *value = 0.0;
            }
        }
        let mut put = |position: usize, attention: f32| {
            let place = (position / wide).checked_sub(range.columns.start);
            if let Some(value) = place.and_then(|column| line.get_mut(column)) {
                *value = if *value >= attention { *value } else { attention };
            }
        };
        for query in queries {
            let step = query.checked_sub(boundary);
            let Some((step, of_step)) = step.and_then(|step| Some((step, of_steps.get(step)?))) else {
                continue;
            };
            let list = match heads {
                PatternHeads::One(head) => of_step.of_head(head),
                PatternHeads::Mean => &of_step.mean[..],
                PatternHeads::Max => &of_step.heads[..],
            };
            list.iter().for_each(|read| put(read.position as usize, read.attention));
            if let Some(bos) = bos {
                put(0, bos(step));
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reads::Read;
    use ndarray::Array1;

    #[test]
    fn cells_hold_what_is_listed_and_say_what_is_not() {
        let read = |position, attention| Read { position, attention };
        let row = |mean: Vec<Read>, heads: Vec<Read>, first: usize| {
            let ends = vec![first, heads.len()];
            RowReads { mean, heads, ends }
        };
        // p = 5: rows are at positions 4 and 5.
        let reads = Array1::from(vec![
            row(vec![read(2, 0.3)], vec![read(2, 0.4), read(3, 0.2)], 1),
            row(vec![read(1, 0.1), read(3, 0.05)], vec![read(1, 0.6)], 0),
        ]);
        let cells =
            |heads, rows: Range<usize>, columns: Range<usize>, cell, bos: Option<&dyn Fn(usize) -> f32>| {
                recorded_cells(reads.view(), heads, 5, &CellRange { rows, columns, cell }, bos)
            };
        let (nan, no) = (f32::NAN, UNSEEN);
        let same = |actual: Vec<f32>, expected: &[f32]| {
            assert_eq!(format!("{actual:?}"), format!("{expected:?}"));
        };
        let bos = |step: usize| [0.5, 0.25][step];
        let single = [0.5, 0.0, 0.3, 0.0, nan, no, 0.25, 0.1, 0.0, 0.05, nan, nan];
        same(cells(PatternHeads::Mean, 4..6, 0..6, [1, 1], Some(&bos)), &single);
        same(cells(PatternHeads::One(1), 4..6, 1..4, [1, 1], None), &[0.0, 0.0, 0.2, 0.6, 0.0, 0.0]);
        same(cells(PatternHeads::Max, 2..3, 0..3, [2, 2], None), &[0.6, 0.4, nan]);
        // A row of the prompt, and a step that there is not.
        same(cells(PatternHeads::Max, 3..4, 0..5, [1, 1], None), &[nan, nan, nan, nan, no]);
        same(cells(PatternHeads::Max, 9..10, 1..2, [1, 1], None), &[0.0]);
    }
}
