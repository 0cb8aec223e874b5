//! Charts of removed spans, shared by report and viewer.

use layerscope_diagnostics::record::{SpanMasses, SpanRecord, SpanRow};
use layerscope_diagnostics::spans::mean_by_layer;
use layerscope_diagnostics::summary::summarise;
use layerscope_figures::{Along, Chart, Curve, Ink, Mark, Style};

/// Most spans with a curve each; more are drawn as mean and spread.
const CURVES: usize = 6;

/// KL by the layer from which spans are removed. A single span's first layer within the tolerance is marked.
pub fn divergence(spans: &[&SpanRecord], tolerance: f64, layers: usize) -> Chart {
    let mut chart = Chart::new("Span removed from this layer on", "KL, nats", Along::Layers(layers));
    chart.logarithmic = true;
    chart.level =
        Some((tolerance, format!("tolerance {tolerance}"))).filter(|(tolerance, _)| *tolerance > 0.0);
    chart.curves = curves(spans, layers, Ink::Prompt, |row| row.divergence.kl);
    let marked = match spans {
        [span] => Some(span.vanishes_from(tolerance)).filter(|from| *from < layers),
        _ => None,
    };
    // A layer's area begins half a step before its position.
    chart.marks.extend(marked.map(|from| Mark {
        at: from as f64 - 0.5,
        name: format!("may vanish from layer {from}"),
        ink: Ink::Cutoff,
    }));
    chart.description = format!(
        "Mean KL divergence from the full model, logarithmic, where the span is gone from a layer up, by that layer{}.",
        spread(spans)
    );
    chart
}

/// Attention of the generating tokens on the span by layer.
pub fn decode_mass(spans: &[&SpanRecord], layers: usize) -> Chart {
    let mut chart = Chart::new("Attention on the span", "share of attention", Along::Layers(layers));
    chart.range = Some([0.0, 0.0]);
    chart.curves = curves(spans, layers, Ink::Decode, |row| row.decode_mass);
    chart.description = format!(
        "Share of the generating tokens' attention on the span at each layer of the full model, mean over heads and decode \
         steps{}.",
        spread(spans)
    );
    chart
}

/// Where attention goes at the layers from which spans are removed, with them and without: means over spans, by the first of these
/// layers.
pub fn masses_that_follow(spans: &[&SpanRecord], layers: usize) -> Chart {
    let mut chart = Chart::new("Attention without the span", "share of attention", Along::Layers(layers));
    chart.range = Some([0.0, 1.0]);
    let means = mean_by_layer(&spans.iter().map(|&span| span.clone()).collect::<Vec<_>>());
    let curve = |name: &str, ink: Ink, mass: fn(&SpanMasses) -> f64| {
        let at = |layer: usize| {
            means.iter().find(|row| row.layer == layer).map_or(f64::NAN, |row| mass(&row.masses))
        };
        Curve::new(name, ink, (0..layers).map(at).collect())
    };
    chart.curves = vec![
        curve("span, full model", Ink::Decode, |masses| masses.span_full),
        curve("rest of the prompt, full model", Ink::Text, |masses| masses.rest_full),
        curve("rest of the prompt, without the span", Ink::Prompt, |masses| masses.rest_after)
            .styled(Style::Dashed),
        curve("position 0, without the span", Ink::Bos, |masses| masses.bos_after).styled(Style::Dashed),
    ];
    chart.description = "Share of the generating tokens' attention at the layers from one up, by the first of them: on the span and on \
                         the rest of the prompt in the full model, and where it goes without the span. Means over these layers, \
                         heads, decode steps and spans."
        .into();
    chart
}

fn spread(spans: &[&SpanRecord]) -> String {
    match spans.len() {
        0..=CURVES => String::new(),
        many => format!("; mean of {many} spans, the band from the 5 % to the 95 % quantile"),
    }
}

fn curves(spans: &[&SpanRecord], layers: usize, ink: Ink, figure: impl Fn(&SpanRow) -> f64) -> Vec<Curve> {
    let values = |span: &SpanRecord| -> Vec<f64> {
        let at = |layer: usize| span.layers.iter().find(|row| row.layer == layer).map_or(f64::NAN, &figure);
        (0..layers).map(at).collect()
    };
    // A layer without measured neighbours has no line, so it needs a point.
    let styled = |curve: Curve, span: &SpanRecord| match span.layers.len() > layers {
        true => curve,
        false => curve.styled(Style::Marked),
    };
    match spans {
        [span] => vec![styled(Curve::new(span.name(), ink, values(span)), span)],
        _ if spans.len() <= CURVES => {
            let each = spans.iter().enumerate().map(|(index, span)| {
                let named = format!("{}, {}", span.prompt_id, span.name());
                styled(Curve::series(named, index, values(span)), span)
            });
            each.collect()
        }
        _ => {
            let rows: Vec<Vec<f64>> = spans.iter().map(|span| values(span)).collect();
            let summaries = summarise(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let (lower, upper) = summaries.iter().map(|summary| (summary.q05, summary.q95)).unzip();
            let mean = summaries.iter().map(|summary| summary.mean).collect();
            vec![Curve::new(format!("mean of {} spans", spans.len()), ink, mean).with_band(lower, upper)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_diagnostics::record::Divergence;

    fn span(first: usize, kl: &[f64]) -> SpanRecord {
        let row = |(layer, &kl): (usize, &f64)| SpanRow {
            layer,
            divergence: Divergence { kl, top1: 1.0, dnll: 0.0 },
            decode_mass: 0.5,
            masses: SpanMasses::UNDEFINED,
            found: None,
        };
        let layers = kl.iter().enumerate().map(row).collect();
        SpanRecord { prompt_id: "a".into(), first, end: first + 2, text: "x".into(), layers }
    }

    #[test]
    fn one_span_is_marked_few_have_a_curve_each_and_many_a_mean() {
        let spans: Vec<SpanRecord> = (0..8).map(|first| span(first, &[first as f64, 0.05, 0.0])).collect();
        let all: Vec<&SpanRecord> = spans.iter().collect();
        let one = divergence(&all[3..4], 0.1, 2);
        assert_eq!(one.curves.len(), 1);
        assert_eq!(one.curves[0].values, [3.0, 0.05]);
        assert_eq!((one.marks[0].at, one.marks[0].name.as_str()), (0.5, "may vanish from layer 1"));
        assert!(divergence(&all[3..4], 0.01, 2).marks.is_empty(), "it may not vanish anywhere");
        let few = divergence(&all[..3], 0.1, 2);
        assert_eq!((few.curves.len(), few.marks.len()), (3, 0));
        let many = divergence(&all, 0.1, 2);
        assert_eq!((many.curves.len(), many.curves[0].values[0]), (1, 3.5));
        assert!(many.curves[0].band.is_some() && many.description.contains("8 spans"));
    }

    #[test]
    fn layers_that_were_not_looked_at_are_left_out() {
        let mut few = span(1, &[1.0, 0.5, 0.25, 0.0]);
        few.layers.remove(1);
        let chart = decode_mass(&[&few], 3);
        assert!(chart.curves[0].values[1].is_nan());
        assert_eq!(chart.curves[0].style, Style::Marked);
    }
}
