#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::fixtures::{ELEMENTS, Held, random, rounded, wide};
use crate::cuda::{Device, DeviceError, Pool, store};

/// As on the CPU, in f64.
fn turned(
    x: &[f32],
    [heads, head_dim]: [usize; 2],
    positions: &[i32],
    frequencies: &[f32],
    magnitude: f32,
) -> Vec<f64> {
    let (half, mut y) = (frequencies.len(), wide(x));
    for (head, y) in y.chunks_exact_mut(head_dim).enumerate() {
        let position = positions[head / heads];
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (sin, cos) = (sin * f64::from(magnitude), cos * f64::from(magnitude));
            let (x0, x1) = (y[i], y[i + half]);
            (y[i], y[i + half]) = (x0 * cos - x1 * sin, x0 * sin + x1 * cos);
        }
    }
    y
}

fn frequencies(half: usize) -> Vec<f32> {
    (0..half).map(|i| 10_000f32.powf(-(i as f32) / half as f32)).collect()
}

#[test]
fn rotation_equals_the_plain_one() {
    let device = Device::for_tests();
    for element in ELEMENTS {
        for (rows, heads, head_dim, half) in
            [(1, 1, 2, 1), (3, 2, 7, 3), (2, 3, 24, 12), (5, 4, 64, 16), (2, 5, 128, 64), (2, 33, 80, 16)]
        {
            // Unaligned too.
            for first in [0, 1] {
                let x = rounded(element, &random(1, rows * heads * head_dim, 3.0));
                let places: Vec<i32> =
                    (0..rows as i32).map(|row| [0, 1, 131_071, 999, 70_001][row as usize]).collect();
                let turns = frequencies(half);
                let expected = turned(&x, [heads, head_dim], &places, &turns, 1.25);
                let positions = device.upload(&places).unwrap();
                let held_turns = Held::new(&device, Element::F32, first, &turns);
                let rotation =
                    Rotation { positions: &positions, frequencies: held_turns.numbers(), magnitude: 1.25 };
                let held = Held::new(&device, element, first, &x);
                let y = Held::empty(&device, element, first, x.len());
                rotate(held.numbers(), heads, head_dim, &rotation, y.numbers()).unwrap();
                assert!(y.is_close(&expected, 2e-6), "{element:?} {rows} {heads} {head_dim} {half}");
                rotate(held.numbers(), heads, head_dim, &rotation, held.numbers()).unwrap();
                assert_eq!(held.to_vec(), y.to_vec(), "in place");
            }
        }
    }
}

#[test]
fn queries_and_keys_turn_in_one_launch() {
    let device = Device::for_tests();
    let (rows, heads, head_dim) = (3, [4, 2], 32);
    let turns = frequencies(16);
    let positions = device.upload(&[5i32, 6, 7]).unwrap();
    let held_turns = Held::new(&device, Element::F32, 0, &turns);
    let rotation = Rotation { positions: &positions, frequencies: held_turns.numbers(), magnitude: 1.0 };
    for element in ELEMENTS {
        let x = heads.map(|heads| Held::new(&device, element, 0, &random(2, rows * heads * head_dim, 3.0)));
        let expected = [0, 1].map(|i| turned(&x[i].to_vec(), [heads[i], head_dim], &[5, 6, 7], &turns, 1.0));
        let y = heads.map(|heads| Held::empty(&device, element, 0, rows * heads * head_dim));
        rotate_both(
            [x[0].numbers(), x[1].numbers()],
            heads,
            head_dim,
            &rotation,
            [y[0].numbers(), y[1].numbers()],
        )
        .unwrap();
        assert!(y[0].is_close(&expected[0], 2e-6) && y[1].is_close(&expected[1], 2e-6));
    }
}

#[test]
fn a_graph_turns_on() {
    let device = Device::for_tests();
    let (heads, head_dim, turns) = (2, 16, frequencies(8));
    let x = random(3, 2 * heads * head_dim, 3.0);
    let held = Held::new(&device, Element::F32, 0, &x);
    let y = Held::empty(&device, Element::F32, 0, x.len());
    let held_turns = Held::new(&device, Element::F32, 0, &turns);
    let (positions, decoded) = (device.upload(&[10i32, 20]).unwrap(), device.upload(&[0i32]).unwrap());
    let work = || {
        let rotation = Rotation { positions: &positions, frequencies: held_turns.numbers(), magnitude: 1.0 };
        rotate(held.numbers(), heads, head_dim, &rotation, y.numbers())?;
        store::advance(&positions, 2, &decoded)?;
        Ok::<_, DeviceError>(())
    };
    work().unwrap();
    positions.write(0, &[10i32, 20]).unwrap();
    decoded.write(0, &[0i32]).unwrap();
    let (graph, ()) = device.capture(&Pool::new(&device), work).unwrap();
    for step in 0..3 {
        graph.launch().unwrap();
        let expected = turned(&x, [heads, head_dim], &[10 + step, 20 + step], &turns, 1.0);
        assert!(y.is_close(&expected, 2e-6));
    }
    assert_eq!(positions.to_vec::<i32>().unwrap(), [13, 23]);
    assert_eq!(decoded.to_vec::<i32>().unwrap(), [3]);
}
