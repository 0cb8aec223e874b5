//! `lazyllm` against a plain, slow reference: for each step a run over the whole sequence from scratch, in which every row
//! sees, in the layers of a stage, the prompt tokens that were chosen in the step in which it ran through them; tokens are
//! chosen by hand, by probabilities in f64.

#[cfg(target_os = "linux")]
use super::reference::on_gpu;
use super::reference::{Reference, TINY, logits, whole_run_with};
use super::{assert_within, run, sequence, stepped};
use candle_core::Tensor as HostTensor;
use layerscope_engine::{
    Decoder, Depth, HookPoint, Hooks, Interrupt, LayerStatistics, Policy, RevivalCounters, Session, Site,
    Tensor, TokenPruning,
};

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

/// What each row sees of the prompt in each stage after the first, by stage and position.
#[derive(Default)]
struct Chosen {
    seen: BTreeMap<(usize, usize), BTreeSet<usize>>,
    revived: u64,
}

/// Rotated queries and keys at the pruning layers, `[rows, heads, head_dim]`.
type Seen = Rc<RefCell<Vec<[Option<HostTensor>; 2]>>>;

fn pruning(policy: &Policy) -> TokenPruning {
    TokenPruning::named(&policy.to_string(), TINY.decoder.config().layers).unwrap()
}

struct Plain {
    pruning: TokenPruning,
    /// Prefill tokens.
    m: usize,
}

impl Plain {
    /// Probabilities of the row at `last` over the keys at `visible` and those from m on, summed over heads.
    fn received(&self, [q, k]: [&HostTensor; 2], layer: usize, last: usize, visible: &[usize]) -> Vec<f64> {
        let shape = TINY.decoder.attention_shape(layer);
        let (q, k) = (q.to_vec3::<f32>().unwrap(), k.to_vec3::<f32>().unwrap());
        let keys: Vec<usize> = visible.iter().copied().chain(self.m..=last).collect();
        let mut received = vec![0.0; visible.len()];
        for (head, query) in q[last].iter().enumerate() {
            let kv_head = head * shape.kv_heads / shape.query_heads;
            let score = |key: &usize| -> f64 {
                let pairs = query.iter().zip(&k[*key][kv_head]);
                pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>() * f64::from(shape.scale)
            };
            let exponentials: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
            let total: f64 = exponentials.iter().sum();
            received.iter_mut().zip(&exponentials).for_each(|(sum, e)| *sum += e / total);
        }
        received
    }

    /// The run over the first tokens of the sequence, with what earlier steps have chosen; notes what this one chooses.
    fn run(&self, sequence: &[u32], chosen: &RefCell<Chosen>) -> Vec<f32> {
        let (prunings, last) = (self.pruning.schedule.prunings(), sequence.len() - 1);
        let seen: Seen = Rc::new(RefCell::new(vec![[None, None]; prunings.len()]));
        let mut hooks = Hooks::none();
        for (index, pruning) in prunings.iter().enumerate() {
            for (which, site) in [Site::RotatedQuery, Site::RotatedKey].into_iter().enumerate() {
                let seen = Rc::clone(&seen);
                hooks.add(HookPoint { layer: pruning.layer, site }, move |_, x| {
                    seen.borrow_mut()[index][which] = Some(Tensor::from_array(x.to_owned())?.to_host()?);
                    Ok(None)
                });
            }
        }
        let choose = |index: usize| {
            if chosen.borrow().seen.contains_key(&(index + 1, last)) {
                return;
            }
            let visible: Vec<usize> = match index {
                0 => (0..self.m).collect(),
                _ => chosen.borrow().seen[&(index, last)].iter().copied().collect(),
            };
            let seen = seen.borrow();
            let [Some(q), Some(k)] = &seen[index] else { panic!("seen") };
            let received = self.received([q, k], prunings[index].layer, last, &visible);
            let mut order: Vec<usize> = (1..visible.len()).collect();
            order.sort_by(|&a, &b| received[b].total_cmp(&received[a]));
            let best = visible.first().into_iter().copied().chain(order.into_iter().map(|at| visible[at]));
            let best: BTreeSet<usize> = best.take(self.pruning.kept(self.m)[index]).collect();
            let mut chosen = chosen.borrow_mut();
            for &token in &best {
                let ran = &mut *chosen;
                ran.seen.entry((index + 1, token)).or_insert_with(|| {
                    ran.revived += u64::from(last > self.m);
                    best.clone()
                });
            }
            chosen.seen.insert((index + 1, last), best);
        };
        // Attention of a pruning layer comes after its queries and keys were seen, and before the layers that it tells what
        // to see.
        let hidden = |layer: usize, query: usize, key: usize| {
            let stage = prunings.iter().filter(|pruning| pruning.layer < layer).count();
            if stage == 0 || key >= self.m {
                return false;
            }
            choose(stage - 1);
            // A row that has not run through the stage is seen by nobody, whatever it sees.
            chosen.borrow().seen.get(&(stage, query)).is_some_and(|seen| !seen.contains(&key))
        };
        let reference = Reference { hidden: &hidden, projected: None, hidden_by_head: None };
        let logits = whole_run_with(sequence, self.m + 1, reference, hooks);
        // Where the last layer prunes.
        (0..prunings.len()).for_each(choose);
        logits.into_iter().next_back().unwrap()
    }
}

fn policy(name: &str) -> Policy {
    Policy::parse(name, TINY.decoder.config().layers).unwrap()
}

/// Logits of all steps, and what was chosen.
fn expected(policy: &Policy, sequence: &[u32], p: usize) -> (Vec<Vec<f32>>, Chosen) {
    let plain = Plain { pruning: pruning(policy), m: p - 1 };
    let chosen = RefCell::new(Chosen::default());
    let steps = (p..=sequence.len()).map(|end| plain.run(&sequence[..end], &chosen)).collect();
    (steps, chosen.into_inner())
}

/// The store holds the keys of those that ran, in room that says how often it grew.
fn assert_stored(session: &Session, policy: &Policy, chosen: &Chosen, p: usize, decode: usize) {
    let (config, pruning) = (TINY.decoder.config(), pruning(policy));
    let (prunings, m) = (pruning.schedule.prunings(), p - 1);
    let mut rooms = 0;
    let mut waits = 0;
    for layer in 0..config.layers {
        let stage = pruning.schedule.passed(Depth::entering(layer));
        let ran = match stage {
            0 => m,
            _ => chosen.seen.keys().filter(|&&(of, position)| of == stage && position < m).count(),
        };
        assert_eq!(session.store().len(layer), ran + decode, "{policy}, p {p}, layer {layer}");
        let mut room = pruning.tokens_of_stage(stage, m);
        while room < ran {
            room = (2 * room).min(m);
        }
        rooms += room + decode;
    }
    for stage in 1..=prunings.len() {
        let reached =
            |of: usize| chosen.seen.keys().filter(|&&(at, position)| at == of && position < m).count();
        waits += if stage == 1 { m } else { reached(stage - 1) } - reached(stage);
    }
    let bytes = 2 * config.kv_heads * config.head_dim * size_of::<f32>();
    assert_eq!(session.store().allocated_bytes(), rooms * bytes, "{policy}, p {p}");
    // Those that have gone on keep their room until the last of their company has.
    let auxiliary = session.revivals().unwrap().auxiliary_bytes as usize;
    let row = config.hidden * size_of::<f32>();
    assert!(
        auxiliary >= waits * row && (waits > 0 || auxiliary == 0),
        "{policy}, p {p}: {auxiliary} {waits}"
    );
    if session.revivals().unwrap().tokens_revived == 0 {
        assert_eq!(auxiliary, waits * row, "{policy}, p {p}");
        assert_eq!(rooms, policy.capacity(p, decode).iter().sum::<usize>(), "{policy}, p {p}");
    }
}

#[test]
fn it_equals_the_plain_reference() {
    let mut revived = 0;
    for (name, lengths) in [
        ("lazyllm:2=20+5=8", vec![1, 2, 3, 21, 22, 63, 64, 65, 66]),
        ("lazyllm:0=10%", vec![2, 40]),
        ("lazyllm:1=50%+4=30%+7=10%", vec![64, 511, 512, 513, 514]),
        ("lazyllm:1=1", vec![2, 30]),
        ("lazyllm:3=600+5=515", vec![700]),
        ("lazyllm", vec![300]),
    ] {
        let policy = policy(name);
        for p in lengths {
            let steps = if p < 100 { 12 } else { 5 };
            let sequence = sequence(p + steps, p as u32);
            let (plain, chosen) = expected(&policy, &sequence, p);
            let (actual, session) = run(&TINY.decoder, &policy, &sequence, p, &mut Hooks::none());
            assert_within(1e-4, &actual, &plain, &format!("{name}, p {p}"));
            assert_eq!(session.revivals().unwrap().tokens_revived, chosen.revived, "{name}, p {p}");
            assert_stored(&session, &policy, &chosen, p, steps + 1);
            revived += chosen.revived;
        }
    }
    assert!(revived > 100, "{revived} tokens that came back are too few to say anything");
}

#[test]
fn with_everything_kept_it_is_the_full_model() {
    for p in [1, 2, 3, 64, 66, 511, 514, 700] {
        let sequence = sequence(p + 3, p as u32);
        let full = stepped(&policy("full"), &sequence, p, &mut Hooks::none());
        for name in ["lazyllm:2=100%+5=100%", "lazyllm:0=8k+7=4k", "lazyllm:3=700"] {
            let (actual, session) = run(&TINY.decoder, &policy(name), &sequence, p, &mut Hooks::none());
            assert_eq!(actual, full, "{name}, p {p}");
            let counters = session.revivals().unwrap();
            assert_eq!((counters.auxiliary_bytes, counters.tokens_revived), (0, 0), "{name}, p {p}");
        }
    }
}

/// By hand: of 40 prefill tokens ten stay in the upper layers, and the residual streams of thirty wait.
#[test]
fn what_waits_is_counted() {
    let sequence = sequence(41, 3);
    let (_, session) = run(&TINY.decoder, &policy("lazyllm:4=10"), &sequence, 41, &mut Hooks::none());
    let auxiliary_bytes = (30 * TINY.decoder.config().hidden * size_of::<f32>()) as u64;
    assert_eq!(session.revivals(), Some(&RevivalCounters { auxiliary_bytes, ..RevivalCounters::default() }));
    assert_eq!(
        (0..8).map(|layer| session.store().len(layer)).collect::<Vec<_>>(),
        [41, 41, 41, 41, 41, 11, 11, 11]
    );
    let (_, full) = run(&TINY.decoder, &policy("full"), &sequence, 41, &mut Hooks::none());
    assert_eq!(full.revivals(), None);
}

fn statistics(
    decoder: &Arc<Decoder>,
    policy: &Policy,
    sequence: &[u32],
    p: usize,
) -> [Vec<LayerStatistics>; 2] {
    let mut session = Session::new(decoder, policy.clone(), p, sequence.len() + 1 - p).unwrap();
    let mut hooks = Hooks::none();
    session.prefill(&sequence[..p], &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    // Nothing has come back yet.
    session.truncate(p - 1).unwrap();
    let (mut together, mut single) = (vec![], vec![]);
    session.teacher_forced(&sequence[p - 1..], &mut hooks, &mut together).unwrap();
    let mut session = Session::new(decoder, policy.clone(), p, sequence.len() + 1 - p).unwrap();
    session.prefill(&sequence[..p], &mut hooks, &Interrupt::new(false), &mut |_| {}).unwrap();
    for &token in &sequence[p..] {
        session.step_with_statistics(token, &mut hooks, &mut single).unwrap();
    }
    [together, single]
}

/// Teacher forcing, its statistics and the materialised pattern say the same as single steps.
#[test]
fn rows_at_once_equal_single_steps() {
    let (layers, heads) = (TINY.decoder.config().layers, TINY.decoder.config().heads);
    let (p, steps, name) = (50, 6, "lazyllm:1=20+4=9");
    let (policy, sequence) = (policy(name), sequence(p + 5, 8));
    let (single, session) = run(&TINY.decoder, &policy, &sequence, p, &mut Hooks::none());
    assert!(session.revivals().unwrap().tokens_revived > 5);
    let mut hooks = Hooks::none();
    for layer in 0..layers {
        hooks.add(HookPoint { layer, site: Site::Pattern }, |_, _| Ok(None));
    }
    assert_within(1e-4, &run(&TINY.decoder, &policy, &sequence, p, &mut hooks).0, &single, "pattern");

    let mut session = Session::new(&TINY.decoder, policy.clone(), p, steps).unwrap();
    session.prefill(&sequence[..p], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    session.truncate(p - 1).unwrap();
    assert!(session.truncate(p - 2).unwrap_err().to_string().contains("forgets no prompt token"));
    assert!(session.teacher_forced(&sequence[p - 1..], &mut hooks, &mut vec![]).is_err(), "hooks");
    let x = session.teacher_forced(&sequence[p - 1..], &mut Hooks::none(), &mut vec![]).unwrap();
    assert_within(1e-4, &logits(&x), &single, "teacher forced");

    let [together, stepped] = statistics(&TINY.decoder, &policy, &sequence, p);
    assert_eq!((together.len(), stepped.len()), (layers, layers * (steps - 1)));
    for (layer, actual) in together.iter().enumerate() {
        assert_eq!(actual.rows.mass.len(), steps * heads);
        let prompt_mass: f32 = actual.rows.mass.iter().map(|mass| mass[0] + mass[1]).sum();
        let received: f32 = actual.received.sum[..p - 1].iter().sum();
        assert!((prompt_mass - received).abs() < 1e-3, "layer {layer}: {prompt_mass} {received}");
        for (index, mass) in actual.rows.mass.iter().enumerate() {
            assert!((mass.iter().sum::<f32>() - 1.0).abs() < 1e-4);
            let Some(step) = (index / heads).checked_sub(1) else { continue };
            let by_step = stepped[step * layers + layer].rows.mass[index % heads];
            assert!(mass.iter().zip(by_step).all(|(a, b)| (a - b).abs() < 1e-4), "{mass:?} {by_step:?}");
        }
    }
}

/// Keys of tokens that came back lie between those of decode tokens, and stay when these are forgotten.
#[test]
fn forgotten_decode_tokens_leave_what_came_back() {
    let (p, policy) = (50, policy("lazyllm:1=20+4=9"));
    let sequence = sequence(p + 6, 8);
    let (actual, mut session) = run(&TINY.decoder, &policy, &sequence, p, &mut Hooks::none());
    let (_, chosen) = expected(&policy, &sequence, p);
    session.truncate(p + 3).unwrap();
    for layer in 0..TINY.decoder.config().layers {
        let stage = pruning(&policy).schedule.passed(Depth::entering(layer));
        let ran = chosen.seen.keys().filter(|&&(of, position)| of == stage && position < p - 1).count();
        assert_eq!(session.store().len(layer), if stage == 0 { p - 1 } else { ran } + 4, "layer {layer}");
    }
    // The step again reads the same: what came back in it is there already, as it was.
    let again = session.step(sequence[p + 3], &mut Hooks::none()).unwrap().to_vec().unwrap();
    assert_within(1e-4, &[again], &actual[4..5], "again");
}

/// Tokens that come back, on a GPU.
#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_it_equals_the_plain_reference() {
    let decoder = on_gpu();
    for (name, p) in [("lazyllm:1=20+4=9", 50), ("lazyllm:2=100%", 20), ("lazyllm:5=3", 1)] {
        let policy = policy(name);
        let sequence = sequence(p + 5, p as u32);
        let (plain, chosen) = expected(&policy, &sequence, p);
        let (actual, session) = run(&decoder, &policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-3, &actual, &plain, &format!("{name}, p {p}"));
        assert_eq!(session.revivals().unwrap().tokens_revived, chosen.revived, "{name}, p {p}");
        assert_stored(&session, &policy, &chosen, p, 6);
        let [actual, expected] =
            [&decoder, &TINY.decoder].map(|decoder| statistics(decoder, &policy, &sequence, p));
        for (actual, expected) in actual.iter().flatten().zip(expected.iter().flatten()) {
            assert_eq!(actual.rows.mass.len(), expected.rows.mass.len());
            let masses = actual.rows.mass.iter().zip(&expected.rows.mass).flat_map(|(a, b)| a.iter().zip(b));
            let received = actual.received.sum.iter().zip(&expected.received.sum);
            assert!(masses.chain(received).all(|(a, b)| (a - b).abs() < 1e-4), "{name}, p {p}");
        }
    }
}
