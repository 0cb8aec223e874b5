//! Likelihoods under policies against token-by-token runs, and evaluations that go on where they were stopped.

#![allow(clippy::unwrap_used)]

use layerscope_engine::{
    Device, Error, Hooks, Interrupt, Model, ModelSource, Policy, Session, WeightsPrecision,
};
use layerscope_eval::{Evaluation, Event, Settings, TaskFile, evaluate, likelihoods, parse_tasks, summarise};
use std::sync::LazyLock;
use std::sync::atomic::Ordering::SeqCst;

const TINY: &[u8] = include_bytes!("../../../fixtures/tiny/layerscope-tiny.gguf");
const PROMPTS: &[u8] = include_bytes!("../../../fixtures/tiny/demo.jsonl");

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let source = ModelSource::embedded("layerscope-tiny", TINY);
    Model::load(&source, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
});

fn policies(names: &[&str]) -> Vec<Policy> {
    names.iter().map(|name| Policy::parse_for(name, MODEL.config()).unwrap()).collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let all: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - most) - all.ln()).collect()
}

/// Every kind of policy: each choice, whatever came before it, has the likelihood of a run of its own, a token at a time.
#[test]
fn likelihoods_are_those_of_runs_of_their_own() {
    let tokens = |count: usize, seed: usize| -> Vec<u32> {
        (0..count).map(|index| ((index * 7_919 + seed * 104_729) % 500 + 3) as u32).collect()
    };
    let prompt = tokens(90, 1);
    let choices = [tokens(1, 2), tokens(5, 3), tokens(3, 4), tokens(5, 3)];
    let names = [
        "full",
        "speed:5+bos",
        "speed:4",
        "selfonly:5+bos",
        "pop:5",
        "swiftkv:5",
        "streaming:16",
        "sliminfer:3=50%",
        "lazyllm:3=50%",
        "keep:0-3+5.0+bos+window=8",
        "snapkv:50%",
        "kvzip:30%",
        "minference",
    ];
    for policy in policies(&names) {
        let found = likelihoods(&MODEL, &prompt, &choices, &policy, &Interrupt::new(false)).unwrap();
        for (choice, found) in choices.iter().zip(&found) {
            let mut session =
                Session::new(&MODEL.decoder, policy.clone(), prompt.len(), choice.len()).unwrap();
            let mut hooks = Hooks::none();
            let mut logits =
                session.prefill(&prompt, &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
            let mut is_greedy = true;
            for (index, (&token, found)) in choice.iter().zip(&found.tokens).enumerate() {
                let expected = log_softmax(&logits.to_vec().unwrap());
                let own = expected[token as usize];
                is_greedy &= expected.iter().all(|other| *other <= own);
                assert!((found - own).abs() < 1e-4 * own.abs().max(1.0), "{policy}: {found} {own}");
                if index + 1 < choice.len() {
                    logits = session.step(token, &mut hooks).unwrap();
                }
            }
            assert_eq!(found.is_greedy, is_greedy, "{policy}");
            let sum: f64 = found.tokens.iter().sum();
            assert_eq!(found.log_likelihood, sum);
        }
    }
    assert!(
        likelihoods(&MODEL, &prompt, &[vec![]], &policies(&["full"])[0], &Interrupt::new(false)).is_err()
    );
}

#[test]
fn an_evaluation_goes_on_where_it_was_stopped() {
    let tasks = TaskFile {
        name: "demo.jsonl".to_owned(),
        sha256: "00".to_owned(),
        items: parse_tasks("demo.jsonl", PROMPTS).unwrap(),
    };
    let folder = tempfile::tempdir().unwrap();
    let settings = || Settings::new(&MODEL, &tasks, false, 12);
    let both = policies(&["full", "speed:4+bos"]);
    let run = |evaluation: &mut Evaluation, stop_after: usize| {
        let interrupt = Interrupt::new(false);
        let mut begun = 0;
        let observe = &mut |event: Event<'_>| {
            if matches!(event, Event::Started { .. }) {
                begun += 1;
                if begun > stop_after {
                    interrupt.store(true, SeqCst);
                }
            }
        };
        evaluate(&MODEL, &tasks.items, &both, evaluation, &interrupt, observe, &mut |_| Ok(()))
    };
    let mut whole = Evaluation::new(settings());
    run(&mut whole, usize::MAX).unwrap();
    assert_eq!(whole.results.len(), 2 * tasks.items.len());
    let mut part = Evaluation::new(settings());
    assert!(matches!(run(&mut part, 5), Err(Error::Interrupted)));
    assert_eq!(part.results.len(), 5);
    part.write(folder.path()).unwrap();
    let mut again = Evaluation::resume(folder.path(), settings()).unwrap();
    run(&mut again, usize::MAX).unwrap();
    assert_eq!(again.results, whole.results);
    let others = Settings { max_new_tokens: 13, ..settings() };
    assert!(Evaluation::resume(folder.path(), others).unwrap_err().to_string().contains("other settings"));

    let names: Vec<String> = both.iter().map(Policy::to_string).collect();
    let rows = summarise(whole.scored(), &names);
    let mean = |policy: &str| {
        let scores: Vec<f64> =
            whole.results.iter().filter(|r| r.policy == policy).map(|r| r.scores["contains"]).collect();
        scores.iter().sum::<f64>() / scores.len() as f64
    };
    assert_eq!((rows[0].category.as_ref(), rows[0].items), (None, tasks.items.len()));
    assert!((rows[0].cells[0].score - mean("full")).abs() < 1e-12);
    let difference = rows[0].cells[1].difference.unwrap();
    assert!((difference.mean - (mean("speed:4+bos") - mean("full"))).abs() < 1e-12);
    assert!(difference.lower95 <= difference.mean && difference.mean <= difference.upper95);
    assert!(mean("full") > 0.5 && rows.len() > 2);
}
