//! Attention of several copies of the decode rows: each reads its own decode keys and, of the recorded prompt, what its
//! variant leaves visible.

use super::Variant;
use layerscope_engine::{
    Attend, Decoder, Error, Hooks, KvStore, LayerAttention, Location, Result, RowGroup, Tensor,
};
use layerscope_kernels::Segment;

pub(super) struct VariantAttention<'a> {
    pub(super) decoder: &'a Decoder,
    pub(super) store: &'a KvStore,
    pub(super) prompt_len: usize,
    pub(super) variants: &'a [Variant],
    pub(super) steps: usize,
}

impl Attend for VariantAttention<'_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        hooks: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let kv = kv.ok_or_else(|| Error::failure("copies of rows have no keys; please report this"))?;
        let stored = self.store.key_ranges(at.layer, self.prompt_len);
        let group = |(copy, variant): (usize, &Variant)| RowGroup {
            rows: copy * self.steps..(copy + 1) * self.steps,
            keys: stored
                .iter()
                .filter(|keys| keys.segment() != Segment::Decode && variant.sees(at.layer, keys.segment()))
                .cloned()
                .collect(),
            measured: false,
        };
        let attention = LayerAttention {
            shape: self.decoder.attention_shape(at.layer),
            groups: self.variants.iter().enumerate().map(group).collect(),
            at,
            store: self.store,
            sparse: None,
            own: Some(kv),
            statistics: None,
        };
        Ok(attention.attend(q, hooks)?.0)
    }
}
