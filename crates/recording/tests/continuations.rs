//! Failure cases of the embedded model: texts compared with full recomputation, and storage in the run
//! folder.

#![allow(clippy::unwrap_used)]

#[path = "../../cutoff/tests/support/mod.rs"]
mod support;

use layerscope_cutoff::recommend::FrontierPoint;
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_diagnostics::record::{Anchor, PromptSummary};
use layerscope_diagnostics::run::{CONTINUATIONS, Continuation, Run};
use layerscope_engine::{Device, Error, Interrupt, Model, ModelSource, Result, WeightsPrecision};
use layerscope_recording::Recorded;
use layerscope_recording::continuations::{ContinuationEvent, continue_failure_cases};
use std::path::Path;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use support::{MODEL, tiny, whole_run};
use tempfile::TempDir;

const NEW_TOKENS: usize = 20;
/// Rounding may swap the two best logits if they are closer than this.
const NEAR_TIE: f32 = 1e-3;

/// A run of five bundled prompts, and one with a given answer.
fn recorded() -> TempDir {
    let bundled = std::fs::read_to_string(tiny().with_file_name("demo.jsonl")).unwrap();
    let mut lines: Vec<&str> = bundled.lines().step_by(3).collect();
    lines.insert(0, r#"{"id": "given", "prompt": "x = 3\ny = 5\nprint(y)", "answer": "the answer is six, or so they say"}"#);
    let text = lines.join("\n");
    let prompts = PromptFile {
        name: "prompts.jsonl".into(),
        sha256: prompts_sha256(text.as_bytes()),
        prompts: parse_prompts("prompts.jsonl", text.as_bytes()).unwrap(),
    };
    let folder = tempfile::tempdir().unwrap();
    let interrupt = Interrupt::new(false);
    layerscope_recording::record(
        &MODEL,
        &prompts,
        Recorded::steps(NEW_TOKENS),
        folder.path(),
        &[],
        &interrupt,
        &mut |_| {},
    )
    .unwrap();
    folder
}

/// A recorded run, for reading or copying.
static RECORDED: LazyLock<TempDir> = LazyLock::new(recorded);

fn copy_of_recorded() -> TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(RECORDED.path()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    copy
}

/// Returns the entries, the number that existed before, and the ids of the generated ones.
fn run_cases(folder: &Path, cut: FrontierPoint, count: usize) -> (Vec<Continuation>, usize, Vec<String>) {
    let (mut before, mut generated) = (0, vec![]);
    let interrupt = Interrupt::new(false);
    let run = Run::open(folder).unwrap();
    let entries = continue_failure_cases(&run, &MODEL, cut, count, &interrupt, &mut |event| match event {
        ContinuationEvent::Chosen { earlier, .. } => before = earlier,
        ContinuationEvent::Finished(entry) => generated.push(entry.prompt_id.clone()),
        _ => {}
    });
    (entries.unwrap(), before, generated)
}

/// The best token except end-of-sequence tokens, and its margin over the next.
fn best(logits: &[f32]) -> (u32, f32) {
    let eos = MODEL.tokenizer.eos_ids();
    let mut order: Vec<u32> = (0..logits.len() as u32).filter(|id| !eos.contains(id)).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    (order[0], logits[order[0] as usize] - logits[order[1] as usize])
}

/// Reference for SPEED: logits after the prompt and after each token of a text, recomputed in full with the
/// prompt hidden from the decode rows above the cutoff.
fn along(prompt: &PromptSummary, text: &[u32], cut: FrontierPoint) -> Vec<(u32, f32)> {
    let p = prompt.prompt_tokens.len();
    let sequence: Vec<u32> = prompt.prompt_tokens.iter().chain(&text[..text.len() - 1]).copied().collect();
    let first_hidden = cut.anchor.tokens();
    let logits = whole_run(&MODEL.decoder, &sequence, p, &|layer, query, key| {
        layer >= cut.cutoff && query + 1 >= p && (first_hidden..p - 1).contains(&key)
    });
    logits.iter().map(|logits| best(logits)).collect()
}

#[test]
fn texts_are_the_cutoffs_own_and_leave_the_run_where_teacher_forcing_does() {
    let folder = copy_of_recorded();
    let run = Run::open(folder.path()).unwrap();
    let layers = MODEL.config().layers;
    let (mut differing, mut same) = (0, 0);
    for (cutoff, anchor) in [(2, Anchor::Bos), (4, Anchor::None), (5, Anchor::Bos), (layers, Anchor::Bos)] {
        let cut = FrontierPoint { cutoff, anchor };
        let (entries, ..) = run_cases(folder.path(), cut, 100);
        assert_eq!(entries.len(), run.prompt_ids().len() - 1, "all but the one with an answer");
        for entry in &entries {
            let what = format!("{} of {}", entry.policy, entry.prompt_id);
            let prompt = run.prompt(&entry.prompt_id).unwrap();
            assert!(!prompt.answer_given);
            assert_eq!([entry.generated.len(), entry.generated_token_text.len()], [NEW_TOKENS; 2]);
            assert_eq!(entry.generated_text, MODEL.tokenizer.decode(&entry.generated).unwrap());
            let row =
                prompt.frontier.iter().find(|row| (row.anchor, row.cutoff) == (anchor, cutoff)).unwrap();
            assert_eq!(entry.kl, row.divergence.kl, "{what}");

            // Each token of the text is the best one after those before it.
            let own = along(&prompt, &entry.generated, cut);
            for (step, ((token, lead), written)) in own.iter().zip(&entry.generated).enumerate() {
                assert!(token == written || *lead < NEAR_TIE, "{what}, step {step}");
            }
            // Teacher-forced along the run's text, the best token first differs at the same step.
            let forced = along(&prompt, &prompt.generated, cut);
            let first = (0..NEW_TOKENS).find(|&step| forced[step].0 != prompt.generated[step]);
            let reached = first.map_or(NEW_TOKENS, |step| step + 1);
            if forced[..reached].iter().any(|(_, lead)| *lead < NEAR_TIE) {
                continue;
            }
            assert_eq!(entry.first_difference, first, "{what}");
            differing += usize::from(first.is_some());
            same += usize::from(first.is_none());
        }
    }
    assert!(differing >= 5 && same >= 5, "{differing} texts differ, {same} do not");
}

#[test]
fn the_largest_kl_comes_first_and_nothing_is_generated_twice() {
    let folder = copy_of_recorded();
    let cut = FrontierPoint { cutoff: 3, anchor: Anchor::Bos };
    let run = Run::open(folder.path()).unwrap();
    let mut expected: Vec<(f64, String)> = vec![];
    for prompt in run.prompts().map(Result::unwrap).filter(|prompt| !prompt.answer_given) {
        let row = prompt.frontier.iter().find(|row| (row.anchor, row.cutoff) == (cut.anchor, cut.cutoff));
        expected.push((row.unwrap().divergence.kl, prompt.id));
    }
    expected.sort_by(|a, b| b.0.total_cmp(&a.0));
    let ids: Vec<String> = expected.into_iter().map(|(_, id)| id).collect();

    let (entries, before, generated) = run_cases(folder.path(), cut, 2);
    assert_eq!((before, &generated[..]), (0, &ids[..2]));
    assert_eq!(
        entries.iter().map(|entry| &entry.prompt_id).collect::<Vec<_>>(),
        ids[..2].iter().collect::<Vec<_>>()
    );
    let (_, before, generated) = run_cases(folder.path(), cut, 4);
    assert_eq!((before, &generated[..]), (2, &ids[2..4]));
    let file = std::fs::read(folder.path().join(CONTINUATIONS)).unwrap();
    let (_, before, generated) = run_cases(folder.path(), cut, 3);
    assert_eq!((before, generated.len()), (3, 0));
    assert_eq!(std::fs::read(folder.path().join(CONTINUATIONS)).unwrap(), file);
    // Entries of another policy are kept; an entry that contradicts the run is generated again.
    let (entries, before, _) = run_cases(folder.path(), FrontierPoint { anchor: Anchor::None, ..cut }, 1);
    assert_eq!((before, entries[0].policy.as_str()), (0, "speed:3"));
    let all = run.continuations().unwrap().unwrap();
    assert_eq!((all.entries.len(), all.of_policy("speed:3+bos").len()), (5, 4));
    let text = String::from_utf8(std::fs::read(folder.path().join(CONTINUATIONS)).unwrap()).unwrap();
    let kl = all.of_policy("speed:3+bos")[0].kl;
    std::fs::write(folder.path().join(CONTINUATIONS), text.replace(&kl.to_string(), "0.5")).unwrap();
    let (_, before, generated) = run_cases(folder.path(), cut, 4);
    assert_eq!((before, &generated[..]), (3, &ids[..1]));
    assert_eq!(run.continuations().unwrap().unwrap(), all);
}

#[test]
fn an_interrupt_keeps_what_is_finished_and_the_next_call_goes_on() {
    let cut = FrontierPoint { cutoff: 3, anchor: Anchor::Bos };
    let calm = copy_of_recorded();
    run_cases(calm.path(), cut, 3);
    // Within a text, and directly after one.
    for stop in [NEW_TOKENS / 2, usize::MAX] {
        let folder = copy_of_recorded();
        let run = Run::open(folder.path()).unwrap();
        let interrupt = Interrupt::new(false);
        let (mut finished, mut tokens) = (0, 0);
        let result = continue_failure_cases(&run, &MODEL, cut, 3, &interrupt, &mut |event| match event {
            ContinuationEvent::Tokens(_) if finished == 1 => {
                tokens += 1;
                interrupt.fetch_or(tokens == stop, Ordering::Relaxed);
            }
            ContinuationEvent::Finished(_) => {
                finished += 1;
                interrupt.fetch_or(stop == usize::MAX, Ordering::Relaxed);
            }
            _ => {}
        });
        assert!(matches!(result, Err(Error::Interrupted)));
        assert_eq!(finished, 1);
        assert_eq!(run.continuations().unwrap().unwrap().entries.len(), 1);
        let (_, before, generated) = run_cases(folder.path(), cut, 3);
        assert_eq!((before, generated.len()), (1, 2));
        let bytes = |folder: &TempDir| std::fs::read(folder.path().join(CONTINUATIONS)).unwrap();
        assert_eq!(bytes(&folder), bytes(&calm));
    }
}

#[test]
fn another_model_or_cutoff_is_refused() {
    let folder = copy_of_recorded();
    let run = Run::open(folder.path()).unwrap();
    let cases = |model: &Model, cutoff| {
        let cut = FrontierPoint { cutoff, anchor: Anchor::Bos };
        let result = continue_failure_cases(&run, model, cut, 1, &Interrupt::new(false), &mut |_| {});
        let error = result.unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    let native =
        Model::load(&ModelSource::path(tiny()), WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(()))
            .unwrap();
    let message = cases(&native, 3);
    assert!(message.contains("--weights f32") && message.contains("native"), "{message}");
    assert!(cases(&MODEL, 9).contains('9'));
    assert!(cases(&MODEL, 0).contains('0'));
    assert!(run.continuations().unwrap().is_none(), "nothing was written");
}
