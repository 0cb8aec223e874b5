//! `streaming` against the plain reference: the whole sequence at once, with what is behind the window hidden but for the
//! sinks.

use super::reference::{Reference, TINY, whole_run};
use super::{assert_within, sequence, stepped};
use layerscope_engine::{Device, Hooks, Interrupt, Policy, Session, SinksAndWindow};

fn policy(name: &str) -> Policy {
    Policy::parse(name, TINY.decoder.config().layers).unwrap()
}

fn expected(policy: &Policy, sequence: &[u32], p: usize) -> Vec<Vec<f32>> {
    let seen = SinksAndWindow::named(&policy.to_string()).unwrap();
    let hidden = |_: usize, query: usize, key: usize| key >= seen.sinks && key + seen.window <= query;
    whole_run(sequence, p, Reference { hidden: &hidden, projected: None, hidden_by_head: None })
}

#[test]
fn it_equals_the_plain_reference() {
    for (name, lengths) in [
        ("streaming:5", vec![1, 2, 8, 9, 10, 511, 512, 513, 514]),
        ("streaming:64", vec![63, 64, 65, 66, 68, 69, 512, 1025]),
        ("streaming:1+sinks=1", vec![1, 2, 3, 513]),
        ("streaming:1+sinks=0", vec![1, 2, 514]),
        ("streaming:64+sinks=0", vec![63, 65, 512, 513]),
        ("streaming:600+sinks=70", vec![66, 669, 670, 1030]),
        ("streaming:2+sinks=300", vec![299, 303, 520]),
    ] {
        let policy = policy(name);
        for p in lengths {
            let sequence = sequence(p + 6, p as u32);
            let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
            assert_within(1e-4, &actual, &expected(&policy, &sequence, p), &format!("{name}, p {p}"));
        }
    }
}

/// Decode tokens outgrow the window.
#[test]
fn decode_tokens_behind_the_window_are_not_read() {
    let policy = policy("streaming:4+sinks=1");
    for p in [1, 2, 20] {
        let sequence = sequence(p + 16, 2);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-4, &actual, &expected(&policy, &sequence, p), &format!("p {p}"));
    }
}

#[test]
fn with_everything_in_the_window_it_is_the_full_model() {
    for p in [1, 2, 3, 64, 511, 514, 700] {
        let sequence = sequence(p + 3, p as u32);
        let full = stepped(&policy("full"), &sequence, p, &mut Hooks::none());
        for name in ["streaming:4k", "streaming:703+sinks=0", "streaming:1+sinks=703"] {
            assert_eq!(stepped(&policy(name), &sequence, p, &mut Hooks::none()), full, "{name}, p {p}");
        }
    }
}

/// What a layer has room for while the prompt goes in: with one token less to give up after each chunk it would be full.
#[test]
fn the_prefill_never_holds_more_than_a_window_and_a_chunk() {
    let (p, decode) = (2_000, 3);
    let policy = policy("streaming:100");
    let sequence = sequence(p, 4);
    let mut session = Session::new(&TINY.decoder, policy.clone(), p, decode).unwrap();
    let bytes = |tokens: usize| {
        let config = TINY.decoder.config();
        2 * tokens * config.layers * config.kv_heads * config.head_dim * size_of::<f32>()
    };
    assert_eq!(session.store().allocated_bytes(), bytes(4 + 99 + 512 + decode));
    let mut held = vec![];
    session
        .prefill(&sequence, &mut Hooks::none(), &Interrupt::new(false), &mut |done| held.push(done))
        .unwrap();
    assert_eq!(held, [512, 1024, 1536, 2000]);
    assert_eq!(session.store().len(0), 4 + 99 + 1);
    assert_eq!(session.store().allocated_bytes(), bytes(4 + 99 + decode));
    assert_eq!(policy.most_held(p, decode, &Device::Cpu)[0], 4 + 99 + 512 + decode);
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_it_equals_the_plain_reference() {
    let decoder = super::on_gpu();
    for (name, p) in
        [("streaming:30+sinks=3", 70), ("streaming:5", 9), ("streaming:40+sinks=0", 64), ("streaming:9", 1)]
    {
        let policy = policy(name);
        let sequence = sequence(p + 6, p as u32);
        let actual = super::stepped_on(&decoder, &policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-3, &actual, &expected(&policy, &sequence, p), &format!("{name}, p {p}"));
    }
}
