//! A real window on a virtual display, driven with mouse and keys: from a run folder to a live generation side by side.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use support::{fixtures, layerscope, smollm2, stderr, succeed};

/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(180);

/// A virtual display, stopped when it is dropped.
struct Display {
    server: Child,
    name: String,
}

impl Display {
    /// `None` with a message if this machine lacks the tools; with `LAYERSCOPE_REQUIRE_DISPLAY`, a failure.
    fn open() -> Option<Self> {
        let server = Command::new("Xvfb")
            // Without `-noreset` it starts anew when its last client leaves, and refuses those that come meanwhile.
            .args(["-displayfd", "1", "-screen", "0", "1280x800x24", "-nolisten", "tcp", "-noreset"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let can_type = Command::new("xdotool").arg("version").output().is_ok();
        let (Ok(mut server), true) = (server, can_type) else {
            assert!(std::env::var_os("LAYERSCOPE_REQUIRE_DISPLAY").is_none(), "Xvfb and xdotool are needed");
            eprintln!("skipped: Xvfb or xdotool is not installed");
            return None;
        };
        let mut number = String::new();
        BufReader::new(server.stdout.as_mut().unwrap()).read_line(&mut number).unwrap();
        Some(Self { server, name: format!(":{}", number.trim()) })
    }

    fn xdotool(&self, arguments: &[&str]) -> String {
        let output = Command::new("xdotool").args(arguments).env("DISPLAY", &self.name).output().unwrap();
        std::thread::sleep(Duration::from_millis(250));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

#[test]
fn a_window_on_a_machine_that_cannot_be_reached_ends_with_a_sentence() {
    let Some(display) = Display::open() else { return };
    let runtime = tempfile::tempdir().unwrap();
    let output = layerscope()
        .args(["view", "ssh://gpu-box/run", "--ssh", "no-such-ssh"])
        .env("DISPLAY", &display.name)
        .env_remove("WAYLAND_DISPLAY")
        .env("XDG_RUNTIME_DIR", runtime.path())
        .env("XDG_DATA_HOME", runtime.path())
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("there is no program no-such-ssh; install"), "{said}");
}

/// Polls until there is a result.
fn wait_for<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

#[test]
fn from_a_run_to_a_live_generation_with_mouse_and_keys() {
    let (Some(model), Some(display)) = (smollm2(), Display::open()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let all = std::fs::read_to_string(fixtures().join("prompts/five-categories.jsonl")).unwrap();
    std::fs::write(at("one.jsonl"), all.lines().next().unwrap()).unwrap();
    let record = ["--max-new-tokens", "4", "--prompts"];
    succeed(
        layerscope().arg("record").arg(&model).args(record).arg(at("one.jsonl")).arg("--out").arg(at("run")),
    );

    let runtime = at("runtime");
    std::fs::create_dir(&runtime).unwrap();
    let mut viewer = layerscope()
        .args(["view", "--view", "map"])
        .arg(at("run"))
        // Where a busy machine loses a key, a path that is typed is taken as relative to it.
        .current_dir(folder.path())
        .env("DISPLAY", &display.name)
        .env_remove("WAYLAND_DISPLAY")
        .env("XDG_RUNTIME_DIR", &runtime)
        .env("XDG_DATA_HOME", at("data"))
        .env("LAYERSCOPE_CACHE", model.parent().and_then(Path::parent).unwrap())
        .spawn()
        .unwrap();
    let window = wait_for("a window", || {
        let found = display.xdotool(&["search", "--onlyvisible", "--name", "^layerscope$"]);
        found.lines().next().map(str::to_owned)
    });
    display.xdotool(&["windowfocus", &window]);
    std::thread::sleep(Duration::from_secs(3));

    // Zoom into the map, pan it, and bring the cutoff up to 20.
    display.xdotool(&["mousemove", "450", "400"]);
    display.xdotool(&["click", "--repeat", "3", "--delay", "80", "4"]);
    display.xdotool(&["mousedown", "1", "mousemove", "400", "400", "mouseup", "1"]);
    let recommended = 30;
    for _ in 20..recommended {
        display.xdotool(&["key", "bracketleft"]);
    }
    // Types a prompt, generates and exports the result.
    display.xdotool(&["key", "ctrl+6"]);
    display.xdotool(&["mousemove", "560", "90", "click", "1"]);
    display.xdotool(&["type", "--delay", "12", "Why is the sky blue?"]);
    display.xdotool(&["key", "ctrl+Return"]);
    let csv = at("live.csv");
    let text = wait_for("both sides", || {
        display.xdotool(&["key", "ctrl+shift+c"]);
        display.xdotool(&["key", "ctrl+a"]);
        display.xdotool(&["type", "--delay", "4", &csv.display().to_string()]);
        display.xdotool(&["key", "Return"]);
        std::thread::sleep(Duration::from_secs(1));
        std::fs::read_to_string(&csv).ok().filter(|text| text.lines().any(|line| line.starts_with("speed:")))
    });
    assert!(text.starts_with("policy,step,token id,token,probability"));
    assert!(text.lines().any(|line| line.starts_with("full,0,")), "{text}");

    // Closing the window during a generation exits cleanly.
    display.xdotool(&["key", "ctrl+Return"]);
    display.xdotool(&["key", "ctrl+q"]);
    let status = wait_for("the window to close", || viewer.try_wait().unwrap());
    assert!(status.success(), "{status}");
}
