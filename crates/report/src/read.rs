//! Reads run folders into the report.

use crate::compare::{ComparedRun, compare};
use crate::data::{
    Chosen, Correlation, FailureCase, PromptFigures, REPORT_SCHEMA, ReadPattern, ReadToken, Reading, Report,
    RunComparison, RunReport, StrongRead,
};
use layerscope_cutoff::DEFAULT_FAILURE_CASES;
use layerscope_cutoff::budget::curves;
use layerscope_cutoff::recommend::{Evidence, FrontierSummary, Options, Recommendation, recommend};
use layerscope_diagnostics::patching::PatchReport;
use layerscope_diagnostics::policies::summarise_policies;
use layerscope_diagnostics::reads::{CellRange, RowReads, recorded_cells};
use layerscope_diagnostics::record::{
    Anchor, Divergence, KNOCKOUT_KL, KnockoutRow, PolicyRecord, PromptSummary,
};
use layerscope_diagnostics::run::{Continuations, Run};
use layerscope_diagnostics::spans::SpanReport;
use layerscope_diagnostics::summary::{
    RunSummary, knockout_by_kv_head, largest, rank_correlation, summarise_by_layer, summarise_run,
};
use layerscope_engine::{Error, PatternHeads, Result};
use layerscope_eval::EvaluationSummary;
use layerscope_figures::{Cells, Pyramid};
use ndarray::Array2;
use std::path::PathBuf;

/// Most categories with an example prompt each.
const SHOWN_CATEGORIES: usize = 5;
/// Positions in the ranking of the most-read tokens.
const MOST_READ: usize = 12;
/// Columns of cells of a pattern.
const MOST_COLUMNS: usize = 1_024;
/// Characters shown of a prompt's beginning, and of its end.
const SHOWN_CHARACTERS: usize = 400;
/// Figures that are correlated with attention knockout.
const CORRELATED: [&str; 5] =
    ["prompt_mass", "selectivity", "prompt_entropy", "lens_kl", "straightening_prompt_deg"];

impl Report {
    /// Reads run folders.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no run, or if one cannot be read or lacks the data for a recommendation.
    pub fn read(folders: &[PathBuf], options: Options) -> Result<Self> {
        if folders.is_empty() {
            return Err(Error::input("name a run folder to report on"));
        }
        let mut sources: Vec<Source> = vec![];
        for folder in folders {
            let mut source = Source::read(folder, options)?;
            source.report.name = unused_name(&source.report.name, &sources);
            sources.push(source);
        }
        let (first, others) = sources.split_first().ok_or_else(|| Error::input("name a run folder"))?;
        let comparisons = others.iter().map(|second| RunComparison {
            first: first.report.name.clone(),
            second: second.report.name.clone(),
            comparison: compare(first.compared(), second.compared()),
        });
        let comparisons = comparisons.collect();
        Ok(Self {
            schema: REPORT_SCHEMA,
            layerscope: env!("CARGO_PKG_VERSION").into(),
            tolerance: options.tolerance,
            anchor: options.anchor,
            runs: sources.into_iter().map(|source| source.report).collect(),
            comparisons,
        })
    }
}

/// The name, with a number where other runs have it.
fn unused_name(name: &str, sources: &[Source]) -> String {
    let is_used = |name: &str| sources.iter().any(|source| source.report.name == name);
    let numbered = (2..).map(|number| format!("{name} ({number})"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    names.find(|name| !is_used(name)).unwrap_or_default()
}

/// A run's report, with the data for comparisons.
struct Source {
    report: RunReport,
    prompts: Vec<PromptSummary>,
}

impl Source {
    fn read(folder: &PathBuf, options: Options) -> Result<Self> {
        let run = Run::open(folder)?;
        // Reads the tokens again for the few prompts that are shown token by token.
        let prompts = run.prompts().map(|prompt| prompt.map(PromptSummary::without_prompt_tokens));
        let prompts: Vec<PromptSummary> = prompts.collect::<Result<_>>()?;
        let evidence = Evidence { manifest: run.manifest(), prompts: &prompts };
        let recommendation = recommend(evidence, options)?;
        let (cost, workloads) = (evidence.cost(), evidence.workloads());
        let layers = summarise_run(&prompts);
        let knockout = summarise_by_layer(&prompts, KNOCKOUT_KL);
        let policies = run.policies()?;
        let report = RunReport {
            name: name(folder),
            manifest: run.manifest().clone(),
            frontiers: Anchor::ALL
                .into_iter()
                .filter_map(|anchor| FrontierSummary::new(evidence, anchor))
                .collect(),
            savings: (1..=evidence.layers())
                .map(|cutoff| cost.savings(cutoff, options.anchor == Anchor::Bos, &workloads))
                .collect(),
            correlations: correlations(&layers, &knockout.iter().map(|k| k.mean).collect::<Vec<_>>()),
            prompt_mass_by_head: by_head(&prompts),
            readings: readings(&run, &prompts, &layers, &policies)?,
            policies: summarise_policies(&policies),
            prompts: prompts.iter().map(|prompt| figures(prompt, &recommendation)).collect(),
            failure_cases: failure_cases(&prompts, &recommendation, run.continuations()?.as_ref())?,
            budgets: match run.sets()? {
                Some(sets) => curves(evidence, &sets, options.anchor)?,
                None => vec![],
            },
            spans: run.spans()?.into_iter().map(|span| SpanReport::new(span, options.tolerance)).collect(),
            patches: run.patches()?.into_iter().map(PatchReport::from).collect(),
            evaluations: EvaluationSummary::of_run(folder, &run.manifest().model.sha256)?,
            bench: layerscope_bench::read_of_run(folder)?,
            recommendation,
            layers,
            knockout,
            knockout_by_kv_head: knockout_by_kv_head(&prompts),
        };
        Ok(Self { report, prompts })
    }

    fn compared(&self) -> ComparedRun<'_> {
        let evidence = Evidence { manifest: &self.report.manifest, prompts: &self.prompts };
        ComparedRun { evidence, recommendation: &self.report.recommendation }
    }
}

fn name(folder: &PathBuf) -> String {
    // `.` and `..` must be resolved to have a name.
    let resolved = folder.canonicalize();
    let folder = resolved.as_ref().unwrap_or(folder);
    folder.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned())
}

fn correlations(layers: &RunSummary, knockout: &[f64]) -> Vec<Correlation> {
    let correlation = |figure: &'static str| {
        let summaries = layers.overall.figures.get(figure).map_or(&[][..], Vec::as_slice);
        // The embedding's value, if there is one, comes first.
        let of_layers = &summaries[summaries.len().saturating_sub(knockout.len())..];
        let values: Vec<f64> = of_layers.iter().map(|summary| summary.mean).collect();
        Correlation { figure, spearman: rank_correlation(&values, knockout) }
    };
    CORRELATED.into_iter().map(correlation).collect()
}

/// Mean over prompts, for each layer and head.
fn by_head(prompts: &[PromptSummary]) -> Vec<Vec<f64>> {
    let Some(first) = prompts.first() else { return vec![] };
    let mut sum = Array2::<f64>::zeros(first.heads.prompt_mass.dim());
    for prompt in prompts {
        sum += &prompt.heads.prompt_mass;
    }
    let mean = sum / prompts.len() as f64;
    mean.outer_iter().map(|layer| layer.to_vec()).collect()
}

/// A typical prompt of each category, and the longest of the run.
fn readings(
    run: &Run,
    prompts: &[PromptSummary],
    layers: &RunSummary,
    policies: &[PolicyRecord],
) -> Result<Vec<Reading>> {
    let mut chosen: Vec<(&PromptSummary, Chosen)> = vec![];
    for group in layers.categories.iter().take(SHOWN_CATEGORIES) {
        let means: Vec<f64> =
            group.figures.get("prompt_mass").into_iter().flatten().map(|summary| summary.mean).collect();
        let distance = |prompt: &&PromptSummary| -> f64 {
            prompt.layers.prompt_mass.iter().zip(&means).map(|(a, b)| (a - b).abs()).sum()
        };
        let of_category = prompts.iter().filter(|prompt| Some(&prompt.category) == group.category.as_ref());
        let typical = of_category.min_by(|a, b| distance(a).total_cmp(&distance(b)));
        chosen.extend(typical.map(|prompt| (prompt, Chosen::Typical)));
    }
    let longest = prompts.iter().max_by_key(|prompt| prompt.p);
    if let Some(longest) = longest.filter(|longest| chosen.iter().all(|(known, _)| known.id != longest.id)) {
        chosen.push((longest, Chosen::Longest));
    }
    chosen.into_iter().map(|(prompt, why)| reading(run, &prompt.id, why, policies)).collect()
}

fn reading(run: &Run, id: &str, chosen: Chosen, policies: &[PolicyRecord]) -> Result<Reading> {
    let prompt = run.prompt(id)?;
    let received = run.tokens(id)?;
    let attention = run.steps(id)?.attention;
    let steps = attention.prompt_mass.mapv(|mass| mass as f32);
    let reads = run.reads(id)?;
    Ok(Reading {
        pattern: reads.and_then(|reads| pattern(&prompt, &reads, &attention.bos_mass)),
        most_read: most_read(&received.mean, &prompt.prompt_token_text),
        received: Pyramid::from_array(&received.undefined_beyond_windows(&run.manifest().model).mean),
        prompt_mass_by_step: Pyramid::from_array(&steps),
        under: policies.iter().filter(|record| record.prompt_id == id).map(under).collect(),
        prompt_id: prompt.id,
        category: prompt.category,
        chosen,
        p: prompt.p,
        steps: prompt.steps,
        tokens: prompt.prompt_token_text,
        generated: prompt.generated_token_text,
    })
}

/// What the decode steps read at the layer at which hiding the prompt costs most.
fn pattern(prompt: &PromptSummary, reads: &Array2<RowReads>, bos_mass: &Array2<f64>) -> Option<ReadPattern> {
    let cost = |row: &&KnockoutRow| row.layer < reads.nrows() && !row.divergence.kl.is_nan();
    let costliest =
        prompt.knockout.iter().filter(cost).max_by(|a, b| a.divergence.kl.total_cmp(&b.divergence.kl));
    let layer = costliest?.layer;
    let boundary = prompt.p.saturating_sub(1);
    let wide = boundary.div_ceil(MOST_COLUMNS).max(1);
    let range = CellRange {
        rows: boundary..boundary + reads.ncols(),
        columns: 0..boundary.div_ceil(wide),
        cell: [1, wide],
    };
    if range.columns.is_empty() {
        return None;
    }
    let bos = |step: usize| bos_mass.get([layer, step]).map_or(f32::NAN, |mass| *mass as f32);
    let values = recorded_cells(reads.row(layer), PatternHeads::Mean, prompt.p, &range, Some(&bos));
    let cells = Cells { first: [boundary, 0], cell: range.cell, columns: range.columns.len(), values };
    let listed = reads.row(layer);
    let mut strongest: Vec<StrongRead> = vec![];
    for (step, of_step) in listed.iter().enumerate() {
        strongest.extend(of_step.mean.iter().map(|read| StrongRead {
            step,
            position: read.position as usize,
            attention: f64::from(read.attention),
        }));
    }
    strongest.sort_by(|a, b| b.attention.total_cmp(&a.attention));
    strongest.truncate(MOST_READ);
    Some(ReadPattern { layer, cells, strongest })
}

/// A policy and the prompt mass by decode step under it.
fn under(record: &PolicyRecord) -> (String, Pyramid) {
    let steps = record.attention.prompt_mass.mapv(|mass| mass as f32);
    (record.policy.clone(), Pyramid::from_array(&steps))
}

/// Position 0 receives most attention in nearly every layer, so it is omitted.
fn most_read(received: &Array2<f32>, tokens: &[String]) -> Vec<ReadToken> {
    let mean = |position: usize| {
        let column = received.column(position);
        column.iter().map(|value| f64::from(*value)).sum::<f64>() / column.len() as f64
    };
    let means: Vec<f64> = (1..received.ncols()).map(mean).collect();
    let token = |index: usize| {
        let position = index + 1;
        let column = received.column(position);
        let most = column.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        let (layer, there) = most.map_or((0, f64::NAN), |(layer, value)| (layer, f64::from(*value)));
        let token = tokens.get(position).cloned().unwrap_or_default();
        ReadToken { position, token, received: means[index], layer, received_there: there }
    };
    largest(means.iter().copied(), MOST_READ).into_iter().map(token).collect()
}

fn figures(prompt: &PromptSummary, recommendation: &Recommendation) -> PromptFigures {
    PromptFigures {
        prompt_id: prompt.id.clone(),
        category: prompt.category.clone(),
        p: prompt.p,
        steps: prompt.steps,
        answer_given: prompt.answer_given,
        at_cutoff: prompt.at(recommendation.anchor, recommendation.l_cut),
        text: prompt.text_at(recommendation.anchor, recommendation.l_cut),
        expects_answer: prompt.expected.is_some(),
        answered_by_full: prompt.text_at(recommendation.anchor, recommendation.layers).answered == Some(true),
        timings: prompt.timings,
    }
}

/// The prompts with the largest KL at the recommended cutoff; empty if full depth is kept.
fn failure_cases(
    prompts: &[PromptSummary],
    recommendation: &Recommendation,
    continuations: Option<&Continuations>,
) -> Result<Vec<FailureCase>> {
    let Some(point) = recommendation.point() else { return Ok(vec![]) };
    let policy = point.policy(recommendation.layers)?.to_string();
    let costs: Vec<Divergence> = prompts.iter().map(|prompt| prompt.at(point.anchor, point.cutoff)).collect();
    let worst = largest(costs.iter().map(|cost| cost.kl), DEFAULT_FAILURE_CASES).into_iter();
    let case = |index: usize| {
        let (prompt, at_cutoff): (&PromptSummary, _) = (&prompts[index], costs[index]);
        let cut = continuations.and_then(|all| all.find(&prompt.id, &policy));
        FailureCase {
            prompt_id: prompt.id.clone(),
            category: prompt.category.clone(),
            prompt: shortened(&prompt.text),
            at_cutoff,
            full: prompt.generated_token_text.clone(),
            answer_given: prompt.answer_given,
            cut: cut.map(|cut| cut.generated_token_text.clone()),
            loops: cut.map(|cut| cut.repetition.is_some()),
            first_difference: cut.and_then(|cut| cut.first_difference),
        }
    };
    Ok(worst.map(case).collect())
}

/// The beginning and the end of a long text.
fn shortened(text: &str) -> String {
    let count = text.chars().count();
    if count <= 2 * SHOWN_CHARACTERS {
        return text.to_owned();
    }
    let start: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let end: String = text.chars().skip(count - SHOWN_CHARACTERS).collect();
    format!("{start} … ({} characters) … {end}", count - 2 * SHOWN_CHARACTERS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_most_leaves_out_position_0() {
        let received = ndarray::array![[0.9, 0.1, 0.2, 0.0_f32], [0.9, 0.0, 0.4, 0.1]];
        let tokens: Vec<String> = ["a", "b", "c", "d"].map(String::from).to_vec();
        let read = most_read(&received, &tokens);
        assert_eq!(read.iter().map(|token| token.position).collect::<Vec<_>>(), [2, 1, 3]);
        assert_eq!((read[0].layer, read[0].token.as_str()), (1, "c"));
        assert!((read[0].received - 0.3).abs() < 1e-6 && (read[0].received_there - 0.4).abs() < 1e-6);
    }

    #[test]
    fn long_prompts_are_shortened_between_characters() {
        let text = "ä".repeat(900);
        let short = shortened(&text);
        assert!(short.starts_with("ä") && short.contains("(100 characters)") && short.ends_with("ä"));
        assert_eq!(shortened("kept"), "kept");
    }
}
