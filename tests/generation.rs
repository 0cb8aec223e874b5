//! `layerscope generate` and `layerscope chat`: how tokens are chosen, where texts end, what an answer tells.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Stdio};
use support::{json, layerscope, refuse, smollm2, stderr, tiny_model};

const PROMPT: &str =
    "The lake is Mundanra. The song is Xanormi. The mouse lives in Osirnia. What is the lake?";

fn generated(arguments: &[&str]) -> Value {
    let mut command = layerscope();
    command.arg("generate").arg(tiny_model()).args(["--prompt", PROMPT, "--raw", "--ignore-eos", "--json"]);
    json(command.args(["--max-new-tokens", "24"]).args(arguments))
}

#[test]
fn tokens_come_with_their_texts_and_log_probabilities() {
    let found = generated(&["--top-logprobs", "3"]);
    let array = |name: &str| found[name].as_array().unwrap().clone();
    let (texts, logprobs, top) = (array("token_texts"), array("logprobs"), array("top_logprobs"));
    assert_eq!([texts.len(), logprobs.len(), top.len()], [24; 3]);
    let joined: String = texts.iter().map(|text| text.as_str().unwrap()).collect();
    assert_eq!(joined, found["text"].as_str().unwrap());
    assert_eq!(found["ended_by"], "length");
    for ((logprob, top), token) in logprobs.iter().zip(&top).zip(array("tokens")) {
        // Greedy: the token is the first of the most likely ones, which are in their order.
        assert_eq!((&top[0]["token"], &top[0]["logprob"]), (&token, logprob));
        let of: Vec<f64> =
            top.as_array().unwrap().iter().map(|one| one["logprob"].as_f64().unwrap()).collect();
        assert!(of.len() == 3 && of.is_sorted_by(|a, b| a >= b) && of[0] <= 0.0);
    }
    assert!(generated(&[])["top_logprobs"].is_null());
}

#[test]
fn a_text_ends_before_the_first_stop_text() {
    let whole = generated(&[]);
    let whole = whole["text"].as_str().unwrap();
    let (start, _) = whole.char_indices().nth(12).unwrap();
    let (end, _) = whole.char_indices().nth(15).unwrap();
    let stop = &whole[start..end];
    let found = generated(&["--stop", "never in it", "--stop", stop]);
    assert_eq!(found["text"].as_str().unwrap(), &whole[..whole.find(stop).unwrap()]);
    assert_eq!(found["ended_by"], "stop_text");
    let streamed = layerscope()
        .arg("generate")
        .arg(tiny_model())
        .args(["--prompt", PROMPT, "--raw", "--ignore-eos", "--max-new-tokens", "24", "--stop", stop])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(streamed.stdout).unwrap().trim_end_matches('\n'),
        found["text"].as_str().unwrap()
    );
}

#[test]
fn sampling_and_penalties_change_texts_as_they_say() {
    let tokens = |arguments: &[&str]| generated(arguments)["tokens"].clone();
    let greedy = tokens(&[]);
    // Only the most likely token is as likely as itself.
    assert_eq!(tokens(&["--temperature", "5", "--min-p", "1"]), greedy);
    assert_ne!(tokens(&["--temperature", "5", "--min-p", "0.001"]), greedy);
    // So far down that none comes twice.
    let found = tokens(&["--repetition-penalty", "1000"]);
    let mut found: Vec<u64> = found.as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 24);
    for (option, number, said) in [
        ("--min-p", "1.5", "min-p must be 0 to 1"),
        ("--min-p", "-0.1", "min-p must be 0 to 1"),
        ("--repetition-penalty", "0", "repetition penalty 0 must be above 0"),
    ] {
        let mut command = layerscope();
        refuse(command.arg("generate").arg(tiny_model()).args(["--prompt", "x", option, number]), 2, &[said]);
    }
}

#[test]
fn keys_and_values_are_kept_in_the_type_that_is_asked_for() {
    let kv = |arguments: &[&str]| {
        let found = generated(arguments);
        assert_eq!(found["kv_bytes"], found["kv_bytes_model"]);
        (found["kv"].as_str().unwrap().to_owned(), found["kv_bytes"].as_u64().unwrap())
    };
    let (name, bytes) = kv(&[]);
    assert_eq!(name, "f16");
    assert_eq!(kv(&["--weights", "f32"]), ("f32".to_owned(), 2 * bytes));
    assert_eq!(kv(&["--kv", "f32"]), ("f32".to_owned(), 2 * bytes));
    assert_eq!(kv(&["--kv", "q8_0"]), ("q8_0".to_owned(), bytes * 34 / 64));
    assert_eq!(kv(&["--weights", "f32", "--kv", "q8_0"]), ("q8_0".to_owned(), bytes * 34 / 64));
    let mut command = layerscope();
    refuse(
        command
            .arg("generate")
            .arg(tiny_model())
            .args(["--prompt", PROMPT, "--kv", "bf16", "--device", "cpu"]),
        2,
        &["CPU", "--kv bf16"],
    );
}

fn chat(model: &std::path::Path, arguments: &[&str], lines: &[&str]) -> std::process::Output {
    let mut command = layerscope();
    command.arg("chat").arg(model).args(["--max-new-tokens", "24"]).args(arguments);
    talk(command, lines)
}

fn talk(mut command: Command, lines: &[&str]) -> std::process::Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    for line in lines {
        writeln!(input, "{line}").unwrap();
    }
    drop(input);
    child.wait_with_output().unwrap()
}

#[test]
fn a_chat_keeps_its_turns_and_takes_over_what_has_run() {
    let Some(model) = smollm2() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (file, nowhere) = (folder.path().join("chat.jsonl"), folder.path().join("no/chat.jsonl"));
    let (save, fail) = (format!("/save {}", file.display()), format!("/save {}", nowhere.display()));
    let lines = [
        "What is the capital of France? Answer in one word.",
        "And of Italy?",
        "/policy speed:26+bos",
        "/again",
        "/policy speed:99",
        "/nothing",
        &fail,
        &save,
        "/undo",
        "/undo",
        "/again",
    ];
    let output = chat(&model, &["--exact", "--system", "You answer in one word."], &lines);
    let told = stderr(&output);
    assert!(output.status.success(), "{told}");
    let answers: Vec<&str> = told.lines().filter(|line| line.contains("prompt tokens")).collect();
    assert_eq!(answers.len(), 3, "{told}");
    assert!(answers[0].starts_with("[full]") && answers[0].contains("TTFT") && answers[0].contains("KV"));
    assert!(!answers[0].contains("taken over"), "{told}");
    assert!(answers[1].contains("taken over") && answers[2].contains("taken over"), "{told}");
    assert!(answers[2].starts_with("[speed:26+bos]"), "{told}");
    // What is wrong is said, and the chat goes on.
    for wrong in ["speed:99", "/nothing is no command", "cannot write", "nothing was asked yet"] {
        assert!(told.contains(wrong), "{wrong}: {told}");
    }
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let roles: Vec<&str> =
        saved["messages"].as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("Paris") && said.contains("Rome"), "{said}");
    let last = saved["messages"][4]["content"].as_str().unwrap();
    assert!(said.contains(last));
}

#[test]
fn a_model_without_a_chat_template_takes_no_turns() {
    let mut command = layerscope();
    refuse(command.arg("chat").arg(tiny_model()), 2, &["no chat template", "generate --raw"]);
}
