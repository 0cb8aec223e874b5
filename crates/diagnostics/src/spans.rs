//! Removed spans: the result for one, and means over several.

use crate::record::{Divergence, SpanMasses, SpanRecord};
use crate::summary::mean;
use schemars::JsonSchema;
use serde::Serialize;

/// A span with its prompt and the layer from which on it may vanish.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "ToldSpan")]
pub struct SpanReport {
    /// The prompt.
    pub prompt_id: String,
    /// The smallest layer from which on the KL is within the tolerance; the number of layers where there is none.
    pub vanishes_from: usize,
    /// What removing it costs.
    #[serde(flatten)]
    pub record: SpanRecord,
}

impl SpanReport {
    /// Within a tolerance, nats.
    pub fn new(record: SpanRecord, tolerance: f64) -> Self {
        let vanishes_from = record.vanishes_from(tolerance);
        Self { prompt_id: record.prompt_id.clone(), vanishes_from, record }
    }
}

/// Removing spans from a layer on, over several of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanSpanRow {
    /// The first layer without the spans, 0 … L.
    pub layer: usize,
    /// Spans removed there.
    pub spans: usize,
    /// Mean of what it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Mean share of attention on the span at this layer; NaN at L.
    pub decode_mass: f64,
    /// Means of where attention goes at the layers without the spans.
    #[serde(flatten)]
    pub masses: SpanMasses,
    /// Share of the spans without which the answer is found, among those with one; NaN where there is none.
    pub found: f64,
}

/// Means by layer over the spans that were removed there.
pub fn mean_by_layer(records: &[SpanRecord]) -> Vec<MeanSpanRow> {
    let deepest = records.iter().filter_map(|record| record.layers.last()).map(|row| row.layer).max();
    let rows = (0..=deepest.unwrap_or(0)).filter_map(|layer| {
        let rows = || records.iter().flat_map(|record| &record.layers).filter(move |row| row.layer == layer);
        let found = rows().filter_map(|row| row.found).map(|found| f64::from(u8::from(found)));
        let divergences: Vec<Divergence> = rows().map(|row| row.divergence).collect();
        (!divergences.is_empty()).then(|| MeanSpanRow {
            layer,
            spans: divergences.len(),
            divergence: Divergence::mean_of_defined(&divergences),
            decode_mass: mean(rows().map(|row| row.decode_mass)),
            masses: SpanMasses {
                span_full: mean(rows().map(|row| row.masses.span_full)),
                rest_full: mean(rows().map(|row| row.masses.rest_full)),
                bos_after: mean(rows().map(|row| row.masses.bos_after)),
                rest_after: mean(rows().map(|row| row.masses.rest_after)),
                decode_after: mean(rows().map(|row| row.masses.decode_after)),
            },
            found: mean(found),
        })
    });
    rows.collect()
}

impl SpanRecord {
    /// The first measured layer from which on the mean KL is within a tolerance at every layer; at most L,
    /// which removes nothing.
    pub fn vanishes_from(&self, tolerance: f64) -> usize {
        let within = self.layers.iter().rev().take_while(|row| row.divergence.kl <= tolerance);
        within.last().or(self.layers.last()).map_or(0, |row| row.layer)
    }

    /// The displayed name of the span: "tokens 120–139 (“The key is …”)".
    pub fn name(&self) -> String {
        const SHOWN: usize = 60;
        let words: Vec<&str> = self.text.split_whitespace().collect();
        let text: String = words.join(" ").chars().filter(|character| !character.is_control()).collect();
        let shown = match text.char_indices().nth(SHOWN) {
            Some((end, _)) => format!("{} …", text[..end].trim_end()),
            None => text,
        };
        match self.end - self.first {
            1 => format!("token {} (“{shown}”)", self.first),
            _ => format!("tokens {}–{} (“{shown}”)", self.first, self.end - 1),
        }
    }

    /// The result as text after the span's name: "may vanish from layer 12 on (…)".
    pub fn verdict(&self, tolerance: f64, layers: usize) -> String {
        let from = self.vanishes_from(tolerance);
        let looked_at = if self.layers.len() <= layers { " looked at" } else { "" };
        if from >= layers {
            return format!("may vanish from no layer{looked_at} on (KL > {tolerance} nats at the last one)");
        }
        format!(
            "may vanish from layer {from} on (KL ≤ {tolerance} nats at every layer{looked_at} from there up)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SpanRow;

    fn record(kl: &[f64]) -> SpanRecord {
        let row = |(layer, &kl): (usize, &f64)| SpanRow {
            layer,
            divergence: Divergence { kl, top1: 1.0, dnll: 0.0 },
            decode_mass: f64::NAN,
            masses: SpanMasses::UNDEFINED,
            found: None,
        };
        let layers = kl.iter().enumerate().map(row).collect();
        SpanRecord { prompt_id: "a".into(), first: 1, end: 3, text: "x".into(), layers }
    }

    #[test]
    fn a_span_vanishes_where_no_layer_above_needs_it() {
        assert_eq!(record(&[2.0, 0.05, 0.4, 0.1, 0.0]).vanishes_from(0.1), 3);
        assert_eq!(record(&[0.1, 0.05, 0.0]).vanishes_from(0.1), 0);
        assert_eq!(record(&[0.0, f64::NAN, 0.0]).vanishes_from(0.1), 2);
        assert_eq!(record(&[1.0, 1.0, 0.0]).vanishes_from(0.1), 2);
        assert!(record(&[1.0, 1.0, 0.0]).verdict(0.1, 2).starts_with("may vanish from no layer on ("));
        assert!(record(&[1.0, 0.0, 0.0]).verdict(0.1, 2).starts_with("may vanish from layer 1 on ("));
        assert!(record(&[1.0, 0.0, 0.0]).verdict(0.1, 9).contains("looked at"));
    }

    #[test]
    fn names_are_short_and_in_one_line() {
        assert_eq!(record(&[0.0]).name(), "tokens 1–2 (“x”)");
        let long = SpanRecord { end: 2, text: format!(" a\n\u{1b}b {}", "é".repeat(99)), ..record(&[0.0]) };
        let shown = long.name();
        assert!(shown.starts_with("token 1 (“a b éé") && shown.ends_with(" …”)"), "{shown}");
    }

    #[test]
    fn means_are_over_the_spans_removed_there() {
        let mut other = record(&[4.0, 1.0, 0.0]);
        other.layers.remove(1);
        other.layers[0].found = Some(false);
        let mut one = record(&[2.0, 0.5, 0.0]);
        one.layers[0].found = Some(true);
        let rows = mean_by_layer(&[one, other]);
        let found: Vec<_> = rows.iter().map(|row| (row.layer, row.spans, row.divergence.kl)).collect();
        assert_eq!(found, [(0, 2, 3.0), (1, 1, 0.5), (2, 2, 0.0)]);
        assert_eq!(rows[0].found, 0.5);
        assert!(rows[1].found.is_nan());
        assert_eq!(mean_by_layer(&[]), []);
    }
}
