//! The cutoff panel: divergence, categories, savings and recommendation.

use super::Viewer;
use crate::command::Order;
use crate::data::{RunData, short};
use crate::design::{self, Palette, size, space};
use eframe::egui::{
    Button, CollapsingHeader, ComboBox, DragValue, Grid, RichText, ScrollArea, Ui, WidgetInfo,
    accesskit::Role, vec2,
};
use layerscope_cutoff::recommend::{Criterion, FrontierSummary, Kept, Options, Recommendation, Verdict};
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::readable_bytes;

impl Viewer {
    pub(super) fn cutoff_panel(&mut self, ui: &mut Ui) {
        let palette = design::palette(ui);
        ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            self.cutoff_controls(ui);
            let Some(run) = self.run.clone() else {
                ui.weak("Record prompts to see what each cutoff costs.");
                return;
            };
            let frontier = run.frontier(self.state.anchor);
            if let Some(frontier) = frontier {
                in_card(ui, |ui| cost(ui, palette, frontier, self.state.cutoff, &self.state.options()));
            }
            if run.budgets.is_err() || !run.sets.is_empty() {
                in_card(ui, |ui| self.budget_card(ui, &run));
            }
            in_card(ui, |ui| self.recommendation_card(ui));
            if let Some(frontier) = frontier {
                in_card(ui, |ui| categories(ui, palette, frontier, self.state.cutoff, &self.state.options()));
            }
            in_card(ui, |ui| self.savings(ui, &run));
        });
    }

    fn savings(&self, ui: &mut Ui, run: &RunData) {
        let saved = run.savings(self.state.cutoff, self.state.anchor);
        ui.label(RichText::new("Saved at this run’s lengths").strong());
        Grid::new("savings").num_columns(2).spacing(vec2(space::MEDIUM, 2.0)).show(ui, |ui| {
            let prompts = run.prompts.len().max(1) as f64;
            let each = |sum: u64| readable_bytes(sum as f64 / prompts);
            row(ui, "KV", &percent(saved.kv_saved), "share of the bytes of keys and values");
            let from_to = format!("{} → {}", each(saved.kv_bytes_full), each(saved.kv_bytes_cut));
            row(ui, "", &from_to, "mean per prompt");
            row(ui, "Prefill FLOPs", &percent(saved.flops_saved), "by layer tokens");
            row(
                ui,
                "TTFT, predicted",
                &percent(saved.predicted_ttft_saved),
                "from the layers of the prefill",
            );
            row(ui, "TPOT, predicted", &percent(saved.predicted_tpot_saved), "from the bytes read in a step");
            if let Some(measured) = self.measured.iter().find(|one| one.cutoff == self.state.cutoff) {
                row(ui, "TTFT, live", &percent(measured.ttft_saved), "measured by generating live");
                let tpot = measured.tpot_saved.map_or("–".into(), percent);
                row(ui, "TPOT, live", &tpot, "measured by generating live");
            }
        });
    }

    fn recommendation_card(&mut self, ui: &mut Ui) {
        ui.horizontal(|ui| {
            ui.label(RichText::new("Recommended").strong());
            let label = ui.weak("within");
            let field = DragValue::new(&mut self.state.tolerance)
                .range(0.0..=10.0)
                .speed(0.002)
                .max_decimals(4)
                .suffix(" nats");
            ui.add(field).labelled_by(label.id).on_hover_text("Largest mean KL accepted");
        });
        ui.horizontal(|ui| {
            let about = "What a recommended cutoff must hold to besides the tolerance";
            let names = Criterion::ALL.map(|criterion| (criterion, criterion_name(criterion)));
            choice(ui, ["keeping", "Keeping"], about, &mut self.state.criterion, &names);
        });
        let palette = design::palette(ui);
        let go = match self.recommendation.as_ref().map(|found| &found.outcome) {
            Some(Ok(recommendation)) => card(ui, palette, recommendation, self.state.cutoff),
            Some(Err(sentence)) => {
                ui.label(sentence);
                false
            }
            None => {
                ui.spinner();
                false
            }
        };
        if go {
            self.obey(Order::Recommended);
        }
    }

    fn cutoff_controls(&mut self, ui: &mut Ui) {
        let layers = self.layers();
        ui.horizontal(|ui| {
            let label = ui.label(RichText::new("Cutoff").strong());
            let mut cutoff = self.state.cutoff.clamp(1, layers);
            let field = DragValue::new(&mut cutoff).range(1..=layers).speed(0.1);
            let hover = "The prompt runs through and keeps KV in this many layers";
            if ui.add(field).labelled_by(label.id).on_hover_text(hover).changed() {
                self.state.cutoff = cutoff;
            }
            ui.weak(format!("of {layers} layers"));
        });
        ui.horizontal(|ui| {
            let about = "Prompt tokens that keep KV at every layer";
            let names = Anchor::ALL.map(|anchor| (anchor, anchor_name(anchor)));
            choice(ui, ["anchor", "Anchor"], about, &mut self.state.anchor, &names);
        });
    }
}

fn in_card(ui: &mut Ui, contents: impl FnOnce(&mut Ui)) {
    design::card(design::palette(ui)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        contents(ui);
    });
}

/// A list to choose from; `label` as shown, and as it begins the spoken name.
fn choice<T: Copy + PartialEq>(
    ui: &mut Ui,
    [label, spoken]: [&str; 2],
    about: &str,
    value: &mut T,
    names: &[(T, &str)],
) {
    let shown = names.iter().find(|(known, _)| known == value).map_or("", |(_, name)| *name);
    let shown_label = ui.weak(label);
    let list = ComboBox::from_id_salt(label).selected_text(shown).show_ui(ui, |ui| {
        for (item, name) in names {
            ui.selectable_value(value, *item, *name);
        }
    });
    list.response.widget_info(|| WidgetInfo::labeled(Role::ComboBox, true, format!("{spoken}: {shown}")));
    list.response.labelled_by(shown_label.id).on_hover_text(about);
}

fn anchor_name(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Bos => "BoS (position 0)",
        Anchor::None => "none",
    }
}

fn criterion_name(criterion: Criterion) -> &'static str {
    match criterion {
        Criterion::Answers => "95 % of answers",
        Criterion::Kl => "KL alone",
        Criterion::Text => "95 % of texts",
    }
}

pub(super) fn row(ui: &mut Ui, name: &str, figure: &str, about: &str) {
    ui.label(RichText::new(name).weak()).on_hover_text(about);
    ui.label(RichText::new(figure).monospace()).on_hover_text(about);
    ui.end_row();
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// How many of what there is are kept, if there is any.
fn kept(ui: &mut Ui, name: &str, kept: Kept, about: &str) {
    if kept.of > 0 {
        let [lower, upper] = kept.interval95().map(|share| share * 100.0);
        let about = format!("{about}; 95 % interval {lower:.0} to {upper:.0} %");
        row(ui, name, &format!("{} of {}", kept.kept, kept.of), &about);
    }
}

/// The exact divergence at the cutoff.
fn cost(ui: &mut Ui, palette: &Palette, frontier: &FrontierSummary, cutoff: usize, options: &Options) {
    let overall = frontier.overall();
    let at = overall.at(cutoff);
    let passes = frontier.passes(cutoff, options);
    ui.horizontal(|ui| {
        let colour = if passes { palette.good } else { palette.cutoff };
        let figure = ui.label(RichText::new(short(at.kl as f32)).size(size::FIGURE).color(colour));
        figure.widget_info(|| {
            WidgetInfo::labeled(Role::Label, true, format!("KL at cutoff {cutoff}: {}", at.kl))
        });
        ui.vertical(|ui| {
            ui.weak("nats per token");
            ui.weak(format!("≤ {} at 95 %", short(overall.upper95_at(cutoff) as f32)));
        });
    });
    let verdict = match frontier.groups.iter().all(|group| group.within(cutoff, options.tolerance)) {
        _ if passes => "within the tolerance for every category",
        true => "within the tolerance, but too much is lost",
        false => "exceeds the tolerance",
    };
    ui.label(RichText::new(verdict).small().color(if passes { palette.good } else { palette.cutoff }));
    Grid::new("cost").num_columns(2).spacing(vec2(space::MEDIUM, 2.0)).show(ui, |ui| {
        row(ui, "same top token", &percent(at.top1), "share of steps");
        kept(ui, "texts unchanged", overall.kept.texts_at(cutoff), "greedy texts that are the full model’s");
        kept(
            ui,
            "answers kept",
            overall.kept.answers_at(cutoff),
            "of the expected answers that the full model gives",
        );
        row(ui, "ΔNLL", &format!("{:+.4}", at.dnll), "nats per token of the continuation");
        if cutoff > 1 {
            row(
                ui,
                &format!("KL at cutoff {}", cutoff - 1),
                &short(overall.at(cutoff - 1).kl as f32),
                "how sharp the edge is, nats",
            );
        }
        row(ui, "prompts", &overall.prompts.to_string(), "with a defined frontier");
    });
}

/// Each category at the cutoff, largest divergence first.
fn categories(ui: &mut Ui, palette: &Palette, frontier: &FrontierSummary, cutoff: usize, options: &Options) {
    let mut groups: Vec<_> = frontier.categories().iter().collect();
    groups.sort_by(|a, b| b.at(cutoff).kl.total_cmp(&a.at(cutoff).kl));
    let suffering = groups.iter().filter(|group| !group.passes(cutoff, options)).count();
    let title = match suffering {
        0 => "No category suffers".to_owned(),
        1 => "1 category suffers".to_owned(),
        many => format!("{many} categories suffer"),
    };
    ui.label(RichText::new(title).strong());
    Grid::new("categories").num_columns(3).min_col_width(0.0).spacing(vec2(space::MEDIUM, 2.0)).show(
        ui,
        |ui| {
            for group in groups {
                let within = group.passes(cutoff, options) || cutoff == group.cutoffs.len();
                let colour = if within { palette.text } else { palette.cutoff };
                ui.label(if within { "" } else { "!" });
                ui.label(RichText::new(group.category.as_deref().unwrap_or_default()).color(colour));
                let kl = format!("{:.4}", group.at(cutoff).kl);
                let answers = group.kept.answers_at(cutoff);
                let answered = match answers.of {
                    0 => String::new(),
                    of => format!("; {} of {of} answers kept", answers.kept),
                };
                ui.label(RichText::new(kl).monospace().color(colour)).on_hover_text(format!(
                    "mean KL of {} prompts, nats; ≤ {} at 95 %{answered}",
                    group.prompts,
                    short(group.upper95_at(cutoff) as f32)
                ));
                ui.end_row();
            }
        },
    );
}

/// The recommendation with its reasons; returns whether to move the cutoff there.
fn card(ui: &mut Ui, palette: &Palette, recommendation: &Recommendation, cutoff: usize) -> bool {
    let mut go = false;
    match recommendation.verdict {
        Verdict::Cut => {
            let text = format!("{} of {}", recommendation.l_cut, recommendation.layers);
            ui.label(RichText::new(text).size(size::FIGURE).color(palette.good));
        }
        Verdict::KeepFullDepth => {
            ui.label(RichText::new("Keep full depth").size(size::HEADING).color(palette.warning));
        }
    }
    let there = cutoff == recommendation.l_cut;
    let text = if there { "The marker is there" } else { "Put the marker there" };
    if ui.add_enabled(!there, Button::new(text)).clicked() {
        go = true;
    }
    ui.weak(recommendation.caveat());
    CollapsingHeader::new("Why").show(ui, |ui| {
        for reason in &recommendation.reasons {
            ui.label(format!("• {reason}"));
        }
    });
    go
}
