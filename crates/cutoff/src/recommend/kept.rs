//! How many answers and texts a cutoff keeps, and what is asked of it.

use layerscope_diagnostics::record::{Anchor, PromptSummary};
use layerscope_diagnostics::summary::wilson95;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What must hold for a cutoff besides the tolerance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Criterion {
    /// The answers that the full model gives are kept, where prompts expect some.
    Answers,
    /// Nothing else: distributions alone are judged.
    Kl,
    /// Texts stay the same.
    Text,
}

impl Criterion {
    /// All of them, the default first.
    pub const ALL: [Self; 3] = [Self::Answers, Self::Kl, Self::Text];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Answers => "answers",
            Self::Kl => "kl",
            Self::Text => "text",
        }
    }

    /// The criterion of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|criterion| criterion.name() == name)
    }
}

/// How many of some prompts keep what the full model gives: its answer, or its text.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Kept {
    /// Prompts that keep it.
    pub kept: usize,
    /// Prompts of which the full model gives it.
    pub of: usize,
}

impl Kept {
    /// The share that is kept; NaN of none.
    pub fn share(self) -> f64 {
        self.kept as f64 / self.of as f64
    }

    /// Wilson's 95 % interval of the share: what so many prompts prove.
    pub fn interval95(self) -> [f64; 2] {
        wilson95(self.kept, self.of)
    }

    /// Whether at least such a share of all prompts is kept. Nothing is asked of none.
    pub(super) fn reaches(self, share: f64) -> bool {
        self.of == 0 || self.share() >= share
    }

    /// Whether so few are kept that it would happen in less than 2.5 % of cases if such a share were kept (exact binomial test):
    /// a few prompts of a category prove little.
    pub(super) fn falls_short(self, share: f64) -> bool {
        at_most(self.kept, self.of, share) < 0.025
    }
}

/// Answers and texts at cutoffs 1 … L.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct KeptByCutoff {
    /// Prompts whose answer is kept, of those that the full model answers.
    pub answers: Vec<Kept>,
    /// Prompts whose text is unchanged, of those whose text is known.
    pub texts: Vec<Kept>,
}

impl KeptByCutoff {
    /// Counts them over prompts.
    pub fn new(prompts: &[&PromptSummary], anchor: Anchor, layers: usize) -> Self {
        let at = |cutoff| prompts.iter().map(move |prompt| prompt.text_at(anchor, cutoff));
        let count = |known: &dyn Fn(&Option<bool>) -> bool, outcomes: Vec<Option<bool>>| Kept {
            kept: outcomes.iter().filter(|outcome| **outcome == Some(true)).count(),
            of: outcomes.iter().filter(|outcome| known(outcome)).count(),
        };
        // Where the full model gives no answer, texts under cutoffs are not judged, and there is nothing to keep at L.
        let is_judged = |prompt: &&PromptSummary| {
            layers == 1 || (1..layers).any(|cutoff| prompt.text_at(anchor, cutoff).answered.is_some())
        };
        let answers = (1..=layers).map(|cutoff| {
            let judged = prompts.iter().copied().filter(is_judged);
            let outcomes: Vec<Option<bool>> =
                judged.map(|prompt| prompt.text_at(anchor, cutoff).answered).collect();
            count(&Option::is_some, outcomes)
        });
        let texts = (1..=layers)
            .map(|cutoff| count(&Option::is_some, at(cutoff).map(|text| text.unchanged).collect()));
        Self { answers: answers.collect(), texts: texts.collect() }
    }

    /// Answers at a cutoff; none outside 1 … L.
    pub fn answers_at(&self, cutoff: usize) -> Kept {
        at(&self.answers, cutoff)
    }

    /// Texts at a cutoff; none outside 1 … L.
    pub fn texts_at(&self, cutoff: usize) -> Kept {
        at(&self.texts, cutoff)
    }

    /// What a criterion looks at.
    pub(super) fn judged(&self, criterion: Criterion, cutoff: usize) -> Kept {
        match criterion {
            Criterion::Answers => self.answers_at(cutoff),
            Criterion::Text => self.texts_at(cutoff),
            Criterion::Kl => Kept::default(),
        }
    }
}

/// Probability of at most `successes` in `count` independent trials that each succeed with probability `share`.
fn at_most(successes: usize, count: usize, share: f64) -> f64 {
    if successes >= count {
        return 1.0;
    }
    // From 0 successes on, each term from the one before, in logarithms: none underflows.
    let (yes, no) = (share.ln(), (1.0 - share).ln());
    let mut term = count as f64 * no;
    let mut sum = term.exp();
    for k in 0..successes {
        term += ((count - k) as f64 / (k + 1) as f64).ln() + yes - no;
        sum += term.exp();
    }
    if sum.is_nan() { 0.0 } else { sum }
}

fn at(kept: &[Kept], cutoff: usize) -> Kept {
    cutoff.checked_sub(1).and_then(|index| kept.get(index)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_binomial_tails() {
        // R: pbinom(2, 3, 0.95), pbinom(8, 10, 0.95), pbinom(20, 30, 0.83), pbinom(900, 1000, 0.95).
        let known = [
            (2, 3, 0.95, 0.142625),
            (8, 10, 0.95, 0.086_138),
            (20, 30, 0.83, 0.022_0),
            (900, 1_000, 0.95, 0.0),
        ];
        for (successes, count, share, wanted) in known {
            let found = at_most(successes, count, share);
            assert!((found - wanted).abs() < 1e-3, "{successes} of {count}: {found}");
        }
        assert_eq!(
            (at_most(0, 0, 0.95), at_most(3, 3, 1.0), at_most(2, 3, 1.0), at_most(0, 3, 0.0)),
            (1.0, 1.0, 0.0, 1.0)
        );
    }

    #[test]
    fn few_prompts_prove_little() {
        assert!(!Kept { kept: 2, of: 3 }.falls_short(0.95) && !Kept { kept: 9, of: 10 }.falls_short(0.95));
        assert!(Kept { kept: 7, of: 10 }.falls_short(0.95) && Kept { kept: 9, of: 10 }.falls_short(1.0));
        assert!(!Kept::default().falls_short(1.0) && Kept::default().reaches(1.0));
    }
}
