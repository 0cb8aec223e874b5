//! The attention pattern of a text, tile by tile and at any length: queries × keys of a layer and head, reduced to cells, whose
//! maxima survive. A matrix is never whole.
//!
//! The text runs once. What attention reads meanwhile is kept as attention reads it ([`Watch`]): rotated queries, keys, and which
//! keys each row reads, so that windows, sinks, soft caps, groups of heads and policies are those of the engine. A tile is then
//! products of these queries and keys, divided by each row's sum over all keys that it reads.

mod exponentials;
mod rows;
mod scores;
mod tile;
mod watch;

use crate::hooks::Hooks;
use crate::memory::{self, available_memory};
use crate::session::{Interrupt, Session};
use crate::{Decoder, Error, ModelConfig, Policy, Result};
pub use rows::{PatternHeads, PatternTile, TileRequest, UNSEEN};
use scores::LayerScores;
use std::collections::BTreeMap;
use std::sync::Arc;
pub(crate) use watch::Watch;

/// A text and what it is read under.
#[derive(Debug, Clone, Copy)]
pub struct PatternText<'a> {
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
    /// Tokens that follow it; the last of them reads nothing. May be empty.
    pub continuation: &'a [u32],
    /// What exists.
    pub policy: &'a Policy,
}

impl PatternText<'_> {
    /// Rows: those of the prompt, and of the continuation but its last token.
    pub fn rows(&self) -> usize {
        self.prompt.len() + self.steps() - 1
    }

    /// Decode rows, the prompt's last token among them.
    fn steps(&self) -> usize {
        self.continuation.len().max(1)
    }
}

/// Queries and keys of some layers of a text that has run.
pub struct TextPattern {
    rows: usize,
    layers: BTreeMap<usize, LayerScores>,
}

impl TextPattern {
    /// Bytes that a layer of a text of `rows` rows takes.
    pub fn layer_bytes(config: &ModelConfig, rows: usize) -> u64 {
        ((config.query_width() + config.kv_width()) * size_of::<f32>()) as u64 * rows as u64
    }

    /// Bytes of queries and keys that may be kept: half of the memory that is free, or 4 GiB where the system does not tell.
    pub fn room() -> u64 {
        available_memory().map_or(4 << 30, |bytes| bytes / 2)
    }

    /// Runs a text and keeps queries and keys of the layers that are `asked` for and, as far as `room` bytes go, of those behind the
    /// first of these; all layers where they fit. `progress(done)` is told rows that have run.
    ///
    /// Prompt rows run as in any prefill, decode rows together in f32, as in a recording.
    ///
    /// # Errors
    /// [`Error::Input`] on a layer that there is not; [`Error::OutOfMemory`]; [`Error::Interrupted`], or whatever fails beneath.
    pub fn read(
        decoder: &Arc<Decoder>,
        text: PatternText<'_>,
        asked: &[usize],
        room: u64,
        interrupt: &Interrupt,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Self> {
        let (config, rows, steps) = (decoder.config(), text.rows(), text.steps());
        if let Some(&layer) = asked.iter().find(|&&layer| layer >= config.layers) {
            return Err(Error::UnknownLayer { layer, layers: config.layers });
        }
        let bytes = Self::layer_bytes(config, rows);
        let kept = layers_within(asked, config.layers, room / bytes.max(1));
        let mut need = decoder.sequence_need(&[]);
        need.probes = bytes * kept.len() as u64;
        memory::check("the attention pattern of this text", &need, &crate::Device::Cpu)?;
        let mut session = Session::new(decoder, text.policy.clone(), text.prompt.len(), steps)?;
        session.watch(Watch::new(rows, kept));
        session.prefill(text.prompt, &mut Hooks::none(), interrupt, progress)?;
        let boundary = text.prompt.len() - 1;
        session.truncate(boundary)?;
        let decoded = &text.continuation[..steps - 1];
        let tokens: Vec<u32> = text.prompt[boundary..].iter().chain(decoded).copied().collect();
        session.teacher_forced(&tokens, &mut Hooks::none(), &mut vec![])?;
        progress(rows);
        let watched = session
            .watched()
            .ok_or_else(|| Error::failure("no attention was watched; please report this"))?;
        let layers = watched.into_layers().map(|(layer, read)| (layer, LayerScores::new(read)));
        Ok(Self { rows, layers: layers.collect() })
    }

    /// Rows, and keys, of the text.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The layers whose queries and keys are kept.
    pub fn layers(&self) -> impl Iterator<Item = usize> {
        self.layers.keys().copied()
    }

    /// Whether a layer's queries and keys are kept.
    pub fn has_layer(&self, layer: usize) -> bool {
        self.layers.contains_key(&layer)
    }

    /// The cells of a tile, on all threads.
    ///
    /// # Errors
    /// [`Error::Input`] on a layer that was not kept, a head that there is not, or cells without rows or keys; [`Error::Interrupted`].
    pub fn tile(&self, request: &TileRequest, interrupt: &Interrupt) -> Result<PatternTile> {
        let Some(scores) = self.layers.get(&request.layer) else {
            return Err(Error::input(format!(
                "layer {} is not among those that were kept of this text; read the text again for it",
                request.layer
            )));
        };
        tile::compute(scores, self.rows, request, interrupt)
    }
}

/// The layers asked for and those behind the first of them, in turn, at most so many but one at least; ascending.
fn layers_within(asked: &[usize], layers: usize, most: u64) -> Vec<usize> {
    let first = asked.first().copied().unwrap_or(0);
    let mut kept: Vec<usize> = vec![];
    for layer in asked.iter().copied().chain((0..layers).map(|step| (first + step) % layers)) {
        if !kept.contains(&layer) && (kept.len() as u64) < most.max(1) {
            kept.push(layer);
        }
    }
    kept.sort_unstable();
    kept
}

#[cfg(test)]
mod tests {
    use super::layers_within;

    #[test]
    fn layers_asked_for_come_first_and_others_follow() {
        assert_eq!(layers_within(&[4], 6, 3), [0, 4, 5]);
        assert_eq!(layers_within(&[4, 1], 6, 3), [1, 4, 5]);
        assert_eq!(layers_within(&[2], 6, 0), [2]);
        assert_eq!(layers_within(&[2], 6, 100), [0, 1, 2, 3, 4, 5]);
        assert_eq!(layers_within(&[], 2, 100), [0, 1]);
    }
}
