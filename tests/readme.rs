//! The README's commands, as written, one after the other in a fresh folder.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod support;

use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use support::{fixtures, smollm2, stderr};

/// Commands that are tested elsewhere: the build, the tests and the wheel.
const ELSEWHERE: [&str; 3] = ["cargo run", "cargo test", "pip install"];

/// What the commands are given besides: no window can be opened here, and two steps of training say enough.
const SHIM: &str = r#"#!/bin/bash
case $1 in
    view) more="--screenshot view.png" ;;
    adapt) more="--steps 2" ;;
esac
exec "$LAYERSCOPE" "$@" $more
"#;

/// The lines of the README's shell blocks.
fn commands() -> Vec<String> {
    let readme = std::fs::read_to_string(fixtures().join("../README.md")).unwrap();
    let mut commands = vec![];
    for block in readme.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap();
        commands.extend(block.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned));
    }
    commands
}

/// The first prompts of a file, which are the shorter ones.
fn first_prompts(name: &str, to: &Path) {
    let text = std::fs::read_to_string(fixtures().join("prompts").join(name)).unwrap();
    let few: String = text.lines().take(4).map(|line| format!("{line}\n")).collect();
    std::fs::write(to.join(name), few).unwrap();
}

#[test]
fn every_command_works_after_the_ones_before_it() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [bin, scripts] = ["bin", "fixtures"].map(|name| folder.path().join(name));
    let prompts = scripts.join("prompts");
    for path in [&bin, &prompts] {
        std::fs::create_dir_all(path).unwrap();
    }
    std::fs::write(bin.join("layerscope"), SHIM).unwrap();
    // As the real one, where the model is there already.
    let fetched = format!("#!/bin/sh\necho '{}'\n", model.display());
    std::fs::write(scripts.join("fetch-smollm2.sh"), fetched).unwrap();
    for script in [bin.join("layerscope"), scripts.join("fetch-smollm2.sh")] {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(script, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    for name in ["five-categories.jsonl", "answers.jsonl"] {
        first_prompts(name, &prompts);
    }
    let commands = commands();
    let own: Vec<&String> =
        commands.iter().filter(|line| !ELSEWHERE.iter().any(|start| line.starts_with(start))).collect();
    assert!(own.len() >= 8 && own.iter().any(|line| line.contains("layerscope record")), "{own:?}");
    let mut script = "set -e\n".to_owned();
    for command in own {
        writeln!(script, "echo '$ '{} >&2\n{command}", shell_quoted(command)).unwrap();
    }
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(folder.path())
        .env("PATH", path)
        .env("LAYERSCOPE", env!("CARGO_BIN_EXE_layerscope"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Recommended"), "{said}");
    for made in ["run/manifest.json", "view.png", "report.html", "adapter/adapter_model.safetensors"] {
        assert!(folder.path().join(made).exists(), "{made}");
    }
}

fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
