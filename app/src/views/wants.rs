//! What a view needs of maps that come part by part, and what of it is not there yet.

use super::{Scene, map, pattern, reading};
use crate::data::Want;
use crate::state::View;
use std::ops::Range;

/// Pixels across an exported map, at most.
const PIXELS: usize = 2_048;

/// How a view is looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sought {
    /// Drawn, at most so many pixels wide.
    Drawn(usize),
    /// As a table of which these rows are in sight.
    Table(Range<usize>),
    /// All of it, for a file.
    Whole,
}

impl Sought {
    /// Drawn into a file.
    pub const PICTURE: Self = Self::Drawn(PIXELS);
}

impl Scene<'_> {
    /// What the current view needs and what is not there yet, the coarsest first.
    pub fn wants(&self, look: &Sought) -> Vec<Want> {
        let Some(maps) = self.maps else { return vec![] };
        match self.state.view {
            View::Map => map::wants(self, maps, look),
            View::Reading => reading::wants(self, maps),
            View::Pattern => pattern::wants(self, maps),
            View::Curves
            | View::Heads
            | View::Frontier
            | View::Patching
            | View::Generate
            | View::Record
            | View::Compare
            | View::Adapt => vec![],
        }
    }
}
