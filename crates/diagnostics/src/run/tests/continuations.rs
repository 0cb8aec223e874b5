//! `continuations.json`: entries are read as written, and invalid files are rejected.

use std::fs;
use std::path::Path;

use layerscope_engine::Repetition;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::*;
use super::hostile::refusal;
use super::sample::*;

fn entry(prompt: usize, policy: &str, kl: f64) -> Continuation {
    Continuation {
        prompt_id: format!("q{prompt}"),
        policy: policy.into(),
        max_new_tokens: 14,
        generated: [3; 14].to_vec(),
        generated_token_text: vec!["☃".into(); 14],
        generated_text: "☃".repeat(14),
        kl,
        first_difference: Some(2),
        repetition: Some(Repetition { period: 1, rounds: 14 }),
    }
}

fn put(folder: &Path, entries: &[Continuation]) {
    let run = Run::open(folder).expect("open");
    let mut writer = ContinuationsWriter::open(&run).expect("writer");
    for entry in entries {
        writer.put(entry.clone()).expect("put");
    }
}

fn read(folder: &Path) -> Option<Continuations> {
    Run::open(folder).expect("open").continuations().expect("sound")
}

/// The error on reading, and on opening for writing, a file of these bytes.
fn refused(folder: &Path, bytes: &[u8]) -> String {
    let path = folder.join(CONTINUATIONS);
    fs::write(&path, bytes).expect("damage");
    let run = Run::open(folder).expect("the run itself is sound");
    let message = refusal(run.continuations());
    assert_eq!(refusal(ContinuationsWriter::open(&run)), message);
    assert!(message.contains(CONTINUATIONS), "{message}");
    assert_eq!(fs::read(&path).expect("file"), bytes, "it is left as it is");
    message
}

#[test]
fn entries_are_read_back_added_and_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 3);
    assert!(read(folder.path()).is_none());

    let whole = Continuation { first_difference: None, repetition: None, ..entry(2, "speed:2+bos", 0.25) };
    let exact = 0.1 + 0.2;
    put(folder.path(), &[entry(0, "speed:2+bos", exact), entry(0, "speed:1", f64::NAN), whole.clone()]);
    let found = read(folder.path()).expect("written");
    assert_eq!((found.schema, found.layerscope.as_str()), (1, env!("CARGO_PKG_VERSION")));
    assert_eq!(found.find("q0", "speed:2+bos"), Some(&entry(0, "speed:2+bos", exact)));
    assert_eq!(found.find("q2", "speed:2+bos"), Some(&whole));
    assert!(found.find("q0", "speed:1").expect("there").kl.is_nan());
    assert_eq!(found.find("q1", "speed:1"), None);

    put(folder.path(), &[entry(0, "speed:2+bos", 0.125), entry(1, "speed:2+bos", f64::NAN)]);
    let found = read(folder.path()).expect("written");
    assert_eq!(found.entries.len(), 4);
    let ids: Vec<&str> =
        found.of_policy("speed:2+bos").iter().map(|entry| entry.prompt_id.as_str()).collect();
    assert_eq!(ids, ["q2", "q0", "q1"]);
}

#[test]
fn one_writes_at_a_time_and_a_run_resumes_beside_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    put(folder.path(), &[entry(1, "speed:2", 0.5)]);
    let run = Run::open(folder.path()).expect("open");
    let writer = ContinuationsWriter::open(&run).expect("writer");
    assert!(refusal(ContinuationsWriter::open(&run)).contains("another recording"));
    assert!(refusal(RunWriter::create_or_resume(folder.path(), manifest(2))).contains("another recording"));
    drop(writer);
    let resumed = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("resume");
    assert!(refusal(ContinuationsWriter::open(&run)).contains("another recording"));
    drop(resumed);
    assert_eq!(read(folder.path()).expect("kept").entries.len(), 1);
}

#[test]
fn damaged_newer_and_foreign_files_are_refused() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    for (bytes, part) in [
        (&b""[..], "delete it"),
        (b"[]", "schema"),
        (b"{\"schema\": 0}", "schema"),
        (b"{\"schema\": 1}", "layerscope"),
        (b"{\"schema\": 2, \"runs\": []}", "newer layerscope"),
    ] {
        let message = refused(folder.path(), bytes);
        assert!(message.contains(part), "{message} lacks {part}");
    }
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut file = json!({"schema": 1, "layerscope": "0.1.0", "entries": [entry(0, "speed:2", 0.5), entry(1, "speed:2", 0.5)]});
        change(&mut file);
        refused(folder.path(), &serde_json::to_vec(&file).expect("json"))
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let changes: [(Change<'_>, &str); 9] = [
        (&|file| file["entries"][1]["prompt_id"] = "q0".into(), "\"q0\" occurs twice under speed:2"),
        (&|file| file["entries"][1]["prompt_id"] = "q2".into(), "no prompt \"q2\""),
        (&|file| file["entries"][0]["generated"] = json!([1]), "texts"),
        (&|file| file["entries"][0]["generated"][0] = json!(-1), "integer"),
        (&|file| file["entries"][0]["first_difference"] = json!(14), "after the end"),
        (&|file| file["entries"][0]["repetition"]["rounds"] = json!(15), "loop"),
        (&|file| file["entries"][0]["repetition"]["period"] = json!(u64::MAX), "loop"),
        (&|file| file["entries"][0]["repetition"]["period"] = json!(0), "loop"),
        (&|file| file["entries"][0]["kl"] = "much".into(), "f64"),
    ];
    for (change, part) in changes {
        let message = changed(change);
        assert!(message.contains(part), "{message} lacks {part}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_damage_panics(at in any::<prop::sample::Index>(), byte: u8, cut in any::<prop::sample::Index>()) {
        let folder = tempfile::tempdir().expect("folder");
        finished(folder.path(), 1);
        put(folder.path(), &[entry(0, "speed:2", 0.5)]);
        let path = folder.path().join(CONTINUATIONS);
        let mut bytes = fs::read(&path).expect("file");
        let (at, cut) = (at.index(bytes.len()), cut.index(bytes.len()));
        bytes[at] = byte;
        bytes.truncate(bytes.len() - cut / 8);
        fs::write(&path, &bytes).expect("damage");
        let run = Run::open(folder.path()).expect("open");
        if let Err(error) = run.continuations() {
            prop_assert_eq!(error.exit_code(), 2);
        }
    }
}
