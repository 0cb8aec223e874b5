#![allow(clippy::unwrap_used)]

use super::*;
use crate::cuda::fixtures::{ELEMENTS, Held, random, rounded};
use crate::cuda::{Device, DeviceError, Pool};

#[test]
fn rows_are_gathered_by_number() {
    let device = Device::for_tests();
    for element in ELEMENTS {
        for (n, width) in [(1, 1), (5, 7), (9, 33), (4, 64), (3, 257), (3, 4104), (2, 4098)] {
            for first in [0, 1] {
                let x = rounded(element, &random(1, n * width, 3.0));
                let held = Held::new(&device, element, first, &x);
                let numbers = [n - 1, 0, n - 1, n / 2];
                let ids: Vec<u32> =
                    numbers.map(|id| id as u32).into_iter().chain([n as u32, u32::MAX]).collect();
                let y = Held::empty(&device, element, 0, 6 * width);
                gather_rows(held.numbers(), width, &device.upload(&ids).unwrap(), 6, y.numbers()).unwrap();
                let mut expected: Vec<f32> =
                    numbers.iter().flat_map(|id| x[id * width..][..width].to_vec()).collect();
                expected.resize(6 * width, 0.0);
                assert_eq!(y.to_vec(), expected, "{element:?} {n}×{width}");
            }
        }
    }
}

#[test]
fn weighted_rows_are_added_where_they_belong() {
    let device = Device::for_tests();
    for element in ELEMENTS {
        for width in [1, 7, 33, 64, 257, 1040, 4099] {
            for first in [0, 1] {
                let (x, y) = (rounded(element, &random(2, 4 * width, 3.0)), random(3, 5 * width, 2.0));
                let (weights, ids) = (random(4, 4, 1.0), [3u32, 0, 5, 1]);
                let held = Held::new(&device, element, first, &x);
                let output = Held::new(&device, Element::F32, first, &y);
                let held_weights = Held::new(&device, Element::F32, 0, &weights);
                add_weighted_rows(
                    held.numbers(),
                    width,
                    &device.upload(&ids).unwrap(),
                    held_weights.numbers(),
                    output.numbers(),
                )
                .unwrap();
                let mut expected: Vec<f64> = y.iter().map(|&y| f64::from(y)).collect();
                for (row, id) in ids.into_iter().enumerate().filter(|(_, id)| *id < 5) {
                    for i in 0..width {
                        expected[id as usize * width + i] +=
                            f64::from(weights[row]) * f64::from(x[row * width + i]);
                    }
                }
                assert!(output.is_close(&expected, 1e-6), "{element:?} {width}");
            }
        }
    }
}

/// Where each row goes: (row, slot) within the capacity.
fn expected_cache(
    before: &[f32],
    x: &[f32],
    [kv_heads, head_dim, capacity]: [usize; 3],
    first_slot: usize,
) -> Vec<f32> {
    let mut cache = before.to_vec();
    for (row, x) in x.chunks_exact(kv_heads * head_dim).enumerate().take(capacity.saturating_sub(first_slot))
    {
        for (head, x) in x.chunks_exact(head_dim).enumerate() {
            cache[(head * capacity + first_slot + row) * head_dim..][..head_dim].copy_from_slice(x);
        }
    }
    cache
}

#[test]
fn keys_and_values_go_into_their_slots() {
    let device = Device::for_tests();
    for from in ELEMENTS {
        for to in ELEMENTS {
            for (rows, kv_heads, head_dim, first) in
                [(1, 1, 1, 0), (5, 2, 7, 0), (3, 3, 33, 1), (4, 8, 64, 0), (4, 2, 64, 1), (2, 3, 256, 0)]
            {
                let (capacity, width) = (7, kv_heads * head_dim);
                // From the slot 5 on, some rows are beyond the capacity.
                for (first_slot, decoded) in
                    [(0, None), (2, Some(3)), (6, Some(-4)), (5, None), (0, Some(-1))]
                {
                    let numbers = [5, 6].map(|seed| rounded(from, &random(seed, rows * width, 3.0)));
                    let before = [7, 8].map(|seed| rounded(to, &random(seed, capacity * width, 1.0)));
                    let [keys, values] = [0, 1].map(|i| Held::new(&device, from, first, &numbers[i]));
                    let [to_keys, to_values] = [0, 1].map(|i| Held::new(&device, to, first, &before[i]));
                    let held = decoded.map(|decoded: i32| device.upload(&[decoded]).unwrap());
                    append(&Append {
                        keys: keys.numbers(),
                        values: values.numbers(),
                        row_heads: kv_heads,
                        first_head: 0,
                        kv_heads,
                        head_dim,
                        rows,
                        first_slot,
                        decoded: held.as_ref(),
                        capacity,
                        to_keys: to_keys.numbers(),
                        to_values: to_values.numbers(),
                    })
                    .unwrap();
                    for (i, cache) in [to_keys, to_values].iter().enumerate() {
                        let rounded = rounded(to, &numbers[i]);
                        // A row at slot −1 is not there, the ones after it are.
                        let (slot, passed) = match first_slot as i32 + decoded.unwrap_or(0) {
                            -1 => (0, width),
                            slot => (slot as usize, 0),
                        };
                        let shape = [kv_heads, head_dim, capacity];
                        let expected = expected_cache(&before[i], &rounded[passed..], shape, slot);
                        assert_eq!(
                            cache.to_vec(),
                            expected,
                            "{from:?} {to:?} {rows} {kv_heads} {head_dim} {slot}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_too_large_for_the_cache_stays_finite() {
    let device = Device::for_tests();
    let numbers = [f32::MAX, f32::NEG_INFINITY, f32::NAN, 1.0, -f32::MAX, f32::INFINITY, 0.0, -1.0];
    let most = half::bf16::MAX.to_f32();
    let expected = [most, -most, f32::NAN, 1.0, -most, most, 0.0, -1.0];
    // In packs, and one by one.
    for head_dim in [8, 1] {
        let [x, cache] = [
            Held::new(&device, Element::F32, 0, &numbers),
            Held::empty(&device, Element::Bf16, 0, numbers.len()),
        ];
        let other = Held::empty(&device, Element::Bf16, 0, numbers.len());
        append(&Append {
            keys: x.numbers(),
            values: x.numbers(),
            row_heads: 1,
            first_head: 0,
            kv_heads: 1,
            head_dim,
            rows: 8 / head_dim,
            first_slot: 0,
            decoded: None,
            capacity: 8 / head_dim,
            to_keys: cache.numbers(),
            to_values: other.numbers(),
        })
        .unwrap();
        for cache in [cache, other] {
            let same = |(x, y): (f32, f32)| x == y || x.is_nan() && y.is_nan();
            assert!(cache.to_vec().into_iter().zip(expected).all(same), "{:?}", cache.to_vec());
        }
    }
}

#[test]
fn a_graph_appends_slot_after_slot() {
    let device = Device::for_tests();
    let (kv_heads, head_dim, capacity) = (2, 8, 4);
    let x = random(9, kv_heads * head_dim, 1.0);
    let held = Held::new(&device, Element::F32, 0, &x);
    let [keys, values] =
        [0; 2].map(|_| Held::empty(&device, Element::F32, 0, capacity * kv_heads * head_dim));
    let (positions, decoded) = (device.upload(&[1i32]).unwrap(), device.upload(&[0i32]).unwrap());
    let work = || {
        append(&Append {
            keys: held.numbers(),
            values: held.numbers(),
            row_heads: kv_heads,
            first_head: 0,
            kv_heads,
            head_dim,
            rows: 1,
            first_slot: 1,
            decoded: Some(&decoded),
            capacity,
            to_keys: keys.numbers(),
            to_values: values.numbers(),
        })?;
        advance(&positions, 1, &decoded)?;
        Ok::<_, DeviceError>(())
    };
    let (graph, ()) = device.capture(&Pool::new(&device), work).unwrap();
    for written in 1..6 {
        graph.launch().unwrap();
        for cache in [&keys, &values] {
            for (index, slot) in cache.to_vec().chunks_exact(head_dim).enumerate() {
                let (head, slot_index) = (index / capacity, index % capacity);
                if (1..=written).contains(&slot_index) {
                    assert_eq!(slot, &x[head * head_dim..][..head_dim]);
                } else {
                    assert!(slot.iter().all(|x| x.is_nan()), "nothing else is written");
                }
            }
        }
    }
    assert_eq!(decoded.to_vec::<i32>().unwrap(), [5]);
}

#[test]
fn every_counter_advances() {
    let device = Device::for_tests();
    for rows in [1, 7, 257, 1000] {
        let before: Vec<i32> = (0..rows as i32 + 1).collect();
        let (positions, decoded) = (device.upload(&before).unwrap(), device.upload(&[41i32, 7]).unwrap());
        advance(&positions, rows, &decoded).unwrap();
        let after = positions.to_vec::<i32>().unwrap();
        assert!((0..rows).all(|row| after[row] == before[row] + 1) && after[rows] == before[rows]);
        assert_eq!(decoded.to_vec::<i32>().unwrap(), [42, 7]);
    }
}

/// Of three heads of each row, the last two go into a cache of their own.
#[test]
fn some_heads_of_the_rows_are_stored_alone() {
    let device = Device::for_tests();
    let (rows, row_heads, head_dim, capacity) = (3, 3, 4, 5);
    let numbers: Vec<f32> = (0..rows * row_heads * head_dim).map(|i| i as f32).collect();
    let held = Held::new(&device, Element::F32, 0, &numbers);
    let caches = [0; 2].map(|_| Held::new(&device, Element::F32, 0, &vec![-1.0; 2 * capacity * head_dim]));
    append(&Append {
        keys: held.numbers(),
        values: held.numbers(),
        row_heads,
        first_head: 1,
        kv_heads: 2,
        head_dim,
        rows,
        first_slot: 1,
        decoded: None,
        capacity,
        to_keys: caches[0].numbers(),
        to_values: caches[1].numbers(),
    })
    .unwrap();
    for cache in &caches {
        for (at, x) in cache.to_vec().into_iter().enumerate() {
            let (head, slot, element) = (at / (capacity * head_dim), at / head_dim % capacity, at % head_dim);
            let expected = match slot.checked_sub(1).filter(|&row| row < rows) {
                Some(row) => ((row * row_heads + head + 1) * head_dim + element) as f32,
                None => -1.0,
            };
            assert_eq!(x, expected);
        }
    }
}
