//! Handles results of background work: runs, maps, recommendations, exports and engine events.

use super::{Recommended, Viewer};
use crate::data::{PromptMaps, Task};
use crate::engine::Engine;
use crate::engine::message::Event;
use crate::state::{PatchState, Selection, View};
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_diagnostics::record::SpanRecord;
use std::sync::Arc;

/// Cache size of recently shown maps, bytes.
const MAPS_KEPT: usize = 512 << 20;
impl Viewer {
    /// Handles results since the last frame.
    pub fn progress(&mut self) {
        self.progress_there();
        self.take_opened();
        self.take_maps();
        self.take_parts();
        self.send_wants();
        self.take_recommendation();
        self.take_second_run();
        self.take_comparison();
        if let Some(exported) = self.exporting.as_ref().and_then(Task::poll) {
            self.exporting = None;
            match exported {
                Ok(path) => self.say(format!("Exported {}", path.display()), false),
                Err(error) => self.say_error(error.to_string()),
            }
        }
        // At most this many, so that many tokens do not delay a frame.
        const EVENTS_PER_FRAME: usize = 64;
        for _ in 0..EVENTS_PER_FRAME {
            let Some(event) = self.engine.as_ref().and_then(Engine::try_event) else { return };
            self.take_event(event);
        }
        self.ctx.request_repaint();
    }

    fn take_opened(&mut self) {
        let Some((folder, task)) = &self.opening else { return };
        let Some(read) = task.poll() else { return };
        let folder = folder.clone();
        self.opening = None;
        let run = match read {
            Ok(run) => run,
            Err(error) => return self.say_error(error.to_string()),
        };
        let again = self.run.as_ref().is_some_and(|known| known.folder == run.folder);
        self.notices.retain(|notice| !notice.is_error);
        // What is still being read or computed is of the run before.
        (self.maps, self.reading) = (vec![], None);
        (self.recommendation, self.recommending) = (None, None);
        (self.patterns, self.reading_pattern_of) = (Arc::default(), None);
        self.tiling.leave();
        self.fetching.forget();
        self.spans = Arc::new(run.spans.clone());
        self.patches = Arc::new(run.patches.clone());
        self.second.forget_comparison();
        if !again {
            let state = &mut self.state;
            (state.prompt, state.selection) = (0, Selection::default());
            (state.token_window, state.step_window) = (None, None);
            state.pattern.leave_prompt();
            state.patching = PatchState::default();
            state.cutoff = run.layers();
            self.measured.clear();
            self.history.clear();
            self.follow_recommendation = true;
        }
        self.state.prompt = self.state.prompt.min(run.prompts.len().saturating_sub(1));
        if run.frontier(self.state.anchor).is_none()
            && let Some(recorded) = run.frontiers.first()
        {
            self.state.anchor = recorded.anchor;
        }
        let unfinished = run.manifest.prompts.ids.len() - run.prompts.len();
        if unfinished > 0 {
            let all = run.manifest.prompts.ids.len();
            self.say(format!("{unfinished} of {all} prompts of this run are not recorded"), false);
        }
        self.run = Some(Arc::new(run));
        self.remember(&folder);
    }

    /// Reads the maps of the current prompt, if they are not cached.
    fn take_maps(&mut self) {
        if let Some((of, task)) = &self.reading
            && let Some(read) = task.poll()
        {
            let of = *of;
            self.reading = None;
            match read {
                Ok(maps) => {
                    self.maps.push(Arc::new(maps));
                    let mut held: usize = self.maps.iter().map(|maps| maps.bytes()).sum();
                    while held > MAPS_KEPT && self.maps.len() > 1 {
                        held -= self.maps.remove(0).bytes();
                    }
                }
                Err(error) => {
                    let broken = PromptMaps::empty(of);
                    self.maps.push(Arc::new(broken));
                    self.say_error(error.to_string());
                }
            }
        }
        let Some(run) = self.run.clone() else { return };
        let prompt = self.state.prompt;
        if let Some(index) = self.maps.iter().position(|maps| maps.prompt == prompt) {
            let latest = self.maps.remove(index);
            self.maps.push(latest);
        } else if self.reading.is_none()
            && let Some(summary) = run.prompts.get(prompt)
        {
            let Ok(files) = self.files() else { return };
            let (ctx, id) = (self.ctx.clone(), summary.id.clone());
            let task =
                Task::run(move || ctx.request_repaint(), async move { files.maps(&run, prompt, &id).await });
            self.reading = Some((prompt, task));
        }
    }

    fn take_recommendation(&mut self) {
        if let Some(found) = self.recommending.as_ref().and_then(Task::poll) {
            self.recommending = None;
            self.recommendation = found.ok();
            let cut = self.recommendation.as_ref().and_then(|found| found.outcome.as_ref().ok());
            if let Some(cut) = cut.filter(|_| self.follow_recommendation) {
                self.state.cutoff = cut.l_cut;
                self.follow_recommendation = false;
            }
        }
        let Some(run) = self.run.clone() else { return };
        let options = self.state.options();
        let asked = self.recommendation.as_ref().is_some_and(|known| known.options == options);
        if !asked && self.recommending.is_none() {
            let ctx = self.ctx.clone();
            let work = move || {
                let outcome = run.recommend(options).map_err(|error| error.to_string());
                Ok(Recommended { options, outcome })
            };
            self.recommending = Some(Task::start(move || ctx.request_repaint(), work));
        }
    }

    pub(super) fn take_event(&mut self, event: Event) {
        let layers = self.model.as_ref().map_or(0, |model| model.layers);
        Arc::make_mut(&mut self.live).take(&event, layers);
        let recorded = self.recorder.take(&event);
        let adapted = self.adapting.take(&event);
        match event {
            Event::Loading { done, all } => self.doing = Some(format!("loading layer {done} of {all}")),
            Event::Loaded(model) => {
                if let Some(run) = &self.run
                    && run.manifest.model.sha256 != model.sha256
                {
                    let text =
                        format!("{} is not the model of this run ({})", model.name, run.manifest.model.name);
                    self.say(text, false);
                }
                if self.model.as_ref().is_some_and(|known| known.sha256 != model.sha256) {
                    self.adapter = None;
                }
                if self.run.is_none() {
                    // The default cutoff without measurements is three quarters.
                    self.state.cutoff = self.state.cutoff.min((model.layers * 3).div_ceil(4)).max(1);
                }
                self.notices.retain(|notice| !notice.asks_for_model);
                if let Some(path) = model.path.as_ref().filter(|_| self.there.is_none()) {
                    (self.launch.seen.remember)(&model.sha256, path);
                }
                self.model = Some(model);
            }
            Event::RecordingStarted { .. } | Event::PromptStarted { .. } => {
                self.doing = Some("recording".into());
            }
            Event::RecordingEnded { .. } => {
                if let Some(folder) = recorded {
                    if self.state.view == View::Record {
                        self.state.view = View::Map;
                    }
                    self.open_run(&folder);
                }
            }
            Event::PromptsPrepared { done, all } => {
                self.doing = Some(format!("running prompts, {done} of {all}"));
            }
            Event::TrainingStep { step, .. } => self.doing = Some(format!("training, step {step}")),
            Event::TrainingEnded { .. } => self.adapter = adapted,
            Event::GenerationStarted { policy, .. } => self.doing = Some(format!("generating, {policy}")),
            Event::GenerationEnded { .. } => {
                if let Some(measured) = self.live.measured() {
                    self.measured.retain(|known| known.cutoff != measured.cutoff);
                    self.measured.push(measured);
                }
            }
            Event::ReadingPattern { done, all } => {
                self.tiling.reading = Some([done, all]).filter(|_| done < all);
                self.doing = Some(format!("reading attention, {done} of {all} tokens"));
            }
            // Ignores a pattern of a prompt that is no longer current.
            Event::Pattern(pattern) if self.reading_pattern_of == Some(self.state.prompt) => {
                let patterns = Arc::make_mut(&mut self.patterns);
                patterns.retain(|known| known.layer != pattern.layer);
                patterns.push(pattern);
            }
            Event::PatternTile { key, tile } => self.tiling.take(key, tile),
            Event::RemovingSpan(progress) => {
                let (DiffusionEvent::Tokens { done, all } | DiffusionEvent::Layers { done, all }) = progress;
                self.doing = Some(format!("removing tokens, {done} of {all}"));
                if let Some(removing) = &mut self.removing {
                    removing.progress = Some(progress);
                }
            }
            // If the run is no longer open, the result is in its folder.
            Event::SpanRemoved { folder, record }
                if self.run.as_ref().is_some_and(|run| run.folder == folder) =>
            {
                let spans = Arc::make_mut(&mut self.spans);
                let key = |of: &SpanRecord| (of.prompt_id.clone(), of.first, of.end);
                spans.retain(|known| key(known) != key(&record));
                spans.push(record);
                spans.sort_by_key(|span| (span.first, span.end));
            }
            Event::Patching(progress) => self.patches_go_on(progress),
            // If the run is no longer open, the map is in its folder.
            Event::Patched { folder, map, kept }
                if self.run.as_ref().is_some_and(|run| run.folder == folder) =>
            {
                self.take_patches(map, kept);
            }
            Event::Failed(sentence) => {
                self.tiling.failed();
                self.say_error(sentence);
            }
            Event::Idle => {
                self.doing = None;
                self.tiling.ended();
                if !self.engine.as_ref().is_some_and(Engine::is_busy) {
                    (self.removing, self.patching) = (None, None);
                }
            }
            _ => {}
        }
    }

    /// Waits until all background work is done, e.g. before a screenshot.
    ///
    /// # Errors
    /// The first error shown in the window.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn settle(&mut self) -> layerscope_engine::Result<()> {
        loop {
            self.progress();
            if let Some(error) = self.errors().next() {
                return Err(layerscope_engine::Error::input(error));
            }
            if !self.is_waiting() {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    pub(super) fn maps_in_front(&self) -> Option<Arc<PromptMaps>> {
        self.maps.iter().find(|maps| maps.prompt == self.state.prompt).cloned()
    }
}
