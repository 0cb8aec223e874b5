//! The viewer on another machine: over a real sshd on loopback with a port, keys and a configuration of its own, and over a WebSocket
//! of `layerscope serve`.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

#[path = "remote/sockets.rs"]
mod sockets;
mod support;
#[path = "../app/tests/support/synthetic.rs"]
mod synthetic;

use layerscope_app::engine::message::{Command as EngineCommand, Event, Under};
use layerscope_app::engine::remote::{Address, Answer, Link, Question, RemoteEngine, Ssh};
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{DeviceChoice, ModelSource, PromptText, Sampling, WeightsPrecision};
use std::collections::BTreeSet;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use support::{fixtures, layerscope, stderr, succeed, tiny_model};
use tempfile::TempDir;

/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// A connection that is killed is noticed within this time.
const NOTICE: Duration = Duration::from_secs(10);

/// A server on loopback, stopped when it is dropped, and a client's configuration that knows it as `gpu-box`.
struct Server {
    process: Child,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// `None` with a message if this machine lacks OpenSSH; with `LAYERSCOPE_REQUIRE_SSH`, a failure.
    fn start() -> Option<Self> {
        let sshd =
            ["/usr/sbin/sshd", "/usr/local/sbin/sshd"].into_iter().find(|path| Path::new(path).exists());
        let has_client = Command::new("ssh").arg("-V").output().is_ok();
        let (Some(sshd), true) = (sshd, has_client) else {
            assert!(
                std::env::var_os("LAYERSCOPE_REQUIRE_SSH").is_none(),
                "openssh-server and openssh-client are needed"
            );
            eprintln!("skipped: openssh-server or openssh-client is not installed");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for key in ["host_key", "user_key"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path(key))
                .status();
            assert!(made.unwrap().success());
        }
        fs::copy(path("user_key.pub"), path("authorized_keys")).unwrap();
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        let at = |name: &str| path(name).display().to_string();
        let server = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {}\nPidFile {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 50\n",
            at("host_key"),
            at("sshd.pid"),
            at("authorized_keys")
        );
        fs::write(path("sshd_config"), server).unwrap();
        let user = String::from_utf8(Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
        let client = format!(
            "Host gpu-box\n  HostName 127.0.0.1\n  Port {port}\n  User {}\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
             UserKnownHostsFile {}\n  StrictHostKeyChecking accept-new\n  BatchMode yes\n\
             Host nowhere\n  HostName 127.0.0.1\n  Port 1\n  BatchMode yes\n",
            user.trim(),
            at("user_key"),
            at("known_hosts")
        );
        fs::write(path("ssh_config"), client).unwrap();
        // Where it starts as root it wants this folder, which the system's own makes at boot.
        let _ = fs::create_dir_all("/run/sshd");
        let log = fs::File::create(path("log")).unwrap();
        let mut process = Command::new(sshd)
            .args(["-D", "-e", "-f"])
            .arg(path("sshd_config"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let ended = process.try_wait().unwrap();
            assert!(
                ended.is_none() && start.elapsed() < PATIENCE,
                "{}",
                fs::read_to_string(path("log")).unwrap()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { process, port, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The ssh command with this server's configuration.
    fn ssh(&self) -> String {
        format!("ssh -F '{}'", self.path("ssh_config").display())
    }

    /// An ssh command that keeps all bytes that come.
    fn counting_ssh(&self) -> PathBuf {
        let script = format!("#!/bin/sh\n{} \"$@\" | tee '{}'\n", self.ssh(), self.path("come").display());
        executable(&self.path("counting-ssh"), &script)
    }

    /// Connects to an engine there; the process that leads to it.
    fn connect(&self) -> (Link, RemoteEngine, u32) {
        let target = Address::parse("ssh://gpu-box").unwrap();
        let there = env!("CARGO_BIN_EXE_layerscope").to_owned();
        let pipes = Ssh::new(target, &self.ssh(), Some(there)).unwrap().start().unwrap();
        let process = pipes.program.as_ref().unwrap().child.id();
        let (link, engine) = Link::connect("gpu-box", pipes, || {}).unwrap();
        (link, engine, process)
    }

    /// The server's processes for connections.
    fn sessions(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.process.id());
        let children = fs::read_to_string(children).unwrap();
        children.split_whitespace().filter_map(|id| id.parse().ok()).collect()
    }

    /// `layerscope view` of a path there, drawn into a file.
    fn view(&self, path: &Path, ssh: &str, picture: &Path) -> Output {
        let mut command = layerscope();
        command.arg("view").arg(format!("ssh://gpu-box{}", path.display())).args(["--ssh", ssh]);
        command.args([
            "--remote-layerscope",
            env!("CARGO_BIN_EXE_layerscope"),
            "--view",
            "Map",
            "--theme",
            "dark",
        ]);
        command.arg("--screenshot").arg(picture).output().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn executable(path: &Path, script: &str) -> PathBuf {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_owned()
}

/// Pixels of a picture above the window's status line, which names the other machine.
fn pixels(path: &Path) -> Vec<u8> {
    let mut reader =
        png::Decoder::new(std::io::BufReader::new(fs::File::open(path).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut bytes).unwrap();
    bytes.truncate(info.line_size * (info.height as usize - 60));
    bytes
}

#[test]
fn a_long_run_is_drawn_over_ssh_with_few_bytes() {
    let Some(server) = Server::start() else { return };
    let sizes = synthetic::Sizes { layers: 64, heads: 16, steps: 32, positions: 131_072, prompts: 1 };
    let run = server.path("run");
    synthetic::write(&run, sizes, false);
    let whole = fs::metadata(run.join("tokens.parquet")).unwrap().len();
    let [here, there] = ["here.png", "there.png"].map(|name| server.path(name));
    let drawn = layerscope()
        .arg("view")
        .arg(&run)
        .args(["--view", "Map", "--theme", "dark", "--screenshot"])
        .arg(&here)
        .output()
        .unwrap();
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let drawn = server.view(&run, &server.counting_ssh().display().to_string(), &there);
    assert!(drawn.status.success(), "{}", stderr(&drawn));
    let come = fs::metadata(server.path("come")).unwrap().len();
    eprintln!("{come} bytes came, of a table of {whole}");
    assert!((100_000..=5_000_000).contains(&come), "{come} bytes came");
    // The other machine's name moves glyphs in the texture that text is drawn from, which may round a pixel otherwise.
    let (here, there) = (pixels(&here), pixels(&there));
    let most = here.iter().zip(&there).map(|(here, there)| here.abs_diff(*there)).max();
    assert!(here.len() == there.len() && most <= Some(2), "the pictures differ by up to {most:?}");
}

/// Prints the figures of docs/remote.md, of a build with optimisations:
/// `cargo test --release -p layerscope --features full --test remote -- --ignored --nocapture`.
#[test]
#[ignore = "asserts nothing of the times that it prints"]
fn how_long_things_take() {
    let Some(server) = Server::start() else { return };
    let sizes = synthetic::Sizes { layers: 64, heads: 16, steps: 32, positions: 131_072, prompts: 1 };
    let run = server.path("run");
    synthetic::write(&run, sizes, false);
    let picture = server.path("picture.png");
    let socket = sockets::Server::with_viewers();
    let mut times = [vec![], vec![], vec![]];
    for _ in 0..5 {
        let start = Instant::now();
        let mut command = layerscope();
        command.arg("view").arg(&run).args(["--view", "Map", "--theme", "dark", "--screenshot"]);
        succeed(command.arg(&picture));
        times[0].push(start.elapsed());
        let start = Instant::now();
        assert!(server.view(&run, &server.ssh(), &picture).status.success());
        times[1].push(start.elapsed());
        let start = Instant::now();
        assert!(socket.view(&run, &picture).status.success());
        times[2].push(start.elapsed());
    }
    let [here, there, over_websocket] = times;
    spread("a picture of a run here, from the command to the file", here);
    spread("of the same over ssh", there);
    spread("over a WebSocket", over_websocket);
    eprintln!("over ssh:");
    let (link, engine, _) = server.connect();
    how_long_answers_take(&link, &engine, &run);
    eprintln!("over a WebSocket:");
    let (link, engine) = socket.connect();
    how_long_answers_take(&link, &engine, &run);
}

fn how_long_answers_take(link: &Link, engine: &RemoteEngine, run: &Path) {
    engine.send(load()).unwrap();
    assert!(until(link, engine, |event| *event == Event::Idle));
    let round_trip = || {
        let start = Instant::now();
        assert!(link.ask(Question::Prompts { path: "/no/such/prompts.jsonl".into() }).is_err());
        start.elapsed()
    };
    let round_trips: Vec<Duration> = std::iter::repeat_with(round_trip).take(200).collect();
    let shortest = *round_trips.iter().min().unwrap();
    spread("a question and its answer", round_trips);
    for is_bulk in [false, true] {
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while is_bulk && !done.load(Ordering::Relaxed) {
                    link.ask(Question::Run { folder: run.to_owned() }).unwrap();
                }
            });
            engine.send(generate(400)).unwrap();
            // How much later each token came than the quickest one, after it was computed; that one took less than a round trip.
            let (start, mut came) = (Instant::now(), vec![]);
            assert!(until(link, engine, |event| {
                if let Event::Token(token) = event {
                    came.push(start.elapsed().as_secs_f64() - token.elapsed_s);
                }
                *event == Event::Idle
            }));
            done.store(true, Ordering::Relaxed);
            let quickest = came.iter().copied().fold(f64::INFINITY, f64::min);
            let late = came.into_iter().map(|came| shortest + Duration::from_secs_f64(came - quickest));
            let what = if is_bulk {
                "the same while files cross"
            } else {
                "a token, from computed to received, at most"
            };
            spread(what, late.collect());
        });
    }
}

/// Prints the median, the 99th percentile and the longest of some times.
fn spread(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |share: f64| times[(share * (times.len() - 1) as f64).round() as usize].as_secs_f64() * 1e3;
    eprintln!("{what}: median {:.2} ms, 99 % within {:.2} ms, longest {:.2} ms", at(0.5), at(0.99), at(1.0));
}

#[test]
fn what_goes_wrong_is_said_in_a_sentence() {
    let Some(server) = Server::start() else { return };
    let picture = server.path("never.png");
    let noisy = executable(
        &server.path("noisy"),
        &format!("#!/bin/sh\necho 'Welcome to gpu-box'\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_layerscope")),
    );
    let old = executable(
        &server.path("old"),
        "#!/bin/sh\necho \"error: unrecognized subcommand 'engine'\" >&2\nexit 2\n",
    );
    let path_of = |path: &Path| path.display().to_string();
    let other =
        executable(&server.path("other"), "#!/bin/sh\nprintf '\\001lscope\\n\\377\\377\\000\\000\\0039.9'\n");
    for (address, more, told) in [
        ("ssh://gpu-box/x", vec![], "gpu-box has no program layerscope where it looks"),
        (
            "ssh://gpu-box/x",
            vec!["--remote-layerscope".into(), path_of(&other)],
            "gpu-box has layerscope 9.9 with protocol 65535",
        ),
        (
            "ssh://gpu-box/x",
            vec!["--remote-layerscope".into(), "/no/such".into()],
            "gpu-box cannot run /no/such",
        ),
        (
            "ssh://gpu-box/x",
            vec!["--remote-layerscope".into(), path_of(&noisy)],
            "began with “Welcome to gpu-box”",
        ),
        (
            "ssh://gpu-box/x",
            vec!["--remote-layerscope".into(), path_of(&old)],
            "unrecognized subcommand 'engine'",
        ),
        (
            "ssh://nowhere/x",
            vec![],
            "ssh cannot reach nowhere, or has lost it: ssh: connect to host 127.0.0.1 port 1",
        ),
        ("ssh://-oProxyCommand=true/x", vec![], "names no host that can be connected to"),
        (
            "ssh://gpu-box/no/such/run",
            vec!["--remote-layerscope".into(), env!("CARGO_BIN_EXE_layerscope").to_owned()],
            "there is no run folder, model or prompt file /no/such/run",
        ),
    ] {
        let output = layerscope()
            .args(["view", address, "--ssh", &server.ssh(), "--screenshot"])
            .arg(&picture)
            .args(more)
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(told) && said.trim_end().lines().count() == 1, "{address}: {said}");
    }
    let missing = layerscope()
        .args(["view", "ssh://gpu-box/x", "--ssh", "no-such-ssh", "--screenshot"])
        .arg(&picture)
        .output()
        .unwrap();
    assert!(stderr(&missing).contains("there is no program no-such-ssh"), "{}", stderr(&missing));
    assert!(!picture.exists());
}

fn prompts() -> PromptFile {
    let mut prompts = read_prompts(&fixtures().join("tiny/adapt.jsonl")).unwrap();
    prompts.prompts.truncate(120);
    prompts
}

fn load() -> EngineCommand {
    let source = ModelSource::path(fs::canonicalize(tiny_model()).unwrap());
    EngineCommand::LoadModel { source, precision: WeightsPrecision::Native, device: DeviceChoice::Cpu }
}

fn record(folder: &Path) -> EngineCommand {
    EngineCommand::Record { prompts: prompts(), max_new_tokens: 12, folder: folder.to_owned(), adapter: None }
}

fn generate(max_new_tokens: usize) -> EngineCommand {
    let prompt = PromptText::Plain("Tell me a long story".into());
    let side = Under { prompt, policy: "full".into(), adapter: None };
    EngineCommand::Generate { sides: vec![side], max_new_tokens, sampling: Sampling::Greedy }
}

/// Takes events until `so` holds of one, or the connection has gone; returns whether it held.
fn until(link: &Link, engine: &RemoteEngine, mut so: impl FnMut(&Event) -> bool) -> bool {
    let start = Instant::now();
    loop {
        let is_gone = link.broken().is_some();
        match engine.try_event() {
            Some(event) if so(&event) => return true,
            Some(_) => {}
            None if is_gone => return false,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain");
    }
}

#[test]
fn ten_killed_connections_hang_nothing_and_lose_no_prompt() {
    let Some(server) = Server::start() else { return };
    let run = server.path("run");
    let mut told = BTreeSet::new();
    // Moments and ends are the same in every run of the test; what they meet is not.
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..10 {
        let (link, engine, client) = server.connect();
        engine.send(load()).unwrap();
        engine.send(record(&run)).unwrap();
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let delay = Duration::from_millis(random % 900);
        let sessions = server.sessions();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(delay);
            // The way to the engine, or the engine's end of it.
            let victims = if round % 2 == 0 { vec![client] } else { sessions };
            for process in victims {
                // SAFETY: kills processes that this test has started.
                unsafe { libc::kill(process as i32, libc::SIGKILL) };
            }
        });
        let mut failures = vec![];
        until(&link, &engine, |event| {
            match event {
                Event::PromptFinished { id } => drop(told.insert(id.clone())),
                Event::Failed(sentence) => failures.push(sentence.clone()),
                _ => {}
            }
            false
        });
        killer.join().unwrap();
        assert!(failures.is_empty(), "{failures:?}");
        assert!(!engine.is_busy() && link.broken().is_some());
        let refused = engine.send(load()).unwrap_err().to_string();
        assert!(refused.contains("gpu-box"), "{refused}");
        assert!(link.ask(Question::Models).is_err());
        drop((link, engine));
        engine_ends(&server);
        let kept: BTreeSet<String> = match Run::open(&run) {
            Ok(run) => run.prompt_ids().iter().cloned().collect(),
            // Killed before the first.
            Err(_) => BTreeSet::new(),
        };
        assert!(told.is_subset(&kept), "round {round} lost {:?}", told.difference(&kept));
    }
    let (link, engine, _) = server.connect();
    engine.send(load()).unwrap();
    engine.send(record(&run)).unwrap();
    assert!(until(&link, &engine, |event| matches!(event, Event::RecordingEnded { cancelled: false, .. })));
    assert_eq!(Run::open(&run).unwrap().prompt_ids().len(), prompts().prompts.len());
}

/// Waits until no engine of the server's runs: it stops once it finds its pipe closed.
fn engine_ends(server: &Server) {
    let start = Instant::now();
    // sshd tells every program that it starts of the connection.
    let connection = format!(" 127.0.0.1 {}\0", server.port);
    let is_of_server = |id: u32| {
        let read = |what: &str| fs::read(format!("/proc/{id}/{what}")).unwrap_or_default();
        let is_engine = read("cmdline").split(|byte| *byte == 0).nth(1) == Some(&b"engine"[..]);
        is_engine && String::from_utf8_lossy(&read("environ")).contains(&connection)
    };
    loop {
        let ids = fs::read_dir("/proc").unwrap().flatten();
        let ids = ids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        if !ids.into_iter().any(is_of_server) {
            return;
        }
        assert!(start.elapsed() < NOTICE, "the engine goes on without its window");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn an_engine_over_ssh_answers_and_generates() {
    let Some(server) = Server::start() else { return };
    let (link, engine, _) = server.connect();
    assert_eq!(link.version(), env!("CARGO_PKG_VERSION"));
    let Answer::Models(names) = link.ask(Question::Models).unwrap().answer else { panic!("no models") };
    assert!(names.iter().any(|name| name == "layerscope-tiny"), "{names:?}");
    // By its name, which the engine there knows.
    let source = ModelSource::named("layerscope-tiny", "layerscope-tiny");
    let load =
        EngineCommand::LoadModel { source, precision: WeightsPrecision::Native, device: DeviceChoice::Cpu };
    engine.send(load).unwrap();
    assert!(until(&link, &engine, |event| matches!(event, Event::Loaded(model) if model.layers == 8)));
}

#[test]
fn an_engine_is_no_program_for_a_terminal() {
    let output = layerscope().args(["engine", "--stdio"]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"\x01lscope\n"), "{output:?}");
    let output = layerscope().arg("engine").output().unwrap();
    assert!(output.status.code() == Some(2) && stderr(&output).contains("--stdio"), "{}", stderr(&output));
}
