//! Quality on a GPU compared with the CPU; on the emulated GPU unless a real one is tested.

// The emulation exists only on Linux.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use layerscope_bench::FullContinuation;
use layerscope_engine::{Device, Interrupt, Model, ModelSource, Policy, WeightsPrecision};
use std::path::Path;

fn load(device: &Device) -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
    Model::load(&ModelSource::path(path), WeightsPrecision::F32, device, &mut |_, _| Ok(())).unwrap()
}

fn gpu() -> Device {
    Device::Cuda(layerscope_kernels::cuda::Device::for_tests())
}

#[test]
fn quality_on_a_gpu_is_the_cpus() {
    let (prompt, interrupt): (Vec<u32>, _) =
        ((0..40).map(|i| 3 + i * 37 % 890).collect(), Interrupt::new(false));
    let [expected, actual] = [Device::Cpu, gpu()].map(|device| {
        let model = load(&device);
        let full = FullContinuation::of(&model.decoder, &prompt, 4, &[], &interrupt).unwrap();
        let policy = Policy::speed(4, true, model.config().layers).unwrap();
        (full.tokens().to_vec(), full.divergence(&model.decoder, &policy, &interrupt).unwrap())
    });
    assert_eq!(actual.0, expected.0);
    assert!(expected.1.kl > 0.01, "{expected:?}");
    for (a, b) in
        [(actual.1.kl, expected.1.kl), (actual.1.dnll, expected.1.dnll), (actual.1.top1, expected.1.top1)]
    {
        assert!((a - b).abs() < 0.02 * (1.0 + b.abs()), "{actual:?} {expected:?}");
    }
}
