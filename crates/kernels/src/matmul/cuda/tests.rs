#![allow(clippy::unwrap_used)]

use super::*;
use crate::Activation;
use crate::matmul::cuda::row::most_columns;
use crate::matmul::tests::{noise, random_weights};
use crate::reference;
use half::bf16;

/// A matrix on the host and on the device, there behind other bytes.
struct Matrix {
    bytes: Vec<u8>,
    buffer: Buffer,
    format: WeightFormat,
    rows: usize,
    columns: usize,
}

const OFFSET: usize = 48;

impl Matrix {
    fn new(device: &Device, format: WeightFormat, rows: usize, columns: usize, seed: u64) -> Self {
        let bytes = random_weights(format, rows, columns, seed);
        let buffer = device.reserve(OFFSET + bytes.len()).unwrap();
        buffer.write(OFFSET, &bytes).unwrap();
        Self { bytes, buffer, format, rows, columns }
    }

    fn weights(&self) -> DeviceWeights<'_> {
        let Self { format, rows, columns, .. } = *self;
        DeviceWeights { data: &self.buffer, offset: OFFSET, format, rows, columns }
    }

    fn row(&self, row: usize) -> Vec<f32> {
        let mut w = vec![0.0; self.columns];
        let bytes = self.weights().row_bytes();
        self.format.dequantize(&self.bytes[row * bytes..][..bytes], &mut w);
        w
    }

    /// x·Wᵀ in f64, with Σ|x·w| of each.
    fn product(&self, x: &[f32]) -> Vec<(f64, f64)> {
        let rows: Vec<_> = (0..self.rows).map(|row| self.row(row)).collect();
        x.chunks(self.columns).flat_map(|x| rows.iter().map(|w| reference::dot(x, w))).collect()
    }
}

/// f32 numbers on a device.
fn numbers(buffer: &Buffer) -> Numbers<'_> {
    Numbers::all(buffer, Element::F32)
}

fn dequantized(matrix: &Matrix, wanted: &[u32], ids: bool, element: Element) -> Vec<f32> {
    let device = matrix.buffer.device();
    let output = device.reserve(wanted.len() * matrix.columns * element.bytes()).unwrap();
    let output = Numbers::all(&output, element);
    if ids {
        let ids = device.upload(wanted).unwrap();
        dequantize_rows(&matrix.weights(), &ids, wanted.len(), output).unwrap();
    } else {
        dequantize(&matrix.weights(), wanted[0] as usize, wanted.len(), output).unwrap();
    }
    output.to_vec().unwrap()
}

#[test]
fn rows_are_unpacked_as_on_the_cpu_in_every_format() {
    let device = Device::for_tests();
    for (seed, format) in (0..).zip(WeightFormat::ALL) {
        let columns = if format.is_quantized() { [format.block().0, 1024 + 256] } else { [72, 1027] };
        for columns in columns {
            let matrix = Matrix::new(&device, format, 6, columns, seed);
            for (wanted, ids) in [(&[2u32, 3, 4][..], false), (&[5, 0, 5], true)] {
                let expected: Vec<f32> = wanted.iter().flat_map(|&row| matrix.row(row as usize)).collect();
                assert_eq!(dequantized(&matrix, wanted, ids, Element::F32), expected, "{format:?} {columns}");
                let rounded: Vec<f32> = expected.iter().map(|&w| bf16::from_f32(w).to_f32()).collect();
                assert_eq!(dequantized(&matrix, wanted, ids, Element::Bf16), rounded, "{format:?} {columns}");
            }
        }
    }
}

/// Largest difference relative to the sizes.
fn error(y: &[f32], expected: &[(f64, f64)]) -> f64 {
    assert_eq!(y.len(), expected.len());
    let errors = y.iter().zip(expected).map(|(&y, &(expected, size))| {
        let error = (f64::from(y) - expected).abs() / size.max(1e-30);
        if error.is_nan() { f64::INFINITY } else { error }
    });
    errors.fold(0.0, f64::max)
}

fn check(device: &Device, format: WeightFormat, rows: usize, (outputs, columns): (usize, usize), seed: u64) {
    let matrix = Matrix::new(device, format, outputs, columns, seed);
    let x = noise(seed + 7, rows * columns);
    let (on_device, output) = (device.upload(&x).unwrap(), device.reserve(rows * outputs * 4).unwrap());
    let x_numbers = Numbers::new(&on_device, Element::F32, 0, x.len());
    let product = RowProduct { weights: matrix.weights(), bias: None, add: None, output: numbers(&output) };
    multiply_rows(x_numbers, rows, &[product]).unwrap();
    let error = error(&output.to_vec().unwrap(), &matrix.product(&x));
    assert!(error < 2e-6, "{format:?} {rows}×{outputs}×{columns}: {error:e}");
}

#[test]
fn products_equal_the_plain_ones_in_every_format() {
    let device = Device::for_tests();
    for (seed, format) in (0..).zip(WeightFormat::ALL) {
        let block = format.block().0;
        for rows in 1..=FEW_ROWS {
            check(&device, format, rows, (5, if block == 1 { 261 } else { 256 }), seed);
        }
        check(&device, format, 1, (23, 1024 + 256), seed);
        check(&device, format, 3, (1, if block == 1 { 1 } else { 1024 + block }), seed);
    }
}

#[test]
fn long_rows_and_many_of_them_are_multiplied_chunk_by_chunk() {
    let device = Device::for_tests();
    check(&device, WeightFormat::Q4_0, 1, (301, 64), 1);
    check(&device, WeightFormat::Q8_0, 1, (270, 1024 + 64), 7);
    check(&device, WeightFormat::IQ3S, 2, (210, 1024 + 256), 8);
    check(&device, WeightFormat::BF16, 1, (9, 6144), 2);
    check(&device, WeightFormat::Q4K, 1, (9, 6144), 3);
    // Longer than shared memory, in two parts, and once from an address that is no multiple of 16.
    check(&device, WeightFormat::MXFP4, 4, (6, 5120), 4);
    check(&device, WeightFormat::Q6K, 4, (6, 5120), 5);
    check(&device, WeightFormat::BF16, 3, (3, 6145), 6);
}

/// Blocks of some GPUs have less shared memory, others more: x goes into it in other parts, beside fewer or more warps.
#[test]
fn products_fit_the_shared_memory_of_every_gpu() {
    for capability in [(8, 6), (9, 0)] {
        let device = Device::emulated_as(capability);
        for (seed, format) in (0..).zip(WeightFormat::ALL) {
            for rows in [1, FEW_ROWS] {
                // Just as much of x as goes into shared memory at once, and more.
                let columns = most_columns(&device, rows) + if rows == 1 { 0 } else { 256 };
                check(&device, format, rows, (3, columns), seed);
            }
        }
    }
}

#[test]
fn several_matrices_have_their_own_biases_and_additions() {
    let device = Device::for_tests();
    let (columns, rows) = (64, 2);
    let formats = [
        (WeightFormat::Q8_0, 6),
        (WeightFormat::Q4_0, 9),
        (WeightFormat::Q8_0, 1),
        (WeightFormat::Q8_0, 5),
        (WeightFormat::Q8_0, 3),
        (WeightFormat::Q4_0, 0),
    ];
    let matrices =
        formats.map(|(format, outputs)| Matrix::new(&device, format, outputs, columns, outputs as u64));
    let x = noise(8, rows * columns + 1);
    let on_device = device.upload(&x).unwrap();
    // From an address that is no multiple of 16.
    let x = &x[1..];
    let x_numbers = Numbers::new(&on_device, Element::F32, 1, x.len());
    let biases = formats.map(|(_, outputs)| noise(9, outputs));
    let added = formats.map(|(_, outputs)| noise(10, rows * outputs));
    let upload = |numbers: &Vec<f32>| device.upload(numbers).unwrap();
    let (bias_buffers, outputs) = (biases.each_ref().map(upload), added.each_ref().map(upload));
    let products: Vec<_> = (0..formats.len())
        .map(|i| RowProduct {
            weights: matrices[i].weights(),
            bias: (i % 2 == 1).then(|| numbers(&bias_buffers[i])),
            add: (i != 2).then(|| numbers(&outputs[i])),
            output: numbers(&outputs[i]),
        })
        .collect();
    multiply_rows(x_numbers, rows, &products).unwrap();
    for (i, matrix) in matrices.iter().enumerate() {
        let mut expected = matrix.product(x);
        for (at, (sum, size)) in expected.iter_mut().enumerate() {
            let bias = if i % 2 == 1 { biases[i][at % matrix.rows] } else { 0.0 };
            let added = if i == 2 { 0.0 } else { added[i][at] };
            *sum += f64::from(bias) + f64::from(added);
            *size += 1.0;
        }
        assert!(error(&outputs[i].to_vec().unwrap(), &expected) < 1e-6, "matrix {i}");
    }
}

fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
    }
}

#[test]
fn gated_products_equal_the_plain_ones() {
    let device = Device::for_tests();
    let cases = [
        (Activation::Silu, [WeightFormat::BF16, WeightFormat::BF16], 1, 64),
        (Activation::Gelu, [WeightFormat::Q4K, WeightFormat::Q4K], 1, 256),
        (Activation::GeluTanh, [WeightFormat::Q8_0, WeightFormat::Q8_0], 3, 96),
        (Activation::GeluTanh, [WeightFormat::Q4K, WeightFormat::Q6K], 2, 256),
        (Activation::Silu, [WeightFormat::MXFP4, WeightFormat::MXFP4], 4, 32),
        // In parts.
        (Activation::Gelu, [WeightFormat::Q4_0, WeightFormat::Q4_0], 4, 5120),
    ];
    for (case, (activation, [gate_format, up_format], rows, columns)) in cases.into_iter().enumerate() {
        for outputs in [1, 7] {
            let gate = Matrix::new(&device, gate_format, outputs, columns, 1);
            let up = Matrix::new(&device, up_format, outputs, columns, 2);
            let x = noise(3, rows * columns);
            let on_device = device.upload(&x).unwrap();
            let output = device.reserve(rows * outputs * 4).unwrap();
            let x_numbers = Numbers::new(&on_device, Element::F32, 0, x.len());
            let (g, u) = (gate.weights(), up.weights());
            multiply_rows_gated(activation, x_numbers, rows, &g, &u, numbers(&output)).unwrap();
            let expected: Vec<_> = (gate.product(&x).into_iter().zip(up.product(&x)))
                .map(|((gate, gate_size), (up, up_size))| {
                    (activated(activation, gate) * up, (gate_size + 1.0) * (up_size + 1.0))
                })
                .collect();
            let error = error(&output.to_vec().unwrap(), &expected);
            assert!(error < 2e-6, "case {case}, {outputs} outputs: {error:e}");
        }
    }
}

#[test]
fn extreme_activations_stay_finite_and_nan_is_seen() {
    let device = Device::for_tests();
    for format in [
        WeightFormat::Q4_1,
        WeightFormat::Q4K,
        WeightFormat::MXFP4,
        WeightFormat::IQ4XS,
        WeightFormat::IQ1M,
        WeightFormat::BF16,
    ] {
        let matrix = Matrix::new(&device, format, 3, 256, 9);
        for (value, finite) in [(1e30, true), (1e-40, true), (f32::NAN, false), (f32::INFINITY, false)] {
            let mut x = noise(3, 256);
            x[5] = value;
            let (on_device, output) = (device.upload(&x).unwrap(), device.reserve(12).unwrap());
            let product =
                RowProduct { weights: matrix.weights(), bias: None, add: None, output: numbers(&output) };
            multiply_rows(numbers(&on_device), 1, &[product]).unwrap();
            let y = output.to_vec::<f32>().unwrap();
            assert_eq!(y.iter().all(|y| y.is_finite()), finite, "{format:?} {value}");
        }
    }
}

#[test]
fn products_are_captured_in_a_graph() {
    let device = Device::for_tests();
    let gate = Matrix::new(&device, WeightFormat::Q4K, 5, 256, 1);
    let up = Matrix::new(&device, WeightFormat::Q6K, 5, 256, 2);
    let x = device.upload(&vec![0f32; 256]).unwrap();
    let output = device.reserve(20).unwrap();
    let memory = crate::cuda::Pool::new(&device);
    let work = || {
        let (g, u) = (gate.weights(), up.weights());
        multiply_rows_gated(Activation::Silu, numbers(&x), 1, &g, &u, numbers(&output))
    };
    device.with_memory(&memory, work).unwrap();
    let (graph, ()) = device.capture(&memory, work).unwrap();
    let values = noise(1, 256);
    x.write(0, &values).unwrap();
    graph.launch().unwrap();
    let expected: Vec<_> = (gate.product(&values).into_iter().zip(up.product(&values)))
        .map(|((gate, gate_size), (up, up_size))| {
            (activated(Activation::Silu, gate) * up, (gate_size + 1.0) * (up_size + 1.0))
        })
        .collect();
    assert!(error(&output.to_vec().unwrap(), &expected) < 1e-6);
}
