//! Copies of rows of a recorded sequence that go up through the layers together: each reads its own keys and, of those that are
//! stored, what it may see. So each weight is read once per layer for all of them.

use layerscope_diagnostics::probe::ProbedRun;
use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, Device, Error, Hooks, KeyRange, KvStore, LayerAttention, Location,
    Pass, Policy, Result, RowGroup, SequenceRows, Tensor,
};
use layerscope_kernels::Segment;
use rayon::prelude::*;
use std::ops::Range;

/// A copy of the rows.
pub(crate) trait RowCopy: Send {
    /// What of some of the prompt's stored keys it sees at a layer.
    fn sees(&self, layer: usize, keys: &KeyRange) -> Vec<KeyRange>;
}

/// The rows that are copied: where they are, what is stored beside them, and how they are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct CopiedRows<'a> {
    pub(crate) decoder: &'a Decoder,
    /// Keys and values of the full model, of the prompt at least.
    pub(crate) store: &'a KvStore,
    /// Prompt tokens p; of what is stored, copies see positions 0 … p−2 at most.
    pub(crate) prompt_len: usize,
    /// Most tokens that the sequence has.
    pub(crate) sequence_len: usize,
    /// Position of the first row of a copy.
    pub(crate) first: usize,
    /// Rows of a copy, at consecutive positions.
    pub(crate) rows: usize,
    /// As in [`SequenceRows`].
    pub(crate) first_decode: usize,
    /// The type in which rows are multiplied.
    pub(crate) compute: ComputeType,
}

/// Rows that go through a layer at once: bounds memory, and products of so many rows run at full speed.
pub(crate) fn rows_at_once(device: &Device) -> usize {
    match device {
        Device::Cpu => 512,
        Device::Cuda(_) => 2_048,
    }
}

/// Groups of rows that go through a layer side by side: alone, a group leaves threads idle between its products.
pub(crate) fn groups_side_by_side(device: &Device) -> usize {
    const MOST: usize = 4;
    match device {
        Device::Cpu => rayon::current_num_threads().min(MOST),
        Device::Cuda(_) => 1,
    }
}

impl CopiedRows<'_> {
    /// Copies that go through a layer at once.
    pub(crate) fn at_once(self) -> usize {
        (rows_at_once(self.decoder.device()) / self.rows).max(1)
    }

    /// The rows of every copy, `[rows, d]` each, through one layer.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn through_layer<C: RowCopy>(
        self,
        copies: Vec<(C, Tensor)>,
        layer: usize,
    ) -> Result<Vec<(C, Tensor)>> {
        let depth = Depth::of_layers(layer..layer + 1);
        self.in_groups(copies, |group, x| self.through(group, x, depth.clone(), &mut Hooks::none()))
    }

    /// Runs `pass` on as many copies as go through a layer at once and on their rows, one copy after the other, until all copies have run; on
    /// a CPU on several groups side by side. It returns as many rows of each copy.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn in_groups<C: Send>(
        self,
        copies: Vec<(C, Tensor)>,
        pass: impl Fn(&[C], Tensor) -> Result<Tensor> + Sync,
    ) -> Result<Vec<(C, Tensor)>> {
        let pass = |(group, rows): (Vec<C>, Vec<Tensor>)| {
            let x = pass(&group, Tensor::cat(&rows.iter().collect::<Vec<_>>())?)?;
            let rows = x.rows() / group.len();
            let of_copy = |(index, copy)| Ok((copy, x.narrow(index * rows, rows)?));
            group.into_iter().enumerate().map(of_copy).collect::<Result<Vec<_>>>()
        };
        let side_by_side = groups_side_by_side(self.decoder.device());
        let in_group = self.in_group(copies.len(), side_by_side);
        let (mut copies, mut after) = (copies.into_iter().peekable(), vec![]);
        while copies.peek().is_some() {
            let groups = (0..side_by_side).map(|_| copies.by_ref().take(in_group).unzip());
            let groups: Vec<(Vec<C>, Vec<Tensor>)> =
                groups.filter(|(group, _): &(Vec<C>, Vec<Tensor>)| !group.is_empty()).collect();
            let passed: Result<Vec<_>> = match side_by_side {
                1 => groups.into_iter().map(&pass).collect(),
                _ => groups.into_par_iter().with_max_len(1).map(&pass).collect(),
            };
            after.extend(passed?.into_iter().flatten());
        }
        Ok(after)
    }

    /// Copies of a group: as many as go through a layer at once, or fewer, so that no thread waits for the last group.
    fn in_group(self, copies: usize, side_by_side: usize) -> usize {
        /// With fewer rows, unpacking the weights once more takes longer than threads are idle.
        const LEAST_ROWS: usize = 256;
        let groups = copies.div_ceil(self.at_once()).max(1);
        let groups = match copies * self.rows >= side_by_side * LEAST_ROWS {
            true => groups.next_multiple_of(side_by_side),
            false => groups,
        };
        copies.div_ceil(groups)
    }

    /// The rows of copies, one copy after the other in `x [copies · rows, d]`, through half-layers, all at once.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn through<C: RowCopy>(
        self,
        copies: &[C],
        x: Tensor,
        depth: Range<Depth>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let mut attend = CopiesAttention { of: self, copies };
        let sequences = [SequenceRows {
            rows: copies.len() * self.rows,
            sequence_len: self.sequence_len,
            first_decode: self.first_decode,
        }];
        let mut pass = Pass {
            attend: &mut attend,
            hooks,
            sequences: &sequences,
            compute: self.compute,
            rows_on_device: None,
        };
        let positions: Vec<usize> = (self.first..).take(self.rows).collect();
        self.decoder.forward(x, &positions.repeat(copies.len()), depth, &mut pass)
    }
}

/// A recorded run and the model that it is of.
#[derive(Clone, Copy)]
pub(crate) struct Recorded<'a> {
    pub(crate) decoder: &'a Decoder,
    pub(crate) run: &'a ProbedRun,
}

impl<'a> Recorded<'a> {
    /// # Errors
    /// [`Error::Failure`] where the run is not one of the full model.
    pub(crate) fn new(decoder: &'a Decoder, run: &'a ProbedRun) -> Result<Self> {
        // Under it, each layer stores the prompt as at most three ranges of keys.
        match *run.session.policy() == Policy::full(decoder.config().layers) {
            true => Ok(Self { decoder, run }),
            false => {
                Err(Error::failure("copies of rows start from a run of the full model; please report this"))
            }
        }
    }

    /// Decode steps N.
    pub(crate) fn steps(self) -> usize {
        self.run.continuation.len()
    }

    /// Copies of the decode rows that go through a layer at once.
    pub(crate) fn at_once(self) -> usize {
        self.decode_rows().at_once()
    }

    /// The decode rows of every copy, `[N, d]` each, through one layer.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn through_layer<C: RowCopy>(
        self,
        copies: Vec<(C, Tensor)>,
        layer: usize,
    ) -> Result<Vec<(C, Tensor)>> {
        self.decode_rows().through_layer(copies, layer)
    }

    fn decode_rows(self) -> CopiedRows<'a> {
        let (session, prompt_len) = (&self.run.session, self.run.prompt_len);
        CopiedRows {
            decoder: self.decoder,
            store: session.store(),
            prompt_len,
            sequence_len: session.sequence_len(),
            first: prompt_len - 1,
            rows: self.steps(),
            first_decode: prompt_len - 1,
            compute: ComputeType::F32,
        }
    }
}

struct CopiesAttention<'a, C> {
    of: CopiedRows<'a>,
    copies: &'a [C],
}

impl<C: RowCopy> Attend for CopiesAttention<'_, C> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let kv = kv.ok_or_else(|| Error::failure("copies of rows have no keys; please report this"))?;
        let CopiedRows { decoder, store, prompt_len, rows, .. } = self.of;
        let stored = store.key_ranges(at.layer, prompt_len);
        let of_prompt: Vec<&KeyRange> =
            stored.iter().filter(|keys| keys.segment() != Segment::Decode).collect();
        let group = |(index, copy): (usize, &C)| RowGroup {
            rows: index * rows..(index + 1) * rows,
            keys: of_prompt.iter().flat_map(|keys| copy.sees(at.layer, keys)).collect(),
            measured: false,
        };
        let attention = LayerAttention {
            shape: decoder.attention_shape(at.layer),
            groups: self.copies.iter().enumerate().map(group).collect(),
            at,
            store,
            sparse: None,
            own: Some(kv),
            statistics: None,
            reads: None,
        };
        Ok(attention.attend(q, hooks)?.0)
    }
}
