//! The viewer over a WebSocket of `layerscope serve --viewer`.

use super::{NOTICE, PATIENCE, generate, load, pixels, prompts, record, until};
use crate::support::{fixtures, layerscope, refuse, stderr, tiny_model};
use crate::synthetic;
use layerscope_app::engine::LocalEngine;
use layerscope_app::engine::message::Event;
use layerscope_app::engine::remote::{Address, Answer, Link, Pipes, Question, RemoteEngine, WebSocket};
use layerscope_diagnostics::run::Run;
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const KEY: &str = "a key of ours";

/// A server on loopback, stopped when it is dropped.
pub(super) struct Server {
    process: Child,
    /// Host and port.
    address: String,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        let mut command = layerscope();
        command.arg("serve").arg(tiny_model()).args(arguments).env("LAYERSCOPE_API_KEY", KEY);
        let mut process = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(process.stderr.take().unwrap()).lines();
        let listening = said.next().unwrap().unwrap();
        let address = listening.split("listening on http://").nth(1);
        let address = address.unwrap_or_else(|| panic!("{listening}")).to_owned();
        std::thread::spawn(move || said.for_each(drop));
        Self { process, address }
    }

    /// One that lets viewers in.
    pub(super) fn with_viewers() -> Self {
        Self::start(&["--port", "0", "--viewer"])
    }

    fn socket(&self) -> WebSocket {
        let address = Address::parse(&format!("ws://{}", self.address)).unwrap();
        WebSocket::new(address, Some(KEY.to_owned())).unwrap()
    }

    pub(super) fn connect(&self) -> (Link, RemoteEngine) {
        Link::connect("gpu-box", self.socket().connect().unwrap(), || {}).unwrap()
    }

    /// `layerscope view` of a path there, drawn into a file.
    pub(super) fn view(&self, path: &Path, picture: &Path) -> Output {
        let address = format!("ws://{}{}", self.address, path.display()).replace(' ', "%20");
        let mut command = layerscope();
        command.args(["view", &address, "--view", "Map", "--theme", "dark", "--screenshot"]).arg(picture);
        command.env("LAYERSCOPE_API_KEY", KEY).output().unwrap()
    }

    /// The status and the rest of the answer to a request of a path with headers.
    fn get(&self, path: &str, headers: &str) -> (u16, String) {
        let mut stream = self.ask(path, headers);
        // Not before the answer has begun: a server may give up a request whose connection is half closed.
        let mut answer = vec![0; 1];
        stream.read_exact(&mut answer).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
    }

    fn ask(&self, path: &str, headers: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head = format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close, upgrade\r\n{headers}\r\n",
            self.address
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// Asks it to end, and waits for that.
    fn terminate(&mut self) -> Option<i32> {
        // SAFETY: signals a process that this test has started.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        let start = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < NOTICE, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The headers of a viewer that has the key.
fn upgrade(more: &str) -> String {
    format!(
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
         Authorization: Bearer {KEY}\r\n{more}"
    )
}

/// The headers of a page, which names the key in base64 among protocols.
fn by_protocol(key: &str) -> String {
    upgrade(&format!("Sec-WebSocket-Protocol: layerscope, key.{key}\r\n"))
        .replace(&format!("Authorization: Bearer {KEY}\r\n"), "")
}

#[test]
fn a_run_over_a_websocket_is_drawn_as_here() {
    let server = Server::with_viewers();
    let folder = tempfile::tempdir().unwrap();
    let [run, here, there] = ["a run", "here.png", "there.png"].map(|name| folder.path().join(name));
    let sizes = synthetic::Sizes { layers: 16, heads: 4, steps: 16, positions: 5_000, prompts: 2 };
    synthetic::write(&run, sizes, true);
    let mut command = layerscope();
    command.arg("view").arg(&run).args(["--view", "Map", "--theme", "dark", "--screenshot"]).arg(&here);
    for drawn in [command.output().unwrap(), server.view(&run, &there)] {
        assert!(drawn.status.success(), "{}", stderr(&drawn));
    }
    // The other machine's name moves glyphs in the texture that text is drawn from, which may round a pixel otherwise.
    let (here, there) = (pixels(&here), pixels(&there));
    let most = here.iter().zip(&there).map(|(here, there)| here.abs_diff(*there)).max();
    assert!(here.len() == there.len() && most <= Some(2), "the pictures differ by up to {most:?}");
}

#[test]
fn an_engine_of_a_server_generates_beside_its_model() {
    // One thread: that which waits for the server's requests must not be the one that the viewer's engine needs.
    let server = Server::start(&["--port", "0", "--viewer", "--threads", "1"]);
    let (link, engine) = server.connect();
    assert_eq!(link.version(), env!("CARGO_PKG_VERSION"));
    let Answer::Models(names) = link.ask(Question::Models).unwrap().answer else { panic!("no models") };
    assert!(names.iter().any(|name| name == "layerscope-tiny"), "{names:?}");
    let here = LocalEngine::start(|| {});
    let mut tokens = [vec![], vec![]];
    for command in [load(), generate(9)] {
        here.send(command).unwrap();
    }
    let start = Instant::now();
    while here.is_busy() {
        if let Some(Event::Token(token)) = here.try_event() {
            tokens[0].push(token.id);
        }
        assert!(start.elapsed() < PATIENCE);
    }
    for command in [load(), generate(9)] {
        engine.send(command).unwrap();
        assert!(until(&link, &engine, |event| {
            if let Event::Token(token) = event {
                tokens[1].push(token.id);
            }
            *event == Event::Idle
        }));
    }
    assert!(tokens[0].len() == 9 && tokens[0] == tokens[1], "{tokens:?}");
}

#[test]
fn what_is_refused_is_said_in_a_sentence() {
    let (server, closed) = (Server::with_viewers(), Server::start(&["--port", "0"]));
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("never.png");
    let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let elsewhere = other.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in other.incoming().flatten() {
            let _ = (&stream).write_all(b"SSH-2.0-OpenSSH_9.9\r\n\r\n");
        }
    });
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
    let (open, shut) = (&server.address, &closed.address);
    for (address, key, told) in [
        (format!("ws://{open}/x"), "", "wants its key: give it by --api-key or LAYERSCOPE_API_KEY"),
        (format!("ws://{open}/x"), "wrong", "has another key than the one given"),
        (format!("ws://{open}/x"), "a\nb", "has control characters"),
        (
            format!("ws://{open}/no/such/run"),
            KEY,
            "there is no run folder, model or prompt file /no/such/run",
        ),
        (
            format!("ws://{shut}/x"),
            KEY,
            "lets no viewers in; start its server with `layerscope serve MODEL --viewer`",
        ),
        (format!("ws://{elsewhere}/x"), KEY, "does not answer as `layerscope serve` does"),
        (format!("ws://{free}/x"), KEY, "cannot connect to 127.0.0.1:"),
        ("ws://no-such-host.invalid/x".to_owned(), KEY, "the name no-such-host.invalid is not known here"),
        (format!("ws://me@{open}/x"), KEY, "names a user"),
        (format!("wss://{open}/x"), KEY, "ssh -L 8080:127.0.0.1:8080 HOST"),
    ] {
        let mut command = layerscope();
        command.args(["view", &address, "--screenshot"]).arg(&picture).env_remove("LAYERSCOPE_API_KEY");
        refuse(command.args(["--api-key", key]), 2, &[told]);
    }
    assert!(!picture.exists());
    // What lets viewers in wants a key even on this machine alone.
    let mut command = layerscope();
    command.arg("serve").arg(tiny_model()).args(["--port", "0", "--viewer"]);
    refuse(command.env_remove("LAYERSCOPE_API_KEY"), 2, &["--viewer", "--api-key"]);
}

#[test]
fn pages_and_what_is_no_viewer_are_not_let_in() {
    let server = Server::with_viewers();
    let path = "/viewer/engine";
    // The server has a page of its own where that is built in.
    let (status, page) = server.get("/viewer/", "");
    let has_page = status == 200;
    assert!(has_page || (status == 404 && page.contains("built without the viewer for browsers")), "{page}");
    assert_eq!(server.get("/viewer/no-such-file", "").0, 404);
    let (status, moved) = server.get("/viewer?run=/a%20run", "");
    assert!(status == 308 && moved.contains("location: /viewer/?run=/a%20run"), "{moved}");
    for (headers, status) in [
        (upgrade("Origin: https://evil.example\r\n"), 403),
        (upgrade(&format!("Origin: http://{}\r\n", server.address)), if has_page { 101 } else { 403 }),
        (by_protocol("YSBrZXkgb2Ygb3Vycw"), 101),
        (by_protocol("YSBrZXkgb2YgdGhlaXJz"), 401),
        (upgrade("").replace(KEY, "wrong"), 401),
        (upgrade("").replace("Version: 13", "Version: 8"), 400),
        (format!("Authorization: Bearer {KEY}\r\n"), 400),
        (upgrade(""), 101),
    ] {
        let (given, answer) = server.get(path, &headers);
        assert_eq!(given, status, "{headers}: {answer}");
    }
    // Four at once.
    let mut held: Vec<(Link, RemoteEngine)> = vec![];
    let start = Instant::now();
    while held.len() < 4 {
        // The place of the one above is free again once its work has ended.
        match server.socket().connect() {
            Ok(pipes) => held.push(Link::connect("gpu-box", pipes, || {}).unwrap()),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
        assert!(start.elapsed() < PATIENCE, "{} are let in", held.len());
    }
    let Err(error) = server.socket().connect() else { panic!("a fifth viewer is let in") };
    assert!(error.to_string().contains("4 viewers are connected already"), "{error}");
    held.pop();
    while server.socket().connect().is_err() {
        assert!(start.elapsed() < PATIENCE, "a place is never free again");
        std::thread::sleep(Duration::from_millis(10));
    }
    // Its own model is served beside them.
    while server.get("/health", "").0 != 200 {
        assert!(start.elapsed() < PATIENCE, "the model does not load");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_server_that_ends_keeps_prompts_and_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port().to_string();
    let mut told = BTreeSet::new();
    for is_asked in [false, true] {
        let mut server = Server::start(&["--port", &port, "--viewer"]);
        let (link, engine) = server.connect();
        engine.send(load()).unwrap();
        engine.send(record(&run)).unwrap();
        let mut finished = 0;
        assert!(until(&link, &engine, |event| {
            if let Event::PromptFinished { id } = event {
                told.insert(id.clone());
                finished += 1;
            }
            finished == 2
        }));
        if is_asked {
            assert_eq!(server.terminate(), Some(0));
        } else {
            server.process.kill().unwrap();
            server.process.wait().unwrap();
        }
        let start = Instant::now();
        while !until(&link, &engine, |_| false) && link.broken().is_none() {
            assert!(start.elapsed() < NOTICE, "nobody notices");
        }
        assert_eq!(link.broken().unwrap(), "the connection to gpu-box is closed");
        assert!(!engine.is_busy() && link.ask(Question::Models).is_err());
        let kept: BTreeSet<String> = Run::open(&run).unwrap().prompt_ids().iter().cloned().collect();
        assert!(told.is_subset(&kept), "lost {:?}", told.difference(&kept));
        assert!(kept.len() < prompts().prompts.len(), "everything was recorded before the server ended");
        let Err(error) = server.socket().connect() else { panic!("connected to a server that has ended") };
        assert!(error.to_string().contains("cannot connect to"), "{error}");
    }
}

/// A way that can be shut from this side.
struct Gate<T> {
    way: T,
    is_shut: Arc<AtomicBool>,
}

impl<T: Read> Read for Gate<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.is_shut.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.way.read(buffer)
    }
}

/// A connection of which the window's side does not read while the flag is set.
fn gated(server: &Server) -> (Link, RemoteEngine, Arc<AtomicBool>) {
    let is_shut = Arc::new(AtomicBool::new(false));
    let Pipes { input, output, program } = server.socket().connect().unwrap();
    let input = Box::new(Gate { way: input, is_shut: Arc::clone(&is_shut) });
    let (link, engine) = Link::connect("gpu-box", Pipes { input, output, program }, || {}).unwrap();
    (link, engine, is_shut)
}

#[test]
fn a_window_that_halts_misses_nothing() {
    let server = Server::with_viewers();
    let (link, engine, is_shut) = gated(&server);
    engine.send(load()).unwrap();
    assert!(until(&link, &engine, |event| *event == Event::Idle));
    is_shut.store(true, Ordering::Relaxed);
    engine.send(generate(400)).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    is_shut.store(false, Ordering::Relaxed);
    let mut steps = vec![];
    assert!(until(&link, &engine, |event| {
        if let Event::Token(token) = event {
            steps.push(token.step);
        }
        *event == Event::Idle
    }));
    assert_eq!(steps, (0..steps.len()).collect::<Vec<_>>());
    assert!(steps.len() > 100, "{} tokens", steps.len());
}

#[test]
fn who_asks_without_listening_is_sent_away() {
    let server = Server::with_viewers();
    let (link, _engine, is_shut) = gated(&server);
    is_shut.store(true, Ordering::Relaxed);
    let path = fixtures().join("tiny/demo.jsonl");
    let (start, before) = (Instant::now(), link.traffic().sent);
    link.ask_then(Question::Prompts { path: path.clone() }, drop);
    while link.traffic().sent == before {
        assert!(start.elapsed() < PATIENCE, "the first question is not sent");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (mut sent, mut since) = (link.traffic().sent, Instant::now());
    // It reads what is asked until too many answers wait, and then no more.
    while since.elapsed() < Duration::from_secs(2) {
        for _ in 0..5_000 {
            link.ask_then(Question::Prompts { path: path.clone() }, drop);
        }
        std::thread::sleep(Duration::from_millis(200));
        let now = link.traffic().sent;
        if now != sent {
            (sent, since) = (now, Instant::now());
        }
        assert!(start.elapsed() < PATIENCE, "{sent} bytes were taken");
    }
    assert!(sent > before);
    is_shut.store(false, Ordering::Relaxed);
    while link.broken().is_none() {
        assert!(start.elapsed() < PATIENCE, "the server still listens");
        std::thread::sleep(Duration::from_millis(10));
    }
    let (link, _engine) = server.connect();
    assert!(link.ask(Question::Models).is_ok());
}
