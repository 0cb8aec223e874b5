//! Layers with a window keep the KV that a later row sees, and no more, under every policy.

use super::reference::crate_folder;
use super::run;
use layerscope_engine::{
    Decoder, Device, Hooks, Interrupt, Policy, Session, WeightsPrecision, folder_config,
};
use std::sync::Arc;

const P: usize = 130;
const STEPS: usize = 6;

pub(super) fn family(name: &str, device: &Device) -> Arc<Decoder> {
    let folder = crate_folder().join("../../fixtures/families").join(name);
    let (_, mut config, files) = folder_config(&folder, None).unwrap();
    if !config.learned_positions {
        // Some tests take longer prompts than such a model was made for.
        config.context = config.context.max(2_048);
    }
    let weights = files.weights(&config).unwrap();
    Arc::new(
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(())).unwrap(),
    )
}

fn sequence() -> Vec<u32> {
    (0..P as u32 + STEPS as u32 - 1).map(|i| 1 + i * 29 % 61).collect()
}

/// Logits of all steps in a session that keeps everything.
fn keeping_everything(decoder: &Arc<Decoder>, policy: &Policy, sequence: &[u32]) -> Vec<Vec<f32>> {
    let mut session = Session::resumable(decoder, policy.clone(), P, STEPS).unwrap();
    let interrupt = Interrupt::new(false);
    let mut logits =
        vec![session.prefill(&sequence[..P], &mut Hooks::none(), &interrupt, &mut |_| {}).unwrap()];
    for &token in &sequence[P..] {
        logits.push(session.step(token, &mut Hooks::none()).unwrap());
    }
    logits.iter().map(|logits| logits.to_vec().unwrap()).collect()
}

fn check(device: &Device, names: &[&str], policies: &[&str]) {
    for name in names {
        let decoder = &family(name, device);
        let config = decoder.config();
        assert!(config.windows.iter().flatten().any(|window| *window < P), "{name} has no small window");
        for policy in policies {
            let policy = Policy::parse(policy, config.layers).unwrap();
            let (actual, session) = run(decoder, &policy, &sequence(), P, &mut Hooks::none());
            let expected = keeping_everything(decoder, &policy, &sequence());
            for (step, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
                let most = actual.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(most < 1e-4, "{name}, {policy}, step {step}: {most}");
            }
            let account = policy.for_model(config).capacity(P, STEPS);
            let bytes = 2 * decoder.kv_precision().bytes(config.kv_heads * config.head_dim);
            assert_eq!(session.store().allocated_bytes(), account.iter().sum::<usize>() * bytes, "{name}");
            for (layer, window) in config.windows.iter().enumerate() {
                let positions = session.store().positions(layer, 0);
                assert_eq!(positions.len(), account[layer], "{name}, layer {layer}");
                if let Some(window) = window {
                    assert!(positions.iter().all(|position| position + window >= P), "{name}: {positions:?}");
                    assert!(account[layer] <= window - 1 + STEPS);
                }
            }
        }
    }
}

const POLICIES: [&str; 6] = ["full", "speed:2+bos", "speed:1+128", "selfonly:2", "pop:2", "swiftkv:1"];

#[test]
fn what_no_later_row_sees_leaves_and_changes_nothing() {
    check(&Device::Cpu, &["gemma2", "gemma3"], &POLICIES);
}

#[cfg(target_os = "linux")]
#[test]
fn the_same_on_a_gpu() {
    let device = Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    check(&device, &["gemma3"], &["full", "pop:2"]);
}
