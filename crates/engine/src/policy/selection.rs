//! Selection: what a decode row reads of the KV that is stored.

use super::{Arrived, RevivalCounters, TransferCounters};
use crate::rows::ResidualRows;
use crate::{Decoder, Depth, KvStore, Result, Tensor};

/// What decode rows read. A decode row always reads its own key.
pub trait Selection: Send + Sync {
    /// Whether decode rows do not see each other's keys at a layer.
    fn self_only_mask(&self, _layer: usize) -> bool {
        false
    }

    /// Whether it chooses among stored prompt tokens while a sequence runs, so that none may leave otherwise.
    fn refers_to_stored(&self) -> bool {
        false
    }

    /// What chooses, while a sequence runs, which rows the prefill keeps and which keys decode rows read; `None` where they
    /// read all that is stored.
    ///
    /// # Errors
    /// Whatever fails as it begins.
    fn begin(&self, _sequence: &SequenceSetup<'_>) -> Result<Option<Box<dyn RunningSelection>>> {
        Ok(None)
    }
}

/// A sequence that is about to run.
pub struct SequenceSetup<'a> {
    /// The model.
    pub decoder: &'a Decoder,
    /// The KV store, empty.
    pub store: &'a KvStore,
    /// Prompt tokens but the last.
    pub prefill_len: usize,
    /// Decode tokens, the last prompt token among them.
    pub decode_len: usize,
}

/// A selection at work on one sequence.
pub trait RunningSelection: Send {
    /// As [`super::Reach::keep_mask`], which is not asked.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn keep_mask(&mut self, arrived: &Arrived<'_>, decoder: &Decoder) -> Result<Option<Vec<bool>>>;

    /// Whether [`Arrived::received`] is wanted.
    fn scores_by_attention(&self) -> bool {
        false
    }

    /// Takes rows that were dropped at a pruning point.
    fn dropped(&mut self, _point: Depth, _rows: ResidualRows) {}

    /// The prefill below `layers` has ended.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn stage_ended(&mut self, _layers: usize, _store: &mut KvStore) -> Result<()> {
        Ok(())
    }

    /// A decode step begins.
    fn begin_step(&mut self) {}

    /// Depths at which a decode step chooses what the layers above read, ascending.
    fn choice_points(&self) -> Vec<Depth> {
        vec![]
    }

    /// A decode row, the last of `rows`, has come to a choice point: which rows go on, by the attention that prompt positions
    /// received from it. Prompt rows may go on beside it.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn choose(
        &mut self,
        _point: Depth,
        rows: ResidualRows,
        _received: &[f32],
        _decoder: &Decoder,
        _store: &mut KvStore,
    ) -> Result<ResidualRows> {
        Ok(rows)
    }

    /// Whether a decode row reads the key at each of the first positions; `None` where it reads all that are stored.
    fn visible(&self) -> Option<&[bool]> {
        None
    }

    /// Rows come to the attention of a layer.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn before_attention(&mut self, _layer: usize, _store: &mut KvStore) -> Result<()> {
        Ok(())
    }

    /// Rows with these queries have attended in a layer.
    ///
    /// # Errors
    /// Whatever fails beneath.
    fn after_attention(
        &mut self,
        _layer: usize,
        _queries: &Tensor,
        _decoder: &Decoder,
        _store: &mut KvStore,
    ) -> Result<()> {
        Ok(())
    }

    /// Whether every decode step reads what the one before read, and its own key.
    fn is_settled(&self) -> bool {
        false
    }

    /// What was moved of the prompt's KV; `None` where nothing is.
    fn transfers(&self) -> Option<&TransferCounters> {
        None
    }

    /// What came back of the prompt tokens that were dropped; `None` where none comes back.
    fn revivals(&self) -> Option<&RevivalCounters> {
        None
    }
}
