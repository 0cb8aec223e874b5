//! The map for export.

use super::{Scene, of_steps, steps_name};
use crate::data::Scale;
use crate::state::{Columns, Window};
use crate::views::picture;
use layerscope_figures::{ColumnRange, Map, Outline, Theme};

/// Width of a column with its token's text, points.
const COLUMN: f64 = 13.0;

/// The visible columns, with frames around the selection; `None` while they are being read.
pub fn picture(scene: &Scene<'_>, theme: Theme) -> Option<String> {
    let (maps, state, prompt) = (scene.maps?, &*scene.state, scene.prompt());
    let selection = &state.selection;
    let (values, title, unit, scale, window) = match state.columns {
        Columns::Tokens => {
            let figure = state.token_figure;
            let values = maps.tokens(figure);
            (values, figure.name().to_owned(), figure.description(), state.scale, state.token_window)
        }
        Columns::Steps => {
            let figure = state.step_figure;
            (
                of_steps(maps, state),
                steps_name(maps, state),
                figure.unit(),
                state.share_scale,
                state.step_window,
            )
        }
    };
    let (column_name, column_texts, columns): (_, _, Vec<usize>) = match state.columns {
        Columns::Tokens => {
            ("prompt token (position)", &prompt.prompt_token_text, selection.token.into_iter().collect())
        }
        Columns::Steps => {
            ("decode step", &prompt.generated_token_text, selection.steps.iter().copied().collect())
        }
    };
    let without_first = state.leave_out_bos && state.columns == Columns::Tokens;
    let scale = Scale::fit(scale, values, state.per_row, without_first);
    let window = window.unwrap_or(Window::all(values.columns())).within(values.columns());
    let map = Map {
        title: title.clone(),
        unit: unit.into(),
        description: format!("{title}: {unit}, by layer and {column_name}"),
        values,
        scale: &scale,
        colours: state.colour_map,
        span: ColumnRange { start: window.start, end: window.end },
        without_first,
        column_name: column_name.into(),
        column_texts,
        cutoff: Some(state.cutoff),
    };
    let rows = selection.layers.iter().map(|layer| Outline::Row(*layer));
    let outlines: Vec<Outline> = rows.chain(columns.into_iter().map(Outline::Column)).collect();
    let mut caption = scene.caption();
    if state.per_row {
        caption.push_str("; each layer on its own scale");
    }
    if without_first {
        caption.push_str("; position 0 left out");
    }
    Some(picture::map(&map, &outlines, COLUMN, &caption, theme))
}
