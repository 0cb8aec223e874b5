//! The decoder on the embedded model: both file formats, chunked prefill, hooks that read and change.

#![allow(clippy::unwrap_used)]

use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, Device, Error, GgufFile, HookPoint, Hooks, Interrupt, Location,
    Pass, Policy, Result, SequenceRows, Session, Shape, ShapeWeights, Tensor, WeightsPrecision, gguf_config,
};
use ndarray::{ArrayD, Axis};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

fn file() -> GgufFile {
    GgufFile::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf"))
        .unwrap()
}

fn decoder() -> Arc<Decoder> {
    let file = file();
    let config = gguf_config(&file, None).unwrap();
    let weights = file.weights(&config).unwrap();
    Arc::new(
        Decoder::load(config.clone(), &weights, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(()))
            .unwrap(),
    )
}

fn tokens(len: u32) -> Vec<u32> {
    (0..len).map(|i| 3 + i * 37 % 900).collect()
}

fn prefill(decoder: &Arc<Decoder>, prompt: &[u32], hooks: &mut Hooks<'_>) -> Vec<f32> {
    let policy = Policy::full(decoder.config().layers);
    let mut session = Session::new(decoder, policy, prompt.len(), 1).unwrap();
    let logits = session.prefill(prompt, hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    logits.to_vec().unwrap()
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
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
    let stepped: Vec<f32> = logits.unwrap().to_vec().unwrap();
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
            let sums = pattern.sum_axis(Axis(2));
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
            seen.borrow_mut().insert(name, x.iter().copied().collect::<Vec<f32>>());
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
        hooks.add(point, |_, x| Ok(Some(&x * 2.0)));
        let changed = prefill(&decoder, &prompt, &mut hooks);
        // What other families have is tested with them.
        let here =
            !["hook_pos_embed", "blocks.{}.ln1_post.hook_normalized", "blocks.{}.ln2_post.hook_normalized"]
                .contains(&name);
        assert_eq!(largest_difference(&changed, &plain) > 1e-6, here, "{name}");
    }
    let mut hooks = Hooks::none();
    hooks.add(HookPoint::parse("hook_embed", layers).unwrap()[0], |_, _| {
        Ok(Some(ArrayD::zeros([3].as_slice())))
    });
    let policy = Policy::full(layers);
    let mut session = Session::new(&decoder, policy, prompt.len(), 1).unwrap();
    let error = session.prefill(&prompt, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Error::HookShape { returned, .. } if *returned == [3]));
    assert!(error.to_string().contains("hook_embed"), "{error}");
}

/// Without a hook at the last layer, prompt rows leave nothing but keys and values there.
#[test]
fn what_is_read_of_the_last_layer_is_the_same_whether_prompt_rows_run_through_it() {
    let decoder = decoder();
    let layers = decoder.config().layers;
    let full = [1, 2, 16, 17, 40, 511, 520, 700].map(|p| (p, "full"));
    for (p, policy) in full.into_iter().chain([(600, "streaming:40+sinks=2"), (90, "speed:3+bos")]) {
        let prompt = tokens(p);
        let run = |hooks: &mut Hooks<'_>| {
            let policy = Policy::parse(policy, layers).unwrap();
            let mut session = Session::new(&decoder, policy, prompt.len(), 2).unwrap();
            let mut logits = session
                .prefill(&prompt, hooks, &Interrupt::new(false), &mut |_| {})
                .unwrap()
                .to_vec()
                .unwrap();
            let keys: Vec<Vec<f32>> =
                (0..layers).map(|layer| session.store().keys_by_head(layer).unwrap()).collect();
            logits.extend(session.step(5, hooks).unwrap().to_vec().unwrap());
            (keys, logits)
        };
        let (keys, logits) = run(&mut Hooks::none());
        let rows = std::cell::Cell::new(0);
        let mut hooks = Hooks::none();
        let point = HookPoint::parse("blocks.*.hook_resid_post", layers).unwrap()[layers - 1];
        hooks.add(point, |_, x| {
            rows.set(rows.get() + x.len_of(Axis(0)));
            Ok(None)
        });
        let (hooked_keys, hooked_logits) = run(&mut hooks);
        drop(hooks);
        // Not `assert_eq`, which would print both.
        assert!(keys == hooked_keys && logits == hooked_logits, "{policy}, p {p}");
        // The hook saw all of them, and one decode step.
        let expected = if policy.starts_with("speed") { 3 } else { p as usize + 1 };
        assert_eq!(rows.get(), expected, "{policy}, p {p}");
    }
}

#[test]
fn misuse_is_an_error_that_a_program_can_match_on() {
    struct Nothing;
    impl Attend for Nothing {
        fn attend(
            &mut self,
            _: Location<'_>,
            q: &Tensor,
            _: Option<[&Tensor; 2]>,
            _: &mut Hooks<'_>,
        ) -> Result<Tensor> {
            Ok(q.clone())
        }
    }
    let decoder = decoder();
    let (layers, hidden, vocab) =
        (decoder.config().layers, decoder.config().hidden, decoder.config().vocab as u32);
    let rows = |rows: usize, width: usize| Tensor::from_vec(vec![0.5; rows * width], &[rows, width]).unwrap();
    let forward = |x: Tensor, positions: &[usize], depth| {
        let mut pass = Pass {
            attend: &mut Nothing,
            hooks: &mut Hooks::none(),
            sequences: &[SequenceRows { rows: positions.len(), sequence_len: 8, first_decode: 0 }],
            compute: ComputeType::F32,
            rows_on_device: None,
        };
        decoder.forward(x, positions, depth, &mut pass)
    };
    assert!(forward(rows(2, hidden), &[0, 1], Depth::of_layers(0..layers)).is_ok());
    let beyond = forward(rows(2, hidden), &[0, 1], Depth::of_layers(layers - 1..layers + 1));
    assert!(matches!(beyond, Err(Error::UnknownLayer { layer, .. }) if layer == layers));
    let hooks = &mut Hooks::none();
    for misuse in [
        forward(rows(2, hidden), &[0], Depth::of_layers(0..layers)),
        forward(rows(2, hidden + 1), &[0, 1], Depth::of_layers(0..layers)),
        decoder.embed(&[3, 4], &[0], hooks),
        decoder.unembed(&rows(1, hidden + 1), &[0], hooks, ComputeType::F32),
        decoder.attention_norm(0, &rows(1, 1), ComputeType::F32),
        Tensor::cat(&[]),
    ] {
        assert!(matches!(misuse, Err(Error::Misuse(_))), "{misuse:?}");
    }
    let unknown = decoder.embed(&[vocab], &[0], hooks);
    assert!(matches!(unknown, Err(Error::UnknownToken { token, .. }) if token == vocab));
    assert!(matches!(
        decoder.attention_norm(layers, &rows(1, hidden), ComputeType::F32),
        Err(Error::UnknownLayer { .. })
    ));
    assert_eq!(decoder.attention_shape(layers).window, None);
    assert!(rows(2, 3).narrow(1, 2).is_err());
    assert!(rows(2, 3).select(&[2]).is_err());
    assert!(rows(2, 3).reshape(&[5]).is_err());
    assert!(HookPoint::parse("blocks.0.hook_resid_pre", 0).is_err());
    let context = decoder.config().context;
    let policy = || Policy::full(layers);
    let long = Session::new(&decoder, policy(), context, 2).err().unwrap();
    assert!(matches!(long, Error::ContextExceeded { decode: 2, .. }) && long.exit_code() == 2, "{long}");
    let empty = Session::new(&decoder, policy(), 0, 1).err().unwrap();
    assert!(matches!(empty, Error::EmptyPrompt(_)));
    assert!(
        matches!(Policy::parse("sped:2", layers), Err(Error::UnknownPolicy { known, .. }) if known[0].starts_with("speed"))
    );
    assert!(matches!(Policy::parse("speed:999", layers), Err(Error::InvalidPolicy { .. })));
}

/// Rounded to eight bits, activations of single rows change logits a little where weights are quantised, and nothing elsewhere.
#[test]
fn single_rows_in_eight_bits_stay_close() {
    let shape = Shape::named("smollm2-135m").expect("a shape").cut_to(3).expect("three layers");
    for weights in ShapeWeights::ALL {
        let decoder = shape
            .decoder(weights, WeightsPrecision::Native, &Device::Cpu, 3, &mut |_, _| Ok(()))
            .expect("a decoder");
        let decoder = Arc::new(decoder);
        let logits = |rounds: bool| {
            let mut session = Session::new(&decoder, Policy::full(3), 5, 2).expect("a session");
            if rounds {
                session.round_activations();
            }
            session
                .prefill(&[0, 7, 49_151, 300, 5], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {})
                .expect("a prefill");
            let stepped = session.step(11, &mut Hooks::none()).expect("a step");
            stepped.to_vec().expect("logits")
        };
        let (exact, rounded) = (logits(false), logits(true));
        let quantised = !matches!(weights, ShapeWeights::F16 | ShapeWeights::Bf16 | ShapeWeights::F32);
        let size = exact.iter().map(|x| x * x).sum::<f32>().sqrt();
        let change = exact.iter().zip(&rounded).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt();
        assert!(change < 0.05 * size, "{weights}: {change} of {size}");
        assert_eq!(change > 0.0, quantised, "{weights}");
    }
}
