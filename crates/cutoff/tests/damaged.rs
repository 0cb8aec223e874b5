//! Models with a weight that is NaN or infinite: what is undefined in PyTorch is undefined here, and nothing else
//! (`fixtures/families/damage.py`).

#![allow(clippy::unwrap_used)]

use layerscope_cutoff::frontier::{CausalMap, frontier};
use layerscope_diagnostics::probe::{self, Decoding};
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::{
    Decoder, Device, Error, Interrupt, Result, UndefinedFrom, WeightsPrecision, folder_config,
};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A family's model, undamaged and damaged.
#[derive(Deserialize)]
struct Family {
    prompt_len: usize,
    /// Prompt and continuation.
    tokens: Vec<u32>,
    /// KL at cutoffs 1 … L.
    clean: Vec<Option<f64>>,
    damaged: Vec<Damaged>,
}

#[derive(Debug, Deserialize)]
struct Damaged {
    tensor: String,
    index: usize,
    value: String,
    /// KL at cutoffs 1 … L; none where it is not finite.
    kl: Vec<Option<f64>>,
}

fn families() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families")
}

/// Where a tensor's numbers begin in a safetensors file, and how they are stored.
fn place_of(file: &[u8], tensor: &str) -> (usize, String) {
    let header_len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + header_len]).unwrap();
    let start = header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    (8 + header_len + start, header[tensor]["dtype"].as_str().unwrap().to_owned())
}

fn damage(file: &mut [u8], damaged: &Damaged) {
    let (start, stored_as) = place_of(file, &damaged.tensor);
    let number: f32 = damaged.value.parse().unwrap();
    let bytes = match stored_as.as_str() {
        "F32" => number.to_le_bytes().to_vec(),
        "F16" => half::f16::from_f32(number).to_le_bytes().to_vec(),
        "BF16" => half::bf16::from_f32(number).to_le_bytes().to_vec(),
        other => panic!("{other}"),
    };
    file[start + damaged.index * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
}

fn load(folder: &Path, device: &Device) -> Arc<Decoder> {
    let (_, config, files) = folder_config(folder, None).unwrap();
    let weights = files.weights(&config).unwrap();
    Arc::new(
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(())).unwrap(),
    )
}

/// KL at cutoffs 1 … L with position 0 kept; none where it is undefined.
fn kl(decoder: &Arc<Decoder>, family: &Family) -> Result<Vec<Option<f64>>> {
    let (prompt, continuation) = family.tokens.split_at(family.prompt_len);
    let interrupt = Interrupt::new(false);
    let run = probe::run(decoder, prompt, &Decoding::Given(continuation), &interrupt, &mut |_| {})?;
    let rows = frontier(decoder, &run, CausalMap::Layers, &interrupt, &mut |_| {})?.rows;
    let with_bos = rows.iter().filter(|row| row.anchor == Anchor::Bos);
    Ok(with_bos
        .map(|row| {
            let divergence = row.divergence;
            let undefined = divergence.kl.is_nan();
            assert_eq!(undefined, divergence.top1.is_nan() || divergence.dnll.is_nan(), "{divergence:?}");
            (!undefined).then_some(divergence.kl)
        })
        .collect())
}

fn agree(actual: &[Option<f64>], expected: &[Option<f64>]) -> bool {
    actual.len() == expected.len()
        && actual.iter().zip(expected).all(|pair| match pair {
            (Some(actual), Some(expected)) => (actual - expected).abs() < 1e-4 * (1.0 + expected),
            (actual, expected) => actual.is_none() && expected.is_none(),
        })
}

/// Every so many of the cases on a device.
fn check(device: &Device, every: usize) {
    let golden = fs::read(families().join("damaged.json")).unwrap();
    let golden: BTreeMap<String, Family> = serde_json::from_slice(&golden).unwrap();
    let mut wrong = vec![];
    for (name, family) in &golden {
        let folder = families().join(name);
        let clean = kl(&load(&folder, device), family).unwrap();
        assert!(agree(&clean, &family.clean), "{name}: {clean:?} {:?}", family.clean);
        let scratch = tempfile::tempdir().unwrap();
        fs::copy(folder.join("config.json"), scratch.path().join("config.json")).unwrap();
        let whole = fs::read(folder.join("model.safetensors")).unwrap();
        for damaged in family.damaged.iter().step_by(every) {
            let mut file = whole.clone();
            damage(&mut file, damaged);
            fs::write(scratch.path().join("model.safetensors"), file).unwrap();
            let actual = match kl(&load(scratch.path(), device), family) {
                Ok(kl) => kl,
                Err(Error::UndefinedLogits { from }) => {
                    check_place(&damaged.tensor, from);
                    vec![None; damaged.kl.len()]
                }
                Err(error) => panic!("{name} {damaged:?}: {error}"),
            };
            if !agree(&actual, &damaged.kl) {
                wrong.push(format!("{name} {damaged:?}: {actual:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ from PyTorch:\n{}", wrong.len(), wrong.join("\n"));
}

/// Undefined numbers begin in the layer whose tensor is damaged.
fn check_place(tensor: &str, from: Option<UndefinedFrom>) {
    let layer = tensor.split('.').find_map(|part| part.parse::<usize>().ok());
    match (layer, from.unwrap()) {
        (Some(layer), from) => assert_eq!(from, UndefinedFrom::Layer(layer), "{tensor}"),
        (None, from) => {
            assert!(!matches!(from, UndefinedFrom::Layer(layer) if layer > 0), "{tensor}: {from}")
        }
    }
}

#[test]
fn what_is_undefined_in_pytorch_is_undefined() {
    check(&Device::Cpu, 4);
}

/// A matrix so large that its layer overflows: where the top token or the NLL is undefined, so is the KL (`kl` checks it).
#[test]
fn no_figure_is_defined_beside_one_that_is_not() {
    let golden = fs::read(families().join("damaged.json")).unwrap();
    let golden: BTreeMap<String, Family> = serde_json::from_slice(&golden).unwrap();
    let (folder, scratch) = (families().join("llama31"), tempfile::tempdir().unwrap());
    fs::copy(folder.join("config.json"), scratch.path().join("config.json")).unwrap();
    let whole = fs::read(folder.join("model.safetensors")).unwrap();
    let (start, stored_as) = place_of(&whole, "model.layers.1.mlp.down_proj.weight");
    assert_eq!(stored_as, "BF16");
    let mut undefined = 0;
    for factor in [1e30, 1e35, 1e37, 1e38] {
        let mut file = whole.clone();
        let numbers = file[start..].chunks_exact_mut(2).take(32 * 64);
        for number in numbers {
            let scaled = half::bf16::from_le_bytes([number[0], number[1]]).to_f32() * factor;
            number.copy_from_slice(&half::bf16::from_f32(scaled).to_le_bytes());
        }
        fs::write(scratch.path().join("model.safetensors"), file).unwrap();
        match kl(&load(scratch.path(), &Device::Cpu), &golden["llama31"]) {
            Ok(kl) => undefined += kl.iter().filter(|kl| kl.is_none()).count(),
            Err(Error::UndefinedLogits { .. }) => undefined += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(undefined > 0);
}

#[test]
#[ignore = "a minute; a quarter of the cases runs above"]
fn in_all_cases() {
    check(&Device::Cpu, 1);
}

#[cfg(target_os = "linux")]
#[test]
fn and_on_a_gpu() {
    check(&Device::Cuda(layerscope_kernels::cuda::Device::for_tests()), 10);
}
