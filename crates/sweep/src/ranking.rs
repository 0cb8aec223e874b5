//! Which model, at which cutoff, for a prompt set.

use crate::results::{Kind, Results, Row};
use layerscope_diagnostics::summary::wilson95;
use serde::Serialize;
use std::cmp::Ordering;

/// A prompt set and the models for it, best first.
#[derive(Debug, Clone, Serialize)]
pub struct Workload<'a> {
    /// The prompt set.
    pub prompt_set: &'a str,
    /// Each model, with each adapter and without, at the cutoff that its run recommends; the first is the best.
    pub ranked: Vec<Candidate<'a>>,
    /// The one with least KV among those whose share of right answers may be as large as the first's, by index.
    pub cheapest: usize,
}

/// A model at its recommended cutoff.
#[derive(Debug, Clone, Serialize)]
pub struct Candidate<'a> {
    /// Its row: all prompts, the recommended cutoff.
    pub row: &'a Row,
    /// Share of the expected answers that its texts have there; NaN where none is expected.
    pub right: f64,
    /// Wilson's 95 % interval of it.
    pub right_ci95: [f64; 2],
}

impl<'a> Candidate<'a> {
    fn new(row: &'a Row) -> Self {
        let known = row.right.filter(|_| row.expected > 0);
        Self {
            row,
            right: known.map_or(f64::NAN, |right| right as f64 / row.expected as f64),
            right_ci95: known.map_or([f64::NAN; 2], |right| wilson95(right, row.expected)),
        }
    }

    /// Right answers first, then least KV; names decide what is left.
    fn before(&self, other: &Self) -> Ordering {
        let answers = other.right.partial_cmp(&self.right).unwrap_or(Ordering::Equal);
        let bytes = self.row.kv_bytes.total_cmp(&other.row.kv_bytes);
        answers.then(bytes).then_with(|| self.row.run.cmp(&other.row.run))
    }
}

/// Every prompt set with its models, in the order of the rows.
///
/// More right answers come first; of as many, and where prompts expect no answer, less KV.
pub fn rank(results: &Results) -> Vec<Workload<'_>> {
    let mut sets: Vec<&str> = vec![];
    for row in &results.rows {
        if !sets.contains(&row.prompt_set.as_str()) {
            sets.push(&row.prompt_set);
        }
    }
    let workload = |prompt_set| {
        let is_candidate = |row: &&Row| {
            row.prompt_set == prompt_set
                && row.category.is_none()
                && row.recommended
                && row.kind == Kind::Cutoff
        };
        let mut ranked: Vec<Candidate<'_>> =
            results.rows.iter().filter(is_candidate).map(Candidate::new).collect();
        ranked.sort_by(Candidate::before);
        let best = ranked.first()?.right;
        let as_good = |of: &Candidate<'_>| best.is_nan() || of.right_ci95[1] >= best;
        let bytes = |index: &usize| ranked[*index].row.kv_bytes;
        let cheapest = (0..ranked.len())
            .filter(|&index| as_good(&ranked[index]))
            .min_by(|a, b| bytes(a).total_cmp(&bytes(b)))
            .unwrap_or(0);
        Some(Workload { prompt_set, ranked, cheapest })
    };
    sets.into_iter().filter_map(workload).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use layerscope_cutoff::recommend::Criterion;
    use layerscope_diagnostics::record::Anchor;

    /// A model at its recommended cutoff, right on so many of 20 prompts.
    pub(crate) fn row(run: &str, right: Option<usize>, kv_bytes: f64) -> Row {
        Row {
            run: run.into(),
            model: run.into(),
            model_sha256: "0".into(),
            layers: 12,
            adapter: None,
            weights: "native".into(),
            device: "cpu".into(),
            prompt_set: "questions".into(),
            prompts_sha256: "1".into(),
            category: None,
            kind: Kind::Cutoff,
            policy: "speed:8+bos".into(),
            cutoff: Some(8),
            anchor: Some(Anchor::Bos),
            prompts: 20,
            prompts_failed: 0,
            prompt_tokens: 100.0,
            max_new_tokens: 16,
            kl: 0.05,
            kl_upper95: 0.07,
            top1: 0.95,
            dnll: 0.01,
            text_unchanged: 0.8,
            expected: if right.is_some() { 20 } else { 0 },
            right,
            answers: right,
            answers_kept: 1.0,
            passes: Some(true),
            recommended: true,
            kv_bytes,
            kv_bytes_full: 2_000.0,
            kv_saved: 0.3,
            predicted_ttft_saved: 0.3,
            predicted_tpot_saved: 0.1,
            weight_bytes: Some(1_000),
            full_ttft_s: 0.1,
            record_s: 2.0,
            layerscope: "0.1.0".into(),
        }
    }

    pub(crate) fn results(rows: Vec<Row>) -> Results {
        Results {
            layerscope: "0.1.0".into(),
            tolerance: 0.1,
            criterion: Criterion::Answers,
            kept: 0.95,
            anchor: Anchor::Bos,
            rows,
            notes: vec![],
        }
    }

    fn names<'a>(workload: &Workload<'a>) -> Vec<&'a str> {
        workload.ranked.iter().map(|candidate| candidate.row.run.as_str()).collect()
    }

    #[test]
    fn right_answers_come_first_and_then_less_kv() {
        let mut other = row("elsewhere", Some(20), 1.0);
        other.prompt_set = "another".into();
        let mut not_recommended = row("good", Some(20), 1.0);
        not_recommended.recommended = false;
        let mut category = row("good", Some(20), 1.0);
        category.category = Some("a".into());
        let rows = vec![
            row("bad", Some(3), 10.0),
            row("good", Some(18), 900.0),
            row("as-good", Some(18), 800.0),
            row("nearly", Some(17), 100.0),
            not_recommended,
            category,
            other,
        ];
        let results = results(rows);
        let ranked = rank(&results);
        assert_eq!(ranked.iter().map(|of| of.prompt_set).collect::<Vec<_>>(), ["questions", "another"]);
        assert_eq!(names(&ranked[0]), ["as-good", "good", "nearly", "bad"]);
        // 17 of 20 may be as good as 18 of 20; 3 of 20 is not.
        assert_eq!(ranked[0].cheapest, 2);
        assert!(ranked[0].ranked[3].right_ci95[1] < 0.9);
    }

    #[test]
    fn without_answers_kv_decides() {
        let results = results(vec![row("b", None, 20.0), row("a", None, 30.0), row("c", None, 20.0)]);
        let ranked = rank(&results);
        assert_eq!(names(&ranked[0]), ["b", "c", "a"]);
        assert_eq!(ranked[0].cheapest, 0);
        assert!(ranked[0].ranked[0].right.is_nan());
        assert!(rank(&self::results(vec![])).is_empty());
    }
}
