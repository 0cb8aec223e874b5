//! Patching: what is asked of the engine, and what comes of it.

use super::Viewer;
use crate::data::DrawnPatches;
use crate::engine::message::Command;
use crate::views::patching::asked;
use crate::views::{PatchAsked, Patching};
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::patching::PatchMap;
use std::sync::Arc;

impl Viewer {
    /// Patches the pair of prompts that the view has chosen.
    pub(super) fn patch_chosen(&mut self) {
        let Some(run) = self.run.clone() else { return };
        match asked(&run, &self.state) {
            Ok(asked) => self.patch(asked),
            Err(why) => self.say(why, false),
        }
    }

    /// Patches a pair of prompts.
    pub(super) fn patch(&mut self, asked: PatchAsked) {
        let Some(run) = self.run.clone() else { return };
        if self.patching.is_some() || !self.needs_model_of_run() {
            return;
        }
        let PatchAsked { prompts, request } = asked;
        let adapter = self.adapter.clone().filter(|_| run.manifest.model.adapter.is_some());
        self.patching = Some(Patching { prompts: prompts.clone(), progress: None });
        self.send(Command::Patch { folder: run.folder.clone(), prompts, request, adapter });
    }

    pub(super) fn patches_go_on(&mut self, progress: PatchEvent) {
        self.doing = Some(match progress {
            PatchEvent::Tokens { done, all } => format!("patching, {done} of {all} tokens"),
            PatchEvent::Rows { done, all } => format!("patching, {} %", 100 * done / all.max(1)),
        });
        if let Some(patching) = &mut self.patching {
            patching.progress = Some(progress);
        }
    }

    /// Shows a map that was computed.
    pub(super) fn take_patches(&mut self, map: Arc<PatchMap>, kept: bool) {
        let Some(model) = self.run.as_ref().map(|run| run.manifest.model.clone()) else { return };
        if !map.fits(model.layers, model.heads) {
            return self.say_error("the map that the engine sent does not fit the run");
        }
        let drawn = DrawnPatches::new(map, model.layers);
        self.state.patching.shown = Some(drawn.question.clone());
        self.state.patching.window = None;
        if !kept {
            return self.say("an earlier map of the same question is kept: more of it is computed", false);
        }
        if !drawn.map.is_complete() {
            let (done, all) = (drawn.map.done(), drawn.map.cells.len());
            self.say(
                format!("{done} of {all} cells are computed and kept; asking again computes all"),
                false,
            );
        }
        if let Ok(patches) = Arc::make_mut(&mut self.patches) {
            patches.retain(|known| !known.map.asks_as(&drawn.map));
            patches.push(drawn);
        }
    }
}
