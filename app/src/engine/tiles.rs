//! Tiles of the attention pattern of a recorded text, computed on demand.

use super::message::{Event, TextTokens};
use super::worker::Task;
use crate::data::TileKey;
use layerscope_engine::{Error, PatternText, Policy, Result, TextPattern};
use std::sync::Arc;

/// Computes tiles, and keeps queries and keys of the text that ran last, because users look at it from many sides.
#[derive(Default)]
pub(super) struct TileReader {
    last: Option<Read>,
}

/// A text that has run.
struct Read {
    text: Arc<TextTokens>,
    policy: String,
    pattern: TextPattern,
}

impl TileReader {
    /// Gives the memory back.
    pub(super) fn forget(&mut self) {
        self.last = None;
    }

    /// Sends each tile.
    ///
    /// # Errors
    /// [`Error::Input`] on tokens, layers or heads that the model does not have; [`Error::Interrupted`].
    pub(super) fn compute(
        &mut self,
        task: Task<'_, '_>,
        text: &Arc<TextTokens>,
        policy: &str,
        tiles: &[TileKey],
    ) -> Result<()> {
        check(task, text, tiles)?;
        for (index, key) in tiles.iter().enumerate() {
            let is_last = |read: &Read| read.text == *text && read.policy == policy;
            if !self.last.as_ref().is_some_and(|read| is_last(read) && read.pattern.has_layer(key.layer)) {
                // Before the next one takes memory.
                self.last = None;
                let mut layers: Vec<usize> = tiles[index..].iter().map(|key| key.layer).collect();
                layers.dedup();
                self.last = Some(read(task, text, policy, &layers)?);
            }
            let Some(read) = &self.last else { continue };
            let tile = Arc::new(read.pattern.tile(&key.request(), task.interrupt)?);
            task.events.send(Event::PatternTile { key: *key, tile }, task.interrupt)?;
        }
        Ok(())
    }
}

fn read(task: Task<'_, '_>, text: &Arc<TextTokens>, policy: &str, layers: &[usize]) -> Result<Read> {
    let decoder = &task.model.decoder;
    let parsed = Policy::parse_for(policy, decoder.config())?;
    let tokens = PatternText { prompt: &text.prompt, continuation: &text.continuation, policy: &parsed };
    let all = tokens.rows();
    task.events.progress(Event::ReadingPattern { done: 0, all });
    let pattern =
        TextPattern::read(decoder, tokens, layers, TextPattern::room(), task.interrupt, &mut |done| {
            task.events.progress(Event::ReadingPattern { done, all });
        })?;
    Ok(Read { text: Arc::clone(text), policy: policy.to_owned(), pattern })
}

fn check(task: Task<'_, '_>, text: &TextTokens, tiles: &[TileKey]) -> Result<()> {
    let config = task.model.config();
    if let Some(key) = tiles.iter().find(|key| key.layer >= config.layers) {
        return Err(Error::input(format!(
            "layer {} is not between 0 and {}; open the model that the run was recorded with",
            key.layer,
            config.layers - 1
        )));
    }
    if let Some(id) = text.prompt.iter().chain(&text.continuation).find(|&&id| id as usize >= config.vocab) {
        return Err(Error::input(format!(
            "the model has no token {id}; open the model that the run was recorded with"
        )));
    }
    Ok(())
}
