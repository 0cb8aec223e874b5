//! The tiles of the attention pattern: which are wanted, which are on their way, which are there.

use super::Viewer;
use crate::data::{TileKey, Tiles, lacking};
use crate::engine::Engine;
use crate::engine::message::{Command, TextTokens};
use crate::state::View;
use crate::views::SharedTiles;
use crate::widgets::count;
use eframe::egui::Ui;
use layerscope_engine::PatternTile;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// Tiles asked for at once: what comes into sight later does not wait long.
const AT_ONCE: usize = 48;
/// Time between frames while tiles come.
const PACE: Duration = Duration::from_millis(16);

/// What tiles are of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Subject {
    prompt: usize,
    policy: String,
}

/// The tiles of the current prompt.
#[derive(Default)]
pub(super) struct Tiling {
    tiles: Arc<Tiles>,
    of: Subject,
    text: Option<Arc<TextTokens>>,
    /// Whether tiles are computed as they come into sight.
    is_on: bool,
    /// Those in sight that are not there.
    wanted: Vec<TileKey>,
    /// Those on their way.
    asked: HashSet<TileKey>,
    /// Whether the engine computes tiles, be it of another text that nobody wants any more.
    is_computing: bool,
    /// Whether it was told to stop: once, because a cancel also reaches what is asked of it later in the same frame.
    is_stopped: bool,
    /// Rows of the text that have run, and all.
    pub(super) reading: Option<[usize; 2]>,
}

impl Tiling {
    /// Another run is shown.
    pub(super) fn leave(&mut self) {
        let Self { is_computing, is_stopped, .. } = *self;
        *self = Self { is_computing, is_stopped, ..Self::default() };
    }

    /// A tile has come.
    pub(super) fn take(&mut self, key: TileKey, tile: Arc<PatternTile>) {
        self.reading = None;
        // Not of a text that is no longer shown.
        if self.asked.remove(&key) {
            Arc::make_mut(&mut self.tiles).put(key, tile);
        }
    }

    /// The engine's work failed: it is not tried again until it is asked for.
    pub(super) fn failed(&mut self) {
        if self.is_computing || !self.wanted.is_empty() {
            self.is_on = false;
            self.ended();
            self.wanted.clear();
        }
    }

    /// The engine has ended a command: that with the tiles, if it has one, which it then began with.
    pub(super) fn ended(&mut self) {
        self.asked.clear();
        (self.reading, self.is_computing) = (None, false);
    }

    /// Whether tiles in sight are not there yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.is_computing || (self.is_on && !self.wanted.is_empty())
    }
}

impl Viewer {
    /// The tiles of what is shown.
    pub(super) fn tiles_shown(&self) -> SharedTiles {
        let policy = self.pattern_policy();
        let Tiling { tiles, of, is_on, reading, .. } = &self.tiling;
        let is_current = of.prompt == self.state.prompt && of.policy == policy;
        SharedTiles {
            tiles: if is_current { Arc::clone(tiles) } else { Arc::default() },
            is_on: *is_on,
            reading: *reading,
            policy,
        }
    }

    /// The policy that the attention pattern is read under.
    fn pattern_policy(&self) -> String {
        match self.state.pattern.under_policy && self.state.view == View::Pattern {
            true => self.policy_name(),
            false => "full".to_owned(),
        }
    }

    /// Computes tiles as they come into sight from now on.
    pub(super) fn compute_pattern(&mut self) {
        if self.needs_model() {
            self.tiling.is_on = true;
        }
    }

    /// These tiles are in sight and not there.
    pub(super) fn want_tiles(&mut self, keys: Vec<TileKey>) {
        let of = Subject { prompt: self.state.prompt, policy: self.pattern_policy() };
        if self.tiling.of != of {
            self.stop_tiles();
            let tiling = &mut self.tiling;
            (tiling.tiles, tiling.of, tiling.text) = (Arc::default(), of, None);
            tiling.asked.clear();
        }
        self.tiling.wanted = keys;
    }

    /// Stops computing tiles, for something else.
    pub(super) fn stop_tiles(&mut self) {
        if self.tiling.is_computing && !self.tiling.is_stopped {
            self.tiling.is_stopped = true;
            self.stop();
        }
        self.tiling.wanted.clear();
    }

    /// Whether the engine works on something that the user waits for.
    pub(super) fn is_busy(&self) -> bool {
        self.engine.as_ref().is_some_and(Engine::is_busy) && !self.tiling.is_computing
    }

    /// Asks the engine for tiles that are in sight, and takes back what no longer is.
    pub(super) fn send_tiles(&mut self, ui: &Ui) {
        if self.state.view != View::Pattern {
            // A text that runs may run to its end: it is looked at again, perhaps.
            if self.tiling.reading.is_none() {
                self.stop_tiles();
            }
            return;
        }
        if self.tiling.is_computing {
            ui.ctx().request_repaint_after(PACE);
            if self.tiling.reading.is_none() {
                self.doing =
                    Some(format!("computing attention, {} to come", count(self.tiling.wanted.len(), "tile")));
            }
            let is_wanted = self.tiling.wanted.iter().any(|key| self.tiling.asked.contains(key));
            // While the text runs, nothing is taken back: it would have to run again.
            if !is_wanted && self.tiling.reading.is_none() && !self.tiling.wanted.is_empty() {
                self.stop_tiles();
            }
            return;
        }
        // A drag of the marker changes the policy with every frame.
        let is_dragging = ui.input(|input| input.pointer.any_down()) && self.state.pattern.under_policy;
        let is_busy = self.engine.as_ref().is_some_and(Engine::is_busy);
        if !self.tiling.is_on || is_busy || is_dragging || self.model.is_none() {
            return;
        }
        let mut keys = lacking(&self.tiling.wanted, &self.tiling.tiles, &self.tiling.asked);
        keys.truncate(AT_ONCE);
        let prompt = self.run.as_ref().and_then(|run| run.prompts.get(self.tiling.of.prompt));
        let Some(prompt) = prompt.filter(|_| !keys.is_empty()) else { return };
        let text = self.tiling.text.get_or_insert_with(|| {
            let (prompt, continuation) = (prompt.prompt_tokens.clone(), prompt.generated.clone());
            Arc::new(TextTokens { prompt, continuation })
        });
        let (text, policy) = (Arc::clone(text), self.tiling.of.policy.clone());
        self.send(Command::PatternTiles { text, policy, tiles: keys.clone() });
        self.tiling.asked = keys.into_iter().collect();
        (self.tiling.is_computing, self.tiling.is_stopped) = (true, false);
        ui.ctx().request_repaint_after(PACE);
    }
}
