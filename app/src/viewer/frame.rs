//! One frame of the window.

use super::panels::{ROOM_FOR_PROMPTS, hint};
use super::remote::There;
use super::{Shared, Viewer};
use crate::command::Order;
use crate::design::{self, space};
use crate::state::View;
use crate::views::adapt::{self, AdaptScene};
use crate::views::generate::{self, LiveScene};
use crate::views::record;
use eframe::egui::{CentralPanel, Frame, Panel, RichText, Ui};
use std::sync::Arc;

impl Viewer {
    /// Draws the window and runs the user's commands.
    pub fn frame(&mut self, ui: &mut Ui) {
        self.progress();
        self.fetching.begin();
        let (cutoff, policy) = (self.state.cutoff, self.state.policy.clone());
        self.take_dropped_files(ui);
        if !self.dialogs.takes_keys() {
            for order in Order::pressed(ui.ctx()) {
                self.obey(order);
            }
        }
        let palette = design::palette(ui);
        let panel = Frame::new().fill(palette.panel).inner_margin(space::MEDIUM);
        Panel::top("top").frame(panel).show(ui, |ui| self.top_bar(ui));
        Panel::bottom("status").frame(panel).show(ui, |ui| self.status_bar(ui));
        // Displayed in the next frame, because the status line is laid out before the view.
        self.readout = None;
        if self.run.is_some() && ui.ctx().content_rect().width() >= ROOM_FOR_PROMPTS {
            Panel::left("prompts")
                .frame(panel)
                .default_size(design::size::LEFT_PANEL)
                .size_range(140.0..=420.0)
                .show(ui, |ui| self.prompt_list(ui));
        }
        if self.run.is_some() || self.model.is_some() {
            Panel::right("cutoff")
                .frame(panel)
                .default_size(design::size::RIGHT_PANEL)
                .size_range(220.0..=420.0)
                .show(ui, |ui| self.cutoff_panel(ui));
        }
        let central = Frame::new().fill(palette.background).inner_margin(space::MEDIUM);
        CentralPanel::default().frame(central).show(ui, |ui| {
            self.show_notices(ui);
            self.view_size = ui.available_size();
            self.view(ui);
        });
        self.show_dialogs(ui);
        self.follow_marker((cutoff, &policy));
        self.send_tiles(ui);
        self.send_wants();
        let moving = ui.input(|input| input.pointer.any_down());
        if self.run.is_some() && !self.follow_recommendation {
            self.history.observe(&self.state, moving);
        }
    }

    fn view(&mut self, ui: &mut Ui) {
        let busy = self.is_busy();
        match self.state.view {
            View::Record => {
                let model = self.model.as_ref().map(|model| model.name.clone());
                let adapter = self.adapter_name();
                match record::show(ui, &mut self.recorder, model.as_deref(), adapter.as_deref(), busy) {
                    Some(record::Asked::Record) => self.record(),
                    Some(record::Asked::Cancel) => self.stop(),
                    Some(record::Asked::OpenModel | record::Asked::LoadPrompts) => self.obey(Order::Open),
                    None => {}
                }
            }
            View::Generate => self.generate_view(ui, busy),
            View::Adapt => self.adapt_view(ui, busy),
            _ => self.run_view(ui, busy),
        }
    }

    fn generate_view(&mut self, ui: &mut Ui, busy: bool) {
        let live = self.live.clone();
        let model = self.model.as_ref().map_or("the model is loaded when it is needed", |m| m.name.as_str());
        let (policy, model, adapter) = (self.policy_name(), model.to_owned(), self.adapter_name());
        let mut scene = LiveScene {
            form: &mut self.form,
            live: &live,
            state: &mut self.state,
            policy: &policy,
            model: &model,
            adapter: adapter.as_deref(),
            busy,
            has_prompt: self.run.as_ref().is_some_and(|run| !run.prompts.is_empty()),
            chats: self.model.as_ref().is_some_and(|model| model.has_chat_template),
            readout: &mut self.readout,
        };
        match generate::show(ui, &mut scene) {
            Some(generate::Asked::Generate) => self.generate(),
            Some(generate::Asked::Reply) => self.reply(),
            Some(generate::Asked::Keep) => match self.policy() {
                Ok(policy) => self.form.more.push(policy.to_string()),
                Err(error) => self.say_error(error.to_string()),
            },
            Some(generate::Asked::Stop) => self.stop(),
            Some(generate::Asked::TakePrompt) => {
                let prompt = self.run.as_ref().and_then(|run| run.prompts.get(self.state.prompt));
                self.form.prompt = prompt.map_or(String::new(), |prompt| prompt.text.clone());
            }
            None => {}
        }
    }

    fn adapt_view(&mut self, ui: &mut Ui, busy: bool) {
        let model = self.model.as_ref().map(|model| model.name.clone());
        let layers = self.layers();
        let policy = match self.policy() {
            Ok(policy)
                if policy
                    .rows_by_cutoff()
                    .is_some_and(|rows| rows.cutoff < layers || policy.evicts_before_decode()) =>
            {
                Ok(policy.to_string())
            }
            Ok(policy) => Err(format!(
                "no adapter can be trained for {policy}; move the cutoff below {layers}, or choose a budget of KV"
            )),
            Err(error) => Err(error.to_string()),
        };
        let mut scene = AdaptScene {
            adapting: &mut self.adapting,
            model: model.as_deref(),
            layers,
            policy: policy.as_deref().map_err(String::as_str),
            tolerance: self.state.tolerance,
            busy,
            as_table: self.state.as_table,
        };
        match adapt::show(ui, &mut scene) {
            Some(adapt::Asked::Adapt) => self.adapt(),
            Some(adapt::Asked::Cancel) => self.stop(),
            Some(adapt::Asked::Open) => self.obey(Order::Open),
            Some(adapt::Asked::Generate) => self.state.view = View::Generate,
            Some(adapt::Asked::Record) => {
                self.recorder.with_adapter = true;
                self.state.view = View::Record;
            }
            None => {}
        }
    }

    fn run_view(&mut self, ui: &mut Ui, busy: bool) {
        let Some(shared) = self.shared() else {
            self.welcome(ui, busy);
            return;
        };
        if shared.run.prompts.is_empty() {
            ui.centered_and_justified(|ui| ui.label("No prompt of this run is recorded yet."));
            return;
        }
        let (mut state, mut readout, mut actions) = (self.state.clone(), self.readout.take(), vec![]);
        shared.scene(&mut state, &mut readout, &mut actions).show(ui);
        (self.state, self.readout) = (state, readout);
        for action in actions {
            self.act(action);
        }
    }

    pub(super) fn shared(&self) -> Option<Shared> {
        Some(Shared {
            run: self.run.clone()?,
            maps: self.maps_in_front(),
            patterns: Arc::clone(&self.patterns),
            tiles: self.tiles_shown(),
            spans: Arc::clone(&self.spans),
            removing: self.removing.clone(),
            patches: Arc::clone(&self.patches),
            patching: self.patching.clone(),
            measured: self.measured.clone(),
            kept: self.kept(),
            second: self.second.run.clone(),
            compared: self.second.compared.clone(),
            model_is_loaded: self.model.is_some() || self.model_of_run().is_some(),
            is_picture: false,
        })
    }

    /// The window's content without a run.
    fn welcome(&mut self, ui: &mut Ui, busy: bool) {
        ui.vertical_centered(|ui| {
            ui.add_space(ui.available_height() / 4.0);
            ui.label(RichText::new("layerscope").size(design::size::FIGURE).strong());
            ui.label("How deep does a language model need its prompt to go?");
            ui.add_space(space::LARGE);
            let (is_here, is_coming) =
                (self.there.is_none(), self.there.as_ref().is_some_and(There::is_coming));
            if let Some(there) = &self.there {
                ui.weak(format!("on {}", there.host()));
            }
            match &self.opening {
                _ if is_coming => {
                    ui.spinner();
                    ui.label("connecting …");
                }
                // The notice above says what to do.
                _ if self.connection_lost().is_some() => {}
                Some((folder, _)) => {
                    ui.spinner();
                    ui.label(format!("reading {}", folder.display()));
                }
                None if busy => {
                    ui.spinner();
                    ui.label(self.doing.clone().unwrap_or_else(|| "working".into()));
                    if let Some(progress) = &self.recorder.progress {
                        ui.weak(format!("{} of {} prompts", progress.done, progress.all));
                    }
                }
                None => {
                    if ui.button("Open a run folder or a model …").clicked() {
                        self.obey(Order::Open);
                    }
                    if is_here {
                        ui.weak("or drop one here");
                    }
                    self.recent_list(ui);
                }
            }
        });
    }

    fn take_dropped_files(&mut self, ui: &Ui) {
        let (dropped, shift) = ui.input(|input| (input.raw.dropped_files.clone(), input.modifiers.shift));
        for file in dropped {
            let path = file.path().to_owned();
            if self.there.is_some() {
                self.take_dropped_here(&path);
            } else if shift || self.state.view == View::Compare {
                self.compare_with(&path);
            } else {
                self.open(&path);
            }
        }
    }

    fn show_notices(&mut self, ui: &mut Ui) {
        let palette = design::palette(ui);
        let mut again = false;
        if let Some(reason) = self.connection_lost() {
            design::card(palette).show(ui, |ui| {
                ui.horizontal_wrapped(|ui| {
                    ui.label(RichText::new(reason).color(palette.error));
                    if self.run.is_some() {
                        ui.weak("What is shown stays; finished prompts of a recording are in its folder.");
                    }
                    again = ui.button("Reconnect").on_hover_text(hint(ui, Order::Reconnect)).clicked();
                });
            });
        }
        if again {
            self.reconnect();
        }
        let mut closed = None;
        for (index, notice) in self.notices.iter().enumerate() {
            design::card(palette).show(ui, |ui| {
                ui.horizontal_wrapped(|ui| {
                    let colour = if notice.is_error { palette.error } else { palette.good };
                    ui.label(RichText::new(&notice.text).color(colour));
                    if ui.small_button("Dismiss").clicked() {
                        closed = Some(index);
                    }
                });
            });
        }
        if let Some(index) = closed {
            self.notices.remove(index);
        }
    }
}
