//! `patches.parquet`: maps are read as written, and other files stay unchanged.

use std::fs;
use std::path::Path;

use super::super::schema::Table;
use super::super::*;
use super::hostile::refusal;
use super::sample::*;
use crate::patching::{
    PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite, PatchToken, PatchedPrompt,
};

/// Prompts q0 and q3 have 6 and 9 tokens in [`sample`]; these have as many in both.
fn same_length(folder: &Path, prompts: usize) {
    let mut writer = RunWriter::create_or_resume(folder, manifest(prompts)).expect("create");
    for index in 0..prompts {
        writer.append(&sized_record(index, LAYERS, HEADS, 5, 6 + index / 2)).expect("append");
    }
    writer.finish().expect("finish");
}

fn token(id: u32) -> PatchToken {
    PatchToken { id, text: format!("t{id}☃") }
}

fn prompt(index: usize, logit_diff: f64, kl: f64) -> PatchedPrompt {
    let summary = sized_record(index, LAYERS, HEADS, 5, 6 + index / 2).summary;
    let tokens = summary.prompt_tokens.into_iter().zip(summary.prompt_token_text);
    PatchedPrompt {
        id: summary.id,
        tokens: tokens.map(|(id, text)| PatchToken { id, text }).collect(),
        next: token(index as u32),
        figures: PatchFigures { logit_diff, kl },
    }
}

/// A map between q0 and q1, with an undefined and a missing cell.
fn map(site: PatchSite, scale: f64) -> PatchMap {
    let is_head = site == PatchSite::Head;
    let cell = |index: usize| match index {
        1 => Some(PatchFigures { logit_diff: f64::NAN, kl: f64::NAN }),
        2 => None,
        _ => Some(PatchFigures { logit_diff: scale * index as f64, kl: 0.1 + 0.2 }),
    };
    let columns = if is_head { vec![0, 1] } else { vec![0, 3, 5] };
    PatchMap {
        site,
        direction: PatchDirection::Noising,
        metric: PatchMetric::LogitDiff,
        clean: prompt(0, 1.5, 0.0),
        corrupted: prompt(1, -1.5, 0.75),
        answer: token(7),
        wrong: token(8),
        layers: vec![0, 2],
        cells: (0..2 * columns.len()).map(cell).collect(),
        columns,
        head_positions: if is_head { vec![0, 2, 3, 4] } else { vec![] },
    }
}

fn put(folder: &Path, map: PatchMap) -> bool {
    PatchesWriter::open(&Run::open(folder).expect("open")).expect("writer").put(map).expect("put")
}

/// As text, in which NaN equals NaN.
fn read(folder: &Path) -> String {
    format!("{:?}", Run::open(folder).expect("open").patches().expect("sound"))
}

#[test]
fn maps_are_read_back_added_and_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    same_length(folder.path(), 4);
    assert_eq!(read(folder.path()), "[]");
    let before = tables(folder.path());
    let other_pair = PatchMap {
        clean: prompt(2, 2.0, 0.0),
        corrupted: prompt(3, 0.0, 1.0),
        ..map(PatchSite::AttnOut, 1.0)
    };
    assert!(put(folder.path(), other_pair.clone()));
    assert!(put(folder.path(), map(PatchSite::ResidPre, 1.0)));
    assert!(put(folder.path(), map(PatchSite::Head, 1.0)));
    // The same question again, and others: fewer layers, another direction.
    assert!(put(folder.path(), map(PatchSite::ResidPre, 2.0)));
    let mut fewer = map(PatchSite::ResidPre, 3.0);
    (fewer.layers, fewer.cells) = (vec![2], fewer.cells[3..].to_vec());
    assert!(put(folder.path(), fewer.clone()));
    let denoising = PatchMap { direction: PatchDirection::Denoising, ..map(PatchSite::Head, 4.0) };
    assert!(put(folder.path(), denoising.clone()));
    let expected = [map(PatchSite::Head, 1.0), map(PatchSite::ResidPre, 2.0), fewer, denoising, other_pair];
    assert_eq!(read(folder.path()), format!("{expected:?}"));
    assert_eq!(tables(folder.path()), before);

    let shown = serde_json::to_value(Run::open(folder.path()).expect("open").show().expect("show"));
    let shown = shown.expect("json");
    assert_eq!(shown["patches"].as_array().map(Vec::len), Some(5));
    assert_eq!((&shown["patches"][0]["done"], &shown["patches"][0]["cells"]), (&3.into(), &4.into()));
    assert_eq!(shown["patches"][0]["strongest"][0]["head"], 0);
}

#[test]
fn what_is_less_complete_replaces_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    same_length(folder.path(), 2);
    let mut stopped = map(PatchSite::MlpOut, 2.0);
    stopped.cells[3..].fill(None);
    assert!(put(folder.path(), stopped.clone()));
    assert_eq!(read(folder.path()), format!("{:?}", [&stopped]));
    let whole = map(PatchSite::MlpOut, 1.0);
    assert!(put(folder.path(), whole.clone()));
    assert!(!put(folder.path(), stopped));
    assert_eq!(read(folder.path()), format!("{:?}", [whole]));
}

#[test]
fn one_writes_at_a_time() {
    let folder = tempfile::tempdir().expect("folder");
    same_length(folder.path(), 2);
    let run = Run::open(folder.path()).expect("open");
    let held = SpansWriter::open(&run).expect("writer");
    let message = refusal(PatchesWriter::open(&run));
    assert!(message.contains("wait until"), "{message}");
    drop(held);
    PatchesWriter::open(&run).expect("writer");
}

#[test]
fn files_that_are_not_ours_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().expect("folder");
    same_length(folder.path(), 4);
    let path = folder.path().join(PATCHES);
    let refused = |part: &str| {
        let run = Run::open(folder.path()).expect("the run itself is sound");
        let message = refusal(run.patches());
        assert!(message.contains(PATCHES) && message.contains(part), "{message} lacks {part}");
        assert_eq!(refusal(run.show()), message);
        assert_eq!(refusal(PatchesWriter::open(&run)), message);
    };
    let stranger = |of: PatchedPrompt| PatchedPrompt { id: "q7".into(), ..of };
    let sound = || map(PatchSite::ResidPre, 1.0);
    for (map, part) in [
        (PatchMap { clean: stranger(sound().clean), ..sound() }, "no prompt \"q7\""),
        (PatchMap { corrupted: stranger(sound().corrupted), ..sound() }, "no prompt \"q7\""),
        (PatchMap { corrupted: prompt(2, 0.0, 1.0), ..sound() }, "different lengths"),
        (PatchMap { layers: vec![0, LAYERS], ..sound() }, "not all of its layers and columns"),
        (PatchMap { layers: vec![2, 0], ..sound() }, "not all of its layers and columns"),
        (PatchMap { columns: vec![0, 3, 6], ..sound() }, "not all of its layers and columns"),
        (
            PatchMap { columns: vec![0, HEADS], ..map(PatchSite::Head, 1.0) },
            "not all of its layers and columns",
        ),
        (PatchMap { head_positions: vec![6], ..map(PatchSite::Head, 1.0) }, "no positions of a head"),
        (PatchMap { head_positions: vec![], ..map(PatchSite::Head, 1.0) }, "no positions of a head"),
    ] {
        write_patching(&path, &map).expect("write");
        refused(part);
    }
    fs::write(&path, b"PAR1").expect("file");
    refused("damaged");
    fs::copy(folder.path().join(Table::Layers.file_name()), &path).expect("file");
    refused("the column");

    // With any byte changed, nothing panics.
    fs::remove_file(&path).expect("remove");
    put(folder.path(), map(PatchSite::ResidPre, 1.0));
    put(folder.path(), map(PatchSite::Head, 1.0));
    let good = fs::read(&path).expect("file");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut damaged = 0;
    for at in (0..good.len()).step_by(5) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, bad).expect("damage");
        if let Err(error) = Run::open(folder.path()).expect("sound").patches() {
            assert_eq!(error.exit_code(), 2, "{error}");
            damaged += 1;
        }
    }
    std::panic::set_hook(hook);
    assert!(damaged > 100, "{damaged}");
}
