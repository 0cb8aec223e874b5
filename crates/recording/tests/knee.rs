//! What is recommended ahead of the rest of a recording, against what is recommended from the whole run.

#![allow(clippy::unwrap_used)]

use layerscope_cutoff::recommend::{Evidence, Options, Recommendation, recommend};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_diagnostics::record::PromptSummary;
use layerscope_diagnostics::run::Run;
use layerscope_engine::{Device, Error, Interrupt, Model, ModelSource, WeightsPrecision};
use layerscope_recording::{Ahead, Recorded, RecordingEvent, record};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

static MODEL: LazyLock<Model> = LazyLock::new(|| {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
    let source = ModelSource::path(&path);
    Model::load(&source, WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
});

/// The prompts of the embedded model's demo; with answers, some of which it gives.
fn prompts(expecting: bool) -> PromptFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/demo.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let mut prompts = parse_prompts("demo.jsonl", text.as_bytes()).unwrap();
    if expecting {
        prompts.iter_mut().enumerate().for_each(|(index, prompt)| {
            prompt.expected = Some(if index % 4 == 3 { "no such words" } else { "e" }.to_owned());
        });
    }
    PromptFile { name: "demo.jsonl".into(), sha256: prompts_sha256(text.as_bytes()), prompts }
}

/// When a recording is interrupted.
#[derive(Clone, Copy, PartialEq)]
enum Stop<'a> {
    Never,
    AtStart(&'a str),
    AtEnd(&'a str),
}

/// What a recording tells, in order, and whether it is complete: `None` where a prompt is finished.
fn told(folder: &Path, prompts: &PromptFile, stop: Stop<'_>) -> (Vec<Option<Ahead>>, bool) {
    let (mut told, interrupt) = (vec![], Interrupt::new(false));
    let recorded = Recorded { ahead: true, ..Recorded::steps(24) };
    let ended = record(&MODEL, prompts, recorded, folder, &[], &interrupt, &mut |event| {
        let now = match event {
            RecordingEvent::Recommended(ahead) => {
                told.push(Some(ahead));
                false
            }
            RecordingEvent::Started { id, .. } => stop == Stop::AtStart(id),
            RecordingEvent::Finished(record) => {
                told.push(None);
                stop == Stop::AtEnd(&record.summary.id)
            }
            _ => false,
        };
        interrupt.fetch_or(now, Ordering::Relaxed);
    });
    match ended {
        Ok(_) => (told, true),
        Err(Error::Interrupted) => (told, false),
        Err(error) => panic!("{error}"),
    }
}

fn of_run(folder: &Path) -> Recommendation {
    let run = Run::open(folder).unwrap();
    let prompts: Vec<PromptSummary> = run.prompts().map(Result::unwrap).collect();
    recommend(Evidence { manifest: run.manifest(), prompts: &prompts }, Options::default()).unwrap()
}

#[test]
fn it_is_what_the_whole_run_recommends() {
    for expecting in [false, true] {
        let (folder, prompts) = (tempfile::tempdir().unwrap(), prompts(expecting));
        let (told, complete) = told(folder.path(), &prompts, Stop::Never);
        assert!(complete);
        let ahead = told[0].expect("the recommendation is told before any prompt is finished");
        assert_eq!(told[1..], vec![None; prompts.prompts.len()]);
        let whole = of_run(folder.path());
        assert_eq!((ahead.point, ahead.layers), (whole.point(), whole.layers), "expecting {expecting}");
        assert!((ahead.kl - whole.kl).abs() < 1e-7, "{} {}", ahead.kl, whole.kl);
        assert_eq!(ahead.kv_saved, whole.kv_saved);
        assert!(ahead.headline().starts_with(&whole.headline()));
        // A recommendation of full depth would leave the search for the cutoff untested.
        assert!(whole.exact_l_cut < whole.layers);
    }
}

#[test]
fn an_interrupted_recording_goes_on() {
    let prompts = prompts(false);
    let (all, id) = (prompts.prompts.len(), |index: usize| prompts.prompts[index].id.as_str());
    let folder = tempfile::tempdir().unwrap();
    // While all prompts run: nothing is finished yet, and the rest goes prompt by prompt.
    assert_eq!(told(folder.path(), &prompts, Stop::AtStart(id(1))), (vec![], false));
    assert_eq!(told(folder.path(), &prompts, Stop::Never), (vec![None; all], true));
    // While the rest is computed.
    let folder = tempfile::tempdir().unwrap();
    let (until, complete) = told(folder.path(), &prompts, Stop::AtEnd(id(4)));
    assert!(!complete && until[0].is_some() && until[1..] == [None; 5]);
    assert_eq!(told(folder.path(), &prompts, Stop::Never), (vec![None; all - 5], true));
}
