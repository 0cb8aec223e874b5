//! Metrics against the official scorers (`fixtures/eval/metrics.py`).

#![allow(clippy::unwrap_used)]

use layerscope_eval::Metric;
use serde_json::Value;

#[test]
fn metrics_equal_the_official_scorers() {
    let pairs: Vec<Value> = serde_json::from_str(include_str!("metrics.json")).unwrap();
    assert!(pairs.len() >= 200);
    for pair in &pairs {
        let text = |name: &str| pair[name].as_str().unwrap();
        for metric in [Metric::ExactMatch, Metric::F1, Metric::RougeL] {
            let (score, expected) =
                (metric.score(text("text"), &[text("answer")]), pair[metric.name()].as_f64().unwrap());
            assert!((score - expected).abs() < 1e-9, "{metric}: {score}, not {expected}: {pair}");
        }
    }
}
