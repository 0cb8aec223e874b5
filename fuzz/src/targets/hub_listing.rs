//! The Hub's list of a repository's files, from a server on this machine.

use crate::Target;
use crate::mutate::json;
use layerscope_models::{HubReference, Places, fetch};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

/// A list that is fetched from, with everything else missing.
pub const TARGET: Target = Target { name: "hub_listing", read, mutate: json::changed, seeds };

const COMMIT: &str = "0123456789012345678901234567890123456789";

/// The list that the server answers with, and the server's address.
static SERVER: LazyLock<(&'static Mutex<Vec<u8>>, String)> = LazyLock::new(|| {
    let listing: &'static Mutex<Vec<u8>> = Box::leak(Box::default());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port of this machine");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| _ = answer(stream, listing)));
    (listing, address)
});

/// Answers one request: the list, or that there is no such file.
fn answer(mut stream: TcpStream, listing: &Mutex<Vec<u8>>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let listing = listing.lock().unwrap_or_else(PoisonError::into_inner);
    let (status, body) = match head.first() {
        Some(request) if request.contains("/api/models/") => ("200 OK", listing.as_slice()),
        _ => ("404 Not Found", &b""[..]),
    };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(body)
}

fn read(input: &[u8]) {
    let (listing, address) = &*SERVER;
    *listing.lock().unwrap_or_else(PoisonError::into_inner) = input.to_vec();
    let scratch = tempfile::tempdir().expect("a folder for temporary files");
    let mut places = Places::from_variables(None, &|_| None);
    places.hub.endpoint.clone_from(address);
    places.hub.cache = Some(scratch.path().join("hub"));
    for text in ["o/n", "o/n:Q8_0"] {
        let reference = HubReference::parse(text).expect("a reference").expect("of the Hub");
        let _ = fetch(&reference, &places, &mut |_| {}, &AtomicBool::new(false));
    }
    let mut names =
        std::fs::read_dir(scratch.path()).expect("the folder").flatten().map(|entry| entry.file_name());
    assert!(names.all(|name| name == "hub"), "a file outside the cache");
}

fn seeds() -> Vec<Vec<u8>> {
    let file = |name: &str, size: usize| {
        format!(r#"{{"rfilename": "{name}", "size": {size}, "blobId": "{COMMIT}"}}"#)
    };
    let listing = |files: &[String]| {
        format!(r#"{{"sha": "{COMMIT}", "gated": false, "siblings": [{}]}}"#, files.join(", "))
    };
    let large = format!(
        r#"{{"rfilename": "x-Q8_0.gguf", "size": 9, "blobId": "{COMMIT}", "lfs": {{"sha256": "{}", "size": 9, "pointerSize": 130}}}}"#,
        "a".repeat(64)
    );
    let checkpoint = [
        ("config.json", 2),
        ("tokenizer.json", 2),
        ("model.safetensors.index.json", 90),
        ("model-1.safetensors", 4),
    ];
    let listings = [
        listing(&checkpoint.map(|(name, size)| file(name, size))),
        listing(std::slice::from_ref(&large)),
        listing(&[large, file("x-Q4_K_M.gguf", 7), file("mmproj-x.gguf", 7)]),
        listing(&[file("d/x-Q8_0-00001-of-00002.gguf", 3), file("d/x-Q8_0-00002-of-00002.gguf", 3)]),
    ];
    listings.map(String::into_bytes).to_vec()
}
