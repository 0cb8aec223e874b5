//! What is read takes bounded memory: hostile chat templates, long prompts and names.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod support;

use std::io::Write;
use std::path::Path;
use std::process::Command;
use support::{refuse, stderr, tiny_model, with_tokenizer};

/// Address space that the binary has, of which its threads and code take a part, KiB.
const ADDRESS_SPACE: usize = 1 << 20;

/// The binary, which cannot take more than [`ADDRESS_SPACE`].
fn confined() -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {ADDRESS_SPACE} && exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_layerscope"));
    // Each arena reserves 64 MiB, whether it needs them or not.
    command.env("MALLOC_ARENA_MAX", "1");
    command
}

fn generate(model: &Path) -> Command {
    let mut command = confined();
    command.arg("generate").arg(model).args(["--max-new-tokens", "2", "--prompt", "abc"]);
    command
}

#[test]
fn hostile_chat_templates_are_a_sentence() {
    let home = tempfile::tempdir().unwrap();
    let model = with_tokenizer("gpt2", home.path());
    let template = |source: &str| std::fs::write(model.join("chat_template.jinja"), source).unwrap();
    template("{{ messages[0].content }}");
    let output = support::run(&mut generate(&model));
    assert!(output.status.success(), "{}", stderr(&output));
    let deep = format!("{{{{ {}1{} }}}}", "[".repeat(20_000), "]".repeat(20_000));
    let dashes = format!("{{{{ {}1 }}}}", "-".repeat(40_000));
    for source in [
        "{% set ns=namespace(x=0) %}{% set ns.x=ns %}{{ ns }}",
        "{% set ns=namespace(x=0) %}{% for i in range(100000) %}{% set ns.x=[ns.x] %}{% endfor %}{{ ns.x }}",
        &deep,
        &dashes,
        "{{ range(100000)|join('a'*1000000) }}",
        "{{ '%999999999s'|format('x') }}",
        "{{ 'a\nb'|indent(3000000000) }}",
        "{% set ns=namespace(x='a') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ 'x' * 100000 }}{% endfor %}{% endfor %}",
    ] {
        template(source);
        refuse(&mut generate(&model), 2, &["the chat template of", "gpt2 cannot be used: "]);
    }
}

#[test]
fn a_prompt_far_beyond_the_context_is_refused_before_it_is_tokenized() {
    let folder = tempfile::tempdir().unwrap();
    let (text, prompts) = (folder.path().join("long.txt"), folder.path().join("prompts.jsonl"));
    let long = "a long way ".repeat(1 << 20);
    std::fs::write(&text, &long).unwrap();
    let mut command = confined();
    command.arg("generate").arg(tiny_model()).arg("--prompt-file").arg(&text);
    refuse(&mut command, 2, &["the text has 11534336 bytes", "exceed the model's context of 1024"]);

    let lines = [("long", long.as_str()), ("short", "the door of ada is red")];
    let lines = lines.map(|(id, prompt)| serde_json::json!({"id": id, "prompt": prompt}).to_string());
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    let out = folder.path().join("run");
    let mut command = confined();
    command.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).arg("--out").arg(&out);
    let output = support::run(command.args(["--max-new-tokens", "2"]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let manifest = std::fs::read_to_string(out.join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    assert_eq!(manifest["prompts"]["done"], serde_json::json!(["short"]));
    let reason = manifest["prompts"]["failed"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("the text has ") && reason.len() < 300, "{reason}");
}

#[test]
fn long_names_are_refused_in_prompt_files_and_in_runs() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("prompts.jsonl");
    let record = |out: &str| {
        let mut command = confined();
        command.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts);
        command.args(["--max-new-tokens", "2", "--out"]).arg(folder.path().join(out));
        command
    };
    let mut file = std::fs::File::create(&prompts).unwrap();
    let id = "x".repeat(10 << 20);
    writeln!(file, "{{\"id\": \"{id}\", \"prompt\": \"the door\"}}").unwrap();
    refuse(&mut record("long"), 2, &["prompts.jsonl line 1", "the \"id\" has 10485760 bytes", "shorten it"]);

    std::fs::write(&prompts, "{\"id\": \"a\", \"prompt\": \"the door of ada is red\"}").unwrap();
    support::succeed(&mut record("run"));
    let manifest = folder.path().join("run/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, text.replace("\"a\"", &format!("\"{id}\""))).unwrap();
    for command in ["show", "report", "recommend"] {
        let mut reading = confined();
        reading.arg(command).arg(folder.path().join("run"));
        if command == "report" {
            reading.arg("-o").arg(folder.path().join("report.json"));
        }
        refuse(&mut reading, 2, &["manifest.json", "a prompt id has 10485760 bytes"]);
    }
}
