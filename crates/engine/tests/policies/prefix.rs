//! A prompt whose first tokens ran in another sequence has the bits that it has alone.

use super::reference::{TINY, crate_folder};
use super::{sequence, windows};
use layerscope_engine::{
    Decoder, Device, GgufFile, Hooks, Interrupt, Policy, Session, WeightsPrecision, gguf_config,
};
use std::sync::Arc;

fn begun(decoder: &Arc<Decoder>, policy: &str, prompt: &[u32]) -> Session {
    let policy = Policy::parse(policy, decoder.config().layers).unwrap();
    Session::new(decoder, policy, prompt.len(), 4).unwrap()
}

fn prefilled(decoder: &Arc<Decoder>, policy: &str, prompt: &[u32]) -> Session {
    let mut session = begun(decoder, policy, prompt);
    session.prefill(prompt, &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    session
}

/// Runs a session whose prompt has begun, and two steps; all logits.
fn finished(mut session: Session) -> Vec<Vec<f32>> {
    let mut logits = vec![];
    while logits.is_empty() {
        let mut turn = [layerscope_engine::Turn { session: &mut session, token: None }];
        logits.extend(layerscope_engine::advance_together(&mut turn).unwrap().pop().unwrap());
    }
    for token in [7, 8] {
        logits.push(session.step(token, &mut Hooks::none()).unwrap());
    }
    logits.iter().map(|logits| logits.to_vec().unwrap()).collect()
}

/// Two prompts of some lengths that begin alike, under a policy each; the second goes on from what the first has run. How many tokens
/// it takes over.
fn check(decoder: &Arc<Decoder>, policies: [&str; 2], lengths: [usize; 2], alike: usize) -> usize {
    let first: Vec<u32> = sequence(lengths[0], 1).iter().map(|token| 1 + token % 60).collect();
    let other = sequence(lengths[1], 2);
    let tokens =
        other.iter().enumerate().map(|(at, token)| if at < alike { first[at] } else { 1 + token % 59 });
    let prompt: Vec<u32> = tokens.collect();
    let mut source = prefilled(decoder, policies[0], &first);
    source.step(5, &mut Hooks::none()).unwrap();
    let mut after = begun(decoder, policies[1], &prompt);
    let name = format!("{policies:?}, {lengths:?}, {alike}");
    let len = after.can_take_over(&source, alike);
    if len == 0 {
        return 0;
    }
    after.begin_prefill_after(&prompt, &source, len).unwrap();
    let mut alone = begun(decoder, policies[1], &prompt);
    alone.begin_prefill(&prompt).unwrap();
    assert_eq!(after.store().allocated_bytes(), alone.store().allocated_bytes(), "{name}");
    // Not `assert_eq`, which would print both.
    assert!(finished(after) == finished(alone), "{name}");
    len
}

fn tiny(precision: WeightsPrecision) -> Arc<Decoder> {
    let path = crate_folder().join("../../fixtures/tiny/layerscope-tiny.gguf");
    let file = GgufFile::open(&path).unwrap();
    let mut config = gguf_config(&file, None).unwrap();
    config.context = 4096;
    let weights = file.weights(&config).unwrap();
    Arc::new(Decoder::load(config.clone(), &weights, precision, &Device::Cpu, &mut |_, _| Ok(())).unwrap())
}

#[test]
fn full_serves_every_cutoff_and_a_cutoff_those_below_it() {
    for precision in [WeightsPrecision::F32, WeightsPrecision::Native] {
        let decoder = tiny(precision);
        for policies in [
            ["full", "full"],
            ["full", "speed:3+bos"],
            ["full", "selfonly:2"],
            ["speed:5", "speed:4"],
            ["speed:5+bos", "speed:5+bos"],
            ["speed:5+bos", "speed:1+bos"],
            ["selfonly:6+bos", "speed:3"],
        ] {
            // Of what is alike as much is taken over as leaves the chunks as they are.
            for (alike, len) in [
                (1, 1),
                (2, 2),
                (63, 63),
                (64, 64),
                (100, 100),
                (505, 496),
                (512, 512),
                (520, 520),
                (599, 584),
            ] {
                assert_eq!(check(&decoder, policies, [620, 600], alike), len, "{policies:?}, {alike}");
            }
            // Longer prompts than the first one, and few tokens in the last chunk.
            assert_eq!(check(&decoder, policies, [40, 1_200], 40), 39);
            assert_eq!(check(&decoder, policies, [600, 514], 514), 512);
            assert_eq!(check(&decoder, policies, [600, 513], 513), 512);
            assert_eq!(check(&decoder, policies, [600, 512], 512), 496);
        }
    }
}

/// An expert that gets one row of a chunk multiplies it otherwise than several.
#[test]
fn models_with_experts_go_on_where_a_chunk_begins() {
    let decoder = windows::family("olmoe", &Device::Cpu);
    assert_eq!(check(&decoder, ["full", "full"], [310, 320], 300), 0);
    assert_eq!(check(&decoder, ["full", "full"], [700, 540], 530), 512);
    assert_eq!(check(&decoder, ["full", "speed:1"], [700, 540], 530), 512);
    assert_eq!(check(&decoder, ["full", "speed:1+bos"], [700, 540], 530), 0);
}

/// Heads that share no keys, and several that do.
#[test]
fn other_families_go_on_alike() {
    for name in ["gpt_neox", "qwen3", "llama2"] {
        let decoder = windows::family(name, &Device::Cpu);
        for to in ["full", "speed:1+bos"] {
            assert_eq!(check(&decoder, ["full", to], [300, 320], 299), 299, "{name}");
            assert_eq!(check(&decoder, ["full", to], [300, 300], 300), 284, "{name}");
        }
    }
}

#[test]
fn layers_with_a_window_go_on_where_a_chunk_begins() {
    for name in ["gemma2", "gemma3"] {
        let decoder = windows::family(name, &Device::Cpu);
        for to in ["full", "speed:1+bos"] {
            assert_eq!(check(&decoder, ["full", to], [513, 600], 513), 512, "{name}");
            // Of an earlier part of the prompt the windows have gone.
            assert_eq!(check(&decoder, ["full", to], [600, 600], 600), 0, "{name}");
            assert_eq!(check(&decoder, ["full", to], [130, 130], 130), 0, "{name}");
        }
    }
}

#[test]
fn what_is_not_the_full_models_is_not_taken_over() {
    let (decoder, prompt) = (&TINY.decoder, sequence(100, 3));
    let most = |from: &str, to: &str, alike: usize| {
        let source = prefilled(decoder, from, &prompt);
        begun(decoder, to, &prompt).can_take_over(&source, alike)
    };
    assert_eq!(most("full", "speed:4+bos", 100), 84);
    for (from, to) in [
        ("speed:4", "speed:5"),
        ("speed:5", "speed:4+bos"),
        ("speed:4+bos", "full"),
        ("streaming:16", "full"),
        ("full", "streaming:16"),
        ("full", "lazyllm"),
        ("pop:4", "pop:4"),
        ("full", "speed:4+bos+3"),
        ("full", "keep:0-3"),
    ] {
        assert_eq!(most(from, to, 50), 0, "{from} {to}");
    }
    assert_eq!(most("full", "full", 0), 0);
    let unfinished = begun(decoder, "full", &prompt);
    assert_eq!(begun(decoder, "full", &prompt).can_take_over(&unfinished, 50), 0);
    let (mut begun, full) = (begun(decoder, "full", &prompt), prefilled(decoder, "full", &prompt));
    assert!(begun.begin_prefill_after(&prompt, &full, 90).is_err());
}
