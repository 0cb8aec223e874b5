//! What several views are put together from.

pub mod axis;
pub mod chart;
mod colour_bar;
mod cutoff_line;
mod heat_map;
mod table;

pub use colour_bar::colour_bar;
pub use cutoff_line::{CutoffLine, Direction};
pub use heat_map::{HeatMap, HeatMapImage};
pub use table::{Column, Figures, cell, figures_table};

/// A token as it can stand in a line: line breaks, tabs and controls spelt out.
pub fn token_label(token: &str) -> String {
    let mut label = String::with_capacity(token.len());
    for character in token.chars() {
        match character {
            '\n' => label.push_str("\\n"),
            '\r' => label.push_str("\\r"),
            '\t' => label.push_str("\\t"),
            control if control.is_control() => label.extend(control.escape_unicode()),
            other => label.push(other),
        }
    }
    label
}
