//! Parts of maps that views want: asked for as they come into sight, few at a time.

use super::Viewer;
use super::files::{Files, prompt_of, unfit};
use crate::data::Want;
use crate::engine::remote::{MapPart, PromptOf};
use layerscope_engine::Result;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Parts on their way at once: enough that a connection is never idle, and few enough that what comes into sight later does not wait
/// long.
const AT_ONCE: usize = 16;

type Key = (PromptOf, Want);
type Come = (Key, Result<MapPart>);

/// Parts on their way.
pub(super) struct Fetching {
    /// In the last frame, the coarsest first.
    wanted: Vec<Want>,
    asked: HashSet<Key>,
    /// Not asked for again: the other machine has said that there is no such part.
    refused: HashSet<Key>,
    come: (Sender<Come>, Receiver<Come>),
}

impl Default for Fetching {
    fn default() -> Self {
        Self { wanted: vec![], asked: HashSet::new(), refused: HashSet::new(), come: channel() }
    }
}

impl Fetching {
    /// Another run is shown, or the connection is gone.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }

    /// Another frame begins, whose views say anew what they want.
    pub(super) fn begin(&mut self) {
        self.wanted.clear();
    }

    pub(super) fn want(&mut self, wants: Vec<Want>) {
        self.wanted.extend(wants);
    }

    /// Whether parts in sight are not there yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.asked.is_empty() || !self.wanted.is_empty()
    }
}

impl Viewer {
    /// Takes parts that have come.
    pub(super) fn take_parts(&mut self) {
        while let Ok(((of, want), part)) = self.fetching.come.1.try_recv() {
            let key = (of, want);
            self.fetching.asked.remove(&key);
            let (of, want) = key;
            let part = match part {
                Ok(part) => part,
                Err(error) => {
                    self.say_error(error.to_string());
                    self.fetching.refused.insert((of, want));
                    continue;
                }
            };
            // Not of a run or prompt that is no longer shown.
            let Some(run) = self.run.clone() else { continue };
            let place = run.prompts.iter().position(|prompt| prompt_of(&run, &prompt.id) == of);
            let maps = self.maps.iter_mut().find(|maps| Some(maps.prompt) == place);
            if let Some(maps) = maps
                && !Arc::make_mut(maps).put(want.clone(), part)
                && let Ok(Files::There(link)) = self.files()
            {
                self.say_error(unfit(&link).to_string());
                self.fetching.refused.insert((of, want));
            }
        }
    }

    /// Asks for parts that are in sight.
    pub(super) fn send_wants(&mut self) {
        let wanted = std::mem::take(&mut self.fetching.wanted);
        if wanted.is_empty() {
            return;
        }
        let (Ok(Files::There(link)), Some(run)) = (self.files(), self.run.clone()) else { return };
        let Some(prompt) = run.prompts.get(self.state.prompt) else { return };
        let of = prompt_of(&run, &prompt.id);
        for want in wanted {
            let key = (of.clone(), want.clone());
            if self.fetching.refused.contains(&key) || self.fetching.asked.contains(&key) {
                continue;
            }
            if self.fetching.asked.len() >= AT_ONCE {
                self.fetching.wanted.push(want);
                continue;
            }
            self.fetching.asked.insert(key.clone());
            let (sender, ctx) = (self.fetching.come.0.clone(), self.ctx.clone());
            Files::part_then(&link, of.clone(), want, move |part| {
                let _ = sender.send((key, part));
                ctx.request_repaint();
            });
        }
    }
}
