//! `minference` and `flexprefill` against a plain reference: the whole sequence at once, with keys that a head's pattern leaves
//! out hidden by a mask, and patterns by hand in f64.

use super::reference::{Reference, TINY, whole_run_with};
use super::{assert_within, pattern_hooks, sequence, stepped};
use candle_core::Tensor as HostTensor;
use layerscope_engine::{
    HeadPattern, HeadPatterns, HookPoint, Hooks, Interrupt, Policy, Session, Site, Tensor,
    search_head_patterns,
};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const BLOCK: usize = 64;
/// Rows that the CPU takes at once.
const CHUNK: usize = 512;

/// Rotated queries and keys of a layer, `[rows, heads, head_dim]`.
type Seen = Rc<RefCell<Vec<[Option<HostTensor>; 2]>>>;
/// By head and block of rows, the keys that are read.
type Sets = Vec<Vec<BTreeSet<usize>>>;

/// The chunk of prompt rows that a row is in.
fn chunk_of(row: usize, p: usize) -> (usize, usize) {
    let first = row / CHUNK * CHUNK;
    (first, p.min(first + CHUNK))
}

/// What the rows of a chunk read in a layer.
type Pattern = dyn Fn(&Scores<'_>, (usize, usize)) -> Sets;

/// Queries and keys of a layer.
struct Scores<'a> {
    layer: usize,
    queries: &'a [Vec<Vec<f32>>],
    keys: &'a [Vec<Vec<f32>>],
}

impl Scores<'_> {
    fn heads(&self) -> usize {
        self.queries[0].len()
    }

    fn product(&self, query: &[f64], key: &[f64]) -> f64 {
        let shape = TINY.decoder.attention_shape(self.layer);
        query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * f64::from(shape.scale)
    }

    fn query(&self, head: usize, rows: std::ops::Range<usize>) -> Vec<f64> {
        mean(rows.map(|row| &self.queries[row][head]))
    }

    fn key(&self, head: usize, rows: std::ops::Range<usize>) -> Vec<f64> {
        let kv_heads = self.keys[0].len();
        mean(rows.map(|row| &self.keys[row][head / (self.heads() / kv_heads)]))
    }

    /// Attention of a row over keys 0 … row.
    fn attention(&self, head: usize, row: usize) -> Vec<f64> {
        let query = self.query(head, row..row + 1);
        softmax((0..=row).map(|key| self.product(&query, &self.key(head, key..key + 1))).collect())
    }
}

fn mean<'a>(rows: impl ExactSizeIterator<Item = &'a Vec<f32>>) -> Vec<f64> {
    let count = rows.len() as f64;
    let mut mean: Vec<f64> = vec![];
    for row in rows {
        mean.resize(row.len(), 0.0);
        mean.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) / count);
    }
    mean
}

fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn descending(weights: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]));
    order
}

/// Attention of a chunk's last 64 rows, added up by key and by distance.
fn lines(scores: &Scores<'_>, head: usize, (first, end): (usize, usize)) -> [Vec<f64>; 2] {
    let mut sums = [vec![0.0; end], vec![0.0; end]];
    for row in first.max(end.saturating_sub(BLOCK))..end {
        for (key, weight) in scores.attention(head, row).into_iter().enumerate() {
            sums[0][key] += weight;
            sums[1][row - key] += weight;
        }
    }
    sums
}

/// The keys of lines, for each block of rows: those of vertical lines, and the blocks that slash lines cross.
fn keys_of_lines((first, end): (usize, usize), vertical: &[usize], slash: &[usize]) -> Vec<BTreeSet<usize>> {
    let of_rows = |first_row: usize| {
        let rows = first_row..end.min(first_row + BLOCK);
        let mut keys: BTreeSet<usize> = vertical.iter().copied().collect();
        let crossed = rows.flat_map(|row| {
            let keys = slash.iter().filter_map(move |distance| row.checked_sub(*distance));
            keys.chain([row])
        });
        let blocks: BTreeSet<usize> = crossed.map(|key| key / BLOCK).collect();
        blocks.into_iter().for_each(|block| keys.extend(block * BLOCK..(block + 1) * BLOCK));
        keys
    };
    (first..end).step_by(BLOCK).map(of_rows).collect()
}

fn minference(vertical: usize, slash: usize) -> Box<Pattern> {
    Box::new(move |scores, chunk| {
        let of_head = |head| {
            let [mut keys, mut distances] = lines(scores, head, chunk);
            keys.iter_mut().take(30).for_each(|weight| *weight = f64::MAX);
            distances.iter_mut().take(100).for_each(|weight| *weight = f64::MAX);
            let [keys, distances] = [descending(&keys), descending(&distances)];
            keys_of_lines(chunk, &keys[..vertical], &distances[..slash])
        };
        (0..scores.heads()).map(of_head).collect()
    })
}

/// The first keys, and the blocks of the last keys of each row.
fn a_shape(first: usize, last: usize) -> impl Fn(&Scores<'_>, usize, (usize, usize)) -> Vec<BTreeSet<usize>> {
    move |_, _, (start, end)| {
        let of_rows = |first_row: usize| {
            let rows = first_row..end.min(first_row + BLOCK);
            let local: BTreeSet<usize> =
                rows.flat_map(|row| (row + 1).saturating_sub(last)..=row).map(|key| key / BLOCK).collect();
            let local = local.into_iter().flat_map(|block| block * BLOCK..(block + 1) * BLOCK);
            (0..first).chain(local).collect()
        };
        (start..end).step_by(BLOCK).map(of_rows).collect()
    }
}

/// The first block, the rows' own and those with the largest products of means, so many in all.
fn blocks(count: usize) -> impl Fn(&Scores<'_>, usize, (usize, usize)) -> Vec<BTreeSet<usize>> {
    move |scores, head, (start, end)| {
        let of_rows = |first_row: usize| {
            let last = end.min(first_row + BLOCK) - 1;
            let query = scores.query(head, first_row..last + 1);
            let products: Vec<f64> = (0..=last / BLOCK)
                .map(|block| {
                    scores.product(&query, &scores.key(head, block * BLOCK..end.min((block + 1) * BLOCK)))
                })
                .collect();
            let mut chosen: BTreeSet<usize> = [0, first_row / BLOCK, last / BLOCK].into();
            for block in descending(&products) {
                if chosen.len() < count {
                    chosen.insert(block);
                }
            }
            chosen.into_iter().flat_map(|block| block * BLOCK..(block + 1) * BLOCK).collect()
        };
        (start..end).step_by(BLOCK).map(of_rows).collect()
    }
}

/// The largest that make up a share of all.
fn covering(weights: &[f64], share: f64) -> Vec<usize> {
    let (total, mut covered) = (weights.iter().sum::<f64>(), 0.0);
    let mut chosen = vec![];
    for index in descending(weights) {
        if covered >= share * total {
            break;
        }
        covered += weights[index];
        chosen.push(index);
    }
    chosen
}

fn flexprefill(gamma: f64, tau: f64, kinds: Rc<RefCell<[usize; 2]>>) -> Box<Pattern> {
    Box::new(move |scores, chunk| {
        let (first, end) = chunk;
        let blocks = end.div_ceil(BLOCK);
        let key = |head, block: usize| scores.key(head, block * BLOCK..end.min((block + 1) * BLOCK));
        let of_head = |head| {
            let [keys, distances] = lines(scores, head, chunk);
            let last = first.max(end.saturating_sub(BLOCK))..end;
            let rows = last.len() as f64;
            let query = scores.query(head, last);
            let by_means =
                softmax((0..blocks).map(|block| scores.product(&query, &key(head, block))).collect());
            let actual: Vec<f64> = keys.chunks(BLOCK).map(|block| block.iter().sum::<f64>() / rows).collect();
            let divergence: f64 = by_means
                .iter()
                .zip(&actual)
                .map(|(&p, &q)| {
                    let half = |a: f64| if a > 0.0 { 0.5 * a * (a / (0.5 * (p + q))).ln() } else { 0.0 };
                    half(p) + half(q)
                })
                .sum();
            if divergence.sqrt() >= tau {
                kinds.borrow_mut()[1] += 1;
                return keys_of_lines(chunk, &covering(&keys, gamma), &covering(&distances, gamma));
            }
            kinds.borrow_mut()[0] += 1;
            let mut pairs = vec![];
            for row in (first..end).step_by(BLOCK) {
                let last_row = end.min(row + BLOCK) - 1;
                let query = scores.query(head, row..last_row + 1);
                let seen = 0..=last_row / BLOCK;
                let weights = softmax(seen.map(|block| scores.product(&query, &key(head, block))).collect());
                pairs.extend(weights.into_iter().enumerate().map(|(block, weight)| (row, block, weight)));
            }
            let weights: Vec<f64> = pairs.iter().map(|(.., weight)| *weight).collect();
            let mut sets: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
            for row in (first..end).step_by(BLOCK) {
                sets.entry(row).or_default().extend([0, row / BLOCK, (end.min(row + BLOCK) - 1) / BLOCK]);
            }
            for index in covering(&weights, gamma) {
                sets.entry(pairs[index].0).or_default().insert(pairs[index].1);
            }
            let keys = |blocks: BTreeSet<usize>| {
                blocks.into_iter().flat_map(|block| block * BLOCK..(block + 1) * BLOCK).collect()
            };
            sets.into_values().map(keys).collect()
        };
        (0..scores.heads()).map(of_head).collect()
    })
}

/// Hooks that keep the queries and keys of all layers.
fn seeing(seen: &Seen) -> Hooks<'static> {
    let mut hooks = Hooks::none();
    for layer in 0..seen.borrow().len() {
        for (which, site) in [Site::RotatedQuery, Site::RotatedKey].into_iter().enumerate() {
            let seen = Rc::clone(seen);
            hooks.add(HookPoint { layer, site }, move |_, x| {
                seen.borrow_mut()[layer][which] = Some(Tensor::from_array(x.to_owned())?.to_host()?);
                Ok(None)
            });
        }
    }
    hooks
}

/// Logits of all steps, with what the prompt's rows do not read hidden from them.
fn expected(pattern: &Pattern, sequence: &[u32], p: usize) -> Vec<Vec<f32>> {
    let layers = TINY.decoder.config().layers;
    let seen: Seen = Rc::new(RefCell::new(vec![[None, None]; layers]));
    let known: RefCell<BTreeMap<(usize, usize), Sets>> = RefCell::default();
    let hidden = |layer: usize, head: usize, query: usize, key: usize| {
        if query >= p {
            return false;
        }
        let chunk = chunk_of(query, p);
        let mut known = known.borrow_mut();
        let sets = known.entry((layer, chunk.0)).or_insert_with(|| {
            let seen = seen.borrow();
            let [Some(queries), Some(keys)] = &seen[layer] else { panic!("seen") };
            let (queries, keys) = (queries.to_vec3().unwrap(), keys.to_vec3().unwrap());
            pattern(&Scores { layer, queries: &queries, keys: &keys }, chunk)
        });
        !sets[head][(query - chunk.0) / BLOCK].contains(&key)
    };
    let nothing = |_: usize, _: usize, _: usize| false;
    let reference = Reference { hidden: &nothing, projected: None, hidden_by_head: Some(&hidden) };
    whole_run_with(sequence, p, reference, seeing(&seen))
}

fn policy(name: &str) -> Policy {
    Policy::parse(name, TINY.decoder.config().layers).unwrap()
}

/// Share of all pairs that the prefill multiplied.
fn density(policy: &Policy, prompt: &[u32]) -> f64 {
    let mut session = Session::new(&TINY.decoder, policy.clone(), prompt.len(), 1).unwrap();
    session.prefill(prompt, &mut Hooks::none(), &Interrupt::new(false), &mut |_| {}).unwrap();
    session.prefill_density().unwrap()
}

#[test]
fn minference_equals_a_masked_run() {
    for (vertical, slash, p) in [(40, 110, 400), (31, 100, 513), (70, 130, 640), (40, 110, 129)] {
        let policy = policy(&format!("minference:vertical={vertical}+slash={slash}"));
        let sequence = sequence(p + 3, p as u32);
        let plain = expected(&*minference(vertical, slash), &sequence, p);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-4, &actual, &plain, &format!("{policy}, p {p}"));
        let with_patterns = stepped(&policy, &sequence, p, &mut pattern_hooks(TINY.decoder.config().layers));
        assert_within(1e-4, &with_patterns, &plain, &format!("{policy}, p {p}, patterns as tensors"));
        let density = density(&policy, &sequence[..p]);
        assert!(p < 200 || (density > 0.2 && density < 0.95), "{density}");
    }
}

/// Heads in turn: blocks, an A-shape, lines, and lines that the file leaves out.
#[test]
fn patterns_of_a_file_equal_a_masked_run() {
    let config = TINY.decoder.config();
    let of_layer = |layer: usize| {
        let kinds = [r#"["block_sparse", 3, 1, 0.5]"#, r#"["stream_llm", 70, 90, 0.25]"#];
        let heads = (0..config.heads).filter_map(|head| Some((head, kinds.get((layer + head) % 3)?)));
        let heads: Vec<String> = heads.map(|(head, kind)| format!(r#""{head}": {kind}"#)).collect();
        format!("{{{}}}", heads.join(","))
    };
    let text = format!("[{}]", (0..config.layers).map(of_layer).collect::<Vec<_>>().join(","));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heads.json");
    std::fs::write(&path, &text).unwrap();
    let patterns = HeadPatterns::read(&path).unwrap();
    std::fs::write(&path, patterns.to_json()).unwrap();
    assert_eq!(HeadPatterns::read(&path).unwrap(), patterns);

    let name = format!("minference:vertical=40+slash=110+heads={}", path.display());
    let policy = Policy::parse_for(&name, config).unwrap();
    assert_eq!(policy.to_string(), name);
    for p in [300, 513, 640] {
        let pattern = |scores: &Scores<'_>, chunk| {
            let lines = minference(40, 110)(scores, chunk);
            let of_head = |head| match (scores.layer + head) % 3 {
                0 => blocks(3)(scores, head, chunk),
                1 => a_shape(70, 90)(scores, head, chunk),
                _ => lines[head].clone(),
            };
            (0..scores.heads()).map(of_head).collect()
        };
        let sequence = sequence(p + 3, p as u32);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-4, &actual, &expected(&pattern, &sequence, p), &format!("p {p}"));
        let density = density(&policy, &sequence[..p]);
        assert!(density < 0.95, "{density}");
    }
}

#[test]
fn files_of_patterns_are_checked() {
    let config = TINY.decoder.config();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heads.json");
    let refused = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let name = format!("minference:heads={}", path.display());
        Policy::parse_for(&name, config).unwrap_err().to_string()
    };
    assert!(refused("[{}]").contains("patterns for 1 layers of 0 heads"));
    let head = format!(r#"{{"{}": ["stream_llm", 1, 2, 0.5]}}"#, config.heads);
    let heads = format!("layers of {} heads", config.heads + 1);
    assert!(refused(&format!("[{}]", vec![head; config.layers].join(","))).contains(&heads));
    assert!(refused(r#"[{"0": ["spiral", 1, 2, 0.5]}]"#).contains("no pattern is called \"spiral\""));
    assert!(refused("{").contains("heads.json"));
    std::fs::remove_file(&path).unwrap();
    let name = format!("minference:heads={}", path.display());
    assert!(Policy::parse_for(&name, config).unwrap_err().to_string().contains("cannot read"));
}

/// Each head's share of attention is that of the masked reference's sets, and the choice keeps at least what an A-shape of the same
/// cost keeps.
#[test]
fn the_search_finds_what_keeps_most() {
    let (p, tokens) = (640, 192);
    let sequence = sequence(p, 5);
    let mut told = vec![];
    let interrupt = Interrupt::new(false);
    let prompts = [sequence.clone()];
    let found =
        search_head_patterns(&TINY.decoder, &prompts, tokens, &interrupt, &mut |done| told.push(done))
            .unwrap();
    assert_eq!(told.last(), Some(&p));

    let layers = TINY.decoder.config().layers;
    let seen: Seen = Rc::new(RefCell::new(vec![[None, None]; layers]));
    let nothing = |_: usize, _: usize, _: usize| false;
    let reference = Reference { hidden: &nothing, projected: None, hidden_by_head: None };
    whole_run_with(&sequence, p, reference, seeing(&seen));
    let seen = seen.borrow();
    let mut kinds = vec![];
    for (layer, found) in found.layers().iter().enumerate() {
        let [Some(queries), Some(keys)] = &seen[layer] else { panic!("seen") };
        let (queries, keys) = (queries.to_vec3().unwrap(), keys.to_vec3().unwrap());
        let scores = Scores { layer, queries: &queries, keys: &keys };
        assert_eq!(found.len(), scores.heads());
        for (&head, found) in found {
            let [kept, pairs] = measured(&scores, head, found.pattern, tokens, p);
            assert!((found.score - kept).abs() < 1e-5, "layer {layer}, head {head}: {found:?}, {kept}");
            let a_shape = HeadPattern::AShape { first: tokens / 8, last: tokens - tokens / 8 };
            let others = [a_shape, HeadPattern::Blocks(tokens / BLOCK)];
            let [a_shape, blocks] = others.map(|other| measured(&scores, head, other, tokens, p));
            assert!(
                pairs <= a_shape[1] && kept >= a_shape[0] - 1e-5,
                "layer {layer}, head {head}: {found:?}"
            );
            assert!(
                blocks[1] > a_shape[1] || kept >= blocks[0] - 1e-5,
                "layer {layer}, head {head}: {found:?}"
            );
            if !kinds.contains(&std::mem::discriminant(&found.pattern)) {
                kinds.push(std::mem::discriminant(&found.pattern));
            }
        }
    }
    assert!(kinds.len() > 1, "all heads alike");

    let short =
        search_head_patterns(&TINY.decoder, &[sequence[..200].to_vec()], tokens, &interrupt, &mut |_| {});
    assert!(short.unwrap_err().to_string().contains("too short"));
}

/// The share of attention that a pattern keeps, over rows from position `tokens` on of chunks up to `end`, and the pairs that it
/// multiplies.
fn measured(scores: &Scores<'_>, head: usize, pattern: HeadPattern, tokens: usize, end: usize) -> [f64; 2] {
    let (mut kept, mut rows, mut pairs) = (0.0, 0, 0);
    for start in (0..end).step_by(CHUNK) {
        let chunk = (start, end.min(start + CHUNK));
        let sets = match pattern {
            HeadPattern::AShape { first, last } => a_shape(first, last)(scores, head, chunk),
            HeadPattern::Blocks(count) => blocks(count)(scores, head, chunk),
            HeadPattern::VerticalSlash { vertical, slash } => {
                minference(vertical.max(30), slash.max(100))(scores, chunk).swap_remove(head)
            }
        };
        for row in chunk.0.max(tokens)..chunk.1 {
            let set = &sets[(row - chunk.0) / BLOCK];
            let attention = scores.attention(head, row);
            let read = attention.iter().enumerate().filter(|(key, _)| set.contains(key));
            kept += read.clone().map(|(_, weight)| weight).sum::<f64>();
            (rows, pairs) = (rows + 1, pairs + read.count());
        }
    }
    [kept / rows as f64, pairs as f64]
}

#[test]
fn flexprefill_equals_a_masked_run() {
    let kinds = Rc::new(RefCell::new([0; 2]));
    // Shares at whose border no two weights are equal up to rounding.
    for (gamma, tau, p) in [(0.9, 0.1, 400), (0.7, 0.3, 577), (0.3, 0.0, 300), (0.8, 1.0, 450)] {
        let policy = policy(&format!("flexprefill:gamma={gamma}+tau={tau}"));
        let sequence = sequence(p + 3, p as u32);
        let plain = expected(&*flexprefill(gamma, tau, Rc::clone(&kinds)), &sequence, p);
        let actual = stepped(&policy, &sequence, p, &mut Hooks::none());
        assert_within(1e-4, &actual, &plain, &format!("{policy}, p {p}"));
        let density = density(&policy, &sequence[..p]);
        assert!(density > 0.1 && density < 1.0, "{density}");
    }
    let [by_means, by_lines] = *kinds.borrow();
    assert!(by_means > 10 && by_lines > 10, "{by_means} heads by means, {by_lines} by lines");
}

#[test]
fn with_everything_read_it_is_the_full_model() {
    for p in [1, 2, 64, 129, 514, 700] {
        let sequence = sequence(p + 2, p as u32);
        let full = stepped(&policy("full"), &sequence, p, &mut Hooks::none());
        for name in ["minference", "minference:vertical=1+slash=2k", "flexprefill:gamma=1"] {
            assert_eq!(stepped(&policy(name), &sequence, p, &mut Hooks::none()), full, "{name}, p {p}");
            assert_eq!(density(&policy(name), &sequence[..p]), 1.0);
        }
    }
}

/// On kernels of a GPU, in bf16, where a head's size allows it; else a sentence.
#[cfg(target_os = "linux")]
#[test]
fn on_a_gpu() {
    use layerscope_engine::{Device, Shape, ShapeWeights, WeightsPrecision};
    let refused = Session::new(&super::on_gpu(), policy("minference"), 100, 1).err().unwrap();
    assert!(refused.to_string().contains("use --device cpu"), "{refused}");

    let device = Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    let shape = Shape::named("smollm2-135m").unwrap().cut_to(2).unwrap();
    let load = |device: &Device| {
        let weights = ShapeWeights::parse("bf16").unwrap();
        let decoder =
            shape.decoder(weights, WeightsPrecision::Native, device, 1, &mut |_, _| Ok(())).unwrap();
        std::sync::Arc::new(decoder)
    };
    let decoder = load(&device);
    let sequence = sequence(300, 3);
    let logits = |name: &str| {
        let policy = Policy::parse(name, 2).unwrap();
        super::steps_of(&decoder, &policy, &sequence, 299)
    };
    let full = logits("full");
    assert_eq!(logits("minference"), full);
    let sparse = logits("minference:vertical=30+slash=100");
    assert_ne!(sparse, full);
    let on_cpu = {
        let policy = Policy::parse("minference:vertical=30+slash=100", 2).unwrap();
        super::steps_of(&load(&Device::Cpu), &policy, &sequence, 299)
    };
    let size = on_cpu[0].iter().map(|x| x.abs()).fold(0.0, f32::max);
    assert_within(0.05 * size, &sparse, &on_cpu, "GPU and CPU");
}
