use super::*;
use crate::reference;

/// Deterministic numbers in −1 … 1 that no pattern of blocks repeats.
pub(super) fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Where the f16 scales of a block are, and how large they are.
fn scales(format: WeightFormat) -> &'static [(usize, f32)] {
    match format {
        WeightFormat::Q4_0
        | WeightFormat::Q5_0
        | WeightFormat::Q8_0
        | WeightFormat::Q8_1
        | WeightFormat::IQ4NL => &[(0, 0.05)],
        WeightFormat::Q4_1 | WeightFormat::Q5_1 | WeightFormat::Q4K | WeightFormat::Q5K => {
            &[(0, 0.05), (2, 0.03)]
        }
        WeightFormat::Q2K => &[(80, 0.05), (82, 0.03)],
        WeightFormat::Q3K => &[(108, 0.05)],
        WeightFormat::Q6K => &[(208, 0.05)],
        WeightFormat::TQ1_0 => &[(52, 0.05)],
        WeightFormat::TQ2_0 => &[(64, 0.05)],
        // The other ones begin with it, or have none such.
        WeightFormat::F32
        | WeightFormat::F16
        | WeightFormat::BF16
        | WeightFormat::Q8K
        | WeightFormat::MXFP4
        | WeightFormat::IQ1M => &[],
        _ => &[(0, 0.05)],
    }
}

/// Random blocks: any bits but for the scales, which are sane.
pub(super) fn random_weights(format: WeightFormat, rows: usize, columns: usize, seed: u64) -> Vec<u8> {
    let (elements, bytes) = format.block();
    let values = noise(seed, rows * columns + 1);
    if let WeightFormat::F32 | WeightFormat::F16 | WeightFormat::BF16 = format {
        let values = &values[..rows * columns];
        return match format {
            WeightFormat::F16 => values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
            WeightFormat::BF16 => {
                values.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        };
    }
    let mut data: Vec<u8> = noise(seed + 1, rows * columns / elements * bytes)
        .iter()
        .map(|x| ((x + 1.0) * 127.99) as u8)
        .collect();
    for (block, &value) in data.chunks_exact_mut(bytes).zip(&values) {
        for &(at, size) in scales(format) {
            block[at..at + 2].copy_from_slice(&half::f16::from_f32(value * size).to_le_bytes());
        }
        match format {
            WeightFormat::Q8K => block[..4].copy_from_slice(&(value * 0.05).to_le_bytes()),
            WeightFormat::MXFP4 => block[0] = 120 + block[0] % 8,
            // The highest bits of its scale: the exponent is about that of 1/16.
            WeightFormat::IQ1M => block[55] = block[55] & 0x8f | 0x20,
            _ => {}
        }
    }
    data
}

/// Largest |difference| relative to Σ|w·x|, of the product in question against the plain one in f64.
fn error(weights: Weights<'_>, x: &[f32], rows: usize, y: &[f32]) -> f64 {
    let mut worst = 0f64;
    let mut w = vec![0.0; weights.columns];
    for output in 0..weights.rows {
        weights.dequantize_row(output, &mut w);
        for row in 0..rows {
            let (expected, size) = reference::dot(&x[row * w.len()..][..w.len()], &w);
            worst = worst.max((f64::from(y[row * weights.rows + output]) - expected).abs() / size.max(1e-30));
        }
    }
    worst
}

fn check(instructions: Instructions, format: WeightFormat, (m, n, k): (usize, usize, usize), seed: u64) {
    let data = random_weights(format, n, k, seed);
    let weights = Weights { data: &data, format, rows: n, columns: k, layout: Layout::Rows };
    let x = noise(seed + 7, m * k);
    for compute in [ComputeType::F32, ComputeType::Bf16, ComputeType::Int8] {
        let mut y = vec![f32::NAN; m * n];
        multiply_with(instructions, &x, m, &mut [Product { weights, output: &mut y }], compute);
        let in_bf16 = compute != ComputeType::F32 && instructions.has_bf16() && m > 1;
        let in_bytes =
            compute == ComputeType::Int8 && (m == 1 || !instructions.has_bf16()) && format.has_bytes();
        let in_words = m == 1 && format.block().0 == 256;
        let tolerance = match (in_bf16 || in_bytes, in_words) {
            (true, _) => 4e-3,
            // Activations of sixteen bits.
            (_, true) => 3e-5,
            _ => 2e-6,
        };
        let error = error(weights, &x, m, &y);
        assert!(error < tolerance, "{instructions:?} {format:?} {m}×{n}×{k} {compute:?}: {error:e}");
        if instructions == Instructions::best() {
            assert_eq!(products(&x, m, &[weights], compute), [y], "{format:?} {m}×{n}×{k} {compute:?}");
        }
    }
}

#[test]
fn products_equal_the_plain_ones_for_every_format_row_count_and_instruction_set() {
    for instructions in Instructions::available() {
        for (seed, format) in (0..).zip(WeightFormat::ALL) {
            for m in [1, 2, 3, 4, 7, 8, 23] {
                check(instructions, format, (m, 37, 256), seed);
            }
            check(instructions, format, (3, 1, 1536), seed);
            let block = format.block().0;
            check(instructions, format, (1, 5, block), seed);
            check(instructions, format, (9, 70, block * 5), seed);
        }
    }
}

#[test]
fn long_products_equal_the_plain_ones() {
    check(Instructions::best(), WeightFormat::Q4_1, (512, 96, 576), 1);
    check(Instructions::best(), WeightFormat::Q6K, (5, 40, 2048 + 256), 2);
    check(Instructions::best(), WeightFormat::F32, (65, 33, 1027), 3);
    check(Instructions::best(), WeightFormat::BF16, (17, 33, 1025), 4);
}

#[test]
fn several_matrices_are_multiplied_at_once() {
    let k = 64;
    let data =
        [(WeightFormat::Q8_0, 40), (WeightFormat::F32, 7)].map(|(format, n)| random_weights(format, n, k, 5));
    let [a, b] = [
        Weights { data: &data[0], format: WeightFormat::Q8_0, rows: 40, columns: k, layout: Layout::Rows },
        Weights { data: &data[1], format: WeightFormat::F32, rows: 7, columns: k, layout: Layout::Rows },
    ];
    for m in [1, 3] {
        let x = noise(1, m * k);
        let (mut y, mut z) = (vec![0.0; m * a.rows], vec![0.0; m * b.rows]);
        let mut products = [Product { weights: a, output: &mut y }, Product { weights: b, output: &mut z }];
        multiply(&x, m, &mut products, ComputeType::F32);
        assert!(error(a, &x, m, &y) < 2e-6 && error(b, &x, m, &z) < 2e-6);
    }
}

#[test]
fn extreme_activations_stay_finite_and_nan_is_seen() {
    let formats = [
        WeightFormat::Q4_1,
        WeightFormat::Q4K,
        WeightFormat::MXFP4,
        WeightFormat::IQ4XS,
        WeightFormat::IQ3S,
        WeightFormat::IQ1M,
    ];
    for (m, format) in formats.into_iter().flat_map(|format| [(1, format), (2, format)]) {
        let data = random_weights(format, 33, 256, 9);
        let weights = Weights { data: &data, format, rows: 33, columns: 256, layout: Layout::Rows };
        for (value, finite) in [(1e30, true), (1e-40, true), (f32::NAN, false), (f32::INFINITY, false)] {
            let mut x = noise(3, m * 256);
            x[5] = value;
            let mut y = vec![0.0; m * 33];
            multiply(&x, m, &mut [Product { weights, output: &mut y }], ComputeType::Int8);
            assert_eq!(y[..33].iter().all(|y| y.is_finite()), finite, "{m} {value}");
        }
    }
}

#[test]
fn rows_multiplied_alone_have_the_same_bits_however_many_they_are() {
    for instructions in Instructions::available() {
        for (seed, format) in (50..).zip(WeightFormat::ALL) {
            // More columns than a strip has, with a rest where there may be one.
            let (n, k) = (19, if format.is_quantized() { 1024 + 256 } else { 1024 + 21 });
            let data = random_weights(format, n, k, seed);
            let weights = Weights { data: &data, format, rows: n, columns: k, layout: Layout::Rows };
            let x = noise(seed + 7, 15 * k);
            for compute in [ComputeType::F32, ComputeType::Bf16, ComputeType::Int8] {
                let products = |x: &[f32]| alone(instructions, weights, x, compute);
                let each: Vec<f32> = x.chunks(k).flat_map(products).collect();
                let tolerance = match compute {
                    ComputeType::Int8 if format.has_bytes() => 2e-3,
                    _ if format.block().0 == 256 => 3e-5,
                    _ => 2e-6,
                };
                let error = error(weights, &x, 15, &each);
                assert!(error < tolerance, "{instructions:?} {format:?} {compute:?}: {error:e}");
                for count in [2, 3, 6, 8, 15] {
                    let together = products(&x[..count * k]);
                    assert!(together == each[..count * n], "{instructions:?} {format:?} {compute:?} {count}");
                }
            }
        }
    }
}

/// Rows of x, each multiplied as if it were alone.
fn alone(instructions: Instructions, weights: Weights<'_>, x: &[f32], compute: ComputeType) -> Vec<f32> {
    let alone = x.len() / weights.columns;
    let mut y = vec![f32::NAN; alone * weights.rows];
    let products = &mut [Product { weights, output: &mut y }];
    multiply_with(instructions, x, ProductRows { together: 0, alone }, products, compute);
    y
}

/// Activations are rounded alike and the products are whole numbers, so that only the order of sums of blocks differs.
#[test]
fn products_of_bytes_are_the_same_with_any_instructions() {
    for (seed, format) in (90..).zip(WeightFormat::ALL) {
        if !format.has_bytes() {
            continue;
        }
        let blocks = if format.block().0 == 32 { 2 * 8 + 3 } else { 2 };
        let (n, k) = (11, blocks * format.block().0);
        let data = random_weights(format, n, k, seed);
        let weights = Weights { data: &data, format, rows: n, columns: k, layout: Layout::Rows };
        let x = noise(seed + 7, 3 * k);
        let plain = alone(Instructions::Plain, weights, &x, ComputeType::Int8);
        for instructions in Instructions::available() {
            let y = alone(instructions, weights, &x, ComputeType::Int8);
            let size = plain.iter().fold(0f32, |most, y| most.max(y.abs()));
            for (y, plain) in y.iter().zip(&plain) {
                assert!((y - plain).abs() < 1e-5 * size, "{instructions:?} {format:?}: {y} {plain}");
            }
        }
    }
}

/// Interleaved rows are the same numbers, and products of them have the same bits.
#[test]
fn interleaved_rows_give_what_rows_one_by_one_give() {
    for (seed, format) in (130..).zip(WeightFormat::ALL) {
        if !format.has_bytes() {
            continue;
        }
        // Whole spans and a rest; whole sixteens and a rest.
        let blocks = if format.block().0 == 32 { 2 * 8 + 3 } else { 2 };
        let (n, k) = (16 * 5 + 3, blocks * format.block().0);
        let data = random_weights(format, n, k, seed);
        let mut interleaved = vec![0; data.len()];
        format.interleave(k, &data, &mut interleaved);
        let rows = Weights { data: &data, format, rows: n, columns: k, layout: Layout::Rows };
        let sixteens = Weights { data: &interleaved, layout: Layout::Interleaved, ..rows };
        assert!(interleaved != data && sixteens.in_rows() == data, "{format:?}");
        let numbers = |weights: Weights<'_>, row| {
            let mut numbers = vec![0.0; k];
            weights.dequantize_row(row, &mut numbers);
            numbers
        };
        assert!((0..n).all(|row| numbers(rows, row) == numbers(sixteens, row)), "{format:?}");
        let x = noise(seed + 7, 15 * k);
        for instructions in Instructions::available() {
            for compute in [ComputeType::F32, ComputeType::Bf16, ComputeType::Int8] {
                for count in [1, 2, 3, 15] {
                    let x = &x[..count * k];
                    let each = [rows, sixteens].map(|weights| alone(instructions, weights, x, compute));
                    let together = [rows, sixteens].map(|weights| {
                        let mut y = vec![f32::NAN; count * n];
                        multiply_with(
                            instructions,
                            x,
                            count,
                            &mut [Product { weights, output: &mut y }],
                            compute,
                        );
                        y
                    });
                    assert!(each[0] == each[1], "{instructions:?} {format:?} {compute:?} {count}");
                    assert!(together[0] == together[1], "{instructions:?} {format:?} {compute:?} {count}");
                }
            }
        }
    }
}
