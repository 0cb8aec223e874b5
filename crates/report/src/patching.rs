//! The map of patches as a figure, shared by report and viewer.

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
const BEFORE_UNIT: f64 = 290.0;

/// The map as SVG: layers downwards, positions with the prompts' tokens or heads to the right. Colours show how far a patch moves
/// the metric from the unpatched run; the whole way to the other run is 1 or −1.
pub fn patching_svg(map: &PatchMap, model: &str) -> String {
    let mut figure = PatchFigure::of(map, 0);
    figure.title = format!("{model}: {}", figure.title);
    let letters = [&figure.title, &figure.unit].map(|text| text.chars().count() as f64);
    let words = (letters[0] * LETTERS[0]).max(BEFORE_UNIT + letters[1] * LETTERS[1]) + MARGIN[0] / 2.0;
    let width = (MARGIN[0] + COLUMN * figure.span().width()).max(words).min(WIDEST);
    let size = [width, MARGIN[1] + ROW * figure.values.rows() as f64];
    figure.map().to_svg(&Canvas { size, colours: Colours::Of(Theme::Light), titled: true, id: "patching" })
}

/// A map of patches as it is drawn.
#[derive(Debug, Clone)]
pub struct PatchFigure {
    /// Its title.
    pub title: String,
    /// What the colours measure.
    pub unit: String,
    /// What it shows, in a sentence.
    pub description: String,
    /// How far each patch moves the metric from the unpatched run. Layers and columns count from 0; NaN where nothing is patched,
    /// computed or defined.
    pub values: Pyramid,
    /// The scale of the colours, with 0 in its middle.
    pub scale: Scale,
    /// The first column that is patched.
    pub first: usize,
    /// What a column is.
    pub column_name: &'static str,
    /// The clean prompt's token at each position, and the corrupted one's where that is another; empty for heads.
    pub texts: Vec<String>,
}

impl PatchFigure {
    /// The figure of a map, with so many layers at least.
    pub fn of(map: &PatchMap, layers: usize) -> Self {
        let rows = map.layers.last().map_or(0, |last| last + 1).max(layers);
        let columns = map.columns.last().map_or(0, |last| last + 1);
        let mut values = vec![f32::NAN; rows * columns];
        for (row, &layer) in map.layers.iter().enumerate() {
            for (effect, &column) in map.effects(row).into_iter().zip(&map.columns) {
                let moved = (effect - map.unpatched_effect()) as f32;
                values[layer * columns + column] = if moved.is_finite() { moved } else { f32::NAN };
            }
        }
        let limit = values.iter().copied().filter(|value| !value.is_nan()).map(f32::abs).fold(0.0, f32::max);
        let [source, base] = map.direction.runs();
        let tokens = map.clean.tokens.iter().zip(map.corrupted.tokens.iter()).take(columns);
        Self {
            title: format!("{}, {source} into {base} run", map.what()),
            unit: unit(map),
            description: format!(
                "How far patching the {} of the {source} run into the {base} run moves the metric, at each layer and {}.",
                map.site.words(),
                map.site.column_name(),
            ),
            values: Pyramid::from_signed_rows(&values, rows, columns),
            scale: Scale::symmetric(limit),
            first: map.columns.first().copied().unwrap_or(0),
            column_name: map.site.column_name(),
            texts: match map.site {
                PatchSite::Head => vec![],
                _ => tokens.map(|(clean, corrupted)| both(&clean.text, &corrupted.text)).collect(),
            },
        }
    }

    /// The columns from the first that is patched on.
    pub fn span(&self) -> ColumnRange {
        let end = self.values.columns().max(self.first + 1);
        ColumnRange { start: self.first as f64, end: end as f64 }
    }

    /// The figure with all its columns.
    pub fn map(&self) -> Map<'_> {
        Map {
            title: self.title.clone(),
            unit: self.unit.clone(),
            description: self.description.clone(),
            values: &self.values,
            scale: &self.scale,
            colours: ColourMap::RedBlue,
            span: self.span(),
            without_first: false,
            column_name: self.column_name.into(),
            column_texts: &self.texts,
            cutoff: None,
        }
    }
}

/// A token, or both where prompts differ.
fn both(clean: &str, corrupted: &str) -> String {
    match clean == corrupted {
        true => visible_line(clean),
        false => visible_line(&format!("{}|{}", clean.trim(), corrupted.trim())),
    }
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
            tokens: [token(1, " The"), token(2, "<b>\n"), token(3, " \u{202E}x")].into(),
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
    fn tokens_that_differ_are_both_named() {
        let mut map = map(PatchDirection::Denoising, PatchSite::AttnOut);
        map.corrupted.tokens = [(1, " The"), (7, " y"), (3, " \u{202E}x")]
            .map(|(id, text)| PatchToken { id, text: text.into() })
            .into();
        let figure = PatchFigure::of(&map, 0);
        assert_eq!(figure.texts.iter().map(|text| text.trim()).collect::<Vec<_>>()[..2], ["The", "<b>|y"]);
        assert_eq!((figure.values.rows(), figure.values.columns(), figure.first), (4, 3, 0));
        assert!(figure.values.value(0, 0).is_nan() && figure.values.value(1, 1).is_nan());
        assert_eq!(figure.values.value(1, 0), 0.5);
        assert!(PatchFigure::of(&self::map(PatchDirection::Denoising, PatchSite::Head), 0).texts.is_empty());
    }

    #[test]
    fn numbers_beyond_f32_are_undefined() {
        let mut map = map(PatchDirection::Denoising, PatchSite::MlpOut);
        map.cells[0] = Some(PatchFigures { logit_diff: 1e300, kl: f64::INFINITY });
        assert!(PatchFigure::of(&map, 0).values.value(1, 0).is_nan());
        assert_eq!(PatchFigure::of(&map, 0).scale.value_at(1.0), 1.0);
    }

    #[test]
    fn a_map_without_a_scale_is_drawn() {
        let mut same = map(PatchDirection::Denoising, PatchSite::MlpOut);
        same.corrupted.figures = same.clean.figures;
        roxmltree::Document::parse(&patching_svg(&same, "tiny")).expect("XML");
    }
}
