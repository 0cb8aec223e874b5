//! Every model family against PyTorch: tiny random checkpoints in both file formats (`fixtures/families`).

#![allow(clippy::unwrap_used)]

use candle_core::{DType, Tensor as HostTensor};
use layerscope_engine::{
    ComputeType, Decoder, Device, GgufFile, HookPoint, Hooks, Interrupt, ModelConfig, NormPlacement, Policy,
    SafetensorsFiles, Session, Site, Tensor, WeightsPrecision, argmax, folder_config, gguf_config,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const FAMILIES: [&str; 21] = [
    "llama2",
    "llama31",
    "mistral",
    "qwen2",
    "qwen2_yarn",
    "qwen3",
    "qwen3_moe",
    "qwen3_moe_dense",
    "olmoe",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "phi4",
    "smollm3",
    "olmo2",
    "granite",
    "gpt_neox",
    "gpt_neox_sequential",
    "gpt2",
    "starcoder2",
];

/// Bound of logits, masses and entropies.
const BAR: f64 = 1e-4;

/// This crate's folder where the tests run, which need not be where they were compiled.
fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

fn folder(family: &str) -> PathBuf {
    crate_folder().join("../../fixtures/families").join(family)
}

/// What one step reads, by hand: of experts those that a token chooses, of an embedding of its own next to nothing.
#[test]
fn a_step_reads_the_experts_that_a_token_chooses_and_no_separate_embedding() {
    for (family, tied) in [("olmoe", false), ("qwen3_moe", false), ("gemma3", true)] {
        let decoder = load(&folder(family), &Device::Cpu);
        let config = decoder.config();
        assert_eq!(config.tied_embeddings, tied, "{family}");
        let unread_experts = config.experts.as_ref().map_or(0, |experts| {
            config.layers * (experts.count - experts.used) * 3 * config.hidden * experts.feed_forward
        });
        let unread_embedding = if tied { 0 } else { config.vocab * config.hidden };
        let unread = (unread_experts + unread_embedding) * size_of::<f32>();
        assert_eq!(decoder.weight_bytes() - decoder.step_weight_bytes(), unread, "{family}");
        let [attention, mlp] = config.row_weights();
        let of_layers = (attention + mlp) * config.layers as u64;
        let router =
            config.experts.as_ref().map_or(0, |experts| experts.count * config.hidden * config.layers);
        let unembedding = config.vocab * config.hidden;
        let read = (of_layers as usize + router + unembedding) * size_of::<f32>();
        assert_eq!(decoder.step_weight_bytes(), read, "{family}");
    }
}

/// What PyTorch computed.
struct Expected(HashMap<String, HostTensor>);

impl Expected {
    fn read(family: &str) -> Self {
        let path = folder(family).join("expected.safetensors");
        Self(candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        self.0[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].to_dtype(DType::U32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }
}

fn load(folder: &Path, device: &Device) -> Arc<Decoder> {
    let (_, mut config, files) = folder_config(folder, None).unwrap();
    config.context = config.context.max(300);
    let weights = files.weights(&config).unwrap();
    Arc::new(
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(())).unwrap(),
    )
}

fn load_gguf(path: &Path, device: &Device) -> Arc<Decoder> {
    let file = GgufFile::open(path).unwrap();
    let mut config = gguf_config(&file, None).unwrap();
    config.context = config.context.max(300);
    let weights = file.weights(&config).unwrap();
    Arc::new(
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(())).unwrap(),
    )
}

fn session(decoder: &Arc<Decoder>, prompt_len: usize, decode_len: usize) -> Session {
    let policy = Policy::full(decoder.config().layers);
    Session::new(decoder, policy, prompt_len, decode_len).unwrap()
}

/// Residual stream after each block, and before the first, `[tokens, d]` each, of one pass without a cache.
fn residual_stream(decoder: &Arc<Decoder>, tokens: &[u32]) -> Vec<Tensor> {
    let layers = decoder.config().layers;
    let seen = std::cell::RefCell::new(vec![None; layers + 1]);
    let mut hooks = Hooks::none();
    hooks.observe(HookPoint { layer: 0, site: Site::ResidPre }, |_, x| {
        seen.borrow_mut()[0] = Some(x.clone());
        Ok(())
    });
    for layer in 0..layers {
        let seen = &seen;
        hooks.observe(HookPoint { layer, site: Site::ResidPost }, move |_, x| {
            seen.borrow_mut()[layer + 1] = Some(x.clone());
            Ok(())
        });
    }
    let mut session = session(decoder, tokens.len(), 1);
    session.prefill(tokens, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    drop(hooks);
    seen.into_inner().into_iter().map(Option::unwrap).collect()
}

fn logits(decoder: &Arc<Decoder>, x: &Tensor) -> Vec<f32> {
    let positions: Vec<usize> = (0..x.rows()).collect();
    let logits = decoder.unembed(x, &positions, &mut Hooks::none(), ComputeType::F32).unwrap();
    logits.to_vec().unwrap()
}

fn largest_difference(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    actual.iter().zip(expected).fold(0.0, |worst, (a, b)| f64::max(worst, f64::from((a - b).abs())))
}

fn check(what: &str, actual: &[f32], expected: &[f32]) {
    let off = largest_difference(actual, expected);
    assert!(off < BAR, "{what}: off by {off:e}");
}

/// Families that between them have all that tells families apart, for tests that are slow where a GPU is emulated.
const DIVERSE: [&str; 5] = ["gemma2", "gpt2", "gpt_neox", "olmoe", "llama31"];

fn is_emulated(device: &Device) -> bool {
    matches!(device, Device::Cuda(device) if device.information().driver == "none")
}

/// [`for_each_family`], but where a GPU is emulated the diverse ones alone.
fn for_diverse_families(device: &Device, test: impl Fn(&str, &Expected)) {
    for_each_of(if is_emulated(device) { &DIVERSE } else { &FAMILIES }, test);
}

/// `test` for every family, all of which are tried before any failure is told.
fn for_each_family(test: impl Fn(&str, &Expected)) {
    for_each_of(&FAMILIES, test);
}

fn for_each_of(families: &[&'static str], test: impl Fn(&str, &Expected)) {
    let failed: Vec<&str> = families
        .iter()
        .copied()
        .filter(|&family| {
            let expected = Expected::read(family);
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| test(family, &expected))).is_err()
        })
        .collect();
    assert!(failed.is_empty(), "failed: {}", failed.join(", "));
}

#[test]
fn the_fixtures_are_all_tested() {
    let entries = std::fs::read_dir(folder("")).unwrap().map(|entry| entry.unwrap());
    let mut folders: Vec<String> = entries
        .filter(|entry| entry.path().join("expected.safetensors").exists())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    folders.sort();
    let mut tested = FAMILIES.map(str::to_owned);
    tested.sort();
    assert_eq!(folders, tested);
}

fn one_pass_without_a_cache_equals_pytorch(device: &Device) {
    for_diverse_families(device, |family, expected| {
        let decoder = load(&folder(family), device);
        let stream = residual_stream(&decoder, &expected.ids("tokens"));
        let positions = expected.ids("hidden_positions");
        let shown: Vec<f32> =
            stream.iter().flat_map(|x| x.select(&positions).unwrap().to_vec().unwrap()).collect();
        check(&format!("{family}: residual stream"), &shown, &expected.numbers("hidden"));
        let last = logits(&decoder, stream.last().unwrap());
        check(&format!("{family}: logits"), &last, &expected.numbers("logits"));
    });
}

fn single_steps_with_a_cache_equal_pytorch(device: &Device) {
    for_diverse_families(device, |family, expected| {
        let decoder = load(&folder(family), device);
        let (tokens, all) = (expected.ids("tokens"), expected.numbers("logits"));
        let vocab = decoder.config().vocab;
        let prompt_len = if is_emulated(device) { tokens.len() - 20 } else { 37 };
        let mut session = session(&decoder, prompt_len, tokens.len() - prompt_len + 1);
        let first = session
            .prefill(&tokens[..prompt_len], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {})
            .unwrap();
        let mut actual: Vec<f32> = first.to_vec().unwrap();
        for &token in &tokens[prompt_len..] {
            let logits = session.step(token, &mut Hooks::none()).unwrap();
            actual.extend(logits.to_vec().unwrap());
        }
        check(family, &actual, &all[(prompt_len - 1) * vocab..]);
    });
}

fn chunks_of_rows_and_their_masses_equal_pytorch(device: &Device) {
    for_diverse_families(device, |family, expected| {
        let decoder = load(&folder(family), device);
        let config = decoder.config();
        let (tokens, all) = (expected.ids("tokens"), expected.numbers("logits"));
        let prompt_len = expected.ids("prompt_len")[0] as usize;
        let mut session = session(&decoder, prompt_len, 100);
        session
            .prefill(&tokens[..prompt_len], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {})
            .unwrap();
        session.truncate(prompt_len - 1).unwrap();
        // Sums over the 100 queries, [L, H].
        let mut mass = vec![[0.0f64; 3]; config.layers * config.heads];
        let mut entropy = vec![(0.0f64, 0usize); config.layers * config.heads];
        let decode = prompt_len - 1..prompt_len + 99;
        for chunk in tokens[decode.clone()].chunks(41) {
            let mut statistics = vec![];
            let first = session.len();
            let x = session.teacher_forced(chunk, &mut Hooks::none(), &mut statistics).unwrap();
            let expected = &all[first * config.vocab..(first + chunk.len()) * config.vocab];
            check(&format!("{family}: logits"), &logits(&decoder, &x), expected);
            for (layer, statistics) in statistics.iter().enumerate() {
                for (at, (masses, entropies)) in
                    statistics.rows.mass.iter().zip(&statistics.rows.entropy).enumerate()
                {
                    let head = layer * config.heads + at % config.heads;
                    (0..3).for_each(|segment| mass[head][segment] += f64::from(masses[segment]) / 100.0);
                    if masses[1] > 1e-6 {
                        entropy[head].0 += f64::from(entropies[1]) / ((prompt_len - 2) as f64).ln();
                        entropy[head].1 += 1;
                    }
                }
            }
        }
        for (segment, name) in ["bos_mass", "prompt_mass", "decode_mass"].into_iter().enumerate() {
            let actual: Vec<f32> = mass.iter().map(|mass| mass[segment] as f32).collect();
            check(&format!("{family}: {name}"), &actual, &expected.numbers(name));
        }
        for (at, (&(sum, count), expected)) in
            entropy.iter().zip(expected.numbers("prompt_entropy")).enumerate()
        {
            assert_eq!(count == 0, expected.is_nan(), "{family}: entropy {at}");
            let off = (sum / count.max(1) as f64 - f64::from(expected)).abs();
            assert!(count == 0 || off < BAR, "{family}: entropy {at} is off by {off:e}");
        }
    });
}

fn greedy_tokens_equal_pytorch(device: &Device) {
    for_each_family(|family, expected| {
        let decoder = load(&folder(family), device);
        let (prompt, greedy) = (expected.ids("greedy_prompt"), expected.ids("greedy"));
        let mut session = session(&decoder, prompt.len(), greedy.len());
        let first =
            session.prefill(&prompt, &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
        let mut actual = vec![argmax(&first, &[]).unwrap()];
        while actual.len() < greedy.len() {
            let logits = session.step(actual[actual.len() - 1], &mut Hooks::none()).unwrap();
            actual.push(argmax(&logits, &[]).unwrap());
        }
        assert_eq!(actual, greedy, "{family}");
    });
}

fn gguf_files_equal_pytorch_with_the_same_blocks(device: &Device) {
    for_diverse_families(device, |family, expected| {
        let path = folder(family).join("model.gguf");
        if family == "qwen3_moe_dense" {
            // llama.cpp knows no such model.
            assert!(!path.exists());
            return;
        }
        let decoder = load_gguf(&path, device);
        let stream = residual_stream(&decoder, &expected.ids("tokens"));
        check(family, &logits(&decoder, stream.last().unwrap()), &expected.numbers("gguf_logits"));
    });
}

/// Logits of a prefill's last token.
fn prefill(decoder: &Arc<Decoder>, prompt: &[u32], hooks: &mut Hooks<'_>) -> Vec<f32> {
    let mut session = session(decoder, prompt.len(), 1);
    session.prefill(prompt, hooks, &Interrupt::new(false), &mut |_| {}).unwrap().to_vec().unwrap()
}

fn hooks_see_what_a_family_has_and_what_they_change_matters(device: &Device) {
    let families: &[&str] = if is_emulated(device) { &["gemma2"] } else { &FAMILIES };
    for_each_of(families, |family, expected| {
        let decoder = load(&folder(family), device);
        let config = decoder.config();
        let prompt = expected.ids("tokens")[..if is_emulated(device) { 40 } else { 120 }].to_vec();
        let plain = prefill(&decoder, &prompt, &mut Hooks::none());
        for name in HookPoint::names() {
            let point = HookPoint::parse(&name.replace("{}", "1"), config.layers).unwrap()[0];
            let mut hooks = Hooks::none();
            // No norm undoes this, as it would a change of size.
            hooks.add(point, |_, x| Ok(Some(x.mapv(f32::tanh))));
            let matters = largest_difference(&prefill(&decoder, &prompt, &mut hooks), &plain) > 1e-4;
            let has = match point.site {
                Site::PositionEmbed => config.learned_positions,
                Site::AttentionNormalized | Site::MlpNormalized => {
                    config.norm_placement != NormPlacement::After
                }
                Site::AttentionPostNormalized | Site::MlpPostNormalized => {
                    config.norm_placement != NormPlacement::Before
                }
                Site::MlpPre | Site::MlpPost => config.experts.is_none(),
                Site::MlpPreLinear => config.experts.is_none() && config.gated,
                Site::ResidMid => !config.parallel_residual,
                _ => true,
            };
            assert_eq!(matters, has, "{family}: {name}");
        }
    });
}

fn the_pattern_hook_shows_the_attention_of_the_kernels(device: &Device) {
    for_diverse_families(device, |family, expected| {
        let decoder = load(&folder(family), device);
        let prompt = expected.ids("tokens");
        let mut hooks = Hooks::none();
        for point in HookPoint::parse("blocks.*.attn.hook_pattern", decoder.config().layers).unwrap() {
            hooks.add(point, |_, _| Ok(None));
        }
        let plain = prefill(&decoder, &prompt, &mut Hooks::none());
        check(family, &prefill(&decoder, &prompt, &mut hooks), &plain);
    });
}

#[test]
fn both_spellings_of_a_config_mean_the_same() {
    for_each_family(|family, _| {
        let read = |name: &str| {
            let path = folder(family).join(name);
            ModelConfig::from_json(&std::fs::read_to_string(&path).unwrap(), None, &path).unwrap()
        };
        assert_eq!(read("config.json"), read("config.hub.json"));
    });
}

/// Matrices in float8 with each way of scaling that checkpoints have, against the same numbers in f32.
#[test]
fn float8_weights_equal_the_same_numbers_in_f32() {
    let tensors =
        candle_core::safetensors::load(folder("qwen3").join("model.safetensors"), &candle_core::Device::Cpu)
            .unwrap();
    let tokens = Expected::read("qwen3").ids("tokens");
    for (scaling, name) in
        [(vec![], "weight_scale"), (vec![1], "weight_scale"), (vec![0, 1], "weight_scale_inv")]
    {
        let (mut packed, mut widened) = (tensors.clone(), tensors.clone());
        for (key, tensor) in tensors.iter().filter(|(key, _)| key.ends_with("_proj.weight")) {
            // 448 is the largest number of the type.
            let largest = match scaling.as_slice() {
                [1] => tensor.abs().unwrap().max_keepdim(1).unwrap(),
                _ => tensor.abs().unwrap().max_all().unwrap().reshape((1, 1)).unwrap(),
            };
            let scale = (largest / 448.0).unwrap();
            let numbers = tensor.broadcast_div(&scale).unwrap().to_dtype(DType::F8E4M3).unwrap();
            let wide = numbers.to_dtype(DType::F32).unwrap().broadcast_mul(&scale).unwrap();
            widened.insert(key.clone(), wide);
            packed.insert(key.clone(), numbers);
            let scale = if scaling.is_empty() { scale.reshape(()).unwrap() } else { scale };
            packed.insert(key.replace("weight", name), scale);
        }
        let logits_of = |tensors: &HashMap<String, HostTensor>| {
            let copy = changed("qwen3", |_| {});
            candle_core::safetensors::save(tensors, copy.path().join("model.safetensors")).unwrap();
            let decoder = load(copy.path(), &Device::Cpu);
            logits(&decoder, residual_stream(&decoder, &tokens).last().unwrap())
        };
        check(&format!("{name} {scaling:?}"), &logits_of(&packed), &logits_of(&widened));
    }
}

/// Tests on the CPU, and on a GPU's kernels, which the CPU runs in its place unless there is a GPU to test.
macro_rules! on_every_device {
    ($($test:ident)*) => {
        mod on_the_cpu {
            $(
                #[test]
                fn $test() {
                    super::$test(&super::Device::Cpu);
                }
            )*
        }
        // The emulation is there on Linux alone.
        #[cfg(target_os = "linux")]
        mod on_a_gpu {
            $(
                #[test]
                fn $test() {
                    super::$test(&super::gpu());
                }
            )*
        }
    };
}

on_every_device! {
    one_pass_without_a_cache_equals_pytorch
    single_steps_with_a_cache_equal_pytorch
    chunks_of_rows_and_their_masses_equal_pytorch
    greedy_tokens_equal_pytorch
    gguf_files_equal_pytorch_with_the_same_blocks
    hooks_see_what_a_family_has_and_what_they_change_matters
    the_pattern_hook_shows_the_attention_of_the_kernels
}

#[cfg(target_os = "linux")]
fn gpu() -> Device {
    Device::Cuda(layerscope_kernels::cuda::Device::for_tests())
}

/// A copy of a family's folder with a changed config.
fn changed(family: &str, change: impl Fn(&mut serde_json::Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let paths = std::fs::read_dir(folder(family)).unwrap().map(|entry| entry.unwrap().path());
    for path in paths.filter(|path| path.is_file()) {
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = copy.path().join("config.json");
    let mut config = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(&path, config.to_string()).unwrap();
    copy
}

fn refusal(folder: &Path, architecture: Option<&str>) -> String {
    let (_, config, files) = folder_config(folder, architecture).unwrap();
    let weights = files.weights(&config).unwrap();
    let error =
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(()))
            .err();
    let error = error.unwrap();
    assert_eq!(error.exit_code(), 2);
    error.to_string()
}

#[test]
fn a_wrong_assumption_is_caught_by_a_weight_that_it_leaves_out() {
    // Qwen 3 asserted to be a Llama: its norms of queries and keys are left over.
    let message = refusal(&folder("qwen3"), Some("llama"));
    assert!(message.contains("_norm.weight") && message.contains("qwen3"), "{message}");
    // A newcomer that is a Llama but for its name.
    let newcomer = changed("llama31", |config| config["model_type"] = "newcomer".into());
    let error = folder_config(newcomer.path(), None).err().unwrap().to_string();
    assert!(error.contains("--architecture llama"), "{error}");
    let (_, config, files) = folder_config(newcomer.path(), Some("llama")).unwrap();
    let weights = files.weights(&config).unwrap();
    let decoder =
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(()))
            .unwrap();
    let expected = Expected::read("llama31");
    let decoder = Arc::new(decoder);
    let stream = residual_stream(&decoder, &expected.ids("tokens"));
    check("newcomer", &logits(&decoder, stream.last().unwrap()), &expected.numbers("logits"));
}

#[test]
fn what_does_not_fit_names_the_tensor() {
    let wider = changed("qwen3", |config| config["intermediate_size"] = 96.into());
    let message = refusal(wider.path(), None);
    assert!(message.contains("mlp.up_proj.weight") && message.contains("[96, 32]"), "{message}");
    let deeper = changed("qwen3", |config| config["num_hidden_layers"] = 5.into());
    let deeper = refusal(deeper.path(), None);
    assert!(deeper.contains("model.layers.4") && deeper.contains("missing"), "{deeper}");
    let shallower = changed("qwen3", |config| config["num_hidden_layers"] = 3.into());
    let shallower = refusal(shallower.path(), None);
    assert!(shallower.contains("model.layers.3") && shallower.contains("others are no part"), "{shallower}");
    let shard = changed("qwen2", |_| {});
    std::fs::remove_file(shard.path().join("model-00002-of-00003.safetensors")).unwrap();
    let error = SafetensorsFiles::open(shard.path()).err().unwrap().to_string();
    assert!(error.contains("model-00002-of-00003.safetensors"), "{error}");
}
