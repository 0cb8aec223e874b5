//! Quality against costs: policies as points, a panel for each cost, a row of panels for each length of prompts.

mod drawing;
mod labels;
mod scales;

use crate::colour::Ink;

/// Policies by what they cost and what they lose. Below and to the left is better.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOff {
    /// Its title.
    pub title: String,
    /// What it shows, in a sentence or two, for those who do not see it.
    pub description: String,
    /// What is lost, with its unit: the name of the upright axes. Logarithmic, with a place for 0.
    pub loss: String,
    /// What is paid, with its unit: the names of the panels' other axes, on each of which the reference is at 1.
    pub costs: Vec<String>,
    /// Kinds of points; each has its shape and its colour, the first, the reference, that of text.
    pub kinds: Vec<String>,
    /// Rows of panels.
    pub rows: Vec<TradeOffRow>,
}

/// A row of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOffRow {
    /// What its points have in common; nothing is written where it is empty.
    pub name: String,
    /// Its points.
    pub points: Vec<TradeOffPoint>,
}

/// A point in each panel of its row.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOffPoint {
    /// What stands beside it.
    pub name: String,
    /// Its kind, of [`TradeOff::kinds`].
    pub kind: usize,
    /// What it loses; NaN where undefined.
    pub loss: f64,
    /// What it costs, as often as there are panels; NaN where undefined.
    pub costs: Vec<f64>,
    /// Its figures with their units, for the pointer.
    pub details: String,
}

impl TradeOff {
    /// The colour of a kind.
    fn ink(kind: usize) -> Ink {
        kind.checked_sub(1).map_or(Ink::Text, Ink::Series)
    }
}

impl TradeOffRow {
    /// The Pareto-optimal points of a panel, as indices by ascending cost: no other costs no more and loses no more.
    pub fn pareto(&self, panel: usize) -> Vec<usize> {
        let cost = |index: usize| self.points[index].costs.get(panel).copied().unwrap_or(f64::NAN);
        let loss = |index: usize| self.points[index].loss;
        let mut order: Vec<usize> = (0..self.points.len()).collect();
        order.retain(|&index| cost(index).is_finite() && loss(index).is_finite());
        order.sort_by(|&a, &b| cost(a).total_cmp(&cost(b)).then(loss(a).total_cmp(&loss(b))));
        let mut least = f64::INFINITY;
        order.retain(|&index| {
            let better = loss(index) < least;
            least = least.min(loss(index));
            better
        });
        order
    }
}

#[cfg(test)]
mod tests;
