//! Keys and values in eight bits: the same as in f32, each rounded before it is stored.

use super::{TINY, assert_within, run, sequence};
use layerscope_engine::{Device, HookPoint, Hooks, KvPrecision, ModelConfig, Policy, Site, WeightsPrecision};
use layerscope_kernels::Q8Block;
use std::sync::Arc;

/// Hooks that round keys and values as blocks of eight bits do.
fn rounding(layers: usize) -> Hooks<'static> {
    let mut hooks = Hooks::none();
    for layer in 0..layers {
        for site in [Site::RotatedKey, Site::Value] {
            hooks.add(HookPoint { layer, site }, |_, numbers| {
                let mut rounded = numbers.as_standard_layout().into_owned();
                for block in rounded.as_slice_mut().unwrap().as_chunks_mut().0 {
                    *block = Q8Block::rounded(block).to_f32();
                }
                Ok(Some(rounded))
            });
        }
    }
    hooks
}

#[test]
fn eight_bits_are_what_rounded_keys_and_values_give() {
    let layers = TINY.decoder.config().layers;
    let in_q8 = Arc::new(TINY.decoder.with_kv(KvPrecision::Q8).unwrap());
    for name in [
        "full",
        "speed:3+bos+2",
        "selfonly:4",
        "pop:3",
        "swiftkv:3",
        "streaming:64+sinks=4",
        "lazyllm:2=100+5=40",
        "sliminfer:2=200+5=130+read=0.5+swap=1",
        "keep:0+3.1+bos+window=16",
        "snapkv:40%",
        "flexprefill",
    ] {
        let policy = Policy::parse_for(name, TINY.decoder.config()).unwrap();
        for p in [1, 2, 65, 515] {
            let sequence = sequence(p + 4, p as u32);
            let (expected, in_f32) = run(&TINY.decoder, &policy, &sequence, p, &mut rounding(layers));
            let (actual, session) = run(&in_q8, &policy, &sequence, p, &mut Hooks::none());
            assert_within(1e-3, &actual, &expected, &format!("{name}, p {p}"));
            let bytes = session.store().allocated_bytes();
            assert_eq!(bytes * 128, in_f32.store().allocated_bytes() * 34, "{name}, p {p}: 34 bytes of 128");
        }
    }
}

#[test]
fn a_type_is_refused_where_it_cannot_be_kept() {
    let error = TINY.decoder.with_kv(KvPrecision::Bf16).err().unwrap();
    assert_eq!(error.to_string(), "a CPU does not keep keys and values in bf16; leave out --kv bf16");
    let config = ModelConfig { head_dim: 80, ..TINY.decoder.config().clone() };
    let error = KvPrecision::Q8.check(&config, WeightsPrecision::Native, &Device::Cpu).unwrap_err();
    assert_eq!(
        error.to_string(),
        "q8_0 needs heads of a multiple of 32 elements, and this model's have 80; leave out --kv q8_0"
    );
}
