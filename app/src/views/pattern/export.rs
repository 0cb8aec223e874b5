//! The pattern as SVG, and as a table.

use super::{
    Extent, RECORD, Source, Subject, cells, plot, scale, source, stripes, texts, token_at, unit, windows,
};
use crate::data::{CellFigure, Sight};
use crate::state::PatternLayout;
use crate::views::Scene;
use crate::widgets::{Column, Figures, cell, token_label};
use layerscope_engine::{Error, Result};
use layerscope_figures::{Canvas, Cells, Colours, ColumnRange, Matrix, Panels, Theme, UNSEEN};

/// Points of a picture's cells, downwards and across.
const POINTS: [f32; 2] = [560.0, 720.0];
/// Least and greatest height of a picture, points.
const HEIGHT: [f64; 2] = [300.0, 700.0];
const WIDTH: f64 = 860.0;
/// Height of a row, points.
const ROW: f64 = 14.0;

/// What is in sight, in cells of about a picture's size: those that are computed, which may be finer.
fn sight(scene: &Scene<'_>) -> Sight {
    let subject = Subject::of(scene);
    let about = Sight::new(subject.layer, subject.heads, windows(scene), POINTS);
    if source(scene) == Source::Record {
        return about;
    }
    let finer = |by: [u8; 2]| Sight {
        level: [about.level[0].saturating_sub(by[0]), about.level[1].saturating_sub(by[1])],
        ..about.clone()
    };
    let mut steps: Vec<[u8; 2]> =
        (0..=4).flat_map(|rows| (0..=4).map(move |columns| [rows, columns])).collect();
    steps.sort_by_key(|[rows, columns]| rows + columns);
    let is_there = |sight: &Sight| sight.tiles().iter().all(|key| scene.tiles.tiles.has(key));
    steps.into_iter().map(finer).find(is_there).unwrap_or(about)
}

/// What is visible of one pattern, as SVG; `None` for small patterns, which the window draws.
///
/// # Errors
/// While nothing of it is computed or read.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Result<Option<String>> {
    if scene.state.pattern.layout != PatternLayout::One {
        return Ok(None);
    }
    let reading = || Error::failure("the pattern is still being computed; try again");
    let cells = cells(scene, &sight(scene), CellFigure::Max).ok_or_else(reading)?;
    if source(scene) == Source::Tiles && !cells.values.iter().any(|value| value.is_finite()) {
        return Err(reading());
    }
    let (subject, extent, texts) = (Subject::of(scene), Extent::of(scene.prompt()), texts(scene.prompt()));
    let scale = scale(scene, [&cells].into_iter());
    let span = windows(scene).map(|window| ColumnRange { start: window.start, end: window.end });
    let mut caption = scene.caption();
    if scene.state.pattern.under_policy {
        caption.push_str(&format!("; under {}", scene.tiles.policy));
    }
    if source(scene) == Source::Record {
        caption.push_str(&format!("; {RECORD}"));
    }
    if scene.state.leave_out_bos {
        caption.push_str("; colours fitted without position 0");
    }
    let title = format!("Attention pattern, {}", subject.name());
    let selected = scene.state.selection.tokens().map_or(vec![], |tokens| tokens.take(64).collect());
    let matrix = Matrix {
        description: format!("{title}: queries {} to {} by keys", span[0].start, span[0].end),
        title,
        unit: unit(subject).into(),
        stripes: cells.values.iter().any(|value| value.is_nan()).then(|| stripes(scene)),
        cells: &cells,
        scale: &scale,
        colours: scene.state.colour_map,
        span,
        axes: ["query".into(), "key (position)".into()],
        texts: &texts,
        boundary: Some(extent.boundary),
        selected: [plot::selected_queries(scene), selected],
    };
    let colours = Colours::Of(theme);
    let height = (span[0].width() * ROW + 190.0).clamp(HEIGHT[0], HEIGHT[1]);
    let mut panels = Panels::new(colours, 1, [WIDTH, height], &caption);
    panels.push(&matrix.to_svg(&Canvas { size: [WIDTH, height], colours, titled: true, id: "pattern" }));
    Ok(Some(panels.finish("figure", &matrix.title, &caption)))
}

/// One row per cell in sight that is not blank.
pub fn figures<'a>(scene: &'a Scene<'_>) -> Option<Figures<'a>> {
    let (sight, extent) = (sight(scene), Extent::of(scene.prompt()));
    let largest = cells(scene, &sight, CellFigure::Max)?;
    // The record has single pairs alone.
    let mean = match source(scene) {
        Source::Tiles => Some(sight.cells(&scene.tiles.tiles, CellFigure::Mean)),
        Source::Record => None,
    };
    let seen: Vec<usize> =
        (0..largest.values.len()).filter(|&index| largest.values[index] != UNSEEN).collect();
    let mut columns = vec![Column::new("layer", ""), Column::new("heads", "")];
    for what in ["query", "key"] {
        columns.push(Column::new(what, ""));
        columns.push(Column::new(format!("last {what}"), ""));
        columns.push(Column::new(format!("{what} token"), ""));
    }
    columns.push(Column::new("attention, largest", "share"));
    if mean.is_some() {
        columns.push(Column::new("attention, mean", "share"));
    }
    let subject = Subject::of(scene);
    Some(Figures {
        columns,
        rows: seen.len(),
        row: Box::new(move |row| {
            let index = seen[row];
            let mut cells = vec![subject.layer.to_string(), heads(subject)];
            for axis in 0..2 {
                let [first, last] = positions(&largest, index, axis, extent.all);
                let token = token_at(scene.prompt(), first).filter(|_| first == last);
                cells.extend([first.to_string(), last.to_string(), token.map_or(String::new(), token_label)]);
            }
            let values = [Some(&largest), mean.as_ref()].into_iter().flatten();
            cells.extend(values.map(|of| cell(f64::from(of.values[index]))));
            cells
        }),
    })
}

fn heads(subject: Subject) -> String {
    match subject.heads {
        layerscope_engine::PatternHeads::One(head) => head.to_string(),
        layerscope_engine::PatternHeads::Mean => "mean".into(),
        layerscope_engine::PatternHeads::Max => "largest".into(),
    }
}

/// First and last position of a cell along an axis.
fn positions(cells: &Cells, index: usize, axis: usize, all: usize) -> [usize; 2] {
    let place = [index / cells.columns, index % cells.columns][axis];
    let first = cells.first[axis] + place * cells.cell[axis];
    [first, (first + cells.cell[axis]).min(all).saturating_sub(1).max(first)]
}

#[cfg(test)]
mod tests {
    use super::positions;
    use layerscope_figures::Cells;

    #[test]
    fn cells_name_their_first_and_last_positions() {
        let cells = Cells { first: [8, 16], cell: [4, 8], columns: 3, values: vec![0.0; 6] };
        assert_eq!([positions(&cells, 4, 0, 14), positions(&cells, 4, 1, 100)], [[12, 13], [24, 31]]);
    }
}
