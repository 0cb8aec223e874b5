//! Training on the embedded model.

#![allow(clippy::unwrap_used)]

use layerscope_adapt::{Event, Outcome, Settings, adapt};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_engine::{
    Adapter, AdapterRows, Device, Error, Hooks, Interrupt, LowRank, Model, ModelSource, Policy, Result,
    Session, WeightsPrecision, argmax,
};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;

const TINY: &[u8] = include_bytes!("../../../fixtures/tiny/layerscope-tiny.gguf");
const PROMPTS: &[u8] = include_bytes!("../../../fixtures/tiny/demo.jsonl");

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let source = ModelSource::embedded("layerscope-tiny", TINY);
    Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
});

fn settings(policy: &str) -> Settings {
    Settings {
        rank: Some(8),
        alpha: 16.0,
        learning_rate: 2e-3,
        steps: 40,
        other_cutoffs: 0.0,
        max_new_tokens: 8,
        held_out: 0.2,
        evaluate_every: 20,
        ..Settings::new(Policy::parse_for(policy, MODEL.config()).unwrap())
    }
}

fn prompts() -> PromptFile {
    PromptFile {
        name: "demo.jsonl".to_owned(),
        sha256: prompts_sha256(PROMPTS),
        prompts: parse_prompts("demo.jsonl", PROMPTS).unwrap(),
    }
}

fn train(settings: &Settings, folder: &Path) -> Result<Outcome> {
    adapt(&MODEL, &prompts(), settings, folder, &Interrupt::new(false), &mut |_| {})
}

#[test]
fn training_brings_the_model_under_a_cutoff_nearer_to_the_full_one() {
    for (policy, rows) in [
        ("speed:4+bos", AdapterRows::Decode),
        ("selfonly:4+bos", AdapterRows::Decode),
        ("speed:4+bos", AdapterRows::All),
        ("keep:0-3+bos", AdapterRows::Decode),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let outcome = train(&Settings { rows, ..settings(policy) }, folder.path()).unwrap();
        let training = outcome.training;
        assert!(training.before.kl > 0.1, "{policy} {rows:?}: {training:?}");
        assert!(training.after.kl < 0.8 * training.before.kl, "{policy} {rows:?}: {training:?}");
        assert!(training.full_depth.unwrap().kl > 0.0);
        let (adapter, made_for) = Adapter::read(folder.path(), MODEL.config()).unwrap();
        assert_eq!(adapter.rows, rows);
        let made_for = made_for.unwrap();
        assert_eq!((made_for.policy.as_str(), made_for.training), (policy, Some(training)));
    }
}

/// Every element of the matrices, and a frontier beside each measurement, which changes nothing.
#[test]
fn matrices_are_trained_whole() {
    let rank = None;
    let full = Settings { rank, learning_rate: 2e-4, rows: AdapterRows::All, ..settings("speed:4+bos") };
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let outcome = train(&full, folder.path()).unwrap().training;
    assert!(outcome.after.kl < 0.8 * outcome.before.kl, "{outcome:?}");
    let (adapter, _) = Adapter::read(folder.path(), MODEL.config()).unwrap();
    assert!(adapter.matrices().values().all(LowRank::is_of_full_rank));
    let mut frontiers = vec![];
    let watched = Settings { with_frontier: true, ..full };
    adapt(&MODEL, &prompts(), &watched, other.path(), &Interrupt::new(false), &mut |event| {
        if let Event::Evaluated { figures, frontier, .. } = event {
            let at_policy = frontier.iter().find(|(cutoff, _)| *cutoff == 4).unwrap().1;
            assert!((at_policy - figures.kl).abs() < 1e-9);
            frontiers.push(frontier);
        }
    })
    .unwrap();
    assert_eq!(frontiers.len(), 3);
    let bytes = |folder: &Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    assert!(bytes(folder.path()) == bytes(other.path()));
}

/// Stopped at any step and started again, the same bytes come out.
#[test]
fn a_training_that_was_stopped_goes_on_to_the_same_bytes() {
    let settings = Settings { steps: 9, ..settings("speed:4+bos") };
    let whole = tempfile::tempdir().unwrap();
    train(&settings, whole.path()).unwrap();
    let bytes = |folder: &Path| std::fs::read(folder.join("adapter_model.safetensors")).unwrap();
    for stop in [1, 4, 8] {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::new(false);
        let stopped = adapt(&MODEL, &prompts(), &settings, folder.path(), &interrupt, &mut |event| {
            if matches!(event, Event::Step { step, .. } if step == stop) {
                interrupt.store(true, SeqCst);
            }
        });
        let stopped = stopped.unwrap();
        assert_eq!((stopped.training.steps, stopped.interrupted), (stop, true));
        assert_ne!(bytes(folder.path()), bytes(whole.path()));
        let mut seen = vec![];
        let outcome =
            adapt(&MODEL, &prompts(), &settings, folder.path(), &Interrupt::new(false), &mut |event| {
                if let Event::Evaluated { step, figures, .. } = event {
                    seen.push((step, figures));
                }
            });
        let outcome = outcome.unwrap();
        assert_eq!(outcome.training.steps, 9);
        assert_eq!(bytes(folder.path()), bytes(whole.path()), "stopped at {stop}");
        // What was measured before the stop is told again.
        let measured: Vec<_> =
            outcome.measured.iter().map(|measured| (measured.step, measured.figures)).collect();
        assert_eq!(seen, measured);
    }
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |settings: &Settings| -> Error { train(settings, folder.path()).unwrap_err() };
    assert!(refused(&settings("full")).to_string().contains("--sft 1"));
    assert!(refused(&settings("pop:4")).to_string().contains("no adapter can be trained for pop:4"));
    let all = Settings { rows: AdapterRows::All, ..settings("keep:0-3+bos") };
    assert!(refused(&all).to_string().contains("--rows decode"));
    let one = Settings { steps: 1, ..settings("speed:4+bos") };
    train(&one, folder.path()).unwrap();
    let other = Settings { rank: Some(4), ..one.clone() };
    assert!(refused(&other).to_string().contains("other settings"));
    std::fs::write(folder.path().join("training.safetensors"), b"nothing").unwrap();
    assert!(refused(&one).to_string().contains("is damaged"));
    let rate = Settings { learning_rate: 1e30, steps: 5, ..one };
    std::fs::remove_file(folder.path().join("training.safetensors")).unwrap();
    assert!(refused(&rate).to_string().contains("--learning-rate"));
}

/// Held-out figures before training are those of the policy's own generation, teacher-forced: KL(full ‖ policy).
#[test]
fn held_out_figures_are_those_of_the_policys_generation() {
    let model = Model::load(
        &ModelSource::embedded("layerscope-tiny", TINY),
        WeightsPrecision::F32,
        &Device::Cpu,
        &mut |_, _| Ok(()),
    )
    .unwrap();
    let mut prompts = prompts();
    prompts.prompts.truncate(1);
    let mut again = prompts.prompts[0].clone();
    again.id = "again".to_owned();
    prompts.prompts.push(again);
    let tokens = model.tokenizer.encode_prompt(&prompts.prompts[0].content).unwrap();
    let log_softmax = |logits: &[f32]| -> Vec<f64> {
        let all: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        logits.iter().map(|x| f64::from(*x) - all.ln()).collect()
    };
    let cutoffs = ["speed:4+bos", "speed:5", "selfonly:4+bos", "speed:4+bos+9-20", "selfonly:5+3-4"];
    let kept = [
        "keep:0-2+4.0+bos",
        "keep:1+3.1+sinks=2+window=5",
        "speed:5+bos+keep:0-1+3.0+bos",
        "speed:6+2-4+keep:0-2+4.1+window=7",
        "snapkv:30%",
        "expected:12",
    ];
    for name in cutoffs.into_iter().chain(kept) {
        let policy = Policy::parse_for(name, model.config()).unwrap();
        for rows in [AdapterRows::Decode, AdapterRows::All] {
            if rows == AdapterRows::All && kept.contains(&name) {
                continue;
            }
            let folder = tempfile::tempdir().unwrap();
            let settings =
                Settings { steps: 1, rows, policy: policy.clone(), other_cutoffs: 1.0, ..settings(name) };
            let outcome =
                adapt(&model, &prompts, &settings, folder.path(), &Interrupt::new(false), &mut |_| {})
                    .unwrap();
            let run = |policy: Policy, given: Option<&[u32]>| {
                let steps = settings.max_new_tokens;
                let mut session = Session::new(&model.decoder, policy, tokens.len(), steps).unwrap();
                let mut hooks = Hooks::none();
                let first =
                    session.prefill(&tokens, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
                let (mut logits, mut said) = (vec![first], vec![]);
                for step in 0..steps {
                    let likely = argmax(logits.last().unwrap(), model.tokenizer.eos_ids()).unwrap();
                    said.push(given.map_or(likely, |given| given[step]));
                    if step + 1 < steps {
                        logits.push(session.step(said[step], &mut hooks).unwrap());
                    }
                }
                let logits: Vec<Vec<f64>> =
                    logits.iter().map(|x| log_softmax(&x.to_vec().unwrap())).collect();
                (logits, said)
            };
            let (full, said) = run(Policy::full(model.config().layers), None);
            let (cut, _) = run(policy.clone(), Some(&said));
            let of_step = |(full, cut): (&Vec<f64>, &Vec<f64>)| -> f64 {
                full.iter().zip(cut).map(|(p, q)| p.exp() * (p - q)).sum()
            };
            let expected = full.iter().zip(&cut).map(of_step).sum::<f64>() / full.len() as f64;
            assert!(
                (outcome.training.before.kl - expected).abs() < 1e-4 * expected.max(0.1),
                "{name} {rows:?}: {} {expected}",
                outcome.training.before.kl
            );
        }
    }
}
