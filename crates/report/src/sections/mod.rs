//! The report's sections.

mod adapter;
mod answer;
mod bench;
mod budgets;
mod causes;
mod comparison;
mod cutoffs;
mod evaluation;
mod failures;
mod layers;
mod method;
mod model;
mod patches;
mod prompts;
mod provenance;
mod readings;
mod spans;
mod sweep;
mod under_policies;

use crate::data::{Report, RunReport};
use crate::document::{Column, Document, Element, Section, column};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::summary::Summary;
use layerscope_figures::{Curve, Ink, Style};

impl Document {
    /// Builds the document of a report.
    pub(crate) fn of(report: &Report) -> Self {
        let names: Vec<&str> = report.runs.iter().map(|run| run.manifest.model.name.as_str()).collect();
        let several = report.runs.len() > 1;
        let mut sections = vec![answer::section(report)];
        if several {
            sections.push(comparison::section(report));
        }
        for (index, run) in report.runs.iter().enumerate() {
            // With several runs, ids and titles contain the run.
            let place = Place { index, several, run };
            sections.extend([
                place.section("model", "Model and run", model::blocks(&place)),
                place.section("cutoffs", "What each cutoff costs and saves", cutoffs::blocks(&place, report)),
                place.section("layers", "How layers read the prompt", layers::blocks(&place)),
                place.section("causes", "Causes beside correlations", causes::blocks(&place)),
                place.section("readings", "What is read", readings::blocks(&place)),
            ]);
            if !run.budgets.is_empty() {
                sections.push(place.section("budgets", "Budgets of KV", budgets::blocks(&place, report)));
            }
            if !run.spans.is_empty() {
                sections.push(place.section("spans", "Spans", spans::blocks(&place, report)));
            }
            if !run.patches.is_empty() {
                sections.push(place.section("patches", "Activation patches", patches::blocks(&place)));
            }
            if !run.policies.is_empty() {
                sections.push(place.section("policies", "Under policies", under_policies::blocks(&place)));
            }
            if !run.evaluations.is_empty() {
                sections.push(place.section("evaluation", "Answers to tasks", evaluation::blocks(&place)));
            }
            if run.bench.is_some() {
                sections.push(place.section("bench", "Measured", bench::blocks(&place)));
            }
            sections.extend([
                place.section("failures", "Failure cases", failures::blocks(&place)),
                place.section("prompts", "All prompts", prompts::blocks(&place)),
            ]);
        }
        sections.push(method::section(report));
        sections.push(provenance::section(report));
        Self {
            title: match several {
                false => format!("How deep {} needs its prompt", names.join("")),
                true if names.iter().all(|name| *name == names[0]) => {
                    format!("How deep {} needs its prompts, compared", names[0])
                }
                true => "How deep these models need their prompts".into(),
            },
            subtitle: format!("{}; layerscope {}", subjects(report), report.layerscope),
            sections,
        }
    }
}

fn subjects(report: &Report) -> String {
    let subject = |run: &RunReport| {
        let prompts = run.prompts.len();
        let (plural, weights) = (if prompts == 1 { "" } else { "s" }, &run.manifest.weights);
        format!("{}: {prompts} prompt{plural}, {weights} weights", run.name)
    };
    report.runs.iter().map(subject).collect::<Vec<_>>().join("; ")
}

/// A run and its index.
pub(crate) struct Place<'a> {
    index: usize,
    several: bool,
    run: &'a RunReport,
}

impl Place<'_> {
    /// An id that is unique among runs.
    fn id(&self, name: &str) -> String {
        if self.several { format!("run{}-{name}", self.index + 1) } else { name.to_owned() }
    }

    fn section(&self, id: &str, title: &str, mut blocks: Vec<Element>) -> Section {
        blocks.iter_mut().for_each(|block| self.name(block));
        let title = if self.several { format!("{}: {title}", self.run.name) } else { title.to_owned() };
        Section { id: self.id(id), title, blocks }
    }

    /// With several runs, captions name the run, so that they are clear in an appendix and in a screen
    /// reader.
    fn name(&self, block: &mut Element) {
        let table = match block {
            Element::Table(table) => table,
            Element::Figure(figure) => {
                if self.several {
                    figure.rename(|title| format!("{}: {title}", self.run.name));
                }
                &mut figure.table
            }
            _ => return,
        };
        if self.several {
            table.caption = format!("{}: {}", self.run.name, table.caption);
        }
    }

    fn layers(&self) -> usize {
        self.run.manifest.model.layers
    }

    /// The cutoff line of figures; `None` if full depth is kept.
    fn cutoff(&self) -> Option<usize> {
        let cutoff = self.run.recommendation.l_cut;
        (cutoff < self.layers()).then_some(cutoff)
    }
}

/// The displayed name of an anchor.
fn anchor_name(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Bos => "position 0 kept",
        Anchor::None => "nothing kept",
    }
}

/// The colours of several runs in one figure.
fn run_ink(index: usize) -> Ink {
    Ink::Series(index)
}

/// Their line styles, alternately solid and dashed.
fn run_style(index: usize) -> Style {
    if index % 2 == 1 { Style::Dashed } else { Style::Line }
}

/// A curve of a figure's mean and spread.
fn spread(name: &str, ink: Ink, figures: &[Summary]) -> Curve {
    let (lower, upper) = figures.iter().map(|figure| (figure.q05, figure.q95)).unzip();
    Curve::new(name, ink, figures.iter().map(|figure| figure.mean).collect()).with_band(lower, upper)
}

/// A curve drawn with dashes.
fn dashed(curve: Curve) -> Curve {
    curve.styled(Style::Dashed)
}

/// The columns of a summary over prompts.
fn summary_columns(unit: &str) -> Vec<Column> {
    ["mean", "mean, 95 % lower", "mean, 95 % upper", "5 %", "median", "95 %"]
        .map(|name| column(name, unit))
        .to_vec()
}

fn summary_cells(summary: &Summary) -> Vec<crate::document::Cell> {
    let figures = [
        summary.mean,
        summary.mean_ci95_lower,
        summary.mean_ci95_upper,
        summary.q05,
        summary.q50,
        summary.q95,
    ];
    figures.map(crate::document::Cell::figure).to_vec()
}
