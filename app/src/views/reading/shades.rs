//! What is lit: the prompt tokens that a generated token reads, the generated tokens that read a prompt token, and how strongly each is
//! shaded.

use crate::data::{PromptMaps, ScaleKind, StepFigure, TokenFigure};
use crate::engine::message::Pattern;
use crate::state::Selection;
use layerscope_diagnostics::reads::{Read, RowReads};
use layerscope_diagnostics::record::PromptSummary;
use ndarray::Array2;
use std::collections::BTreeMap;

/// Layers that count where none is selected, at most.
const PEAK_LAYERS: usize = 4;
/// Of exact rows, which have every token: those lit.
const LIT: usize = 64;

/// What the pointer, or else the selection, is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Subject {
    /// A generated token, by its decode step.
    Step(usize),
    /// A prompt token, by its position.
    Token(usize),
}

impl Subject {
    /// What is pinned: the only selected step, or else the selected token.
    pub(super) fn pinned(selection: &Selection) -> Option<Self> {
        let step = selection.steps.first().copied().filter(|_| selection.steps.len() == 1);
        step.map(Self::Step).or(selection.token.map(Self::Token))
    }
}

/// The layers and heads that count.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Chosen {
    /// Ascending, at least one.
    pub(super) layers: Vec<usize>,
    /// Heads of these layers, as (layer, head); none means all.
    pub(super) heads: Vec<(usize, usize)>,
    /// Whether the layers are those of the knockout's peak, since none was selected.
    pub(super) is_peak: bool,
}

impl Chosen {
    /// What is selected, or else the layers that matter to the prompt.
    pub(super) fn of(selection: &Selection, prompt: &PromptSummary) -> Self {
        let all = prompt.layers.bos_mass.len();
        let selected: Vec<usize> = selection.layers.iter().copied().filter(|layer| *layer < all).collect();
        let of_heads: Vec<usize> = selection.heads.iter().map(|(layer, _)| *layer).collect();
        let (mut layers, is_peak) = match (selected.is_empty(), of_heads.is_empty()) {
            (false, _) => (selected, false),
            (true, false) => (of_heads, false),
            (true, true) => (peak_layers(prompt), true),
        };
        layers.dedup();
        let heads = selection.heads.iter().copied().filter(|(layer, _)| layers.contains(layer)).collect();
        Self { layers, heads, is_peak }
    }

    /// Its layers and heads in words.
    pub(super) fn name(&self, of: usize) -> String {
        match &self.layers[..] {
            [one] => format!("layer {one}"),
            layers if layers.len() == of => "all layers".into(),
            layers if layers.len() <= PEAK_LAYERS => {
                let numbers: Vec<String> = layers.iter().map(usize::to_string).collect();
                format!("layers {}", numbers.join(", "))
            }
            layers => format!("{} layers", layers.len()),
        }
    }

    /// Calls `f` with the list of each chosen row of a step, and whether it is one of a head; the number of rows.
    fn rows<'a>(&self, reads: &'a Array2<RowReads>, step: usize, mut f: impl FnMut(&'a [Read])) -> usize {
        if self.heads.is_empty() {
            let rows = self.layers.iter().filter_map(|&layer| reads.get((layer, step)));
            return rows.map(|row| f(&row.mean)).count();
        }
        let rows = self.heads.iter().filter_map(|&(layer, head)| Some((reads.get((layer, step))?, head)));
        rows.map(|(row, head)| f(row.of_head(head))).count()
    }
}

/// The layers at which hiding the prompt costs most, at least half of the most; where that is unknown, those with most prompt mass.
pub(super) fn peak_layers(prompt: &PromptSummary) -> Vec<usize> {
    let knockout: Vec<f64> =
        (0..prompt.layers.bos_mass.len()).map(|layer| prompt.knockout_at(layer).kl).collect();
    let of = |values: &[f64]| {
        let most = values.iter().copied().fold(f64::NAN, f64::max);
        let mut layers: Vec<usize> = (0..values.len()).filter(|&layer| values[layer] >= most / 2.0).collect();
        layers.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
        layers.truncate(PEAK_LAYERS);
        layers.sort_unstable();
        Some(layers).filter(|layers| most > 0.0 && !layers.is_empty())
    };
    let found = of(&knockout).or_else(|| of(&prompt.layers.prompt_mass));
    found.unwrap_or_else(|| (0..knockout.len()).collect())
}

/// Tokens with the attention between them and the subject, strongest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Lit {
    pub(super) tokens: Vec<(usize, f32)>,
    /// Whether every token is among them, of which the strongest are listed; else some may lack attention of rows that do not list them.
    pub(super) is_whole: bool,
}

impl Lit {
    /// How strongly the token at a place is shaded.
    pub(super) fn ink(&self, kind: ScaleKind, place: usize) -> f32 {
        let most = self.tokens.first().map_or(f32::NAN, |(_, attention)| *attention);
        let Some((_, attention)) = self.tokens.get(place) else { return 0.0 };
        let share = attention / most;
        let ink = match kind {
            ScaleKind::Linear => share,
            // Two decades.
            ScaleKind::Log => 1.0 + share.log10() / 2.0,
            ScaleKind::Percentile => 1.0 - place as f32 / self.tokens.len().clamp(12, 24) as f32,
        };
        ink.clamp(0.06, 1.0)
    }

    fn sorted(mut tokens: Vec<(usize, f32)>, is_whole: bool) -> Self {
        tokens.retain(|(_, attention)| *attention > 0.0);
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Self { tokens, is_whole }
    }
}

/// Where attention is known from.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// Every prompt token, of the chosen layers.
    Patterns(&'a [Pattern]),
    /// The strongest that the run keeps.
    Reads(&'a Array2<RowReads>),
}

impl<'a> Source<'a> {
    /// Whole rows where the chosen layers' were read, else what the run keeps; `None` where there is neither.
    pub(super) fn of(maps: &'a PromptMaps, patterns: &'a [Pattern], chosen: &Chosen) -> Option<Self> {
        let whole = chosen.layers.iter().all(|layer| patterns.iter().any(|pattern| pattern.layer == *layer));
        match whole {
            true => Some(Self::Patterns(patterns)),
            false => maps.reads().map(Self::Reads),
        }
    }

    /// The prompt tokens that a generated token reads.
    pub(super) fn read_by(self, step: usize, chosen: &Chosen, maps: &PromptMaps, without_bos: bool) -> Lit {
        let mut lit = match self {
            Self::Patterns(patterns) => {
                let values = attention(patterns, chosen, Some(step), TokenFigure::ReceivedMean);
                let last = values.len().saturating_sub(1);
                let tokens = values.into_iter().enumerate().take(last).skip(1).collect();
                Lit::sorted(tokens, true)
            }
            Self::Reads(reads) => {
                let mut sums: BTreeMap<usize, f32> = BTreeMap::new();
                let rows = chosen.rows(reads, step, |list| {
                    for read in list {
                        *sums.entry(read.position as usize).or_default() += read.attention;
                    }
                });
                let means = sums.into_iter().map(|(token, sum)| (token, sum / rows.max(1) as f32));
                Lit::sorted(means.collect(), false)
            }
        };
        // The mass on position 0 is known exactly, as the mean over heads.
        if !without_bos && chosen.heads.is_empty() {
            let masses = maps.steps(StepFigure::BosMass);
            let known =
                chosen.layers.iter().filter(|&&layer| layer < masses.rows() && step < masses.columns());
            let sum: f32 = known.map(|&layer| masses.value(layer, step)).sum();
            lit.tokens.push((0, sum / chosen.layers.len() as f32));
            lit = Lit::sorted(lit.tokens, lit.is_whole);
        }
        lit.tokens.truncate(LIT);
        lit
    }

    /// The steps that read a prompt token.
    pub(super) fn readers(self, token: usize, steps: usize, chosen: &Chosen) -> Lit {
        let of_step = |step: usize| match self {
            Self::Patterns(patterns) => {
                let (mut sum, mut rows) = (0.0, 0_usize);
                each_row(patterns, chosen, Some(step), |row| {
                    sum += row.get(token).copied().unwrap_or(0.0);
                    rows += 1;
                });
                sum / rows.max(1) as f32
            }
            Self::Reads(reads) => {
                let mut sum = 0.0;
                let rows = chosen.rows(reads, step, |list| {
                    let found = list.iter().find(|read| read.position as usize == token);
                    sum += found.map_or(0.0, |read| read.attention);
                });
                sum / rows.max(1) as f32
            }
        };
        Lit::sorted((0..steps).map(|step| (step, of_step(step))).collect(), matches!(self, Self::Patterns(_)))
    }
}

/// Attention by prompt token over the chosen rows of patterns, `step`'s alone or all steps': its mean or its maximum.
pub(super) fn attention(
    patterns: &[Pattern],
    chosen: &Chosen,
    step: Option<usize>,
    figure: TokenFigure,
) -> Vec<f32> {
    let positions = patterns.first().map_or(0, |pattern| pattern.positions);
    let (mut values, mut rows) = (vec![0.0_f32; positions], 0_usize);
    each_row(patterns, chosen, step, |row| {
        for (value, &one) in values.iter_mut().zip(row) {
            match figure {
                TokenFigure::ReceivedMean => *value += one,
                TokenFigure::ReceivedMax => *value = value.max(one),
            }
        }
        rows += 1;
    });
    if figure == TokenFigure::ReceivedMean {
        values.iter_mut().for_each(|value| *value /= rows.max(1) as f32);
    }
    values
}

fn each_row<'a>(patterns: &'a [Pattern], chosen: &Chosen, step: Option<usize>, mut f: impl FnMut(&'a [f32])) {
    for pattern in patterns.iter().filter(|pattern| chosen.layers.contains(&pattern.layer)) {
        for head in 0..pattern.heads {
            if !chosen.heads.is_empty() && !chosen.heads.contains(&(pattern.layer, head)) {
                continue;
            }
            for step in (0..pattern.steps).filter(|at| step.is_none_or(|step| step == *at)) {
                let start = (head * pattern.steps + step) * pattern.positions;
                f(pattern.values.get(start..start + pattern.positions).unwrap_or(&[]));
            }
        }
    }
}

/// The strongest attention of each head: of a step on any prompt token, on a prompt token at any step, or any of both, `[L, H]`.
pub(super) fn by_head(reads: &Array2<RowReads>, heads: usize, subject: Option<Subject>) -> Array2<f32> {
    let (layers, steps) = reads.dim();
    let mut strongest = Array2::zeros((layers, heads));
    let within = match subject {
        Some(Subject::Step(step)) => step.min(steps)..(step + 1).min(steps),
        _ => 0..steps,
    };
    for layer in 0..layers {
        for row in within.clone().filter_map(|step| reads.get((layer, step))) {
            for head in 0..heads {
                let list = row.of_head(head);
                let read = match subject {
                    Some(Subject::Token(token)) => list.iter().find(|read| read.position as usize == token),
                    _ => list.first(),
                };
                let cell: &mut f32 = &mut strongest[(layer, head)];
                *cell = cell.max(read.map_or(0.0, |read| read.attention));
            }
        }
    }
    strongest
}

/// How strongly a token is shaded by its place on a scale of all tokens; NaN stays NaN.
pub(super) fn ink(kind: ScaleKind, position: f32) -> f32 {
    match kind {
        ScaleKind::Linear => position,
        // The upper three decades.
        ScaleKind::Log => ((position - 0.4) / 0.6).clamp(0.0, 1.0).powf(1.5),
        // The upper half, the top most of all.
        ScaleKind::Percentile => ((position - 0.5) / 0.5).clamp(0.0, 1.0).powi(2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(reads: &[(u32, f32)]) -> Vec<Read> {
        reads.iter().map(|&(position, attention)| Read { position, attention }).collect()
    }

    /// Two layers, two steps, two heads.
    fn reads() -> Array2<RowReads> {
        let row = |mean: &[(u32, f32)], heads: [&[(u32, f32)]; 2]| RowReads {
            mean: list(mean),
            heads: heads.iter().flat_map(|reads| list(reads)).collect(),
            ends: vec![heads[0].len(), heads[0].len() + heads[1].len()],
        };
        let rows = vec![
            row(&[(3, 0.3), (5, 0.1)], [&[(3, 0.5)], &[(5, 0.2), (3, 0.1)]]),
            row(&[(5, 0.4)], [&[], &[(5, 0.8)]]),
            row(&[(3, 0.1)], [&[(3, 0.2)], &[]]),
            row(&[(7, 0.2)], [&[(7, 0.3)], &[(7, 0.1)]]),
        ];
        Array2::from_shape_vec((2, 2), rows).expect("four rows")
    }

    fn chosen(layers: &[usize], heads: &[(usize, usize)]) -> Chosen {
        Chosen { layers: layers.to_vec(), heads: heads.to_vec(), is_peak: false }
    }

    fn close(actual: &Lit, expected: &[(usize, f32)]) {
        assert_eq!(actual.tokens.len(), expected.len(), "{actual:?}");
        for (a, b) in actual.tokens.iter().zip(expected) {
            assert!(a.0 == b.0 && (a.1 - b.1).abs() < 1e-6, "{actual:?}");
        }
    }

    #[test]
    fn a_step_lights_what_it_reads_at_the_chosen_layers_and_heads() {
        let (reads, maps) = (reads(), PromptMaps::empty(0));
        let lit = |step, chosen: &Chosen| Source::Reads(&reads).read_by(step, chosen, &maps, true);
        close(&lit(0, &chosen(&[0, 1], &[])), &[(3, 0.2), (5, 0.05)]);
        close(&lit(0, &chosen(&[0], &[])), &[(3, 0.3), (5, 0.1)]);
        close(&lit(0, &chosen(&[0], &[(0, 1)])), &[(5, 0.2), (3, 0.1)]);
        close(&lit(1, &chosen(&[0, 1], &[(0, 0), (1, 0)])), &[(7, 0.15)]);
        close(&lit(9, &chosen(&[0], &[])), &[]);
    }

    #[test]
    fn a_token_lights_the_steps_that_read_it() {
        let reads = reads();
        let readers = |token, chosen: &Chosen| Source::Reads(&reads).readers(token, 2, chosen);
        close(&readers(5, &chosen(&[0], &[])), &[(1, 0.4), (0, 0.1)]);
        close(&readers(7, &chosen(&[0, 1], &[])), &[(1, 0.1)]);
        close(&readers(4, &chosen(&[0, 1], &[])), &[]);
    }

    #[test]
    fn whole_rows_give_the_same_as_lists_that_hold_them() {
        // One layer, two heads, two steps, four tokens.
        let values = vec![
            0.1, 0.5, 0.2, 0.2, 0.2, 0.1, 0.6, 0.1, //
            0.3, 0.1, 0.4, 0.2, 0.7, 0.1, 0.1, 0.1,
        ];
        let pattern = Pattern { layer: 0, heads: 2, steps: 2, positions: 4, values };
        let (patterns, maps) = ([pattern], PromptMaps::empty(0));
        let source = Source::Patterns(&patterns);
        close(&source.read_by(0, &chosen(&[0], &[]), &maps, true), &[(1, 0.3), (2, 0.3)]);
        close(&source.read_by(1, &chosen(&[0], &[(0, 0)]), &maps, true), &[(2, 0.6), (1, 0.1)]);
        close(&source.readers(1, 2, &chosen(&[0], &[])), &[(0, 0.3), (1, 0.1)]);
        let largest = attention(&patterns, &chosen(&[0], &[]), None, TokenFigure::ReceivedMax);
        assert_eq!(largest, [0.7, 0.5, 0.6, 0.2]);
    }

    #[test]
    fn heads_have_their_strongest_reads() {
        let reads = reads();
        let all = by_head(&reads, 2, None);
        assert_eq!(all, ndarray::array![[0.5, 0.8], [0.3, 0.1]]);
        assert_eq!(by_head(&reads, 2, Some(Subject::Step(0))), ndarray::array![[0.5, 0.2], [0.2, 0.0]]);
        assert_eq!(by_head(&reads, 2, Some(Subject::Token(3))), ndarray::array![[0.5, 0.1], [0.2, 0.0]]);
        assert_eq!(by_head(&reads, 2, Some(Subject::Step(7))), Array2::<f32>::zeros((2, 2)));
    }

    #[test]
    fn the_strongest_is_darkest_on_every_scale() {
        let lit = Lit { tokens: vec![(4, 0.4), (1, 0.1), (9, 0.001)], is_whole: false };
        for kind in ScaleKind::ALL {
            let inks: Vec<f32> = (0..3).map(|place| lit.ink(kind, place)).collect();
            assert!(inks[0] == 1.0 && inks[0] > inks[1] && inks[1] > inks[2] && inks[2] > 0.0, "{inks:?}");
            assert_eq!(lit.ink(kind, 3), 0.0);
            assert!(ink(kind, 1.0) == 1.0 && ink(kind, 0.0) == 0.0 && ink(kind, f32::NAN).is_nan());
        }
    }
}
