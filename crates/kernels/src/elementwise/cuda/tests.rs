#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::Device;
use crate::cuda::fixtures::{ELEMENTS, Held, random, rounded, wide};
use std::f64::consts::PI;

const SIZES: [usize; 6] = [1, 7, 33, 257, 1024, 4099];
const ACTIVATIONS: [Activation; 3] = [Activation::Silu, Activation::Gelu, Activation::GeluTanh];

/// Calls `f` with types, a size, and whether numbers begin where packs of them can.
fn each(mut f: impl FnMut(Element, usize, usize)) {
    for element in ELEMENTS {
        for len in SIZES {
            f(element, len, 0);
        }
        f(element, 1024, 1);
    }
}

fn plain(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + libm::erf(x / 2f64.sqrt())),
        Activation::GeluTanh => 0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
    }
}

#[test]
fn sums_products_and_caps_equal_the_plain_ones() {
    let device = Device::for_tests();
    each(|element, len, first| {
        let (a, b) = (random(1, len, 9.0), rounded(element, &random(2, len, 20.0)));
        let (x, y) = (Held::new(&device, Element::F32, first, &a), Held::new(&device, element, first, &b));
        let sum = Held::empty(&device, Element::F32, 0, len);
        add(x.numbers(), y.numbers(), sum.numbers()).unwrap();
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        assert_eq!(sum.to_vec(), expected);
        add(x.numbers(), y.numbers(), x.numbers()).unwrap();
        assert_eq!(x.to_vec(), expected, "in place");

        soft_cap(x.numbers(), 7.0).unwrap();
        let capped: Vec<f64> = wide(&expected).iter().map(|x| 7.0 * (x / 7.0).tanh()).collect();
        assert!(x.is_close(&capped, 1e-6));

        scale(y.numbers(), 0.3, y.numbers()).unwrap();
        assert_eq!(y.to_vec(), rounded(element, &b.iter().map(|x| x * 0.3).collect::<Vec<_>>()));
    });
}

#[test]
fn a_grid_goes_on_where_it_ends() {
    let (device, len) = (Device::for_tests(), 300_001);
    let (a, b) = (random(1, len, 1.0), random(2, len, 1.0));
    let [x, y] = [&a, &b].map(|numbers| Held::new(&device, Element::F32, 0, numbers));
    add(x.numbers(), y.numbers(), x.numbers()).unwrap();
    assert!(x.to_vec().iter().zip(a.iter().zip(&b)).all(|(sum, (a, b))| *sum == a + b));
}

#[test]
fn gates_and_activations_equal_the_plain_ones() {
    let device = Device::for_tests();
    each(|element, len, first| {
        let (g, u) = (rounded(element, &random(3, len, 12.0)), rounded(element, &random(4, len, 3.0)));
        let [x, up] = [&g, &u].map(|numbers| Held::new(&device, element, first, numbers));
        for activation in ACTIVATIONS {
            let y = Held::empty(&device, element, 0, len);
            gate(activation, x.numbers(), up.numbers(), y.numbers()).unwrap();
            let product = |(&g, &u): (&f32, &f32)| plain(activation, f64::from(g)) * f64::from(u);
            let expected: Vec<f64> = g.iter().zip(&u).map(product).collect();
            assert!(y.is_close(&expected, 2e-6), "{activation:?} {element:?} {len}");
            activate(activation, up.numbers(), y.numbers()).unwrap();
            let expected: Vec<f64> = wide(&u).iter().map(|&u| plain(activation, u)).collect();
            assert!(y.is_close(&expected, 2e-6), "{activation:?} {element:?} {len}");
        }
    });
}

#[test]
fn activations_stay_finite_for_extreme_numbers() {
    let device = Device::for_tests();
    let extremes = [3e38, 1e4, 90.0, 0.0, -0.0, -90.0, -1e4];
    for activation in ACTIVATIONS {
        let x = Held::new(&device, Element::F32, 0, &extremes);
        activate(activation, x.numbers(), x.numbers()).unwrap();
        for (y, x) in x.to_vec().into_iter().zip(extremes) {
            let expected = if x > 50.0 { x } else { 0.0 };
            assert!((y - expected).abs() <= 1e-6 * expected + 1e-30, "{activation:?} of {x} is {y}");
        }
    }
}

#[test]
fn numbers_are_converted_to_the_nearest() {
    let device = Device::for_tests();
    for from in ELEMENTS {
        for to in ELEMENTS {
            for len in SIZES {
                let mut numbers = random(5, len, 1e3);
                // Halfway between two numbers of bf16: to the even one.
                numbers[0] = f32::from_bits(0x3f80_8000);
                numbers[len / 2] = f32::from_bits(0x3f81_8000);
                let numbers = rounded(from, &numbers);
                for first in [0, 3] {
                    let x = Held::new(&device, from, first, &numbers);
                    let y = Held::empty(&device, to, first, len);
                    convert(x.numbers(), y.numbers()).unwrap();
                    assert_eq!(y.to_vec(), rounded(to, &numbers));
                }
            }
        }
    }
}

#[test]
fn three_parts_make_a_whole() {
    let device = Device::for_tests();
    for len in [1, 7, 33, 257, 4099] {
        let mut numbers = random(6, len, 1.0);
        for (i, x) in numbers.iter_mut().enumerate() {
            *x *= 10f32.powi((i % 60) as i32 - 30);
        }
        numbers[0] = f32::MAX;
        numbers[len / 2] = -f32::MAX;
        for first in [0, 1] {
            let x = Held::new(&device, Element::F32, first, &numbers);
            let parts = [0; 3].map(|_| Held::empty(&device, Element::Bf16, first, len));
            let [p0, p1, p2] = &parts;
            split(x.numbers(), [p0.numbers(), p1.numbers(), p2.numbers()]).unwrap();
            let [p0, p1, p2] = parts.map(|part| part.to_vec());
            for i in 0..len {
                assert_eq!(p0[i] + (p1[i] + p2[i]), numbers[i]);
                assert!(p1[i].abs() <= p0[i].abs() / 128.0 && p2[i].abs() <= p1[i].abs() / 128.0);
            }
        }
    }
    let x = Held::new(&device, Element::F32, 0, &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    let parts = [0; 3].map(|_| Held::empty(&device, Element::Bf16, 0, 3));
    let [p0, p1, p2] = &parts;
    split(x.numbers(), [p0.numbers(), p1.numbers(), p2.numbers()]).unwrap();
    assert_eq!(p0.to_vec()[..2], [f32::INFINITY, f32::NEG_INFINITY]);
    assert_eq!([&p1.to_vec()[..2], &p2.to_vec()[..2]], [[0.0; 2]; 2]);
    assert!(p0.to_vec()[2].is_nan());
}

#[test]
fn a_bias_is_added_to_each_row() {
    let device = Device::for_tests();
    for element in ELEMENTS {
        for (rows, width) in [(1, 1), (3, 7), (9, 33), (5, 256), (17, 1048), (2, 4099)] {
            for first in [0, 1] {
                let (x, b) = (rounded(element, &random(7, rows * width, 3.0)), random(8, width, 2.0));
                let (held, bias) =
                    (Held::new(&device, element, first, &x), Held::new(&device, Element::F32, first, &b));
                add_bias(held.numbers(), bias.numbers()).unwrap();
                let sums: Vec<f32> = x.iter().enumerate().map(|(i, x)| x + b[i % width]).collect();
                assert_eq!(held.to_vec(), rounded(element, &sums), "{element:?} {rows}×{width}");
            }
        }
    }
}

/// x / √(mean(x²) + ε) · scale, or with the mean taken off and a bias added.
fn plain_norm(x: &[f32], scale: &[f32], bias: Option<&[f32]>) -> Vec<f64> {
    let width = scale.len();
    let mut y = vec![];
    for row in x.chunks_exact(width) {
        let mean = if bias.is_some() { wide(row).iter().sum::<f64>() / width as f64 } else { 0.0 };
        let square = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / width as f64;
        y.extend(row.iter().enumerate().map(|(i, &x)| {
            let normalised = (f64::from(x) - mean) / (square + 1e-5).sqrt() * f64::from(scale[i]);
            normalised + bias.map_or(0.0, |bias| f64::from(bias[i]))
        }));
    }
    y
}

/// Rows and widths for warps and blocks, whole and broken packs, and one that registers do not hold.
const SHAPES: [(usize, usize); 12] = [
    (1, 1),
    (9, 7),
    (3, 33),
    (17, 128),
    (2, 257),
    (11, 512),
    (4, 520),
    (3, 1024),
    (2, 2048),
    (1, 4099),
    (1, 16384),
    (1, 16392),
];

#[test]
fn norms_equal_the_plain_ones() {
    let device = Device::for_tests();
    for from in ELEMENTS {
        for to in ELEMENTS {
            for (rows, width) in SHAPES {
                // Unaligned where there are 3 or 9 rows.
                let first = usize::from(rows % 3 == 0);
                let x: Vec<f32> = random(9, rows * width, 3.0).iter().map(|x| x + 0.5).collect();
                let (x, s, b) = (rounded(from, &x), random(10, width, 2.0), random(11, width, 1.0));
                let held = Held::new(&device, from, 0, &x);
                let [scale, bias] = [&s, &b].map(|numbers| Held::new(&device, Element::F32, 0, numbers));
                let y = Held::empty(&device, to, first, rows * width);
                rms_norm(held.numbers(), scale.numbers(), 1e-5, y.numbers()).unwrap();
                assert!(y.is_close(&plain_norm(&x, &s, None), 3e-6), "{from:?} {to:?} {rows}×{width}");
                layer_norm(held.numbers(), scale.numbers(), bias.numbers(), 1e-5, y.numbers()).unwrap();
                assert!(y.is_close(&plain_norm(&x, &s, Some(&b)), 3e-6), "{from:?} {to:?} {rows}×{width}");
                if from == to {
                    rms_norm(held.numbers(), scale.numbers(), 1e-5, held.numbers()).unwrap();
                    assert!(held.is_close(&plain_norm(&x, &s, None), 3e-6), "in place");
                }
            }
        }
    }
}

#[test]
fn a_row_comes_out_the_same_whatever_is_beside_it() {
    let device = Device::for_tests();
    for width in [128, 2048] {
        let x = random(15, 9 * width, 3.0);
        let scale = Held::new(&device, Element::F32, 0, &random(16, width, 2.0));
        let norm = |rows: &[f32]| {
            let held = Held::new(&device, Element::F32, 0, rows);
            rms_norm(held.numbers(), scale.numbers(), 1e-5, held.numbers()).unwrap();
            held.to_vec()
        };
        assert_eq!(norm(&x)[7 * width..8 * width], norm(&x[7 * width..8 * width]));
    }
}
