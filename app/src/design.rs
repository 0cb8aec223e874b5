//! Design tokens: every colour, size and type style of the viewer. No other file names a colour.

use colorgrad::Gradient;
use eframe::egui::{
    self, Color32, CornerRadius, FontFamily, FontId, Margin, Stroke, TextStyle, Theme, Visuals, vec2,
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Spaces, in points.
pub mod space {
    /// Between things that belong together.
    pub const SMALL: f32 = 4.0;
    /// Between things.
    pub const MEDIUM: f32 = 8.0;
    /// Between groups.
    pub const LARGE: f32 = 16.0;
}

/// Sizes, in points.
pub mod size {
    /// Body text.
    pub const TEXT: f32 = 13.0;
    /// Axis labels and captions.
    pub const CAPTION: f32 = 11.0;
    /// Headings of cards and views.
    pub const HEADING: f32 = 15.0;
    /// The one figure that a card is about.
    pub const FIGURE: f32 = 26.0;
    /// Width of the list of prompts.
    pub const LEFT_PANEL: f32 = 210.0;
    /// Width of the cutoff's panel.
    pub const RIGHT_PANEL: f32 = 264.0;
    /// Thickness of the cutoff's line.
    pub const MARKER: f32 = 2.0;
    /// How near the pointer must come to grab the cutoff's line.
    pub const MARKER_REACH: f32 = 6.0;
    /// Room for an axis with its numbers and name.
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
    /// Captions, units and what is of less weight.
    pub weak_text: Color32,
    /// What can be pressed, and what is chosen.
    pub accent: Color32,
    /// Text upon [`Self::accent`].
    pub on_accent: Color32,
    /// The cutoff.
    pub cutoff: Color32,
    /// Around the cutoff's line and selections, so that they stand out on any colour of a map.
    pub halo: Color32,
    /// Laid over layers at which the prompt does not exist.
    pub absent: Color32,
    /// The outline of what is selected in a map.
    pub selection: Color32,
    /// Errors.
    pub error: Color32,
    /// Warnings.
    pub warning: Color32,
    /// What went well.
    pub good: Color32,
    /// Behind the token that receives most attention; fainter behind the others.
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
    background: Color32::from_rgb(0x12, 0x14, 0x18),
    panel: Color32::from_rgb(0x1a, 0x1d, 0x22),
    card: Color32::from_rgb(0x23, 0x27, 0x2e),
    line: Color32::from_rgb(0x3a, 0x40, 0x49),
    grid: Color32::from_rgb(0x2b, 0x30, 0x37),
    text: Color32::from_rgb(0xe6, 0xe8, 0xeb),
    weak_text: Color32::from_rgb(0xa3, 0xab, 0xb6),
    accent: Color32::from_rgb(0x56, 0xb4, 0xe9),
    on_accent: Color32::from_rgb(0x0a, 0x14, 0x1c),
    cutoff: Color32::from_rgb(0xff, 0x7a, 0x2f),
    halo: Color32::from_rgb(0x0c, 0x0d, 0x10),
    absent: Color32::from_rgba_premultiplied(0x0e, 0x10, 0x13, 0x9c),
    selection: Color32::WHITE,
    error: Color32::from_rgb(0xff, 0x8a, 0x80),
    warning: Color32::from_rgb(0xf0, 0xc0, 0x5a),
    good: Color32::from_rgb(0x4f, 0xd1, 0xa5),
    shade: Color32::from_rgb(0x1f, 0x6f, 0xb0),
    bos: Color32::from_rgb(0x7b, 0x84, 0x90),
    prompt: Color32::from_rgb(0x56, 0xb4, 0xe9),
    decode: Color32::from_rgb(0xe6, 0x9f, 0x00),
    undefined: [Color32::from_rgb(0x3c, 0x3f, 0x45), Color32::from_rgb(0x63, 0x67, 0x6e)],
};

const LIGHT: Palette = Palette {
    background: Color32::from_rgb(0xff, 0xff, 0xff),
    panel: Color32::from_rgb(0xf4, 0xf5, 0xf7),
    card: Color32::from_rgb(0xff, 0xff, 0xff),
    line: Color32::from_rgb(0xc9, 0xce, 0xd6),
    grid: Color32::from_rgb(0xe6, 0xe9, 0xed),
    text: Color32::from_rgb(0x1a, 0x1d, 0x22),
    weak_text: Color32::from_rgb(0x59, 0x62, 0x6e),
    accent: Color32::from_rgb(0x00, 0x62, 0x9c),
    on_accent: Color32::WHITE,
    cutoff: Color32::from_rgb(0xc8, 0x4f, 0x00),
    halo: Color32::WHITE,
    absent: Color32::from_rgba_premultiplied(0x9c, 0x9c, 0x9c, 0x9c),
    selection: Color32::BLACK,
    error: Color32::from_rgb(0xb3, 0x1d, 0x1d),
    warning: Color32::from_rgb(0x8a, 0x5a, 0x00),
    good: Color32::from_rgb(0x00, 0x7a, 0x57),
    shade: Color32::from_rgb(0xff, 0xb5, 0x3d),
    bos: Color32::from_rgb(0x8b, 0x93, 0x9e),
    prompt: Color32::from_rgb(0x00, 0x72, 0xb2),
    decode: Color32::from_rgb(0xe6, 0x9f, 0x00),
    undefined: [Color32::from_rgb(0xd2, 0xd5, 0xda), Color32::from_rgb(0xa9, 0xae, 0xb6)],
};

/// Colours of series that stand side by side, told apart by colour-blind readers (Okabe & Ito 2008).
const DARK_SERIES: [Color32; 7] = [
    Color32::from_rgb(0x56, 0xb4, 0xe9),
    Color32::from_rgb(0xe6, 0x9f, 0x00),
    Color32::from_rgb(0x2f, 0xc4, 0x98),
    Color32::from_rgb(0xe0, 0x8f, 0xbf),
    Color32::from_rgb(0xf0, 0xe4, 0x42),
    Color32::from_rgb(0x8f, 0x9b, 0xff),
    Color32::from_rgb(0xc4, 0xc9, 0xd0),
];
const LIGHT_SERIES: [Color32; 7] = [
    Color32::from_rgb(0x00, 0x72, 0xb2),
    Color32::from_rgb(0xd5, 0x8a, 0x00),
    Color32::from_rgb(0x00, 0x8a, 0x66),
    Color32::from_rgb(0xb8, 0x5a, 0x92),
    Color32::from_rgb(0x2e, 0x9b, 0xd6),
    Color32::from_rgb(0x5b, 0x4f, 0xcf),
    Color32::from_rgb(0x55, 0x5b, 0x64),
];

/// The palette of a theme.
pub fn palette_of(theme: Theme) -> &'static Palette {
    match theme {
        Theme::Dark => &DARK,
        Theme::Light => &LIGHT,
    }
}

/// The palette in force.
pub fn palette(ui: &egui::Ui) -> &'static Palette {
    palette_of(ui.theme())
}

/// The colour of the nth of several series.
pub fn series(theme: Theme, index: usize) -> Color32 {
    let colours = match theme {
        Theme::Dark => &DARK_SERIES,
        Theme::Light => &LIGHT_SERIES,
    };
    colours[index % colours.len()]
}

/// A colour at an opacity, for bands and shades.
pub fn faded(colour: Color32, opacity: f32) -> Color32 {
    colour.gamma_multiply(opacity)
}

/// Captions and axis labels.
pub fn caption() -> FontId {
    FontId::new(size::CAPTION, FontFamily::Proportional)
}

/// Figures in columns and on axes.
pub fn figures() -> FontId {
    FontId::new(size::CAPTION, FontFamily::Monospace)
}

/// Prompt text.
pub fn body() -> FontId {
    FontId::new(size::TEXT, FontFamily::Proportional)
}

/// Prepares a context: both themes, type sizes and spaces.
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

/// Lets a context without a window take glyphs that the built-in fonts lack (CJK, Arabic, emoji) from the system's fonts,
/// as windows do by themselves.
pub fn use_system_fonts(ctx: &egui::Context) {
    ctx.add_font_provider(Arc::new(egui_system_font_provider::SystemFontProvider::new()));
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
    // A cursor that blinks would draw the whole window twice a second.
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

/// A colour map: perceptually uniform and readable by colour-blind people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ColourMap {
    /// Dark violet over green to yellow (van der Walt & Smith 2015).
    #[default]
    Viridis,
    /// Dark blue to yellow, made for colour-blind readers (Nuñez, Anderton & Renslow 2018).
    Cividis,
    /// Black over magenta to cream (van der Walt & Smith 2015).
    Magma,
}

impl ColourMap {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Viridis, Self::Cividis, Self::Magma];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viridis => "Viridis",
            Self::Cividis => "Cividis",
            Self::Magma => "Magma",
        }
    }

    /// Its colours from the lower to the upper end, computed once.
    pub fn colours(self) -> &'static [Color32; 256] {
        use std::sync::OnceLock;
        static TABLES: [OnceLock<[Color32; 256]>; 3] = [const { OnceLock::new() }; 3];
        TABLES[self as usize].get_or_init(|| {
            let gradient: Box<dyn Gradient> = match self {
                Self::Viridis => Box::new(colorgrad::preset::viridis()),
                Self::Cividis => Box::new(colorgrad::preset::cividis()),
                Self::Magma => Box::new(colorgrad::preset::magma()),
            };
            std::array::from_fn(|index| {
                let [r, g, b, _] = gradient.at(index as f32 / 255.0).to_rgba8();
                Color32::from_rgb(r, g, b)
            })
        })
    }
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
                // 1.4.11: 3 for lines that carry meaning.
                assert!(contrast(palette.cutoff, background) >= 3.0);
            }
            assert!(contrast(palette.on_accent, palette.accent) >= 4.5);
            assert!(contrast(palette.text, palette.shade) >= 4.0);
        }
    }

    /// Colours have one home: no other file says what red is.
    #[test]
    fn no_other_file_names_a_colour() {
        fn files(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
            let entries =
                std::fs::read_dir(folder).expect("sources").map(|entry| entry.expect("a file").path());
            entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
        }
        // White leaves a texture as it is; the others are the lack of a colour.
        let allowed = ["Color32::WHITE", "Color32::TRANSPARENT", "Color32::PLACEHOLDER"];
        for path in files(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
            let source = std::fs::read_to_string(&path).expect("text");
            let code = source.split("#[cfg(test)]").next().unwrap_or_default();
            // Pictures are written in the colours that were drawn.
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

    #[test]
    fn colour_maps_grow_lighter() {
        for map in ColourMap::ALL {
            let colours = map.colours();
            // Over a few steps, since eight bits per channel are coarse.
            for (darker, lighter) in colours.iter().zip(&colours[4..]) {
                assert!(luminance(*lighter) > luminance(*darker), "{map:?}");
            }
        }
    }
}
