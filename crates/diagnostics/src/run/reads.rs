//! The strongest reads of each decode step, as lists in `steps.parquet`.

use layerscope_engine::Result;
use ndarray::Array2;

use super::figures::Grid;
use super::rows_read::PromptRows;
use super::schema::READS;
use super::table_file::TableFile;
use crate::reads::{Read, RowReads};

/// Reads those of a prompt, `[layers, steps]`; `None` where the run does not have them.
pub(super) fn reads(file: &TableFile, prompt_id: &str, layers: usize) -> Result<Option<Array2<RowReads>>> {
    let names = READS.map(|column| column.name);
    let columns: Vec<&str> = ["layer", "step", "position"].into_iter().chain(names).collect();
    let rows = PromptRows::read(file, prompt_id, &columns)?;
    let [positions, masses, of_heads, head_positions, head_attentions] = names;
    let positions = rows.int_lists(positions)?;
    if positions.iter().all(Option::is_none) {
        return Ok(None);
    }
    let masses = rows.single_lists(masses)?;
    let of_heads = rows.int_lists(of_heads)?;
    let (head_positions, head_attentions) =
        (rows.int_lists(head_positions)?, rows.single_lists(head_attentions)?);
    let queries = rows.counts("position")?;
    let mut lists = positions.into_iter().zip(masses).zip(of_heads).zip(head_positions).zip(head_attentions);
    let all: Option<Vec<RowReads>> = queries
        .into_iter()
        .map(|query| {
            let ((((positions, masses), of_heads), head_positions), head_attentions) = lists.next()?;
            let mean = listed(positions?, masses?, query)?;
            let heads = listed(head_positions?, head_attentions?, query)?;
            let mut end = 0_usize;
            let ends: Option<Vec<usize>> = of_heads?
                .into_iter()
                .map(|count| {
                    end = end.checked_add(usize::try_from(count).ok()?)?;
                    Some(end)
                })
                .collect();
            let reads = RowReads { mean, heads, ends: ends? };
            (end == reads.heads.len()).then_some(reads)
        })
        .collect();
    let all = all.ok_or_else(|| rows.damaged("its lists of what is read do not fit each other"))?;
    let grid = Grid::new(&rows, layers, rows.len() / layers, "step")?;
    grid.array(&rows, all).map(Some)
}

/// Positions with the attention on each, all before the query.
fn listed(positions: Vec<i32>, attentions: Vec<f32>, query: usize) -> Option<Vec<Read>> {
    if positions.len() != attentions.len() {
        return None;
    }
    let pairs = positions.into_iter().zip(attentions);
    pairs
        .map(|(position, attention)| {
            let position = u32::try_from(position).ok().filter(|position| (*position as usize) < query)?;
            Some(Read { position, attention })
        })
        .collect()
}
