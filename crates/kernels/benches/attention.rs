//! Speed of attention of one decode row: `cargo bench --bench attention [SHAPE…]`. Each call reads other keys and values, of 256 MiB in f32, as layers do;
//! `MIB=1` reads those of small shapes from cache, `REPEATS=30` measures more often than 7 times.

#![allow(clippy::print_stdout)]

use layerscope_kernels::{
    AttentionShape, Elements, Instructions, KeySpan, Q8Block, Queries, Segment, attention,
};
use std::hint::black_box;
use std::time::Instant;

/// Name, query heads, KV heads, elements of a head.
const SHAPES: [(&str, usize, usize, usize); 4] =
    [("smollm2", 9, 3, 64), ("llama-1b", 32, 8, 64), ("llama-8b", 32, 8, 128), ("gemma-270m", 4, 1, 256)];
const KEYS: [usize; 3] = [512, 2_048, 8_192];

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// All keys and values of a layer.
fn span<'a>(shape: &AttentionShape, keys: Elements<'a>, values: Elements<'a>, len: usize) -> KeySpan<'a> {
    KeySpan {
        first_head: 0,
        heads: shape.kv_heads,
        keys,
        values,
        head_stride: len * shape.head_dim,
        len,
        first_position: 0,
        segment: Segment::Prompt,
    }
}

/// Keys or values as they are stored.
enum Stored {
    F32(Vec<f32>),
    F16(Vec<u16>),
    Q8(Vec<Q8Block>),
}

impl Stored {
    fn all(numbers: usize) -> [(&'static str, Self); 3] {
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 64.0;
        let block = Q8Block::rounded(&std::array::from_fn(value));
        [
            ("f32", Self::F32((0..numbers).map(value).collect())),
            ("f16", Self::F16((0..numbers).map(|i| 0x3000 + (i * 37 % 1_024) as u16).collect())),
            ("q8_0", Self::Q8(vec![block; numbers / Q8Block::ELEMENTS])),
        ]
    }

    fn elements(&self) -> Elements<'_> {
        match self {
            Self::F32(numbers) => Elements::F32(numbers),
            Self::F16(numbers) => Elements::F16(numbers),
            Self::Q8(blocks) => Elements::Q8(blocks),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::F32(numbers) => size_of_val(&numbers[..]),
            Self::F16(numbers) => size_of_val(&numbers[..]),
            Self::Q8(blocks) => size_of_val(&blocks[..]),
        }
    }
}

/// GFLOP/s of the last 512 rows of a prompt of `len` tokens, of the products with keys that they see.
fn prompt_speed(shape: &AttentionShape, len: usize, repeats: usize) -> f64 {
    const ROWS: usize = 512;
    let keys: Vec<u16> =
        (0..shape.kv_heads * len * shape.head_dim).map(|i| 0x3000 + (i * 37 % 1_024) as u16).collect();
    let data: Vec<f32> =
        (0..ROWS * shape.query_heads * shape.head_dim).map(|i| (i * 13 % 29) as f32 / 16.0).collect();
    let mut output = vec![0.0; data.len()];
    let span = span(shape, Elements::F16(&keys), Elements::F16(&keys), len);
    let queries = Queries { data: &data, rows: ROWS, first_position: len - ROWS };
    let mut times = vec![];
    for _ in 0..repeats {
        let start = Instant::now();
        attention(shape, &queries, &[span], &mut output);
        times.push(start.elapsed().as_secs_f64());
        black_box(&mut output);
    }
    let pairs: usize = (len - ROWS + 1..=len).sum();
    (4 * pairs * shape.query_heads * shape.head_dim) as f64 / median(times) / 1e9
}

fn main() {
    // As in the engine: handing out work then changes no thread.
    let _ = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let repeats = std::env::var("REPEATS").ok().and_then(|repeats| repeats.parse().ok()).unwrap_or(7usize);
    let mib = std::env::var("MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(256usize);
    println!(
        "{} threads, {:?}; a decode row's attention in µs, and GB/s of keys and values; 512 rows of a prompt in GFLOP/s",
        rayon::current_num_threads(),
        Instructions::best()
    );
    for (name, query_heads, kv_heads, head_dim) in SHAPES {
        if !wanted.is_empty() && !wanted.iter().any(|wanted| wanted == name) {
            continue;
        }
        let shape = AttentionShape {
            query_heads,
            kv_heads,
            head_dim,
            scale: 0.125,
            soft_cap: None,
            window: None,
            sinks: 0,
        };
        let query: Vec<f32> =
            (0..query_heads * head_dim).map(|i| ((i * 13 % 29) as f32 - 14.0) / 16.0).collect();
        let mut output = vec![0.0; query.len()];
        for len in KEYS {
            print!("{name:>12} {len:>6} keys");
            for (kind, stored) in Stored::all((mib << 18).max(2 * kv_heads * len * head_dim)) {
                let layer = kv_heads * len * head_dim;
                let bytes = 2 * layer * stored.bytes() / stored.elements().len();
                let layers = (stored.elements().len() / (2 * layer)).max(1);
                let mut times = vec![];
                for _ in 0..repeats {
                    let start = Instant::now();
                    for at in 0..layers {
                        let keys = stored.elements().from_index(2 * at * layer);
                        let span = span(&shape, keys, keys.from_index(layer), len);
                        let queries = Queries { data: &query, rows: 1, first_position: len - 1 };
                        attention(&shape, &queries, &[span], &mut output);
                        black_box(&mut output);
                    }
                    times.push(start.elapsed().as_secs_f64() / layers as f64);
                }
                let median = median(times);
                print!("  {kind}: {:.1} {:.1}", median * 1e6, bytes as f64 / median / 1e9);
            }
            println!("  prompt: {:.1}", prompt_speed(&shape, len, repeats));
        }
    }
}
