//! Retrieval accuracy of needles.

use super::Outcome;
use crate::summary::{mean, wilson95};
use serde::Serialize;

/// Whether the text contains the digits in sequence.
pub fn is_right(answer: &str, text: &str) -> bool {
    text.contains(answer)
}

/// The results of one policy at one length, at one depth or all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeedleScore {
    /// Name of the policy.
    pub policy: String,
    /// Token budget of the prompts.
    pub length: usize,
    /// Percent of the sentences before the needle; `None` for all depths.
    pub depth: Option<u32>,
    /// Prompts.
    pub prompts: usize,
    /// Prompts whose needle was found.
    pub correct: usize,
    /// Share of prompts whose needle was found.
    pub accuracy: f64,
    /// Lower end of its 95 % interval (Wilson).
    pub accuracy_ci95_lower: f64,
    /// Upper end of its 95 % interval (Wilson).
    pub accuracy_ci95_upper: f64,
    /// Share of the outputs that end in a loop.
    pub loops: f64,
    /// Mean time to first token, seconds.
    pub ttft_s: f64,
}

/// Results by policy and length, or by policy, length and depth, in order of first occurrence.
pub fn summarise(outcomes: &[Outcome], by_depth: bool) -> Vec<NeedleScore> {
    let key = |outcome: &Outcome| (outcome.length, outcome.policy.clone(), by_depth.then_some(outcome.depth));
    let mut groups: Vec<(_, Vec<&Outcome>)> = vec![];
    for outcome in outcomes {
        let key = key(outcome);
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, group)) => group.push(outcome),
            None => groups.push((key, vec![outcome])),
        }
    }
    let cells = groups.into_iter().map(|((length, policy, depth), group)| {
        let correct = group.iter().filter(|outcome| outcome.correct).count();
        let share = |count: usize| count as f64 / group.len() as f64;
        let [accuracy_ci95_lower, accuracy_ci95_upper] = wilson95(correct, group.len());
        NeedleScore {
            policy,
            length,
            depth,
            prompts: group.len(),
            correct,
            accuracy: share(correct),
            accuracy_ci95_lower,
            accuracy_ci95_upper,
            loops: share(group.iter().filter(|outcome| outcome.repetition.is_some()).count()),
            ttft_s: mean(group.iter().map(|outcome| outcome.ttft_s)),
        }
    });
    cells.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_engine::Repetition;

    #[test]
    fn digits_in_a_row_count_wherever_they_stand() {
        assert!(is_right("1234567", "It is 1234567."));
        assert!(is_right("1234567", "1234567"));
        for wrong in ["", "123456", "1,234,567", "123 4567", "7654321"] {
            assert!(!is_right("1234567", wrong), "{wrong}");
        }
    }

    fn outcome(policy: &str, depth: u32, correct: bool, loops: bool) -> Outcome {
        Outcome {
            id: String::new(),
            policy: policy.to_owned(),
            caveat: None,
            length: 512,
            depth,
            sample: 0,
            prompt_tokens: 510,
            answer: String::new(),
            text: String::new(),
            correct,
            new_tokens: 30,
            repetition: loops.then_some(Repetition { period: 4, rounds: 5 }),
            ttft_s: if correct { 1.0 } else { 3.0 },
            tpot_s: None,
        }
    }

    #[test]
    fn outcomes_are_summed_by_cell() {
        let outcomes = [
            outcome("full", 0, true, false),
            outcome("speed:4", 0, false, true),
            outcome("full", 50, true, false),
            outcome("speed:4", 50, true, true),
        ];
        let cells = summarise(&outcomes, false);
        let found: Vec<_> = cells.iter().map(|c| (c.policy.as_str(), c.correct, c.loops, c.ttft_s)).collect();
        assert_eq!(found, [("full", 2, 0.0, 1.0), ("speed:4", 1, 1.0, 2.0)]);
        assert_eq!(cells[1].accuracy, 0.5);
        let by_depth = summarise(&outcomes, true);
        assert_eq!(by_depth.len(), 4);
        assert_eq!((by_depth[3].depth, by_depth[3].prompts), (Some(50), 1));
    }
}
