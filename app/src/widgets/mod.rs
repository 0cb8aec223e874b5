//! Widgets shared by views.

pub mod axis;
mod chart;
mod colour_bar;
mod cutoff_line;
mod figure;
mod heat_map;
mod table;

pub use chart::chart;
pub use colour_bar::{colour_bar, colour_bar_with_stripes};
pub use cutoff_line::{CutoffLine, Direction};
pub use figure::{scores, trade_off};
pub use heat_map::{HeatMap, HeatMapImage, pixels_across};
pub use layerscope_figures::token_label;
pub use table::{Column, Figures, cell, figures_table};

/// A count with its noun.
pub fn count(number: usize, thing: &str) -> String {
    if number == 1 { format!("1 {thing}") } else { format!("{number} {thing}s") }
}
