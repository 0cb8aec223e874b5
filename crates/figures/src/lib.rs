//! Figures as data, and as SVG: what the report prints and what the viewer exports, in one set of colours and scales.
//!
//! A [`Chart`] holds curves over layers or cutoffs, a [`Map`] a [`Pyramid`] of layers × columns laid along a [`Scale`].
//! A [`TradeOff`] sets quality against costs, a
//! point for each policy. All know their title, unit and axes, and draw themselves as SVG of any size. Undefined values are NaN.

mod axis;
mod chart;
pub mod colour;
mod map;
mod number;
mod pyramid;
mod scale;
mod svg;
mod trade_off;
mod visible;

pub use axis::round_step;
pub use chart::{Along, Chart, Curve, LEAST_LOGARITHM, Mark, Style};
pub use colour::{Colour, ColourMap, Ink, Theme};
pub use map::{ColumnRange, Map, Outline, pixels};
pub use number::{exact, short, token_label};
pub use pyramid::Pyramid;
pub use scale::{Scale, ScaleKind};
pub use svg::{Canvas, Colours, FIGURE_FONTS, Panels, Pen, SMALL, Surface, TITLE, TextAnchor, style_sheet};
pub use trade_off::{TradeOff, TradeOffPoint, TradeOffRow};
pub use visible::{acts, visible, visible_line};
