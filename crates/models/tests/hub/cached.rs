//! A filled cache: online, offline, and with an unreachable Hub.

use crate::server::{COMMIT, Fault, NEWER_COMMIT};
use crate::{Bench, ID, Told, assert_holds, checkpoint, gguf, hub};
use layerscope_models::{Error, ErrorKind, fetch};
use std::sync::atomic::AtomicBool;

#[test]
fn what_is_here_costs_one_request_and_a_commit_none() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let first = bench.fetch(ID).unwrap();
    bench.hub.log();
    assert_eq!(bench.fetch(ID).unwrap(), first);
    let log = bench.hub.log();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].path.starts_with("/api/models/"));
    assert_eq!(bench.fetch(&format!("{ID}/model-Q8_0.gguf@{COMMIT}")).unwrap(), first);
    assert!(bench.hub.log().is_empty());
}

#[test]
fn offline_the_complete_copy_is_used_without_a_request() {
    let mut bench = Bench::new();
    bench.hub.has(ID, COMMIT, &checkpoint());
    let online = bench.fetch(ID).unwrap();
    bench.hub.log();
    bench.offline();
    assert_eq!(bench.fetch(ID).unwrap(), online);

    std::fs::remove_file(online.join("model-00002-of-00002.safetensors")).unwrap();
    let incomplete = bench.error(ID);
    assert_eq!(incomplete.kind(), ErrorKind::Input);
    let incomplete = incomplete.to_string();
    assert!(incomplete.contains("HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set"), "{incomplete}");
    assert!(incomplete.contains("model-00002-of-00002.safetensors is missing"), "{incomplete}");
    let absent = bench.error("other/model").to_string();
    assert!(absent.contains("no copy of other/model at main"), "{absent}");
    let file = bench.error(&format!("{ID}:Q8_0")).to_string();
    assert!(file.contains("the copy of owner/model has no GGUF file with Q8_0"), "{file}");
    assert!(bench.hub.log().is_empty());
}

#[test]
fn where_the_hub_is_away_the_copy_is_used_and_a_note_says_so() {
    let mut bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let online = bench.fetch(ID).unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    bench.places.hub.endpoint = format!("http://127.0.0.1:{port}");
    let mut told = Told::default();
    let path = fetch(&hub(ID), &bench.places, &mut |p| told.hear(p), &AtomicBool::new(false)).unwrap();
    assert_eq!(path, online);
    assert_eq!(told.notes.len(), 1);
    assert!(told.notes[0].contains("cannot reach 127.0.0.1"), "{:?}", told.notes);
    assert!(told.notes[0].ends_with("using the copy on this disk"), "{:?}", told.notes);
    let error = bench.error("other/model");
    assert_eq!(error.kind(), ErrorKind::Failure);
    assert!(error.to_string().contains("check the network"), "{error}");
}

#[test]
fn an_interrupted_update_leaves_the_older_copy_for_offline_use() {
    let mut bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let older = bench.fetch(ID).unwrap();
    let newer = [("model-Q8_0.gguf", crate::content(2 << 20, 9))];
    bench.hub.has(ID, NEWER_COMMIT, &newer);
    bench.hub.fail("/cdn/", 1, Fault::Slow);
    let stop = AtomicBool::new(false);
    let stopped = fetch(
        &hub(ID),
        &bench.places,
        &mut |_| stop.store(true, std::sync::atomic::Ordering::Relaxed),
        &stop,
    );
    assert!(matches!(stopped, Err(Error::Interrupted)));
    bench.offline();
    assert_eq!(bench.fetch(ID).unwrap(), older);
}

#[test]
fn a_link_whose_blob_is_gone_is_fetched_again() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let path = bench.fetch(ID).unwrap();
    std::fs::remove_file(path.canonicalize().unwrap()).unwrap();
    assert_holds(bench.fetch(ID).unwrap(), &gguf()[1].1);
    // A truncated file is detected by its length.
    let blob = path.canonicalize().unwrap();
    std::fs::write(&blob, b"short").unwrap();
    assert_holds(bench.fetch(ID).unwrap(), &gguf()[1].1);
}

/// Read-only caches of other users work.
#[test]
fn a_complete_copy_is_used_without_writing() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &checkpoint());
    let path = bench.fetch(ID).unwrap();
    let locks = bench.cache().join(".locks");
    std::fs::remove_dir_all(&locks).unwrap();
    let reference = bench.repository().join("refs/main");
    let written = || std::fs::metadata(&reference).unwrap().modified().unwrap();
    let before = written();
    assert_eq!(bench.fetch(ID).unwrap(), path);
    assert!(!locks.exists());
    assert_eq!(written(), before);
}
