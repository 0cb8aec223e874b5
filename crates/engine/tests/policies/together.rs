//! Several sequences in one forward pass, each under a policy of its own, against each alone.

use super::reference::TINY;
use super::{sequence, stepped};
use layerscope_engine::{
    Adapter, AdapterRows, Decoder, Hooks, LowRank, Policy, Session, Target, Turn, advance_together,
};
use std::sync::Arc;

/// Logits of each sequence, `[sequence][step]`: all begin their prompts together, and each decodes while others still prefill.
fn run_together(decoder: &Arc<Decoder>, sequences: &[(&str, Vec<u32>, usize)]) -> Vec<Vec<Vec<f32>>> {
    let layers = TINY.decoder.config().layers;
    let mut sessions: Vec<Session> = sequences
        .iter()
        .map(|(name, tokens, p)| {
            let policy = Policy::parse(name, layers).unwrap();
            let mut session = Session::new(decoder, policy, *p, tokens.len() + 1 - p).unwrap();
            session.begin_prefill(&tokens[..*p]).unwrap();
            session
        })
        .collect();
    let mut actual: Vec<Vec<Vec<f32>>> = vec![vec![]; sequences.len()];
    loop {
        let mut turns = vec![];
        let mut whose = vec![];
        for (index, session) in sessions.iter_mut().enumerate() {
            let (_, tokens, p) = &sequences[index];
            // The token that follows the last logits, once there are any.
            let token = actual[index].len().checked_sub(1).map(|step| tokens.get(p + step).copied());
            match token {
                Some(None) => continue,
                token => turns.push(Turn { session, token: token.flatten() }),
            }
            whose.push(index);
        }
        if turns.is_empty() {
            return actual;
        }
        for (index, logits) in whose.into_iter().zip(advance_together(&mut turns).unwrap()) {
            actual[index].extend(logits.map(|logits| logits.to_vec().unwrap()));
        }
    }
}

/// Sequences under policies, each with a prompt of so many tokens and so many steps.
fn prompts(lengths: &[(&'static str, usize, usize)]) -> Vec<(&'static str, Vec<u32>, usize)> {
    let prompt = |(index, &(name, p, steps)): (usize, &(&'static str, usize, usize))| {
        (name, sequence(p + steps, index as u32 + 3), p)
    };
    lengths.iter().enumerate().map(prompt).collect()
}

/// The model with an adapter whose numbers are all different.
fn adapted(rows: AdapterRows) -> Arc<Decoder> {
    let config = TINY.decoder.config();
    let numbers =
        |len: usize, seed: usize| (0..len).map(|i| ((i * 7919 + seed) % 1009) as f32 / 504.5 - 1.0).collect();
    let matrices = (0..config.layers).flat_map(|layer| Target::ALL.map(|target| (layer, target)));
    let matrices = matrices.map(|(layer, target)| {
        let [out, columns] = target.shape(config).unwrap();
        let (a, b) = (numbers(3 * columns, layer), numbers(3 * out, layer + 100));
        ((layer, target), LowRank { a, b, rank: 3, scale: 0.01 })
    });
    let adapter = Adapter::new(rows, matrices.collect(), config).unwrap();
    Arc::new(TINY.decoder.with_adapter(&adapter).unwrap())
}

/// Prompt rows of one sequence share passes with decode rows of another.
#[test]
fn an_adapter_acts_on_the_decode_rows_of_each_sequence() {
    let sequences =
        prompts(&[("full", 30, 6), ("speed:3+bos", 600, 4), ("pop:5", 17, 5), ("swiftkv:3", 2, 8)]);
    for rows in [AdapterRows::Decode, AdapterRows::All] {
        let decoder = adapted(rows);
        let together = run_together(&decoder, &sequences);
        for ((name, tokens, p), actual) in sequences.iter().zip(together) {
            let policy = Policy::parse(name, TINY.decoder.config().layers).unwrap();
            let alone = super::steps_of(&decoder, &policy, tokens, *p);
            assert_eq!(actual, alone, "{name}, p {p}, {rows:?}");
            let plain = super::steps_of(&TINY.decoder, &policy, tokens, *p);
            assert_ne!(alone, plain, "{name}, p {p}, {rows:?}");
        }
    }
}

#[test]
fn every_sequence_gets_the_bits_that_it_gets_alone() {
    for sequences in [
        prompts(&[("full", 30, 6), ("speed:3+bos", 41, 4)]),
        prompts(&[("speed:2", 1, 9), ("selfonly:4+bos", 600, 3), ("pop:5", 17, 5), ("swiftkv:3", 2, 8)]),
        prompts(&[("swiftkv:2", 530, 4), ("streaming:9+sinks=2", 33, 8), ("full", 1100, 2)]),
        prompts(&[
            ("lazyllm:2=40%+5=10", 90, 6),
            ("sliminfer:1=250+4=200+read=0.5", 300, 5),
            ("full", 3, 10),
        ]),
    ] {
        let together = run_together(&TINY.decoder, &sequences);
        for ((name, tokens, p), actual) in sequences.iter().zip(together) {
            let policy = Policy::parse(name, TINY.decoder.config().layers).unwrap();
            assert_eq!(actual, super::steps_of(&TINY.decoder, &policy, tokens, *p), "{name}, p {p}");
        }
    }
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_every_sequence_gets_what_it_gets_alone() {
    let decoder = super::on_gpu();
    let sequences = prompts(&[
        ("speed:3+bos", 40, 3),
        ("selfonly:4+bos", 12, 5),
        ("swiftkv:3", 2, 6),
        ("streaming:9+sinks=2", 33, 4),
        ("full", 70, 2),
    ]);
    let together = run_together(&decoder, &sequences);
    for ((name, tokens, p), actual) in sequences.iter().zip(together) {
        let policy = Policy::parse(name, TINY.decoder.config().layers).unwrap();
        let alone = super::steps_of(&decoder, &policy, tokens, *p);
        super::assert_within(1e-4, &actual, &alone, &format!("{name}, p {p}"));
    }
}

#[test]
fn misuse_is_an_error() {
    let policy = || Policy::full(TINY.decoder.config().layers);
    let mut session = Session::new(&TINY.decoder, policy(), 3, 2).unwrap();
    assert!(session.step(5, &mut Hooks::none()).is_err(), "a step before the prompt");
    assert!(advance_together(&mut [Turn { session: &mut session, token: None }]).is_err(), "no prompt");
    assert!(session.begin_prefill(&[1, 2]).is_err(), "a prompt of another length");
    session.begin_prefill(&[1, 2, 3]).unwrap();
    assert!(session.begin_prefill(&[1, 2, 3]).is_err(), "a second prompt");
    assert!(advance_together(&mut [Turn { session: &mut session, token: Some(4) }]).is_err(), "too early");
    let mut fresh = Session::new(&TINY.decoder, policy(), 3, 2).unwrap();
    fresh.begin_prefill(&[1, 2, 3]).unwrap();
    let logits = advance_together(&mut [Turn { session: &mut fresh, token: None }]).unwrap();
    assert!(logits[0].is_some() && !fresh.is_prefilling());
    assert!(advance_together(&mut [Turn { session: &mut fresh, token: None }]).is_err(), "no token");
    let expected = stepped(&policy(), &[1, 2, 3], 3, &mut Hooks::none());
    assert_eq!(logits[0].as_ref().unwrap().to_vec().unwrap(), expected[0]);
}

#[test]
fn sessions_cross_threads() {
    fn check<T: Send>() {}
    check::<Session>();
    let policy = Policy::full(TINY.decoder.config().layers);
    let mut session = Session::new(&TINY.decoder, policy, 3, 2).unwrap();
    session.begin_prefill(&[1, 2, 3]).unwrap();
    let logits = std::thread::spawn(move || {
        advance_together(&mut [Turn { session: &mut session, token: None }]).unwrap()
    });
    assert!(logits.join().unwrap()[0].is_some());
}
