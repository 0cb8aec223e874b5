//! The positions that rows read most (`reads.cu`), of the probabilities that [`received`](super::spans::received) left.

use crate::attention::{Read, ReadLimits, RowReads};
use crate::cuda::{Device, DeviceError, Element, Numbers};
use std::ops::Range;

const THREADS: usize = 128;
/// Shared memory of a block: a candidate of each warp.
const SHARED: usize = THREADS / 32 * 8;

#[repr(C)]
#[derive(Clone, Copy)]
struct MeanParameters {
    probabilities: u64,
    means: u64,
    count: u32,
    heads: u32,
    factor: f32,
    unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ListParameters {
    attention: u64,
    reads: u64,
    count: u32,
    first: u32,
    end: u32,
    most: u32,
    least: f32,
    unused: u32,
}

/// What each row reads most, of probabilities f32 `[rows, heads, count]`.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree.
pub fn strongest(
    probabilities: Numbers<'_>,
    [rows, heads, count]: [usize; 3],
    limits: &ReadLimits,
) -> Result<Vec<RowReads>, DeviceError> {
    assert!(probabilities.element() == Element::F32, "probabilities in f32");
    assert!(
        probabilities.len() >= rows * heads * count && u32::try_from(count).is_ok(),
        "sizes of probabilities"
    );
    if rows * heads * count == 0 {
        return Ok(vec![RowReads { ends: vec![0; heads], ..RowReads::default() }; rows]);
    }
    let device = probabilities.device();
    let means = device.allocate(rows * count * 4)?;
    let parameters = MeanParameters {
        probabilities: probabilities.address(),
        means: means.address(),
        count: count as u32,
        heads: heads as u32,
        factor: 1.0 / heads as f32,
        unused: 0,
    };
    // SAFETY: sizes were checked.
    unsafe { device.launch("mean_over_heads", [count.div_ceil(THREADS), rows, 1], THREADS, 0, &parameters)? };

    let within = limits.positions.start.min(count)..limits.positions.end.min(count);
    let list = |attention, lists, most, least| {
        let matrix = Matrix { attention, lists, count };
        matrix.strongest(device, within.clone(), most, least)
    };
    let of_heads = list(probabilities, rows * heads, limits.of_head, limits.least_of_head)?;
    let of_means = list(Numbers::all(&means, Element::F32), rows, limits.of_mean, limits.least_of_mean)?;
    let mut of_heads = of_heads.into_iter();
    let row = |mean| {
        let mut row = RowReads { mean, ..RowReads::default() };
        for list in of_heads.by_ref().take(heads) {
            row.heads.extend(list);
            row.ends.push(row.heads.len());
        }
        row
    };
    Ok(of_means.into_iter().map(row).collect())
}

/// Attention f32 `[lists, count]`.
struct Matrix<'a> {
    attention: Numbers<'a>,
    lists: usize,
    count: usize,
}

impl Matrix<'_> {
    /// The strongest positions of each list, in order.
    fn strongest(
        &self,
        device: &Device,
        within: Range<usize>,
        most: usize,
        least: f32,
    ) -> Result<Vec<Vec<Read>>, DeviceError> {
        let most = most.min(within.len());
        if most == 0 {
            return Ok(vec![vec![]; self.lists]);
        }
        let reads = device.allocate(self.lists * most * 8)?;
        let parameters = ListParameters {
            attention: self.attention.address(),
            reads: reads.address(),
            count: self.count as u32,
            first: within.start as u32,
            end: within.end as u32,
            most: most as u32,
            // What gets nothing is not read.
            least: least.max(f32::MIN_POSITIVE),
            unused: 0,
        };
        // SAFETY: there is a place for each read of each list.
        unsafe { device.launch("strongest_reads", [self.lists, 1, 1], THREADS, SHARED, &parameters)? };
        let numbers = reads.to_vec::<u32>()?;
        let list = |list: &[u32]| {
            let reads = list.as_chunks().0.iter();
            let reads = reads.map(|&[position, bits]| Read { position, attention: f32::from_bits(bits) });
            reads.take_while(|read| read.attention > 0.0).collect()
        };
        Ok(numbers.chunks_exact(2 * most).map(list).collect())
    }
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
