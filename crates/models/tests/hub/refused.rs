//! Error statuses, each reported as one sentence that names the model and the remedy.

use crate::server::{COMMIT, Fault, GOOD_TOKEN, Hub};
use crate::{Bench, ID, checkpoint, gguf};
use layerscope_models::{Error, ErrorKind};

fn input(error: Error) -> String {
    assert_eq!(error.kind(), ErrorKind::Input, "{error:?}");
    error.to_string()
}

fn has(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
    assert!(!sentence.contains('\n'), "{sentence}");
}

#[test]
fn absent_and_private_models_look_alike() {
    let bench = Bench::new();
    let sentence = input(bench.error("owner/typo"));
    has(&sentence, &["has no model owner/typo", "or it is private", "HF_TOKEN", "token"]);
    bench.hub.fail("/api/", 1, Fault::Status(404, &[]));
    has(&input(bench.error("owner/typo")), &["has no model owner/typo"]);
}

#[test]
fn gated_models_say_how_to_get_in() {
    let mut bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    bench.hub.change(ID, |repository| repository.gated = true);
    let endpoint = bench.hub.endpoint();
    let access = format!("access at {endpoint}/{ID}");
    let without = input(bench.error(ID));
    has(&without, &["owner/model is gated", &access, "/settings/tokens", "HF_TOKEN"]);
    bench.token("hf_other");
    has(&input(bench.error(ID)), &["is gated and the token in HF_TOKEN", "has no access"]);
    bench.token("hf_good");
    bench.fetch(ID).unwrap();

    // The Hub may already refuse the listing.
    bench.hub.fail("/api/", 1, Fault::Status(403, &[("X-Error-Code", "GatedRepo")]));
    std::fs::remove_dir_all(bench.cache()).unwrap();
    has(&input(bench.error(ID)), &["owner/model is gated"]);
}

#[test]
fn bad_tokens_are_named() {
    let mut bench = Bench::new();
    let message = [("X-Error-Message", "Invalid credentials in Authorization header")];
    bench.hub.fail("/api/", 1, Fault::Status(401, Box::leak(Box::new(message))));
    bench.token("hf_old");
    let sentence = input(bench.error(ID));
    has(&sentence, &["does not accept the token", "settings/tokens"]);
    assert!(!sentence.contains("hf_old"));
    bench.token("two words");
    has(&input(bench.error(ID)), &["blanks or other characters", "copy it again"]);
}

#[test]
fn absent_revisions_and_files_are_named() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    has(&input(bench.error(&format!("{ID}@v9"))), &["owner/model has no revision v9", "tree/main"]);
    let near = input(bench.error(&format!("{ID}/model-Q8_1.gguf")));
    has(&near, &["owner/model has no file model-Q8_1.gguf", "did you mean model-Q8_0.gguf"]);
    let quantization = input(bench.error(&format!("{ID}:Q2_K")));
    has(&quantization, &["no GGUF file with Q2_K", "model-Q8_0.gguf (3.0 MiB)"]);
    let entry = Fault::Status(404, &[("X-Error-Code", "EntryNotFound")]);
    bench.hub.fail("/resolve/", 1, entry);
    has(&input(bench.error(ID)), &["model-Q8_0.gguf of owner/model is not there any more"]);
}

#[test]
fn repositories_without_a_whole_model_say_what_they_have() {
    let bench = Bench::new();
    let without_tokenizer: Vec<_> =
        checkpoint().into_iter().filter(|(name, _)| *name != "tokenizer.json").collect();
    bench.hub.has(ID, COMMIT, &without_tokenizer);
    has(&input(bench.error(ID)), &["tokenizer.json missing", "pytorch_model.bin"]);
    let one_shard: Vec<_> =
        checkpoint().into_iter().filter(|(name, _)| !name.starts_with("model-00002")).collect();
    bench.hub.has(ID, COMMIT, &one_shard);
    has(&input(bench.error(ID)), &["incomplete on the Hub", "model-00002-of-00002.safetensors"]);
    let parts = [("x-00001-of-00002.gguf", vec![1]), ("x-00002-of-00002.gguf", vec![2])];
    bench.hub.has(ID, COMMIT, &parts);
    has(&input(bench.error(ID)), &["split into 2 files", "llama-gguf-split --merge"]);
    assert!(bench.hub.downloads().is_empty());
}

#[test]
fn settings_that_make_no_sense_are_named() {
    let mut bench = Bench::new();
    bench.places.hub.certificates = Some(bench.folder.path().join("absent.pem"));
    has(&input(bench.error(ID)), &["SSL_CERT_FILE", "absent.pem"]);
    std::fs::write(bench.folder.path().join("empty.pem"), "no certificate").unwrap();
    bench.places.hub.certificates = Some(bench.folder.path().join("empty.pem"));
    has(&input(bench.error(ID)), &["no certificate in PEM form"]);
    bench.places.hub.certificates = None;
    bench.places.hub.endpoint = "huggingface.co".to_owned();
    has(&input(bench.error(ID)), &["HF_ENDPOINT is huggingface.co", "https://"]);
    bench.places.hub.endpoint = "https://a b".to_owned();
    assert!(bench.error(ID).to_string().contains("a b"));
    bench.places.hub.cache = None;
    has(&input(bench.error(ID)), &["HF_HOME"]);
}

/// A redirect of the next request whose path contains `part`.
fn redirect(hub: &Hub, part: &str, location: String) {
    let location: &'static str = Box::leak(location.into_boxed_str());
    hub.fail(part, 1, Fault::Status(307, Box::leak(Box::new([("Location", location)]))));
}

#[test]
fn the_token_stays_with_the_hub() {
    let mut bench = Bench::new();
    bench.token(GOOD_TOKEN);
    let other = Hub::start();
    for hub in [&bench.hub, &other] {
        hub.has(ID, COMMIT, &gguf());
    }
    // Another port of the same host is another server.
    let elsewhere = other.endpoint();
    redirect(&bench.hub, "/api/", format!("{elsewhere}/api/models/{ID}/revision/main?blobs=true"));
    redirect(&bench.hub, "/resolve/", format!("{elsewhere}/{ID}/resolve/{COMMIT}/model-Q8_0.gguf"));
    bench.fetch(ID).unwrap();
    let asked = other.log();
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(asked.iter().all(|request| request.authorization.is_none()), "{asked:?}");
    // The same port, as for a repository that was renamed.
    std::fs::remove_dir_all(bench.cache()).unwrap();
    bench.hub.change(ID, |repository| repository.gated = true);
    redirect(&bench.hub, "/resolve/", format!("/{ID}/resolve/main/model-Q8_0.gguf"));
    bench.fetch(ID).unwrap();
}

#[test]
fn redirects_without_end_are_refused() {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    let location = Box::leak(Box::new([("Location", "/api/models/owner/model/revision/main")]));
    bench.hub.fail("/api/", 100, Fault::Status(302, location));
    has(&bench.error(ID).to_string(), &["redirects without end", "HF_ENDPOINT"]);
}
