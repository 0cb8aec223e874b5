//! Speed of products with weights: arithmetic of many rows, bytes of one. `cargo bench --bench products [FORMAT…]`; `COLUMNS=i8`
//! measures only columns whose names begin so, `REPEATS=100` more often than 7 times, `SHAPE=1536×576` only that one; `MIB=1` reads weights
//! from cache rather than from 256 MiB of memory; `LAYOUT=rows` multiplies row-major weights.

#![allow(clippy::print_stdout)]

use layerscope_kernels::Instructions;
use layerscope_kernels::matmul::{
    ComputeType, Layout, Product, ProductRows, WeightFormat, Weights, multiply_with,
};
use std::hint::black_box;
use std::time::Instant;

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// As weights are where the system allows it.
fn in_huge_pages(memory: &mut [std::mem::MaybeUninit<u8>]) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut std::ffi::c_void, length: usize, advice: i32) -> i32;
        }
        const PAGE: usize = 4096;
        const HUGE_PAGES: i32 = 14;
        let start = memory.as_mut_ptr().map_addr(|address| address.next_multiple_of(PAGE));
        // SAFETY: whole pages of this memory; a failure changes nothing.
        unsafe { madvise(start.cast(), memory.len().saturating_sub(PAGE) / PAGE * PAGE, HUGE_PAGES) };
    }
}

/// What is measured: a name, rows, and how they are multiplied. Many rows are measured in GFLOP/s, few in µs.
const COLUMNS: [(&str, ProductRows, ComputeType); 11] = [
    ("f32 512", together(512), ComputeType::F32),
    ("bf16 512", together(512), ComputeType::Bf16),
    ("i8 512", alone(512), ComputeType::Int8),
    ("f32 1", alone(1), ComputeType::F32),
    ("f32 2", alone(2), ComputeType::F32),
    ("f32 4", alone(4), ComputeType::F32),
    ("f32 8", alone(8), ComputeType::F32),
    ("f32 8 together", together(8), ComputeType::F32),
    ("bf16 8 together", together(8), ComputeType::Bf16),
    ("i8 1", alone(1), ComputeType::Int8),
    ("i8 8", alone(8), ComputeType::Int8),
];

const fn together(together: usize) -> ProductRows {
    ProductRows { together, alone: 0 }
}

const fn alone(alone: usize) -> ProductRows {
    ProductRows { together: 0, alone }
}

fn main() {
    // As in the engine: handing out work then changes no thread.
    let _ = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let columns = std::env::var("COLUMNS").unwrap_or_default();
    let instructions = match std::env::var("INSTRUCTIONS") {
        Ok(name) => Instructions::available().into_iter().find(|known| format!("{known:?}") == name),
        Err(_) => None,
    };
    let instructions = instructions.unwrap_or(Instructions::best());
    let repeats = std::env::var("REPEATS").ok().and_then(|repeats| repeats.parse().ok()).unwrap_or(7usize);
    let shape = std::env::var("SHAPE");
    let layout = if std::env::var("LAYOUT").is_ok_and(|layout| layout == "rows") {
        Layout::Rows
    } else {
        Layout::Interleaved
    };
    let mib = std::env::var("MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(256);
    println!(
        "{} threads, {instructions:?}; 512 rows in GFLOP/s, few in µs and GB/s of weights",
        rayon::current_num_threads()
    );
    for format in WeightFormat::ALL {
        if !wanted.is_empty() && !wanted.contains(&format!("{format:?}")) {
            continue;
        }
        let layout = if format.prefers_interleaved() { layout } else { Layout::Rows };
        for (n, k) in [(1536usize, 576usize), (576, 1536), (8192, 2048), (2048, 8192)] {
            let is_wanted = shape.as_ref().map_or(true, |shape| *shape == format!("{n}×{k}"));
            if !k.is_multiple_of(format.block().0) || !is_wanted {
                continue;
            }
            let bytes = n * format.bytes(k);
            // Enough copies that a row's product reads from memory, as a decode step does.
            let copies = ((mib << 20) / bytes).clamp(1, 512);
            let mut data: Vec<u8> = Vec::with_capacity(copies * bytes);
            in_huge_pages(data.spare_capacity_mut());
            // High bytes of floats are those of normal numbers.
            let float = if format.block().0 == 1 { format.block().1 } else { usize::MAX };
            data.extend(
                (1..=copies * bytes).map(|i| if i % float == 0 { 0x3c } else { (i * 31 % 61) as u8 }),
            );
            let weights = |copy: usize| Weights {
                data: &data[copy * bytes..][..bytes],
                format,
                rows: n,
                columns: k,
                layout,
            };
            print!("{:>6} {:>10}", format!("{format:?}"), format!("{n}×{k}"));
            for (name, rows, compute) in COLUMNS {
                if !name.starts_with(&columns) {
                    continue;
                }
                let m = rows.count();
                let (x, mut y) = (vec![0.1; m * k], vec![0.0; m * n]);
                let copies = if m == 512 { 1 } else { copies };
                let times = (0..repeats).map(|_| {
                    let start = Instant::now();
                    for copy in 0..copies {
                        let mut products = [Product { weights: weights(copy), output: &mut y }];
                        multiply_with(instructions, black_box(&x), rows, &mut products, compute);
                    }
                    start.elapsed().as_secs_f64() / copies as f64
                });
                let seconds = median(times.collect());
                match m {
                    512 => print!("  {name}: {:.0}", 2e-9 * (m * n * k) as f64 / seconds),
                    _ => print!("  {name}: {:.1} {:.1}", 1e6 * seconds, 1e-9 * bytes as f64 / seconds),
                }
            }
            println!();
        }
    }
}
