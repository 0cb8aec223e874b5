//! Design tokens: every colour, size and type style of the viewer. No other file defines a colour.
//!
//! Figures have the colours of `layerscope_figures`, which also draws exports and reports.

use eframe::egui::{
    self, Color32, CornerRadius, FontFamily, FontId, Margin, Stroke, TextStyle, Theme, Visuals, vec2,
};
pub use layerscope_figures::ColourMap;
use layerscope_figures::{Colour, Ink, colour};

/// Spaces, in points.
pub mod space {
    /// Between related items.
    pub const SMALL: f32 = 4.0;
    /// Between items.
    pub const MEDIUM: f32 = 8.0;
    /// Between groups.
    pub const LARGE: f32 = 16.0;
}

/// Sizes, in points.
pub mod size {
    /// Body text.
    pub const TEXT: f32 = 13.0;
    /// Text that is read as a page, at least.
    pub const READING: f32 = 16.0;
    /// Axis labels and captions.
    pub const CAPTION: f32 = 12.0;
    /// Headings of cards and views.
    pub const HEADING: f32 = 15.0;
    /// The main number of a card.
    pub const FIGURE: f32 = 26.0;
    /// Width of the list of prompts.
    pub const LEFT_PANEL: f32 = 210.0;
    /// Width of the cutoff's panel.
    pub const RIGHT_PANEL: f32 = 264.0;
    /// Thickness of the cutoff's line.
    pub const MARKER: f32 = 2.0;
    /// Distance at which the pointer grabs the cutoff's line.
    pub const MARKER_REACH: f32 = 6.0;
    /// Space for an axis with its numbers and name.
    pub const AXIS: f32 = 46.0;
    /// Width of the colour bar.
    pub const COLOUR_BAR: f32 = 12.0;
}

/// Colours of one theme.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Palette {
    /// Behind everything.
    pub background: Color32,
    /// Panels beside the view.
    pub panel: Color32,
    /// Cards on panels.
    pub card: Color32,
    /// Lines between areas, and axes.
    pub line: Color32,
    /// Grid lines in charts.
    pub grid: Color32,
    /// Text.
    pub text: Color32,
    /// Captions, units and other secondary text.
    pub weak_text: Color32,
    /// Buttons and selected items.
    pub accent: Color32,
    /// Text on [`Self::accent`].
    pub on_accent: Color32,
    /// The cutoff.
    pub cutoff: Color32,
    /// Outline of the cutoff's line and of selections, visible on any colour of a map.
    pub halo: Color32,
    /// Overlay of layers without the prompt.
    pub absent: Color32,
    /// The frame of a selection in a map.
    pub selection: Color32,
    /// Errors.
    pub error: Color32,
    /// Warnings.
    pub warning: Color32,
    /// Success messages.
    pub good: Color32,
    /// Background of the token that receives most attention; fainter for the others.
    pub shade: Color32,
    /// Attention on position 0.
    pub bos: Color32,
    /// Attention on the prompt.
    pub prompt: Color32,
    /// Attention on decode tokens.
    pub decode: Color32,
    /// The two stripes of an undefined cell.
    pub undefined: [Color32; 2],
}

const DARK: Palette = Palette {
    background: colour32(colour::DARK.background),
    panel: Color32::from_rgb(0x1a, 0x1d, 0x22),
    card: Color32::from_rgb(0x23, 0x27, 0x2e),
    line: colour32(colour::DARK.line),
    grid: colour32(colour::DARK.grid),
    text: colour32(colour::DARK.text),
    weak_text: colour32(colour::DARK.weak_text),
    accent: Color32::from_rgb(0x56, 0xb4, 0xe9),
    on_accent: Color32::from_rgb(0x0a, 0x14, 0x1c),
    cutoff: colour32(colour::DARK.cutoff),
    halo: Color32::from_rgb(0x0c, 0x0d, 0x10),
    absent: Color32::from_rgba_premultiplied(0x0e, 0x10, 0x13, 0x9c),
    selection: Color32::WHITE,
    error: Color32::from_rgb(0xff, 0x8a, 0x80),
    warning: Color32::from_rgb(0xf0, 0xc0, 0x5a),
    good: colour32(colour::DARK.good),
    shade: Color32::from_rgb(0x1f, 0x6f, 0xb0),
    bos: colour32(colour::DARK.bos),
    prompt: colour32(colour::DARK.prompt),
    decode: colour32(colour::DARK.decode),
    undefined: [colour32(colour::DARK.undefined[0]), colour32(colour::DARK.undefined[1])],
};

const LIGHT: Palette = Palette {
    background: colour32(colour::LIGHT.background),
    panel: Color32::from_rgb(0xf4, 0xf5, 0xf7),
    card: Color32::from_rgb(0xff, 0xff, 0xff),
    line: colour32(colour::LIGHT.line),
    grid: colour32(colour::LIGHT.grid),
    text: colour32(colour::LIGHT.text),
    weak_text: colour32(colour::LIGHT.weak_text),
    accent: Color32::from_rgb(0x00, 0x62, 0x9c),
    on_accent: Color32::WHITE,
    cutoff: colour32(colour::LIGHT.cutoff),
    halo: Color32::WHITE,
    absent: Color32::from_rgba_premultiplied(0x9c, 0x9c, 0x9c, 0x9c),
    selection: Color32::BLACK,
    error: Color32::from_rgb(0xb3, 0x1d, 0x1d),
    warning: Color32::from_rgb(0x8a, 0x5a, 0x00),
    good: colour32(colour::LIGHT.good),
    shade: Color32::from_rgb(0xff, 0xb5, 0x3d),
    bos: colour32(colour::LIGHT.bos),
    prompt: colour32(colour::LIGHT.prompt),
    decode: colour32(colour::LIGHT.decode),
    undefined: [colour32(colour::LIGHT.undefined[0]), colour32(colour::LIGHT.undefined[1])],
};

/// The palette of a theme.
pub fn palette_of(theme: Theme) -> &'static Palette {
    match theme {
        Theme::Dark => &DARK,
        Theme::Light => &LIGHT,
    }
}

/// The current palette.
pub fn palette(ui: &egui::Ui) -> &'static Palette {
    palette_of(ui.theme())
}

/// Converts a figure's colour.
pub const fn colour32(Colour { rgb: [r, g, b] }: Colour) -> Color32 {
    Color32::from_rgb(r, g, b)
}

/// The theme that figures are drawn in.
pub fn figure_theme(theme: Theme) -> layerscope_figures::Theme {
    match theme {
        Theme::Dark => layerscope_figures::Theme::Dark,
        Theme::Light => layerscope_figures::Theme::Light,
    }
}

/// The colour of a figure's ink in a theme.
pub fn ink(theme: Theme, ink: Ink) -> Color32 {
    colour32(ink.colour(figure_theme(theme)))
}

/// The shade over something of which a share is absent.
pub fn veil(palette: &Palette, absent: f64) -> Color32 {
    palette.absent.gamma_multiply(absent.clamp(0.0, 1.0) as f32)
}

/// A colour at an opacity, for bands and shades.
pub fn faded(colour: Color32, opacity: f32) -> Color32 {
    colour.gamma_multiply(opacity)
}

/// Captions and axis labels.
pub fn caption() -> FontId {
    FontId::new(size::CAPTION, FontFamily::Proportional)
}

/// Numbers in columns and on axes.
pub fn figures() -> FontId {
    FontId::new(size::CAPTION, FontFamily::Monospace)
}

/// Prompt text.
pub fn body() -> FontId {
    FontId::new(size::TEXT, FontFamily::Proportional)
}

/// Text that is read as a page, enlarged by a factor.
pub fn reading(factor: f32) -> FontId {
    FontId::new((size::READING * factor).round(), FontFamily::Proportional)
}

/// Sets a context's themes, type sizes and spacing.
pub fn apply(ctx: &egui::Context) {
    for theme in [Theme::Dark, Theme::Light] {
        ctx.set_visuals_of(theme, visuals(theme));
        ctx.style_mut_of(theme, |style| {
            for (text_style, points) in [
                (TextStyle::Small, size::CAPTION),
                (TextStyle::Body, size::TEXT),
                (TextStyle::Button, size::TEXT),
                (TextStyle::Heading, size::HEADING),
            ] {
                style.text_styles.insert(text_style, FontId::new(points, FontFamily::Proportional));
            }
            style.text_styles.insert(TextStyle::Monospace, FontId::new(size::TEXT, FontFamily::Monospace));
            style.spacing.item_spacing = vec2(space::MEDIUM, space::SMALL + 1.0);
            style.spacing.button_padding = vec2(space::MEDIUM, 3.0);
            style.spacing.menu_margin = Margin::same(6);
            style.interaction.selectable_labels = true;
        });
    }
}

/// Adds the system's fonts to a context without a window, for glyphs that the built-in fonts lack (CJK,
/// Arabic, emoji). Windows do this by themselves.
#[cfg(not(target_arch = "wasm32"))]
pub fn use_system_fonts(ctx: &egui::Context) {
    ctx.add_font_provider(std::sync::Arc::new(egui_system_font_provider::SystemFontProvider::new()));
}

fn visuals(theme: Theme) -> Visuals {
    let palette = palette_of(theme);
    let mut visuals = match theme {
        Theme::Dark => Visuals::dark(),
        Theme::Light => Visuals::light(),
    };
    visuals.override_text_color = Some(palette.text);
    visuals.weak_text_color = Some(palette.weak_text);
    visuals.panel_fill = palette.panel;
    visuals.window_fill = palette.card;
    visuals.extreme_bg_color = palette.background;
    visuals.faint_bg_color = faded(palette.line, 0.25);
    visuals.window_stroke = Stroke::new(1.0, palette.line);
    visuals.hyperlink_color = palette.accent;
    visuals.error_fg_color = palette.error;
    visuals.warn_fg_color = palette.warning;
    visuals.selection.bg_fill = faded(palette.accent, 0.35);
    visuals.selection.stroke = Stroke::new(1.0, palette.text);
    for (widget, fill) in [
        (&mut visuals.widgets.noninteractive, palette.panel),
        (&mut visuals.widgets.inactive, faded(palette.line, 0.6)),
        (&mut visuals.widgets.hovered, palette.line),
        (&mut visuals.widgets.active, faded(palette.accent, 0.5)),
        (&mut visuals.widgets.open, palette.line),
    ] {
        widget.bg_fill = fill;
        widget.weak_bg_fill = fill;
        widget.corner_radius = CornerRadius::same(4);
        widget.fg_stroke = Stroke::new(1.0, palette.text);
    }
    // A blinking cursor would redraw the whole window twice a second.
    visuals.text_cursor.blink = false;
    visuals.text_edit_bg_color = Some(palette.card);
    visuals.widgets.inactive.bg_stroke = Stroke::new(1.0, palette.line);
    visuals.widgets.noninteractive.bg_stroke = Stroke::new(1.0, palette.line);
    visuals
}

/// A card on a panel.
pub fn card(palette: &Palette) -> egui::Frame {
    egui::Frame::new()
        .fill(palette.card)
        .stroke(Stroke::new(1.0, palette.line))
        .corner_radius(6.0)
        .inner_margin(Margin::symmetric(10, 8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(colour: Color32) -> f32 {
        let [r, g, b, _] = egui::Rgba::from(colour).to_array();
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: Color32, b: Color32) -> f32 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_is_legible_on_what_it_stands_on() {
        for palette in [&DARK, &LIGHT] {
            for background in [palette.background, palette.panel, palette.card] {
                // WCAG 2.2, 1.4.3: 4.5 for text.
                for text in [palette.text, palette.weak_text, palette.error, palette.warning, palette.good] {
                    assert!(contrast(text, background) >= 4.5, "{text:?} on {background:?}");
                }
                // 1.4.11: 3 for meaningful lines.
                assert!(contrast(palette.cutoff, background) >= 3.0);
            }
            assert!(contrast(palette.on_accent, palette.accent) >= 4.5);
            assert!(contrast(palette.text, palette.shade) >= 4.0);
        }
    }

    /// No other file defines a colour.
    #[test]
    fn no_other_file_names_a_colour() {
        fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
            let entries =
                std::fs::read_dir(folder).expect("sources").map(|entry| entry.expect("a file").path());
            entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
        }
        // Allowed: white, which leaves a texture unchanged, and transparent.
        let allowed = ["Color32::WHITE", "Color32::TRANSPARENT", "Color32::PLACEHOLDER"];
        for path in files(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let source = std::fs::read_to_string(&path).expect("text");
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            // Export files convert colours that were drawn.
            let draws = path.components().any(|part| part.as_os_str() == "export");
            if draws || path.ends_with("design.rs") {
                continue;
            }
            for (at, _) in code.match_indices("Color32::") {
                let known = allowed.iter().any(|name| code[at..].starts_with(name));
                assert!(known, "{}: {:?}", path.display(), &code[at..(at + 30).min(code.len())]);
            }
        }
    }
}
