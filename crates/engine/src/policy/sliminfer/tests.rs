//! What goes wrong with transfers is an error, at once and for good.

#![allow(clippy::unwrap_used)]

use super::representatives::folded;
use super::tier::{HostMemory, Key, SpillFile, Tier};
use super::transfers::{Staging, Transfers};
use super::{BLOCK, LAYERS_IN_TRANSIT};
use crate::kv::{Evicted, KvStore};
use crate::{Device, Error, KvPrecision, Result, Shape, Tensor};
use layerscope_kernels::AttentionShape;
use proptest::prelude::*;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

fn start(tier: impl Tier + 'static) -> Transfers {
    let staging = || Staging { bytes: vec![], on_device: None };
    Transfers::start(Box::new(tier), (0..LAYERS_IN_TRANSIT).map(|_| staging()).collect()).unwrap()
}

fn spill_file() -> (SpillFile, File) {
    let file = tempfile::tempfile().unwrap();
    let other = file.try_clone().unwrap();
    (SpillFile::of(file, Path::new("folder")), other)
}

fn error(result: Result<impl Sized>) -> String {
    let error = result.err().unwrap();
    assert!(matches!(error, Error::Failure(_)), "{error}");
    error.to_string()
}

/// Blocks of a layer with two KV heads of one element each. A key is its token's position and a half for the second head, a
/// value ten thousand more.
fn evicted(blocks: usize) -> Evicted {
    let tokens = blocks * BLOCK;
    let mut config = Shape::named("llama-3.1-8b").unwrap().config().clone();
    (config.kv_heads, config.head_dim) = (2, 1);
    let mut store = KvStore::new(&config, &[tokens + 3], KvPrecision::F32, &Device::Cpu).unwrap();
    let positions: Vec<usize> = (0..tokens).collect();
    let numbers = |offset: f32| {
        let numbers = (0..2 * tokens).map(|index| index as f32 / 2.0 + offset).collect();
        Tensor::from_vec(numbers, &[tokens, 2, 1]).unwrap()
    };
    store.append(0, &positions, &numbers(0.0), &numbers(10_000.0)).unwrap();
    store.keep_slots(0, &[], 0).unwrap()
}

/// The record of a block.
fn record(block: usize) -> Vec<u8> {
    let keys = (0..2 * BLOCK).map(|index| (block * BLOCK) as f32 + index as f32 / 2.0);
    let all: Vec<f32> = keys.clone().chain(keys.map(|key| key + 10_000.0)).collect();
    bytemuck::cast_slice(&all).to_vec()
}

#[test]
fn what_is_taken_away_comes_back_in_the_order_asked_for() {
    for tier in [Box::new(spill_file().0) as Box<dyn Tier>, Box::<HostMemory>::default()] {
        let staging = || Staging { bytes: vec![], on_device: None };
        let mut transfers =
            Transfers::start(tier, (0..LAYERS_IN_TRANSIT).map(|_| staging()).collect()).unwrap();
        for layer in 0..20 {
            transfers.write((0..3).map(|block| (layer, block)).collect(), evicted(3)).unwrap();
        }
        for layer in (0..20).rev() {
            transfers.read(vec![(layer, 2), (layer, layer % 2)]).unwrap();
        }
        for layer in (0..20).rev() {
            let arrival = transfers.arrival().unwrap();
            assert_eq!(arrival.staging.bytes, [record(2), record(layer % 2)].concat());
            transfers.give_back(arrival.staging);
        }
    }
}

/// A disk without room takes nothing: so does `/dev/full`.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_that_names_the_folder() {
    let full = File::options().read(true).write(true).open("/dev/full").unwrap();
    let mut transfers = start(SpillFile::of(full, Path::new("/the/folder")));
    transfers.write(vec![(0, 0)], evicted(1)).unwrap();
    let message = error(transfers.finish_writing());
    assert!(message.contains("/the/folder") && message.contains("make room"), "{message}");
    assert!(error(transfers.read(vec![(0, 0)])).contains("has ended"));
    assert!(error(transfers.write(vec![(0, 1)], evicted(1))).contains("has ended"));
    assert!(error(transfers.arrival()).contains("has ended"));
}

#[test]
fn a_lost_or_changed_block_is_an_error_that_names_it() {
    for damage in ["nothing", "cut", "changed", "never written"] {
        let (tier, mut file) = spill_file();
        let mut transfers = start(tier);
        transfers.write(vec![(3, 7), (3, 8)], evicted(2)).unwrap();
        transfers.finish_writing().unwrap();
        let len = record(0).len() as u64;
        match damage {
            "cut" => file.set_len(2 * len - 1).unwrap(),
            "changed" => {
                file.seek(SeekFrom::Start(len + 70)).unwrap();
                file.write_all(&[8]).unwrap();
            }
            _ => {}
        }
        transfers.read(vec![(3, if damage == "never written" { 9 } else { 8 })]).unwrap();
        if damage == "nothing" {
            assert_eq!(transfers.arrival().unwrap().staging.bytes, record(1));
            continue;
        }
        let message = error(transfers.arrival());
        assert!(message.contains("at layer 3 does not come back"), "{damage}: {message}");
        assert!(error(transfers.arrival()).contains("has ended"), "{damage}");
    }
    let mut transfers = start(HostMemory::default());
    transfers.read(vec![(1, 2)]).unwrap();
    assert!(error(transfers.arrival()).contains("block 2 at layer 1"));
}

/// A thread that dies without a word.
#[test]
fn a_killed_thread_is_an_error() {
    struct Deadly;
    impl Tier for Deadly {
        fn write(&mut self, _: Key, _: &[u8]) -> Result<()> {
            Ok(())
        }
        fn read(&mut self, _: Key, _: &mut Vec<u8>) -> Result<()> {
            std::panic::resume_unwind(Box::new("killed"));
        }
    }
    let mut transfers = start(Deadly);
    transfers.write(vec![(0, 0)], evicted(1)).unwrap();
    transfers.read(vec![(0, 0)]).unwrap();
    assert!(error(transfers.arrival()).contains("has ended, so no further token"));
    assert!(error(transfers.read(vec![(0, 0)])).contains("has ended"));
}

proptest! {
    /// One product with the folded query is the mean over heads of q·k.
    #[test]
    fn folding_is_the_mean_over_heads(
        kv_heads in 1usize..4, group in 1usize..4, dim in 1usize..6,
        numbers in proptest::collection::vec(-2.0f32..2.0, 9 * 6 + 3 * 6),
    ) {
        let heads = kv_heads * group;
        let shape = AttentionShape {
            query_heads: heads, kv_heads, head_dim: dim, scale: 1.0, soft_cap: None, window: None, sinks: 0,
        };
        let (query, key) = (&numbers[..heads * dim], &numbers[54..54 + kv_heads * dim]);
        let plain: f64 = (0..heads)
            .flat_map(|head| (0..dim).map(move |i| (head, i)))
            .map(|(head, i)| f64::from(query[head * dim + i]) * f64::from(key[head / group * dim + i]))
            .sum::<f64>() / heads as f64;
        let product: f64 =
            folded(query, &shape).iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum();
        prop_assert!((plain - product).abs() < 1e-5);
    }
}
