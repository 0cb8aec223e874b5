#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::fixtures::{Held, random};
use crate::cuda::{Device, Pool};
use crate::trajectory::angle_sum;

#[test]
fn equals_the_one_on_the_cpu() {
    let device = Device::for_tests();
    for width in [1, 7, 33, 256, 257, 1032, 4099] {
        for rows in [0, 1, 2, 3, 4, 7, 11] {
            for first in [0, 1] {
                let x = random(width as u64, rows * width, 3.0);
                let held = Held::new(&device, Element::F32, first, &x);
                let sums = device.upload(&[1f64, 2.0]).unwrap();
                curvature(None, held.numbers(), width, &sums).unwrap();
                let sums = sums.to_vec::<f64>().unwrap();
                let expected = angle_sum(&x, width);
                assert!((sums[0] - 1.0 - expected).abs() < 1e-9 * (1.0 + expected), "{rows}×{width}");
                assert_eq!(sums[1], 2.0 + rows.saturating_sub(2) as f64);
            }
        }
    }
}

#[test]
fn pieces_make_no_difference() {
    let device = Device::for_tests();
    let (rows, width) = (19, 36);
    let x = random(3, rows * width, 2.0);
    let held = Held::new(&device, Element::F32, 0, &x);
    let piece =
        |from: usize, to: usize| Numbers::new(&held.buffer, Element::F32, from * width, (to - from) * width);
    let sums = device.upload(&[0f64; 2]).unwrap();
    let mut done = 0;
    for next in [0, 1, 2, 5, 6, 18, 19] {
        // In memory of their own, as the last rows are kept.
        let last: Vec<f32> = x[done.max(2) * width - 2 * width..done * width].to_vec();
        let before = Held::new(&device, Element::F32, 0, if done < 2 { &x[..done * width] } else { &last });
        curvature((done > 0).then(|| before.numbers()), piece(done, next), width, &sums).unwrap();
        done = next;
    }
    let sums = sums.to_vec::<f64>().unwrap();
    assert!((sums[0] - angle_sum(&x, width)).abs() < 1e-9);
    assert_eq!(sums[1], 17.0);
}

#[test]
fn edge_cases_are_those_of_the_cpu() {
    let device = Device::for_tests();
    // A step of length 0, steps straight on and back, and one that is not a number.
    for rows in [
        vec![0.0, 0.0, 1.0, 0.0, 1.0, 0.0],
        vec![0.0, 0.0, 1.0, 2.0, 3.0, 6.0, 3.5, 7.0],
        vec![0.0, 0.0, 0.1, 0.3, 0.0, 0.0, 0.1, 0.3],
        vec![0.0, 0.0, f32::NAN, 0.3, 0.0, 0.0, 0.1, 0.3],
        vec![1e30, 0.0, 0.0, 1e30, -1e30, 1e30],
    ] {
        let held = Held::new(&device, Element::F32, 0, &rows);
        let sums = device.upload(&[0f64; 2]).unwrap();
        curvature(None, held.numbers(), 2, &sums).unwrap();
        let sum = sums.to_vec::<f64>().unwrap()[0];
        let expected = angle_sum(&rows, 2);
        assert!(
            sum.is_nan() && expected.is_nan() || (sum - expected).abs() < 1e-7,
            "{rows:?}: {sum} {expected}"
        );
    }
}

#[test]
fn a_graph_adds_again() {
    let device = Device::for_tests();
    let (rows, width) = (9, 8);
    let x = random(5, rows * width, 2.0);
    let held = Held::new(&device, Element::F32, 0, &x);
    let sums = device.upload(&[0f64; 2]).unwrap();
    let memory = Pool::new(&device);
    let work = || curvature(None, held.numbers(), width, &sums);
    device.with_memory(&memory, work).unwrap();
    let (graph, ()) = device.capture(&memory, work).unwrap();
    graph.launch().unwrap();
    let sums = sums.to_vec::<f64>().unwrap();
    assert!((sums[0] - 2.0 * angle_sum(&x, width)).abs() < 1e-9 && sums[1] == 14.0);
}
