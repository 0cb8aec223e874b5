//! Attention of many rows at once, on tensor cores: the kernel of the prefill.

use crate::AttentionShape;
use crate::cuda::{Device, DeviceError, Element, Numbers};
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
}

/// A kernel, with what its `Layout` says.
struct Kernel {
    name: &'static str,
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
        let kernel = |name, threads, tile_keys, queries_stay| {
            Some(Self { name, threads, rows: 128, tile_keys, queries_stay })
        };
        match head_dim {
            64 => kernel("prefill_attention_bf16_64", 128, 64, false),
            80 => kernel("prefill_attention_bf16_80", 128, 64, false),
            96 => kernel("prefill_attention_bf16_96", 128, 64, true),
            128 => kernel("prefill_attention_bf16_128", 128, 64, true),
            256 => kernel("prefill_attention_bf16_256", 256, 32, false),
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
    let Prefill { shape, queries, keys, values, capacity, first_slot, rows, output } = *p;
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
    let Some(kernel) = Kernel::of(head_dim).filter(|_| rows > 0) else { return Ok(()) };
    let tiles = rows.div_ceil(kernel.rows);
    assert!(tiles <= MOST_TILES, "rows");

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
    };
    let shared_bytes = kernel.shared_bytes(head_dim);
    // SAFETY: the kernel's parameters, with numbers as many as were just checked.
    unsafe {
        device.launch(
            kernel.name,
            [query_heads / kv_heads, kv_heads, tiles],
            kernel.threads,
            shared_bytes,
            &parameters,
        )
    }
}

#[cfg(all(test, feature = "cuda-emulation"))]
mod tests;
