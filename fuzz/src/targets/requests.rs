//! Requests to a server on this machine.

use crate::Target;
use crate::mutate::json;
use crate::recorded::MODEL;
use layerscope_engine::{Device, Interrupt, Model, ModelSource, Policy, WeightsPrecision};
use layerscope_server::{Event, Loaded, Options, serve};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

/// A path and a body; what is no such object is the body.
pub const TARGET: Target = Target { name: "requests", read, mutate: json::changed, seeds };

const PATHS: [&str; 5] = ["/v1/completions", "/v1/chat/completions", "/v1/score", "/tokenize", "/detokenize"];

fn read(input: &[u8]) {
    let request: Option<Value> = serde_json::from_slice(input).ok();
    let path = request.as_ref().and_then(|request| request["path"].as_str());
    let path = PATHS.into_iter().find(|known| Some(*known) == path).unwrap_or(PATHS[0]);
    let body = request.as_ref().and_then(|request| request.get("body"));
    let body = body.map_or_else(|| input.to_vec(), |body| body.to_string().into_bytes());
    let answer = ask(path, &body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer of HTTP");
    let status = head.split(' ').nth(1).expect("a status");
    assert!(status != "500" && head.starts_with("HTTP/1.1 "), "{answer}");
    if status != "200" {
        let error: Value = serde_json::from_str(body).expect("an error as an object");
        assert!(error["error"]["message"].as_str().is_some_and(|sentence| !sentence.is_empty()), "{answer}");
    }
}

/// The answer of the server, which is started with the first request.
fn ask(path: &str, body: &[u8]) -> String {
    static ADDRESS: OnceLock<String> = OnceLock::new();
    let address = ADDRESS.get_or_init(|| {
        let address = start();
        // It answers 503 while it loads.
        while ask_at(&address, "/tokenize", b"{}").starts_with("HTTP/1.1 503") {
            std::thread::sleep(Duration::from_millis(20));
        }
        address
    });
    ask_at(address, path, body)
}

fn ask_at(address: &str, path: &str, body: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).expect("a connection");
    connection.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    // The rest of a body that is refused early finds no reader.
    let _ = connection.write_all(head.as_bytes()).and_then(|()| connection.write_all(body));
    let mut answer = vec![];
    connection.read_to_end(&mut answer).expect("an answer");
    String::from_utf8(answer).expect("text")
}

/// A server with the embedded model.
fn start() -> String {
    let options = Options {
        host: "127.0.0.1".to_owned(),
        port: 0,
        name: Some("tiny".to_owned()),
        api_key: None,
        allow_origins: vec![],
        exact: false,
        metrics: false,
        max_sequences: 8,
        queue: 64,
        kv_memory: Some(64 << 20),
        default_max_tokens: 4,
        timeout: Duration::from_secs(2),
        viewer: None,
        page: &[],
    };
    let load = || {
        let source = ModelSource::embedded("layerscope-tiny", MODEL);
        let model = Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(()))?;
        let policies = vec![Policy::full(model.config().layers)];
        Ok(Loaded { model, base: None, policies })
    };
    // The server's thread would be one of a pool that it makes; other targets need all of a pool's threads.
    rayon::current_num_threads();
    let (told, url) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        let tell = |event: Event<'_>| {
            if let Event::Listening { url } = event {
                let _ = told.send(url.trim_start_matches("http://").to_owned());
            }
        };
        serve(options, load, &Interrupt::default(), &tell).expect("a server");
    });
    url.recv().expect("an address")
}

fn seeds() -> Vec<Vec<u8>> {
    [
        r#"{"path": "/v1/completions", "body": {"model": "tiny@speed:4+bos", "prompt": ["Facts:", "The lake"], "max_tokens": 3,
            "n": 2, "seed": 1, "temperature": 0.7, "top_p": 0.9, "top_k": 5, "stop": ["."], "logprobs": 2, "logit_bias": {"5": -1.5}}}"#,
        r#"{"path": "/v1/completions", "body": {"model": "tiny", "prompt": [5, 6, 7, 8], "max_tokens": 2, "echo": true, "logprobs": 1,
            "prompt_boundary": 2, "policy": "speed:4", "stream": true, "stream_options": {"include_usage": true}}}"#,
        r#"{"path": "/v1/chat/completions", "body": {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}],
            "max_completion_tokens": 2, "logprobs": true, "top_logprobs": 2, "presence_penalty": 0.5, "frequency_penalty": 0.5}}"#,
        r#"{"path": "/v1/score", "body": {"policy": "streaming:4+sinks=1", "context": "The lake of", "continuations": [" a", [5, 6]]}}"#,
        r#"{"path": "/tokenize", "body": {"prompt": "The lake", "add_special_tokens": false}}"#,
        r#"{"path": "/detokenize", "body": {"tokens": [5, 6, 7]}}"#,
        "not JSON",
    ]
    .map(|seed| seed.as_bytes().to_vec())
    .to_vec()
}
