//! Successful fetches.

use crate::server::{COMMIT, NEWER_COMMIT, git_sha1, sha256};
use crate::{Bench, ID, Told, assert_holds, checkpoint, content, gguf, hub};
use layerscope_models::fetch;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

#[test]
fn a_gguf_file_goes_into_the_cache_as_the_python_library_lays_it_out() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let path = bench.fetch(ID).unwrap();
    let repository = bench.repository();
    assert_eq!(path, repository.join("snapshots").join(COMMIT).join("model-Q8_0.gguf"));
    let bytes = &gguf()[1].1;
    assert_holds(&path, bytes);
    let digest = sha256(bytes);
    #[cfg(unix)]
    assert_eq!(std::fs::read_link(&path).unwrap(), PathBuf::from(format!("../../blobs/{digest}")));
    assert!(repository.join("blobs").join(&digest).is_file());
    assert_eq!(std::fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    assert!(bench.cache().join(format!(".locks/models--owner--model/{digest}.lock")).is_file());
    assert!(bench.partials().is_empty());
}

#[test]
fn one_request_lists_and_one_fetches_and_the_other_host_never_sees_the_token() {
    let mut bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    bench.token("hf_good");
    bench.fetch(&format!("{ID}:Q8_0")).unwrap();
    let log = bench.hub.log();
    let paths: Vec<&str> = log.iter().map(|request| request.path.as_str()).collect();
    let digest = sha256(&gguf()[1].1);
    let resolve = format!("/{ID}/resolve/{COMMIT}/model-Q8_0.gguf");
    assert_eq!(
        paths,
        [&format!("/api/models/{ID}/revision/main?blobs=true"), &resolve, &format!("/cdn/{digest}")]
    );
    assert!(log[2].host.starts_with("localhost"));
    let token = Some("Bearer hf_good");
    assert_eq!(log[0].authorization.as_deref(), token);
    assert_eq!(log[1].authorization.as_deref(), token);
    assert_eq!(log[2].authorization, None);
    assert!(log.iter().all(|request| request.range.is_none()));
}

#[test]
fn a_checkpoint_is_its_companions_and_the_shards_of_its_index() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &checkpoint());
    let mut told = Told::default();
    let snapshot = fetch(&hub(ID), &bench.places, &mut |p| told.hear(p), &AtomicBool::new(false)).unwrap();
    assert_eq!(snapshot, bench.repository().join("snapshots").join(COMMIT));
    let mut names: Vec<String> = std::fs::read_dir(&snapshot)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "chat_template.jinja",
            "config.json",
            "generation_config.json",
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
    );
    for (name, bytes) in checkpoint().iter().filter(|(name, _)| names.iter().any(|n| n == name)) {
        assert_holds(snapshot.join(name), bytes);
    }
    let git = git_sha1(b"{}");
    assert!(bench.repository().join("blobs").join(git).is_file());

    // Weights come last, and the reported bytes end at the total.
    let (last, done, all) = told.bytes.last().unwrap();
    assert_eq!((last.as_str(), done), ("model-00002-of-00002.safetensors", all));
    let sum: usize =
        checkpoint().iter().filter(|(n, _)| names.iter().any(|m| m == n)).map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(*all, sum as u64);
    let of_all: Vec<u64> =
        told.bytes.iter().filter(|(_, _, of)| of == all).map(|(_, done, _)| *done).collect();
    assert!(of_all.is_sorted(), "{of_all:?}");
    assert!(told.notes.is_empty(), "{:?}", told.notes);
}

#[test]
fn a_file_in_a_folder_and_one_of_a_commit_are_found() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &[("sub/a b-F16.gguf", content(1000, 7)), ("c-Q4_K_M.gguf", vec![])]);
    let path = bench.fetch(&format!("{ID}/sub/a b-F16.gguf")).unwrap();
    assert_holds(&path, &content(1000, 7));
    #[cfg(unix)]
    assert!(std::fs::read_link(&path).unwrap().starts_with("../../../blobs"));
    let path = bench.fetch(&format!("{ID}@{COMMIT}")).unwrap();
    assert!(path.ends_with("c-Q4_K_M.gguf"));
    assert_holds(&path, &[]);
}

#[test]
fn a_newer_commit_fetches_only_what_changed() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &checkpoint());
    bench.fetch(ID).unwrap();
    let mut newer = checkpoint();
    newer.iter_mut().find(|(name, _)| *name == "config.json").unwrap().1 = b"{\"new\": 1}".to_vec();
    bench.hub.has(ID, NEWER_COMMIT, &newer);
    bench.hub.log();
    let snapshot = bench.fetch(ID).unwrap();
    assert!(snapshot.ends_with(NEWER_COMMIT));
    let log = bench.hub.log();
    let paths: Vec<&str> = log.iter().map(|request| request.path.as_str()).collect();
    assert_eq!(paths.len(), 2, "{paths:?}");
    assert!(paths[1].ends_with(&format!("{NEWER_COMMIT}/config.json")));
    assert_eq!(std::fs::read_to_string(bench.repository().join("refs/main")).unwrap(), NEWER_COMMIT);
    assert!(Path::new(&snapshot).join("model-00002-of-00002.safetensors").is_file());
}
