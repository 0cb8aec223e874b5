//! Every target reads its seeds, what was once found, and some mutants of both.

use layerscope_fuzz::{TARGETS, Target, ignore_guarded_panics, mutated};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

/// Mutants of each target, however slow it is.
const FEWEST_MUTANTS: usize = 3;

/// Time for mutants of each target: a second, or as many as `LAYERSCOPE_FUZZ_SECONDS` says.
fn time() -> Duration {
    let seconds = std::env::var("LAYERSCOPE_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}

/// Inputs that once broke a target, in a folder of its name.
fn findings(target: &Target) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("findings").join(target.name);
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    files.map(|file| std::fs::read(file.path()).expect("a finding")).collect()
}

fn check(name: &str) {
    ignore_guarded_panics();
    let target = Target::named(name).expect("a target");
    let mut inputs = (target.seeds)();
    assert!(!inputs.is_empty(), "{name} has no seeds");
    inputs.extend(findings(target));
    inputs.iter().for_each(|input| (target.read)(input));
    let (start, time, mut mutants) = (Instant::now(), time(), 0);
    for seed in 0..10_000_000 {
        if mutants >= FEWEST_MUTANTS && start.elapsed() >= time {
            break;
        }
        let mutant = mutated(target, &inputs[seed as usize % inputs.len()], seed);
        if let Some(mutant) = mutant.filter(|mutant| mutant.len() < 1 << 20) {
            (target.read)(&mutant);
            mutants += 1;
        }
    }
    assert!(mutants >= FEWEST_MUTANTS, "{name}: {mutants} mutants");
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name));
            }
        )*

        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    adapter bench_report chat_template comparison config_json evaluation frames gguf head_patterns hub_listing lm_eval model_reference needle policies prompts report requests
    run_continuations run_manifest run_patches run_policies run_sets run_spans run_table safetensors tasks tokenizer_json
}

#[test]
fn every_target_is_tested_and_has_a_program() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| Some(entry.path().file_stem()?.to_string_lossy().into_owned())).collect()
    };
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(TESTED.iter().map(ToString::to_string).collect::<BTreeSet<_>>(), targets);
    assert_eq!(names(&folder.join("fuzz_targets")), targets);
    assert!(names(&folder.join("findings")).is_subset(&targets));
}
