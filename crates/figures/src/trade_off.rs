//! Quality against cost: policies as points, a panel per cost, a row of panels per prompt length.

mod drawing;
mod labels;
mod scales;

pub(crate) use drawing::marker;

use crate::colour::Ink;

/// Policies by cost and quality loss. Lower left is better.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOff {
    /// Its title.
    pub title: String,
    /// A text alternative of one or two sentences.
    pub description: String,
    /// Name of the loss with its unit, on the vertical axes, which are logarithmic with an area for 0.
    pub loss: String,
    /// Names of the costs with their units, on the horizontal axes. Costs are relative to the reference,
    /// which is at 1.
    pub costs: Vec<String>,
    /// Kinds of points, each with its own shape and colour. The first is the reference, in the text colour.
    pub kinds: Vec<String>,
    /// Rows of panels.
    pub rows: Vec<TradeOffRow>,
}

/// A row of panels.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOffRow {
    /// Its displayed name; may be empty.
    pub name: String,
    /// Its points.
    pub points: Vec<TradeOffPoint>,
}

/// A point in each panel of its row.
#[derive(Debug, Clone, PartialEq)]
pub struct TradeOffPoint {
    /// Its label.
    pub name: String,
    /// Its kind, an index into [`TradeOff::kinds`].
    pub kind: usize,
    /// Its loss; NaN if undefined.
    pub loss: f64,
    /// Its cost in each panel; NaN if undefined. Costs beyond single precision are not drawn.
    pub costs: Vec<f64>,
    /// Its tooltip: numbers with units.
    pub details: String,
}

impl TradeOff {
    /// The colour of a kind.
    fn ink(kind: usize) -> Ink {
        kind.checked_sub(1).map_or(Ink::Text, Ink::Series)
    }
}

impl TradeOffPoint {
    /// Its cost in a panel and its loss where it is drawn.
    fn at(&self, panel: usize) -> Option<[f64; 2]> {
        let cost = *self.costs.get(panel)?;
        ((cost as f32).is_finite() && self.loss.is_finite()).then_some([cost, self.loss])
    }
}

impl TradeOffRow {
    /// Indices of the Pareto-optimal points of a panel, by ascending cost: no other point has at most the
    /// same cost and at most the same loss.
    pub fn pareto(&self, panel: usize) -> Vec<usize> {
        let points = self.points.iter().enumerate();
        let mut order: Vec<(usize, [f64; 2])> =
            points.filter_map(|(index, point)| Some((index, point.at(panel)?))).collect();
        order.sort_by(|(_, [cost_a, loss_a]), (_, [cost_b, loss_b])| {
            cost_a.total_cmp(cost_b).then(loss_a.total_cmp(loss_b))
        });
        let mut least = f64::INFINITY;
        order.retain(|(_, [_, loss])| {
            let better = *loss < least;
            least = least.min(*loss);
            better
        });
        order.into_iter().map(|(index, _)| index).collect()
    }
}

#[cfg(test)]
mod tests;
