//! The state of the view: plain data for undo and for saving between sessions.

use crate::data::{HeadFigure, ScaleKind, StepFigure, TokenFigure};
use crate::design::ColourMap;
use layerscope_cutoff::recommend::{Criterion, Options};
use layerscope_diagnostics::patching::{PatchDirection, PatchMetric, PatchSite};
use layerscope_diagnostics::record::Anchor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// The views.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum View {
    /// Layers × prompt tokens, or × decode steps.
    #[default]
    Map,
    /// Queries × keys of a layer and head.
    Pattern,
    /// Prompt and generated text as a page: which token reads which.
    #[serde(alias = "Text")]
    Reading,
    /// Figures by layer.
    Curves,
    /// Layers × heads.
    Heads,
    /// What each cutoff costs and saves.
    Frontier,
    /// Activation patches between two prompts.
    Patching,
    /// Live generation.
    Generate,
    /// Recording a run.
    Record,
    /// Two runs side by side.
    Compare,
    /// Training an adapter.
    Adapt,
}

impl View {
    /// All, in the order of their tabs.
    pub const ALL: [Self; 11] = [
        Self::Map,
        Self::Pattern,
        Self::Reading,
        Self::Curves,
        Self::Heads,
        Self::Frontier,
        Self::Patching,
        Self::Generate,
        Self::Record,
        Self::Compare,
        Self::Adapt,
    ];

    /// Its name on its tab.
    pub fn name(self) -> &'static str {
        match self {
            Self::Map => "Map",
            Self::Pattern => "Pattern",
            Self::Reading => "Reading",
            Self::Curves => "Curves",
            Self::Heads => "Heads",
            Self::Frontier => "Frontier",
            Self::Patching => "Patching",
            Self::Generate => "Generate",
            Self::Record => "Record",
            Self::Compare => "Compare",
            Self::Adapt => "Adapt",
        }
    }

    /// What it shows, in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Map => "Which prompt tokens each layer reads, or how reading changes from step to step",
            Self::Pattern => {
                "The attention pattern: which key each query reads, of a layer and head, at any zoom"
            }
            Self::Reading => {
                "The text as a page: which prompt tokens a generated token reads, and which read a prompt token"
            }
            Self::Curves => "Masses, entropy, selectivity, straightening, logit lens and knockout by layer",
            Self::Heads => "Layers by heads: which heads read the prompt",
            Self::Frontier => "What each cutoff costs and what it saves",
            Self::Patching => {
                "Activations of one prompt put into the run of another: which layers, positions and heads carry the answer"
            }
            Self::Generate => "Full depth and the cutoff side by side, live",
            Self::Record => "Record prompts with a model into a run",
            Self::Adapt => "Teach the model the cutoff: train an adapter and watch the frontier",
            Self::Compare => "This run beside another: curves, differences, frontiers and recommendations",
        }
    }
}

/// The content of the frontier view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum FrontierChart {
    /// What each cutoff costs and saves.
    #[default]
    Cutoffs,
    /// Measured policies, where the run folder has measurements of their quality.
    Policies,
    /// Scores at tasks, where the run folder has some.
    Answers,
}

impl FrontierChart {
    /// All.
    pub const ALL: [Self; 3] = [Self::Cutoffs, Self::Policies, Self::Answers];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cutoffs => "Cutoffs",
            Self::Policies => "Policies",
            Self::Answers => "Answers",
        }
    }

    /// What it shows, in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::Cutoffs => "What each cutoff costs and saves, by the exact frontier",
            Self::Policies => {
                "What policies cost in quality beside time and memory, as layerscope bench measured them"
            }
            Self::Answers => "How policies score at tasks, by layerscope eval or lm-evaluation-harness",
        }
    }
}

/// What the map's columns are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Columns {
    /// Prompt tokens.
    #[default]
    Tokens,
    /// Decode steps.
    Steps,
}

/// How much of the attention pattern is shown at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PatternLayout {
    /// One layer and head, or one layer over its heads.
    #[default]
    One,
    /// All heads of a layer.
    Heads,
    /// All heads of all layers.
    Layers,
}

impl PatternLayout {
    /// All.
    pub const ALL: [Self; 3] = [Self::One, Self::Heads, Self::Layers];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "One pattern",
            Self::Heads => "All heads",
            Self::Layers => "All layers",
        }
    }

    /// What it shows, in a sentence.
    pub fn description(self) -> &'static str {
        match self {
            Self::One => "One layer and head, or one layer over its heads",
            Self::Heads => "Every head of the layer; click into one",
            Self::Layers => "Every head of every layer; click into one",
        }
    }
}

/// Which queries the attention pattern shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PatternRows {
    /// The prompt's last token and the generated ones.
    #[default]
    Generated,
    /// All.
    Text,
}

/// How heads are taken together where none is selected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OverHeads {
    /// The mean.
    #[default]
    Mean,
    /// The maximum.
    Max,
}

/// What the attention pattern shows. Its layer and head are those of the selection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatternState {
    /// How much at once.
    pub layout: PatternLayout,
    /// Which queries.
    pub rows: PatternRows,
    /// How heads are taken together where none is selected.
    pub over: OverHeads,
    /// Queries shown; `None` for all.
    pub queries: Option<Window>,
    /// Keys shown; `None` for all.
    pub keys: Option<Window>,
    /// A selected query of the prompt, which no other view has.
    pub query: Option<usize>,
    /// Colour scale.
    pub scale: ScaleKind,
    /// Whether the text is read under the chosen policy rather than by the full model.
    pub under_policy: bool,
}

impl Default for PatternState {
    fn default() -> Self {
        Self {
            layout: PatternLayout::One,
            rows: PatternRows::Generated,
            over: OverHeads::Mean,
            queries: None,
            keys: None,
            query: None,
            scale: ScaleKind::Log,
            under_policy: false,
        }
    }
}

impl PatternState {
    /// Forgets what is of one prompt.
    pub fn leave_prompt(&mut self) {
        (self.queries, self.keys, self.query) = (None, None, None);
    }
}

/// What the patching view asks and shows. The clean prompt is the current one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PatchState {
    /// Id of the corrupted prompt; the first that can be patched where this one cannot.
    pub corrupted: Option<String>,
    /// What is replaced.
    pub site: PatchSite,
    /// In which run.
    pub direction: PatchDirection,
    /// What the effect is measured by.
    pub metric: PatchMetric,
    /// The answer; the clean run's most likely next token where it is empty.
    pub answer: String,
    /// The wrong answer; the corrupted run's most likely next token where it is empty.
    pub wrong: String,
    /// Whether heads are replaced at the last position alone.
    pub last_only: bool,
    /// The question of the map that is shown; the first of the current prompt where there is none of it.
    pub shown: Option<String>,
    /// Columns shown; `None` for all.
    pub window: Option<Window>,
}

/// The selection, shared by all views.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// Layers; none means all.
    pub layers: BTreeSet<usize>,
    /// Heads, as (layer, head); none means all.
    pub heads: BTreeSet<(usize, usize)>,
    /// Decode steps; none means all.
    pub steps: BTreeSet<usize>,
    /// Prompt token.
    pub token: Option<usize>,
    /// A range of prompt tokens.
    #[serde(default)]
    pub span: Option<Range<usize>>,
}

impl Selection {
    /// The selected prompt tokens, one or several.
    pub fn tokens(&self) -> Option<Range<usize>> {
        self.span.clone().or(self.token.map(|token| token..token + 1))
    }

    /// Selects these prompt tokens; other views show the first.
    pub fn select_tokens(&mut self, tokens: Range<usize>) {
        self.token = Some(tokens.start);
        self.span = (tokens.len() > 1).then_some(tokens);
    }

    /// Selects the prompt tokens from the selected one to another.
    pub fn extend_to(&mut self, token: usize) {
        let from = self.token.unwrap_or(token);
        // Keeps the far end of the selection, so that it can grow in both directions.
        let span = self.tokens().unwrap_or(from..from + 1);
        self.select_tokens(if token < span.start { token..span.end } else { span.start..token + 1 });
    }

    /// Toggles the selection of one prompt token.
    pub fn pick_token(&mut self, token: usize) {
        let was_alone = self.tokens() == Some(token..token + 1);
        (self.token, self.span) = ((!was_alone).then_some(token), None);
    }

    /// Whether nothing is selected.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Selects only this member, or clears the selection if it was the only one; `extend` toggles it.
    pub fn pick<T: Ord + Copy>(set: &mut BTreeSet<T>, member: T, extend: bool) {
        let was_alone = set.len() == 1 && set.contains(&member);
        if extend {
            if !set.remove(&member) {
                set.insert(member);
            }
        } else {
            set.clear();
            if !was_alone {
                set.insert(member);
            }
        }
    }
}

/// A range of columns shown, in columns; 0 … all by default.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// Left edge.
    pub start: f64,
    /// Right edge.
    pub end: f64,
}

impl Window {
    /// Fewest columns that can be shown.
    const LEAST: f64 = 4.0;

    /// All of `columns`.
    pub fn all(columns: usize) -> Self {
        Self { start: 0.0, end: (columns as f64).max(1.0) }
    }

    /// Columns shown.
    pub fn width(self) -> f64 {
        self.end - self.start
    }

    /// Zooms in by `factor` (out if below 1), keeping the column `at` in place.
    #[must_use]
    pub fn zoomed(self, factor: f64, at: f64, columns: usize) -> Self {
        self.zoomed_to(factor, at, columns, Self::LEAST)
    }

    /// [`Self::zoomed`], down to `least` columns.
    #[must_use]
    pub fn zoomed_to(self, factor: f64, at: f64, columns: usize, least: f64) -> Self {
        let all = (columns as f64).max(1.0);
        let width = (self.width() / factor).clamp(least.min(all), all);
        let share = if self.width() > 0.0 { ((at - self.start) / self.width()).clamp(0.0, 1.0) } else { 0.5 };
        let start = (at - share * width).clamp(0.0, all - width);
        Self { start, end: start + width }
    }

    /// Moves by this many columns.
    #[must_use]
    pub fn moved(self, by: f64, columns: usize) -> Self {
        let all = (columns as f64).max(1.0);
        let width = self.width().min(all);
        let start = (self.start + by).clamp(0.0, all - width);
        Self { start, end: start + width }
    }

    /// Limits the range to the existing columns.
    #[must_use]
    pub fn within(self, columns: usize) -> Self {
        let sound = self.start.is_finite() && self.end.is_finite() && self.end > self.start;
        if sound { self.moved(0.0, columns) } else { Self::all(columns) }
    }
}

/// The part of the state that undo restores.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ViewState {
    /// The current view.
    pub view: View,
    /// Index of the current prompt in the run.
    pub prompt: usize,
    /// The cutoff c: the prompt exists at layers 0 … c−1.
    pub cutoff: usize,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
    /// Name of the kind of policy that live generation compares with full depth.
    pub policy: String,
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// What a recommended cutoff must hold to besides.
    pub criterion: Criterion,
    /// What is selected.
    pub selection: Selection,
    /// What the frontier view shows.
    pub frontier_chart: FrontierChart,
    /// What the attention pattern shows.
    pub pattern: PatternState,
    /// What the patching view asks and shows.
    pub patching: PatchState,
    /// What the map's columns are.
    pub columns: Columns,
    /// What the map shows of tokens.
    pub token_figure: TokenFigure,
    /// What the map shows of steps.
    pub step_figure: StepFigure,
    /// The policy under which steps are shown, where the prompt was recorded under it; otherwise the full model.
    pub under: Option<String>,
    /// What the head grid shows.
    pub head_figure: HeadFigure,
    /// Prompt tokens shown; `None` for all.
    pub token_window: Option<Window>,
    /// Decode steps shown; `None` for all.
    pub step_window: Option<Window>,
    /// Colour scale of maps over tokens, where few tokens receive most of the attention.
    pub scale: ScaleKind,
    /// Colour scale of maps over steps and heads, whose figures are mostly shares.
    pub share_scale: ScaleKind,
    /// Scale of the shades behind text.
    pub shading: ScaleKind,
    /// Colours.
    pub colour_map: ColourMap,
    /// Whether each layer has its own scale.
    pub per_row: bool,
    /// Whether position 0 is omitted.
    pub leave_out_bos: bool,
    /// Whether curves and frontier show each category.
    pub by_category: bool,
    /// Whether the figures are shown as a table.
    pub as_table: bool,
}

impl ViewState {
    /// What a recommended cutoff must hold to.
    pub fn options(&self) -> Options {
        let Self { tolerance, anchor, criterion, .. } = *self;
        Options { tolerance, anchor, criterion, ..Options::default() }
    }
}

impl Default for ViewState {
    fn default() -> Self {
        Self {
            view: View::Map,
            prompt: 0,
            cutoff: usize::MAX,
            anchor: Anchor::Bos,
            policy: "speed".into(),
            tolerance: layerscope_cutoff::DEFAULT_TOLERANCE,
            criterion: Criterion::Answers,
            selection: Selection::default(),
            frontier_chart: FrontierChart::default(),
            pattern: PatternState::default(),
            patching: PatchState::default(),
            columns: Columns::Tokens,
            token_figure: TokenFigure::default(),
            step_figure: StepFigure::default(),
            under: None,
            head_figure: HeadFigure::default(),
            token_window: None,
            step_window: None,
            scale: ScaleKind::Log,
            share_scale: ScaleKind::Linear,
            // Attention is so uneven that a linear scale shows three tokens of a prompt.
            shading: ScaleKind::Percentile,
            colour_map: ColourMap::default(),
            per_row: false,
            leave_out_bos: true,
            by_category: false,
            as_table: false,
        }
    }
}

/// Earlier states, for undo.
#[derive(Debug, Default)]
pub struct History<T> {
    past: Vec<T>,
    future: Vec<T>,
    settled: Option<T>,
}

/// States kept.
const KEPT: usize = 200;

impl<T: Clone + PartialEq> History<T> {
    /// Records the state after a frame. With `moving` (a pointer held down), the change is not finished and
    /// not stored yet.
    pub fn observe(&mut self, state: &T, moving: bool) {
        match &self.settled {
            Some(settled) if settled == state || moving => {}
            None => self.settled = Some(state.clone()),
            Some(_) => {
                self.past.extend(self.settled.replace(state.clone()));
                self.future.clear();
                if self.past.len() > KEPT {
                    self.past.remove(0);
                }
            }
        }
    }

    /// The state before the last change.
    pub fn undo(&mut self) -> Option<T> {
        let earlier = self.past.pop()?;
        self.future.extend(self.settled.replace(earlier.clone()));
        Some(earlier)
    }

    /// The state that was undone last.
    pub fn redo(&mut self) -> Option<T> {
        let later = self.future.pop()?;
        self.past.extend(self.settled.replace(later.clone()));
        Some(later)
    }

    /// Clears the history when another run is opened.
    pub fn clear(&mut self) {
        *self = Self { past: vec![], future: vec![], settled: None };
    }

    /// Whether undo is possible.
    pub fn can_undo(&self) -> bool {
        !self.past.is_empty()
    }

    /// Whether redo is possible.
    pub fn can_redo(&self) -> bool {
        !self.future.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn undo_goes_back_over_whole_drags() {
        let mut history = History::default();
        history.observe(&1, false);
        for dragged in [2, 3, 4] {
            history.observe(&dragged, true);
        }
        history.observe(&4, false);
        history.observe(&5, false);
        assert_eq!((history.undo(), history.undo(), history.undo()), (Some(4), Some(1), None));
        assert_eq!(history.redo(), Some(4));
        history.observe(&4, false);
        assert!(history.can_redo());
        history.observe(&9, false);
        assert_eq!((history.redo(), history.undo()), (None, Some(4)));
    }

    #[test]
    fn picking() {
        let mut set = BTreeSet::new();
        Selection::pick(&mut set, 3, false);
        Selection::pick(&mut set, 5, true);
        assert_eq!(set, BTreeSet::from([3, 5]));
        Selection::pick(&mut set, 3, false);
        assert_eq!(set, BTreeSet::from([3]));
        Selection::pick(&mut set, 3, false);
        assert!(set.is_empty());
    }

    #[test]
    fn tokens_are_picked_and_extended() {
        let mut selection = Selection::default();
        assert_eq!(selection.tokens(), None);
        selection.pick_token(5);
        assert_eq!(selection.tokens(), Some(5..6));
        selection.extend_to(8);
        assert_eq!((selection.tokens(), selection.token), (Some(5..9), Some(5)));
        selection.extend_to(2);
        assert_eq!((selection.tokens(), selection.token), (Some(2..9), Some(2)));
        selection.extend_to(4);
        assert_eq!(selection.tokens(), Some(2..5));
        selection.pick_token(2);
        assert_eq!((selection.tokens(), selection.span.is_none()), (Some(2..3), true));
        selection.pick_token(2);
        assert!(selection.is_empty());
        selection.extend_to(7);
        assert_eq!((selection.tokens(), selection.span.is_none()), (Some(7..8), true));
    }

    proptest! {
        #[test]
        fn a_window_stays_within_the_columns(
            columns in 0_usize..10_000, moves in proptest::collection::vec((-3.0..3.0_f64, -1e5..1e5_f64), 0..20)
        ) {
            let mut window = Window::all(columns);
            let all = (columns as f64).max(1.0);
            for (zoom, at) in moves {
                window = window.zoomed(zoom.exp(), at.clamp(0.0, all), columns).moved(at, columns);
                prop_assert!(window.start >= 0.0 && window.end <= all + 1e-6 && window.width() > 0.0, "{window:?}");
            }
        }

        #[test]
        fn zooming_keeps_the_column_under_the_pointer(start in 0.0..500.0_f64, share in 0.0..1.0_f64) {
            let window = Window { start, end: start + 400.0 };
            let at = start + share * 400.0;
            let zoomed = window.zoomed(3.0, at, 1_000);
            prop_assert!(((at - zoomed.start) / zoomed.width() - share).abs() < 1e-9);
        }
    }
}
