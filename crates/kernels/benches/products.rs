//! Speed of products with weights: arithmetic of many rows, bytes of one. `cargo bench --bench products [FORMAT…]`

#![allow(clippy::print_stdout)]

use layerscope_kernels::Instructions;
use layerscope_kernels::matmul::{ComputeType, Product, ProductRows, WeightFormat, Weights, multiply_with};
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

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let instructions = match std::env::var("INSTRUCTIONS") {
        Ok(name) => Instructions::available().into_iter().find(|known| format!("{known:?}") == name),
        Err(_) => None,
    };
    let instructions = instructions.unwrap_or(Instructions::best());
    println!("{} threads, {instructions:?}", rayon::current_num_threads());
    println!(
        "{:>6} {:>12} {:>12} {:>12} {:>9} {:>8} {:>8} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8} {:>8}",
        "",
        "W",
        "f32 GFLOP/s",
        "bf16 GFLOP/s",
        "row GB/s",
        "1 µs",
        "2 µs",
        "4 µs",
        "8 µs",
        "8 f32 µs",
        "8 bf16 µs",
        "1 i8 µs",
        "8 i8 µs",
        "i8 GB/s"
    );
    for format in WeightFormat::ALL {
        if !wanted.is_empty() && !wanted.contains(&format!("{format:?}")) {
            continue;
        }
        for (n, k) in [(1536usize, 576usize), (576, 1536), (8192, 2048), (2048, 8192)] {
            if !k.is_multiple_of(format.block().0) {
                continue;
            }
            let bytes = n * format.bytes(k);
            // Enough copies that a row's product reads from memory, as a decode step does.
            let copies = ((256 << 20) / bytes).clamp(1, 512);
            let mut data: Vec<u8> = Vec::with_capacity(copies * bytes);
            in_huge_pages(data.spare_capacity_mut());
            data.extend((0..copies * bytes).map(|i| (i * 31 % 61) as u8));
            let weights =
                |copy: usize| Weights { data: &data[copy * bytes..][..bytes], format, rows: n, columns: k };
            let mut speeds = vec![];
            for compute in [ComputeType::F32, ComputeType::Bf16] {
                let m = 512;
                let (x, mut y) = (vec![0.1; m * k], vec![0.0; m * n]);
                let times = (0..7).map(|round| {
                    let mut products = [Product { weights: weights(round % copies), output: &mut y }];
                    let start = Instant::now();
                    multiply_with(instructions, black_box(&x), m, &mut products, compute);
                    start.elapsed().as_secs_f64()
                });
                speeds.push(2e-9 * (m * n * k) as f64 / median(times.collect()));
            }
            let few = [(0, 1), (0, 2), (0, 4), (0, 8), (8, 0), (8, 0), (0, 1), (0, 8)]
                .map(|(together, alone)| ProductRows { together, alone });
            let computes = [ComputeType::F32; 5].into_iter().chain([
                ComputeType::Bf16,
                ComputeType::Int8,
                ComputeType::Int8,
            ]);
            let few = few.into_iter().zip(computes).map(|(rows, compute)| {
                let (x, mut y) = (vec![0.1; rows.count() * k], vec![0.0; rows.count() * n]);
                let times = (0..3).map(|_| {
                    let start = Instant::now();
                    for copy in 0..copies {
                        let mut products = [Product { weights: weights(copy), output: &mut y }];
                        multiply_with(instructions, black_box(&x), rows, &mut products, compute);
                    }
                    start.elapsed().as_secs_f64() / copies as f64
                });
                median(times.collect())
            });
            let few: Vec<f64> = few.collect();
            print!(
                "{:>6} {:>12} {:>12.0} {:>12.0} {:>9.1}",
                format!("{format:?}"),
                format!("{n}×{k}"),
                speeds[0],
                speeds[1],
                1e-9 * bytes as f64 / few[0],
            );
            for seconds in &few {
                print!(" {:>8.1}", 1e6 * seconds);
            }
            println!(" {:>8.1}", 1e-9 * bytes as f64 / few[6]);
        }
    }
}
