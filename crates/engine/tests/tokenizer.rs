//! The tokenizer against ids made by `transformers`, its templates, and files that are damaged.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use layerscope_engine::{GgufFile, GgufValue as Value, Message, PromptText, Result, Tokenizer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

type Metadata = HashMap<String, Value>;

const SMOLLM2_TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// Written for this test in the manner of Llama 3.1: it writes BoS, trims, and asks for tools, dates and the like.
const LLAMA3_TEMPLATE: &str = r#"{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\n\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\n" }}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if message.role not in ['user', 'assistant'] %}
        {{- raise_exception("no role " + message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"#;

const SPECIAL_TOKENS: [&str; 9] = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<|end|>",
    "<pad>",
];
const MERGES: [&str; 10] = ["1 2", "12 3", "h e", "l l", "he ll", "hell o", "Ġ h", "Ġh e", "Ã ¤", "ä ½"];

fn array(items: impl IntoIterator<Item = Value>) -> Value {
    Value::from(items.into_iter().collect::<Vec<_>>())
}

fn strings<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> Value {
    array(items.into_iter().map(|s| Value::String(s.as_ref().to_owned())))
}

/// A small vocabulary: the 256 bytes, a few merges, control tokens, one user-defined and one unused token.
fn vocabulary() -> (Vec<String>, Vec<i32>) {
    let mut bytes: Vec<char> = ByteLevel::alphabet().into_iter().collect();
    bytes.sort_unstable();
    let mut tokens: Vec<String> = bytes.into_iter().map(String::from).collect();
    tokens.extend(MERGES.map(|merge| merge.replace(' ', "")));
    let mut types = vec![1; tokens.len()];
    tokens.extend(SPECIAL_TOKENS.map(str::to_owned));
    types.resize(tokens.len(), 3);
    tokens.extend(["<think>".to_owned(), "[PAD0]".to_owned()]);
    types.extend([4, 5]);
    (tokens, types)
}

fn id_of(token: &str) -> u32 {
    let position = vocabulary().0.iter().position(|t| t == token);
    u32::try_from(position.unwrap()).unwrap()
}

fn metadata(pre: &str) -> Metadata {
    let (tokens, types) = vocabulary();
    let types = types.into_iter().map(Value::I32);
    Metadata::from([
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        ("tokenizer.ggml.tokens".into(), strings(&tokens)),
        ("tokenizer.ggml.token_type".into(), array(types)),
        ("tokenizer.ggml.merges".into(), strings(MERGES)),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(id_of("<|begin_of_text|>"))),
    ])
}

fn with(mut metadata: Metadata, key: &str, value: Value) -> Metadata {
    metadata.insert(format!("tokenizer.{key}"), value);
    metadata
}

fn with_token(metadata: Metadata, key: &str, token: &str) -> Metadata {
    with(metadata, &format!("ggml.{key}_token_id"), Value::U32(id_of(token)))
}

fn with_template(metadata: Metadata, template: &str) -> Metadata {
    with(metadata, "chat_template", Value::String(template.into()))
}

fn load(metadata: &Metadata) -> Result<Tokenizer> {
    Tokenizer::from_gguf(metadata, Path::new("small.gguf"))
}

/// The sentence of an error that is the user's to mend, which names the file.
fn refusal<T: std::fmt::Debug>(result: Result<T>, file: &str) -> String {
    let error = result.unwrap_err();
    let sentence = error.to_string();
    assert_eq!(error.exit_code(), 2, "{sentence}");
    assert!(sentence.contains(file), "{sentence}");
    assert!(!sentence.contains('\n'), "{sentence}");
    sentence
}

fn plain(text: &str) -> PromptText {
    PromptText::Plain(text.into())
}

fn streamed(tokenizer: &Tokenizer, ids: &[u32], skip_special: bool) -> String {
    let mut stream = tokenizer.stream(skip_special);
    let mut text = String::new();
    for &id in ids {
        if let Some(piece) = stream.push(id).unwrap() {
            assert!(!piece.is_empty());
            text.push_str(&piece);
        }
    }
    text + &stream.finish().unwrap()
}

#[test]
fn each_pre_tokenizer_splits_in_its_own_way() {
    let pieces = |pre: &str, text: &str| -> Vec<String> {
        let tokenizer = load(&metadata(pre)).unwrap();
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        ids.into_iter().map(|id| tokenizer.token_text(id)).collect()
    };
    for pre in ["smollm", "qwen2"] {
        assert_eq!(pieces(pre, "123"), ["1", "2", "3"], "{pre}");
    }
    for pre in ["llama-bpe", "llama3", "llama-v3", "gpt-2"] {
        assert_eq!(pieces(pre, "123"), ["123"], "{pre}");
    }
    assert_eq!(pieces("llama-bpe", "123123"), ["123", "123"]);
    // Llama and Qwen take one leading character of any kind with a word, and so never merge it with what is before.
    assert_eq!(pieces("gpt-2", "12hello"), ["12", "hello"]);
    assert_eq!(pieces("llama-bpe", "(hello"), ["(", "hello"]);
}

#[test]
fn merges_are_ignored_where_a_piece_is_a_token() {
    // No merge leads to "Ġhello".
    let add = |pre| {
        let (mut tokens, mut types) = vocabulary();
        tokens.push("Ġhello".into());
        types.push(1);
        let types = types.into_iter().map(Value::I32);
        let metadata = with(metadata(pre), "ggml.tokens", strings(&tokens));
        let metadata = with(metadata, "ggml.token_type", array(types));
        load(&metadata).unwrap().encode(" hello").unwrap().len()
    };
    assert_eq!(add("llama-bpe"), 1);
    assert_eq!(add("qwen2"), 2);
}

#[test]
fn only_qwen_normalises() {
    let decomposed = "e\u{301}";
    let qwen = load(&metadata("qwen2")).unwrap();
    let ids = qwen.encode(decomposed).unwrap();
    assert_eq!(qwen.decode(&ids).unwrap(), "\u{e9}");
    for pre in ["smollm", "llama-bpe", "gpt-2"] {
        let tokenizer = load(&metadata(pre)).unwrap();
        let ids = tokenizer.encode(decomposed).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), decomposed);
    }
}

#[test]
fn special_tokens_are_parsed_shown_and_skipped() {
    let tokenizer = load(&metadata("smollm")).unwrap();
    let text = "a<|im_start|>1<think> <|im_end|>\u{338}";
    let ids = tokenizer.encode(text).unwrap();
    assert!(ids.contains(&id_of("<|im_start|>")));
    assert!(ids.contains(&id_of("<think>")));
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    // User-defined tokens are text; control tokens are not.
    let without = tokenizer.decode_skipping_special(&ids).unwrap();
    assert_eq!(without, "a1<think> \u{338}");
    assert_eq!(streamed(&tokenizer, &ids, true), without);
    assert_eq!(tokenizer.token_text(id_of("<|im_end|>")), "<|im_end|>");
    // Matched before normalisation, which would swallow the ">" here.
    let qwen = load(&metadata("qwen2")).unwrap();
    assert!(qwen.encode(text).unwrap().contains(&id_of("<|im_end|>")));
}

#[test]
fn tokens_that_are_no_whole_character_are_shown_as_bytes() {
    let tokenizer = load(&metadata("gpt-2")).unwrap();
    assert_eq!(tokenizer.token_text(id_of("Ġhe")), " he");
    assert_eq!(tokenizer.token_text(id_of("Ã¤")), "ä");
    assert_eq!(tokenizer.token_text(id_of("ä")), "<0xE4>");
    assert_eq!(tokenizer.token_text(id_of("ä½")), "<0xE4><0xBD>");
    let unused = id_of("[PAD0]");
    assert_eq!(tokenizer.token_text(unused), format!("<unused {unused}>"));
    assert_eq!(tokenizer.token_text(u32::MAX), "<unused 4294967295>");
    assert_eq!(tokenizer.decode(&[unused, id_of("he"), u32::MAX]).unwrap(), "he");
    assert_eq!(tokenizer.vocab_size(), unused as usize + 1);
}

#[test]
fn a_stream_holds_back_unfinished_characters() {
    let tokenizer = load(&metadata("gpt-2")).unwrap();
    let ids = tokenizer.encode("你").unwrap();
    assert_eq!(ids, [id_of("ä½"), id_of("ł")]);
    let mut stream = tokenizer.stream(false);
    assert_eq!(stream.push(ids[0]).unwrap(), None);
    assert_eq!(stream.push(ids[1]).unwrap().as_deref(), Some("你"));
    assert_eq!(stream.push(ids[0]).unwrap(), None);
    assert_eq!(stream.push(id_of("he")).unwrap().as_deref(), Some("\u{fffd}he"));
    assert_eq!(stream.push(ids[0]).unwrap(), None);
    assert_eq!(stream.finish().unwrap(), "\u{fffd}");
}

#[test]
fn any_ids_stream_to_what_they_decode_to() {
    let tokenizer = load(&metadata("llama-bpe")).unwrap();
    let size = u32::try_from(tokenizer.vocab_size()).unwrap();
    // A fixed sequence that reaches every id, in and beyond the vocabulary, in a scrambled order.
    let ids: Vec<u32> = (0..20_000_u32).map(|i| i.wrapping_mul(2_654_435_761) % (size + 3)).collect();
    for chunk in ids.chunks(97) {
        assert_eq!(streamed(&tokenizer, chunk, false), tokenizer.decode(chunk).unwrap());
        assert_eq!(streamed(&tokenizer, chunk, true), tokenizer.decode_skipping_special(chunk).unwrap());
    }
}

#[test]
fn bos_comes_exactly_once() {
    let bos = id_of("<|begin_of_text|>");
    let count = |metadata: &Metadata, prompt: &str| {
        let ids = load(metadata).unwrap().encode_prompt(&plain(prompt)).unwrap();
        assert!(!ids[1..].contains(&bos));
        ids[0] == bos
    };
    let llama = metadata("llama-bpe");
    assert!(count(&llama, "hello"));
    assert!(count(&llama, "<|begin_of_text|>hello"));
    assert!(count(&llama, ""), "an empty prompt is the BoS token");
    let written = with_template(llama.clone(), LLAMA3_TEMPLATE);
    assert!(count(&written, "hello"));
    let unwritten = with_template(llama.clone(), SMOLLM2_TEMPLATE);
    assert!(count(&unwritten, "hello"));
    let off = with(llama.clone(), "ggml.add_bos_token", Value::Bool(false));
    assert!(!count(&off, "hello"));
    assert_eq!(load(&off).unwrap().bos_id(), Some(bos));
    assert!(!load(&off).unwrap().adds_bos());
    for pre in ["smollm", "gpt-2", "qwen2"] {
        assert!(!count(&metadata(pre), "hello"), "{pre}");
        let asked = with(metadata(pre), "ggml.add_bos_token", Value::Bool(true));
        assert!(count(&asked, "hello"), "{pre}");
    }
    assert!(!load(&llama).unwrap().encode("hello").unwrap().contains(&bos));
    let mut nameless = llama;
    nameless.remove("tokenizer.ggml.bos_token_id");
    assert!(refusal(load(&nameless), "small.gguf").contains("names none"));
    nameless.insert("tokenizer.ggml.add_bos_token".into(), Value::Bool(false));
    assert_eq!(load(&nameless).unwrap().bos_id(), None);
}

#[test]
fn end_tokens_are_those_that_metadata_or_template_use() {
    let base = with_token(metadata("smollm"), "eos", "<|endoftext|>");
    assert_eq!(load(&base).unwrap().eos_ids(), [id_of("<|endoftext|>")]);
    let chat = with_template(base.clone(), SMOLLM2_TEMPLATE);
    let both = [id_of("<|endoftext|>"), id_of("<|im_end|>")];
    assert_eq!(load(&chat).unwrap().eos_ids(), both);
    let named = with_token(with_token(chat, "eot", "<|im_end|>"), "eom", "<|eot_id|>");
    assert_eq!(load(&named).unwrap().eos_ids(), [both[0], both[1], id_of("<|eot_id|>")]);
    assert!(load(&metadata("smollm")).unwrap().eos_ids().is_empty());
    let phi = with_template(base, "{{ messages[0].content }}<|end|>");
    assert_eq!(load(&phi).unwrap().eos_ids(), [id_of("<|endoftext|>"), id_of("<|end|>")]);
}

fn rendered(template: &str, messages: &[(&str, &str)]) -> Result<String> {
    let metadata = with_token(metadata("gpt-2"), "eos", "<|eot_id|>");
    let messages = messages.iter().map(|&(role, content)| Message::new(role, content));
    load(&with_template(metadata, template)).unwrap().render_prompt(&PromptText::Messages(messages.collect()))
}

#[test]
fn the_template_of_smollm2_adds_its_system_message() {
    let tokenizer = load(&with_template(metadata("smollm"), SMOLLM2_TEMPLATE)).unwrap();
    assert_eq!(
        tokenizer.render_prompt(&plain("Hi!")).unwrap(),
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
         <|im_start|>user\nHi!<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(tokenizer.chat_template(), Some(SMOLLM2_TEMPLATE));
    let ids = tokenizer.encode_prompt(&plain("Hi!")).unwrap();
    let starts = ids.iter().filter(|&&id| id == id_of("<|im_start|>"));
    assert_eq!(starts.count(), 3);
    assert_eq!(
        rendered(SMOLLM2_TEMPLATE, &[("system", "Be brief."), ("user", "1"), ("assistant", "2")]).unwrap(),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n1<|im_end|>\n\
         <|im_start|>assistant\n2<|im_end|>\n<|im_start|>assistant\n"
    );
}

#[test]
fn the_template_of_llama_3_is_read_as_transformers_does() {
    assert_eq!(
        rendered(LLAMA3_TEMPLATE, &[("system", " Be brief. "), ("user", " Hi ")]).unwrap(),
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let sentence = refusal(rendered(LLAMA3_TEMPLATE, &[("tool", "x")]), "small.gguf");
    assert!(sentence.ends_with("refuses the prompt: no role tool"), "{sentence}");
}

#[test]
fn templates_have_what_python_gives_them() {
    let messages = [("user", "<think>a</think>  b\n"), ("assistant", "c")];
    for (template, expected) in [
        // A block's own line leaves nothing behind.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc"),
        ("{{ messages[0].content.split('</think>')[-1].strip() }}", "b"),
        ("{{ messages[-1]['content'].upper() }}{{ messages|length }}", "C2"),
        ("{{ messages[::-1][0].role }}{{ 'think' in messages[0].content }}", "assistantTrue"),
        ("{{ messages[0]|tojson }}", r#"{"role": "user", "content": "<think>a</think>  b\n"}"#),
        (
            "{{ {'b': [1], 'a': none}|tojson(indent=1, sort_keys=true) }}",
            "{\n \"a\": null,\n \"b\": [\n  1\n ]\n}",
        ),
        ("{% for k, v in messages[1].items() %}{{ k }}={{ v }};{% endfor %}", "role=assistant;content=c;"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index0 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("{{ tools is none and documents is none and not tools }}{{ nothing }}", "True"),
        ("{{ bos_token }}{{ eos_token }}{{ add_generation_prompt }}", "<|begin_of_text|><|eot_id|>True"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m(messages[1].content) }}", "[c]"),
        ("{{ strftime_now('%Y')[:2] }}", "20"),
        ("{{ messages[0].content is string and messages is iterable and messages[0] is mapping }}", "True"),
        ("<b>{{ '&<>' }}", "<b>&<>"),
    ] {
        let made = rendered(template, &messages);
        assert_eq!(made.as_deref().ok(), Some(expected), "{template}: {made:?}");
    }
}

#[test]
fn templates_that_cannot_be_used_are_refused() {
    for (template, part) in [
        ("{% generation %}{% endgeneration %}", "{% generation %}"),
        ("{%- generation -%}{%- endgeneration -%}", "{% generation %}"),
        ("{% for %}", "cannot be used"),
        ("{{ 1 / 0 }}", "cannot be used"),
        ("{{ missing.attribute.deeper }}", "cannot be used"),
        ("{{ nothing|tojson }}", "cannot be used"),
        ("{{ strftime_now('%Q') }}", "%Q"),
        ("{% include 'other' %}", "cannot be used"),
        ("{{ raise_exception('no system role') }}", "refuses the prompt: no system role"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "cannot be used"),
        ("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", "cannot be used"),
    ] {
        let sentence = refusal(rendered(template, &[("user", "x")]), "small.gguf");
        assert!(sentence.contains(part), "{template}: {sentence}");
    }
    let nested = format!("{}1{}", "(".repeat(100_000), ")".repeat(100_000));
    refusal(rendered(&format!("{{{{ {nested} }}}}"), &[("user", "x")]), "small.gguf");
}

#[test]
fn prompts_without_a_template_are_taken_as_they_are() {
    let tokenizer = load(&metadata("gpt-2")).unwrap();
    let ids = tokenizer.encode("hello").unwrap();
    assert_eq!(tokenizer.encode_prompt(&plain("hello")).unwrap(), ids);
    let mut messages = vec![Message::new("user", "hello")];
    let prompt = PromptText::Messages(messages.clone());
    assert_eq!(tokenizer.encode_prompt(&prompt).unwrap(), ids);
    messages.push(Message::new("assistant", "hello"));
    refusal(tokenizer.encode_prompt(&PromptText::Messages(messages)), "small.gguf");
    refusal(tokenizer.encode_prompt(&PromptText::Messages(Vec::new())), "no messages");
    refusal(tokenizer.encode_prompt(&plain("")), "empty");
    let chat = load(&with_template(metadata("gpt-2"), SMOLLM2_TEMPLATE)).unwrap();
    refusal(chat.encode_prompt(&PromptText::Messages(Vec::new())), "no messages");
}

#[test]
fn damaged_metadata_is_refused() {
    let (tokens, types) = vocabulary();
    let size = tokens.len();
    let string = |text: &str| Value::String(text.into());
    let twice = {
        let mut tokens = tokens.clone();
        tokens[5] = tokens[4].clone();
        strings(tokens)
    };
    let empty_token = {
        let mut tokens = tokens.clone();
        tokens[5] = String::new();
        strings(tokens)
    };
    let types_of = |types: &[i32]| array(types.iter().copied().map(Value::I32));
    let cases = [
        ("ggml.model", string("t5"), "\"t5\""),
        ("ggml.model", string("gemma4"), "\"gemma4\""),
        ("ggml.model", string("llama"), "tokenizer.ggml.scores"),
        ("ggml.model", Value::U32(1), "tokenizer.ggml.model"),
        ("ggml.pre", string("default"), "\"default\""),
        ("ggml.pre", string("bloom"), "gpt-2, phi-2, smollm"),
        ("ggml.pre", Value::Bool(true), "tokenizer.ggml.pre"),
        ("ggml.tokens", string("a"), "not an array"),
        ("ggml.tokens", Value::from(vec![Value::U8(1); size]), "not a string"),
        ("ggml.tokens", Value::from(Vec::new()), "it is empty"),
        ("ggml.tokens", strings(&tokens[..size - 1]), "types for"),
        ("ggml.tokens", twice, "tokens 4 and 5 are both"),
        ("ggml.tokens", empty_token, "token 5 is empty"),
        ("ggml.token_type", types_of(&types[1..]), "types for"),
        ("ggml.token_type", types_of(&vec![7; size]), "no token type 7"),
        ("ggml.token_type", types_of(&vec![-1; size]), "no token type -1"),
        ("ggml.token_type", Value::from(vec![Value::F32(1.0); size]), "not an integer"),
        ("ggml.token_type", types_of(&vec![5; size]), "not in the vocabulary"),
        ("ggml.merges", Value::F64(0.0), "not an array"),
        ("ggml.merges", strings(["a"]), "is not two tokens"),
        ("ggml.merges", strings(["a b c"]), "not in the vocabulary"),
        ("ggml.merges", strings(["a absent"]), "\"absent\""),
        ("ggml.merges", strings(["hello hello"]), "\"hellohello\""),
        ("ggml.merges", strings([" a"]), "not in the vocabulary"),
        ("ggml.bos_token_id", Value::U32(u32::MAX), "is outside its vocabulary"),
        ("ggml.bos_token_id", Value::I32(-1), "-1 is outside"),
        ("ggml.eos_token_id", Value::U32(u32::try_from(size).unwrap()), "is outside"),
        ("ggml.eot_token_id", Value::U64(u64::MAX), "is outside"),
        ("ggml.eom_token_id", string("2"), "not an integer"),
        ("ggml.add_bos_token", Value::U8(1), "not a boolean"),
        ("chat_template", Value::U8(1), "not a string"),
    ];
    for (key, value, part) in cases {
        let sentence = refusal(load(&with(metadata("smollm"), key, value)), "small.gguf");
        assert!(sentence.contains(part), "{key}: {sentence}");
    }
    for key in ["model", "pre", "tokens", "token_type", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        let mut metadata = metadata("smollm");
        metadata.remove(&key);
        let sentence = refusal(load(&metadata), "small.gguf");
        assert!(sentence.contains(&key), "{sentence}");
    }
    refusal(load(&Metadata::new()), "small.gguf");
    // However long what it quotes.
    let long = with(metadata("smollm"), "ggml.pre", string(&"é".repeat(100_000)));
    assert!(refusal(load(&long), "small.gguf").len() < 2000);
}

/// A folder with the given files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

/// A `tokenizer.json` in the manner of Llama 2: SentencePiece BPE with byte tokens, `<s>` before each text.
fn sentencepiece_json() -> serde_json::Value {
    let mut vocab = serde_json::Map::new();
    for token in ["<unk>", "<s>", "</s>"] {
        vocab.insert(token.into(), vocab.len().into());
    }
    for byte in 0..=255 {
        vocab.insert(format!("<0x{byte:02X}>"), vocab.len().into());
    }
    for token in ["▁", "a", "b", "▁a", "ab", "▁ab"] {
        vocab.insert(token.into(), vocab.len().into());
    }
    let special = |id: u32, content: &str| {
        serde_json::json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
            "pad_type_id": 0, "pad_token": "<unk>"},
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": null,
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "</s>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]},
                "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
            {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]]},
    })
}

#[test]
fn sentencepiece_vocabularies_stream_too() {
    let folder = folder(&[("tokenizer.json", &sentencepiece_json().to_string())]);
    let tokenizer = Tokenizer::from_directory(folder.path()).unwrap();
    for text in ["ab  ab é 你好 ab", "你", "", "  a", "é\n</s>", "\u{fffd}a\u{fffd}"] {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(tokenizer.decode(&ids).unwrap(), text);
        for skip in [false, true] {
            let whole = match skip {
                false => tokenizer.decode(&ids),
                true => tokenizer.decode_skipping_special(&ids),
            };
            assert_eq!(streamed(&tokenizer, &ids, skip), whole.unwrap());
        }
    }
    let id = |token: &str| sentencepiece_json()["model"]["vocab"][token].as_u64().unwrap() as u32;
    assert_eq!(tokenizer.token_text(id("▁ab")), " ab");
    assert_eq!(tokenizer.token_text(id("<0x0A>")), "\n");
    assert_eq!(tokenizer.token_text(id("<0xE4>")), "<0xE4>");
    assert_eq!(tokenizer.token_text(id("</s>")), "</s>");
    // The crate's decoder spoils a whole run of bytes for one that is broken; what was given out before stays.
    let mut ids = vec![id("<0xE4>"), id("a"), id("<0xE4>"), id("<0xBD>"), id("<0xA0>"), id("<0xE4>")];
    assert_eq!(streamed(&tokenizer, &ids, false), "\u{fffd}a你\u{fffd}");
    ids.push(id("a"));
    assert_eq!(streamed(&tokenizer, &ids, false), "\u{fffd}a你\u{fffd}a");
}

#[test]
fn a_folder_says_how_prompts_start_and_end() {
    let json = sentencepiece_json().to_string();
    let open = |files: &[(&str, &str)]| {
        let mut all = vec![("tokenizer.json", json.as_str())];
        all.extend(files);
        Tokenizer::from_directory(folder(&all).path()).unwrap()
    };
    // Neither the padding, the truncation nor the end token that the file was saved with gets into a prompt.
    let bare = open(&[]);
    assert_eq!(bare.encode_prompt(&plain("ab ab ab ab ab ab")).unwrap(), [1, 264, 264, 264, 264, 264, 264]);
    assert_eq!((bare.bos_id(), bare.eos_ids(), bare.vocab_size()), (Some(1), &[][..], 265));
    let config =
        r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}, "add_bos_token": false}"#;
    let quiet = open(&[("tokenizer_config.json", config)]);
    assert_eq!(quiet.encode_prompt(&plain("ab")).unwrap(), [264]);
    assert_eq!((quiet.bos_id(), quiet.eos_ids()), (Some(1), &[2][..]));
    let null = open(&[
        ("tokenizer_config.json", r#"{"bos_token": null}"#),
        ("config.json", r#"{"bos_token_id": 1, "eos_token_id": 2}"#),
    ]);
    assert_eq!((null.bos_id(), null.eos_ids()), (None, &[2][..]));
    let several = open(&[
        ("tokenizer_config.json", r#"{"eos_token": "</s>"}"#),
        ("generation_config.json", r#"{"eos_token_id": [5, 2, 0]}"#),
        ("config.json", r#"{"eos_token_id": 6}"#),
    ]);
    assert_eq!(several.eos_ids(), [2, 5, 0, 6]);
    let template = |tokenizer: &Tokenizer| tokenizer.chat_template().map(str::to_owned);
    let inline = ("tokenizer_config.json", r#"{"chat_template": "inline"}"#);
    assert_eq!(template(&open(&[inline])).as_deref(), Some("inline"));
    let both = open(&[inline, ("chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}")]);
    assert_eq!(both.encode_prompt(&plain("ab")).unwrap(), [1, 264]);
    let list =
        r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
    assert_eq!(template(&open(&[("tokenizer_config.json", list)])).as_deref(), Some("d"));
}

#[test]
fn damaged_folders_are_refused() {
    let good = sentencepiece_json();
    let changed = |pointer: &str, value: serde_json::Value| {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        json.to_string()
    };
    let text = good.to_string();
    let files: [(&str, &str); 13] = [
        ("tokenizer.json", ""),
        ("tokenizer.json", "{}"),
        ("tokenizer.json", &text[..text.len() / 2]),
        ("tokenizer.json", &changed("/model/type", "Unheard".into())),
        ("tokenizer.json", &changed("/model/merges", serde_json::json!([["a", "absent"]]))),
        // The tokenizers crate panics at this one.
        ("tokenizer.json", &changed("/model/merges", serde_json::json!([["<unk>", "<unk>"]]))),
        ("tokenizer.json", &changed("/added_tokens/1/id", 7.into())),
        ("tokenizer.json", &changed("/post_processor/special_tokens/<s>/ids", serde_json::json!([999]))),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", r#"{"bos_token": "<absent>"}"#),
        ("tokenizer_config.json", r#"{"bos_token": null, "add_bos_token": true}"#),
        ("tokenizer_config.json", r#"{"chat_template": 7}"#),
        ("generation_config.json", r#"{"eos_token_id": [2, 265]}"#),
    ];
    for (name, content) in files {
        let mut all = vec![("tokenizer.json", text.as_str())];
        all.push((name, content));
        let sentence = refusal(Tokenizer::from_directory(folder(&all).path()), name);
        assert!(sentence.len() < 600, "{sentence}");
    }
    refusal(Tokenizer::from_directory(folder(&[]).path()), "no tokenizer.json");
    let sentencepiece_only = folder(&[("tokenizer.model", "")]);
    let sentence = refusal(Tokenizer::from_directory(sentencepiece_only.path()), "no tokenizer.json");
    assert!(sentence.contains("save_pretrained"), "{sentence}");
    refusal(Tokenizer::from_directory(Path::new("/absent")), "no tokenizer.json");
}

#[test]
fn a_regular_expression_that_gives_up_is_an_error() {
    let mut json = sentencepiece_json();
    json["normalizer"] = serde_json::Value::Null;
    json["pre_tokenizer"] = serde_json::json!({"type": "Split", "behavior": "Isolated", "invert": false,
        "pattern": {"Regex": "(a+)+$"}});
    let folder = folder(&[("tokenizer.json", &json.to_string())]);
    let tokenizer = Tokenizer::from_directory(folder.path()).unwrap();
    let text = format!("{}b", "a".repeat(60));
    refusal(tokenizer.encode(&text), folder.path().to_str().unwrap());
    // And the tokenizer is as good as before.
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab").unwrap()).unwrap(), "ab");
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn read_json(name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(fixtures().join("tokenizer").join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Strings that are hard to tokenize.
fn hostile() -> Vec<String> {
    serde_json::from_value(read_json("hostile.json")).unwrap()
}

/// The ids that transformers gives for each hostile string, and what it decodes them to.
fn golden(name: &str) -> (Vec<Vec<u32>>, Vec<String>) {
    let golden = read_json(&format!("{name}.ids.json"));
    let rows: Vec<String> = serde_json::from_value(golden["ids"].clone()).unwrap();
    let ids = rows.iter().map(|row| row.split_whitespace().map(|id| id.parse().unwrap()).collect()).collect();
    // Only what differs from the string is written down.
    let mut decoded = hostile();
    for (index, text) in golden["decoded"].as_object().unwrap() {
        decoded[index.parse::<usize>().unwrap()] = text.as_str().unwrap().to_owned();
    }
    (ids, decoded)
}

/// The elements of an array, each as a value.
fn elements(value: &Value) -> Vec<Value> {
    let Value::Array(array) = value else { panic!("{value:?}") };
    array.iter().map(|value| value.into_owned()).collect()
}

fn read_metadata(path: &Path) -> Metadata {
    GgufFile::open(path).unwrap().metadata().clone()
}

fn load_file(path: &Path) -> Tokenizer {
    Tokenizer::from_gguf(&read_metadata(path), path).unwrap()
}

fn fixture(name: &str) -> PathBuf {
    fixtures().join("tokenizer").join(name)
}

/// The tokenizer of a folder with just this `tokenizer.json`.
fn load_json(json: &serde_json::Value) -> Tokenizer {
    Tokenizer::from_directory(folder(&[("tokenizer.json", &json.to_string())]).path()).unwrap()
}

/// Checks ids, and what they decode to, at once and one by one.
fn check_hostile(tokenizer: &Tokenizer, name: &str) {
    let (texts, (expected, decoded)) = (hostile(), golden(name));
    assert_eq!(texts.len(), 2000);
    assert_eq!(texts.len(), expected.len());
    for ((text, expected), decoded) in texts.iter().zip(expected).zip(decoded) {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids, expected, "{name}: {text:?}");
        assert_eq!(tokenizer.decode(&ids).unwrap(), decoded, "{name}: {text:?}");
        assert_eq!(streamed(tokenizer, &ids, false), decoded, "{name}: {text:?}");
        assert_eq!(
            streamed(tokenizer, &ids, true),
            tokenizer.decode_skipping_special(&ids).unwrap(),
            "{name}: {text:?}"
        );
    }
}

/// Checks that both say the same of each token and of a prompt.
fn check_alike(gguf: &Tokenizer, folder: &Tokenizer) {
    assert_eq!(gguf.vocab_size(), folder.vocab_size());
    for id in 0..u32::try_from(gguf.vocab_size()).unwrap() {
        assert_eq!(gguf.token_text(id), folder.token_text(id));
    }
}

#[test]
fn ids_are_those_of_transformers() {
    for pre in ["smollm", "llama-bpe", "gpt-2", "qwen2"] {
        let gguf = load_file(&fixture(&format!("{pre}.gguf")));
        check_hostile(&gguf, pre);
        let folder = load_json(&read_json(&format!("{pre}.tokenizer.json")));
        check_hostile(&folder, pre);
        check_alike(&gguf, &folder);
        assert_eq!(gguf.adds_bos(), pre == "llama-bpe");
        let prompt = plain("It's 1234 o'clock.");
        assert_eq!(gguf.encode_prompt(&prompt).unwrap(), folder.encode_prompt(&prompt).unwrap());
    }
}

/// The families that share the vocabulary `byte-level.gguf`.
const SHARING: [&str; 10] = [
    "olmo",
    "command-r",
    "falcon",
    "dbrx",
    "qwen35",
    "gpt-4o",
    "tekken",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
];

#[test]
fn each_family_splits_a_shared_vocabulary_as_transformers_does() {
    let path = fixture("byte-level.gguf");
    let (metadata, parts) = (read_metadata(&path), read_json("pre-tokenizers.json"));
    for pre in SHARING {
        let gguf = with(metadata.clone(), "ggml.pre", Value::String(pre.into()));
        check_hostile(&Tokenizer::from_gguf(&gguf, &path).unwrap(), pre);
        let mut json = read_json("byte-level.tokenizer.json");
        json["normalizer"] = parts[pre]["normalizer"].clone();
        json["pre_tokenizer"] = parts[pre]["pre_tokenizer"].clone();
        json["model"]["ignore_merges"] = parts[pre]["ignore_merges"].clone();
        check_hostile(&load_json(&json), pre);
    }
    assert_eq!(parts.as_object().unwrap().len(), SHARING.len());
}

#[test]
fn names_for_the_same_splitting_give_the_same_ids() {
    for (name, known, vocabulary) in [
        ("llama3", "llama-bpe", "llama-bpe"),
        ("llama-v3", "llama-bpe", "llama-bpe"),
        ("smaug-bpe", "llama-bpe", "llama-bpe"),
        ("refact", "smollm", "smollm"),
        ("starcoder", "smollm", "smollm"),
        ("phi-2", "gpt-2", "gpt-2"),
        ("deepseek-r1-qwen", "qwen2", "qwen2"),
        ("mpt", "olmo", "byte-level"),
        ("llama4", "gpt-4o", "byte-level"),
    ] {
        let path = fixture(&format!("{vocabulary}.gguf"));
        let metadata = with(read_metadata(&path), "ggml.pre", Value::String(name.into()));
        check_hostile(&Tokenizer::from_gguf(&metadata, &path).unwrap(), known);
    }
}

#[test]
fn a_wrong_pre_tokenizer_would_be_noticed() {
    let differing = |a: &[Vec<u32>], b: &[Vec<u32>]| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let path = fixture("llama-bpe.gguf");
    let metadata = read_metadata(&path);
    let (texts, (expected, _)) = (hostile(), golden("llama-bpe"));
    for pre in ["smollm", "gpt-2", "qwen2"] {
        let metadata = with(metadata.clone(), "ggml.pre", Value::String(pre.into()));
        let wrong = Tokenizer::from_gguf(&metadata, &path).unwrap();
        let ids: Vec<_> = texts.iter().map(|text| wrong.encode(text).unwrap()).collect();
        assert!(differing(&ids, &expected) > 100, "{pre}");
    }
    let shared = SHARING.map(|pre| golden(pre).0);
    for (index, one) in shared.iter().enumerate() {
        for (other, pre) in shared.iter().zip(SHARING).skip(index + 1) {
            assert!(differing(one, other) > 100, "{} and {pre}", SHARING[index]);
        }
    }
}

#[test]
fn sentencepiece_ids_are_those_of_transformers() {
    for (kind, bos, special) in
        [("llama-spm", 1, "</s>"), ("mistral-spm", 1, "[INST]"), ("gemma-spm", 2, "<start_of_turn>")]
    {
        let gguf = load_file(&fixture(&format!("{kind}.gguf")));
        check_hostile(&gguf, kind);
        let folder = load_json(&read_json(&format!("{kind}.tokenizer.json")));
        check_hostile(&folder, kind);
        check_alike(&gguf, &folder);
        // The files say nothing of BoS, which then comes first.
        assert_eq!(gguf.encode_prompt(&plain("a")).unwrap()[0], bos);
        // Hostile strings hold few special tokens of these vocabularies.
        for text in ["a{}b", "{} b", " {}  {}", "\n{}\n\n", "\u{2581}{}\u{2581}", "{}{}ab{}"] {
            let text = text.replace("{}", special);
            let ids = gguf.encode(&text).unwrap();
            assert_eq!(ids, folder.encode(&text).unwrap(), "{text:?}");
            let decoded = folder.decode(&ids).unwrap();
            assert_eq!(gguf.decode(&ids).unwrap(), decoded, "{text:?}");
            assert_eq!(streamed(&gguf, &ids, false), decoded, "{text:?}");
            assert_eq!(
                streamed(&gguf, &ids, true),
                folder.decode_skipping_special(&ids).unwrap(),
                "{text:?}"
            );
        }
    }
}

#[test]
fn the_space_before_a_text_is_taken_off_again_once() {
    let tokenizer = load_file(&fixture("llama-spm.gguf"));
    let ids = tokenizer.encode("the river").unwrap();
    assert_eq!(tokenizer.token_text(ids[0]), " the");
    assert_eq!(tokenizer.decode(&ids).unwrap(), "the river");
    assert_eq!(tokenizer.decode(&tokenizer.encode("  the").unwrap()).unwrap(), "  the");
    let mut stream = tokenizer.stream(false);
    assert_eq!(stream.push(ids[0]).unwrap().as_deref(), Some("the"));
    assert!(stream.push(ids[1]).unwrap().is_some_and(|text| text.starts_with(' ')));
    // Llama 2 wants a space after a special token too, Mistral only the one that the text has.
    let words = |kind: &str, text: &str| -> Vec<String> {
        let tokenizer = load_file(&fixture(&format!("{kind}.gguf")));
        tokenizer.encode(text).unwrap().into_iter().map(|id| tokenizer.token_text(id)).collect()
    };
    assert_eq!(words("llama-spm", "</s>the"), ["</s>", " the"]);
    assert_eq!(words("llama-spm", " the"), [" ", " the"]);
    assert_eq!(words("mistral-spm", "[INST] the"), ["[INST]", " the"]);
    assert_eq!(words("mistral-spm", " the"), [" the"]);
    let gemma = load_file(&fixture("gemma-spm.gguf"));
    let ids = gemma.encode(" the").unwrap();
    assert_eq!(gemma.decode(&ids).unwrap(), " the");
    assert_eq!(streamed(&gemma, &ids, false), " the");
    // A run of spaces is a token of its own, and shown as spaces.
    let ids = gemma.encode("a    b").unwrap();
    assert_eq!(gemma.token_text(ids[1]), "    ");
}

#[test]
fn phi_3_takes_the_white_space_after_its_special_tokens() {
    let path = fixture("llama-spm.gguf");
    let mut metadata = read_metadata(&path);
    metadata.insert("general.architecture".into(), Value::String("phi3".into()));
    let gguf = Tokenizer::from_gguf(&metadata, &path).unwrap();
    let mut json = read_json("llama-spm.tokenizer.json");
    for token in json["added_tokens"].as_array_mut().unwrap() {
        token["rstrip"] = (token["content"] == "</s>").into();
    }
    let folder = load_json(&json);
    for text in ["</s>\n the river", "a</s>  \n\n", "<s>  a</s> b", "<unk>\n</s>"] {
        assert_eq!(gguf.encode(text).unwrap(), folder.encode(text).unwrap(), "{text:?}");
    }
    let plainly = load_file(&path);
    assert_ne!(gguf.encode("</s>\n the").unwrap(), plainly.encode("</s>\n the").unwrap());
    assert_eq!(gguf.encode("<s>\n the").unwrap(), plainly.encode("<s>\n the").unwrap());
}

#[test]
fn the_template_of_gemma_writes_bos_once() {
    let path = fixture("gemma-spm.gguf");
    let template = "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>\n' }}{% endfor %}{{ '<start_of_turn>model\n' }}";
    let tokenizer = Tokenizer::from_gguf(&with_template(read_metadata(&path), template), &path).unwrap();
    let bos = tokenizer.bos_id().unwrap();
    let ids = tokenizer.encode_prompt(&plain("hi")).unwrap();
    assert_eq!(ids[0], bos);
    assert!(!ids[1..].contains(&bos));
    assert_eq!(
        tokenizer.decode(&ids).unwrap(),
        "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    );
    let eos = [tokenizer.encode("<eos>").unwrap(), tokenizer.encode("<end_of_turn>").unwrap()].concat();
    assert_eq!(tokenizer.eos_ids(), eos);
}

#[test]
fn any_ids_of_a_sentencepiece_vocabulary_stream() {
    for kind in ["llama-spm", "mistral-spm", "gemma-spm"] {
        let tokenizer = load_file(&fixture(&format!("{kind}.gguf")));
        let size = u32::try_from(tokenizer.vocab_size()).unwrap();
        let bytes: Vec<u32> = (0..size).filter(|&id| tokenizer.token_text(id).starts_with("<0x")).collect();
        // A fixed sequence that reaches every id, in and beyond the vocabulary, in a scrambled order. A byte that is no
        // character by itself is left out: a run of such decodes in a way of its own.
        let ids: Vec<u32> = (0..20_000_u32)
            .map(|i| i.wrapping_mul(2_654_435_761) % (size + 3))
            .filter(|id| !bytes.contains(id))
            .collect();
        for chunk in ids.chunks(97) {
            assert_eq!(streamed(&tokenizer, chunk, false), tokenizer.decode(chunk).unwrap());
            assert_eq!(streamed(&tokenizer, chunk, true), tokenizer.decode_skipping_special(chunk).unwrap());
        }
    }
}

#[test]
fn runs_of_spaces_may_be_written_as_in_the_sentencepiece_model() {
    let path = fixture("gemma-spm.gguf");
    let mut metadata = read_metadata(&path);
    let key = "tokenizer.ggml.tokens";
    let mut tokens = elements(&metadata[key]);
    for token in &mut tokens {
        if let Value::String(text) = token {
            *text = text.replace(' ', "\u{2581}");
        }
    }
    metadata.insert(key.into(), Value::from(tokens));
    check_hostile(&Tokenizer::from_gguf(&metadata, &path).unwrap(), "gemma-spm");
}

#[test]
fn without_scores_worth_the_name_pieces_are_merged_in_their_order() {
    // As files have it that were made from a tokenizer.json alone.
    let path = fixture("llama-spm.gguf");
    let scores = Value::from(vec![Value::F32(-1000.0); 1500]);
    let metadata = with(read_metadata(&path), "ggml.scores", scores);
    check_hostile(&Tokenizer::from_gguf(&metadata, &path).unwrap(), "llama-spm");
}

#[test]
fn no_metadata_makes_it_panic() {
    // A fixed sequence of pseudo-random numbers (the constants of Knuth's MMIX).
    let mut state = 1_u64;
    let mut below = |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let odd = [
        Value::String(String::new()),
        Value::String("\u{2581}".into()),
        Value::String("<0x0A>".into()),
        Value::String("a b".into()),
        Value::String("[INST]".into()),
        Value::F32(f32::NEG_INFINITY),
        Value::F32(0.0),
        Value::U32(u32::MAX),
        Value::I32(-1),
        Value::I32(2),
        Value::I32(4),
        Value::I32(5),
        Value::Bool(true),
        Value::from(Vec::new()),
    ];
    let (mut opened, mut refused) = (0, 0);
    for name in ["llama-spm", "gemma-spm", "byte-level"] {
        let path = fixture(&format!("{name}.gguf"));
        let good = read_metadata(&path);
        let mut keys: Vec<&String> = good.keys().filter(|key| key.starts_with("tokenizer")).collect();
        keys.sort();
        for _ in 0..150 {
            let mut metadata = good.clone();
            for _ in 0..1 + below(3) {
                let value = metadata.get_mut(keys[below(keys.len())]).unwrap();
                let (within, place) = (below(8) > 0, below(1 << 30));
                // Most often something of the right type.
                let mut odd_for = |place: &Value| {
                    let kind = (below(8) > 0).then(|| place.type_name());
                    let choices: Vec<&Value> = odd
                        .iter()
                        .filter(|value| kind.is_none_or(|kind| value.type_name() == kind))
                        .collect();
                    (!choices.is_empty()).then(|| choices[below(choices.len())].clone())
                };
                *value = match &*value {
                    Value::Array(array) if within && !array.is_empty() => {
                        let mut elements = elements(value);
                        let index = place % elements.len();
                        if let Some(other) = odd_for(&elements[index]) {
                            elements[index] = other;
                        }
                        Value::from(elements)
                    }
                    other => odd_for(other).unwrap_or_else(|| other.clone()),
                };
            }
            match Tokenizer::from_gguf(&metadata, &path) {
                Ok(tokenizer) => {
                    opened += 1;
                    let ids = tokenizer.encode("the  river 12\n\u{2581}<0x0A>\u{10ffff}[INST] a").unwrap();
                    assert_eq!(
                        streamed(&tokenizer, &ids, true),
                        tokenizer.decode_skipping_special(&ids).unwrap()
                    );
                }
                Err(error) => {
                    refused += 1;
                    assert_eq!(error.exit_code(), 2, "{error}");
                }
            }
        }
    }
    assert!(opened > 50 && refused > 50, "{opened} opened, {refused} refused");
}

#[test]
fn damaged_sentencepiece_metadata_is_refused() {
    let path = fixture("llama-spm.gguf");
    let good = read_metadata(&path);
    let changed = |key: &str, change: &dyn Fn(&mut Vec<Value>)| {
        let mut values = elements(&good[&format!("tokenizer.{key}")]);
        change(&mut values);
        Value::from(values)
    };
    let string = |text: &str| Value::String(text.into());
    // Ids 0, 1 and 2 are special, then come the bytes.
    let cases = [
        ("ggml.scores", changed("ggml.scores", &|s| s[400] = Value::F32(f32::NAN)), "token 400 is NaN"),
        ("ggml.scores", changed("ggml.scores", &|s| s[400] = Value::F32(f32::INFINITY)), "token 400 is inf"),
        ("ggml.scores", changed("ggml.scores", &|s| s.truncate(99)), "99 scores for 1500 tokens"),
        ("ggml.scores", changed("ggml.scores", &|s| s[400] = Value::U8(1)), "not a 32-bit float"),
        ("ggml.scores", Value::F32(1.0), "not an array"),
        ("ggml.tokens", changed("ggml.tokens", &|t| t[3 + 0xE4] = string("absent")), "<0xE4> among them"),
        ("ggml.tokens", changed("ggml.tokens", &|t| t[700] = t[701].clone()), "tokens 700 and 701 are both"),
        ("ggml.tokens", changed("ggml.tokens", &|t| t[700] = string("")), "token 700 is empty"),
        (
            "ggml.tokens",
            changed("ggml.tokens", &|t| t[700] = string(&"a".repeat(1025))),
            "token 700 is longer",
        ),
        ("ggml.unknown_token_id", Value::U32(1500), "is outside its vocabulary"),
        ("ggml.add_space_prefix", Value::U8(1), "not a boolean"),
        ("ggml.remove_extra_whitespaces", Value::Bool(true), "removes extra white space"),
        ("ggml.precompiled_charsmap", Value::from(vec![Value::U8(0)]), "normalises text by a table"),
    ];
    for (key, value, part) in cases {
        let sentence =
            refusal(Tokenizer::from_gguf(&with(good.clone(), key, value), &path), "llama-spm.gguf");
        assert!(sentence.contains(part), "{key}: {sentence}");
    }
    let mut scoreless = good.clone();
    scoreless.remove("tokenizer.ggml.scores");
    assert!(
        refusal(Tokenizer::from_gguf(&scoreless, &path), "llama-spm.gguf").contains("tokenizer.ggml.scores")
    );

    // Without byte tokens there must be one for what is unknown.
    let unused =
        |ids: std::ops::Range<usize>| changed("ggml.token_type", &|t| t[ids.clone()].fill(Value::I32(5)));
    let bare = with(good.clone(), "ggml.token_type", unused(3..259));
    let ids = Tokenizer::from_gguf(&bare, &path).unwrap().encode("a\u{10ffff}").unwrap();
    assert_eq!(ids.last(), Some(&0));
    let mute = with(good.clone(), "ggml.token_type", unused(0..259));
    let sentence = refusal(Tokenizer::from_gguf(&mute, &path), "llama-spm.gguf");
    assert!(sentence.contains("neither byte tokens nor an unknown token"), "{sentence}");
}

#[test]
fn the_tiny_model_of_the_house_is_read() {
    let tokenizer = load_file(&fixtures().join("tiny/layerscope-tiny.gguf"));
    let text = "The quick brown fox; 1234 – für alle, 你好!\n";
    let ids = tokenizer.encode(text).unwrap();
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
    assert!(!tokenizer.encode_prompt(&plain(text)).unwrap().is_empty());
    assert!(!tokenizer.eos_ids().is_empty());
}

/// A real model's file, where it is kept: `variable` names it, or `fixtures/` has a script that fetches it.
fn real_model(variable: &str, name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from).or_else(|| {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let cache = variable("LAYERSCOPE_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(variable("XDG_CACHE_HOME")?).join("layerscope")))
            .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache/layerscope")))?;
        Some(cache.join("models").join(name))
    })?;
    path.exists().then_some(path)
}

#[test]
fn the_real_gemma_3_is_read_as_transformers_does() {
    let Some(path) = real_model("LAYERSCOPE_GEMMA3", "gemma-3-270m-q4_k_m.gguf") else {
        println!("skipped: set LAYERSCOPE_GEMMA3 to a GGUF file of Gemma 3 270M to test its tokenizer");
        return;
    };
    let tokenizer = load_file(&path);
    check_hostile(&tokenizer, "gemma3-real");
    assert_eq!(tokenizer.vocab_size(), 262_144);
    assert_eq!((tokenizer.bos_id(), tokenizer.eos_ids()), (Some(2), &[1][..]));
}

#[test]
fn the_real_smollm2_is_read_as_transformers_does() {
    let Some(path) = real_model("LAYERSCOPE_SMOLLM2", "SmolLM2-135M-Instruct.Q4_1.gguf") else {
        println!("skipped: run fixtures/fetch-smollm2.sh to test the real SmolLM2");
        return;
    };
    let tokenizer = load_file(&path);
    check_hostile(&tokenizer, "smollm2-real");
    assert_eq!(tokenizer.vocab_size(), 49_152);
    assert_eq!(tokenizer.eos_ids(), [2]);
    // The prompts that the goldens of the whole model were made with.
    let golden = fixtures().join("golden");
    let prompts = std::fs::read_to_string(golden.join("prompts.jsonl")).unwrap();
    let expected = std::fs::read_to_string(golden.join("smollm2-135m-q4_1.json")).unwrap();
    let expected: Vec<serde_json::Value> = serde_json::from_str(&expected).unwrap();
    assert_eq!(prompts.lines().count(), expected.len());
    for (line, expected) in prompts.lines().zip(&expected) {
        let record: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(record["id"], expected["id"]);
        let prompt = plain(record["prompt"].as_str().unwrap());
        let rendered = tokenizer.render_prompt(&prompt).unwrap();
        assert_eq!(rendered, expected["chat"].as_str().unwrap());
        let ids = tokenizer.encode_prompt(&prompt).unwrap();
        assert_eq!(serde_json::json!(ids), expected["prompt_tokens"]);
        let generated: Vec<u32> = serde_json::from_value(expected["generated"].clone()).unwrap();
        assert_eq!(streamed(&tokenizer, &generated, false), expected["generated_text"]);
    }
}

#[test]
fn endless_white_space_is_refused() {
    // The regular expression engine would give up at ten million.
    let tokenizer = load(&metadata("llama-bpe")).unwrap();
    let text = format!("a{}b", " \n\t ".repeat(2_000_000));
    refusal(tokenizer.encode(&text), "white space");
    assert_eq!(tokenizer.encode(&text[..100_000]).unwrap().len(), 100_000);
}
