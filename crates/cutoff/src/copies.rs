//! Copies of rows of a recorded sequence that go up through the layers together: each reads its own keys and, of those that are
//! stored, what it may see. So each weight is read once per layer for all of them.

use layerscope_diagnostics::probe::ProbedRun;
use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, Device, Error, Hooks, KeyRange, KvStore, LayerAttention, Location,
    Pass, Policy, Result, RowGroup, SequenceRows, Tensor,
};
use layerscope_kernels::Segment;
use std::ops::Range;

/// A copy of the rows.
pub(crate) trait RowCopy {
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
        let mut after = Vec::with_capacity(copies.len());
        let mut copies = copies.into_iter().peekable();
        while copies.peek().is_some() {
            let (group, rows): (Vec<C>, Vec<Tensor>) = copies.by_ref().take(self.at_once()).unzip();
            let rows = Tensor::cat(&rows.iter().collect::<Vec<_>>())?;
            let x = self.through(&group, rows, Depth::of_layers(layer..layer + 1), &mut Hooks::none())?;
            for (index, copy) in group.into_iter().enumerate() {
                after.push((copy, x.narrow(index * self.rows, self.rows)?));
            }
        }
        Ok(after)
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
