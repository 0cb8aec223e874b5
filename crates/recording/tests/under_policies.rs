//! Attention under policies: of a cutoff it says what the frontier says, and under `full` what the run says.

#![allow(clippy::unwrap_used)]

use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_diagnostics::record::{Anchor, PolicyRecord};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{
    Adapter, AdapterInfo, AdapterRows, Device, Error, Interrupt, LowRank, Model, ModelSource, Policy, Target,
    WeightsPrecision,
};
use layerscope_recording::policies::{PolicyEvent, record_policies};
use layerscope_recording::{Recorded, record};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

fn model() -> Model {
    let source = ModelSource::path(fixture("tiny/layerscope-tiny.gguf"));
    Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
}

fn recorded(model: &Model, folder: &Path) -> Run {
    let text = std::fs::read(fixture("tiny/demo.jsonl")).unwrap();
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').step_by(9).take(3).collect();
    let bytes = lines.join(&b'\n');
    let prompts = PromptFile {
        name: "prompts.jsonl".to_owned(),
        sha256: prompts_sha256(&bytes),
        prompts: parse_prompts("prompts.jsonl", &bytes).unwrap(),
    };
    let interrupt = Interrupt::new(false);
    record(model, &prompts, Recorded::steps(10), folder, &[], &interrupt, &mut |_| {}).unwrap();
    Run::open(folder).unwrap()
}

fn policies(model: &Model, names: &[String]) -> Vec<Policy> {
    names.iter().map(|name| Policy::parse_for(name, model.config()).unwrap()).collect()
}

/// The model with a random adapter.
fn adapted(rows: AdapterRows) -> Model {
    let model = model();
    let config = model.config();
    let mut state = 1u32;
    let mut numbers = |len: usize, size: f32| -> Vec<f32> {
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            size * ((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0)
        };
        (0..len).map(number).collect()
    };
    let mut matrices = BTreeMap::new();
    for layer in 0..config.layers {
        for target in Target::ALL {
            let [out, columns] = target.shape(config).unwrap();
            let (a, b) = (numbers(4 * columns, 0.2), numbers(4 * out, 0.2));
            matrices.insert((layer, target), LowRank { a, b, rank: 4, scale: 4.0 });
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let info = AdapterInfo {
        rows,
        policy: "speed:4+bos".to_owned(),
        model: model.name.clone(),
        model_sha256: model.sha256().to_owned(),
        prompts: String::new(),
        prompts_sha256: String::new(),
        layerscope: String::new(),
        training: None,
    };
    Adapter::new(rows, matrices, config).unwrap().write(folder.path(), &info, config).unwrap();
    model.with_adapter(folder.path()).unwrap()
}

#[test]
fn a_cutoff_costs_what_the_frontier_says_and_full_is_the_run() {
    check_cutoffs(&model());
}

/// Of an adapted model all is told against the model without the adapter, at full depth too.
#[test]
fn an_adapted_models_cutoffs_refer_to_the_model_without_adapter() {
    for rows in [AdapterRows::Decode, AdapterRows::All] {
        check_cutoffs(&adapted(rows));
    }
}

fn check_cutoffs(model: &Model) {
    let folder = tempfile::tempdir().unwrap();
    let run = recorded(model, folder.path());
    let layers = model.config().layers;
    let recorded_with = run.manifest().model.adapter.as_ref();
    assert_eq!(
        recorded_with.map(|adapter| &adapter.sha256),
        model.adapter.as_ref().map(|adapter| &adapter.sha256)
    );
    let cutoffs = (1..layers).flat_map(|cutoff| [format!("speed:{cutoff}"), format!("speed:{cutoff}+bos")]);
    let names: Vec<String> = ["full".to_owned()].into_iter().chain(cutoffs).collect();
    let mut left = 0;
    record_policies(
        &run,
        model,
        &policies(model, &names),
        &Interrupt::new(false),
        &mut |event| match event {
            PolicyEvent::Started { tokens, .. } => left = tokens,
            PolicyEvent::Tokens(more) => left -= more,
        },
    )
    .unwrap();
    assert_eq!(left, 0, "tokens of the last prompt that were not told");
    let records = run.policies().unwrap();
    assert_eq!(records.len(), names.len() * run.prompt_ids().len());
    for record in &records {
        let prompt = run.prompt(&record.prompt_id).unwrap();
        let attention = &record.attention;
        let [bos, read, decode] =
            [&attention.bos_mass, &attention.prompt_mass, &attention.decode_mass].map(PolicyRecord::by_layer);
        for layer in 0..layers {
            assert!((bos[layer] + read[layer] + decode[layer] - 1.0).abs() < 1e-5, "{}", record.policy);
        }
        let Some(cutoff) = record.policy.strip_prefix("speed:") else {
            assert_eq!(record.policy, "full");
            let cost = record.divergence;
            let expected = prompt.at(Anchor::Bos, layers);
            assert!((cost.kl - expected.kl).abs() < 1e-4 * (1.0 + expected.kl), "{cost:?} {expected:?}");
            assert_eq!(expected.kl > 1e-3, model.adapter.is_some(), "{expected:?}");
            for (is, should) in [(&bos, &prompt.layers.bos_mass), (&read, &prompt.layers.prompt_mass)] {
                assert!(is.iter().zip(should).all(|(a, b)| (a - b).abs() < 1e-6));
            }
            continue;
        };
        let anchor = if cutoff.ends_with("+bos") { Anchor::Bos } else { Anchor::None };
        let cutoff: usize = cutoff.trim_end_matches("+bos").parse().unwrap();
        let expected = prompt.at(anchor, cutoff);
        let off = (record.divergence.kl - expected.kl).abs();
        assert!(off < 1e-4 * (1.0 + expected.kl), "{} {}: off by {off}", record.prompt_id, record.policy);
        assert!((record.divergence.top1 - expected.top1).abs() < 1e-9);
        // Below the cutoff nothing but the decode rows above changes; from it on the prompt is not there.
        assert!(read[cutoff..].iter().all(|mass| *mass == 0.0), "{}: {read:?}", record.policy);
        assert!((read[0] - prompt.layers.prompt_mass[0]).abs() < 1e-6);
        assert_eq!(bos[cutoff..].iter().any(|mass| *mass > 0.0), anchor == Anchor::Bos);
    }
}

#[test]
fn policies_are_added_once_and_by_any_kind() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let run = recorded(&model, folder.path());
    let names = [
        "lazyllm",
        "sliminfer:1=64",
        "streaming:16",
        "pop:4",
        "swiftkv:4",
        "minference:vertical=30+slash=100",
    ];
    let policies = policies(&model, &names.map(str::to_owned));
    let mut prompts = 0;
    let mut count =
        |event: PolicyEvent<'_>| prompts += usize::from(matches!(event, PolicyEvent::Started { .. }));
    record_policies(&run, &model, &policies[..4], &Interrupt::new(false), &mut count).unwrap();
    record_policies(&run, &model, &policies, &Interrupt::new(false), &mut count).unwrap();
    record_policies(&run, &model, &policies, &Interrupt::new(false), &mut count).unwrap();
    assert_eq!(prompts, 2 * run.prompt_ids().len());
    let records = run.policies().unwrap();
    let of_first: Vec<&str> = records.iter().take(names.len()).map(|record| record.policy.as_str()).collect();
    assert_eq!(of_first, names);
    assert!(records.iter().all(|record| record.divergence.kl >= 0.0));
    let interrupted = record_policies(
        &run,
        &model,
        &[Policy::full(model.config().layers)],
        &Interrupt::new(true),
        &mut |_| {},
    );
    assert!(matches!(interrupted, Err(Error::Interrupted)));
    let shown = serde_json::to_value(run.show().unwrap()).unwrap();
    assert_eq!(shown["prompts"][0]["policies"][2]["policy"], "streaming:16");
    assert_eq!(
        shown["prompts"][0]["policies"][2]["prompt_mass"].as_array().unwrap().len(),
        model.config().layers
    );
}

#[test]
fn a_policy_that_is_named_twice_is_recorded_once_and_a_name_that_is_too_long_never() {
    let (model, folder) = (model(), tempfile::tempdir().unwrap());
    let run = recorded(&model, folder.path());
    let interrupt = Interrupt::new(false);
    let names = ["full", "speed:4", "speed:8", "speed:4+bos", "speed:4"];
    record_policies(&run, &model, &policies(&model, &names.map(str::to_owned)), &interrupt, &mut |_| {})
        .unwrap();
    let known: Vec<String> = run.policies().unwrap().into_iter().map(|record| record.policy).collect();
    assert_eq!(known[..3], ["full", "speed:4", "speed:4+bos"]);
    assert_eq!(known.len(), 3 * run.prompt_ids().len());

    let anchors: String = (0..2_000).map(|index| format!("+{}", 2 * index)).collect();
    let long = policies(&model, &[format!("speed:4{anchors}")]);
    let error = record_policies(&run, &model, &long, &interrupt, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Input(_)) && error.to_string().contains("give fewer anchors"), "{error}");
    assert_eq!(run.policies().unwrap().len(), known.len());
}
