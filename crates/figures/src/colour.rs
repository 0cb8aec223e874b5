//! Colours of figures, light and dark, distinguishable by colour-blind readers.

use colorgrad::Gradient;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::OnceLock;

/// An opaque sRGB colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Colour {
    /// Red, green and blue.
    pub rgb: [u8; 3],
}

impl fmt::Display for Colour {
    /// CSS notation: `#0072b2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [r, g, b] = self.rgb;
        write!(f, "#{r:02x}{g:02x}{b:02x}")
    }
}

const fn rgb(hex: u32) -> Colour {
    Colour { rgb: [(hex >> 16) as u8, (hex >> 8) as u8, hex as u8] }
}

/// Light or dark background.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Theme {
    /// Dark on white.
    Light,
    /// Light on near-black.
    Dark,
}

/// Colours of one theme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Palette {
    /// Behind everything.
    pub background: Colour,
    /// Text.
    pub text: Colour,
    /// Captions, units and other secondary text.
    pub weak_text: Colour,
    /// Axes.
    pub line: Colour,
    /// Grid lines.
    pub grid: Colour,
    /// The cutoff.
    pub cutoff: Colour,
    /// A limit line, such as the tolerance.
    pub good: Colour,
    /// Attention on position 0.
    pub bos: Colour,
    /// Attention on the prompt.
    pub prompt: Colour,
    /// Attention on decode tokens.
    pub decode: Colour,
    /// The two stripes of an undefined cell.
    pub undefined: [Colour; 2],
    /// Colours of several series (Okabe & Ito 2008).
    pub series: [Colour; 7],
}

/// The dark palette.
pub const DARK: Palette = Palette {
    background: rgb(0x12_14_18),
    text: rgb(0xe6_e8_eb),
    weak_text: rgb(0xa3_ab_b6),
    line: rgb(0x3a_40_49),
    grid: rgb(0x2b_30_37),
    cutoff: rgb(0xff_7a_2f),
    good: rgb(0x4f_d1_a5),
    bos: rgb(0x7b_84_90),
    prompt: rgb(0x56_b4_e9),
    decode: rgb(0xe6_9f_00),
    undefined: [rgb(0x3c_3f_45), rgb(0x63_67_6e)],
    series: [
        rgb(0x56_b4_e9),
        rgb(0xe6_9f_00),
        rgb(0x2f_c4_98),
        rgb(0xe0_8f_bf),
        rgb(0xf0_e4_42),
        rgb(0x8f_9b_ff),
        rgb(0xc4_c9_d0),
    ],
};

/// The light palette.
pub const LIGHT: Palette = Palette {
    background: rgb(0xff_ff_ff),
    text: rgb(0x1a_1d_22),
    weak_text: rgb(0x59_62_6e),
    line: rgb(0xc9_ce_d6),
    grid: rgb(0xe6_e9_ed),
    cutoff: rgb(0xc8_4f_00),
    good: rgb(0x00_7a_57),
    bos: rgb(0x8b_93_9e),
    prompt: rgb(0x00_72_b2),
    decode: rgb(0xe6_9f_00),
    undefined: [rgb(0xd2_d5_da), rgb(0xa9_ae_b6)],
    series: [
        rgb(0x00_72_b2),
        rgb(0xd5_8a_00),
        rgb(0x00_8a_66),
        rgb(0xb8_5a_92),
        rgb(0x7a_5c_00),
        rgb(0x5b_4f_cf),
        rgb(0x555b64),
    ],
};

impl Theme {
    /// Its colours.
    pub const fn palette(self) -> &'static Palette {
        match self {
            Self::Light => &LIGHT,
            Self::Dark => &DARK,
        }
    }
}

/// The role of a colour; each theme has its own colour for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ink {
    /// Behind everything.
    Background,
    /// Text.
    Text,
    /// Captions, units and other secondary text.
    WeakText,
    /// Axes.
    Line,
    /// Grid lines.
    Grid,
    /// The cutoff.
    Cutoff,
    /// A limit line, such as the tolerance.
    Good,
    /// Attention on position 0.
    Bos,
    /// Attention on the prompt.
    Prompt,
    /// Attention on decode tokens.
    Decode,
    /// The nth of several series; colours repeat after seven.
    Series(usize),
}

impl Ink {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let named = [
            Self::Background,
            Self::Text,
            Self::WeakText,
            Self::Line,
            Self::Grid,
            Self::Cutoff,
            Self::Good,
            Self::Bos,
            Self::Prompt,
            Self::Decode,
        ];
        named.into_iter().chain((0..LIGHT.series.len()).map(Self::Series))
    }

    /// Its colour in a theme.
    pub fn colour(self, theme: Theme) -> Colour {
        let palette = theme.palette();
        match self {
            Self::Background => palette.background,
            Self::Text => palette.text,
            Self::WeakText => palette.weak_text,
            Self::Line => palette.line,
            Self::Grid => palette.grid,
            Self::Cutoff => palette.cutoff,
            Self::Good => palette.good,
            Self::Bos => palette.bos,
            Self::Prompt => palette.prompt,
            Self::Decode => palette.decode,
            Self::Series(index) => palette.series[index % palette.series.len()],
        }
    }

    /// Name of its CSS custom property.
    pub fn property(self) -> String {
        match self {
            Self::Background => "--figure-background".into(),
            Self::Text => "--figure-text".into(),
            Self::WeakText => "--figure-weak-text".into(),
            Self::Line => "--figure-line".into(),
            Self::Grid => "--figure-grid".into(),
            Self::Cutoff => "--figure-cutoff".into(),
            Self::Good => "--figure-good".into(),
            Self::Bos => "--figure-bos".into(),
            Self::Prompt => "--figure-prompt".into(),
            Self::Decode => "--figure-decode".into(),
            Self::Series(index) => format!("--figure-series-{}", index % LIGHT.series.len()),
        }
    }
}

/// A perceptually uniform colour map, readable by colour-blind people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum ColourMap {
    /// Dark violet over green to yellow (van der Walt & Smith 2015).
    #[default]
    Viridis,
    /// Dark blue to yellow, made for colour-blind readers (Nuñez, Anderton & Renslow 2018).
    Cividis,
    /// Black over magenta to cream (van der Walt & Smith 2015).
    Magma,
    /// Red over white to blue, for values on both sides of 0 (Brewer's RdBu).
    RedBlue,
}

impl ColourMap {
    /// Those for values from 0 up.
    pub const ALL: [Self; 3] = [Self::Viridis, Self::Cividis, Self::Magma];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Viridis => "Viridis",
            Self::Cividis => "Cividis",
            Self::Magma => "Magma",
            Self::RedBlue => "Red to blue",
        }
    }

    /// Its colours from the lower to the upper end, computed once.
    pub fn colours(self) -> &'static [Colour; 256] {
        static TABLES: [OnceLock<[Colour; 256]>; 4] = [const { OnceLock::new() }; 4];
        TABLES[self as usize].get_or_init(|| {
            let gradient: Box<dyn Gradient> = match self {
                Self::Viridis => Box::new(colorgrad::preset::viridis()),
                Self::Cividis => Box::new(colorgrad::preset::cividis()),
                Self::Magma => Box::new(colorgrad::preset::magma()),
                Self::RedBlue => Box::new(colorgrad::preset::rd_bu()),
            };
            std::array::from_fn(|index| {
                let [r, g, b, _] = gradient.at(index as f32 / 255.0).to_rgba8();
                Colour { rgb: [r, g, b] }
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2.2).
    fn luminance(colour: Colour) -> f64 {
        let linear = |channel: u8| {
            let share = f64::from(channel) / 255.0;
            if share <= 0.04045 { share / 12.92 } else { ((share + 0.055) / 1.055).powf(2.4) }
        };
        let [r, g, b] = colour.rgb.map(linear);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: Colour, b: Colour) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn figures_are_legible() {
        for palette in [DARK, LIGHT] {
            // WCAG 2.2, 1.4.3: 4.5 for text.
            for text in [palette.text, palette.weak_text, palette.good] {
                assert!(contrast(text, palette.background) >= 4.5, "{text}");
            }
            // 1.4.11: 3 for meaningful lines.
            assert!(contrast(palette.cutoff, palette.background) >= 3.0);
        }
    }

    #[test]
    fn colour_maps_grow_lighter() {
        for map in ColourMap::ALL {
            let colours = map.colours();
            // Over several steps, because eight bits per channel are coarse.
            for (darker, lighter) in colours.iter().zip(&colours[4..]) {
                assert!(luminance(*lighter) > luminance(*darker), "{map:?}");
            }
        }
    }

    #[test]
    fn colours_as_css() {
        assert_eq!(LIGHT.prompt.to_string(), "#0072b2");
        assert_eq!(Ink::Series(8).colour(Theme::Light), LIGHT.series[1]);
        let names: std::collections::BTreeSet<String> = Ink::all().map(Ink::property).collect();
        assert_eq!(names.len(), Ink::all().count());
    }
}
