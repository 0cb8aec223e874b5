//! `sliminfer` against a plain, slow reference: for each step a run over the whole sequence, in which a block that was
//! pruned or is not active is hidden from everybody, with blocks scored by hand in f64.

use super::reference::{Reference, TINY, whole_run_with};
use super::{assert_within, sequence, stepped};
use candle_core::Tensor as HostTensor;
use layerscope_engine::{
    BlockPruning, HookPoint, Hooks, Interrupt, Policy, Pooling, Session, Site, Tensor, TransferCounters,
};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

const BLOCK: usize = 64;

/// What happened in the reference: the blocks that each pruning let go on, and for each pruning and step those that the step
/// read in the layers that follow.
#[derive(Default)]
struct Chosen {
    onward: Vec<Vec<usize>>,
    active: Vec<Vec<BTreeSet<usize>>>,
    swaps: usize,
}

/// Rotated queries and keys at the pruning layers, `[rows, heads, head_dim]`.
type Seen = Rc<RefCell<Vec<[Option<HostTensor>; 2]>>>;

struct Plain {
    pruning: BlockPruning,
    /// Prefill tokens.
    m: usize,
    kept: Vec<usize>,
    read: Vec<usize>,
}

impl Plain {
    /// Scores of blocks by the mean query of rows `last−3 … last`.
    fn scores(
        &self,
        [queries, keys]: [&HostTensor; 2],
        layer: usize,
        last: usize,
        blocks: &[usize],
    ) -> Vec<f64> {
        let shape = TINY.decoder.attention_shape(layer);
        let (queries, keys) = (queries.to_vec3::<f32>().unwrap(), keys.to_vec3::<f32>().unwrap());
        let first = last.saturating_sub(3);
        let mean_query = |head: usize, i: usize| {
            (first..=last).map(|row| f64::from(queries[row][head][i])).sum::<f64>()
                / (last + 1 - first) as f64
        };
        let product = |pooled: &dyn Fn(usize, usize) -> f64| {
            let heads = 0..shape.query_heads;
            let group = shape.query_heads / shape.kv_heads;
            heads
                .map(|head| {
                    let dims = 0..shape.head_dim;
                    dims.map(|i| mean_query(head, i) * pooled(head / group, i)).sum::<f64>()
                })
                .sum::<f64>()
                / shape.query_heads as f64
        };
        let mean = |tokens: std::ops::Range<usize>| {
            let len = tokens.len() as f64;
            let keys = &keys;
            product(&move |head, i| {
                tokens.clone().map(|token| f64::from(keys[token][head][i])).sum::<f64>() / len
            })
        };
        let score = |&block: &usize| {
            let tokens = block * BLOCK..(block + 1) * BLOCK;
            match self.pruning.pooling {
                Pooling::Mean => mean(tokens),
                Pooling::Units => tokens.step_by(8).map(|unit| mean(unit..unit + 8)).fold(f64::MIN, f64::max),
                Pooling::Max => product(&|head, i| {
                    tokens.clone().map(|token| f64::from(keys[token][head][i])).fold(f64::MIN, f64::max)
                }),
            }
        };
        blocks.iter().map(score).collect()
    }

    fn best(&self, scores: &[f64], blocks: &[usize], count: usize) -> Vec<usize> {
        if count >= blocks.len() {
            return blocks.to_vec();
        }
        let mut order: Vec<usize> = (1..blocks.len()).collect();
        order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
        let mut best: Vec<usize> = order.into_iter().take(count - 1).map(|index| blocks[index]).collect();
        best.push(blocks[0]);
        best.sort_unstable();
        best
    }

    /// The stage that a layer is in.
    fn stage(&self, layer: usize) -> usize {
        self.pruning.schedule.prunings().iter().filter(|pruning| pruning.layer < layer).count()
    }

    /// The run over the first tokens of the sequence, with what earlier steps have chosen; notes what this one chooses.
    fn run(&self, sequence: &[u32], chosen: &RefCell<Chosen>) -> Vec<Vec<f32>> {
        let prunings = self.pruning.schedule.prunings();
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
        let all: Vec<usize> = (0..self.m / BLOCK).collect();
        let step = sequence.len() - 1 - self.m;
        let scores_of = |pruning: usize, last: usize, blocks: &[usize]| {
            let seen = seen.borrow();
            let [Some(q), Some(k)] = &seen[pruning] else { panic!("seen") };
            self.scores([q, k], prunings[pruning].layer, last, blocks)
        };
        // Attention of a pruning layer comes after its queries and keys were seen, and before the layers that it tells what
        // to see.
        let onward = |pruning: usize| -> Vec<usize> {
            if chosen.borrow().onward.len() == pruning {
                let arrived =
                    if pruning == 0 { all.clone() } else { chosen.borrow().onward[pruning - 1].clone() };
                let scores = scores_of(pruning, self.m, &arrived);
                let best = self.best(&scores, &arrived, self.kept[pruning]);
                chosen.borrow_mut().onward.push(best);
            }
            chosen.borrow().onward[pruning].clone()
        };
        // What a step reads after a pruning: chosen by its own query, where what was active is not good enough. Step 0 is part
        // of the prefill, and reads everything that went on.
        let active = |pruning: usize, step: usize| -> BTreeSet<usize> {
            let onward = onward(pruning);
            let known = chosen.borrow().active.get(pruning).and_then(|steps| steps.get(step).cloned());
            if let Some(known) = known {
                return known;
            }
            let wanted = |last: usize| -> BTreeSet<usize> {
                let scores = scores_of(pruning, last, &onward);
                self.best(&scores, &onward, self.read[pruning]).into_iter().collect()
            };
            let mut chosen = chosen.borrow_mut();
            chosen.active.resize(prunings.len(), vec![]);
            let before = chosen.active[pruning].get(step.saturating_sub(1)).cloned();
            let now = match before {
                None => onward.iter().copied().collect(),
                Some(_) if self.read[pruning] >= onward.len() => onward.iter().copied().collect(),
                Some(before) => {
                    // What the prefill's scores left active is what step 1 begins with.
                    let before = if step == 1 { wanted(self.m) } else { before };
                    let wanted = wanted(self.m + step);
                    let overlap = wanted.intersection(&before).count() as f64 / wanted.len() as f64;
                    let swaps = overlap < self.pruning.swap_below;
                    chosen.swaps += usize::from(swaps);
                    if swaps { wanted } else { before }
                }
            };
            assert_eq!(chosen.active[pruning].len(), step);
            chosen.active[pruning].push(now.clone());
            now
        };
        let hidden = |layer: usize, query: usize, key: usize| {
            if key / BLOCK >= self.m / BLOCK {
                return false;
            }
            let stage = self.stage(layer);
            let block = key / BLOCK;
            if stage > 0 && onward(stage - 1).binary_search(&block).is_err() {
                return true;
            }
            // Rows of earlier steps have run; what they read is known.
            let row_step = query.saturating_sub(self.m);
            stage > 0 && row_step > 0 && !active(stage - 1, row_step).contains(&block)
        };
        let logits = whole_run_with(
            sequence,
            self.m + 1,
            Reference { hidden: &hidden, projected: None, hidden_by_head: None },
            hooks,
        );
        (0..prunings.len()).for_each(|pruning| drop(active(pruning, step)));
        logits
    }
}

/// Logits of all steps, and how often blocks were swapped.
fn expected(policy: &Policy, sequence: &[u32], p: usize) -> (Vec<Vec<f32>>, usize) {
    let pruning = BlockPruning::named(&policy.to_string(), TINY.decoder.config().layers).unwrap();
    let kept = pruning.kept_blocks(p - 1);
    let read = pruning.read_blocks(p - 1);
    let plain = Plain { pruning, m: p - 1, kept, read };
    let chosen = RefCell::new(Chosen::default());
    let steps = (p..=sequence.len()).map(|end| plain.run(&sequence[..end], &chosen).pop().unwrap());
    let steps = steps.collect();
    (steps, chosen.into_inner().swaps)
}

fn transfers(policy: &Policy, sequence: &[u32], p: usize) -> Option<TransferCounters> {
    let mut session = Session::new(&TINY.decoder, policy.clone(), p, sequence.len() + 1 - p).unwrap();
    session.prefill(&sequence[..p], &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    for &token in &sequence[p..] {
        session.step(token, &mut Hooks::none()).unwrap();
    }
    session.transfers().cloned()
}

fn policy(name: &str) -> Policy {
    Policy::parse(name, TINY.decoder.config().layers).unwrap()
}

#[test]
fn it_equals_the_plain_reference() {
    let mut swaps = 0;
    for (name, p) in [
        ("sliminfer:2=200+5=130", 330),
        ("sliminfer:2=100+5=60", 64),
        ("sliminfer:2=100+5=60", 65),
        ("sliminfer:2=100+5=60", 129),
        ("sliminfer:0=75%+read=0.5+swap=1", 330),
        ("sliminfer:1=400+4=300+6=200+read=0.4+swap=1", 515),
        ("sliminfer:1=300+4=256+6=192+max+read=0.5+swap=1", 400),
        ("sliminfer:3=260+mean+read=0.34+swap=1", 400),
        ("sliminfer:3=100", 400),
        ("sliminfer:3=400+6=300+read=0.5+sync+swap=0.9", 515),
        ("sliminfer:2=90%+6=90%+read=0.3", 700),
        // The first pruning drops nothing, and decode reads a share nevertheless.
        ("sliminfer:1=500+4=200+read=0.5+swap=1", 400),
        ("sliminfer", 300),
    ] {
        let policy = policy(name);
        let sequence = sequence(p + 6, p as u32);
        let (plain, expected_swaps) = expected(&policy, &sequence, p);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-4, &actual, &plain, &format!("{name}, p {p}"));
        let counted = transfers(&policy, &sequence, p).map_or(0, |counters| counters.swaps);
        assert_eq!(counted, expected_swaps as u64, "{name}, p {p}");
        swaps += expected_swaps;
    }
    assert!(swaps > 5, "{swaps} swaps are too few to say anything");
}

#[test]
fn with_everything_kept_it_is_the_full_model() {
    for p in [1, 2, 3, 64, 66, 511, 514, 700] {
        let sequence = sequence(p + 3, p as u32);
        let full = stepped(&policy("full"), &sequence, p, &mut Hooks::none());
        for name in ["sliminfer:2=100%+5=100%", "sliminfer:0=8k+7=4k+max", "sliminfer:3=700+swap=1"] {
            assert_eq!(stepped(&policy(name), &sequence, p, &mut Hooks::none()), full, "{name}, p {p}");
            assert_eq!(transfers(&policy(name), &sequence, p).map_or(0, |counters| counters.bytes_out), 0);
        }
    }
}

/// How fast a transfer is makes no difference, nor does when it is made.
#[test]
fn asynchronous_transfers_change_no_number() {
    let (p, steps) = (600, 8);
    let sequence = sequence(p + steps, 5);
    let [asynchronous, synchronous] = ["", "+sync"].map(|sync| {
        let policy = policy(&format!("sliminfer:1=500+4=400+read=0.5+swap=1{sync}"));
        (stepped(&policy, &sequence, p, &mut Hooks::none()), transfers(&policy, &sequence, p).unwrap())
    });
    assert_eq!(asynchronous.0, synchronous.0);
    let counted = |counters: &TransferCounters| {
        (counters.bytes_out, counters.swaps, counters.blocks_wanted, counters.blocks_active)
    };
    assert_eq!(counted(&asynchronous.1), counted(&synchronous.1));
    assert!(asynchronous.1.swaps > 0 && asynchronous.1.bytes_in > 0);
    // Each once: 500 tokens, 88 of them not chosen, are seven blocks, in the layers 2 … 4, and 400 are five, in 5 … 7.
    let config = TINY.decoder.config();
    let token = 2 * config.kv_heads * config.head_dim * size_of::<f32>();
    assert_eq!(asynchronous.1.bytes_out as usize, (7 * 3 + 5 * 3) * BLOCK * token);
    let hit_rate = asynchronous.1.hit_rate().unwrap();
    assert!(hit_rate > 0.3 && hit_rate < 1.0, "{hit_rate}");
}

/// Transfers by way of host memory, and decode steps without a graph.
#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu_it_equals_the_plain_reference() {
    let decoder = super::on_gpu();
    for (name, p) in
        [("sliminfer:1=300+4=250+read=0.5+swap=1", 330), ("sliminfer:3=100", 200), ("sliminfer:2=100%", 100)]
    {
        let policy = policy(name);
        let sequence = sequence(p + 4, p as u32);
        let (plain, _) = expected(&policy, &sequence, p);
        let actual = super::stepped_on(&decoder, &policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-3, &actual, &plain, &format!("{name}, p {p}"));
    }
}
