//! Several texts from one prefilled prompt, decoded together: they share the prompt's KV and each reads what it may see of it.

use super::Session;
use crate::attention::{LayerAttention, RowGroup};
use crate::decoder::{Attend, Location, Pass, SequenceRows};
use crate::hooks::Hooks;
use crate::kv::{KeyRange, KvStore};
use crate::tensor::Tensor;
use crate::{ComputeType, Depth, Error, Policy, Result};
use layerscope_kernels::Segment;

/// What a branch sees of some of the prompt's keys at a layer: `(branch, layer, keys)`. Its own decode tokens it always sees.
pub type Sees<'a> = &'a dyn Fn(usize, usize, &KeyRange) -> Vec<KeyRange>;

/// Branches of a sequence. Rows are multiplied in f32 whatever the weights.
pub struct Branches<'a> {
    session: &'a mut Session,
    sees: Sees<'a>,
    /// Of each branch, which of the stored decode tokens are its own.
    own: Vec<Vec<usize>>,
    /// Decode tokens stored.
    stored: usize,
}

/// A branch's next token: the row that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BranchToken {
    /// Which branch.
    pub branch: usize,
    /// The token; the first is the last prompt token.
    pub token: u32,
}

impl<'a> Branches<'a> {
    /// `count` branches, of at most `rows` decode tokens in all, of a session under the full policy that has its prompt.
    /// Forgets the session's own decode tokens; [`Session::truncate`] then forgets those of the branches.
    ///
    /// # Errors
    /// [`Error::Misuse`] under another policy. Where memory does not suffice.
    pub fn new(session: &'a mut Session, count: usize, rows: usize, sees: Sees<'a>) -> Result<Self> {
        check_full(session)?;
        let boundary = session.prompt_len - 1;
        session.truncate(boundary)?;
        for layer in 0..session.decoder.config().layers {
            let stored = session.store.len(layer);
            session.store.grow(layer, stored + rows)?;
        }
        Ok(Self { session, sees, own: vec![vec![]; count], stored: 0 })
    }

    /// Runs the next token of some branches, each at most once; logits `[tokens, V]` of what follows them.
    ///
    /// # Errors
    /// [`Error::Failure`] where there are more rows than were asked for. Whatever fails beneath.
    pub fn step(&mut self, tokens: &[BranchToken]) -> Result<Tensor> {
        let decoder = self.session.decoder.clone();
        let boundary = self.session.prompt_len - 1;
        let positions: Vec<usize> =
            tokens.iter().map(|token| boundary + self.own[token.branch].len()).collect();
        let ids: Vec<u32> = tokens.iter().map(|token| token.token).collect();
        let mut hooks = Hooks::none();
        let x = decoder.embed(&ids, &positions, &mut hooks)?;
        for token in tokens {
            self.own[token.branch].push(self.stored);
            self.stored += 1;
        }
        let stored_before = self.stored - tokens.len();
        let kv_heads = decoder.config().kv_heads;
        let sequence_len = self.session.sequence_len;
        let sequences = [SequenceRows { rows: tokens.len(), sequence_len, first_decode: boundary }];
        let mut attend = BranchAttention {
            shape: &|layer| decoder.attention_shape(layer),
            store: &mut self.session.store,
            boundary,
            sees: self.sees,
            tokens,
            own: &self.own,
            stored_before,
            kv_heads,
        };
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequences: &sequences,
            compute: ComputeType::F32,
            rows_on_device: None,
        };
        let depth = Depth::of_layers(0..decoder.config().layers);
        let x = decoder.forward(x, &positions, depth, &mut pass)?;
        decoder.unembed(&x, &positions, &mut hooks, ComputeType::F32)
    }
}

/// Rejects a session in which not every prompt token has its KV.
fn check_full(session: &Session) -> Result<()> {
    match session.policy == Policy::full(session.decoder.config().layers) {
        true => Ok(()),
        false => Err(Error::misuse(format!("branches of {} are not the full model's", session.policy))),
    }
}

struct BranchAttention<'a> {
    shape: &'a dyn Fn(usize) -> layerscope_kernels::AttentionShape,
    store: &'a mut KvStore,
    boundary: usize,
    sees: Sees<'a>,
    tokens: &'a [BranchToken],
    own: &'a [Vec<usize>],
    /// Decode tokens stored before this step.
    stored_before: usize,
    kv_heads: usize,
}

impl Attend for BranchAttention<'_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let [k, v] = kv.ok_or_else(|| Error::failure("branches have no keys; please report this"))?;
        // Decode tokens are stored behind the prompt, in the order in which they ran.
        let prompt: Vec<KeyRange> = self.store.key_ranges(at.layer, self.boundary + 1);
        let prompt: Vec<KeyRange> =
            prompt.into_iter().filter(|keys| keys.segment() != Segment::Decode).collect();
        let behind = self.store.len(at.layer) - self.stored_before;
        self.store.append(at.layer, at.positions, k, v)?;
        let groups = self.tokens.iter().enumerate().map(|(row, token)| {
            let seen = prompt.iter().flat_map(|keys| (self.sees)(token.branch, at.layer, keys));
            let own = self.own[token.branch].iter().enumerate().map(|(step, &index)| KeyRange {
                group: 0,
                heads: 0..self.kv_heads,
                slot: behind + index,
                first_position: self.boundary + step,
                len: 1,
                segment: Segment::Decode,
            });
            RowGroup { rows: row..row + 1, keys: seen.chain(own).collect(), measured: false }
        });
        let attention = LayerAttention {
            shape: (self.shape)(at.layer),
            groups: groups.collect(),
            at,
            store: self.store,
            sparse: None,
            own: None,
            statistics: None,
            reads: None,
        };
        Ok(attention.attend(q, hooks)?.0)
    }
}
