//! Next-token distributions on a GPU: summaries of rows of logits, comparisons with reference rows, and most likely tokens, with
//! the definitions of [`super`]. Sums are in f64.

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;

use crate::cuda::{Buffer, Device, DeviceError, Element, Numbers, Packs};
use bytemuck::{Pod, Zeroable};

type Result = std::result::Result<(), DeviceError>;

const THREADS: usize = 256;
/// Logits of a row that one block reads.
const PART: usize = THREADS * 32;
/// Shared memory of such a block: sums of its warps.
const PART_SHARED_BYTES: usize = THREADS / 32 * (3 * size_of::<f64>() + 3 * size_of::<f32>());
/// Threads of a block that joins parts, a warp for each row.
const JOINING_THREADS: usize = 128;

/// Summary of a row of logits.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistributionSummary {
    /// max + ln Σ e^{x − max}: a token's NLL is this minus its logit.
    pub log_normaliser: f64,
    /// Σ p ln p, nats.
    pub negative_entropy: f64,
    /// The most likely token, the first of equals.
    pub argmax: u32,
    /// 1 where every logit is finite, else 0, and the other numbers are undefined.
    pub finite: u32,
}

/// How a row of logits differs from a reference row.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ComparisonOnDevice {
    /// KL(reference ‖ row), nats.
    pub kl: f64,
    /// max + ln Σ e^{x − max} of the row: a token's NLL is this minus its logit.
    pub log_normaliser: f64,
    /// Logit of the token that was asked for.
    pub token_logit: f32,
    /// The row's most likely token, the first of equals.
    pub argmax: u32,
    /// 1 where every logit of the row is finite, else 0, and the other numbers are undefined.
    pub finite: u32,
    /// Always 0.
    pub unused: u32,
}

// SAFETY: plain numbers without padding, all zeros valid.
unsafe impl Zeroable for DistributionSummary {}
// SAFETY: as above.
unsafe impl Pod for DistributionSummary {}
// SAFETY: as above.
unsafe impl Zeroable for ComparisonOnDevice {}
// SAFETY: as above.
unsafe impl Pod for ComparisonOnDevice {}

/// The result of a block for its part of a row.
#[repr(C)]
struct LogitsPart {
    total: f64,
    weighted: f64,
    reference_total: f64,
    max: f32,
    argmax: u32,
    finite: u32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct LogitsParameters {
    logits: u64,
    parts: u64,
    reference: u64,
    summaries: u64,
    of: u64,
    reference_rows: u64,
    excluded: u64,
    excluded_count: u32,
    vocab: u32,
    parts_of_row: u32,
    packed: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct JoinParameters {
    parts: u64,
    output: u64,
    logits: u64,
    tokens: u64,
    summaries: u64,
    of: u64,
    reference_rows: u64,
    rows: u64,
    vocab: u32,
    parts_of_row: u32,
}

/// Sums up each row of `logits [rows, vocab]`, f32, to `output`: a [`DistributionSummary`] for each row.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or logits are not in f32.
pub fn summarize(logits: Numbers<'_>, vocab: usize, output: &Buffer) -> Result {
    let rows = rows_of(logits, vocab);
    assert!(output.bytes() >= rows * size_of::<DistributionSummary>(), "a summary for each row");
    let task = Task {
        kernels: ["summarize_parts", "summarize_rows"],
        rows,
        vocab,
        tokens: 0,
        output: output.address(),
        parameters: LogitsParameters { packed: packed(&[logits], vocab), ..LogitsParameters::default() },
    };
    // SAFETY: the lengths are checked above.
    unsafe { task.run(logits) }
}

/// Compares each row of `logits [rows, vocab]` with a row of `reference [n, vocab]`, both f32, to `output`: a
/// [`ComparisonOnDevice`] for each row. `of`, u32 `[rows]`, says with which, and `tokens`, u32 `[rows]`, whose logit to give;
/// of a number beyond the rows or the vocabulary comes NaN. `summaries` are those of the reference, by [`summarize`].
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or logits are not in f32.
pub fn compare(
    reference: Numbers<'_>,
    summaries: &Buffer,
    logits: Numbers<'_>,
    vocab: usize,
    of: &Buffer,
    tokens: &Buffer,
    output: &Buffer,
) -> Result {
    let (reference_rows, rows) = (rows_of(reference, vocab), rows_of(logits, vocab));
    assert!(
        summaries.bytes() >= reference_rows * size_of::<DistributionSummary>(),
        "a summary for each reference row"
    );
    assert!(reference_rows > 0 || rows == 0, "a row to compare with");
    let bytes = rows * size_of::<u32>();
    assert!(of.bytes() >= bytes && tokens.bytes() >= bytes, "a reference row and a token for each row");
    assert!(output.bytes() >= rows * size_of::<ComparisonOnDevice>(), "a comparison for each row");
    let task = Task {
        kernels: ["compare_parts", "compare_rows"],
        rows,
        vocab,
        tokens: tokens.address(),
        output: output.address(),
        parameters: LogitsParameters {
            reference: reference.address(),
            summaries: summaries.address(),
            of: of.address(),
            reference_rows: reference_rows as u64,
            packed: packed(&[logits, reference], vocab),
            ..LogitsParameters::default()
        },
    };
    // SAFETY: the lengths are checked above; the kernels pass over reference rows and tokens that there are none of.
    unsafe { task.run(logits) }
}

/// The most likely token of a row of logits `[vocab]`, f32, the first of equals, to `output`: two u32, the token, and 1 where
/// no logit is NaN, else 0. Tokens among `excluded`, u32 with their count, are passed over; where all are, the token is
/// [`u32::MAX`].
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree, or logits are not in f32.
pub fn argmax(logits: Numbers<'_>, excluded: Option<(&Buffer, usize)>, output: &Buffer) -> Result {
    let vocab = logits.len();
    let rows = rows_of(logits, vocab);
    assert!(output.bytes() >= 2 * size_of::<u32>(), "two numbers");
    let (excluded, excluded_count) = excluded.map_or((0, 0), |(buffer, count)| {
        assert!(buffer.bytes() >= count * size_of::<u32>(), "all tokens");
        (buffer.address(), count)
    });
    let task = Task {
        kernels: ["argmax_parts", "argmax_rows"],
        rows,
        vocab,
        tokens: 0,
        output: output.address(),
        parameters: LogitsParameters {
            excluded,
            excluded_count: excluded_count as u32,
            packed: packed(&[logits], vocab),
            ..LogitsParameters::default()
        },
    };
    // SAFETY: the lengths are checked above.
    unsafe { task.run(logits) }
}

fn rows_of(logits: Numbers<'_>, vocab: usize) -> usize {
    assert!(logits.element() == Element::F32 && vocab > 0 && vocab < 1 << 31, "logits in f32");
    assert!(logits.len().is_multiple_of(vocab), "whole rows");
    logits.len() / vocab
}

fn packed(logits: &[Numbers<'_>], vocab: usize) -> u32 {
    Packs::of(logits).fit(vocab).into()
}

/// A kernel that reads rows part by part, and one that joins the parts.
struct Task {
    kernels: [&'static str; 2],
    rows: usize,
    vocab: usize,
    /// Address of the tokens whose logits are wanted.
    tokens: u64,
    output: u64,
    /// Those of the first kernel, but for what follows from the logits.
    parameters: LogitsParameters,
}

impl Task {
    /// # Safety
    /// Addresses are of as much as the kernels read and write.
    unsafe fn run(&self, logits: Numbers<'_>) -> Result {
        let device: &Device = logits.device();
        let (rows, parts_of_row) = (self.rows, self.vocab.div_ceil(PART));
        let parts = device.allocate(rows * parts_of_row * size_of::<LogitsPart>())?;
        let parameters = LogitsParameters {
            logits: logits.address(),
            parts: parts.address(),
            vocab: self.vocab as u32,
            parts_of_row: parts_of_row as u32,
            ..self.parameters
        };
        let blocks = [rows * parts_of_row, 1, 1];
        // SAFETY: by the contract; a part for each block.
        unsafe { device.launch(self.kernels[0], blocks, THREADS, PART_SHARED_BYTES, &parameters)? };
        let join = JoinParameters {
            parts: parts.address(),
            output: self.output,
            logits: logits.address(),
            tokens: self.tokens,
            summaries: parameters.summaries,
            of: parameters.of,
            reference_rows: parameters.reference_rows,
            rows: rows as u64,
            vocab: self.vocab as u32,
            parts_of_row: parts_of_row as u32,
        };
        let blocks = [rows.div_ceil(JOINING_THREADS / 32), 1, 1];
        // SAFETY: as above.
        unsafe { device.launch(self.kernels[1], blocks, JOINING_THREADS, 0, &join) }
    }
}
