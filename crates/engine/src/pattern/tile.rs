//! Cells of a tile from probabilities.

use super::exponentials::{Run, exponentials, run};
use super::rows::{PatternHeads, PatternTile, TileRequest, UNSEEN};
use super::scores::{KEYS, LayerScores, NORMALISED, ROWS, ScoreBlock};
use crate::session::{Interrupt, check_interrupt};
use crate::{Error, Result};
use layerscope_kernels::exp_nonpositive;
use rayon::prelude::*;
use std::ops::Range;

/// What marks a pair that no head reads.
const UNREAD: f32 = -1.0;

/// What is known of the pairs of a cell.
#[derive(Clone, Copy)]
struct Cell {
    max: f32,
    sum: f32,
    read: u32,
    undefined: bool,
}

impl Cell {
    const EMPTY: Self = Self { max: UNREAD, sum: 0.0, read: 0, undefined: false };

    fn merge(&mut self, other: Self) {
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.read += other.read;
        self.undefined |= other.undefined;
    }
}

pub(super) fn compute(
    scores: &LayerScores,
    text: usize,
    request: &TileRequest,
    interrupt: &Interrupt,
) -> Result<PatternTile> {
    let heads = heads(scores, request)?;
    let within = |range: &Range<usize>| range.start.min(text)..range.end.min(text).max(range.start.min(text));
    let (rows, keys) = (within(&request.rows), within(&request.keys));
    let [tall, wide] = request.cell;
    let (down, across) = (rows.len().div_ceil(tall), keys.len().div_ceil(wide));
    normalise(scores, &heads, &rows, &keys, interrupt)?;
    let blocks = blocks(&rows, tall);
    let of_blocks: Result<Vec<Vec<Cell>>> = blocks
        .par_iter()
        .map(|block| {
            check_interrupt(interrupt)?;
            Ok(block_cells(scores, &heads, request.heads, block, &keys, wide))
        })
        .collect();
    let mut cells = vec![Cell::EMPTY; down * across];
    for (block, of_block) in blocks.iter().zip(of_blocks?) {
        cells[block.first_cell_row * across..]
            .iter_mut()
            .zip(of_block)
            .for_each(|(cell, more)| cell.merge(more));
    }
    let last_row = |index: usize| (rows.start + (index + 1) * tall).min(rows.end) - 1;
    let value = |index: usize, of: fn(&Cell) -> f32| {
        let (cell, first_key) = (&cells[index], keys.start + index % across * wide);
        match cell {
            Cell { undefined: true, .. } => f32::NAN,
            Cell { read: 0, .. } if first_key > last_row(index / across) => UNSEEN,
            Cell { read: 0, .. } => f32::NAN,
            cell => of(cell),
        }
    };
    let max = (0..cells.len()).map(|index| value(index, |cell| cell.max)).collect();
    let mean = (0..cells.len()).map(|index| value(index, |cell| cell.sum / cell.read as f32)).collect();
    Ok(PatternTile { rows: down, columns: across, max, mean })
}

/// The query heads of a request.
fn heads(scores: &LayerScores, request: &TileRequest) -> Result<Range<usize>> {
    if request.cell.contains(&0) {
        return Err(Error::input("a cell of a pattern has at least one query and one key"));
    }
    let heads = scores.reads.shape.query_heads;
    match request.heads {
        PatternHeads::One(head) if head < heads => Ok(head..head + 1),
        PatternHeads::One(head) => {
            Err(Error::input(format!("head {head} is not between 0 and {}", heads.saturating_sub(1))))
        }
        PatternHeads::Mean | PatternHeads::Max => Ok(0..heads),
    }
}

/// Computes the normalisers that the tile needs.
fn normalise(
    scores: &LayerScores,
    heads: &Range<usize>,
    rows: &Range<usize>,
    keys: &Range<usize>,
    interrupt: &Interrupt,
) -> Result<()> {
    // Rows before the first key see none of them.
    let rows = rows.start.max(keys.start)..rows.end;
    if rows.is_empty() || keys.is_empty() {
        return Ok(());
    }
    let blocks = rows.start / NORMALISED..(rows.end - 1) / NORMALISED + 1;
    let units: Vec<(usize, usize)> =
        heads.clone().flat_map(|head| blocks.clone().map(move |block| (head, block))).collect();
    units.par_iter().try_for_each(|&(head, block)| {
        check_interrupt(interrupt)?;
        scores.normalisers(head, block);
        Ok(())
    })
}

/// Rows that are multiplied together.
struct Block {
    rows: Range<usize>,
    /// Rows before them in the first row of cells that they are in.
    offset: usize,
    /// Which that is.
    first_cell_row: usize,
    /// Rows of a cell.
    tall: usize,
}

impl Block {
    /// The row of cells of a row, counted from the block's first one.
    fn cell_row(&self, row: usize) -> usize {
        (self.offset + row) / self.tall
    }

    fn cell_rows(&self) -> usize {
        self.cell_row(self.rows.len() - 1) + 1
    }
}

/// Rows in blocks, which end where blocks of normalisers end.
fn blocks(rows: &Range<usize>, tall: usize) -> Vec<Block> {
    let first_block = rows.start / ROWS;
    let block = |index: usize| {
        let of_block = rows.start.max(index * ROWS)..rows.end.min((index + 1) * ROWS);
        let before = of_block.start - rows.start;
        Block { rows: of_block, offset: before % tall, first_cell_row: before / tall, tall }
    };
    (first_block..rows.end.div_ceil(ROWS)).map(block).filter(|block| !block.rows.is_empty()).collect()
}

/// The cells of a block of rows.
fn block_cells(
    scores: &LayerScores,
    heads: &Range<usize>,
    how: PatternHeads,
    block: &Block,
    keys: &Range<usize>,
    wide: usize,
) -> Vec<Cell> {
    let across = keys.len().div_ceil(wide);
    let mut cells = vec![Cell::EMPTY; block.cell_rows() * across];
    let (mut buffers, mut pairs) = (ScoreBlock::default(), vec![]);
    let end = keys.end.min(block.rows.end);
    for start in (keys.start..end).step_by(KEYS) {
        let some = start..end.min(start + KEYS);
        let grid = Grid { block, some: &some, first: keys.start, wide, across };
        match how {
            PatternHeads::One(head) => {
                scores.runs(head, &block.rows, &some, &mut buffers, &mut |row, range, of_row, normaliser| {
                    grid.parts(row, range.clone(), |cell, part| {
                        let part = &of_row[part.start - range.start..part.end - range.start];
                        let Run { max, sum } = run(part, normaliser);
                        let undefined = sum.is_nan();
                        cells[cell].merge(Cell {
                            max: exp_nonpositive(max - normaliser),
                            sum,
                            read: part.len() as u32,
                            undefined,
                        });
                    });
                });
            }
            PatternHeads::Mean | PatternHeads::Max => {
                pairs.clear();
                pairs.resize(block.rows.len() * some.len(), UNREAD);
                for head in heads.clone() {
                    scores.runs(
                        head,
                        &block.rows,
                        &some,
                        &mut buffers,
                        &mut |row, range, of_row, normaliser| {
                            exponentials(of_row, normaliser);
                            add_head(&mut pairs[row * some.len()..][range], of_row, how, heads.len());
                        },
                    );
                }
                for (row, of_row) in pairs.chunks_exact(some.len()).enumerate() {
                    grid.parts(row, 0..some.len(), |cell, part| cells[cell].merge(reduced(&of_row[part])));
                }
            }
        }
    }
    cells
}

/// Adds what a head's row gives some keys to what others give them.
fn add_head(pairs: &mut [f32], of_head: &[f32], how: PatternHeads, heads: usize) {
    let share = 1.0 / heads as f32;
    match how {
        PatternHeads::Mean => pairs.iter_mut().zip(of_head).for_each(|(mean, p)| {
            *mean = if *mean == UNREAD { 0.0 } else { *mean } + p * share;
        }),
        PatternHeads::One(_) | PatternHeads::Max => pairs.iter_mut().zip(of_head).for_each(|(most, p)| {
            *most = if p.is_nan() || *p > *most { *p } else { *most };
        }),
    }
}

/// Where the pairs of a block of rows and some keys are among its cells.
struct Grid<'a> {
    block: &'a Block,
    some: &'a Range<usize>,
    /// The first key of the tile.
    first: usize,
    wide: usize,
    across: usize,
}

impl Grid<'_> {
    /// Cuts a run of a row's keys, counted from the first of `some`, where cells end: calls `f(cell, keys)`.
    fn parts(&self, row: usize, keys: Range<usize>, mut f: impl FnMut(usize, Range<usize>)) {
        let first_cell = self.block.cell_row(row) * self.across;
        let before = self.some.start - self.first;
        let mut from = keys.start;
        while from < keys.end {
            let column = (before + from) / self.wide;
            let to = ((column + 1) * self.wide - before).min(keys.end);
            f(first_cell + column, from..to);
            from = to;
        }
    }
}

/// Maximum, sum and number of the pairs that are read.
fn reduced(pairs: &[f32]) -> Cell {
    const LANES: usize = 16;
    let (mut max, mut sum, mut read) = ([UNREAD; LANES], [0.0_f32; LANES], [0_u32; LANES]);
    for part in pairs.chunks(LANES) {
        for (((max, sum), read), &p) in max.iter_mut().zip(&mut sum).zip(&mut read).zip(part) {
            *max = if p > *max { p } else { *max };
            // NaN is counted, and makes the sum NaN.
            let is_read = p != UNREAD;
            *sum += if is_read { p } else { 0.0 };
            *read += u32::from(is_read);
        }
    }
    let sum: f32 = sum.into_iter().sum();
    let max = max.into_iter().fold(UNREAD, f32::max);
    Cell { max, sum, read: read.into_iter().sum(), undefined: sum.is_nan() }
}
