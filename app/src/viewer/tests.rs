//! Results of background work that come late.

#![allow(clippy::unwrap_used)]

use super::{Launch, Open, Recommended, Remembered, SeenModels, Viewer};
use crate::data::{PromptMaps, Task};
use eframe::egui::Context;
use layerscope_diagnostics::prompts::read_prompts;
use layerscope_engine::{Device, DeviceChoice, Error, Interrupt, Model, ModelSource, WeightsPrecision};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LATE: Duration = Duration::from_millis(80);

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny").join(name)
}

/// A run of two prompts of the embedded model.
fn run() -> TempDir {
    let source = ModelSource::path(fixture("layerscope-tiny.gguf"));
    let model = Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(())).unwrap();
    let mut prompts = read_prompts(&fixture("demo.jsonl")).unwrap();
    prompts.prompts.truncate(2);
    let folder = tempfile::tempdir().unwrap();
    let interrupt = Interrupt::new(false);
    layerscope_recording::record(
        &model,
        &prompts,
        layerscope_recording::Recorded::steps(4),
        folder.path(),
        &[],
        &interrupt,
        &mut |_| {},
    )
    .unwrap();
    folder
}

/// A viewer that has read a run and its recommendation.
fn opened(folder: &Path) -> Viewer {
    let launch = Launch {
        open: Open::Path(folder.to_owned()),
        models: vec![],
        model_of_runs: None,
        seen: SeenModels::default(),
        runs_folder: std::env::temp_dir(),
        view: None,
        theme: None,
        drawn_in_software: false,
        device: DeviceChoice::Cpu,
        host: None,
    };
    let mut viewer = Viewer::new(&Context::default(), launch, Remembered::default());
    until(&mut viewer, |viewer| viewer.recommendation.is_some() && viewer.reading.is_none());
    viewer
}

fn until(viewer: &mut Viewer, so: impl Fn(&Viewer) -> bool) {
    let start = Instant::now();
    while !so(viewer) {
        viewer.progress();
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_late_recommendation_of_another_run_moves_nothing() {
    let (first, second) = (run(), run());
    let mut viewer = opened(first.path());
    let mut late = viewer.recommendation.as_ref().unwrap().outcome.clone().unwrap();
    let right = late.l_cut;
    late.l_cut = 1;
    assert_ne!(right, 1);
    let options = viewer.state.options();
    viewer.recommending = Some(Task::start(
        || {},
        move || {
            std::thread::sleep(LATE);
            Ok(Recommended { options, outcome: Ok(late) })
        },
    ));
    viewer.reading_pattern_of = Some(0);
    viewer.open(second.path());
    until(&mut viewer, |viewer| viewer.run().is_some_and(|run| run.folder == second.path()));
    assert_eq!(viewer.reading_pattern_of, None, "a pattern of the run before");
    let start = Instant::now();
    until(&mut viewer, |viewer| start.elapsed() > 2 * LATE && viewer.recommendation.is_some());
    assert_eq!(viewer.state().cutoff, right);
}

#[test]
fn maps_that_cannot_be_read_are_those_of_the_prompt_that_was_read() {
    let folder = run();
    let mut viewer = opened(folder.path());
    viewer.maps.clear();
    let failing = Task::start(|| {}, || Err::<PromptMaps, _>(Error::input("a damaged table")));
    viewer.reading = Some((1, failing));
    until(&mut viewer, |viewer| viewer.maps.iter().any(|maps| maps.prompt == 0) && viewer.reading.is_none());
    let of_prompt = |prompt: usize| viewer.maps.iter().find(|maps| maps.prompt == prompt).unwrap();
    assert!(of_prompt(0).bytes() > of_prompt(1).bytes(), "the prompt in front is blank");
    assert_eq!(viewer.errors().count(), 1);
}
