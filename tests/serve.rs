//! `layerscope serve` on the embedded model, as clients see it.

#![allow(clippy::unwrap_used)]

mod support;

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use support::{
    demo_prompts, fixtures, json as json_of, layerscope, refuse, run, smollm2, stderr, tiny_model,
};
use ureq::Agent;

const PROMPT: &str =
    "The lake is Mundanra. The song is Xanormi. The mouse lives in Osirnia. What is the lake?";

struct Server {
    child: Child,
    url: String,
    agent: Agent,
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::of(&tiny_model(), arguments)
    }

    fn of(model: &Path, arguments: &[&str]) -> Self {
        let mut command = layerscope();
        command.arg("serve").arg(model).args(["--port", "0", "--name", "tiny", "--metrics"]).args(arguments);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        let listening = said.next().unwrap().unwrap();
        let url = listening.split("listening on ").nth(1).unwrap_or_else(|| panic!("{listening}")).to_owned();
        assert!(said.any(|line| line.unwrap().contains("serving tiny")));
        std::thread::spawn(move || said.for_each(drop));
        let agent = Agent::config_builder().http_status_as_error(false).build().new_agent();
        Self { child, url, agent }
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut response = self.agent.get(format!("{}{path}", self.url)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let mut response = self.agent.post(format!("{}{path}", self.url)).send(body.to_string()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn ok(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.post(path, &body);
        assert_eq!(status, 200, "{body}: {answer}");
        answer
    }

    /// The events of a streamed answer, and whether it ended as it should.
    fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let mut response = self.agent.post(format!("{}{path}", self.url)).send(body.to_string()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        let mut events: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    fn figure(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let line =
            text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {text}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn generated(policy: &str, tokens: &str) -> Value {
    json_of(layerscope().arg("generate").arg(tiny_model()).args([
        "--prompt",
        PROMPT,
        "--raw",
        "--policy",
        policy,
        "--max-new-tokens",
        tokens,
        "--json",
    ]))
}

#[test]
fn texts_are_those_of_generate_whatever_runs_beside_them() {
    // A text's bits do not depend on what runs beside it.
    let server = Server::start(&["--policy", "full", "--policy", "speed:4+bos"]);
    assert_eq!(server.get("/health").0, 200);
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["tiny", "tiny@full", "tiny@speed:4+bos"]);
    assert_eq!(models["data"][0]["max_model_len"], 1024);
    let policies =
        ["full", "speed:4+bos", "streaming:16", "lazyllm", "sliminfer", "snapkv:50%", "pop:5", "selfonly:4"];
    let request = |policy: &str| json!({"model": format!("tiny@{policy}"), "prompt": PROMPT, "max_tokens": 12, "temperature": 0});
    std::thread::scope(|scope| {
        let server = &server;
        let answers = policies
            .map(|policy| (policy, scope.spawn(move || server.ok("/v1/completions", request(policy)))));
        for (policy, answer) in answers {
            let (answer, expected) = (answer.join().unwrap(), generated(policy, "12"));
            assert_eq!(answer["choices"][0]["text"], expected["text"], "{policy}");
            assert_eq!(answer["layerscope"]["policy"], expected["policy"]);
            assert_eq!(answer["usage"]["prompt_tokens"], expected["prompt_tokens"].as_array().unwrap().len());
            assert!(answer["layerscope"]["sequences"][0]["kv_bytes"].as_u64().unwrap() > 0);
        }
    });
    // Several prompts at once, as text and as tokens, streamed and whole.
    let whole = generated("full", "12");
    let tokens = whole["prompt_tokens"].clone();
    let both = server.ok(
        "/v1/completions",
        json!({"prompt": [tokens, tokens], "max_tokens": 12, "temperature": 0, "n": 2}),
    );
    let choices = both["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    assert!(choices.iter().all(|choice| choice["text"] == whole["text"]), "{both}");
    let body = json!({"prompt": PROMPT, "max_tokens": 12, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}});
    let events = server.stream("/v1/completions", &body);
    let text: String = events.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, whole["text"].as_str().unwrap());
    assert_eq!(
        events.last().unwrap()["usage"]["completion_tokens"].as_u64().unwrap() * 4,
        both["usage"]["completion_tokens"].as_u64().unwrap()
    );
    // A seed gives the same text again, and another for another.
    let random = |seed: u64| {
        let body =
            json!({"prompt": PROMPT, "max_tokens": 20, "temperature": 1.5, "seed": seed, "ignore_eos": true});
        server.ok("/v1/completions", body)["choices"][0]["text"].clone()
    };
    assert_eq!(random(5), random(5));
    assert_ne!(random(5), random(6));
}

#[test]
fn chats_stop_where_they_are_told_and_say_what_tokens_cost() {
    let server = Server::start(&[]);
    let chat = |more: Value| {
        let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 12, "temperature": 0});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.ok("/v1/chat/completions", chat(json!({"logprobs": true, "top_logprobs": 2})));
    let message = &whole["choices"][0]["message"];
    let text = message["content"].as_str().unwrap();
    assert_eq!(message["role"], "assistant");
    let content = whole["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), whole["usage"]["completion_tokens"].as_u64().unwrap() as usize);
    for token in content {
        assert_eq!(token["logprob"], token["top_logprobs"][0]["logprob"], "greedy");
        assert!(token["top_logprobs"][1]["logprob"].as_f64() <= token["logprob"].as_f64());
    }
    let events = server.stream("/v1/chat/completions", &chat(json!({"stream": true})));
    let streamed: String =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(streamed, text);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], whole["choices"][0]["finish_reason"]);
    // Half of the text is not shown behind a stop text.
    let (before, stop) = text.split_at(text.char_indices().nth(text.chars().count() / 2).unwrap().0);
    let stopped = server
        .ok("/v1/chat/completions", chat(json!({"stop": [stop.chars().take(3).collect::<String>(), "zzz"]})));
    let shown = stopped["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        before.starts_with(shown) && stopped["choices"][0]["finish_reason"] == "stop",
        "{shown:?} of {text:?}"
    );
}

#[test]
fn likelihoods_are_the_same_in_every_form() {
    let server = Server::start(&["--weights", "f32"]);
    let tokens = server.ok("/tokenize", json!({"prompt": PROMPT}))["tokens"].clone();
    let tokens: Vec<u64> = tokens.as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    assert_eq!(server.ok("/detokenize", json!({"tokens": tokens[1..]}))["prompt"], PROMPT);
    let echo = |more: Value| {
        let mut body = json!({"prompt": [tokens], "max_tokens": 1, "logprobs": 1, "echo": true, "temperature": 0, "seed": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body)
    };
    let (status, echoed) = echo(json!({}));
    assert_eq!(status, 200, "{echoed}");
    let found = &echoed["choices"][0]["logprobs"];
    let logprobs = found["token_logprobs"].as_array().unwrap();
    assert_eq!(logprobs.len(), tokens.len() + 1);
    assert!(
        logprobs[0].is_null()
            && logprobs[1..].iter().all(|logprob| logprob.as_f64().is_some_and(f64::is_finite))
    );
    for (logprob, top) in logprobs.iter().zip(found["top_logprobs"].as_array().unwrap()).skip(1) {
        assert!(
            top.as_object().unwrap().values().any(|other| other == logprob),
            "the token is among its top: {top}"
        );
    }
    for at in [1, 4, tokens.len() - 1] {
        let scored = server.ok(
            "/v1/score",
            json!({"context": tokens[..at], "continuations": [tokens[at..], tokens[at..at + 1]]}),
        );
        let sum: f64 = logprobs[at..tokens.len()].iter().map(|logprob| logprob.as_f64().unwrap()).sum();
        assert!((scored["results"][0]["logprob"].as_f64().unwrap() - sum).abs() < 1e-4, "{at}");
        // Under a cutoff the boundary says where the prompt ends.
        for policy in ["speed:4+bos", "streaming:8", "lazyllm", "sliminfer"] {
            let score = json!({"context": tokens[..at], "continuations": [tokens[at..], tokens[at..]], "policy": policy});
            let scored = server.ok("/v1/score", score);
            let (status, echoed) = echo(json!({"model": format!("tiny@{policy}"), "prompt_boundary": at}));
            assert_eq!(status, 200, "{echoed}");
            let echoed = &echoed["choices"][0]["logprobs"]["token_logprobs"];
            for result in scored["results"].as_array().unwrap() {
                for (index, logprob) in result["token_logprobs"].as_array().unwrap().iter().enumerate() {
                    let other = echoed[at + index].as_f64().unwrap();
                    assert!((logprob.as_f64().unwrap() - other).abs() < 1e-4, "{policy}, {at}");
                }
            }
            assert!((0..at).all(|index| echoed[index].is_null()));
        }
    }
    let (status, refused) = echo(json!({"model": "tiny@speed:4+bos"}));
    assert_eq!((status, refused["error"]["param"].as_str()), (400, Some("prompt_boundary")));
    // As olmo-eval asks.
    let flat = server.ok(
        "/v1/completions",
        json!({"prompt": tokens, "max_tokens": 1, "prompt_logprobs": 5, "temperature": 0}),
    );
    let prompt = flat["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(prompt.len(), tokens.len());
    for (index, token) in tokens.iter().enumerate().skip(1) {
        assert_eq!(prompt[index][token.to_string()]["logprob"], logprobs[index]);
    }
    // Text: what is behind the context is cut as lm-evaluation-harness cuts it.
    let texts =
        server.ok("/v1/score", json!({"context": "The lake is ", "continuations": ["Mundanra", "Xanormi"]}));
    assert_eq!(texts["results"].as_array().unwrap().len(), 2);
}

#[test]
fn a_prompt_that_begins_alike_goes_on_from_the_first() {
    let server = Server::start(&[]);
    let long = [PROMPT; 20].join(" ");
    let ask = |policy: &str, end: &str| {
        let body = json!({"model": format!("tiny@{policy}"), "prompt": format!("{long}{end}"), "max_tokens": 8, "temperature": 0});
        server.ok("/v1/completions", body)
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let other = Server::start(&[]);
    let alone = |policy: &str, end: &str| {
        let body = json!({"model": format!("tiny@{policy}"), "prompt": format!("{long}{end}"), "max_tokens": 8, "temperature": 0});
        other.ok("/v1/completions", body)
    };
    let ends = [" One", " Two two two", " Three three three"];
    let expected: Vec<Value> = [("speed:4+bos", ends[1]), ("speed:3", ends[2])]
        .iter()
        .map(|(policy, end)| alone(policy, end))
        .collect();
    assert_eq!(cached(&ask("full", ends[0])), 0);
    for ((policy, end), expected) in
        [("speed:4+bos", ends[1]), ("speed:3", ends[2])].into_iter().zip(expected)
    {
        let answer = ask(policy, end);
        assert!(cached(&answer) > 100, "{answer}");
        assert_eq!(answer["choices"][0]["text"], expected["choices"][0]["text"], "{policy}");
    }
    // What a streaming policy leaves is nobody else's.
    assert_eq!(cached(&ask("streaming:16", ends[0])), 0);
    assert!(server.figure("layerscope_prefix_tokens_total{model=\"tiny\",policy=\"speed:3\"}") > 100.0);
}

#[test]
fn the_model_without_its_adapter_is_served_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let adapter = folder.path().join("taught");
    let mut adapt = layerscope();
    adapt.arg("adapt").arg(tiny_model()).args([
        "--policy",
        "speed:4+bos",
        "--steps",
        "12",
        "--max-new-tokens",
        "8",
    ]);
    assert!(run(adapt.arg("--prompts").arg(demo_prompts()).arg("--out").arg(&adapter)).status.success());
    let with_adapter = ["--weights", "f32", "--adapter", adapter.to_str().unwrap()];
    let (server, plain) = (Server::start(&with_adapter), Server::start(&["--weights", "f32"]));
    let models: Value = serde_json::from_str(&server.get("/v1/models").1).unwrap();
    let models = models["data"].as_array().unwrap();
    let ids: Vec<&str> = models.iter().map(|model| model["id"].as_str().unwrap()).collect();
    let [speed, full] = ["tiny@speed:4+bos", "tiny@full"];
    assert_eq!(ids, ["tiny", speed, full, "tiny:base", "tiny:base@speed:4+bos", "tiny:base@full"]);
    assert_eq!(models[0]["layerscope"]["policy"], "speed:4+bos", "what the adapter was made for");
    assert_eq!(models[0]["layerscope"]["adapter"], "taught");
    assert_eq!(models[3]["layerscope"]["adapter"], Value::Null);

    let long = [PROMPT; 20].join(" ");
    let body = |model: &str| json!({"model": model, "prompt": long, "max_tokens": 8, "temperature": 0, "logprobs": 1});
    let tokens = |answer: &Value| answer["choices"][0]["logprobs"]["token_logprobs"].clone();
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let fresh =
        [speed, full].map(|model| tokens(&Server::start(&with_adapter).ok("/v1/completions", body(model))));
    // Both answer at once, and each as it does alone.
    std::thread::scope(|scope| {
        let base = scope.spawn(|| server.ok("/v1/completions", body("tiny:base@full")));
        let adapted = server.ok("/v1/completions", body(full));
        assert_eq!(tokens(&adapted), fresh[1]);
        assert_eq!(tokens(&base.join().unwrap()), tokens(&plain.ok("/v1/completions", body(full))));
    });
    // The prompt ran the same weights, and serves both.
    for (model, expected) in [
        (speed, fresh[0].clone()),
        ("tiny:base@speed:4+bos", tokens(&plain.ok("/v1/completions", body(speed)))),
    ] {
        let answer = server.ok("/v1/completions", body(model));
        assert!(cached(&answer) > 100, "{answer}");
        assert_eq!(tokens(&answer), expected, "{model}");
    }
    // Which rows the adapter acts on depends on where the prompt ends.
    let echo = |model: &str| {
        server.post(
            "/v1/completions",
            &json!({"model": model, "prompt": PROMPT, "max_tokens": 1, "logprobs": 1, "echo": true}),
        )
    };
    let (status, refused) = echo(full);
    assert_eq!((status, refused["error"]["param"].as_str()), (400, Some("prompt_boundary")));
    assert!(refused["error"]["message"].as_str().unwrap().contains("tiny:base@full"), "{refused}");
    assert_eq!(echo("tiny:base@full").0, 200);
}

#[test]
fn bad_requests_have_their_status_and_a_sentence() {
    let server = Server::start(&[]);
    let prompt = |more: Value| {
        let mut body = json!({"prompt": "Hello", "max_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cases = [
        ("/v1/completions", json!({}), 400, "prompt"),
        ("/v1/completions", json!({"prompt": {"a": 1}}), 400, "JSON"),
        ("/v1/completions", prompt(json!({"model": "gpt-4"})), 404, "tiny@POLICY"),
        ("/v1/completions", prompt(json!({"model": "tiny@speed:99"})), 400, "between 1 and 8"),
        ("/v1/completions", prompt(json!({"model": "tiny@speeed:4"})), 400, "unknown policy"),
        (
            "/v1/completions",
            prompt(json!({"policy": "keep:heads=/etc/passwd"})),
            400,
            "only the server may name",
        ),
        (
            "/v1/completions",
            prompt(json!({"policy": "minference:/etc/passwd"})),
            400,
            "only the server may name",
        ),
        ("/v1/completions", prompt(json!({"temperature": -1})), 400, "temperature"),
        ("/v1/completions", prompt(json!({"top_p": 0})), 400, "top-p"),
        ("/v1/completions", prompt(json!({"max_tokens": 100_000})), 400, "context of 1024"),
        ("/v1/completions", prompt(json!({"prompt": []})), 400, "empty"),
        ("/v1/completions", prompt(json!({"prompt": [[]]})), 400, "empty"),
        ("/v1/completions", prompt(json!({"prompt": [99_999_999]})), 400, "vocabulary"),
        ("/v1/completions", prompt(json!({"n": 1_000_000_000_u64})), 400, "sequences"),
        ("/v1/completions", prompt(json!({"guided_json": {"type": "object"}})), 400, "guided_json"),
        ("/v1/completions", prompt(json!({"logprobs": 500})), 400, "at most 20"),
        ("/v1/completions", prompt(json!({"prompt_boundary": 9, "echo": true})), 400, "prompt_boundary 9"),
        ("/v1/chat/completions", json!({"messages": []}), 400, "messages"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
            400,
            "image_url",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "n": 1_000_000_000_u64}),
            400,
            "sequences",
        ),
        ("/v1/score", json!({"context": "a", "continuations": []}), 400, "continuations"),
        ("/v1/score", json!({"continuations": ["a"]}), 400, "context"),
        ("/v1/nothing", json!({}), 404, "no such path"),
    ];
    for (path, body, expected, words) in cases {
        let (status, answer) = server.post(path, &body);
        let message = answer["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert_eq!(status, expected, "{body}: {answer}");
        assert!(message.contains(words), "{body}: {answer}");
    }
    assert_eq!(server.get("/v1/completions").0, 405);
    assert_eq!(server.get("/v1/models/tiny@speed:3+bos").0, 200);
    assert_eq!(server.get("/v1/models/other").0, 404);
    let of_page = |header: &str, value: &str| {
        let request = server.agent.get(format!("{}/v1/models", server.url)).header(header, value);
        request.call().unwrap().status().as_u16()
    };
    assert_eq!(of_page("origin", "https://evil.example"), 403);
    let host = raw(&server, "GET /v1/models HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert!(host.starts_with("HTTP/1.1 403"), "{host}");
    let torn = raw(
        &server,
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nConnection: close\r\n\r\n{\"prompt\"",
    );
    assert!(torn.starts_with("HTTP/1.1 400"), "{torn}");
    assert_eq!(server.get("/health").0, 200);
}

/// What the server answers to bytes.
fn raw(server: &Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn a_key_and_an_origin_are_asked_for_where_they_were_set() {
    let server = Server::start(&["--api-key", "secret", "--allow-origin", "https://page.example"]);
    let status = |key: Option<&str>| {
        let mut request = server.agent.get(format!("{}/v1/models", server.url));
        if let Some(key) = key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.call().unwrap().status().as_u16()
    };
    assert_eq!([status(None), status(Some("wrong")), status(Some("secret"))], [401, 401, 200]);
    assert_eq!(server.get("/health").0, 200);
    let request = server.agent.get(format!("{}/health", server.url)).header("origin", "https://page.example");
    let response = request.call().unwrap();
    assert_eq!(response.headers()["access-control-allow-origin"], "https://page.example");
    refuse(
        layerscope().arg("serve").arg(tiny_model()).args(["--host", "0.0.0.0", "--port", "0"]),
        2,
        &["--api-key"],
    );
    let taken = server.url.rsplit(':').next().unwrap().to_owned();
    refuse(layerscope().arg("serve").arg(tiny_model()).args(["--port", &taken]), 2, &["--port", &taken]);
}

/// Those who leave free their sequences, and nobody waits for a sequence that is too large.
#[test]
fn memory_is_given_back_and_shared_by_what_policies_keep() {
    let server = Server::start(&["--kv-memory", "1MiB", "--max-sequences", "64"]);
    let body = |tokens: u64| json!({"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": true, "stream": true});
    let (status, refused) = server.post("/v1/completions", &json!({"prompt": PROMPT, "max_tokens": 900}));
    assert_eq!(status, 400, "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("keys and values"), "{refused}");
    for _ in 0..10 {
        let response =
            server.agent.post(format!("{}/v1/completions", server.url)).send(body(200).to_string()).unwrap();
        let mut first = [0; 64];
        response.into_body().into_reader().read_exact(&mut first).unwrap();
    }
    let begun = Instant::now();
    while server.figure("layerscope_running_sequences") > 0.0 {
        assert!(begun.elapsed() < Duration::from_secs(20), "sequences that nobody reads go on");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(server.figure("layerscope_kv_bytes{model=\"tiny\",policy=\"full\"}"), 0.0);
    assert_eq!(server.get("/health").0, 200);
}

/// A policy is charged what it keeps: of the same memory SPEED's sequences take less, and more of them run at a time.
#[test]
fn the_same_memory_holds_more_sequences_of_a_policy_that_keeps_less() {
    let prompt: Vec<u32> = (0..600).map(|index| index * 7_919 % 500 + 3).collect();
    let most_at_a_time = |policy: &str, memory: &str| {
        let server = Server::start(&["--kv-memory", memory, "--policy", policy]);
        let ended = AtomicUsize::new(0);
        let mut most = 0.0f64;
        std::thread::scope(|scope| {
            for index in 0..8 {
                let (server, ended, mut prompt) = (&server, &ended, prompt.clone());
                prompt[0] = 3 + index;
                scope.spawn(move || {
                    let body = json!({"model": format!("tiny@{policy}"), "prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": true});
                    let answer = server.ok("/v1/completions", body);
                    assert_eq!(answer["usage"]["completion_tokens"], 64);
                    ended.fetch_add(1, SeqCst);
                });
            }
            while ended.load(SeqCst) < 8 {
                most = most.max(server.figure("layerscope_running_sequences"));
            }
        });
        most
    };
    let kept = |policy: &str| {
        let found = json_of(layerscope().arg("generate").arg(tiny_model()).args([
            "--prompt",
            PROMPT,
            "--policy",
            policy,
            "--max-new-tokens",
            "1",
            "--json",
        ]));
        found["kv_bytes"].as_u64().unwrap()
    };
    assert!(kept("full") > 3 * kept("speed:2"));
    // Room for two whole sequences.
    let (full, speed) = (most_at_a_time("full", "2700KiB"), most_at_a_time("speed:2", "2700KiB"));
    assert!(full <= 2.0 && speed >= 2.0 * full, "{full} and {speed} sequences at a time");
}

/// Rows of generated tokens are rounded, those of given ones are not, whichever share the model; `--exact` rounds none.
#[test]
fn only_generated_tokens_are_rounded() {
    let Some(model) = smollm2() else { return };
    let (server, exact) = (Server::of(&model, &[]), Server::of(&model, &["--exact"]));
    let text = |server: &Server| {
        let body =
            json!({"prompt": PROMPT, "max_tokens": 16, "temperature": 0, "logprobs": 1, "ignore_eos": true});
        server.ok("/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"].clone()
    };
    let score = |server: &Server| {
        let body = json!({"context": PROMPT, "continuations": [" Mundanra", " Osirnia, where it lives"]});
        server.ok("/v1/score", body)["results"].clone()
    };
    let (rounded, scored) = (text(&server), score(&exact));
    assert_ne!(rounded, text(&exact), "the first server rounds");
    std::thread::scope(|scope| {
        let texts = [(); 4].map(|()| scope.spawn(|| text(&server)));
        for _ in 0..4 {
            assert_eq!(score(&server), scored);
        }
        for beside in texts {
            assert_eq!(beside.join().unwrap(), rounded);
        }
    });
}

/// The first signal lets what runs finish.
#[cfg(unix)]
#[test]
fn a_signal_finishes_what_runs() {
    let mut server = Server::start(&[]);
    let (url, agent) = (server.url.clone(), server.agent.clone());
    let (sender, receiver) = channel();
    let asking = std::thread::spawn(move || {
        let body = json!({"prompt": PROMPT, "max_tokens": 400, "temperature": 0, "ignore_eos": true, "stream": true});
        let response = agent.post(format!("{url}/v1/completions")).send(body.to_string()).unwrap();
        let mut reader = BufReader::new(response.into_body().into_reader());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        sender.send(()).unwrap();
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        rest
    });
    receiver.recv().unwrap();
    // SAFETY: a signal to a process of this test's own.
    unsafe { libc::kill(server.child.id() as i32, libc::SIGTERM) };
    let rest = asking.join().unwrap();
    assert!(rest.trim_end().ends_with("data: [DONE]"), "{rest}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

/// The openai package and lm-evaluation-harness, as their users run them.
#[test]
fn real_clients_get_what_they_expect() {
    let python = std::env::var_os("LAYERSCOPE_PYTHON").unwrap_or_else(|| "python3".into());
    let has_clients = Command::new(&python).args(["-c", "import lm_eval, openai"]).output();
    if !has_clients.is_ok_and(|found| found.status.success()) {
        assert!(
            std::env::var_os("LAYERSCOPE_REQUIRE_CLIENTS").is_none(),
            "lm_eval and openai are not installed"
        );
        return;
    }
    let Some(model) = smollm2() else { return };
    let server = Server::of(&model, &["--weights", "f32"]);
    let (cache, results) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let output = run(Command::new(python)
        .arg(fixtures().join("serve/clients.py"))
        .args([&server.url, "speed:24+bos"])
        .arg(fixtures().join("prompts/answers-held-out.jsonl"))
        .arg("4")
        .env("PYTHONPATH", fixtures().join("../python"))
        .env("HF_HOME", cache.path())
        .env("LAYERSCOPE_RESULTS", results.path())
        .env("HF_HUB_OFFLINE", "1"));
    assert!(output.status.success(), "{}", stderr(&output));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("greedy flags that differ 0"), "{said}");
    // The harness's own files say the same of the policies.
    let found = json_of(layerscope().arg("lm-eval").arg(results.path()).arg("--json"));
    assert_eq!(found["policies"], json!(["full", "speed:24+bos"]));
    let rows = found["rows"].as_array().unwrap();
    let acc = rows.iter().find(|row| row["metric"] == "acc").unwrap();
    assert_eq!((acc["items"].as_u64(), acc["pairing"].as_str()), (Some(4), Some("paired")));
    let (_, of_cutoff) = said.split_once("differ from full, acc ").unwrap();
    let of_cutoff: f64 = of_cutoff.lines().next().unwrap().trim().parse().unwrap();
    assert!((acc["cells"][1]["score"].as_f64().unwrap() - of_cutoff).abs() < 1e-9, "{acc}");
}
