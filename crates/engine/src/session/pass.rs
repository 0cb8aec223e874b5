//! Forward passes: rows of one sequence or of several, through ranges of depth.

use super::attention::{Collected, Part, StoredAttention};
use super::prefix::FEWEST_ROWS;
use super::{Session, flattened};
use crate::decoder::{KeysValuesOf, Pass, SequenceRows};
use crate::hooks::Hooks;
use crate::memory::rows_at_once;
use crate::policy::CrossLayerKv;
use crate::rows::ResidualRows;
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Rows of one sequence that are to go through a range of depth.
pub(super) struct Work {
    pub(super) rows: ResidualRows,
    pub(super) depth: Range<Depth>,
    /// Rows of the same chunk that go through a range after them.
    pub(super) next: Option<(ResidualRows, Range<Depth>)>,
    /// Those before them, which are done with it.
    pub(super) done: Vec<ResidualRows>,
}

impl Work {
    pub(super) fn new(rows: ResidualRows, depth: Range<Depth>) -> Self {
        Self { rows, depth, next: None, done: vec![] }
    }
}

/// What a sequence does in a forward pass that it shares with others.
pub struct Turn<'a> {
    /// The sequence.
    pub session: &'a mut Session,
    /// The token to run; `None` while the prompt goes in, of which the next chunk runs.
    pub token: Option<u32>,
}

/// Runs one forward pass over rows of several sequences of one model, whatever their lengths and policies: a chunk of the
/// prompt of those that are prefilling, a token of the others. For each, logits `[V]` of its next token, or `None` where more of
/// its prompt is to come.
///
/// On a CPU every sequence gets the bits that it gets alone, if all round single rows ([`Session::round_activations`]) or none does.
///
/// # Errors
/// [`Error::Failure`] where sequences are of different models, or one gets a token while its prompt goes in or none when it has;
/// nothing has run then. Whatever fails beneath; no sequence of such a pass can go on.
pub fn advance_together(turns: &mut [Turn<'_>]) -> Result<Vec<Option<Tensor>>> {
    let mut hooks = Hooks::none();
    let mut sequences: Vec<Sequence<'_, '_>> =
        turns.iter_mut().map(|turn| Sequence::new(turn.session, turn.token, None)).collect();
    let compute = compute(&sequences);
    run(&mut sequences, &mut hooks, compute)?;
    logits(sequences, &mut hooks, compute)
}

impl Session {
    /// [`advance_together`] of one sequence.
    pub(super) fn advance(
        &mut self,
        token: Option<u32>,
        hooks: &mut Hooks<'_>,
        statistics: Option<Collected<'_>>,
    ) -> Result<Option<Tensor>> {
        let mut sequences = [Sequence::new(self, token, statistics)];
        let compute = compute(&sequences);
        run(&mut sequences, hooks, compute)?;
        Ok(logits(sequences.into(), hooks, compute)?.pop().flatten())
    }

    /// The final residual stream of a decode token that runs alone, in f32.
    pub(super) fn advance_in_f32(
        &mut self,
        token: u32,
        hooks: &mut Hooks<'_>,
        statistics: Option<Collected<'_>>,
    ) -> Result<Tensor> {
        let mut sequence = [Sequence::new(self, Some(token), statistics)];
        run(&mut sequence, hooks, ComputeType::F32)?;
        let [sequence] = sequence;
        sequence.last.map(|last| last.x).ok_or_else(|| Error::failure("no row is left; please report this"))
    }
}

/// The type in which a pass multiplies; sequences that round single rows share passes only with others that do.
fn compute(sequences: &[Sequence<'_, '_>]) -> ComputeType {
    match sequences.iter().all(|sequence| sequence.session.rounds) {
        true => ComputeType::Int8,
        false => ComputeType::Bf16,
    }
}

/// A sequence in a pass.
struct Sequence<'a, 's> {
    session: &'a mut Session,
    token: Option<u32>,
    statistics: Option<Collected<'s>>,
    /// The row whose logits are wanted, once it has come through all layers.
    last: Option<ResidualRows>,
    /// How much of its prompt the pass may still begin, in rows times half-layers: as much as a chunk through all layers has.
    left: usize,
}

impl<'a, 's> Sequence<'a, 's> {
    fn new(session: &'a mut Session, token: Option<u32>, statistics: Option<Collected<'s>>) -> Self {
        let layers = session.decoder.config().layers;
        let left =
            rows_at_once(session.decoder.device()) * Depth::halves(Depth::of_layers(0..layers)).count();
        Self { session, token, statistics, last: None, left }
    }

    /// That there is a token exactly where no prompt goes in.
    fn check(&self) -> Result<()> {
        match (self.token, self.session.is_prefilling()) {
            (None, true) => Ok(()),
            (Some(_), false) => self.session.check_has_prompt(),
            (Some(_), true) => Err(Error::failure("a session runs no token while its prompt goes in")),
            (None, false) => Err(Error::failure("a session that has its prompt runs a token at a time")),
        }
    }

    /// What it begins the pass with.
    fn begin(&mut self, hooks: &mut Hooks<'_>) -> Result<Work> {
        if let Some(token) = self.token {
            return self.session.begin_step(&[token], hooks);
        }
        match self.next_chunk(hooks)? {
            Some(work) => Ok(work),
            None => self.session.last_prompt_token(hooks),
        }
    }

    /// The next chunk of its prompt, if one is left.
    fn next_chunk(&mut self, hooks: &mut Hooks<'_>) -> Result<Option<Work>> {
        let work = self.session.next_chunk(hooks)?;
        let cost = |work: &Work| work.rows.len() * Depth::halves(work.depth.clone()).count();
        self.left = self.left.saturating_sub(work.as_ref().map_or(0, cost));
        Ok(work)
    }

    /// What is left to do with rows that enter a layer. Of those of which nothing else is read there, keys and values are stored; rows
    /// before these run first, rows behind them afterwards.
    fn enter(&mut self, work: Work, hooks: &mut Hooks<'_>, compute: ComputeType) -> Result<Option<Work>> {
        let ending = self.session.rows_ending_with(&work.rows, &work.depth, hooks);
        if ending.is_empty() {
            return Ok(Some(work));
        }
        let Work { rows, depth, next, mut done } = work;
        if ending.start > 0 {
            let (before, rest) = rows.split(ending.start)?;
            return Ok(Some(Work { rows: before, next: Some((rest, depth.clone())), depth, done }));
        }
        let (ending, rest) = match ending.end < rows.len() {
            true => rows.split(ending.end).map(|(ending, rest)| (ending, Some(rest)))?,
            false => (rows, None),
        };
        let layer = depth.start.layer();
        self.session.store_keys_values(&ending, layer..layer + 1, None, hooks, compute)?;
        done.push(ending);
        match rest {
            Some(rows) => Ok(Some(Work { rows, depth, next, done })),
            None => self.passed(done, next, depth.end, hooks),
        }
    }

    /// Rows are done with their range; what is left to do in this pass.
    fn passed(
        &mut self,
        done: Vec<ResidualRows>,
        next: Option<(ResidualRows, Range<Depth>)>,
        at: Depth,
        hooks: &mut Hooks<'_>,
    ) -> Result<Option<Work>> {
        match next {
            Some((rows, depth)) => Ok(Some(Work { rows, depth, next: None, done })),
            None => self.arrived(ResidualRows::joined(done)?, at, hooks),
        }
    }

    /// Rows have come to the end of their range; what is left to do with them in this pass.
    fn arrived(&mut self, rows: ResidualRows, at: Depth, hooks: &mut Hooks<'_>) -> Result<Option<Work>> {
        if self.session.is_prefilling() {
            self.last = self.session.chunk_arrived(rows, hooks)?;
            if self.last.is_none() && !self.session.is_prefilling() {
                // All but the last token of the prompt has run; that is the first decode row.
                return self.session.last_prompt_token(hooks).map(Some);
            }
            return if self.last.is_none() && self.left > 0 { self.next_chunk(hooks) } else { Ok(None) };
        }
        let end = Depth::entering(self.session.decoder.config().layers);
        if at < end {
            return self.session.choose(rows, at).map(Some);
        }
        // Prompt rows that came back are before the others.
        self.last = Some(rows.narrow(rows.len() - 1, 1)?);
        Ok(None)
    }
}

/// Runs one pass: of each sequence a chunk of its prompt or a token, multiplied in `compute`.
fn run(sequences: &mut [Sequence<'_, '_>], hooks: &mut Hooks<'_>, compute: ComputeType) -> Result<()> {
    // Before any of them changes.
    let Some(decoder) = sequences.first().map(|sequence| Arc::clone(&sequence.session.decoder)) else {
        return Ok(());
    };
    for sequence in &*sequences {
        sequence.check()?;
        if !Arc::ptr_eq(&decoder, &sequence.session.decoder) {
            return Err(Error::failure("sequences of different models share no forward pass"));
        }
    }
    let mut work: Vec<Option<Work>> = vec![];
    for sequence in &mut *sequences {
        work.push(Some(sequence.begin(hooks)?));
    }
    let least_deep = |work: &[Option<Work>]| work.iter().flatten().map(|work| work.depth.start).min();
    // The least deep rows run together, down to where some of them end or others begin.
    while let Some(start) = least_deep(&work) {
        for (sequence, work) in sequences.iter_mut().zip(&mut work) {
            if let Some(here) = work.take_if(|work| work.depth.start == start) {
                *work = sequence.enter(here, hooks, compute)?;
            }
        }
        if least_deep(&work) != Some(start) {
            continue;
        }
        let nearest = |(sequence, work): (&Sequence<'_, '_>, &Work)| match work.depth.start == start {
            true => sequence.session.whole_range(&work.depth),
            false => work.depth.start,
        };
        let there =
            sequences.iter().zip(&work).filter_map(|(sequence, work)| Some((sequence, work.as_ref()?)));
        let Some(end) = there.map(nearest).min() else { break };
        let (mut parts, mut rows, mut at) = (vec![], vec![], vec![]);
        let mut together: Vec<_> = sequences
            .iter_mut()
            .zip(&work)
            .enumerate()
            .filter_map(|(index, (sequence, work))| Some((index, sequence, work.as_ref()?)))
            .filter(|(_, _, work)| work.depth.start == start)
            .collect();
        // Single decode rows come last, as the decoder wants them.
        together.sort_by_key(|(_, sequence, work)| sequence.session.runs_alone(&work.rows));
        for (index, sequence, work) in together {
            let first = rows.iter().map(ResidualRows::len).sum::<usize>();
            let statistics = sequence.statistics.as_mut().map(Collected::again);
            parts.push(Part { session: sequence.session, rows: first..first + work.rows.len(), statistics });
            rows.push(work.rows.clone());
            at.push(index);
        }
        let passed = through(&mut parts, rows, start..end, hooks, compute)?;
        drop(parts);
        for (index, rows) in at.into_iter().zip(passed) {
            let Some(Work { depth, next, mut done, .. }) = work[index].take() else { continue };
            work[index] = if depth.end == end {
                done.push(rows);
                sequences[index].passed(done, next, end, hooks)?
            } else {
                Some(Work { rows, depth: end..depth.end, next, done })
            };
        }
    }
    Ok(())
}

/// Logits of the rows that have come through all layers.
fn logits(
    sequences: Vec<Sequence<'_, '_>>,
    hooks: &mut Hooks<'_>,
    compute: ComputeType,
) -> Result<Vec<Option<Tensor>>> {
    let decoder = sequences.first().map(|sequence| Arc::clone(&sequence.session.decoder));
    let arrived: Vec<bool> = sequences.iter().map(|sequence| sequence.last.is_some()).collect();
    let last: Vec<ResidualRows> = sequences.into_iter().filter_map(|sequence| sequence.last).collect();
    let Some(decoder) = decoder.filter(|_| !last.is_empty()) else {
        return Ok(arrived.iter().map(|_| None).collect());
    };
    let last = ResidualRows::joined(last)?;
    let of_rows = decoder.unembed_each(&last.x, &last.positions, hooks, compute)?;
    let mut row = 0..;
    let mut next = || row.next().map(|row| flattened(&of_rows.narrow(row, 1)?)).transpose();
    arrived.into_iter().map(|arrived| if arrived { next() } else { Ok(None) }).collect()
}

/// The rows of parts, one after the other, through the half-layers of `depth`; multiplied in `compute`.
fn through(
    parts: &mut [Part<'_, '_>],
    rows: Vec<ResidualRows>,
    depth: Range<Depth>,
    hooks: &mut Hooks<'_>,
    compute: ComputeType,
) -> Result<Vec<ResidualRows>> {
    let Some(decoder) = parts.first().map(|part| Arc::clone(&part.session.decoder)) else {
        return Ok(vec![]);
    };
    for (part, rows) in parts.iter_mut().zip(&rows) {
        part.session.project_shared(rows, depth.start, hooks, compute)?;
    }
    let reads_again = |(part, rows): (&Part<'_, '_>, &ResidualRows)| part.session.reads_again(rows);
    // What reads again is no part of the sequence: it is shown to nobody.
    let mut unseen = Hooks::none();
    let hooks = if parts.iter().zip(&rows).any(reads_again) { &mut unseen } else { hooks };
    let sequences: Vec<SequenceRows> =
        parts.iter().zip(&rows).map(|(part, rows)| part.session.sequence_rows(rows)).collect();
    let lengths: Vec<usize> = rows.iter().map(ResidualRows::len).collect();
    let ResidualRows { x, positions } = ResidualRows::joined(rows)?;
    let mut attend = StoredAttention { parts };
    let mut pass = Pass { attend: &mut attend, hooks, sequences: &sequences, compute, rows_on_device: None };
    let passed = ResidualRows { x: decoder.forward(x, &positions, depth, &mut pass)?, positions };
    let firsts = lengths.iter().scan(0, |first, len| Some(std::mem::replace(first, *first + len)));
    match lengths[..] {
        [_] => Ok(vec![passed]),
        _ => firsts.zip(&lengths).map(|(first, &len)| passed.narrow(first, len)).collect(),
    }
}

impl Session {
    fn sequence_rows(&self, rows: &ResidualRows) -> SequenceRows {
        let first_decode = if self.reads_again(rows) { usize::MAX } else { self.prompt_len - 1 };
        SequenceRows { rows: rows.len(), sequence_len: self.sequence_len, first_decode }
    }

    /// Whether rows are a single decode row.
    fn runs_alone(&self, rows: &ResidualRows) -> bool {
        rows.positions.first().is_some_and(|&position| self.sequence_rows(rows).is_alone(position))
    }

    /// Rows through the half-layers of `depth`; multiplied in `compute`.
    pub(super) fn forward(
        &mut self,
        mut rows: ResidualRows,
        mut depth: Range<Depth>,
        hooks: &mut Hooks<'_>,
        mut statistics: Option<Collected<'_>>,
        compute: ComputeType,
    ) -> Result<ResidualRows> {
        while !depth.is_empty() {
            let end = self.whole_range(&depth);
            let statistics = statistics.as_mut().map(Collected::again);
            let mut part = [Part { rows: 0..rows.len(), session: self, statistics }];
            let mut passed = through(&mut part, vec![rows], depth.start..end, hooks, compute)?;
            rows = passed.remove(0);
            depth.start = end;
        }
        Ok(rows)
    }

    /// How far rows go into a range before K and V of the layers above are projected from them, or those of the layer that is the last
    /// for some of them.
    fn whole_range(&self, depth: &Range<Depth>) -> Depth {
        let shared = match self.policy.rules().cross_layer_kv() {
            Some(CrossLayerKv::SharedNorm(layer)) => Some(layer),
            _ => None,
        };
        let lasts = self.is_prefilling().then(|| self.prompt_ends().map(|end| end - 1));
        let entrances = shared.into_iter().chain(lasts.into_iter().flatten()).map(Depth::entering);
        let within = |entrance: &Depth| depth.start < *entrance && depth.contains(entrance);
        entrances.filter(within).min().unwrap_or(depth.end)
    }

    /// The layers at whose entrance prompt rows end, that of the logits among them.
    fn prompt_ends(&self) -> impl Iterator<Item = usize> + use<> {
        let cutoff = self.policy.rules().reach().cutoff().map(|cutoff| cutoff.layer);
        cutoff.into_iter().chain([self.decoder.config().layers]).filter(|end| *end > 0)
    }

    /// Of which rows that enter a range of depth nothing is read but their keys and values: prompt rows that end with it, where it is a
    /// layer and nothing looks at their queries, their attention or what becomes of them. None, if these do not follow each other.
    ///
    /// The prompt's last row and those just before it run, so that it has the bits that it has among all.
    fn rows_ending_with(&self, rows: &ResidualRows, depth: &Range<Depth>, hooks: &Hooks<'_>) -> Range<usize> {
        let (rules, layer) = (self.policy.rules(), depth.start.layer());
        let is_end = || self.prompt_ends().any(|end| *depth == Depth::of_layers(end - 1..end));
        let is_seen = || {
            hooks.wants_of_layer(layer)
                || self.watch.is_some()
                || self.selection.is_some()
                || self.reads_again(rows)
                || rules.retention().observed_rows() > 0
                || rules.prefill_pattern().is_some()
                || rules.cross_layer_kv().is_some()
        };
        if !self.is_prefilling() || !is_end() || is_seen() {
            return 0..0;
        }
        let cutoff = rules.reach().cutoff().filter(|_| layer + 1 < self.decoder.config().layers);
        let is_anchor = |position| cutoff.is_some_and(|cutoff| cutoff.anchors.contains(position));
        let has_last = rows.positions.last().is_some_and(|&position| position + 1 == self.prompt_len);
        let most = rows.len().saturating_sub(if has_last { FEWEST_ROWS } else { 0 });
        let candidates = &rows.positions[..most];
        let ends = |position: &usize| !is_anchor(*position);
        let start = candidates.iter().position(ends).unwrap_or(most);
        let count = candidates[start..].iter().take_while(|position| ends(position)).count();
        match candidates[start + count..].iter().any(ends) {
            true => 0..0,
            false => start..start + count,
        }
    }

    /// Where rows enter the layer from which K and V of the layers above are projected: projects and stores them.
    fn project_shared(
        &mut self,
        rows: &ResidualRows,
        at: Depth,
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<()> {
        match self.policy.rules().cross_layer_kv() {
            Some(CrossLayerKv::SharedNorm(layer)) if at == Depth::entering(layer) => {
                self.project_keys_values(rows, layer, hooks, compute)
            }
            _ => Ok(()),
        }
    }

    /// Stores what rows have at the layers from `first` on without running through them: K and V projected from their residual
    /// stream.
    pub(super) fn project_keys_values(
        &mut self,
        rows: &ResidualRows,
        first: usize,
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<()> {
        let shared_norm = match self.policy.rules().cross_layer_kv() {
            None => return Ok(()),
            Some(CrossLayerKv::OwnNorms) => None,
            Some(CrossLayerKv::SharedNorm(layer)) => Some(layer),
        };
        let layers = first..self.decoder.config().layers;
        self.store_keys_values(rows, layers, shared_norm, hooks, compute)
    }

    /// Stores K and V of rows at some layers, projected from their residual stream; `shared_norm` as in [`KeysValuesOf`].
    fn store_keys_values(
        &mut self,
        ResidualRows { x, positions }: &ResidualRows,
        layers: Range<usize>,
        shared_norm: Option<usize>,
        hooks: &mut Hooks<'_>,
        compute: ComputeType,
    ) -> Result<()> {
        let of = KeysValuesOf {
            layers,
            shared_norm,
            first_decode: self.prompt_len - 1,
            sequence_len: self.sequence_len,
            compute,
            rows_on_device: None,
        };
        let store = &mut self.store;
        self.decoder.project_keys_values(x, positions, of, hooks, &mut |layer, [k, v]| {
            store.append(layer, positions, k, v)
        })
    }
}
