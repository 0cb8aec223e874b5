//! What reaches a terminal, and what happens where nobody reads it or a signal comes.

#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use support::{demo_prompts, json, layerscope, numbers, run, stderr, tiny_model};

/// Colours, a window's title, the same as single C1 characters, marks that turn text around, a line break.
const HOSTILE: &str =
    "a\u{1b}[31mb\u{1b}]0;title\u{7}c\u{9b}2Jd\u{9d}0;t\u{9c}ef\u{202e}g\u{2066}h\u{7f}i\nj\rk\u{85}l";

/// Whether a character acts on a terminal.
fn acts(character: char) -> bool {
    let turns = matches!(character, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || (character.is_control() && character != '\n')
}

fn assert_harmless(command: &mut Command) -> Output {
    let output = run(command);
    for text in [&output.stdout, &output.stderr] {
        let text = str::from_utf8(text).unwrap();
        let acting = text.chars().find(|character| acts(*character));
        assert_eq!(acting, None, "{command:?}: {text:?}");
    }
    output
}

/// A run whose model, prompts and categories have hostile names.
fn hostile_run(folder: &Path) -> PathBuf {
    let line = |id: String| serde_json::json!({ "id": id, "category": format!("{HOSTILE}\0"), "prompt": "alpha: 3\nbeta: 7\nalpha:" });
    let lines: String = (0..3).map(|index| format!("{}\n", line(format!("{HOSTILE}{index}")))).collect();
    let (prompts, model, out) =
        (folder.join("prompts.jsonl"), folder.join("m\u{1b}[31m\u{202e}.gguf"), folder.join("run\u{1b}[2J"));
    std::fs::write(&prompts, lines).unwrap();
    std::fs::copy(tiny_model(), &model).unwrap();
    let mut record = layerscope();
    record.arg("record").arg(model).arg("--prompts").arg(prompts).args(["--max-new-tokens", "4", "--out"]);
    let output = assert_harmless(record.arg(&out));
    assert!(output.status.success(), "{}", stderr(&output));
    out
}

#[test]
fn names_and_prompts_cannot_act() {
    let folder = tempfile::tempdir().unwrap();
    let out = hostile_run(folder.path());
    let id = format!("{HOSTILE}0");
    for arguments in [
        &["show"][..],
        &["show", "--by-category"],
        &["show", "--prompt-id", &id],
        &["show", "--summary-json"],
        &["recommend"],
        &["recommend", "--json"],
    ] {
        let output = assert_harmless(layerscope().args(arguments).arg(&out));
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    }
    let report = folder.path().join("report\u{1b}c.html");
    let output = assert_harmless(layerscope().arg("report").arg(&out).arg("-o").arg(&report));
    assert!(output.status.success(), "{}", stderr(&output));
    // JSON says the same in other characters.
    let output = assert_harmless(layerscope().arg("show").arg(&out).arg("--json"));
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["prompts"][0]["id"], id);
    assert_eq!(shown["prompts"][0]["category"], format!("{HOSTILE}\0"));
    // Lines stay lines.
    let shown =
        String::from_utf8(run(layerscope().arg("show").arg(&out).arg("--by-category")).stdout).unwrap();
    assert!(shown.contains("a␛[31mb␛]0;title␇c⟨U+009B⟩2Jd") && shown.contains("i⏎j␍k"), "{shown}");
    // Models of the current folder are listed by their names.
    let models = assert_harmless(layerscope().arg("models").current_dir(&folder));
    assert!(String::from_utf8(models.stdout).unwrap().contains("m␛[31m"));
}

#[test]
fn errors_cannot_act_and_are_short() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(folder.path().join(name), bytes).unwrap();
        folder.path().join(name)
    };
    let gguf = std::fs::read(tiny_model()).unwrap();
    let at = gguf.windows(5).position(|window| window == b"llama").unwrap();
    let mut other = gguf;
    other[at..at + 5].copy_from_slice(b"\x1b[2Jx");
    let other = file("other.gguf", &other);
    let prompts = file("prompts.jsonl", b"{\"id\": \"\\u001b[31m\", \"prompt\": \"\"}\n");
    let (long, turned) = ("x\u{1b}".repeat(50_000), "\u{202e}\u{1b}[2J\u{9b}1m");
    let lines = "x\n".repeat(1000);
    let paths: Vec<&str> = [&other, &prompts].map(|path| path.to_str().unwrap()).to_vec();
    for arguments in [
        &["show", turned][..],
        &["show", &long],
        &["recommend", turned, turned],
        &["report", turned],
        &["report", ".", "-o", turned],
        &[turned],
        &[&long],
        &[&lines],
        &["generate", turned, "--prompt", "x"],
        &["generate", "layerscope-tiny", "--prompt", "x", "--policy", turned],
        &["generate", "layerscope-tiny", "--prompt", "x", "--policy", &long],
        &["generate", "layerscope-tiny", "--prompt", "x", "--device", turned],
        &["generate", "layerscope-tiny", "--prompt", "x", "--temperature", turned],
        &["generate", "layerscope-tiny", "--prompt-file", turned],
        &["generate", paths[0], "--prompt", "x"],
        &["record", "layerscope-tiny", "--prompts", paths[1], "--out", "never"],
        &["capture", "layerscope-tiny", "--prompt", "x", "--hook", turned, "--out", "never"],
        &["bench", "--shape", turned, "--lengths", turned],
        &["inspect", turned],
        &["--", turned],
    ] {
        let output = assert_harmless(layerscope().args(arguments));
        let message = stderr(&output);
        let shown = message.chars().take(2000).collect::<String>();
        assert_eq!(output.status.code(), Some(2), "{shown}");
        assert!(message.lines().count() <= 12, "{shown}");
        assert!(message.lines().all(|line| line.chars().count() <= 1000), "{shown}");
    }
}

/// Tokens sampled evenly from the whole vocabulary hold every character there is.
#[test]
fn generated_tokens_cannot_act() {
    let generate = || {
        let mut command = layerscope();
        command.arg("generate").arg(tiny_model()).args(["--prompt", "a", "--ignore-eos"]);
        command.args(["--max-new-tokens", "400", "--temperature", "1e9", "--seed", "1"]);
        command
    };
    let exact = json(generate().arg("--json"));
    let text = exact["text"].as_str().unwrap();
    assert!(text.contains(acts), "{text:?}");
    let output = assert_harmless(&mut generate());
    let shown = String::from_utf8(output.stdout).unwrap();
    let plain = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    assert!(plain(&shown).starts_with(&plain(text)[..20]), "{shown:?} {text:?}");
    assert_eq!(numbers(&exact["tokens"]).len(), 400);
    assert_harmless(generate().arg("--json"));
}

fn full() -> Stdio {
    std::fs::File::options().write(true).open("/dev/full").unwrap().into()
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error_on_standard_output_and_none_on_standard_error() {
    let folder = tempfile::tempdir().unwrap();
    let run_folder = folder.path().join("run");
    let record = || {
        let mut command = layerscope();
        command.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
        command.args(["--max-new-tokens", "2", "--out"]).arg(&run_folder);
        command
    };
    let output = record().stderr(full()).stdout(Stdio::piped()).output().unwrap();
    assert!(output.status.success());
    // Resumes and says so; nobody hears it.
    assert!(record().stderr(full()).output().unwrap().status.success());
    let run_folder = run_folder.to_str().unwrap();
    let generate = ["generate", "layerscope-tiny", "--prompt", "a", "--max-new-tokens", "5"];
    for arguments in [
        &["--help"][..],
        &["--version"],
        &["record", "--help"],
        &["completions", "bash"],
        &["show", run_folder],
        &["show", run_folder, "--json"],
        &["recommend", run_folder],
        &["models", "--json"],
        &["inspect", "layerscope-tiny"],
        &generate,
        &[&generate[..], &["--json"]].concat(),
    ] {
        let output = layerscope().args(arguments).stdout(full()).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("cannot write to standard output: No space left"),
            "{}",
            stderr(&output)
        );
        assert!(!stderr(&output).contains("panicked"));
        let code = layerscope().args(arguments).stderr(full()).output().unwrap().status.code();
        assert_eq!(code, Some(0), "{arguments:?}");
    }
    assert_eq!(layerscope().args(["show", "absent"]).stderr(full()).output().unwrap().status.code(), Some(2));
    assert_eq!(layerscope().arg("recrod").stderr(full()).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let generate =
        ["generate", "layerscope-tiny", "--prompt", "a", "--max-new-tokens", "300", "--ignore-eos"];
    for arguments in [&["--help"][..], &["completions", "zsh"], &generate] {
        let mut child =
            layerscope().args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        out.read_exact(&mut [0; 3]).unwrap();
        drop(out);
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
        assert!(!stderr(&output).contains("panicked"), "{}", stderr(&output));
    }
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
}

/// The exit code of a program that has to end by itself in a while.
fn ended(mut child: Child, within: Duration) -> (Option<i32>, String) {
    let end = Instant::now() + within;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > end {
            child.kill().unwrap();
            panic!("still running after {within:?}");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().unwrap();
    (output.status.code(), stderr(&output))
}

const SOON: Duration = Duration::from_secs(5);

/// Waits until a program listens for interrupts.
#[cfg(target_os = "linux")]
fn listens(child: &Child) {
    let end = Instant::now() + Duration::from_secs(60);
    let caught = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        u64::from_str_radix(mask, 16).unwrap()
    };
    const INTERRUPT: u64 = 1 << (libc::SIGINT - 1);
    while caught() & INTERRUPT == 0 {
        assert!(Instant::now() < end, "it never listens for signals");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits for input that does not come.
fn waiting() -> Command {
    let mut command = layerscope();
    command.args(["generate", "layerscope-tiny", "--max-new-tokens", "2", "--prompt-file", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[cfg(target_os = "linux")]
#[test]
fn the_first_signal_ends_what_keeps_nothing() {
    for name in ["INT", "TERM", "HUP"] {
        // Tests that run under nohup ignore hangups, and so would what they start.
        let mut command = Command::new("env");
        command.arg("--default-signal=HUP").arg(env!("CARGO_BIN_EXE_layerscope")).args(waiting().get_args());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        listens(&child);
        std::thread::sleep(Duration::from_millis(300));
        signal(&child, name);
        let (code, message) = ended(child, SOON);
        assert_eq!(code, Some(130), "{name}: {message}");
    }
}

#[test]
fn a_hangup_does_not_end_what_nohup_started() {
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(env!("CARGO_BIN_EXE_layerscope"));
    command.args(waiting().get_args());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(700));
    signal(&child, "HUP");
    std::thread::sleep(Duration::from_millis(300));
    child.stdin.take().unwrap().write_all(b"a prompt").unwrap();
    let (code, message) = ended(child, Duration::from_secs(30));
    assert_eq!(code, Some(0), "{message}");
}

#[test]
fn the_first_signal_ends_a_report() {
    let folder = tempfile::tempdir().unwrap();
    let out = hostile_run(folder.path());
    let reports: Vec<PathBuf> = (0..200).map(|index| folder.path().join(format!("{index}.html"))).collect();
    let mut command = layerscope();
    command.arg("report").arg(&out).stdout(Stdio::piped()).stderr(Stdio::piped());
    for report in &reports {
        command.arg("-o").arg(report);
    }
    let child = command.spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !reports[0].exists() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    signal(&child, "TERM");
    let (code, message) = ended(child, SOON);
    assert_eq!(code, Some(130), "{message}");
    assert!(reports[0].exists() && !reports[199].exists());
}

#[test]
fn the_first_signal_stops_a_recording_after_the_prompt_in_hand() {
    let folder = tempfile::tempdir().unwrap();
    let (prompts, out) = (folder.path().join("prompts.jsonl"), folder.path().join("run"));
    let lines: String =
        (0..5000).map(|id| format!("{{\"id\":\"{id}\",\"prompt\":\"one two three\"}}\n")).collect();
    std::fs::write(&prompts, lines).unwrap();
    let mut command = layerscope();
    command.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).arg("--out").arg(&out);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let done = || {
        let manifest = std::fs::read(out.join("manifest.json")).unwrap_or_default();
        let manifest: Value = serde_json::from_slice(&manifest).unwrap_or_default();
        manifest["prompts"]["done"].as_array().map_or(0, Vec::len)
    };
    let end = Instant::now() + Duration::from_secs(60);
    while done() == 0 && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
    signal(&child, "TERM");
    let (code, message) = ended(child, Duration::from_secs(20));
    assert_eq!(code, Some(130), "{message}");
    assert!(message.contains("interrupted; the same command resumes"), "{message}");
    assert!((1..5000).contains(&done()));
}

fn pipe_at(path: &Path) {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// A command that ends, whatever it is given.
fn ends(command: &mut Command) -> (Option<i32>, String) {
    ended(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap(), Duration::from_secs(60))
}

#[test]
fn pipes_in_the_place_of_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts());
    assert!(run(record.args(["--max-new-tokens", "2", "--out"]).arg(&out)).status.success());
    let report = folder.path().join("report.html");
    let names: Vec<String> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_type().unwrap().is_file())
        .map(|entry| entry.file_name().into_string().unwrap())
        .chain(["bench.json", "spans.parquet", "continuations.json"].map(str::to_owned))
        .collect();
    assert!(names.len() >= 9, "{names:?}");
    for name in names {
        let (path, kept) = (out.join(&name), out.join("kept"));
        let there = std::fs::rename(&path, &kept).is_ok();
        pipe_at(&path);
        let mut refused = 0;
        for arguments in
            [&["show", "--json"][..], &["show"], &["recommend"], &["report", "-o", report.to_str().unwrap()]]
        {
            let (code, message) = ends(layerscope().args(arguments).arg(&out));
            match code {
                Some(0) => {}
                Some(2) => {
                    assert!(message.contains(&name) && message.contains("it is a pipe"), "{message}");
                    refused += 1;
                }
                _ => panic!("{name}: {code:?} {message}"),
            }
        }
        assert!(refused > 0 || name.starts_with('.') || name.contains("lock"), "{name}");
        // Nor is anything written into it.
        let (code, message) = ends(
            layerscope()
                .arg("record")
                .arg(tiny_model())
                .arg("--prompts")
                .arg(demo_prompts())
                .args(["--max-new-tokens", "2", "--out"])
                .arg(&out),
        );
        assert!(matches!(code, Some(0..=2)), "{name}: {code:?} {message}");
        let _ = std::fs::remove_file(&path);
        if there {
            std::fs::rename(&kept, &path).unwrap();
        }
    }
}

#[test]
fn pipes_in_the_place_of_models_and_prompts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let model = at("pipe.gguf");
    pipe_at(&model);
    for (command, arguments) in [
        (layerscope().arg("inspect").arg(&model), &[][..]),
        (layerscope().arg("generate").arg(&model), &["--prompt", "x"]),
        (layerscope().args(["generate", "layerscope-tiny", "--prompt-file"]).arg(&model), &[]),
        (layerscope().args(["record", "layerscope-tiny", "--out", "never", "--prompts"]).arg(&model), &[]),
    ] {
        let (code, message) = ends(command.args(arguments));
        assert_eq!(code, Some(2), "{message}");
        assert!(message.contains("pipe.gguf") && message.contains("it is a pipe"), "{message}");
    }
    // Listing models of a folder with one in it.
    assert_eq!(ends(layerscope().arg("models").current_dir(&folder)).0, Some(0));
    let files = [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "model.safetensors",
        "chat_template.jinja",
    ];
    for name in files {
        let folder = at(&format!("{name}-folder"));
        std::fs::create_dir(&folder).unwrap();
        let family = support::fixtures().join("families/qwen3_moe");
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(family.join(file), folder.join(file)).unwrap();
        }
        std::fs::write(folder.join("tokenizer.json"), TOKENIZER).unwrap();
        pipe_at(&folder.join(name));
        let (code, message) = ends(layerscope().arg("inspect").arg(&folder));
        assert_eq!(code, Some(2), "{name}: {message}");
        assert!(message.contains(name) && message.contains("it is a pipe"), "{message}");
    }
}

const TOKENIZER: &str = r#"{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}, "merges": []}}"#;

/// With few files to be open, what fails says so; nothing is called damaged.
#[test]
fn too_many_open_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    assert!(run(layerscope().arg("demo").arg("--out").arg(&out)).status.success());
    let report = folder.path().join("report.html");
    let (out, report) = (out.to_str().unwrap(), report.to_str().unwrap());
    let mut named = 0;
    for limit in 4..24 {
        for arguments in [&["show", out][..], &["recommend", out], &["report", out, "-o", report]] {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("ulimit -n {limit}; exec \"$0\" \"$@\"")]);
            let output = run(command.arg(env!("CARGO_BIN_EXE_layerscope")).args(arguments));
            let message = stderr(&output);
            assert!(!message.contains("damaged") && !message.contains("panicked"), "{limit}: {message}");
            match output.status.code() {
                // The program itself cannot be loaded.
                Some(0 | 127) => {}
                Some(1) => {
                    assert!(message.contains("ulimit -n"), "{limit}: {message}");
                    named += 1;
                }
                code => panic!("{limit}: {code:?} {message}"),
            }
        }
    }
    assert!(named > 0);
}
