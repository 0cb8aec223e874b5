//! Models on a GPU in the precision that their files have, beside the CPU in f32; on an emulated GPU unless there is one to
//! test.

// The emulation is there on Linux alone.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use layerscope_engine::{
    Decoder, Device, GgufFile, Hooks, Interrupt, LayerStatistics, MemoryNeed, Policy, Session, Shape,
    ShapeWeights, WeightsPrecision, gguf_config,
};
use layerscope_kernels::ReadLimits;
use std::path::Path;
use std::sync::Arc;

/// What bf16 may move masses and entropies by.
const STATISTICS_BAR: f32 = 2e-3;

fn gpu() -> Device {
    Device::Cuda(layerscope_kernels::cuda::Device::for_tests())
}

/// Heads of 64, three to a KV head: prompts are read on tensor cores.
fn smollm2(precision: WeightsPrecision, device: &Device) -> Arc<Decoder> {
    let shape = Shape::named("smollm2-135m").unwrap().cut_to(2).unwrap();
    Arc::new(shape.decoder(ShapeWeights::Bf16, precision, device, 5, &mut |_, _| Ok(())).unwrap())
}

/// A model whose matrices are all of different block types.
fn block_types(precision: WeightsPrecision, device: &Device) -> Arc<Decoder> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/block-types/model.gguf");
    let file = GgufFile::open(&path).unwrap();
    let config = gguf_config(&file, None).unwrap();
    let weights = file.weights(&config).unwrap();
    Arc::new(Decoder::load(config.clone(), &weights, precision, device, &mut |_, _| Ok(())).unwrap())
}

/// Logits and statistics of a prompt, of single steps, and of all decode rows at once.
fn run(decoder: &Arc<Decoder>, name: &str, p: usize, steps: usize) -> (Vec<Vec<f32>>, Vec<LayerStatistics>) {
    let vocab = decoder.config().vocab as u32;
    let sequence: Vec<u32> = (0..(p + steps) as u32).map(|i| (i * 7919 + 13) % vocab).collect();
    let policy = Policy::parse(name, decoder.config().layers).unwrap();
    let mut session = Session::new(decoder, policy, p, steps + 1).unwrap();
    let mut hooks = Hooks::none();
    let first = session.prefill(&sequence[..p], &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    let (mut logits, mut statistics) = (vec![first.to_vec().unwrap()], vec![]);
    for (index, &token) in sequence[p..].iter().enumerate() {
        let step = match index % 2 {
            0 => session.step(token, &mut hooks),
            _ => session.step_with_statistics(token, &mut hooks, &mut statistics),
        };
        logits.push(step.unwrap().to_vec().unwrap());
    }
    session.truncate(p - 1).unwrap();
    let limits = ReadLimits {
        positions: 1..(p - 1).max(1),
        of_head: 4,
        least_of_head: 1e-3,
        of_mean: 6,
        least_of_mean: 0.0,
    };
    session.teacher_forced_with_reads(&sequence[p - 1..], &mut hooks, &mut statistics, limits).unwrap();
    (logits, statistics)
}

/// Root of the mean square of the difference over that of the expected.
fn relative_error(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let square = |x: f32| f64::from(x).powi(2);
    let off: f64 = actual.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (off / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

fn check(
    what: &str,
    actual: &(Vec<Vec<f32>>, Vec<LayerStatistics>),
    expected: &(Vec<Vec<f32>>, Vec<LayerStatistics>),
    [logits_bar, statistics_bar]: [f32; 2],
) {
    for (step, (actual, expected)) in actual.0.iter().zip(&expected.0).enumerate() {
        let off = relative_error(actual, expected);
        assert!(off < f64::from(logits_bar), "{what}, step {step}: logits are off by {off:e}");
    }
    assert_eq!(actual.1.len(), expected.1.len(), "{what}");
    for (actual, expected) in actual.1.iter().zip(&expected.1) {
        let masses = actual.rows.mass.iter().zip(&expected.rows.mass);
        for (a, b) in masses.flat_map(|(a, b)| a.iter().zip(b)) {
            assert!((a - b).abs() < 5.0 * statistics_bar, "{what}: a mass is {a} instead of {b}");
        }
        // What is reported of a layer: means over heads and steps.
        for segment in 0..3 {
            let mean = |statistics: &LayerStatistics| {
                let masses = &statistics.rows.mass;
                masses.iter().map(|mass| mass[segment]).sum::<f32>() / masses.len() as f32
            };
            let (actual, expected) = (mean(actual), mean(expected));
            assert!((actual - expected).abs() < statistics_bar, "{what}: {actual} instead of {expected}");
        }
        let queries = expected.rows.mass.len() as f32;
        for (a, b) in actual.received.sum.iter().zip(&expected.received.sum) {
            assert!((a - b).abs() < queries * statistics_bar, "{what}: received {a} instead of {b}");
        }
        assert_eq!(actual.received.reads.len(), expected.received.reads.len(), "{what}");
        for (actual, expected) in actual.received.reads.iter().zip(&expected.received.reads) {
            assert_eq!(actual.ends.len(), expected.ends.len(), "{what}");
            let heads = (0..expected.ends.len()).map(|head| (actual.of_head(head), expected.of_head(head)));
            for (actual, expected) in heads.chain([(&actual.mean[..], &expected.mean[..])]) {
                // Near ties may change places, so the strongest is compared by its attention.
                let [a, b] = [actual, expected].map(|list| list.first().map_or(0.0, |read| read.attention));
                assert!((a - b).abs() < 10.0 * statistics_bar, "{what}: strongest read {a} instead of {b}");
            }
        }
    }
}

#[test]
fn bf16_weights_stay_near_f32() {
    let expected = smollm2(WeightsPrecision::F32, &Device::Cpu);
    let actual = smollm2(WeightsPrecision::Native, &gpu());
    for (name, p) in [("full", 150), ("speed:1+bos", 67), ("pop:1", 9), ("swiftkv:1", 130)] {
        let pair = [&actual, &expected].map(|decoder| run(decoder, name, p, 4));
        check(&format!("{name}, p {p}"), &pair[0], &pair[1], [2e-2, STATISTICS_BAR]);
    }
}

#[test]
fn weights_of_every_block_type_stay_near_f32() {
    let expected = block_types(WeightsPrecision::F32, &Device::Cpu);
    let actual = block_types(WeightsPrecision::Native, &gpu());
    for p in [1, 3, 30] {
        let pair = [&actual, &expected].map(|decoder| run(decoder, "full", p, 3));
        check(&format!("p {p}"), &pair[0], &pair[1], [2e-2, STATISTICS_BAR]);
    }
}

#[test]
fn weights_in_f32_are_as_exact_as_on_the_cpu() {
    let expected = smollm2(WeightsPrecision::F32, &Device::Cpu);
    let actual = smollm2(WeightsPrecision::F32, &gpu());
    let pair = [&actual, &expected].map(|decoder| run(decoder, "full", 40, 3));
    check("f32", &pair[0], &pair[1], [1e-5, 1e-5]);
}

#[test]
fn keys_and_values_are_reserved_to_the_byte_and_given_back() {
    let decoder = smollm2(WeightsPrecision::Native, &gpu());
    let Device::Cuda(device) = decoder.device() else { unreachable!("it was asked for") };
    let token = 2 * decoder.config().kv_width() * 2;
    let before = device.allocated_bytes();
    for (name, tokens) in [("full", 2 * (99 + 8)), ("speed:1", 99 + 8 + 8), ("speed:1+bos", 99 + 8 + 9)] {
        let policy = Policy::parse(name, 2).unwrap();
        let session = Session::new(&decoder, policy, 100, 8).unwrap();
        assert_eq!(session.store().allocated_bytes(), tokens * token, "{name}");
        assert_eq!(device.allocated_bytes() - before, tokens * token, "{name}");
        drop(session);
        assert_eq!(device.allocated_bytes(), before, "{name}");
    }
    let policy = Policy::full(2);
    let error = Session::new(&decoder, policy.clone(), 100, 0).err();
    assert!(error.is_none() || error.unwrap().exit_code() == 2);
}

/// A whole prompt of 128K tokens with an 8B model in bf16, which the feature is for.
#[test]
fn eight_billion_weights_and_128k_tokens_fit_80_gb_under_speed() {
    let shape = Shape::named("llama-3.1-8b").unwrap();
    let need = |name: &str| -> MemoryNeed {
        let policy = Policy::parse(name, 32).unwrap();
        let capacity = policy.capacity(131_072 - 128, 129);
        let need = shape.memory_need(ShapeWeights::Bf16, WeightsPrecision::Native, &gpu());
        need.with_sequence(shape.config(), &capacity)
    };
    let (full, speed) = (need("full"), need("speed:24+bos"));
    assert!(speed.total() < 80_000_000_000, "{speed:?}");
    let saved = 1.0 - speed.kv as f64 / full.kv as f64;
    assert!((saved - 0.25).abs() < 0.001, "{saved}");
}
