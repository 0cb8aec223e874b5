//! Reads measurements from the JSON of `layerscope bench --out`.

use crate::{BenchReport, Measurement};
use layerscope_engine::{Error, Result};
use std::io::ErrorKind;
use std::path::Path;

/// The file's name in a run folder.
pub const FILE_NAME: &str = "bench.json";

/// Reads the measurements kept in a run folder; `None` where there are none.
///
/// # Errors
/// [`Error::Io`] where the file cannot be read, [`Error::Input`] where it holds something else.
pub fn read_of_run(run: &Path) -> Result<Option<BenchReport>> {
    let path = run.join(FILE_NAME);
    let bytes = match layerscope_files::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("read", &path, &error)),
    };
    let damaged = |problem: &dyn std::fmt::Display| {
        Error::input(format!(
            "{} does not hold the measurements of layerscope bench ({problem}); measure again with --out FILE.json",
            path.display()
        ))
    };
    let report: BenchReport = serde_json::from_slice(&bytes).map_err(|error| damaged(&error))?;
    if let Some(wrong) = report.results.iter().find(|result| !plausible(result)) {
        return Err(damaged(&format!("impossible figures of {} at {}", wrong.policy, wrong.length)));
    }
    Ok(Some(report))
}

/// Whether a measurement is plausible: no negative times or ratios, and no zero counts.
fn plausible(result: &Measurement) -> bool {
    let times = [&result.ttft_s, &result.tpot_s].into_iter().chain(&result.e2e_s);
    let times = times.flat_map(|s| [s.mean, s.std, s.median].into_iter().chain(s.repeats.clone()));
    let modelled = [result.ttft_ratio_model, result.tpot_ratio_model].into_iter();
    let ratios = modelled.chain(result.ttft_ratio).chain(result.tpot_ratio);
    let counts = [result.length, result.new_tokens, result.repeats];
    // NaN is undefined, not negative.
    let quality = result.quality.is_none_or(|quality| quality.is_plausible());
    quality && counts.iter().all(|&count| count > 0) && !times.chain(ratios).any(|figure| figure < 0.0)
}

#[cfg(test)]
mod tests {
    use super::super::{Machine, Quality, Statistics};
    use super::*;
    use layerscope_engine::WeightsPrecision;
    use proptest::prelude::*;
    use std::fs;

    fn report() -> BenchReport {
        let result = |policy: &str, tpot: Vec<f64>| Measurement {
            policy: policy.into(),
            length: 64,
            new_tokens: 4,
            repeats: 2,
            ttft_s: Statistics::of(vec![0.1, 0.30000000000000004]),
            tpot_s: Statistics::of(tpot),
            e2e_s: None,
            kv_bytes: 1 << 40,
            kv_bytes_model: 1 << 40,
            peak_bytes: None,
            layer_tokens: 7,
            ttft_ratio: Some(1.0),
            ttft_ratio_model: f64::NAN,
            tpot_ratio: None,
            tpot_ratio_model: 0.5,
            transfers: None,
            quality: (policy != "full").then_some(Quality {
                kl: 0.125,
                top1: 0.75,
                dnll: f64::NAN,
                found: 1.0,
                prompts: 4,
            }),
        };
        BenchReport {
            results: vec![result("full", vec![]), result("speed:5+bos", vec![0.25])],
            model: "tiny.gguf".into(),
            weights: WeightsPrecision::F32,
            weight_bytes: 9,
            layers: 8,
            machine: Machine {
                cpu: None,
                threads: 2,
                os: "linux".into(),
                architecture: "x86_64".into(),
                gpu: None,
            },
            layerscope: "0.1.0".into(),
            interrupted: false,
            notes: vec!["a note".into()],
        }
    }

    fn refused(folder: &Path, bytes: &[u8]) -> String {
        fs::write(folder.join(FILE_NAME), bytes).expect("file");
        let error = read_of_run(folder).expect_err("refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    }

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().expect("folder");
        assert!(read_of_run(folder.path()).expect("nothing").is_none());
        let bytes = serde_json::to_vec_pretty(&report()).expect("json");
        fs::write(folder.path().join(FILE_NAME), &bytes).expect("file");
        let actual = read_of_run(folder.path()).expect("sound").expect("there");
        // NaN is not equal to itself, so compares the written text.
        assert_eq!(serde_json::to_vec_pretty(&actual).expect("json"), bytes);
        assert!(actual.results[0].tpot_s.mean.is_nan() && actual.results[0].ttft_ratio_model.is_nan());
        assert_eq!(actual.results[1].ttft_s, report().results[1].ttft_s);
        assert_eq!(actual.machine, report().machine);
        assert_eq!(actual.results[1].quality.expect("measured").top1, 0.75);
    }

    #[test]
    fn files_from_before_quality_was_measured_are_read() {
        let mut old = serde_json::to_value(report()).expect("json");
        for result in old["results"].as_array_mut().expect("results") {
            result.as_object_mut().expect("an object").remove("quality");
        }
        let folder = tempfile::tempdir().expect("folder");
        fs::write(folder.path().join(FILE_NAME), old.to_string()).expect("file");
        let actual = read_of_run(folder.path()).expect("sound").expect("there");
        assert!(actual.results.iter().all(|result| result.quality.is_none()));
    }

    #[test]
    fn other_files_are_refused_with_the_mend() {
        let folder = tempfile::tempdir().expect("folder");
        let mut negative = report();
        negative.results[1].tpot_s.repeats[0] = -1.0;
        let mut nothing = report();
        nothing.results[0].repeats = 0;
        let mut impossible = report();
        impossible.results[1].quality =
            Some(Quality { kl: 0.1, top1: 2.0, dnll: 0.1, found: 1.0, prompts: 4 });
        let json = |report: &BenchReport| serde_json::to_vec(report).expect("json");
        for bytes in [
            &b""[..],
            b"PAR1",
            b"[]",
            b"{\"results\": []}",
            &json(&negative),
            &json(&nothing),
            &json(&impossible),
        ] {
            let message = refused(folder.path(), bytes);
            assert!(message.contains(FILE_NAME) && message.contains("measure again"), "{message}");
        }
        assert!(read_of_run(&folder.path().join("absent")).expect("none").is_none());
    }

    proptest! {
        #[test]
        fn no_damage_panics(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
            let folder = tempfile::tempdir().expect("folder");
            let mut bytes = serde_json::to_vec(&report()).expect("json");
            let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len()));
            bytes[at] = byte;
            bytes.truncate(bytes.len() - cut / 8);
            fs::write(folder.path().join(FILE_NAME), &bytes).expect("file");
            if let Err(error) = read_of_run(folder.path()) {
                prop_assert_eq!(error.exit_code(), 2);
            }
        }
    }
}
