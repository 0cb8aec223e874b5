//! Adapters and their gradients against PyTorch, for every family (`fixtures/families/gradients.py`).

#![allow(clippy::unwrap_used)]

use candle_core::Tensor as HostTensor;
use layerscope_engine::training::{
    BackwardWeights, Dropout, Gradients, TrainingSequence, backward, forward, prefix, unembed_backward,
};
use layerscope_engine::{
    Adapter, AdapterInfo, AdapterRows, Anchors, ComputeType, Decoder, Device, Hooks, Interrupt, LowRank,
    Policy, Session, Target, Visibility, WeightsPrecision, folder_config,
};
use std::collections::{BTreeMap, HashMap};
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
const PROMPT_LEN: usize = 30;

fn folder(family: &str) -> PathBuf {
    let crate_folder = std::env::var_os("CARGO_MANIFEST_DIR");
    let crate_folder = crate_folder.map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    crate_folder.join("../../fixtures/families").join(family)
}

fn load(folder: &Path) -> Arc<Decoder> {
    load_on(folder, &Device::Cpu)
}

fn load_on(folder: &Path, device: &Device) -> Arc<Decoder> {
    let (_, config, files) = folder_config(folder, None).unwrap();
    let weights = files.weights(&config).unwrap();
    let precision = WeightsPrecision::F32;
    Arc::new(Decoder::load(config.clone(), &weights, precision, device, &mut |_, _| Ok(())).unwrap())
}

struct Expected(HashMap<String, HostTensor>);

impl Expected {
    fn read(family: &str) -> Self {
        let path = folder(family).join("gradients.safetensors");
        Self(candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap())
    }

    fn numbers(&self, name: &str) -> Vec<f32> {
        let tensor = self.0.get(name).unwrap_or_else(|| panic!("{name}"));
        tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    }

    fn tokens(&self) -> Vec<u32> {
        self.numbers("tokens").into_iter().map(|token| token as u32).collect()
    }
}

/// The largest difference over the largest number.
fn relative(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len());
    let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
    let difference = actual.iter().zip(expected).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(difference.is_finite(), "{actual:?}");
    difference / largest.max(1e-6)
}

/// Gradients by the modules of the checkpoint, summed where it keeps several matrices in one: as an adapter is written.
fn by_module(adapter: &Adapter, gradients: &Gradients, decoder: &Decoder) -> HashMap<String, HostTensor> {
    let of_both = |of: &dyn Fn(&layerscope_engine::training::Gradient) -> [Vec<f32>; 2]| {
        let matrices = gradients.iter().map(|(key, gradient)| {
            let [a, b] = of(gradient);
            let rank = adapter.matrices()[key].rank;
            (*key, layerscope_engine::LowRank { a, b, rank, scale: 1.0 })
        });
        Adapter::new(AdapterRows::All, matrices.collect(), decoder.config()).unwrap()
    };
    let whole =
        of_both(&|gradient| [gradient.a.iter().copied().collect(), gradient.b.iter().copied().collect()]);
    let scratch = tempfile::tempdir().unwrap();
    whole.write(scratch.path(), &info(AdapterRows::All), decoder.config()).unwrap();
    let path = scratch.path().join("adapter_model.safetensors");
    candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap()
}

fn info(rows: AdapterRows) -> AdapterInfo {
    let text = String::new;
    AdapterInfo {
        rows,
        policy: text(),
        model: text(),
        model_sha256: text(),
        prompts: text(),
        prompts_sha256: text(),
        layerscope: text(),
        training: None,
    }
}

/// Gradients of a written adapter equal PyTorch's: matrices that a checkpoint keeps in one have one A each here, whose gradients add up,
/// and rows of B of their own.
fn check_gradients(family: &str, case: &str, actual: &HashMap<String, HostTensor>, expected: &Expected) {
    let mut checked = 0;
    for (name, tensor) in actual {
        let module = name.trim_start_matches("base_model.model.").trim_end_matches(".weight");
        let expected = &expected.0[&format!("{case}.{module}")];
        let (actual, expected): (Vec<Vec<f32>>, Vec<Vec<f32>>) =
            (tensor.to_vec2().unwrap(), expected.to_vec2().unwrap());
        let rank = if module.ends_with("lora_A") { expected.len() } else { expected[0].len() };
        let folded: Vec<f32> = match module.ends_with("lora_A") {
            true => {
                let sum = |row: usize, column: usize| -> f32 {
                    actual.iter().skip(row).step_by(rank).map(|row| row[column]).sum()
                };
                let columns = expected[0].len();
                (0..rank)
                    .flat_map(|row| (0..columns).map(move |column| (row, column)))
                    .map(|(r, c)| sum(r, c))
                    .collect()
            }
            false => {
                let folded = |row: &Vec<f32>| -> Vec<f32> {
                    (0..rank).map(|column| row.iter().skip(column).step_by(rank).sum()).collect()
                };
                actual.iter().flat_map(folded).collect()
            }
        };
        let difference = relative(&folded, &expected.concat());
        assert!(difference < 5e-4, "{family}, {case}, {module}: {difference}");
        checked += 1;
    }
    assert!(checked > 0);
}

fn sequence(
    tokens: &[u32],
    first_position: usize,
    prefix: layerscope_engine::training::Prefix,
) -> TrainingSequence {
    TrainingSequence {
        tokens: tokens[first_position..].to_vec(),
        first_position,
        prompt_len: PROMPT_LEN,
        prefix,
    }
}

#[test]
fn adapters_and_their_gradients_equal_pytorchs() {
    for family in FAMILIES {
        let (base, expected) = (load(&folder(family)), Expected::read(family));
        let config = base.config();
        let (tokens, weights) = (expected.tokens(), expected.numbers("weights"));
        let (adapter, made_for) = Adapter::read(&folder(family).join("adapter"), config).unwrap();
        assert_eq!((adapter.rows, made_for), (AdapterRows::All, None));
        for (case, rows) in [("decode", AdapterRows::Decode), ("all", AdapterRows::All)] {
            let adapter = adapter.clone().with_rows(rows);
            let adapted = Arc::new(base.with_adapter(&adapter).unwrap());
            let cutoff = match rows {
                AdapterRows::Decode => config.layers,
                AdapterRows::All => expected.numbers("cutoff")[0] as usize,
            };
            // As sessions run it: the prompt, then a token at a time.
            let policy =
                if cutoff == config.layers { "full".to_owned() } else { format!("speed:{cutoff}+bos") };
            let policy = Policy::parse_for(&policy, config).unwrap();
            let logits = expected.numbers(&format!("{case}.logits"));
            let run = stepped(&adapted, &policy, &tokens);
            assert!(
                relative(&run.concat(), &logits) < 1e-4,
                "{family}, {case}: {}",
                relative(&run.concat(), &logits)
            );

            let sequence = match rows {
                AdapterRows::All => sequence(&tokens, 0, vec![]),
                AdapterRows::Decode => {
                    let mut session = Session::resumable(&base, policy.clone(), PROMPT_LEN, 1).unwrap();
                    session
                        .prefill(
                            &tokens[..PROMPT_LEN],
                            &mut Hooks::none(),
                            &Interrupt::new(false),
                            &mut |_| {},
                        )
                        .unwrap();
                    session.truncate(PROMPT_LEN - 1).unwrap();
                    sequence(&tokens, PROMPT_LEN - 1, prefix(&session, ComputeType::F32).unwrap())
                }
            };
            let visibility = Visibility { cutoff, anchors: Anchors::bos(), self_only: false };
            let batch = [sequence];
            let tape = forward(&adapted, &batch, &visibility, ComputeType::F32).unwrap();
            let steps = tokens.len() + 1 - PROMPT_LEN;
            let before = tape.last_positions().len() - steps;
            let last = tape.last().narrow(before, steps).unwrap();
            let positions = &tape.last_positions()[before..];
            let trained = adapted.unembed(&last, positions, &mut Hooks::none(), ComputeType::F32).unwrap();
            let trained = trained.to_vec().unwrap();
            assert!(relative(&trained, &logits) < 1e-4, "{family}, {case}: {}", relative(&trained, &logits));

            let transposed = BackwardWeights::new(&base, ComputeType::F32).unwrap();
            let decode = unembed_backward(&adapted, &transposed, &last, &trained, weights.clone()).unwrap();
            let mut dlast = ndarray::Array2::zeros((before + steps, config.hidden));
            dlast.slice_mut(ndarray::s![before.., ..]).assign(&decode);
            let gradients =
                backward(&adapted, &transposed, &adapter, (&batch, &visibility), &tape, dlast).unwrap();
            assert_eq!(gradients.len(), adapter.matrices().len());
            check_gradients(family, case, &by_module(&adapter, &gradients, &base), &expected);
        }
    }
}

/// Logits of the decode rows.
fn stepped(decoder: &Arc<Decoder>, policy: &Policy, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut session =
        Session::new(decoder, policy.clone(), PROMPT_LEN, tokens.len() + 1 - PROMPT_LEN).unwrap();
    let mut hooks = Hooks::none();
    let first =
        session.prefill(&tokens[..PROMPT_LEN], &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    let mut logits = vec![first.to_vec().unwrap()];
    for &token in &tokens[PROMPT_LEN..] {
        logits.push(session.step(token, &mut hooks).unwrap().to_vec().unwrap());
    }
    logits
}

/// On kernels of a GPU adapters run as on the CPU; training there is refused.
#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu() {
    let device = Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    for family in ["llama31", "gemma2", "gpt2", "phi3", "qwen3_moe"] {
        let (base, expected) = (load_on(&folder(family), &device), Expected::read(family));
        let (adapter, _) = Adapter::read(&folder(family).join("adapter"), base.config()).unwrap();
        for (case, rows) in [("decode", AdapterRows::Decode), ("all", AdapterRows::All)] {
            let cutoff = expected.numbers("cutoff")[0] as usize;
            let name = if case == "all" { format!("speed:{cutoff}+bos") } else { "full".to_owned() };
            let policy = Policy::parse_for(&name, base.config()).unwrap();
            let adapted = Arc::new(base.with_adapter(&adapter.clone().with_rows(rows)).unwrap());
            let run = stepped(&adapted, &policy, &expected.tokens()).concat();
            let difference = relative(&run, &expected.numbers(&format!("{case}.logits")));
            assert!(difference < 1e-3, "{family}, {case}: {difference}");
        }
    }
    let base = load_on(&folder("llama31"), &device);
    let batch = [sequence(&[1; PROMPT_LEN + 2], 0, vec![])];
    let visibility = Visibility { cutoff: 1, anchors: Anchors::bos(), self_only: false };
    let refused = forward(&base, &batch, &visibility, ComputeType::F32).err().unwrap();
    assert!(refused.to_string().contains("--device cpu"), "{refused}");
}

/// Files of `gguf_adapters.py` have the same matrices as the folders of PEFT's.
#[test]
fn adapters_of_llama_cpp_are_read() {
    for family in ["llama31", "granite", "qwen3", "gemma3", "phi3", "gpt2", "gpt_neox", "starcoder2"] {
        let base = load(&folder(family));
        let (expected, _) = Adapter::read(&folder(family).join("adapter"), base.config()).unwrap();
        let (adapter, made_for) = Adapter::read(&folder(family).join("adapter.gguf"), base.config()).unwrap();
        assert_eq!((&adapter, made_for), (&expected, None), "{family}");
    }
    let of_another = folder("llama31").join("adapter.gguf");
    let refused = Adapter::read(&of_another, load(&folder("phi3")).config()).unwrap_err().to_string();
    assert!(refused.contains("made for another model"), "{refused}");
    let model = folder("llama31").join("model.gguf");
    let refused = Adapter::read(&model, load(&folder("llama31")).config()).unwrap_err().to_string();
    assert!(refused.contains("no LoRA adapter"), "{refused}");
}

/// A merged checkpoint says what the model says with the adapter beside it.
#[test]
fn merged_checkpoints_equal_models_with_adapters() {
    for family in ["llama31", "qwen2", "gemma2", "phi3", "gpt2", "gpt_neox", "qwen3_moe"] {
        let (base, expected) = (load(&folder(family)), Expected::read(family));
        let (adapter, _) = Adapter::read(&folder(family).join("adapter"), base.config()).unwrap();
        let scratch = tempfile::tempdir().unwrap();
        let out = scratch.path().join("merged");
        adapter.merge(&folder(family), &out, base.config(), &mut |_, _| Ok(())).unwrap();
        let (merged, adapted) = (load(&out), Arc::new(base.with_adapter(&adapter).unwrap()));
        let policy = Policy::full(base.config().layers);
        let [merged, adapted, without] =
            [&merged, &adapted, &base].map(|decoder| stepped(decoder, &policy, &expected.tokens()).concat());
        // Weights are rounded to the checkpoint's type once more.
        let difference = relative(&merged, &adapted);
        assert!(difference < 0.1 * relative(&without, &adapted), "{family}: {difference}");
        let in_memory = stepped(&Arc::new(base.merged(&adapter).unwrap()), &policy, &expected.tokens());
        assert!(relative(&in_memory.concat(), &adapted) < 1e-4, "{family}");
        let again = adapter.merge(&folder(family), &out, base.config(), &mut |_, _| Ok(())).unwrap_err();
        assert!(again.to_string().contains("is there already"), "{again}");
    }
    let base = load(&folder("llama31"));
    let (adapter, _) = Adapter::read(&folder("llama31").join("adapter"), base.config()).unwrap();
    let scratch = tempfile::tempdir().unwrap();
    let decode = adapter.with_rows(AdapterRows::Decode);
    assert!(base.merged(&decode).err().unwrap().to_string().contains("leave out --merge"));
    let refused = decode.merge(&folder("llama31"), scratch.path(), base.config(), &mut |_, _| Ok(()));
    assert!(refused.unwrap_err().to_string().contains("decode rows alone"));
}

/// With an addition of any rank the gradient is that of the matrix, G: those of A and B are s·Bᵀ·G and s·G·Aᵀ.
#[test]
fn gradients_of_full_rank_are_those_of_the_matrices() {
    for family in ["llama31", "gemma2", "gpt2", "phi3"] {
        let (base, expected) = (load(&folder(family)), Expected::read(family));
        let (low_rank, _) = Adapter::read(&folder(family).join("adapter"), base.config()).unwrap();
        let whole = low_rank.matrices().iter().map(|(&(layer, target), matrix)| {
            let shape @ [out, columns] = target.shape(base.config()).unwrap();
            let a = ndarray::ArrayView2::from_shape((matrix.rank, columns), &matrix.a).unwrap();
            let b = ndarray::ArrayView2::from_shape((out, matrix.rank), &matrix.b).unwrap();
            let b = (b.dot(&a) * matrix.scale).into_raw_vec_and_offset().0;
            ((layer, target), LowRank { b, ..LowRank::of_full_rank(shape) })
        });
        let whole = Adapter::new(AdapterRows::All, whole.collect(), base.config()).unwrap();
        let tokens = expected.tokens();
        let batch = [sequence(&tokens, 0, vec![])];
        let visibility = Visibility { cutoff: 1, anchors: Anchors::bos(), self_only: false };
        let transposed = BackwardWeights::new(&base, ComputeType::F32).unwrap();
        let gradients = [&low_rank, &whole].map(|adapter| {
            let adapted = base.with_adapter(adapter).unwrap();
            let tape = forward(&adapted, &batch, &visibility, ComputeType::F32).unwrap();
            let shape = (tape.last().rows(), base.config().hidden);
            let dlast = ndarray::Array2::from_shape_fn(shape, |(row, column)| {
                ((row * 7 + column * 3) % 11) as f32 - 5.0
            });
            backward(&adapted, &transposed, adapter, (&batch, &visibility), &tape, dlast).unwrap()
        });
        let [of_low_rank, of_whole] = &gradients;
        for (key, matrix) in low_rank.matrices() {
            let (g, expected) = (&of_whole[key].b, &of_low_rank[key]);
            let a = ndarray::ArrayView2::from_shape((matrix.rank, g.ncols()), &matrix.a).unwrap();
            let b = ndarray::ArrayView2::from_shape((g.nrows(), matrix.rank), &matrix.b).unwrap();
            let flat = |x: ndarray::Array2<f32>| x.iter().copied().collect::<Vec<f32>>();
            for (actual, expected) in
                [(b.t().dot(g) * matrix.scale, &expected.a), (g.dot(&a.t()) * matrix.scale, &expected.b)]
            {
                let difference = relative(&flat(actual), &flat(expected.clone()));
                assert!(difference < 1e-3, "{family}, {key:?}: {difference}");
            }
            assert_eq!(of_whole[key].a.len(), 0);
        }
        // Written and read again it is the same, and merged as well.
        let scratch = tempfile::tempdir().unwrap();
        whole.write(scratch.path(), &info(AdapterRows::All), base.config()).unwrap();
        let (read, _) = Adapter::read(scratch.path(), base.config()).unwrap();
        let policy = Policy::full(base.config().layers);
        let run = |decoder: Decoder| stepped(&Arc::new(decoder), &policy, &tokens).concat();
        let logits = run(base.with_adapter(&whole).unwrap());
        for other in [base.with_adapter(&read), base.merged(&whole), base.with_adapter(&low_rank)] {
            assert!(relative(&run(other.unwrap()), &logits) < 1e-4, "{family}");
        }
    }
}

/// The gradient under dropout is that of the loss under the same dropout, by differences.
#[test]
fn gradients_under_dropout_are_the_losss_derivatives() {
    let (base, expected) = (load(&folder("llama31")), Expected::read("llama31"));
    let (adapter, _) = Adapter::read(&folder("llama31").join("adapter"), base.config()).unwrap();
    let tokens = expected.tokens();
    let batch = [sequence(&tokens, 0, vec![])];
    let visibility = Visibility { cutoff: 1, anchors: Anchors::bos(), self_only: false };
    let dropout = Some(Dropout { rate: 0.4, seed: 3 });
    let weights = expected.numbers("weights");
    let steps = tokens.len() + 1 - PROMPT_LEN;
    let run = |adapter: &Adapter| {
        let adapted = base.in_training(adapter, dropout).unwrap();
        let tape = forward(&adapted, &batch, &visibility, ComputeType::F32).unwrap();
        let before = tape.last_positions().len() - steps;
        let last = tape.last().narrow(before, steps).unwrap();
        let positions = &tape.last_positions()[before..];
        let logits = adapted.unembed(&last, positions, &mut Hooks::none(), ComputeType::F32).unwrap();
        let logits = logits.to_vec().unwrap();
        let loss: f64 = logits.iter().zip(&weights).map(|(a, b)| f64::from(a * b)).sum();
        (adapted, tape, before, last, logits, loss)
    };
    let (adapted, tape, before, last, logits, _) = run(&adapter);
    let transposed = BackwardWeights::new(&base, ComputeType::F32).unwrap();
    let decode = unembed_backward(&adapted, &transposed, &last, &logits, weights.clone()).unwrap();
    let mut dlast = ndarray::Array2::zeros((before + steps, base.config().hidden));
    dlast.slice_mut(ndarray::s![before.., ..]).assign(&decode);
    let of = (batch.as_slice(), &visibility);
    let gradients = backward(&adapted, &transposed, &adapter, of, &tape, dlast).unwrap();
    for (layer, target) in [(0, Target::Query), (1, Target::Value), (1, Target::Down), (0, Target::Gate)] {
        let gradient = &gradients[&(layer, target)];
        for in_a in [true, false] {
            let moved = |by: f32| {
                let mut matrices = adapter.matrices().clone();
                let matrix = matrices.get_mut(&(layer, target)).unwrap();
                // Along the gradient, where differences are largest.
                let (numbers, along) =
                    if in_a { (&mut matrix.a, &gradient.a) } else { (&mut matrix.b, &gradient.b) };
                let norm = along.iter().map(|x| x * x).sum::<f32>().sqrt();
                numbers.iter_mut().zip(along).for_each(|(x, g)| *x += by * g / norm);
                run(&Adapter::new(AdapterRows::All, matrices, base.config()).unwrap()).5
            };
            let along = if in_a { &gradient.a } else { &gradient.b };
            let norm = f64::from(along.iter().map(|x| x * x).sum::<f32>().sqrt());
            let difference = (moved(2e-4) - moved(-2e-4)) / 4e-4;
            assert!((difference / norm - 1.0).abs() < 0.02, "{layer} {target:?} {in_a}: {difference} {norm}");
        }
    }
}

#[test]
fn what_is_written_is_read_again() {
    for family in ["llama31", "phi3", "gpt2", "gpt_neox", "starcoder2"] {
        let base = load(&folder(family));
        let (adapter, _) = Adapter::read(&folder(family).join("adapter"), base.config()).unwrap();
        let adapter = adapter.with_rows(AdapterRows::Decode);
        let scratch = tempfile::tempdir().unwrap();
        adapter.write(scratch.path(), &info(AdapterRows::Decode), base.config()).unwrap();
        let (again, made_for) = Adapter::read(scratch.path(), base.config()).unwrap();
        assert_eq!(made_for, Some(info(AdapterRows::Decode)));
        assert_eq!(again.rows, AdapterRows::Decode);
        let products = |adapter: &Adapter| -> BTreeMap<(usize, Target), Vec<f32>> {
            let product = |matrix: &layerscope_engine::LowRank| {
                let columns = matrix.a.len() / matrix.rank;
                let a = ndarray::ArrayView2::from_shape((matrix.rank, columns), &matrix.a).unwrap();
                let b =
                    ndarray::ArrayView2::from_shape((matrix.b.len() / matrix.rank, matrix.rank), &matrix.b)
                        .unwrap();
                (b.dot(&a) * matrix.scale).into_iter().collect()
            };
            adapter.matrices().iter().map(|(key, matrix)| (*key, product(matrix))).collect()
        };
        let (before, after) = (products(&adapter), products(&again));
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for (key, before) in before {
            assert!(relative(&after[&key], &before) < 1e-5, "{family} {key:?}");
        }
    }
}

#[test]
fn what_is_not_understood_is_refused() {
    let base = load(&folder("llama31"));
    let scratch = tempfile::tempdir().unwrap();
    let from = folder("llama31").join("adapter");
    for file in ["adapter_config.json", "adapter_model.safetensors"] {
        std::fs::copy(from.join(file), scratch.path().join(file)).unwrap();
    }
    let path = scratch.path().join("adapter_config.json");
    let original: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let with = |name: &str, value: serde_json::Value| {
        let mut changed = original.clone();
        changed[name] = value;
        std::fs::write(&path, changed.to_string()).unwrap();
        Adapter::read(scratch.path(), base.config())
    };
    for (name, value) in [
        ("peft_type", "IA3".into()),
        ("use_dora", true.into()),
        ("bias", "lora_only".into()),
        ("modules_to_save", serde_json::json!(["lm_head"])),
        ("init_lora_weights", "pissa".into()),
        ("alora_invocation_tokens", serde_json::json!([1, 2])),
    ] {
        let error = with(name, value).unwrap_err().to_string();
        assert!(
            error.contains("is not supported") && error.contains("adapter_config.json"),
            "{name}: {error}"
        );
    }
    let error = with("r", 7.into()).unwrap_err().to_string();
    assert!(error.contains("rank 2") && error.contains('7'), "{error}");
    let scale = |name: &str, value: serde_json::Value| {
        let (adapter, _) = with(name, value).unwrap();
        adapter.matrices()[&(0, Target::Query)].scale
    };
    assert_eq!(scale("lora_alpha", 5.0.into()), 2.5);
    assert!((scale("use_rslora", true.into()) - 3.0 / 2f32.sqrt()).abs() < 1e-6);
    assert_eq!(scale("alpha_pattern", serde_json::json!({"q_proj": 8.0})), 4.0);
    assert_eq!(scale("alpha_pattern", serde_json::json!({"k_proj": 8.0})), 1.5);
    // Of another model.
    let other = load(&folder("qwen2"));
    std::fs::write(&path, original.to_string()).unwrap();
    let error = Adapter::read(scratch.path(), other.config()).unwrap_err().to_string();
    assert!(error.contains("another") || error.contains("belongs to nothing"), "{error}");
    let error = Adapter::read(&folder("llama31"), base.config()).unwrap_err().to_string();
    assert!(error.contains("cannot read"), "{error}");
}
