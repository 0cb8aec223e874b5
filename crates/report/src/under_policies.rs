//! Charts of attention under policies beside the full model's, shared by report and viewer.

use layerscope_diagnostics::policies::PolicySummary;
use layerscope_diagnostics::summary::{RunSummary, Summary};
use layerscope_figures::{Along, Chart, Curve, Ink, Style};

/// A figure that is recorded under policies.
pub struct PolicyFigure {
    /// Its column in `layers.parquet` and `policies.parquet`.
    pub name: &'static str,
    /// Title of its chart.
    pub title: &'static str,
    /// Its unit.
    pub unit: &'static str,
    of: fn(&PolicySummary) -> &Vec<f64>,
}

/// The figures that have a chart.
pub const FIGURES: [PolicyFigure; 4] = [
    PolicyFigure {
        name: "prompt_mass",
        title: "Attention on the prompt, under policies",
        unit: "share of attention",
        of: |summary| &summary.prompt_mass,
    },
    PolicyFigure {
        name: "bos_mass",
        title: "Attention on position 0, under policies",
        unit: "share of attention",
        of: |summary| &summary.bos_mass,
    },
    PolicyFigure {
        name: "decode_mass",
        title: "Attention on decode tokens, under policies",
        unit: "share of attention",
        of: |summary| &summary.decode_mass,
    },
    PolicyFigure {
        name: "prompt_entropy",
        title: "Conditional prompt entropy, under policies",
        unit: "share of ln(p−2)",
        of: |summary| &summary.prompt_entropy,
    },
];

impl PolicyFigure {
    /// The full model's means by layer.
    pub fn of_full(&self, run: &RunSummary) -> Vec<f64> {
        let figures = run.overall.figures.get(self.name).map_or(&[][..], Vec::as_slice);
        figures.iter().map(|summary: &Summary| summary.mean).collect()
    }

    /// A policy's means by layer.
    pub fn of_policy<'a>(&self, summary: &'a PolicySummary) -> &'a [f64] {
        (self.of)(summary)
    }

    /// The full model and each policy, a line each.
    pub fn chart(&self, run: &RunSummary, policies: &[PolicySummary], layers: usize) -> Chart {
        let mut chart = Chart::new(self.title, self.unit, Along::Layers(layers));
        chart.range = Some([0.0, 1.0]);
        chart.curves.push(Curve::new("full", Ink::Text, self.of_full(run)));
        chart.curves.extend(policies.iter().enumerate().map(|(index, summary)| {
            Curve::series(&summary.policy, index, self.of_policy(summary).to_vec()).styled(Style::Dashed)
        }));
        chart.description = format!(
            "{} by layer for the full model and for each policy, along the same texts: means over prompts, heads and decode steps.",
            self.title
        );
        chart
    }
}
