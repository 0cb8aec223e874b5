//! Activations of some rows, kept while a prompt runs.

use layerscope_engine::{HookPoint, Hooks, Result, Tensor};
use std::cell::RefCell;
use std::ops::Range;

/// Of each place, the activation of the rows in pieces that follow each other: a long prompt runs in chunks.
pub(crate) type Pieces = RefCell<Vec<Vec<Tensor>>>;

/// Keeps what a hook point shows of the rows at `positions` as pieces of a place.
pub(crate) fn keep_rows<'a>(
    hooks: &mut Hooks<'a>,
    point: HookPoint,
    positions: Range<usize>,
    pieces: &'a Pieces,
    place: usize,
) {
    hooks.observe(point, move |context, x| {
        let wanted: Vec<u32> = (0u32..)
            .zip(context.positions)
            .filter(|(_, position)| positions.contains(position))
            .map(|(row, _)| row)
            .collect();
        if !wanted.is_empty() {
            // A copy of its own: a part of a chunk would keep the whole.
            pieces.borrow_mut()[place].push(x.select(&wanted)?);
        }
        Ok(())
    });
}

/// Pieces as one tensor each; `None` where nothing was kept.
///
/// # Errors
/// Where a GPU fails.
pub(crate) fn joined(pieces: Pieces) -> Result<Vec<Option<Tensor>>> {
    let join = |pieces: Vec<Tensor>| match pieces.len() {
        0 => Ok(None),
        _ => Tensor::cat(&pieces.iter().collect::<Vec<_>>()).map(Some),
    };
    pieces.into_inner().into_iter().map(join).collect()
}
