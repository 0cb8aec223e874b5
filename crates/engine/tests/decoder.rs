//! The decoder on the embedded model: both file formats, chunked prefill, hooks that read and change.

#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Tensor};
use layerscope_engine::{
    Decoder, GgufFile, HookPoint, Hooks, Interrupt, ModelConfig, Policy, SafetensorsFiles, Session, Weight,
    WeightSource, WeightsPrecision, gguf_config,
};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn file() -> GgufFile {
    GgufFile::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf"))
        .unwrap()
}

fn decoder() -> Decoder {
    let file = file();
    Decoder::load(gguf_config(&file).unwrap(), &file, WeightsPrecision::F32, &mut |_, _| Ok(())).unwrap()
}

fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 37 % 900).collect()
}

fn prefill(decoder: &Decoder, prompt: &[u32], hooks: &mut Hooks<'_>) -> Vec<f32> {
    let policy = Policy::full(decoder.config().layers);
    let mut session = Session::new(decoder, policy, prompt.len(), 1).unwrap();
    let logits = session.prefill(prompt, hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    logits.to_vec1().unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The GGUF's weights as a Hugging Face checkpoint in two shards.
fn checkpoint(folder: &Path, dtype: DType) -> PathBuf {
    let (file, folder) = (file(), folder.join(format!("{dtype:?}")));
    let config = gguf_config(&file).unwrap();
    std::fs::create_dir(&folder).unwrap();
    let (d, q, kv, f) = (
        config.hidden,
        config.heads * config.head_dim,
        config.kv_heads * config.head_dim,
        config.feed_forward,
    );
    let mut shards = [HashMap::new(), HashMap::new()];
    let mut map = serde_json::Map::new();
    let mut add = |weight: Weight, tensor: Tensor, shard: usize| {
        map.insert(weight.hugging_face_name(), format!("model-{shard}.safetensors").into());
        shards[shard].insert(weight.hugging_face_name(), tensor.to_dtype(dtype).unwrap());
    };
    let linear = |weight: Weight, rows: usize, columns: usize| {
        file.linear(weight, (rows, columns), WeightsPrecision::F32).unwrap().to_tensor().unwrap()
    };
    add(Weight::Embedding, linear(Weight::Embedding, config.vocab, d), 0);
    add(Weight::FinalNorm, file.vector(Weight::FinalNorm, d).unwrap(), 1);
    for l in 0..config.layers {
        for (weight, rows, columns) in [
            (Weight::Query(l), q, d),
            (Weight::Key(l), kv, d),
            (Weight::Value(l), kv, d),
            (Weight::AttentionOutput(l), d, q),
            (Weight::Gate(l), f, d),
            (Weight::Up(l), f, d),
            (Weight::Down(l), d, f),
        ] {
            add(weight, linear(weight, rows, columns), l % 2);
        }
        for weight in [Weight::AttentionNorm(l), Weight::MlpNorm(l)] {
            add(weight, file.vector(weight, d).unwrap(), l % 2);
        }
    }
    for (shard, tensors) in shards.iter().enumerate() {
        candle_core::safetensors::save(tensors, folder.join(format!("model-{shard}.safetensors"))).unwrap();
    }
    let index = serde_json::json!({ "weight_map": map });
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let json = serde_json::json!({
        "model_type": "llama", "hidden_size": d, "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim, "intermediate_size": f, "vocab_size": config.vocab,
        "max_position_embeddings": config.context, "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rope.base, "tie_word_embeddings": true, "hidden_act": "silu",
    });
    std::fs::write(folder.join("config.json"), json.to_string()).unwrap();
    folder
}

#[test]
fn sharded_safetensors_of_every_type_equal_the_gguf() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = tokens(60);
    let expected = prefill(&decoder(), &prompt, &mut Hooks::none());
    for (dtype, bar) in [(DType::F32, 1e-6), (DType::F16, 0.05), (DType::BF16, 0.5)] {
        let folder = checkpoint(folder.path(), dtype);
        let path = folder.join("config.json");
        let config = ModelConfig::from_json(&std::fs::read_to_string(&path).unwrap(), &path).unwrap();
        let files = SafetensorsFiles::open(&folder).unwrap();
        let decoder = Decoder::load(config, &files, WeightsPrecision::F32, &mut |_, _| Ok(())).unwrap();
        let off = largest_difference(&prefill(&decoder, &prompt, &mut Hooks::none()), &expected);
        assert!(off <= bar, "{dtype:?}: {off}");
    }
    std::fs::remove_file(folder.path().join("F32/model-1.safetensors")).unwrap();
    let error = SafetensorsFiles::open(&folder.path().join("F32")).err().unwrap();
    assert!(error.to_string().contains("model-1.safetensors"), "{error}");
}

#[test]
fn a_chunked_prefill_equals_single_steps() {
    let decoder = decoder();
    let prompt = tokens(700);
    let whole = prefill(&decoder, &prompt, &mut Hooks::none());
    let policy = Policy::full(decoder.config().layers);
    let mut session = Session::new(&decoder, policy, 690, 11).unwrap();
    session.prefill(&prompt[..690], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    let mut logits = None;
    for &token in &prompt[690..] {
        logits = Some(session.step(token, &mut Hooks::none()).unwrap());
    }
    let stepped: Vec<f32> = logits.unwrap().to_vec1().unwrap();
    let off = largest_difference(&stepped, &whole);
    assert!(off < 1e-3, "{off}");
}

#[test]
fn the_pattern_hook_shows_the_attention_that_the_kernel_computes() {
    let decoder = decoder();
    let layers = decoder.config().layers;
    let prompt = tokens(600);
    let plain = prefill(&decoder, &prompt, &mut Hooks::none());
    let mut hooks = Hooks::none();
    for point in HookPoint::parse("blocks.*.attn.hook_pattern", layers).unwrap() {
        hooks.add(point, |_, pattern| {
            let sums: Vec<f32> = pattern.sum(2)?.flatten_all()?.to_vec1()?;
            assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-4));
            Ok(None)
        });
    }
    let off = largest_difference(&prefill(&decoder, &prompt, &mut hooks), &plain);
    assert!(off < 1e-3, "{off}");
}

#[test]
fn hooks_read_and_change_what_they_name() {
    let decoder = decoder();
    let layers = decoder.config().layers;
    let prompt = tokens(40);
    let plain = prefill(&decoder, &prompt, &mut Hooks::none());
    // resid_mid = resid_pre + attn_out, resid_post = resid_mid + mlp_out
    let seen = std::cell::RefCell::new(HashMap::new());
    let mut hooks = Hooks::none();
    for name in ["hook_resid_pre", "hook_attn_out", "hook_resid_mid", "hook_mlp_out", "hook_resid_post"] {
        let point = HookPoint::parse(&format!("blocks.2.{name}"), layers).unwrap()[0];
        let seen = &seen;
        hooks.add(point, move |_, x| {
            seen.borrow_mut().insert(name, x.flatten_all()?.to_vec1::<f32>()?);
            Ok(None)
        });
    }
    assert_eq!(prefill(&decoder, &prompt, &mut hooks), plain, "reading changes nothing");
    drop(hooks);
    let seen = seen.into_inner();
    let sum = |a: &str, b: &str| seen[a].iter().zip(&seen[b]).map(|(a, b)| a + b).collect::<Vec<f32>>();
    assert!(largest_difference(&sum("hook_resid_pre", "hook_attn_out"), &seen["hook_resid_mid"]) < 1e-5);
    assert!(largest_difference(&sum("hook_resid_mid", "hook_mlp_out"), &seen["hook_resid_post"]) < 1e-5);

    // Every point, changed to twice itself in an upper layer, reaches the logits.
    for name in HookPoint::names() {
        let point = HookPoint::parse(&name.replace("{}", "5"), layers).unwrap()[0];
        let mut hooks = Hooks::none();
        hooks.add(point, |_, x| Ok(Some((x * 2.0)?)));
        let changed = prefill(&decoder, &prompt, &mut hooks);
        assert!(largest_difference(&changed, &plain) > 1e-6, "{name} changes nothing");
    }
    let mut hooks = Hooks::none();
    hooks.add(HookPoint::parse("hook_embed", layers).unwrap()[0], |_, _| {
        Ok(Some(Tensor::zeros(3, DType::F32, &Device::Cpu)?))
    });
    let policy = Policy::full(layers);
    let mut session = Session::new(&decoder, policy, prompt.len(), 1).unwrap();
    let error = session.prefill(&prompt, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("hook_embed"), "{error}");
}
