//! A map's data for hovering; a row has at most [`MOST_GROUPS`] values.

use crate::document::{Drawing, Figure, KEY, PatternDrawing, QUERY};
use base64::{Engine, prelude::BASE64_STANDARD};
use layerscope_figures::visible_line;
use layerscope_figures::{Canvas, Map, token_label};
use maud::{Markup, PreEscaped, html};
use serde::Serialize;

/// Most groups of columns per row.
const MOST_GROUPS: usize = 1_024;
/// Most columns with texts.
const MOST_TEXTS: usize = 4_096;

/// Read by `script.js`.
#[derive(Serialize)]
struct Hover {
    rows: usize,
    /// What a row is, and the number of the first.
    row: &'static str,
    first: usize,
    /// The first column, and how many there are.
    start: usize,
    columns: usize,
    /// Columns per value.
    group: usize,
    /// The area of the cells: left, top, width and height as shares of the drawing.
    area: [f64; 4],
    column: String,
    unit: String,
    texts: Vec<String>,
    /// Little-endian f32, row by row, Base64: the maximum of each group, NaN if undefined.
    values: String,
}

/// The values of a map or pattern that has too many cells for SVG tooltips.
pub(super) fn data(figure: &Figure, canvas: &Canvas<'_>) -> Markup {
    let hover = match &figure.drawing {
        Drawing::Map(map) if !map.draw(|map| map.tells_values()) => map.draw(|map| hover(map, canvas)),
        Drawing::Patches(patches) if !patches.map().tells_values() => hover(&patches.map(), canvas),
        Drawing::Pattern(pattern) if !pattern.draw(|matrix| matrix.tells_values()) => {
            of_pattern(pattern, canvas)
        }
        _ => return html! {},
    };
    // Escapes `<`, because a token may contain `</script>`.
    let json = serde_json::to_string(&hover).unwrap_or_default().replace('<', "\\u003c");
    html! {
        p.readout aria-hidden="true" hidden { "Point at the map to read its values." }
        script type="application/json" class="hover-data" { (PreEscaped(json)) }
    }
}

fn of_pattern(pattern: &PatternDrawing, canvas: &Canvas<'_>) -> Hover {
    let cells = &pattern.cells;
    let columns = cells.columns * cells.cell[1];
    let texts = if columns <= MOST_TEXTS { &pattern.texts[..columns.min(pattern.texts.len())] } else { &[] };
    let bytes: Vec<u8> = cells.values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let [width, height] = canvas.size;
    let [left, top, across, down] = pattern.draw(|matrix| matrix.area(canvas));
    Hover {
        rows: cells.rows(),
        row: QUERY,
        first: cells.first[0],
        start: 0,
        columns,
        group: cells.cell[1],
        area: [left / width, top / height, across / width, down / height],
        column: KEY.into(),
        unit: pattern.unit.split([',', ';']).next().unwrap_or_default().to_owned(),
        texts: texts.iter().map(|text| visible_line(&token_label(text))).collect(),
        values: BASE64_STANDARD.encode(bytes),
    }
}

/// Of a map whose columns are whole.
fn hover(map: &Map<'_>, canvas: &Canvas<'_>) -> Hover {
    let (rows, start) = (map.values.rows(), map.span.start as usize);
    let columns = (map.span.end as usize).saturating_sub(start);
    let group = columns.div_ceil(MOST_GROUPS).max(1);
    let groups = columns.div_ceil(group);
    let mut values = vec![0.0_f32; rows * groups];
    for index in 0..groups {
        for row in 0..rows {
            let columns = index * group..((index + 1) * group).min(columns);
            let values_of_row = columns.map(|column| map.values.value(row, start + column));
            values[row * groups + index] = values_of_row.fold(f32::NAN, f32::max);
        }
    }
    let bytes: Vec<u8> = values.into_iter().flat_map(f32::to_le_bytes).collect();
    let texts = match map.column_texts.get(start..) {
        Some(texts) if columns <= MOST_TEXTS => texts,
        _ => &[],
    };
    let [width, height] = canvas.size;
    let [left, top, across, down] = map.cells(canvas);
    Hover {
        rows,
        row: "layer",
        first: 0,
        start,
        columns,
        group,
        area: [left / width, top / height, across / width, down / height],
        column: map.column_name.clone(),
        unit: map.unit.split([',', ';']).next().unwrap_or_default().to_owned(),
        texts: texts.iter().map(|text| visible_line(&token_label(text))).collect(),
        values: BASE64_STANDARD.encode(bytes),
    }
}
