//! Copies of a recorded run's decode rows that go up through the layers together: each reads its own decode keys and, of the recorded
//! prompt, what it may see. So each weight is read once per layer for all of them.

use layerscope_diagnostics::probe::ProbedRun;
use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, Device, Error, Hooks, KeyRange, KvStore, LayerAttention, Location,
    Pass, Policy, Result, RowGroup, SequenceRows, Tensor,
};
use layerscope_kernels::Segment;

/// A copy of the decode rows.
pub(crate) trait RowCopy {
    /// What of some of the prompt's stored keys it sees at a layer.
    fn sees(&self, layer: usize, keys: &KeyRange) -> Vec<KeyRange>;
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

    /// Copies that go through a layer at once: bounds memory, and products of so many rows run at full speed.
    pub(crate) fn at_once(self) -> usize {
        let rows = match self.decoder.device() {
            Device::Cpu => 512,
            Device::Cuda(_) => 2_048,
        };
        (rows / self.steps()).max(1)
    }

    /// The rows of every copy, `[N, d]` each, through one layer.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn through_layer<C: RowCopy>(
        self,
        copies: Vec<(C, Tensor)>,
        layer: usize,
    ) -> Result<Vec<(C, Tensor)>> {
        let (steps, prompt_len) = (self.steps(), self.run.prompt_len);
        let positions: Vec<usize> = (prompt_len - 1..).take(steps).collect();
        let mut after = Vec::with_capacity(copies.len());
        let mut copies = copies.into_iter().peekable();
        while copies.peek().is_some() {
            let (group, rows): (Vec<C>, Vec<Tensor>) = copies.by_ref().take(self.at_once()).unzip();
            let mut attend = CopiesAttention {
                decoder: self.decoder,
                store: self.run.session.store(),
                prompt_len,
                copies: &group,
                steps,
            };
            let sequence_len = self.run.session.sequence_len();
            let sequences =
                [SequenceRows { rows: group.len() * steps, sequence_len, first_decode: prompt_len - 1 }];
            let mut pass = Pass {
                attend: &mut attend,
                hooks: &mut Hooks::none(),
                sequences: &sequences,
                compute: ComputeType::F32,
                rows_on_device: None,
            };
            let positions = positions.repeat(group.len());
            let depth = Depth::of_layers(layer..layer + 1);
            let rows = Tensor::cat(&rows.iter().collect::<Vec<_>>())?;
            let x = self.decoder.forward(rows, &positions, depth, &mut pass)?;
            for (index, copy) in group.into_iter().enumerate() {
                after.push((copy, x.narrow(index * steps, steps)?));
            }
        }
        Ok(after)
    }
}

struct CopiesAttention<'a, C> {
    decoder: &'a Decoder,
    store: &'a KvStore,
    prompt_len: usize,
    copies: &'a [C],
    steps: usize,
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
        let stored = self.store.key_ranges(at.layer, self.prompt_len);
        let of_prompt: Vec<&KeyRange> =
            stored.iter().filter(|keys| keys.segment() != Segment::Decode).collect();
        let group = |(index, copy): (usize, &C)| RowGroup {
            rows: index * self.steps..(index + 1) * self.steps,
            keys: of_prompt.iter().flat_map(|keys| copy.sees(at.layer, keys)).collect(),
            measured: false,
        };
        let attention = LayerAttention {
            shape: self.decoder.attention_shape(at.layer),
            groups: self.copies.iter().enumerate().map(group).collect(),
            at,
            store: self.store,
            sparse: None,
            own: Some(kv),
            statistics: None,
            reads: None,
        };
        Ok(attention.attend(q, hooks)?.0)
    }
}
