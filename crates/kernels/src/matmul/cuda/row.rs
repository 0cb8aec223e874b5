//! Products with few rows of activations.

use super::{Chunk, DeviceWeights, kernel, with_gaps};
use crate::Activation;
use crate::cuda::{Device, DeviceError, Element, Numbers};
use crate::matmul::WeightFormat;

/// Most rows of x that [`multiply_rows`] takes.
pub const FEW_ROWS: usize = 4;
/// Most matrices of a launch.
const MATRICES: usize = 3;
/// Rows of W that a warp multiplies at once.
const GROUP: usize = 4;

/// A matrix and where its product goes.
#[derive(Clone, Copy)]
pub struct RowProduct<'a> {
    /// W.
    pub weights: DeviceWeights<'a>,
    /// Added to every row: f32 `[weights.rows]`.
    pub bias: Option<Numbers<'a>>,
    /// Added, e.g. the residual stream: f32 `[rows of x, weights.rows]`.
    pub add: Option<Numbers<'a>>,
    /// f32 `[rows of x, weights.rows]`; may be the same memory as `add`.
    pub output: Numbers<'a>,
}

/// Mirrors `RowMatrix` of `row.cu`; 0 for what there is not.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RowMatrix {
    data: u64,
    bias: u64,
    add: u64,
    gate: u64,
    output: u64,
    rows: u32,
    groups: u32,
}

/// Mirrors `MultiplyRowsParameters` of `row.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MultiplyRowsParameters {
    matrices: [RowMatrix; MATRICES],
    x: u64,
    row_bytes: u64,
    x_stride: u32,
    columns: u32,
    rows: u32,
    activation: u32,
    gated: u32,
    x_aligned: u32,
    team: u32,
}

/// y = x·Wᵀ of each product, plus what is added to it; x is f32 `[rows, columns]` with at most [`FEW_ROWS`] rows. Sums are in
/// f32. Matrices of the same format are multiplied at once.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn multiply_rows(x: Numbers<'_>, rows: usize, products: &[RowProduct<'_>]) -> Result<(), DeviceError> {
    let mut products: Vec<_> = products.iter().filter(|product| product.weights.rows > 0).collect();
    while let Some(first) = products.first() {
        let format = first.weights.format;
        let mut matrices = vec![];
        products.retain(|product| {
            let taken = product.weights.format == format && matrices.len() < MATRICES;
            if taken {
                matrices.push(matrix(x, rows, product));
            }
            !taken
        });
        multiply(x, rows, format, &mut matrices, Gating::None)?;
    }
    Ok(())
}

/// f(x·Gᵀ) · (x·Uᵀ), f32 `[rows, gate.rows]`, with x as [`multiply_rows`] takes it.
///
/// # Errors
/// As [`multiply_rows`].
///
/// # Panics
/// As [`multiply_rows`].
pub fn multiply_rows_gated(
    activation: Activation,
    x: Numbers<'_>,
    rows: usize,
    gate: &DeviceWeights<'_>,
    up: &DeviceWeights<'_>,
    output: Numbers<'_>,
) -> Result<(), DeviceError> {
    assert_eq!((gate.rows, gate.columns), (up.rows, up.columns), "shapes of gate and up");
    if gate.rows == 0 {
        return Ok(());
    }
    let product = |weights, output| RowProduct { weights, bias: None, add: None, output };
    let up_matrix = matrix(x, rows, &product(*up, output));
    if gate.format == up.format && gate.columns <= most_columns(x.device(), rows) {
        let gate_matrix = matrix(x, rows, &product(*gate, output));
        let matrices = &mut [gate_matrix, up_matrix];
        return multiply(x, rows, gate.format, matrices, Gating::Pair(activation));
    }
    let scratch = x.device().allocate(rows * gate.rows * size_of::<f32>())?;
    let gates = Numbers::new(&scratch, Element::F32, 0, rows * gate.rows);
    multiply_rows(x, rows, &[product(*gate, gates)])?;
    let matrices = &mut [RowMatrix { gate: gates.address(), ..up_matrix }];
    multiply(x, rows, up.format, matrices, Gating::Known(activation))
}

/// Where the gates of products are.
#[derive(Clone, Copy)]
enum Gating {
    /// There are none.
    None,
    /// They are the product with the first of two matrices.
    Pair(Activation),
    /// In memory.
    Known(Activation),
}

/// A product as the kernel takes it, checked; without groups yet.
fn matrix(x: Numbers<'_>, rows: usize, product: &RowProduct<'_>) -> RowMatrix {
    let RowProduct { weights, bias, add, output } = product;
    weights.check();
    assert_eq!(x.len(), rows * weights.columns, "activations");
    assert_eq!(output.len(), rows * weights.rows, "output");
    assert!(bias.is_none_or(|bias| bias.len() == weights.rows), "bias");
    assert!(add.is_none_or(|add| add.len() == output.len()), "what is added");
    let all = [Some(x), *bias, *add, Some(*output)];
    assert!(all.into_iter().flatten().all(|numbers| numbers.element() == Element::F32), "numbers in f32");
    let address = |numbers: Option<Numbers<'_>>| numbers.map_or(0, |numbers| numbers.address());
    RowMatrix {
        data: weights.address(),
        bias: address(*bias),
        add: address(*add),
        gate: 0,
        output: output.address(),
        rows: weights.rows as u32,
        groups: 0,
    }
}

/// Products with matrices of one format, of which there is at least one.
fn multiply(
    x: Numbers<'_>,
    rows: usize,
    format: WeightFormat,
    matrices: &mut [RowMatrix],
    gating: Gating,
) -> Result<(), DeviceError> {
    assert!(rows <= FEW_ROWS, "{rows} rows of activations, of at most {FEW_ROWS}");
    if rows == 0 {
        return Ok(());
    }
    let (columns, chunk) = (x.len() / rows, Chunk::of(format));
    let (gated, activation) = match gating {
        Gating::None => (false, Activation::Silu),
        Gating::Pair(activation) => (true, activation),
        Gating::Known(activation) => (false, activation),
    };
    for (index, matrix) in matrices.iter_mut().enumerate() {
        let rows_of_group = if gated { GROUP / 2 } else { GROUP };
        // Groups of a gate are those of what it gates, too.
        matrix.groups = if gated && index > 0 { 0 } else { matrix.rows.div_ceil(rows_of_group as u32) };
    }
    // Where x is too long for shared memory, some columns after others, adding up in the output.
    let step = most_columns(x.device(), rows);
    for first in (0..columns.max(1)).step_by(step) {
        let last = first + step >= columns;
        let mut part = MultiplyRowsParameters {
            matrices: [RowMatrix::default(); MATRICES],
            x: x.address() + (first * size_of::<f32>()) as u64,
            row_bytes: format.bytes(columns) as u64,
            x_stride: columns as u32,
            columns: step.min(columns - first) as u32,
            rows: rows as u32,
            activation: activation as u32,
            gated: u32::from(gated),
            x_aligned: u32::from(x.address().is_multiple_of(16) && columns.is_multiple_of(4)),
            team: 1,
        };
        for (part, matrix) in part.matrices.iter_mut().zip(&*matrices) {
            *part = *matrix;
            part.data += format.bytes(first) as u64;
            if first > 0 {
                (part.bias, part.add) = (0, matrix.output);
            }
            if !last {
                part.gate = 0;
            }
        }
        launch(x.device(), format, chunk, part)?;
    }
    Ok(())
}

fn launch(
    device: &Device,
    format: WeightFormat,
    chunk: Chunk,
    mut parameters: MultiplyRowsParameters,
) -> Result<(), DeviceError> {
    let (kernel, most_warps) = match parameters.rows {
        1 => (kernel!("multiply_one_row_", format), 16),
        _ => (kernel!("multiply_few_rows_", format), 12),
    };
    let (columns, rows) = (parameters.columns as usize, parameters.rows as usize);
    let whole = columns.next_multiple_of(chunk.columns);
    let x_bytes = rows * (with_gaps(whole) + whole / 16) * size_of::<f32>();
    // As of `STAGES` of `row.cu`.
    let stages = if chunk.bytes <= 960 { 4 } else { 3 };
    let warp_bytes = stages * GROUP * chunk.stride;
    let groups: usize = parameters.matrices.iter().map(|matrix| matrix.groups as usize).sum();
    let blocks = groups.min(device.information().multiprocessors as usize).max(1);
    // Each warp of a team leaves sums for its leader.
    let warp_bytes = warp_bytes + 32 * size_of::<f32>();
    let fitting = shared_bytes(device).saturating_sub(x_bytes) / warp_bytes;
    let most_warps = most_warps.min(fitting).max(1);
    let groups_of_block = groups.div_ceil(blocks);
    // Where there is one group at most for each warp, those without one help.
    let chunks = columns.div_ceil(chunk.columns);
    let team = [8, 4, 2].into_iter().find(|&team| team <= chunks && groups_of_block * team <= most_warps);
    let team = team.unwrap_or(1);
    let warps = (groups_of_block * team).min(most_warps);
    parameters.team = team as u32;
    let bytes = x_bytes + warps * warp_bytes;
    // SAFETY: matrices, biases, what is added and outputs are as long as `matrix` has checked, and x has these columns.
    unsafe { device.launch(kernel, [blocks, 1, 1], 32 * warps, bytes, &parameters) }
}

/// Shared memory that a block can have.
fn shared_bytes(device: &Device) -> usize {
    let kibibytes = match device.information().compute_capability {
        (8, 0 | 7) => 163,
        (9 | 10, _) => 227,
        _ => 99,
    };
    kibibytes << 10
}

/// Columns of x that are multiplied at once: such that it takes about half of the shared memory.
pub(super) fn most_columns(device: &Device, rows: usize) -> usize {
    let columns = shared_bytes(device) / 2 / (rows.max(1) * size_of::<f32>());
    // With gaps and sums, it takes 19/16 as much.
    (columns * 16 / 19 / 1024 * 1024).max(1024)
}
