//! Attention of many rows at once, on tensor cores: the kernel of the prefill.

use crate::cuda::{Buffer, Device, DeviceError, Element, Numbers};
use crate::{AttentionShape, SPARSE_BLOCK, SparseKeys};
use std::collections::BTreeMap;
use std::f32::consts::LOG2_E;

/// Slots and windows are added in 32 bits.
const MOST_SLOTS: usize = 1 << 29;
const MOST_TILES: usize = 65535;

/// Rows of queries and the KV cache that they attend to, which has their own keys and values, too.
#[derive(Clone, Copy)]
pub struct Prefill<'a> {
    /// Sizes, scale, soft cap and window.
    pub shape: AttentionShape,
    /// bf16 `[rows, query_heads, head_dim]`.
    pub queries: Numbers<'a>,
    /// bf16 `[kv_heads, capacity, head_dim]`.
    pub keys: Numbers<'a>,
    /// Laid out as the keys.
    pub values: Numbers<'a>,
    /// Slots of each head of keys and values.
    pub capacity: usize,
    /// Row r has its own key in slot `first_slot` + r; it sees the slots up to it, and of these the last `window`.
    pub first_slot: usize,
    /// Number of rows.
    pub rows: usize,
    /// What each row reads; all that it sees where there is none. Not for layers with a window.
    pub sparse: Option<&'a SparseKeys>,
    /// bf16 `[rows, query_heads, head_dim]`.
    pub output: Numbers<'a>,
}

/// As in `prefill.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Parameters {
    queries: u64,
    keys: u64,
    values: u64,
    output: u64,
    head_stride: u64,
    rows: i32,
    first_slot: i32,
    window: i32,
    factor: f32,
    cap_factor: f32,
    tile_starts: u64,
    tiles: u64,
    columns: u64,
}

/// A kernel, with what its `Layout` says.
struct Kernel {
    name: &'static str,
    sparse_name: &'static str,
    threads: usize,
    /// Query rows of a block.
    rows: usize,
    /// Keys that are copied at once.
    tile_keys: usize,
    /// Whether queries stay in shared memory.
    queries_stay: bool,
}

impl Kernel {
    fn of(head_dim: usize) -> Option<Self> {
        let kernel = |[name, sparse_name]: [&'static str; 2], threads, tile_keys, queries_stay| {
            Some(Self { name, sparse_name, threads, rows: 128, tile_keys, queries_stay })
        };
        macro_rules! names {
            ($dim:literal) => {
                [concat!("prefill_attention_bf16_", $dim), concat!("sparse_prefill_attention_bf16_", $dim)]
            };
        }
        match head_dim {
            64 => kernel(names!(64), 128, 64, false),
            80 => kernel(names!(80), 128, 64, false),
            96 => kernel(names!(96), 128, 64, true),
            128 => kernel(names!(128), 128, 64, true),
            256 => kernel(names!(256), 256, 32, false),
            _ => None,
        }
    }

    /// Two stages of keys and values, behind the queries or in their place.
    fn shared_bytes(&self, head_dim: usize) -> usize {
        let (queries, stages) = (self.rows, 4 * self.tile_keys);
        let rows = if self.queries_stay { queries + stages } else { queries.max(stages) };
        rows * head_dim * Element::Bf16.bytes()
    }
}

/// The tiles of keys that blocks of rows read, as the kernel takes them.
#[derive(Default)]
struct TileLists {
    /// Where the list of each head and block of rows begins, and where the last one ends.
    starts: Vec<i32>,
    /// First slot, or first column, and flags.
    tiles: Vec<[i32; 2]>,
    /// Slots.
    columns: Vec<i32>,
}

impl TileLists {
    const GATHERED: i32 = 4;

    fn new(kernel: &Kernel, p: &Prefill<'_>, sparse: &SparseKeys) -> Self {
        let halves = kernel.rows / SPARSE_BLOCK;
        let mut lists = Self { starts: vec![0], ..Self::default() };
        for head in 0..p.shape.query_heads {
            for first_row in (0..p.rows).step_by(kernel.rows) {
                let row_blocks =
                    first_row / SPARSE_BLOCK..p.rows.min(first_row + kernel.rows).div_ceil(SPARSE_BLOCK);
                let last_slot = p.first_slot + p.rows.min(first_row + kernel.rows) - 1;
                let mut blocks: BTreeMap<u32, i32> = BTreeMap::new();
                for row_block in row_blocks.clone() {
                    let half = 1 << (row_block % halves);
                    let of_half = &sparse.set(head, row_block).blocks;
                    of_half.iter().for_each(|&block| *blocks.entry(block).or_default() |= half);
                }
                for (block, readers) in blocks {
                    let first = block as usize * SPARSE_BLOCK;
                    let tiles = (first..first + SPARSE_BLOCK).step_by(kernel.tile_keys);
                    lists.tiles.extend(
                        tiles.take_while(|&slot| slot <= last_slot).map(|slot| [slot as i32, readers]),
                    );
                }
                for row_block in row_blocks {
                    for columns in sparse.set(head, row_block).columns.chunks(kernel.tile_keys) {
                        let flags = 1 << (row_block % halves) | Self::GATHERED | (columns.len() as i32) << 3;
                        lists.tiles.push([lists.columns.len() as i32, flags]);
                        lists.columns.extend(columns.iter().map(|&column| column as i32));
                    }
                }
                lists.starts.push(lists.tiles.len() as i32);
            }
        }
        lists
    }
}

/// Whether the kernel supports layers of this shape on this device: windows, but not with sinks.
pub fn supports(shape: &AttentionShape, device: &Device) -> bool {
    Kernel::of(shape.head_dim).is_some()
        && device.information().compute_capability >= (8, 0)
        && (shape.sinks == 0 || shape.window.is_none())
        && shape.scale > 0.0
        && shape.soft_cap.is_none_or(|cap| cap > 0.0)
}

/// softmax(q·kᵀ·scale)·v, in bf16; sums are in f32, and the weights of values are rounded to bf16.
///
/// Slots that no row sees have no influence, whatever they contain.
///
/// # Errors
/// Where the device fails.
///
/// # Panics
/// If sizes do not agree or [`supports`] does not hold.
pub fn attention(p: &Prefill<'_>) -> Result<(), DeviceError> {
    let Prefill { shape, queries, keys, values, capacity, first_slot, rows, sparse, output } = *p;
    let AttentionShape { query_heads, kv_heads, head_dim, scale, soft_cap, window, .. } = shape;
    let device = queries.device();
    assert!(supports(&shape, device), "a shape that the kernel takes");
    let all = [queries, keys, values, output];
    assert!(all.iter().all(|numbers| numbers.element() == Element::Bf16), "numbers in bf16");
    assert!(
        all.iter().all(|numbers| numbers.address().is_multiple_of(16)),
        "numbers from multiples of 16 bytes on"
    );
    assert!(kv_heads > 0 && query_heads.is_multiple_of(kv_heads), "heads divide");
    assert_eq!(queries.len(), rows * query_heads * head_dim, "queries");
    assert_eq!(output.len(), queries.len(), "output");
    assert_eq!(keys.len(), kv_heads * capacity * head_dim, "keys");
    assert_eq!(values.len(), keys.len(), "values");
    assert!(first_slot + rows <= capacity && capacity <= MOST_SLOTS, "slots");
    assert!(window != Some(0), "a row sees itself");
    assert!(sparse.is_none() || window.is_none(), "rows that read some keys have no window");
    let Some(kernel) = Kernel::of(head_dim).filter(|_| rows > 0) else { return Ok(()) };
    let tiles = rows.div_ceil(kernel.rows);
    assert!(tiles <= MOST_TILES, "rows");

    let lists = sparse.map(|sparse| TileLists::new(&kernel, p, sparse));
    let lists = match lists {
        None => None,
        Some(TileLists { starts, tiles, columns }) => {
            // A list without columns has an address nevertheless.
            let columns = if columns.is_empty() { vec![0] } else { columns };
            Some([device.upload(&starts)?, device.upload(&tiles)?, device.upload(&columns)?])
        }
    };
    let addresses = lists.as_ref().map_or([0; 3], |lists| lists.each_ref().map(Buffer::address));
    let natural = soft_cap.unwrap_or(scale);
    let parameters = Parameters {
        queries: queries.address(),
        keys: keys.address(),
        values: values.address(),
        output: output.address(),
        head_stride: (capacity * head_dim * Element::Bf16.bytes()) as u64,
        rows: rows as i32,
        first_slot: first_slot as i32,
        window: window.map_or(MOST_SLOTS, |window| window.min(MOST_SLOTS)) as i32,
        factor: natural * LOG2_E,
        cap_factor: soft_cap.map_or(0.0, |cap| 2.0 * LOG2_E * scale / cap),
        tile_starts: addresses[0],
        tiles: addresses[1],
        columns: addresses[2],
    };
    let shared_bytes = kernel.shared_bytes(head_dim);
    // SAFETY: the kernel's parameters, with numbers as many as were just checked.
    unsafe {
        device.launch(
            if sparse.is_some() { kernel.sparse_name } else { kernel.name },
            [query_heads / kv_heads, kv_heads, tiles],
            kernel.threads,
            shared_bytes,
            &parameters,
        )
    }
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
