//! The figure of measured policies: quality against time and memory.

use layerscope_bench::{BenchReport, Measurement};
use layerscope_engine::{POLICIES, readable_bytes};
use layerscope_figures::{Canvas, Colours, Theme, TradeOff, TradeOffPoint, TradeOffRow};

/// A cost relative to the full model's.
type CostOf = fn(&Measurement, &Measurement) -> f64;

/// The possible costs, with their axis names.
const COSTS: [(&str, CostOf); 4] = [
    ("TTFT / full", |m, full| m.ttft_s.median / full.ttft_s.median),
    ("TPOT / full", |m, full| m.tpot_s.median / full.tpot_s.median),
    ("KV bytes / full", |m, full| m.kv_bytes as f64 / full.kv_bytes as f64),
    ("peak memory / full", |m, full| match (m.peak_bytes, full.peak_bytes) {
        (Some(bytes), Some(full)) => bytes as f64 / full as f64,
        _ => f64::NAN,
    }),
];

/// Width of a standalone figure, CSS pixels.
const WIDTH: f64 = 940.0;

/// Every policy's quality against its TTFT, TPOT, KV bytes and peak memory, a row per length. `None` if no
/// length has both measured quality and the full model as the reference for costs.
pub fn trade_off(bench: &BenchReport) -> Option<TradeOff> {
    let lengths = compared(bench);
    let known = |cost: &CostOf| {
        lengths.iter().any(|(full, results)| results.iter().any(|result| cost(result, full).is_finite()))
    };
    let costs: Vec<(&str, CostOf)> = COSTS.into_iter().filter(|(_, cost)| known(cost)).collect();
    let mut kinds: Vec<String> = POLICIES.iter().map(|kind| kind.name.to_owned()).collect();
    let mut row = |(full, results): &(&Measurement, Vec<&Measurement>)| {
        let point = |result: &&Measurement| TradeOffPoint {
            name: result.policy.clone(),
            kind: place_of(&result.policy, &mut kinds),
            loss: result.quality.map_or(f64::NAN, |quality| quality.kl),
            costs: costs.iter().map(|(_, cost)| cost(result, full)).collect(),
            details: details(result),
        };
        TradeOffRow {
            name: format!("{} prompt tokens, {} new", full.length, full.new_tokens),
            points: results.iter().map(point).collect(),
        }
    };
    let rows: Vec<TradeOffRow> = lengths.iter().map(&mut row).collect();
    let names: Vec<String> = costs.iter().map(|(name, _)| (*name).to_owned()).collect();
    (!rows.is_empty() && !names.is_empty()).then(|| TradeOff {
        title: "Quality and cost of policies".into(),
        description: format!(
            "Mean KL divergence of each policy from the full model along the full model’s own continuation, logarithmic with a \
             place for 0, against {} (medians). A line joins the Pareto-optimal policies; below and to the left is better.",
            names.join(", ")
        ),
        loss: "KL(full, policy), nats per token".into(),
        costs: names,
        kinds,
        rows,
    })
}

/// The full model and the policies with measured quality, at each length that has both.
pub(crate) fn compared(bench: &BenchReport) -> Vec<(&Measurement, Vec<&Measurement>)> {
    let lengths = bench.results.chunk_by(|a, b| a.length == b.length).filter_map(|results| {
        let full = results.iter().find(|result| result.policy == "full")?;
        let known: Vec<&Measurement> = results.iter().filter(|result| result.quality.is_some()).collect();
        (!known.is_empty()).then_some((full, known))
    });
    lengths.collect()
}

/// [`trade_off`] as an SVG file.
pub fn trade_off_svg(bench: &BenchReport) -> Option<String> {
    let mut figure = trade_off(bench)?;
    figure.title = format!("{}: quality and cost of policies", bench.model);
    let size = [WIDTH, figure.height(WIDTH, true)];
    let canvas = Canvas { size, colours: Colours::Of(Theme::Light), titled: true, id: "policies" };
    Some(figure.to_svg(&canvas))
}

/// The index of a policy's kind, the same in every figure; kinds unknown to this version come last.
fn place_of(policy: &str, kinds: &mut Vec<String>) -> usize {
    let kind = policy.split(':').next().unwrap_or_default();
    kinds.iter().position(|known| known == kind).unwrap_or_else(|| {
        kinds.push(kind.to_owned());
        kinds.len() - 1
    })
}

/// The tooltip of a point.
fn details(result: &Measurement) -> String {
    let ratio = |ratio: Option<f64>| ratio.map_or(String::new(), |ratio| format!(" ({ratio:.2} of full)"));
    let mut lines = vec![format!("TTFT {:.3} s{}", result.ttft_s.median, ratio(result.ttft_ratio))];
    if result.tpot_s.median.is_finite() {
        lines.push(format!("TPOT {:.2} ms{}", result.tpot_s.median * 1e3, ratio(result.tpot_ratio)));
    }
    lines.push(format!("KV {}", readable_bytes(result.kv_bytes as f64)));
    lines.extend(result.peak_bytes.map(|bytes| format!("peak memory {}", readable_bytes(bytes as f64))));
    if let Some(quality) = &result.quality {
        lines.extend([
            format!("KL {:.4} nats per token", quality.kl),
            format!("same top token in {:.1} % of steps", quality.top1 * 100.0),
            format!("ΔNLL {:.4} nats per token", quality.dnll),
            format!("number found in {:.0} % of {} prompts", quality.found * 100.0, quality.prompts),
        ]);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use layerscope_bench::{Machine, Quality, Statistics};
    use layerscope_engine::{Device, WeightsPrecision};

    fn report(policies: &[(&str, usize, Option<f64>)]) -> BenchReport {
        let result = |&(policy, length, kl): &(&str, usize, Option<f64>)| Measurement {
            policy: policy.into(),
            length,
            new_tokens: 4,
            repeats: 1,
            ttft_s: Statistics::of(vec![if policy == "full" { 2.0 } else { 1.5 }]),
            tpot_s: Statistics::of(vec![]),
            e2e_s: None,
            kv_bytes: if policy == "full" { 200 } else { 100 },
            kv_bytes_model: 100,
            peak_bytes: None,
            layer_tokens: 7,
            ttft_ratio: Some(0.75),
            ttft_ratio_model: 0.7,
            tpot_ratio: None,
            tpot_ratio_model: 0.5,
            transfers: None,
            quality: kl.map(|kl| Quality { kl, top1: 0.5, dnll: 0.1, found: 0.25, prompts: 4 }),
        };
        BenchReport {
            results: policies.iter().map(result).collect(),
            model: "<tiny>".into(),
            weights: WeightsPrecision::F32,
            weight_bytes: 9,
            layers: 8,
            machine: Machine::with(&Device::Cpu),
            layerscope: "0.1.0".into(),
            interrupted: false,
            notes: vec![],
        }
    }

    #[test]
    fn costs_are_relative_to_the_full_model_and_unknown_ones_have_no_panel() {
        let bench = report(&[
            ("full", 64, Some(0.0)),
            ("speed:5+bos", 64, Some(0.25)),
            ("full", 128, Some(0.0)),
            ("novel:3", 128, Some(0.5)),
        ]);
        let figure = trade_off(&bench).expect("a figure");
        // TPOT and peak memory are unknown.
        assert_eq!(figure.costs, ["TTFT / full", "KV bytes / full"]);
        assert_eq!(figure.rows.len(), 2);
        let speed = &figure.rows[0].points[1];
        assert_eq!((speed.loss, speed.costs.clone()), (0.25, vec![0.75, 0.5]));
        assert_eq!(figure.kinds[speed.kind], "speed");
        assert_eq!((figure.kinds[0].as_str(), figure.rows[0].points[0].kind), ("full", 0));
        assert_eq!(figure.kinds[figure.rows[1].points[1].kind], "novel");
        for part in ["TTFT 1.500 s (0.75 of full)", "KL 0.2500 nats", "25 % of 4 prompts"] {
            assert!(speed.details.contains(part), "{part}");
        }
        let svg = trade_off_svg(&bench).expect("an image");
        assert!(svg.contains("&lt;tiny&gt;: quality") && svg.contains("128 prompt tokens, 4 new"), "{svg}");
    }

    #[test]
    fn without_quality_or_the_full_model_there_is_no_figure() {
        assert!(trade_off(&report(&[("full", 64, None), ("speed:5", 64, None)])).is_none());
        assert!(trade_off(&report(&[("speed:5", 64, Some(0.1))])).is_none());
        assert!(trade_off(&report(&[])).is_none());
    }
}
