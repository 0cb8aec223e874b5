//! The budget of KV: the best searched set that fits, in place of a cutoff.

use super::Viewer;
use crate::data::{RunData, short};
use crate::design::{self, size, space};
use eframe::egui::{Grid, Label, RichText, Slider, Ui, WidgetInfo, accesskit::Role, vec2};
use layerscope_cutoff::budget::BudgetPoint;

/// The policy of the marker.
const AT_THE_MARKER: &str = "speed";

/// Width of the slider's value.
const VALUE: f32 = 60.0;

impl Viewer {
    /// Index of the set that is the chosen policy.
    fn set_in_use(&self, run: &RunData) -> Option<usize> {
        run.sets.iter().position(|set| set.policy == self.state.policy)
    }

    /// Leaves the set once the marker is moved from where it was.
    pub(super) fn follow_marker(&mut self, (cutoff, policy): (usize, &str)) {
        let Some(run) = self.run.clone() else { return };
        let is_moved = self.state.cutoff != cutoff && self.state.policy == policy;
        if is_moved && self.set_in_use(&run).is_some() {
            self.state.policy = AT_THE_MARKER.into();
        }
    }

    pub(super) fn budget_card(&mut self, ui: &mut Ui, run: &RunData) {
        let chosen = self.set_in_use(run);
        ui.horizontal(|ui| {
            ui.label(RichText::new("KV budget").strong());
            if chosen.is_some() && ui.small_button("Back to the cutoff").clicked() {
                self.state.policy = AT_THE_MARKER.into();
            }
        });
        if let Err(problem) = &run.budgets {
            ui.label(RichText::new(problem).color(design::palette(ui).error));
            return;
        }
        // Ascending, as on an axis.
        let sets: Vec<&BudgetPoint> = run.sets.iter().rev().collect();
        let mut index = chosen.map_or(sets.len(), |chosen| sets.len() - chosen) - 1;
        let shares: Vec<f64> = sets.iter().map(|set| 100.0 * set.kv_kept).collect();
        let typed = shares.clone();
        ui.spacing_mut().slider_width = ui.available_width() - VALUE;
        let slider = Slider::new(&mut index, 0..=sets.len() - 1)
            .custom_formatter(move |index, _| {
                shares.get(index as usize).map_or(String::new(), |share| format!("{share:.0} %"))
            })
            .custom_parser(move |text| {
                let budget: f64 = text.trim().trim_end_matches('%').trim().parse().ok()?;
                let fits = typed.iter().rposition(|share| *share <= budget + 0.5);
                Some(fits.unwrap_or(0) as f64)
            });
        let response = ui.add(slider);
        response.widget_info(|| WidgetInfo::slider(true, index as f64, "KV budget"));
        if response
            .on_hover_text("KV bytes that stay, of the full model’s: the best searched set that fits")
            .changed()
        {
            self.state.policy = sets[index].policy.clone();
        }
        match sets.get(index).filter(|set| set.policy == self.state.policy) {
            Some(set) => self.set_in_card(ui, set),
            None => {
                ui.weak("Drag to drop the prompt from KV heads, cheapest first");
            }
        }
    }

    fn set_in_card(&self, ui: &mut Ui, set: &BudgetPoint) {
        let palette = design::palette(ui);
        let passes = set.kl <= self.state.tolerance;
        ui.horizontal(|ui| {
            let colour = if passes { palette.good } else { palette.cutoff };
            let figure = ui.label(RichText::new(short(set.kl as f32)).size(size::FIGURE).color(colour));
            figure
                .widget_info(|| WidgetInfo::labeled(Role::Label, true, format!("KL of the set: {}", set.kl)));
            ui.vertical(|ui| {
                ui.weak("nats per token");
                ui.weak(format!("≤ {} at 95 %", short(set.kl_upper95 as f32)));
            });
        });
        Grid::new("budget").num_columns(2).spacing(vec2(space::MEDIUM, 2.0)).show(ui, |ui| {
            super::cutoff_panel::row(
                ui,
                "KV kept",
                &format!("{:.1} %", 100.0 * set.kv_kept),
                "share of the bytes of keys and values at this run’s lengths, decode tokens included",
            );
            if set.answers > 0 {
                super::cutoff_panel::row(
                    ui,
                    "answers kept",
                    &format!("{} of {}", set.answers_kept, set.answers),
                    "of the expected answers that the full model gives, on prompts that the search did not look at",
                );
            }
        });
        let name = Label::new(RichText::new(&set.policy).monospace().small()).truncate();
        ui.add(name).on_hover_text(&set.policy);
    }
}
