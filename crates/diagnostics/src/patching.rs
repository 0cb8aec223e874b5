//! A map of activation patches: what replacing single activations of one prompt's run by those of another does to the next token.

mod report;

use crate::ranges;
pub use report::{PatchReport, StrongPatch, UnpatchedRun};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use std::sync::Arc;

/// Which activations are replaced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatchSite {
    /// The residual stream where it enters a layer, at one position (`hook_resid_pre`).
    #[default]
    ResidPre,
    /// What a layer's attention adds to the residual stream, at one position (`hook_attn_out`).
    AttnOut,
    /// What a layer's MLP adds to the residual stream, at one position (`hook_mlp_out`).
    MlpOut,
    /// The output of one attention head before the output projection, at several positions at once (`attn.hook_z`).
    Head,
}

impl PatchSite {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ResidPre, Self::AttnOut, Self::MlpOut, Self::Head];

    /// Its name in arguments and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResidPre => "resid_pre",
            Self::AttnOut => "attn_out",
            Self::MlpOut => "mlp_out",
            Self::Head => "head",
        }
    }

    /// The site of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|site| site.name() == name)
    }

    /// What it is, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::ResidPre => "residual stream before the layer",
            Self::AttnOut => "attention output",
            Self::MlpOut => "MLP output",
            Self::Head => "output of one attention head",
        }
    }

    /// What the columns of a map are.
    pub fn column_name(self) -> &'static str {
        match self {
            Self::Head => "head",
            _ => "position",
        }
    }
}

/// Which run is patched.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PatchDirection {
    /// The corrupted run gets activations of the clean one: which of them suffice to restore the answer?
    #[default]
    Denoising,
    /// The clean run gets activations of the corrupted one: which of them are needed for the answer?
    Noising,
}

impl PatchDirection {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Denoising, Self::Noising];

    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denoising => "denoising",
            Self::Noising => "noising",
        }
    }

    /// The direction of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.name() == name)
    }

    /// The run that activations are taken from, and the one that is patched.
    pub fn runs(self) -> [&'static str; 2] {
        match self {
            Self::Denoising => ["clean", "corrupted"],
            Self::Noising => ["corrupted", "clean"],
        }
    }
}

/// What an effect is measured by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PatchMetric {
    /// Logit of the answer minus logit of the wrong answer.
    LogitDiff,
    /// KL(clean ‖ patched), nats.
    #[default]
    Kl,
}

impl PatchMetric {
    /// Both.
    pub const ALL: [Self; 2] = [Self::LogitDiff, Self::Kl];

    /// Its name in arguments and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::LogitDiff => "logit-diff",
            Self::Kl => "kl",
        }
    }

    /// The metric of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }
}

/// The next token after the last position of a run. Undefined values are NaN.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PatchFigures {
    /// Logit of the answer minus logit of the wrong answer.
    pub logit_diff: f64,
    /// KL(clean ‖ this run) of the next-token distributions, nats.
    pub kl: f64,
}

/// A token with its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PatchToken {
    /// Its id.
    pub id: u32,
    /// How it is shown.
    pub text: String,
}

/// One of the two prompts.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PatchedPrompt {
    /// Its id in a run folder; `clean` or `corrupted` where its text was given.
    pub id: String,
    /// Its tokens, length p. Maps of one prompt share them.
    #[serde(serialize_with = "each")]
    #[schemars(with = "Vec<PatchToken>")]
    pub tokens: Arc<[PatchToken]>,
    /// The most likely next token.
    pub next: PatchToken,
    /// The figures of its run without a patch.
    #[serde(flatten)]
    pub figures: PatchFigures,
}

fn each<S: Serializer>(tokens: &Arc<[PatchToken]>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(tokens.iter())
}

/// A map of layers × positions, or layers × heads.
#[derive(Debug, Clone, PartialEq)]
pub struct PatchMap {
    /// What is replaced.
    pub site: PatchSite,
    /// In which run.
    pub direction: PatchDirection,
    /// What the effect is measured by.
    pub metric: PatchMetric,
    /// The clean prompt.
    pub clean: PatchedPrompt,
    /// The corrupted prompt, of as many tokens.
    pub corrupted: PatchedPrompt,
    /// The answer.
    pub answer: PatchToken,
    /// The wrong answer.
    pub wrong: PatchToken,
    /// The rows: layers, ascending.
    pub layers: Vec<usize>,
    /// The columns: positions or heads, ascending.
    pub columns: Vec<usize>,
    /// Of heads, the positions at which they are replaced; empty at the other sites.
    pub head_positions: Vec<usize>,
    /// A cell for each row and column, row by row; `None` where it was not computed, since the work was interrupted.
    pub cells: Vec<Option<PatchFigures>>,
}

impl PatchMap {
    /// The cell of a row and a column, by their places in the map.
    pub fn cell(&self, row: usize, column: usize) -> Option<PatchFigures> {
        self.cells.get(row * self.columns.len() + column).copied().flatten()
    }

    /// The metric on the scale on which the corrupted run is 0 and the clean run is 1; NaN where both runs are equal by it.
    pub fn effect(&self, figures: PatchFigures) -> f64 {
        let by_metric = |figures: PatchFigures| match self.metric {
            PatchMetric::LogitDiff => figures.logit_diff,
            PatchMetric::Kl => figures.kl,
        };
        let [clean, corrupted] = [&self.clean, &self.corrupted].map(|prompt| by_metric(prompt.figures));
        if clean == corrupted {
            return f64::NAN;
        }
        (by_metric(figures) - corrupted) / (clean - corrupted)
    }

    /// The effect without a patch: that of the run that is patched.
    pub fn unpatched_effect(&self) -> f64 {
        match self.direction {
            PatchDirection::Denoising => 0.0,
            PatchDirection::Noising => 1.0,
        }
    }

    /// Whether another map answers the same question: with the same prompts, activations and answers.
    pub fn asks_as(&self, other: &Self) -> bool {
        let prompts = |map: &Self| [map.clean.id.clone(), map.corrupted.id.clone()];
        let asked = |map: &Self| (map.site, map.direction, map.metric, map.answer.id, map.wrong.id);
        prompts(self) == prompts(other)
            && asked(self) == asked(other)
            && self.layers == other.layers
            && self.columns == other.columns
            && self.head_positions == other.head_positions
    }

    /// What is replaced, in words, and where; of a head at which positions.
    pub fn what(&self) -> String {
        let words = self.site.words();
        match self.head_positions[..] {
            _ if self.site != PatchSite::Head => words.to_owned(),
            [position] => format!("{words}, at position {position}"),
            _ if self.head_positions.len() == self.clean.tokens.len() => format!("{words}, at all positions"),
            _ => format!("{words}, at positions {}", ranges::text(&self.head_positions)),
        }
    }

    /// The question in a line, for a model of so many layers: both prompts, what is replaced in which run, and what measures it.
    pub fn question(&self, layers: usize) -> String {
        let [source, base] = self.direction.runs();
        let metric = match self.metric {
            PatchMetric::Kl => "by KL".to_owned(),
            PatchMetric::LogitDiff => {
                format!("by logits {:?} − {:?}", self.answer.text, self.wrong.text)
            }
        };
        let mut question = format!(
            "{} / {}: {}, {source} into {base}, {metric}",
            self.clean.id,
            self.corrupted.id,
            self.what()
        );
        if self.layers.len() < layers {
            question.push_str(&format!(", layers {}", ranges::text(&self.layers)));
        }
        if self.site != PatchSite::Head && self.columns.len() < self.clean.tokens.len() {
            question.push_str(&format!(", positions {}", ranges::text(&self.columns)));
        }
        question
    }

    /// Effects of a row, a value for each column; NaN where undefined or not computed.
    pub fn effects(&self, row: usize) -> Vec<f64> {
        let of_column = |column| self.cell(row, column).map_or(f64::NAN, |cell| self.effect(cell));
        (0..self.columns.len()).map(of_column).collect()
    }

    /// Whether its layers and columns are some of a model's and its prompts', in order, with a cell for each pair of them.
    pub fn fits(&self, layers: usize, heads: usize) -> bool {
        let (p, is_head) = (self.clean.tokens.len(), self.site == PatchSite::Head);
        let ascend = |places: &[usize], most: usize| {
            places.is_sorted_by(|a, b| a < b) && places.last().is_some_and(|last| *last < most)
        };
        self.corrupted.tokens.len() == p
            && ascend(&self.layers, layers)
            && ascend(&self.columns, if is_head { heads } else { p })
            && (if is_head { ascend(&self.head_positions, p) } else { self.head_positions.is_empty() })
            && self.cells.len() == self.layers.len() * self.columns.len()
    }

    /// Cells that are computed.
    pub fn done(&self) -> usize {
        self.cells.iter().flatten().count()
    }

    /// Whether all are.
    pub fn is_complete(&self) -> bool {
        self.done() == self.cells.len()
    }

    /// (row, column) of the cells whose effect is defined, those first that are farthest from the unpatched run.
    pub fn strongest(&self) -> Vec<(usize, usize)> {
        let strength = |effect: f64| (effect - self.unpatched_effect()).abs();
        let mut cells: Vec<(f64, (usize, usize))> = (0..self.layers.len())
            .flat_map(|row| {
                self.effects(row).into_iter().enumerate().map(move |(at, effect)| (effect, (row, at)))
            })
            .filter(|(effect, _)| effect.is_finite())
            .map(|(effect, place)| (strength(effect), place))
            .collect();
        cells.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        cells.into_iter().map(|(_, place)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(metric: PatchMetric, direction: PatchDirection) -> PatchMap {
        let token = |id| PatchToken { id, text: format!("t{id}") };
        let prompt = |id: &str, logit_diff, kl| PatchedPrompt {
            id: id.into(),
            tokens: [token(1), token(2)].into(),
            next: token(3),
            figures: PatchFigures { logit_diff, kl },
        };
        let cell = |logit_diff, kl| Some(PatchFigures { logit_diff, kl });
        PatchMap {
            site: PatchSite::ResidPre,
            direction,
            metric,
            clean: prompt("clean", 3.0, 0.0),
            corrupted: prompt("corrupted", -1.0, 2.0),
            answer: token(3),
            wrong: token(4),
            layers: vec![0, 2],
            columns: vec![0, 1],
            head_positions: vec![],
            cells: vec![cell(-1.0, 2.0), cell(1.0, 0.5), cell(4.0, 0.1), None],
        }
    }

    #[test]
    fn a_map_fits_the_model_and_prompts_that_it_is_of() {
        let made = || map(PatchMetric::Kl, PatchDirection::Noising);
        assert!(made().fits(3, 1));
        assert!(!made().fits(2, 1), "its last layer is 2");
        assert!(!PatchMap { cells: vec![], ..made() }.fits(3, 1));
        assert!(!PatchMap { layers: vec![2, 0], ..made() }.fits(3, 1));
        assert!(!PatchMap { columns: vec![1, 2], ..made() }.fits(3, 1), "the prompts have two tokens");
        assert!(!PatchMap { head_positions: vec![0], ..made() }.fits(3, 1));
        let of_heads = PatchMap { site: PatchSite::Head, head_positions: vec![1], ..made() };
        assert!(of_heads.fits(3, 2));
        assert!(!of_heads.fits(3, 1));
    }

    #[test]
    fn the_corrupted_run_is_0_and_the_clean_run_is_1() {
        let by_logits = map(PatchMetric::LogitDiff, PatchDirection::Denoising);
        assert_eq!(by_logits.effects(0), [0.0, 0.5]);
        assert_eq!(by_logits.effects(1)[0], 1.25);
        assert!(by_logits.effects(1)[1].is_nan());
        assert_eq!((by_logits.done(), by_logits.is_complete()), (3, false));
        let by_kl = map(PatchMetric::Kl, PatchDirection::Denoising);
        assert_eq!(by_kl.effects(0), [0.0, 0.75]);
    }

    #[test]
    fn the_strongest_are_farthest_from_the_run_that_is_patched() {
        let denoising = map(PatchMetric::LogitDiff, PatchDirection::Denoising);
        assert_eq!(denoising.strongest(), [(1, 0), (0, 1), (0, 0)]);
        let noising = map(PatchMetric::LogitDiff, PatchDirection::Noising);
        assert_eq!(noising.strongest(), [(0, 0), (0, 1), (1, 0)]);
    }

    #[test]
    fn runs_that_are_equal_have_no_scale() {
        let mut map = map(PatchMetric::LogitDiff, PatchDirection::Denoising);
        map.corrupted.figures.logit_diff = map.clean.figures.logit_diff;
        assert!(map.effects(0)[0].is_nan() && map.strongest().is_empty());
    }

    #[test]
    fn names_are_read_back() {
        assert!(PatchSite::ALL.iter().all(|&site| PatchSite::from_name(site.name()) == Some(site)));
        assert_eq!(PatchSite::from_name("resid"), None);
        for direction in PatchDirection::ALL {
            assert_eq!(PatchDirection::from_name(direction.name()), Some(direction));
        }
        assert!(PatchMetric::ALL.iter().all(|&metric| PatchMetric::from_name(metric.name()) == Some(metric)));
        assert_eq!((PatchDirection::from_name("noise"), PatchMetric::from_name("KL")), (None, None));
    }

    #[test]
    fn a_report_names_the_strongest() {
        let report = PatchReport::from(map(PatchMetric::LogitDiff, PatchDirection::Denoising));
        assert_eq!((report.cells, report.done, report.strongest.len()), (4, 3, 3));
        let first = &report.strongest[0];
        assert_eq!((first.layer, first.position, first.head, first.effect), (2, Some(0), None, 1.25));
        assert_eq!(first.clean_token.as_deref(), Some("t1"));
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["strongest"][0]["logit_diff"], 4.0);
        assert_eq!(json["corrupted"]["kl"], 2.0);
        assert!(json.get("map").is_none());
    }

    #[test]
    fn questions_differ_in_what_is_asked() {
        let one = map(PatchMetric::LogitDiff, PatchDirection::Denoising);
        let mut other = one.clone();
        other.cells[3] = other.cells[0];
        assert!(one.asks_as(&other));
        other.layers[1] = 3;
        assert!(!one.asks_as(&other));
        assert!(!one.asks_as(&map(PatchMetric::Kl, PatchDirection::Denoising)));
    }
}
