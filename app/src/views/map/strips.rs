//! The strips next to the map, on the same layer axis: attention masses, attention knockout and frontier.

use super::{Scene, shown, swatch};
use crate::data::StepFigure;
use crate::design::{self, Palette, space};
use crate::widgets::axis;
use eframe::egui::{
    Align2, Color32, Painter, Rect, Sense, Shape, Stroke, Ui, WidgetInfo, accesskit::Role, pos2,
};
use layerscope_diagnostics::summary::mean;

/// Widths of the strips.
const WIDTHS: [f32; 3] = [146.0, 112.0, 112.0];

/// Range of the logarithmic axis of KL, nats.
const KL_RANGE: (f64, f64) = (1e-4, 10.0);

/// Total width of the strips that fit next to a map within `available`.
pub(super) fn width(available: f32) -> f32 {
    match available {
        _ if available >= 860.0 => WIDTHS.iter().sum(),
        _ if available >= 540.0 => WIDTHS[..2].iter().sum(),
        _ => 0.0,
    }
}

/// Draws one strip.
type Draw = fn(&mut Strip<'_>, &Scene<'_>);

/// Draws the strips into `area`, their layers in the rows of `rows`.
pub(super) fn show(ui: &mut Ui, scene: &mut Scene<'_>, area: Rect, rows: Rect) {
    let strips: [(&str, Draw); 3] =
        [("Attention goes to", masses), ("KL at the cutoff", frontier), ("Knockout KL", knockout)];
    let mut left = area.left();
    for (index, width) in WIDTHS.into_iter().enumerate() {
        if left + width > area.right() + 1.0 {
            break;
        }
        let plot = Rect::from_x_y_ranges(left + space::SMALL..=left + width - space::SMALL, rows.y_range());
        left += width;
        let (title, draw) = strips[index];
        let palette = design::palette(ui);
        let painter = ui.painter().clone();
        let response = ui.interact(plot, ui.scope_id().with(title), Sense::hover());
        response.widget_info(|| WidgetInfo::labeled(Role::Canvas, true, title));
        painter.rect_filled(plot, 0.0, palette.background);
        let layers = scene.run.layers();
        let mut strip = Strip { painter, palette, plot, head: area.top(), layers };
        let at = pos2(plot.left(), area.top());
        strip.painter.text(at, Align2::LEFT_TOP, title, design::caption(), palette.text);
        draw(&mut strip, scene);
        strip.painter.rect_stroke(
            plot,
            0.0,
            Stroke::new(1.0, palette.line),
            eframe::egui::StrokeKind::Outside,
        );
        if let Some(pointer) = response.hover_pos() {
            let share = (pointer.y - plot.top()) / plot.height();
            let text = match index {
                0 => masses_at(scene, share),
                1 => frontier_at(scene, share),
                _ => knockout_at(scene, share),
            };
            *scene.readout = Some(text.replace('\n', "  ·  "));
            response.on_hover_text_at_pointer(text);
        }
    }
}

struct Strip<'a> {
    painter: Painter,
    palette: &'a Palette,
    plot: Rect,
    /// Top of the title.
    head: f32,
    layers: usize,
}

impl Strip<'_> {
    fn row(&self, layer: f64) -> f32 {
        self.plot.top() + (layer / self.layers as f64) as f32 * self.plot.height()
    }

    /// Position of a KL on the logarithmic axis.
    fn kl(&self, kl: f64) -> f32 {
        let (least, most) = KL_RANGE;
        let share = (kl.clamp(least, most) / least).ln() / (most / least).ln();
        self.plot.left() + share as f32 * self.plot.width()
    }

    fn kl_axis(&self) {
        for nats in [1e-3, 1e-2, 1e-1, 1.0] {
            let x = self.kl(nats);
            let ends = [pos2(x, self.plot.top()), pos2(x, self.plot.bottom())];
            self.painter.line_segment(ends, Stroke::new(1.0, self.palette.grid));
        }
        let ticks = [(1e-4, "1e-4"), (1e-2, "0.01"), (1.0, "1")];
        let share = |nats| (self.kl(nats) - self.plot.left()) / self.plot.width();
        let ticks = ticks.map(|(nats, text)| (share(nats), text.to_owned()));
        axis::foot(&self.painter, self.palette, self.plot, ticks);
        self.unit("nats");
    }

    fn unit(&self, unit: &str) {
        let at = pos2(self.plot.center().x, self.plot.bottom() + 20.0);
        self.painter.text(at, Align2::CENTER_TOP, unit, design::caption(), self.palette.weak_text);
    }
}

/// The scope of the masses.
pub(in crate::views) const MASSES: [StepFigure; 3] =
    [StepFigure::PromptMass, StepFigure::BosMass, StepFigure::DecodeMass];

/// Prompt, BoS and decode mass of a layer, which sum to 1: over its selected heads, else the selected steps,
/// else all.
fn masses_of(scene: &Scene<'_>, layer: usize) -> [f64; 3] {
    let (prompt, selection) = (scene.prompt(), &scene.state.selection);
    let heads: Vec<usize> =
        selection.heads.iter().filter(|(of, _)| *of == layer).map(|(_, head)| *head).collect();
    MASSES.map(|figure| match scene.maps {
        _ if !heads.is_empty() => {
            let values = figure.of(&prompt.heads);
            mean(heads.iter().filter_map(|head| values?.get([layer, *head]).copied()))
        }
        Some(maps) if !selection.steps.is_empty() => {
            let values = maps.steps(figure);
            mean(selection.steps.iter().map(|step| f64::from(values.value(layer, *step))))
        }
        _ => {
            let named = prompt.layers.named();
            let curve = named.iter().find(|(name, _)| *name == column(figure)).map(|(_, values)| *values);
            curve.and_then(|values| values.get(layer)).copied().unwrap_or(f64::NAN)
        }
    })
}

/// A mass's column in `layers.parquet`.
fn column(figure: StepFigure) -> &'static str {
    match figure {
        StepFigure::BosMass => "bos_mass",
        StepFigure::DecodeMass => "decode_mass",
        _ => "prompt_mass",
    }
}

/// The masses stacked.
fn masses(strip: &mut Strip<'_>, scene: &Scene<'_>) {
    let colours = [strip.palette.prompt, strip.palette.bos, strip.palette.decode];
    for layer in 0..strip.layers {
        let mut left = strip.plot.left();
        for (mass, colour) in masses_of(scene, layer).into_iter().zip(colours) {
            let width = mass as f32 * strip.plot.width();
            if width.is_nan() {
                continue;
            }
            let gap = if strip.plot.height() / strip.layers as f32 > 5.0 { 1.0 } else { 0.0 };
            let bar = Rect::from_min_max(
                pos2(left, strip.row(layer as f64)),
                pos2(left + width, strip.row(layer as f64 + 1.0) - gap),
            );
            strip.painter.rect_filled(bar, 0.0, colour);
            left += width;
        }
    }
    let ticks = [(0.0, "0"), (0.5, "0.5"), (1.0, "1")].map(|(share, text)| (share, text.to_owned()));
    axis::foot(&strip.painter, strip.palette, strip.plot, ticks);
    strip.unit("share");
    let mut x = strip.plot.left();
    for (name, colour) in ["prompt", "BoS", "decode"].into_iter().zip(colours) {
        x += swatch(&strip.painter, strip.palette, pos2(x, strip.head + 15.0), colour, name) + 2.0;
    }
}

fn masses_at(scene: &Scene<'_>, share: f32) -> String {
    let layer = layer_at(scene, share);
    let [prompt, bos, decode] = masses_of(scene, layer).map(shown);
    let selection = &scene.state.selection;
    let of = match () {
        () if selection.heads.iter().any(|(of, _)| *of == layer) => ", selected heads",
        () if !selection.steps.is_empty() => ", selected steps",
        () => "",
    };
    format!("layer {layer}{of}\nprompt mass {prompt}\nBoS mass {bos}\ndecode mass {decode}")
}

/// The frontier: mean KL over prompts at each cutoff, with its upper bound, and the tolerance.
fn frontier(strip: &mut Strip<'_>, scene: &Scene<'_>) {
    strip.kl_axis();
    let tolerance = strip.kl(scene.state.tolerance);
    strip.painter.extend(Shape::dashed_line(
        &[pos2(tolerance, strip.plot.top()), pos2(tolerance, strip.plot.bottom())],
        Stroke::new(1.0, strip.palette.good),
        4.0,
        3.0,
    ));
    let at = pos2(strip.plot.left(), strip.head + 13.0);
    let caption = format!("all prompts, {}", scene.state.anchor.name());
    strip.painter.text(at, Align2::LEFT_TOP, caption, design::caption(), strip.palette.weak_text);
    let Some(frontier) = scene.run.frontier(scene.state.anchor) else { return };
    let overall = frontier.overall();
    let point = |cutoff: usize, kl: f64| pos2(strip.kl(kl), strip.row(cutoff as f64));
    for (index, (mean, upper)) in overall.cutoffs.iter().zip(&overall.kl_upper95).enumerate() {
        let (from, to) = (point(index + 1, mean.kl), point(index + 1, *upper));
        if mean.kl.is_finite() && upper.is_finite() {
            let band = Stroke::new(3.0, design::faded(strip.palette.cutoff, 0.4));
            strip.painter.line_segment([from, to], band);
        }
    }
    let defined = overall.cutoffs.iter().enumerate().filter(|(_, mean)| mean.kl.is_finite());
    let line: Vec<_> = defined.map(|(index, mean)| point(index + 1, mean.kl)).collect();
    strip.painter.add(Shape::line(line.clone(), Stroke::new(1.5, strip.palette.cutoff)));
    for at in line {
        strip.painter.circle_filled(at, 2.0, strip.palette.cutoff);
    }
}

fn frontier_at(scene: &Scene<'_>, share: f32) -> String {
    let layers = scene.run.layers();
    let cutoff = ((share * layers as f32).round() as usize).clamp(1, layers);
    match scene.run.frontier(scene.state.anchor) {
        Some(frontier) => {
            let overall = frontier.overall();
            let mut text = format!(
                "cutoff {cutoff}\nmean KL {} nats\nupper bound {} nats",
                shown(overall.at(cutoff).kl),
                shown(overall.upper95_at(cutoff))
            );
            let kept = [
                ("texts unchanged", overall.kept.texts_at(cutoff)),
                ("answers kept", overall.kept.answers_at(cutoff)),
            ];
            for (name, kept) in kept.into_iter().filter(|(_, kept)| kept.of > 0) {
                text.push_str(&format!("\n{name}: {} of {}", kept.kept, kept.of));
            }
            text
        }
        None => "no frontier was recorded for this anchor".into(),
    }
}

/// Attention knockout of the current prompt: the divergence when the prompt is hidden at one layer.
fn knockout(strip: &mut Strip<'_>, scene: &Scene<'_>) {
    strip.kl_axis();
    let at = pos2(strip.plot.left(), strip.head + 13.0);
    strip.painter.text(at, Align2::LEFT_TOP, "this prompt", design::caption(), strip.palette.weak_text);
    for row in &scene.prompt().knockout {
        let kl = row.divergence.kl;
        if !kl.is_finite() {
            continue;
        }
        let (top, bottom) = (strip.row(row.layer as f64), strip.row(row.layer as f64 + 1.0));
        let inset = (bottom - top) * 0.15;
        let bar = Rect::from_min_max(
            pos2(strip.plot.left(), top + inset),
            pos2(strip.kl(kl).max(strip.plot.left() + 1.0), bottom - inset),
        );
        strip.painter.rect_filled(bar, 0.0, colour_of(strip.palette));
    }
}

fn colour_of(palette: &Palette) -> Color32 {
    design::faded(palette.prompt, 0.85)
}

fn knockout_at(scene: &Scene<'_>, share: f32) -> String {
    let layer = layer_at(scene, share);
    let kl = scene.prompt().knockout_at(layer).kl;
    format!("prompt hidden at layer {layer} alone\nKL {} nats", shown(kl))
}

fn layer_at(scene: &Scene<'_>, share: f32) -> usize {
    let layers = scene.run.layers();
    ((share * layers as f32).max(0.0) as usize).min(layers - 1)
}
