//! A local test Hub: lists files, redirects large ones to another host, supports ranges, logs requests, and
//! injects faults.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const COMMIT: &str = "1111111111111111111111111111111111111111";
pub const NEWER_COMMIT: &str = "2222222222222222222222222222222222222222";

/// A repository at one commit.
#[derive(Clone)]
pub struct Repository {
    pub commit: &'static str,
    pub files: BTreeMap<String, Vec<u8>>,
    /// Readable only with an accepted token.
    pub gated: bool,
    /// A false size for the listing.
    pub claimed_size: Option<u64>,
}

/// An injected fault.
#[derive(Clone)]
pub enum Fault {
    /// A status, with headers.
    Status(u16, &'static [(&'static str, &'static str)]),
    /// This many bytes of the body, then a closed connection.
    Cut(usize),
    /// This many bytes of the body, then silence.
    Silence(usize),
    /// The body in small chunks with pauses between.
    Slow,
    /// The body with a changed byte.
    Damage,
    /// The whole file, whatever range was requested.
    NoRanges,
    /// Another range than requested.
    OtherRange,
    /// A page that asks for a login.
    LoginPage,
    /// A response that is not HTTP.
    Gibberish,
}

/// A received request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub path: String,
    pub host: String,
    pub range: Option<String>,
    pub authorization: Option<String>,
}

struct Rule {
    part: String,
    times: usize,
    fault: Fault,
}

#[derive(Default)]
struct State {
    repositories: BTreeMap<String, Repository>,
    rules: Vec<Rule>,
    log: Vec<Request>,
}

/// The server; dropping this value stops it.
pub struct Hub {
    pub port: u16,
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
}

pub const GOOD_TOKEN: &str = "hf_good";

impl Hub {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, ended) = (Arc::new(Mutex::new(State::default())), Arc::new(AtomicBool::new(false)));
        let (states, ends) = (Arc::clone(&state), Arc::clone(&ended));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (state, ended) = (Arc::clone(&states), Arc::clone(&ends));
                std::thread::spawn(move || drop(serve(&stream, port, &state, &ended)));
            }
        });
        Self { port, state, ended }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Adds a repository, or its next commit.
    pub fn has(&self, id: &str, commit: &'static str, files: &[(&str, Vec<u8>)]) {
        let files = files.iter().map(|(name, content)| ((*name).to_owned(), content.clone())).collect();
        let repository = Repository { commit, files, gated: false, claimed_size: None };
        self.state.lock().unwrap().repositories.insert(id.to_owned(), repository);
    }

    pub fn change(&self, id: &str, change: impl Fn(&mut Repository)) {
        change(self.state.lock().unwrap().repositories.get_mut(id).unwrap());
    }

    /// Fails the next `times` requests whose path contains `part`.
    pub fn fail(&self, part: &str, times: usize, fault: Fault) {
        self.state.lock().unwrap().rules.push(Rule { part: part.to_owned(), times, fault });
    }

    /// The requests since the last call.
    pub fn log(&self) -> Vec<Request> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// The number of requests whose path contains `part`.
    pub fn asked(&self, part: &str) -> usize {
        self.state.lock().unwrap().log.iter().filter(|request| request.path.contains(part)).count()
    }

    /// The downloads of large files since the last call of `log`.
    pub fn downloads(&self) -> Vec<Request> {
        self.log().into_iter().filter(|request| request.path.starts_with("/cdn/")).collect()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

pub fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn git_sha1(content: &[u8]) -> String {
    let header = format!("blob {}\0", content.len());
    let digest = sha1::Sha1::new_with_prefix(header).chain_update(content).finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_large(name: &str) -> bool {
    name.ends_with(".gguf") || name.ends_with(".safetensors") || name.ends_with(".bin")
}

fn read_request(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut request = Request { method, path, host: String::new(), range: None, authorization: None };
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "host" => request.host = value.to_owned(),
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    Some(request)
}

fn serve(stream: &TcpStream, port: u16, state: &Mutex<State>, ended: &AtomicBool) -> std::io::Result<()> {
    let Some(request) = read_request(stream) else { return Ok(()) };
    let (answer, fault) = {
        let mut state = state.lock().unwrap();
        state.log.push(request.clone());
        let rule = state.rules.iter_mut().find(|rule| rule.times > 0 && request.path.contains(&rule.part));
        let fault = rule.map(|rule| {
            rule.times -= 1;
            rule.fault.clone()
        });
        (answer(&request, port, &state.repositories, fault.as_ref()), fault)
    };
    answer.write(stream, &request, fault.as_ref(), ended)
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Answer {
    fn new(status: u16, headers: &[(&str, &str)], body: Vec<u8>) -> Self {
        let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Self { status, headers, body }
    }

    fn json(value: &Value) -> Self {
        Self::new(200, &[("Content-Type", "application/json")], value.to_string().into_bytes())
    }

    fn refusal(status: u16, code: &str, message: &str) -> Self {
        Self::new(status, &[("X-Error-Code", code), ("X-Error-Message", message)], vec![])
    }

    fn write(
        self,
        mut stream: &TcpStream,
        request: &Request,
        fault: Option<&Fault>,
        ended: &AtomicBool,
    ) -> std::io::Result<()> {
        if matches!(fault, Some(Fault::Gibberish)) {
            return stream.write_all(b"SSH-2.0-OpenSSH_9.6\r\n");
        }
        let mut head = format!("HTTP/1.1 {} X\r\nConnection: close\r\n", self.status);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.headers.iter().any(|(name, _)| name == "Content-Length") {
            head.push_str(&format!("Content-Length: {}\r\n", self.body.len()));
        }
        stream.write_all(format!("{head}\r\n").as_bytes())?;
        if request.method == "HEAD" {
            return Ok(());
        }
        match fault {
            Some(Fault::Cut(length)) => stream.write_all(&self.body[..*length]),
            Some(Fault::Silence(length)) => {
                stream.write_all(&self.body[..*length])?;
                while !ended.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            }
            Some(Fault::Slow) => self.body.chunks(64 << 10).try_for_each(|piece| {
                std::thread::sleep(Duration::from_millis(20));
                stream.write_all(piece)
            }),
            _ => stream.write_all(&self.body),
        }
    }
}

fn answer(
    request: &Request,
    port: u16,
    repositories: &BTreeMap<String, Repository>,
    fault: Option<&Fault>,
) -> Answer {
    match fault {
        Some(Fault::Status(status, headers)) => return Answer::new(*status, headers, vec![]),
        Some(Fault::LoginPage) => {
            return Answer::new(200, &[("Content-Type", "text/html")], b"<html>Log in</html>".to_vec());
        }
        _ => {}
    }
    let path = percent_encoding::percent_decode_str(request.path.split('?').next().unwrap());
    let path = path.decode_utf8().unwrap();
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if let ["cdn", digest] = parts[..] {
        let mut contents = repositories.values().flat_map(|repository| repository.files.values());
        let content = contents.find(|content| sha256(content) == digest).unwrap();
        return in_range(content, request, fault, &[]);
    }
    let (owner, name, kind, revision, file) = match parts[..] {
        ["api", "models", owner, name, kind, revision, ..] => (owner, name, kind, revision, String::new()),
        [owner, name, "resolve", revision, ref file @ ..] => {
            (owner, name, "resolve", revision, file.join("/"))
        }
        _ => return Answer::refusal(404, "", "no such address"),
    };
    let Some(repository) = repositories.get(&format!("{owner}/{name}")) else {
        return Answer::refusal(401, "RepoNotFound", "Repository not found");
    };
    if !["main", repository.commit].contains(&revision) {
        return Answer::refusal(404, "RevisionNotFound", "Invalid rev id");
    }
    match kind {
        "revision" => listing(repository),
        "tree" => tree(repository),
        _ => resolve(repository, &file, request, port, fault),
    }
}

fn listing(repository: &Repository) -> Answer {
    let files = repository.files.iter().map(|(name, content)| {
        let size = repository.claimed_size.unwrap_or(content.len() as u64);
        if is_large(name) {
            let lfs = json!({"sha256": sha256(content), "size": size, "pointerSize": 130});
            json!({"rfilename": name, "size": size, "blobId": git_sha1(b"pointer"), "lfs": lfs})
        } else {
            json!({"rfilename": name, "size": content.len(), "blobId": git_sha1(content)})
        }
    });
    let files: Vec<Value> = files.collect();
    Answer::json(
        &json!({"id": "x/y", "sha": repository.commit, "gated": repository.gated, "siblings": files}),
    )
}

/// The listing that `snapshot_download` requests.
fn tree(repository: &Repository) -> Answer {
    let files = repository.files.iter().map(|(name, content)| {
        let mut file = json!({"type": "file", "path": name, "size": content.len(), "oid": git_sha1(content)});
        if is_large(name) {
            file["lfs"] = json!({"oid": sha256(content), "size": content.len(), "pointerSize": 130});
        }
        file
    });
    Answer::json(&Value::Array(files.collect()))
}

fn resolve(
    repository: &Repository,
    file: &str,
    request: &Request,
    port: u16,
    fault: Option<&Fault>,
) -> Answer {
    let token = format!("Bearer {GOOD_TOKEN}");
    if repository.gated && request.authorization.as_deref() != Some(&token) {
        let status = if request.authorization.is_some() { 403 } else { 401 };
        return Answer::refusal(status, "GatedRepo", "Access to model x/y is restricted.");
    }
    let Some(content) = repository.files.get(file) else {
        return Answer::refusal(404, "EntryNotFound", "Entry not found");
    };
    let commit = ("X-Repo-Commit", repository.commit);
    if !is_large(file) {
        let tag = format!("\"{}\"", git_sha1(content));
        return in_range(content, request, fault, &[commit, ("ETag", &tag)]);
    }
    // Another host name of this machine: the real Hub redirects to another host.
    let (digest, size) = (sha256(content), content.len().to_string());
    let (tag, location) = (format!("\"{digest}\""), format!("http://localhost:{port}/cdn/{digest}"));
    let headers = [
        commit,
        ("X-Linked-Etag", &tag),
        ("X-Linked-Size", &size),
        ("ETag", "\"other\""),
        ("Location", &location),
    ];
    Answer::new(302, &headers, vec![])
}

fn in_range(content: &[u8], request: &Request, fault: Option<&Fault>, headers: &[(&str, &str)]) -> Answer {
    let mut content = content.to_vec();
    if matches!(fault, Some(Fault::Damage)) {
        *content.last_mut().unwrap() ^= 1;
    }
    let headers = [headers, &[("Accept-Ranges", "bytes")]].concat();
    let asked = request.range.as_deref().filter(|_| !matches!(fault, Some(Fault::NoRanges)));
    let Some(from) = asked.map(|range| range["bytes=".len()..range.len() - 1].parse::<usize>().unwrap())
    else {
        return Answer::new(200, &headers, content);
    };
    if from >= content.len() {
        return Answer::new(416, &[], vec![]);
    }
    let from = if matches!(fault, Some(Fault::OtherRange)) { 0 } else { from };
    let range = format!("bytes {from}-{}/{}", content.len() - 1, content.len());
    Answer::new(206, &[&headers[..], &[("Content-Range", &range)]].concat(), content[from..].to_vec())
}
