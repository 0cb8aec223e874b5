//! Figures as data and as SVG, for the report and the viewer's export, with shared colours and scales.
//!
//! A [`Chart`] holds curves over layers or cutoffs, a [`Map`] a [`Pyramid`] of layers × columns with a
//! [`Scale`], a [`Matrix`] [`Cells`] of queries × keys, a [`TradeOff`] plots quality against cost, with one point per policy, and [`Scores`] stand in lines. All have a title, a
//! unit and axes, and render to SVG of any size. Undefined values are NaN.

mod axis;
mod chart;
pub mod colour;
mod heat;
mod map;
mod matrix;
mod number;
mod pyramid;
mod scale;
mod scores;
mod svg;
mod trade_off;
mod visible;

pub use axis::round_step;
pub use chart::{Along, Chart, Curve, LEAST_LOGARITHM, Mark, Style};
pub use colour::{Colour, ColourMap, Ink, Theme};
pub use map::{ColumnRange, Map, Outline, lacking, pixels};
pub use matrix::{Cells, Matrix, UNSEEN, matrix_pixels};
pub use number::{exact, short, token_label};
pub use pyramid::{Pyramid, PyramidPart, PyramidTop};
pub use scale::{Scale, ScaleKind};
pub use scores::{ScoreMark, ScoreRow, Scores};
pub use svg::{Canvas, Colours, FIGURE_FONTS, Panels, Pen, SMALL, Surface, TITLE, TextAnchor, style_sheet};
pub use trade_off::{TradeOff, TradeOffPoint, TradeOffRow};
pub use visible::{acts, visible, visible_line};
