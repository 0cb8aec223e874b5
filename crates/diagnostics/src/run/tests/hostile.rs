//! Damaged and changed folders: one sentence, never a panic.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::StringViewBuilder;
use arrow_array::{ArrayRef, RecordBatch, StringViewArray};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::ArrowWriterOptions;

use layerscope_engine::Error;
use proptest::prelude::*;
use serde_json::json;

use super::super::durable::write_synced;
use super::super::rows_read::PromptRows;
use super::super::schema::Table;
use super::super::table_file::TableFile;
use super::super::*;
use super::sample::*;
use crate::record::Anchor;

/// The input error of a folder.
pub(super) fn refusal<T>(result: Result<T, Error>) -> String {
    match result {
        Ok(_) => panic!("accepted"),
        Err(error) => {
            assert_eq!(error.exit_code(), 2, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn another_run_in_the_folder_is_refused_with_the_difference() {
    let folder = tempfile::tempdir().expect("folder");
    drop(RunWriter::create_or_resume(folder.path(), manifest(2)).expect("create"));
    type Change = fn(&mut Manifest);
    let changes: [(Change, &str); 7] = [
        (|m| m.model.sha256 = "ffff".into(), "another model (tiny"),
        (|m| m.weights = "f32".into(), "--weights native, not f32"),
        (|m| m.settings.prompts_sha256 = "00".into(), "other prompts (prompts.jsonl"),
        (|m| _ = m.prompts.ids.pop(), "another choice of prompts"),
        (|m| m.settings.max_new_tokens = 64, "--max-new-tokens 8, not 64"),
        (|m| m.settings.anchors = vec![Anchor::Bos], "the anchors bos and none, not bos"),
        (|m| _ = m.settings.other.insert("knockout".into(), json!(true)), "knockout unset, not true"),
    ];
    for (change, difference) in changes {
        let mut wanted = manifest(2);
        change(&mut wanted);
        let message = refusal(RunWriter::create_or_resume(folder.path(), wanted));
        assert!(message.contains(difference), "{message}");
        assert!(message.contains("another --out"), "{message}");
    }
}

#[test]
fn a_run_with_another_adapter_is_refused() {
    let with = |adapter: Option<&str>| {
        let mut wanted = manifest(2);
        wanted.model.adapter = adapter.map(|sha256| AdapterRecord {
            name: "adapter".into(),
            sha256: sha256.into(),
            rows: "decode".into(),
            policy: None,
            training: None,
        });
        wanted
    };
    let [one, other, none] = [with(Some("0123456789")), with(Some("abcdefghij")), with(None)];
    for (first, then, said) in [
        (&one, &other, "another adapter (adapter, SHA-256 01234567…, not adapter, SHA-256 abcdefgh…)"),
        (&one, &none, "the adapter adapter, not without"),
        (&none, &one, "no adapter, not with adapter"),
    ] {
        let folder = tempfile::tempdir().expect("folder");
        drop(RunWriter::create_or_resume(folder.path(), first.clone()).expect("create"));
        let message = refusal(RunWriter::create_or_resume(folder.path(), then.clone()));
        assert!(message.contains(said), "{message}");
        drop(RunWriter::create_or_resume(folder.path(), first.clone()).expect("the same"));
    }
}

#[test]
fn two_recordings_at_once_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let first = RunWriter::create_or_resume(folder.path(), manifest(1)).expect("create");
    let message = refusal(RunWriter::create_or_resume(folder.path(), manifest(1)));
    assert!(message.contains("another recording"), "{message}");
    drop(first);
    RunWriter::create_or_resume(folder.path(), manifest(1)).expect("the lock ends with its holder");
}

#[test]
fn folders_that_hold_no_run() {
    let folder = tempfile::tempdir().expect("folder");
    let message = refusal(Run::open(folder.path()));
    assert!(message.contains("holds no run"), "{message}");
    refusal(Run::open(&folder.path().join("missing")));

    let file = folder.path().join("thesis.tex");
    write_synced(&file, b"precious").expect("file");
    let message = refusal(RunWriter::create_or_resume(folder.path(), manifest(1)));
    assert!(message.contains("not empty"), "{message}");
    let message = refusal(RunWriter::create_or_resume(&file, manifest(1)));
    assert!(message.contains("a file is in the way"), "{message}");
    assert_eq!(fs::read_dir(folder.path()).expect("list").count(), 1);
}

#[test]
fn missing_newer_and_truncated_files() {
    let folder = tempfile::tempdir().expect("folder");
    let run = folder.path();
    finished(run, 2);
    let with = |name: &str, bytes: Option<&[u8]>, check: &dyn Fn(&Path)| {
        let path = run.join(name);
        let good = fs::read(&path).expect("file");
        match bytes {
            Some(bytes) => write_synced(&path, bytes).expect("damage"),
            None => fs::remove_file(&path).expect("remove"),
        }
        check(run);
        write_synced(&path, &good).expect("mend");
    };
    let refused = |part: &'static str| {
        move |run: &Path| {
            let message = refusal(Run::open(run).and_then(|run| run.show()));
            assert!(message.contains(part), "{message} lacks {part}");
            let message = refusal(RunWriter::create_or_resume(run, manifest(2)));
            assert!(message.contains(part), "{message} lacks {part}");
        }
    };
    with("heads.parquet", None, &refused("heads.parquet"));
    with("steps.parquet", Some(b""), &refused("steps.parquet"));
    with("prompts.parquet", Some(b"PAR1"), &refused("prompts.parquet"));
    let layers = fs::read(run.join("layers.parquet")).expect("file");
    with("tokens.parquet", Some(&layers), &refused("column"));
    with(MANIFEST, Some(b"{"), &refused("manifest.json"));
    with(MANIFEST, Some(b"[]"), &refused("schema"));
    let newer = json!({"schema": SCHEMA_VERSION + 1}).to_string();
    with(MANIFEST, Some(newer.as_bytes()), &refused("newer layerscope"));

    // Tables of another run: each file is valid, but they do not match.
    let other = tempfile::tempdir().expect("folder");
    finished(other.path(), 1);
    let fewer = fs::read(other.path().join("prompts.parquet")).expect("file");
    with("prompts.parquet", Some(&fewer), &|run| {
        assert!(refusal(Run::open(run)).contains("\"q1\""));
    });
    let fewer = fs::read(other.path().join("heads.parquet")).expect("file");
    with("heads.parquet", Some(&fewer), &|run| {
        let message = refusal(Run::open(run).and_then(|run| run.prompt("q1")));
        assert!(message.contains("0 rows instead of 6"), "{message}");
    });
}

#[test]
fn records_that_do_not_fit_the_model_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("create");
    let error = writer.append(&sized_record(0, LAYERS + 1, HEADS, 5, 6)).expect_err("four layers");
    assert_eq!(error.exit_code(), 1);
    writer.append(&record(0)).expect("append");
    writer.append(&record(0)).expect_err("twice");
    writer.append(&record(7)).expect_err("not of this run");
    writer.fail("q7", &Error::input("…")).expect_err("not of this run");
}

/// Reads everything.
fn read_all(run: &Path) -> Result<(), Error> {
    let run = Run::open(run)?;
    for id in run.prompt_ids() {
        run.prompt(id)?;
        run.steps(id)?;
        run.reads(id)?;
        run.tokens(id)?;
    }
    Ok(())
}

#[test]
fn flipped_and_lost_bytes_never_panic() {
    let whole = tempfile::tempdir().expect("folder");
    finished(whole.path(), 2);
    // The decoder's panics are caught; their messages would clutter the test's output.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut refused = 0;
    for round in 0..1_500 {
        let name = Table::ALL[round % Table::ALL.len()].file_name();
        let path = whole.path().join(name);
        let good = fs::read(&path).expect("file");
        let mut bad = good.clone();
        for _ in 0..=random(3) {
            let at = random(bad.len());
            bad[at] = random(256) as u8;
        }
        if round % 10 == 0 {
            bad.truncate(random(bad.len()));
        }
        fs::write(&path, bad).expect("damage");
        if let Err(error) = read_all(whole.path()) {
            assert_eq!(error.exit_code(), 2, "{error}");
            refused += 1;
        }
        fs::write(&path, good).expect("mend");
    }
    std::panic::set_hook(hook);
    read_all(whole.path()).expect("whole again");
    assert!(refused > 500, "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn no_manifest_panics(cut in 0_usize..1_000, at in 0_usize..1_000, byte in any::<u8>()) {
        let folder = tempfile::tempdir().expect("folder");
        let mut bytes = manifest(2).to_json().expect("json");
        let length = bytes.len();
        bytes[at % length] = byte;
        bytes.truncate(length - cut.saturating_sub(900));
        write_synced(&folder.path().join(MANIFEST), &bytes).expect("file");
        if let Ok(run) = Run::open(folder.path()) {
            prop_assert!(run.prompt_ids().is_empty());
        }
    }
}

/// A dictionary lets a small file repeat a long text in every row: 40,000 rows of 64 KiB are 2.6 GB.
#[test]
fn rows_that_repeat_a_long_text_take_no_memory_for_it() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("tokens.parquet");
    let rows = 40_000;
    let long = "x".repeat(64 << 10);
    let mut texts = StringViewBuilder::new().with_deduplicate_strings();
    (0..rows).for_each(|_| texts.append_value(&long));
    let ids = StringViewArray::from_iter_values(std::iter::repeat_n("q0", rows));
    let columns: Vec<_> = Table::Tokens
        .columns()
        .into_iter()
        .filter(|c| ["prompt_id", "token_text"].contains(&c.name))
        .collect();
    let batch = RecordBatch::try_from_iter([
        ("prompt_id", Arc::new(ids) as ArrayRef),
        ("token_text", Arc::new(texts.finish()) as ArrayRef),
    ]);
    let batch = batch.expect("batch");
    // Without Arrow's own schema the texts are plain ones.
    let options = ArrowWriterOptions::new().with_skip_arrow_metadata(true);
    let file = fs::File::create(&path).expect("file");
    let mut writer = ArrowWriter::try_new_with_options(file, batch.schema(), options).expect("writer");
    writer.write(&batch).expect("write");
    writer.close().expect("close");
    assert!(fs::metadata(&path).expect("file").len() < 1 << 20);
    let table = TableFile::open(path, &columns).expect("table").expect("a file");
    let read = PromptRows::read(&table, "q0", &[]).expect("rows");
    assert_eq!(read.len(), rows);
    assert_eq!(read.texts("prompt_id").expect("ids").len(), rows);
    let message = refusal(read.texts("token_text"));
    assert!(message.contains("too many values"), "{message}");
}
