//! The toolbars and the list of prompts around the view.

use super::Viewer;
use crate::command::Order;
use crate::design::{self, space};
use crate::export::ExportFormat;
use crate::state::View;
use crate::widgets::{count, token_label};
use eframe::egui::accesskit::Role;
use eframe::egui::text::LayoutJob;
use eframe::egui::{
    Align, Button, ComboBox, Layout, Response, RichText, ScrollArea, TextFormat, TextStyle, Theme, Ui,
    WidgetInfo,
};
use std::path::PathBuf;

/// Windows of less width have a menu of the views instead of tabs.
const ROOM_FOR_TABS: f32 = 1_280.0;
/// Windows of less width have a menu of the prompts instead of their list.
pub(super) const ROOM_FOR_PROMPTS: f32 = 1_000.0;

impl Viewer {
    pub(super) fn top_bar(&mut self, ui: &mut Ui) {
        ui.horizontal(|ui| {
            let mut order = None;
            if ui.button("Open …").on_hover_text(hint(ui, Order::Open)).clicked() {
                order = Some(Order::Open);
            }
            ui.separator();
            let width = ui.ctx().content_rect().width();
            let view = if width < ROOM_FOR_TABS { self.view_menu(ui) } else { self.view_tabs(ui) };
            order = order.or(view);
            if width < ROOM_FOR_PROMPTS {
                self.prompt_menu(ui);
            }
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if ui.button("Help").on_hover_text(hint(ui, Order::Help)).clicked() {
                    order = Some(Order::Help);
                }
                if ui.button("Commands").on_hover_text(hint(ui, Order::Palette)).clicked() {
                    order = Some(Order::Palette);
                }
                let other = if ui.theme() == Theme::Dark { "Light" } else { "Dark" };
                if ui.button(other).on_hover_text(hint(ui, Order::Theme)).clicked() {
                    order = Some(Order::Theme);
                }
                ui.menu_button("Export", |ui| {
                    for one in ExportFormat::all().map(Order::Export) {
                        if ui.button(one.name()).on_hover_text(hint(ui, one)).clicked() {
                            order = Some(one);
                            ui.close();
                        }
                    }
                });
                let table = ui.selectable_label(self.state.as_table, "Table");
                if table.on_hover_text(hint(ui, Order::Table)).clicked() {
                    order = Some(Order::Table);
                }
                for (one, text, can) in [
                    (Order::Redo, "Redo", self.history.can_redo()),
                    (Order::Undo, "Undo", self.history.can_undo()),
                ] {
                    if ui.add_enabled(can, Button::new(text)).on_hover_text(hint(ui, one)).clicked() {
                        order = Some(one);
                    }
                }
            });
            if let Some(order) = order {
                self.obey(order);
            }
        });
    }

    fn view_tabs(&self, ui: &mut Ui) -> Option<Order> {
        let mut order = None;
        for view in View::ALL {
            let tab = ui.selectable_label(self.state.view == view, view.name());
            if tab.on_hover_text(about(ui, view)).clicked() {
                order = Some(Order::Show(view));
            }
        }
        order
    }

    /// The views in a narrow window.
    fn view_menu(&self, ui: &mut Ui) -> Option<Order> {
        let mut order = None;
        let menu = ComboBox::from_id_salt("view").selected_text(self.state.view.name()).width(88.0).show_ui(
            ui,
            |ui| {
                for view in View::ALL {
                    let item = ui.selectable_label(self.state.view == view, view.name());
                    if item.on_hover_text(about(ui, view)).clicked() {
                        order = Some(Order::Show(view));
                    }
                }
            },
        );
        name_menu(menu.response, format!("View: {}", self.state.view.name()));
        order
    }

    /// The prompts in a narrow window, which has no room for their list.
    fn prompt_menu(&mut self, ui: &mut Ui) {
        let Some(run) = self.run.clone() else { return };
        let Some(shown) = run.prompts.get(self.state.prompt) else { return };
        let mut chosen = None;
        let menu = ComboBox::from_id_salt("prompt").selected_text(&shown.id).width(110.0).truncate().show_ui(
            ui,
            |ui| {
                for (index, prompt) in run.prompts.iter().enumerate() {
                    let text = format!("{} · {} · {} tokens", prompt.id, prompt.category, prompt.p);
                    if ui.selectable_label(self.state.prompt == index, text).clicked() {
                        chosen = Some(index);
                    }
                }
            },
        );
        name_menu(menu.response, format!("Prompt: {}", shown.id));
        if let Some(index) = chosen {
            self.show_prompt(index);
        }
    }

    pub(super) fn status_bar(&mut self, ui: &mut Ui) {
        ui.horizontal(|ui| {
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                let model = match (&self.model, &self.doing) {
                    (_, Some(doing)) => doing.clone(),
                    (Some(model), None) => {
                        format!("{} ready, {}, {}", model.name, model.precision, model.device)
                    }
                    (None, None) => String::new(),
                };
                let there = self.there.as_ref().map(|there| match there.gone() {
                    Some(_) => format!("{}, not connected", there.host()),
                    None if there.is_coming() => format!("connecting to {}", there.host()),
                    None => there.host().to_owned(),
                });
                let parts = [there, Some(model).filter(|model| !model.is_empty())];
                ui.weak(parts.into_iter().flatten().collect::<Vec<_>>().join(" · "));
                if self.opening.is_some() || self.reading.is_some() || self.exporting.is_some() {
                    ui.spinner();
                }
                ui.with_layout(Layout::left_to_right(Align::Center), |ui| {
                    let text = self.readout.clone().unwrap_or_else(|| {
                        match (self.state.view, &self.run) {
                            (View::Map | View::Patching, Some(_)) => {
                                "scroll zooms, drag pans, click selects, drag the orange line to move the cutoff"
                            }
                            (View::Pattern, Some(_)) => {
                                "scroll zooms, with Shift keys alone, with Alt queries alone; drag pans, click selects"
                            }
                            _ => "",
                        }
                        .into()
                    });
                    ui.add(eframe::egui::Label::new(text).truncate());
                });
            });
        });
    }

    pub(super) fn prompt_list(&mut self, ui: &mut Ui) {
        let Some(run) = self.run.clone() else { return };
        let model = &run.manifest.model;
        ui.label(RichText::new(&model.name).strong());
        ui.weak(format!("{} layers, {} heads", model.layers, model.heads));
        if let (Some(window), false) = (model.window, model.windowed_layers.is_empty()) {
            let layers = model.windowed_layers.len();
            ui.weak(format!("windowed layers: {layers}, {window} tokens"));
        }
        let folder = run.folder.file_name().unwrap_or(run.folder.as_os_str()).to_string_lossy();
        ui.weak(folder.as_ref()).on_hover_text(run.folder.display().to_string());
        ui.separator();
        ui.label(RichText::new(count(run.prompts.len(), "prompt")).strong());
        let height = ui.text_style_height(&TextStyle::Body) + ui.text_style_height(&TextStyle::Small) + 12.0;
        let mut chosen = None;
        ScrollArea::vertical().auto_shrink(false).show_rows(ui, height, run.prompts.len(), |ui, rows| {
            for index in rows {
                let prompt = &run.prompts[index];
                let start: String = token_label(&prompt.text).chars().take(60).collect();
                let palette = design::palette(ui);
                let mut job = LayoutJob::default();
                job.append(&prompt.id, 0.0, TextFormat::simple(design::body(), palette.text));
                let caption = format!("\n{} · {} tokens", prompt.category, prompt.p);
                job.append(&caption, 0.0, TextFormat::simple(design::caption(), palette.weak_text));
                job.wrap.max_width = ui.available_width();
                job.wrap.max_rows = 2;
                let width = ui.available_width();
                let button = Button::selectable(self.state.prompt == index, job)
                    .min_size([width, height - 4.0].into());
                if ui.add(button).on_hover_text(start).clicked() {
                    chosen = Some(index);
                }
            }
        });
        if let Some(index) = chosen {
            self.show_prompt(index);
        }
    }

    pub(super) fn recent_list(&mut self, ui: &mut Ui) {
        if self.recent.is_empty() {
            return;
        }
        ui.add_space(space::LARGE);
        ui.weak("Recent");
        let mut chosen: Option<PathBuf> = None;
        for path in &self.recent {
            if ui.link(path.display().to_string()).clicked() {
                chosen = Some(path.clone());
            }
        }
        if let Some(path) = chosen {
            self.open(&path);
        }
    }
}

/// Tells screen readers what a menu chooses.
fn name_menu(menu: Response, name: String) {
    menu.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, &name));
}

/// What a view shows, for tooltips.
fn about(ui: &Ui, view: View) -> String {
    format!("{}\n{}", view.description(), hint(ui, Order::Show(view)))
}

/// A command's shortcut, for tooltips.
pub(super) fn hint(ui: &Ui, order: Order) -> String {
    order.shortcut().map_or(String::new(), |shortcut| ui.ctx().format_shortcut(&shortcut))
}
