//! Broken connections, failing servers and interrupts.

use crate::server::{COMMIT, Fault, sha256};
use crate::{Bench, ID, Told, assert_holds, gguf, hub};
use layerscope_models::{Error, ErrorKind, Progress, fetch};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The ranges of the downloads so far; empty for a whole file.
fn ranges(bench: &Bench) -> Vec<String> {
    bench.hub.downloads().into_iter().map(|request| request.range.unwrap_or_default()).collect()
}

fn model() -> Vec<u8> {
    gguf()[1].1.clone()
}

fn bench() -> Bench {
    let bench = Bench::new();
    bench.hub.has(ID, COMMIT, &gguf());
    bench
}

#[test]
fn ctrl_c_keeps_what_is_here_and_the_next_fetch_asks_for_the_rest() {
    let bench = bench();
    bench.hub.fail("/cdn/", 1, Fault::Slow);
    let stop = AtomicBool::new(false);
    let mut stop_late = |progress: Progress<'_>| {
        if let Progress::Bytes { done, .. } = progress {
            stop.store(done > 1_000_000, Ordering::Relaxed);
        }
    };
    let stopped = fetch(&hub(ID), &bench.places, &mut stop_late, &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)));
    let kept = bench.partial_length();
    assert!(kept > 1_000_000 && kept < model().len() as u64);
    assert_eq!(ranges(&bench), [""]);

    let mut told = Told::default();
    let path = fetch(&hub(ID), &bench.places, &mut |p| told.hear(p), &AtomicBool::new(false)).unwrap();
    assert_holds(path, &model());
    assert_eq!(ranges(&bench), [format!("bytes={kept}-")]);
    assert!(told.bytes.iter().all(|(_, done, _)| *done > kept), "{:?}", told.bytes);
}

#[test]
fn ctrl_c_is_heard_while_a_server_is_silent() {
    for (part, silence) in [("/api/", 10), ("/cdn/", 500_000)] {
        let bench = bench();
        bench.hub.fail(part, 1, Fault::Silence(silence));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while bench.hub.asked(part) == 0 {
                    std::thread::sleep(Duration::from_millis(10));
                }
                std::thread::sleep(Duration::from_millis(200));
                stop.store(true, Ordering::Relaxed);
            });
            let stopped = fetch(&hub(ID), &bench.places, &mut |_| {}, &stop);
            assert!(matches!(stopped, Err(Error::Interrupted)), "{part}: {stopped:?}");
        });
        // The interrupt ended it, not the timeout: there was no second attempt.
        assert_eq!(bench.hub.asked(part), 1, "{part}");
    }
}

#[test]
fn a_server_that_stops_in_the_middle_is_asked_for_the_rest() {
    let bench = bench();
    bench.hub.fail("/cdn/", 1, Fault::Cut(1_500_000));
    bench.hub.fail("/cdn/", 1, Fault::Cut(100_000));
    let path = bench.fetch(ID).unwrap();
    assert_holds(path, &model());
    assert_eq!(ranges(&bench), ["", "bytes=1500000-", "bytes=1600000-"]);
}

#[test]
fn a_server_that_falls_silent_is_asked_again() {
    let mut bench = bench();
    bench.places.hub.timeout = Duration::from_secs(1);
    bench.hub.fail("/cdn/", 1, Fault::Silence(1_000_000));
    let path = bench.fetch(ID).unwrap();
    assert_holds(path, &model());
    assert_eq!(ranges(&bench), ["", "bytes=1000000-"]);
}

#[test]
fn a_server_that_breaks_off_always_is_given_up_and_the_bytes_are_kept() {
    let bench = bench();
    bench.hub.fail("/cdn/", 1, Fault::Cut(2_000_000));
    bench.hub.fail("/cdn/", 99, Fault::Cut(0));
    let error = bench.error(ID);
    assert_eq!(error.kind(), ErrorKind::Failure);
    let error = error.to_string();
    assert!(error.contains("broke while fetching model-Q8_0.gguf of owner/model"), "{error}");
    assert!(error.contains("it goes on from there"), "{error}");
    assert_eq!(bench.partial_length(), 2_000_000);
    assert!(ranges(&bench).len() < 10);
}

#[test]
fn overload_is_waited_for() {
    let bench = bench();
    bench.hub.fail("/api/", 2, Fault::Status(503, &[("Retry-After", "0")]));
    bench.hub.fail("/resolve/", 1, Fault::Status(429, &[("Retry-After", "0")]));
    bench.hub.fail("/cdn/", 1, Fault::Status(500, &[]));
    let path = bench.fetch(ID).unwrap();
    assert_holds(path, &model());
}

#[test]
fn overload_without_end_is_given_up() {
    let bench = bench();
    bench.hub.fail(
        "/api/",
        99,
        Fault::Status(503, &[("Retry-After", "0"), ("X-Error-Message", "maintenance")]),
    );
    let error = bench.error(ID);
    assert_eq!(error.kind(), ErrorKind::Failure);
    let error = error.to_string();
    assert!(error.contains("owner/model (status 503, maintenance); try again later"), "{error}");
    assert_eq!(bench.hub.log().len(), 5);
}

#[test]
fn a_wrong_checksum_deletes_the_file_and_says_so() {
    let bench = bench();
    bench.hub.fail("/cdn/", 1, Fault::Damage);
    let error = bench.error(ID);
    assert_eq!(error.kind(), ErrorKind::Failure);
    let error = error.to_string();
    assert!(error.contains("model-Q8_0.gguf of owner/model arrived damaged and was deleted"), "{error}");
    assert!(bench.partials().is_empty());
    assert!(!bench.repository().join("snapshots").join(COMMIT).join("model-Q8_0.gguf").exists());
    assert_holds(bench.fetch(ID).unwrap(), &model());

    // Small files have git's SHA-1.
    std::fs::remove_dir_all(bench.cache()).unwrap();
    bench.hub.has(ID, COMMIT, &crate::checkpoint());
    bench.hub.fail("/config.json", 1, Fault::Damage);
    let error = bench.error(ID).to_string();
    assert!(error.contains("config.json of owner/model arrived damaged"), "{error}");
}

/// Writes a partial file into the cache, as an interrupted fetch does.
fn with_partial(bench: &Bench, bytes: &[u8]) {
    let blobs = bench.repository().join("blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    std::fs::write(blobs.join(format!("{}.incomplete", sha256(&model()))), bytes).unwrap();
}

#[test]
fn servers_without_ranges_begin_anew() {
    let bench = bench();
    with_partial(&bench, &model()[..1000]);
    bench.hub.fail("/cdn/", 1, Fault::NoRanges);
    assert_holds(bench.fetch(ID).unwrap(), &model());
    assert_eq!(ranges(&bench), ["bytes=1000-"]);
}

#[test]
fn another_range_than_asked_for_is_not_taken() {
    let bench = bench();
    with_partial(&bench, &model()[..1000]);
    bench.hub.fail("/cdn/", 1, Fault::OtherRange);
    let error = bench.error(ID).to_string();
    assert!(error.contains("not a Hugging Face Hub's (another part of the file)"), "{error}");
    assert_holds(bench.fetch(ID).unwrap(), &model());
}

#[test]
fn partial_files_that_are_whole_too_long_or_damaged_are_dealt_with() {
    let bench = bench();
    with_partial(&bench, &model());
    assert_holds(bench.fetch(ID).unwrap(), &model());
    assert!(ranges(&bench).is_empty());

    std::fs::remove_dir_all(bench.cache()).unwrap();
    with_partial(&bench, &[&model()[..], b"more"].concat());
    assert_holds(bench.fetch(ID).unwrap(), &model());
    assert_eq!(ranges(&bench), [""]);

    std::fs::remove_dir_all(bench.cache()).unwrap();
    with_partial(&bench, b"something else");
    assert!(bench.error(ID).to_string().contains("arrived damaged and was deleted"));
    assert_holds(bench.fetch(ID).unwrap(), &model());
}

#[test]
fn two_fetches_at_once_download_once() {
    let bench = bench();
    bench.hub.fail("/cdn/", 2, Fault::Slow);
    let fetched: Vec<_> = std::thread::scope(|scope| {
        let fetch_one = || {
            let mut told = Told::default();
            let path =
                fetch(&hub(ID), &bench.places, &mut |p| told.hear(p), &AtomicBool::new(false)).unwrap();
            (path, told.notes)
        };
        let both = [scope.spawn(fetch_one), scope.spawn(fetch_one)];
        both.map(|one| one.join().unwrap()).into_iter().collect()
    });
    assert_eq!(fetched[0].0, fetched[1].0);
    assert_holds(&fetched[0].0, &model());
    assert_eq!(ranges(&bench), [""]);
    let notes: Vec<&String> = fetched.iter().flat_map(|(_, notes)| notes).collect();
    assert!(
        notes.iter().all(|note| note.contains("another program is fetching model-Q8_0.gguf")),
        "{notes:?}"
    );
}

#[test]
fn ctrl_c_is_heard_while_another_fetch_has_the_lock() {
    let bench = bench();
    let digest = sha256(&model());
    let locks = bench.cache().join(".locks/models--owner--model");
    std::fs::create_dir_all(&locks).unwrap();
    let lock = std::fs::File::create(locks.join(format!("{digest}.lock"))).unwrap();
    lock.lock().unwrap();
    let stop = AtomicBool::new(false);
    let mut notes = 0;
    let mut stop_at_note = |progress: Progress<'_>| {
        notes += usize::from(matches!(progress, Progress::Note(_)));
        stop.store(true, Ordering::Relaxed);
    };
    assert!(matches!(fetch(&hub(ID), &bench.places, &mut stop_at_note, &stop), Err(Error::Interrupted)));
    assert_eq!(notes, 1);
}

#[test]
fn nonsense_is_told_as_such() {
    let bench = bench();
    for fault in [Fault::LoginPage, Fault::Gibberish] {
        bench.hub.fail("/api/", 1, fault);
        let error = bench.error(ID);
        assert_eq!(error.kind(), ErrorKind::Failure, "{error:?}");
        let error = error.to_string();
        assert!(error.contains("gave an answer for owner/model that is not a Hugging Face Hub's"), "{error}");
        assert!(error.contains("does the network ask for a login"), "{error}");
    }
    bench.hub.fail("/resolve/", 1, Fault::LoginPage);
    assert!(bench.error(ID).to_string().contains("model-Q8_0.gguf"));
}

#[test]
fn a_server_without_safe_connections_is_not_asked_again() {
    let mut bench = bench();
    let plain = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    bench.places.hub.endpoint = format!("https://{}", plain.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = plain.accept().unwrap();
        assert!(stream.read(&mut [0; 1024]).unwrap() > 0);
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let error = bench.error(ID);
    assert_eq!(error.kind(), ErrorKind::Failure);
    let error = error.to_string();
    assert!(error.contains("for owner/model is not safe"), "{error}");
    assert!(error.contains("SSL_CERT_FILE"), "{error}");
}

#[test]
fn a_name_that_is_not_known_is_told_as_such() {
    let mut bench = bench();
    bench.places.hub.endpoint = "http://no-such-host.invalid".to_owned();
    let error = bench.error(ID).to_string();
    assert!(error.contains("cannot reach no-such-host.invalid for owner/model"), "{error}");
}
