//! The map of patches as a figure.

use layerscope_diagnostics::patching::{PatchDirection, PatchMap, PatchMetric, PatchSite};
use layerscope_figures::{Canvas, ColourMap, Colours, ColumnRange, Map, Pyramid, Scale, Theme, visible_line};

/// Width of a column that has room for its token, pixels.
const COLUMN: f64 = 15.0;
/// Height of a layer, pixels.
const ROW: f64 = 14.0;
/// Everything beside the cells: the axis of layers, title and colour bar, tokens below.
const MARGIN: [f64; 2] = [66.0, 168.0];
/// Most pixels of the figure's width.
const WIDEST: f64 = 3_600.0;
/// Pixels of a letter of the title and of the unit, and of what stands before the unit.
const LETTERS: [f64; 2] = [8.0, 6.3];
const BEFORE_UNIT: f64 = 200.0;

/// The map as SVG: layers downwards, positions with the clean prompt's tokens or heads to the right. Colours show how far a patch moves
/// the metric from the unpatched run; the whole way to the other run is 1 or −1.
pub fn patching_svg(map: &PatchMap, model: &str) -> String {
    let is_head = map.site == PatchSite::Head;
    // All layers and columns, so that axes count from 0; what was not patched is undefined.
    let rows = map.layers.last().map_or(0, |last| last + 1);
    let columns = map.columns.last().map_or(0, |last| last + 1);
    let mut values = vec![f32::NAN; rows * columns];
    for (row, &layer) in map.layers.iter().enumerate() {
        for (effect, &column) in map.effects(row).into_iter().zip(&map.columns) {
            values[layer * columns + column] = (effect - map.unpatched_effect()) as f32;
        }
    }
    let limit = values.iter().copied().filter(|value| value.is_finite()).map(f32::abs).fold(0.0, f32::max);
    let pyramid = Pyramid::from_rows(&values, rows, columns);
    let scale = Scale::symmetric(limit);
    let texts: Vec<String> = match is_head {
        true => vec![],
        false => map.clean.tokens.iter().take(columns).map(|token| visible_line(&token.text)).collect(),
    };
    let first = map.columns.first().copied().unwrap_or(0);
    let span = ColumnRange { start: first as f64, end: columns.max(first + 1) as f64 };
    let figure = Map {
        title: format!("{model}: {}", title(map)),
        unit: unit(map),
        description: format!(
            "Effect of patching the {} at each layer and {}, from the {} run into the {} run.",
            map.site.words(),
            map.site.column_name(),
            names(map)[0],
            names(map)[1]
        ),
        values: &pyramid,
        scale: &scale,
        colours: ColourMap::RedBlue,
        span,
        without_first: false,
        column_name: map.site.column_name().into(),
        column_texts: &texts,
        cutoff: None,
    };
    let letters = [&figure.title, &figure.unit].map(|text| text.chars().count() as f64);
    let words = (letters[0] * LETTERS[0]).max(BEFORE_UNIT + letters[1] * LETTERS[1]) + MARGIN[0] / 2.0;
    let width = (MARGIN[0] + COLUMN * span.width()).max(words).min(WIDEST);
    let size = [width, MARGIN[1] + ROW * rows as f64];
    figure.to_svg(&Canvas { size, colours: Colours::Of(Theme::Light), titled: true, id: "patching" })
}

/// The names of the source and of the base.
fn names(map: &PatchMap) -> [&'static str; 2] {
    match map.direction {
        PatchDirection::Denoising => ["clean", "corrupted"],
        PatchDirection::Noising => ["corrupted", "clean"],
    }
}

fn title(map: &PatchMap) -> String {
    let [source, base] = names(map);
    format!("{}, {source} into {base} run", map.site.words())
}

/// What the colours measure.
fn unit(map: &PatchMap) -> String {
    let metric = match map.metric {
        PatchMetric::LogitDiff => {
            let [answer, wrong] = [&map.answer, &map.wrong].map(|token| visible_line(&token.text));
            format!("logit difference, {} − {}", answer.trim(), wrong.trim())
        }
        PatchMetric::Kl => "KL from the clean run".into(),
    };
    let way = match map.direction {
        PatchDirection::Denoising => "1: as the clean run",
        PatchDirection::Noising => "−1: as the corrupted run",
    };
    format!("{metric} (0: as without a patch, {way})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_diagnostics::patching::{PatchFigures, PatchToken, PatchedPrompt};

    fn map(direction: PatchDirection, site: PatchSite) -> PatchMap {
        let token = |id: u32, text: &str| PatchToken { id, text: text.into() };
        let prompt = |id: &str, logit_diff| PatchedPrompt {
            id: id.into(),
            tokens: vec![token(1, " The"), token(2, "<b>\n"), token(3, " \u{202E}x")],
            next: token(4, " Mary"),
            figures: PatchFigures { logit_diff, kl: 1.0 },
        };
        PatchMap {
            site,
            direction,
            metric: PatchMetric::LogitDiff,
            clean: prompt("clean", 2.0),
            corrupted: prompt("corrupted", -2.0),
            answer: token(4, " Mary"),
            wrong: token(5, " John"),
            layers: vec![1, 3],
            columns: vec![0, 2],
            head_positions: vec![],
            cells: [0.0, 2.0, -4.0]
                .map(|logit_diff| Some(PatchFigures { logit_diff, kl: 0.5 }))
                .into_iter()
                .chain([None])
                .collect(),
        }
    }

    #[test]
    fn the_figure_names_axes_units_and_tokens() {
        let svg = patching_svg(&map(PatchDirection::Denoising, PatchSite::ResidPre), "tiny<");
        roxmltree::Document::parse(&svg).expect("XML");
        for part in
            ["tiny&lt;: residual stream", "Mary − John", "1: as the clean run", "layer", "position", "The"]
        {
            assert!(svg.contains(part), "{part} in {svg}");
        }
        assert!(!svg.contains('\u{202E}'));
        assert!(svg.contains("layer 1, position 2: “"), "{svg}");
        let svg = patching_svg(&map(PatchDirection::Noising, PatchSite::Head), "tiny");
        roxmltree::Document::parse(&svg).expect("XML");
        assert!(svg.contains("−1: as the corrupted run") && svg.contains(">head<"), "{svg}");
    }

    #[test]
    fn a_map_without_a_scale_is_drawn() {
        let mut same = map(PatchDirection::Denoising, PatchSite::MlpOut);
        same.corrupted.figures = same.clean.figures;
        roxmltree::Document::parse(&patching_svg(&same, "tiny")).expect("XML");
    }
}
