//! Which units of a model may forget the prompt: greedy backward selection over layers or KV heads, with the exact joint KL.
//!
//! A *unit* is a layer, or a KV head of a layer. A unit that is dropped shows decode rows only the ends of the prompt ([`Ends`]).
//! Dropping one unit after the other, always the one that adds least KL per key that it frees, gives a set for every budget.
//!
//! The two identities of the frontier make a step cheap: decode rows below the lowest layer that changes are those of the set so
//! far, whose residual streams at each layer's entrance are kept. A candidate at layer ℓ runs the N decode rows of each prompt
//! through the layers from ℓ on, all candidates together.
//!
//! Not every unit is tried at each step: what a unit added when it was last tried orders them, and only units that could still be
//! the best are tried again. That is exact where a unit never costs less once others are dropped. It mostly holds; how often it
//! did not is counted ([`Found::cheaper_than_before`]).
//!
//! Two plainer orders ([`SearchOrder`]), by what each unit costs alone and by where it looks, are there to be compared with.

use crate::copies::{Recorded, RowCopy};
use layerscope_diagnostics::probe::ProbedRun;
use layerscope_diagnostics::record::Divergence;
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_diagnostics::run::SearchOrder;
use layerscope_engine::{
    Decoder, Ends, Error, HeadSet, Interrupt, KeyRange, Result, Tensor, check_interrupt,
};
use std::collections::BTreeMap;

/// A layer, or one KV head of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Unit {
    /// The layer.
    pub layer: usize,
    /// The KV head; all of the layer's where there is none.
    pub kv_head: Option<usize>,
}

/// What is searched, and how far.
#[derive(Debug, Clone, Copy)]
pub struct SearchOptions {
    /// Units are KV heads; else layers.
    pub heads: bool,
    /// In which order they are dropped.
    pub order: SearchOrder,
    /// What a dropped unit still shows of the prompt.
    pub ends: Ends,
    /// Prompt rows end here: layers from this one on show position 0 alone, and are no units.
    pub cutoff: Option<usize>,
    /// The search ends once the mean KL is beyond, nats.
    pub worst_kl: f64,
    /// Units that are tried together at each step.
    pub at_once: usize,
}

/// What decode rows see of the prompt at each layer and KV head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shown {
    /// Whether a head sees all of it, `[L][H_kv]`.
    whole: Vec<Vec<bool>>,
    ends: Ends,
    /// Layers from this one on show position 0 alone.
    cutoff: usize,
}

impl Shown {
    /// All of it below a cutoff.
    pub fn below(cutoff: usize, ends: Ends, layers: usize, kv_heads: usize) -> Self {
        Self { whole: vec![vec![true; kv_heads]; layers], ends, cutoff }
    }

    /// The set of those that see all of it.
    pub fn set(&self) -> HeadSet {
        let units = self.whole[..self.cutoff].iter().enumerate().flat_map(|(layer, heads)| {
            heads.iter().enumerate().filter(|(_, whole)| **whole).map(move |(head, _)| (layer, head))
        });
        HeadSet::of(units, self.whole.first().map_or(0, Vec::len))
    }

    /// Without a unit.
    #[must_use]
    pub fn without(&self, unit: Unit) -> Self {
        let mut without = self.clone();
        match unit.kv_head {
            Some(head) => without.whole[unit.layer][head] = false,
            None => without.whole[unit.layer].fill(false),
        }
        without
    }

    /// Name of the policy that shows the same, `keep:…` or `speed:…+bos+keep:…`.
    pub fn policy_name(&self) -> String {
        let cutoff = match self.cutoff < self.whole.len() {
            true => format!("speed:{}+bos+", self.cutoff),
            false => String::new(),
        };
        let first = match self.ends.first {
            0 => String::new(),
            1 => "+bos".to_owned(),
            first => format!("+sinks={first}"),
        };
        let last = if self.ends.last > 0 { format!("+window={}", self.ends.last) } else { String::new() };
        format!("{cutoff}keep:{}{first}{last}", self.set())
    }

    /// What of some of the prompt's keys is shown at a layer, of a prompt whose last token is at position `prefill_len`.
    fn of_keys(&self, layer: usize, keys: &KeyRange, prefill_len: usize) -> Vec<KeyRange> {
        if layer >= self.cutoff {
            return keys.of_positions(0..1).into_iter().collect();
        }
        let Ends { first, last } = self.ends;
        let behind = prefill_len.saturating_sub(last).max(first);
        let mut shown = vec![];
        let mut head = 0;
        for same in self.whole[layer].chunk_by(|a, b| a == b) {
            let heads = head..head + same.len();
            head = heads.end;
            let Some(keys) = keys.of_heads(heads) else { continue };
            match same[0] {
                true => shown.push(keys),
                false => shown.extend(
                    [0..first, behind..prefill_len].into_iter().filter_map(|at| keys.of_positions(at)),
                ),
            }
        }
        shown
    }
}

/// A set along the search: the unit that was dropped last, and what all that are dropped cost together.
#[derive(Debug, Clone, PartialEq)]
pub struct Dropped {
    /// The unit.
    pub unit: Unit,
    /// Mean over the prompts.
    pub divergence: Divergence,
}

/// The path of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// What nothing dropped costs: 0, or the cutoff's divergence.
    pub before: Divergence,
    /// In the order in which they were dropped.
    pub dropped: Vec<Dropped>,
    /// Sets that were run.
    pub tried: usize,
    /// Units that were tried again and then cost less than before.
    pub cheaper_than_before: usize,
}

/// What decode rows see of a prompt.
pub(crate) struct OnPrompt<'a> {
    shown: &'a Shown,
    prefill_len: usize,
}

impl<'a> OnPrompt<'a> {
    pub(crate) fn new(shown: &'a Shown, prompt_len: usize) -> Self {
        Self { shown, prefill_len: prompt_len - 1 }
    }
}

impl RowCopy for OnPrompt<'_> {
    fn sees(&self, layer: usize, keys: &KeyRange) -> Vec<KeyRange> {
        self.shown.of_keys(layer, keys, self.prefill_len)
    }
}

/// A set on its way through the layers with a prompt's decode rows.
struct Candidate<'a> {
    index: usize,
    seen: OnPrompt<'a>,
}

impl RowCopy for Candidate<'_> {
    fn sees(&self, layer: usize, keys: &KeyRange) -> Vec<KeyRange> {
        self.seen.sees(layer, keys)
    }
}

/// What sets come to on one prompt.
struct Tried {
    steps: Vec<StepComparison>,
    /// The residual stream at the entrance of each layer from the set's first on, and the final one.
    streams: Vec<Tensor>,
}

/// Runs sets on a prompt: each from the layer where it differs from the one that `streams` are of.
fn run_sets(
    recorded: Recorded<'_>,
    streams: &[Tensor],
    sets: &[(usize, &Shown)],
    interrupt: &Interrupt,
) -> Result<Vec<Tried>> {
    let layers = recorded.decoder.config().layers;
    let mut active: Vec<(Candidate<'_>, Tensor)> = vec![];
    let mut kept: Vec<Vec<Tensor>> = sets.iter().map(|_| vec![]).collect();
    let lowest = sets.iter().map(|(first, _)| *first).min().unwrap_or(layers);
    for (layer, entering) in streams.iter().enumerate().take(layers).skip(lowest) {
        check_interrupt(interrupt)?;
        let beginning = sets.iter().enumerate().filter(|(_, (first, _))| *first == layer);
        active.extend(beginning.map(|(index, (_, shown))| {
            (Candidate { index, seen: OnPrompt::new(shown, recorded.run.prompt_len) }, entering.clone())
        }));
        for (candidate, x) in &active {
            kept[candidate.index].push(x.clone());
        }
        active = recorded.through_layer(active, layer)?;
    }
    let mut tried: Vec<Option<Tried>> = sets.iter().map(|_| None).collect();
    for batch in active.chunks(recorded.at_once()) {
        let x: Vec<&Tensor> = batch.iter().map(|(_, x)| x).collect();
        let compared = recorded.run.distributions.compare(recorded.decoder, &Tensor::cat(&x)?)?;
        for ((candidate, x), compared) in batch.iter().zip(compared.chunks(recorded.steps())) {
            let mut streams = std::mem::take(&mut kept[candidate.index]);
            streams.push(x.clone());
            tried[candidate.index] = Some(Tried { steps: compared.to_vec(), streams });
        }
    }
    tried
        .into_iter()
        .collect::<Option<_>>()
        .ok_or_else(|| Error::failure("a set did not run; please report this"))
}

/// How each step of a prompt's continuation differs under each set.
///
/// # Errors
/// [`Error::Interrupted`], or whatever fails beneath.
pub fn price(
    decoder: &Decoder,
    run: &ProbedRun,
    sets: &[Shown],
    interrupt: &Interrupt,
) -> Result<Vec<Vec<StepComparison>>> {
    let recorded = Recorded::new(decoder, run)?;
    let mut priced = vec![];
    for sets in sets.chunks(recorded.at_once()) {
        let sets: Vec<(usize, &Shown)> = sets.iter().map(|shown| (shown.first_change(), shown)).collect();
        let tried = run_sets(recorded, &run.residuals, &sets, interrupt)?;
        priced.extend(tried.into_iter().map(|tried| tried.steps));
    }
    Ok(priced)
}

impl Shown {
    /// The first layer at which anything is hidden; the last layer where nothing is, which then costs 0.
    fn first_change(&self) -> usize {
        let changed = self.whole[..self.cutoff].iter().position(|heads| heads.contains(&false));
        changed.unwrap_or(self.cutoff).min(self.whole.len() - 1)
    }
}

/// The search.
///
/// `progress(dropped, KL)` is told after each step how many units are dropped, and the mean KL.
///
/// # Errors
/// [`Error::Input`] without prompts; [`Error::Interrupted`], or whatever fails beneath.
pub fn search(
    decoder: &Decoder,
    runs: &[&ProbedRun],
    options: &SearchOptions,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize, f64),
) -> Result<(Shown, Found)> {
    let config = decoder.config();
    let (layers, kv_heads) = (config.layers, config.kv_heads);
    if runs.is_empty() {
        return Err(Error::input("a search needs at least one recorded prompt"));
    }
    let start = Shown::below(options.cutoff.unwrap_or(layers), options.ends, layers, kv_heads);
    let mut search = Search::begun(decoder, runs, start.clone(), interrupt)?;
    let mut units = search.units(options);
    let mut found = Found { before: search.divergence, dropped: vec![], tried: 0, cheaper_than_before: 0 };
    let at_once = options.at_once.max(1);
    let mut settled = match options.order {
        SearchOrder::Joint => None,
        SearchOrder::Knockout => Some(search.by_cost_alone(&mut units, at_once, &mut found, interrupt)?),
        SearchOrder::Mass => Some(search.by_mass(&units)),
    }
    .map(Vec::into_iter);
    while !units.is_empty() && search.divergence.kl <= options.worst_kl {
        let (unit, tried) = match settled.as_mut().map(Iterator::next) {
            None => search.cheapest(&mut units, at_once, &mut found, interrupt)?,
            Some(None) => break,
            Some(Some(unit)) => {
                found.tried += 1;
                let tried = search.tried(&[(unit.layer, search.shown.without(unit))], interrupt)?.pop();
                (unit, tried.ok_or_else(|| Error::failure("a set did not run; please report this"))?)
            }
        };
        units.remove(&unit);
        search.accept(unit, tried);
        found.dropped.push(Dropped { unit, divergence: search.divergence });
        progress(found.dropped.len(), search.divergence.kl);
    }
    Ok((start, found))
}

/// What is known of a unit that is not dropped.
#[derive(Debug, Clone, Copy)]
struct Cost {
    /// KL that it added when it was last tried; −∞ if it never was.
    added: f64,
    /// Keys that dropping it frees, mean over prompts.
    keys: f64,
}

struct Search<'a> {
    recorded: Vec<Recorded<'a>>,
    /// The set so far.
    shown: Shown,
    divergence: Divergence,
    /// Of each prompt, the residual stream at the entrance of each layer under it, and the final one.
    streams: Vec<Vec<Tensor>>,
}

impl<'a> Search<'a> {
    fn begun(
        decoder: &'a Decoder,
        runs: &[&'a ProbedRun],
        shown: Shown,
        interrupt: &Interrupt,
    ) -> Result<Self> {
        let recorded: Vec<_> = runs.iter().map(|run| Recorded::new(decoder, run)).collect::<Result<_>>()?;
        let streams = runs.iter().map(|run| run.residuals.clone()).collect();
        let mut search = Self { recorded, shown: shown.clone(), divergence: Divergence::ZERO, streams };
        if shown.cutoff < shown.whole.len() {
            let first = shown.first_change();
            let mut tried = search.tried(&[(first, shown)], interrupt)?;
            if let Some((divergence, streams)) = tried.pop() {
                search.divergence = divergence;
                search.replace_streams(first, streams);
            }
        }
        Ok(search)
    }

    /// All units, none of them tried.
    fn units(&self, options: &SearchOptions) -> BTreeMap<Unit, Cost> {
        let kv_heads = self.shown.whole.first().map_or(0, Vec::len);
        let mut units = BTreeMap::new();
        for layer in 0..self.shown.cutoff {
            let keys = self.keys_freed(layer);
            let added = f64::NEG_INFINITY;
            match options.heads {
                true => units.extend(
                    (0..kv_heads).map(|head| (Unit { layer, kv_head: Some(head) }, Cost { added, keys })),
                ),
                false => {
                    let keys = keys * kv_heads as f64;
                    _ = units.insert(Unit { layer, kv_head: None }, Cost { added, keys });
                }
            }
        }
        units
    }

    /// Keys of a prompt that a head of a layer no longer has once it is dropped, mean over prompts; at least one.
    fn keys_freed(&self, layer: usize) -> f64 {
        let of_prompt = |recorded: &Recorded<'_>| {
            let (config, prefill_len) = (recorded.decoder.config(), recorded.run.prompt_len - 1);
            let stored = config.windows[layer].map_or(prefill_len, |window| window.min(prefill_len));
            let ends = self.shown.ends.first + self.shown.ends.last;
            stored.saturating_sub(ends) as f64
        };
        let sum: f64 = self.recorded.iter().map(of_prompt).sum();
        (sum / self.recorded.len() as f64).max(1.0)
    }

    /// The unit that adds least KL for each key that it frees, with what dropping it comes to.
    fn cheapest(
        &self,
        units: &mut BTreeMap<Unit, Cost>,
        at_once: usize,
        found: &mut Found,
        interrupt: &Interrupt,
    ) -> Result<(Unit, SetOnAll)> {
        let mut order: Vec<(Unit, Cost)> = units.iter().map(|(unit, cost)| (*unit, *cost)).collect();
        let per_key = |cost: &Cost| cost.added / cost.keys;
        order.sort_by(|a, b| per_key(&a.1).total_cmp(&per_key(&b.1)));
        let mut best: Option<(Unit, f64, SetOnAll)> = None;
        for next in order.chunks(at_once) {
            // None of the others was ever as cheap.
            if best.as_ref().is_some_and(|(_, least, _)| per_key(&next[0].1) >= *least) {
                break;
            }
            let sets: Vec<(usize, Shown)> =
                next.iter().map(|(unit, _)| (unit.layer, self.shown.without(*unit))).collect();
            found.tried += sets.len();
            for ((unit, before), tried) in next.iter().zip(self.tried(&sets, interrupt)?) {
                let added = tried.0.kl - self.divergence.kl;
                let cost = Cost { added: if added.is_nan() { f64::INFINITY } else { added }, ..*before };
                found.cheaper_than_before += usize::from(cost.added < before.added);
                units.insert(*unit, cost);
                if best.as_ref().is_none_or(|(_, least, _)| per_key(&cost) < *least) {
                    best = Some((*unit, per_key(&cost), tried));
                }
            }
        }
        let (unit, _, tried) =
            best.ok_or_else(|| Error::failure("no unit has a defined KL; please report this"))?;
        Ok((unit, tried))
    }

    /// All units by what each costs alone for each key that it frees.
    fn by_cost_alone(
        &self,
        units: &mut BTreeMap<Unit, Cost>,
        at_once: usize,
        found: &mut Found,
        interrupt: &Interrupt,
    ) -> Result<Vec<Unit>> {
        // None was tried before, so all are.
        self.cheapest(units, at_once, found, interrupt)?;
        let mut order: Vec<(Unit, f64)> =
            units.iter().map(|(unit, cost)| (*unit, cost.added / cost.keys)).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        Ok(order.into_iter().map(|(unit, _)| unit).collect())
    }

    /// All units by the share of their decode rows' attention on positions 1 … p−2, mean over prompts, steps and query heads.
    fn by_mass(&self, units: &BTreeMap<Unit, Cost>) -> Vec<Unit> {
        let kv_heads = self.shown.whole.first().map_or(1, Vec::len);
        let of_prompt = |recorded: &Recorded<'_>, unit: &Unit| {
            let mass = &recorded.run.figures.attention.prompt_mass;
            let (_, heads, steps) = mass.dim();
            let group = heads / kv_heads;
            let own = unit.kv_head.map_or(0..heads, |head| head * group..(head + 1) * group);
            let of_head = |head| (0..steps).map(move |step| f64::from(mass[[unit.layer, head, step]]));
            let count = (own.len() * steps) as f64;
            own.flat_map(of_head).sum::<f64>() / count
        };
        let mass = |unit: &Unit| self.recorded.iter().map(|recorded| of_prompt(recorded, unit)).sum::<f64>();
        let mut order: Vec<(Unit, f64)> = units.keys().map(|unit| (*unit, mass(unit))).collect();
        order.sort_by(|a, b| a.1.total_cmp(&b.1));
        order.into_iter().map(|(unit, _)| unit).collect()
    }

    /// Sets, each from the layer where it first differs from the one so far: means over prompts, and each prompt's streams.
    fn tried(&self, sets: &[(usize, Shown)], interrupt: &Interrupt) -> Result<Vec<SetOnAll>> {
        let of_sets: Vec<(usize, &Shown)> = sets.iter().map(|(first, shown)| (*first, shown)).collect();
        let mut all: Vec<(Vec<Divergence>, Vec<Vec<Tensor>>)> =
            sets.iter().map(|_| (vec![], vec![])).collect();
        for (recorded, streams) in self.recorded.iter().zip(&self.streams) {
            for (all, tried) in all.iter_mut().zip(run_sets(*recorded, streams, &of_sets, interrupt)?) {
                all.0.push(StepComparison::mean(&tried.steps));
                all.1.push(tried.streams);
            }
        }
        Ok(all.into_iter().map(|(divergences, streams)| (Divergence::mean(&divergences), streams)).collect())
    }

    fn accept(&mut self, unit: Unit, (divergence, streams): SetOnAll) {
        self.shown = self.shown.without(unit);
        self.divergence = divergence;
        self.replace_streams(unit.layer, streams);
    }

    fn replace_streams(&mut self, first: usize, streams: Vec<Vec<Tensor>>) {
        for (all, new) in self.streams.iter_mut().zip(streams) {
            all.truncate(first);
            all.extend(new);
        }
    }
}

/// A set on all prompts: its mean divergence, and each prompt's streams from the layer on where it differs from the one before.
type SetOnAll = (Divergence, Vec<Vec<Tensor>>);
