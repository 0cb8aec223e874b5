//! `policies.parquet`: read as written, added to, and refused where it is damaged.

use std::fs;
use std::path::Path;

use ndarray::Array2;

use super::super::*;
use super::sample::*;
use crate::record::{AttentionMeans, Divergence, PolicyRecord};

fn record(prompt: usize, policy: &str, steps: usize, seed: f64) -> PolicyRecord {
    let figure = |offset: f64| {
        Array2::from_shape_fn((LAYERS, steps), |(layer, step)| {
            if layer + 1 == LAYERS && offset > 2.0 {
                f64::NAN
            } else {
                seed + offset + (layer * 10 + step) as f64
            }
        })
    };
    PolicyRecord {
        prompt_id: format!("q{prompt}"),
        policy: policy.to_owned(),
        divergence: Divergence { kl: 0.1 + seed, top1: 0.5, dnll: -seed },
        attention: AttentionMeans {
            bos_mass: figure(0.0),
            prompt_mass: figure(1.0),
            decode_mass: figure(2.0),
            prompt_entropy: figure(3.0),
            prompt_entropy_nats: figure(4.0),
            selectivity: figure(5.0),
        },
    }
}

fn steps_of(folder: &Path, prompt: usize) -> usize {
    Run::open(folder).expect("open").prompt(&format!("q{prompt}")).expect("prompt").steps
}

fn put(folder: &Path, records: Vec<PolicyRecord>) {
    PoliciesWriter::open(&Run::open(folder).expect("open")).expect("writer").put(records).expect("put");
}

#[test]
fn policies_are_read_back_added_and_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 3);
    let read = || format!("{:?}", Run::open(folder.path()).expect("open").policies().expect("sound"));
    assert_eq!(read(), "[]");
    let before = tables(folder.path());
    let steps = [0, 1, 2].map(|prompt| steps_of(folder.path(), prompt));
    put(folder.path(), vec![record(2, "speed:2", steps[2], 0.0), record(2, "full", steps[2], 1.0)]);
    put(folder.path(), vec![record(0, "speed:2", steps[0], 2.0), record(2, "speed:2", steps[2], 3.0)]);
    let expected = [
        record(0, "speed:2", steps[0], 2.0),
        record(2, "full", steps[2], 1.0),
        record(2, "speed:2", steps[2], 3.0),
    ];
    assert_eq!(read(), format!("{:?}", expected));
    assert_eq!(tables(folder.path()), before);
    let writer = PoliciesWriter::open(&Run::open(folder.path()).expect("open")).expect("writer");
    assert!(writer.has("q2", "full") && !writer.has("q0", "full"));
}

#[test]
fn rows_that_are_missing_twice_or_out_of_range_are_refused() {
    for (steps, told) in [(-1, "a layer or step"), (1, "a layer or step")] {
        let folder = tempfile::tempdir().expect("folder");
        finished(folder.path(), 1);
        let wrong = steps_of(folder.path(), 0).saturating_add_signed(steps);
        put(folder.path(), vec![record(0, "speed:2", wrong, 0.0)]);
        let error = Run::open(folder.path()).expect("open").policies().expect_err("damaged").to_string();
        assert!(error.contains(told) && error.contains(POLICIES), "{error}");
    }
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 1);
    fs::write(folder.path().join(POLICIES), b"PAR1").expect("write");
    let error = Run::open(folder.path()).expect("open").policies().expect_err("damaged").to_string();
    assert!(error.contains(POLICIES), "{error}");
}
