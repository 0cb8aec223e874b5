//! Views as SVG images for export, drawn by the figures crate.

use super::{Scene, answers, compare, curves, frontier, heads, map, patching, pattern, policies};
use crate::state::View;
use layerscope_engine::{Error, Result};
use layerscope_figures::{Canvas, Chart, Colours, Map, Outline, Panels, Theme};

/// Size of one of several charts, points. Two side by side fill a page, with type of about seven points.
pub(super) const CHART: [f64; 2] = [380.0, 250.0];
/// Columns of charts.
const COLUMNS: usize = 2;
/// Least and greatest width of a map, points.
const MAP_WIDTH: [f64; 2] = [760.0, 1_200.0];
/// Least and greatest height of a map's layer, points.
const LAYER: [f64; 2] = [10.0, 28.0];
/// Target height of a map, points.
const LAYERS: f64 = 420.0;

impl Scene<'_> {
    /// The current view as SVG with a caption; `None` for texts and tables, which only a window can draw.
    ///
    /// # Errors
    /// [`Error::Failure`] while the maps of the current prompt are being read.
    pub fn picture(&self, theme: Theme) -> Result<Option<String>> {
        let reading = || Error::failure("the figures are still being read; try again");
        Ok(match self.state.view {
            _ if self.state.as_table => None,
            View::Map => Some(map::picture(self, theme).ok_or_else(reading)?),
            View::Pattern => pattern::picture(self, theme)?,
            View::Curves => Some(self.charts(&curves::charts(self), &curves::spread(self), theme)),
            View::Heads => Some(heads::picture(self, theme).ok_or_else(reading)?),
            View::Frontier if policies::are_shown(self) => policies::picture(self, theme),
            View::Frontier if answers::are_shown(self) => answers::picture(self, theme),
            View::Frontier => Some(self.charts(&frontier::charts(self), &frontier::bands(self), theme)),
            View::Patching => Some(patching::picture(self, theme)?),
            View::Compare => Some(compare::picture(self, theme)?),
            View::Reading | View::Generate | View::Record | View::Adapt => None,
        })
    }

    /// Charts in rows, each with the cutoff.
    fn charts(&self, charts: &[Chart], about: &str, theme: Theme) -> String {
        let cutoff = self.state.cutoff.clamp(1, self.run.layers());
        let charts: Vec<Chart> = charts.iter().map(|chart| chart.clone().with_cutoff(cutoff)).collect();
        charts_in_rows(&charts, &format!("{}; {about}", self.caption()), self.state.view.name(), theme)
    }
}

/// Charts in rows below a caption.
pub(super) fn charts_in_rows(charts: &[Chart], caption: &str, title: &str, theme: Theme) -> String {
    let colours = Colours::Of(theme);
    let mut panels = Panels::new(colours, COLUMNS, CHART, caption);
    for (index, chart) in charts.iter().enumerate() {
        let id = format!("chart-{index}");
        panels.push(&chart.to_svg(&Canvas { size: CHART, colours, titled: true, id: &id }));
    }
    panels.finish("figure", title, caption)
}

/// A map below a caption, sized by its layers and columns.
pub(super) fn map(map: &Map<'_>, outlines: &[Outline], column: f64, caption: &str, theme: Theme) -> String {
    let colours = Colours::Of(theme);
    let [least, greatest] = MAP_WIDTH;
    let layers = map.values.rows().max(1) as f64;
    let canvas = |width, height| Canvas { size: [width, height], colours, titled: true, id: "map" };
    // The space of axes and title is the same on any canvas.
    let around = |width| {
        let [_, _, across, down] = map.cells(&canvas(width, 1_000.0));
        [width - across, 1_000.0 - down]
    };
    let width = (map.span.width() * column + around(least)[0]).clamp(least, greatest).ceil();
    let height = (layers * (LAYERS / layers).clamp(LAYER[0], LAYER[1]) + around(width)[1]).ceil();
    let mut panels = Panels::new(colours, 1, [width, height], caption);
    panels.push(&map.outlined(&canvas(width, height), outlines));
    panels.finish("figure", &map.title, caption)
}
