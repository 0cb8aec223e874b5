//! Prompt files: JSON Lines, one prompt per line.
//!
//! ```json
//! {"id": "a1", "category": "retrieval", "prompt": "…"}
//! {"id": "a2", "messages": [{"role": "user", "content": "…"}], "expected": "…", "span": "…"}
//! ```

use std::collections::HashMap;
use std::path::Path;

use layerscope_engine::{Error, Message, PromptText, Result};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// The category of prompts without one.
pub const UNCATEGORISED: &str = "uncategorised";

/// Bytes that a prompt's id or category has at most: they stand in every row of every table.
pub const LONGEST_NAME: usize = 256;

/// One line of a prompt file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Prompt {
    /// Unique within the file, at most [`LONGEST_NAME`] bytes; the line's number where the line gives none.
    pub id: String,
    /// Category for summaries, at most [`LONGEST_NAME`] bytes; [`UNCATEGORISED`] by default.
    pub category: String,
    /// The model's input.
    pub content: PromptText,
    /// The continuation to teacher-force instead of the greedy one.
    pub answer: Option<String>,
    /// What a right text contains; [`Self::answer`] by default.
    pub expected: Option<String>,
    /// The span of the prompt's text to remove by `layerscope span-ablation`.
    pub span: Option<String>,
}

impl Prompt {
    /// What a right text of the model contains, without spaces around it.
    pub fn expected(&self) -> Option<&str> {
        self.expected.as_deref().or(self.answer.as_deref()).map(str::trim)
    }

    /// The prompt for display: its text, or its messages joined by blank lines.
    pub fn text(&self) -> String {
        match &self.content {
            PromptText::Plain(text) => text.clone(),
            PromptText::Messages(messages) => {
                let contents: Vec<&str> = messages.iter().map(|m| m.content.as_str()).collect();
                contents.join("\n\n")
            }
        }
    }
}

/// A whole prompt file.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PromptFile {
    /// The file's name without its folder.
    pub name: String,
    /// [`prompts_sha256`] of its bytes.
    pub sha256: String,
    /// Its prompts in file order; never empty.
    pub prompts: Vec<Prompt>,
}

/// SHA-256 of a prompt file in lower-case hexadecimal, the same as `sha256sum`.
pub fn prompts_sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the prompt file at `path`.
///
/// # Errors
/// [`Error::Input`] with file, line and remedy if the file is missing, empty or malformed.
pub fn read_prompts(path: &Path) -> Result<PromptFile> {
    let bytes = layerscope_files::read(path).map_err(|error| Error::io("read the prompts", path, &error))?;
    let prompts = parse_prompts(&path.display().to_string(), &bytes)?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(PromptFile { name: name.to_string_lossy().into_owned(), sha256: prompts_sha256(&bytes), prompts })
}

/// Parses the bytes of a prompt file; `file` is its name in error messages.
///
/// # Errors
/// As [`read_prompts`].
pub fn parse_prompts(file: &str, bytes: &[u8]) -> Result<Vec<Prompt>> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut prompts = Vec::new();
    let mut line_of_id: HashMap<String, usize> = HashMap::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let number = index + 1;
        let at = |problem: String| Error::input(format!("{file} line {number}: {problem}"));
        let line = std::str::from_utf8(line)
            .map_err(|_| at("the text is not UTF-8; save the file as UTF-8".into()))?
            .trim();
        if line.is_empty() {
            continue;
        }
        let prompt = parse_line(line, number).map_err(at)?;
        if let Some(first) = line_of_id.insert(prompt.id.clone(), number) {
            return Err(at(format!(
                "the id {:?} is already used on line {first}; give each prompt its own id, or none: then it is the line's number",
                prompt.id
            )));
        }
        prompts.push(prompt);
    }
    if prompts.is_empty() {
        return Err(Error::input(format!(
            "{file} holds no prompts; write one JSON object a line, e.g. {EXAMPLE}"
        )));
    }
    Ok(prompts)
}

const EXAMPLE: &str = r#"{"id": "1", "category": "qa", "prompt": "Hello"}"#;

/// Bytes that a policy's name has at most: one that names every KV head of a large model fits.
const LONGEST_POLICY: usize = 8_192;

/// Refuses an id or a category that is too long for a run folder.
///
/// # Errors
/// Words to follow "has".
pub fn check_name(name: &str) -> std::result::Result<(), String> {
    check_length(name, LONGEST_NAME)
}

/// Refuses a policy's name that is too long for a run folder.
///
/// # Errors
/// As [`check_name`].
pub fn check_policy_name(name: &str) -> std::result::Result<(), String> {
    check_length(name, LONGEST_POLICY)
}

fn check_length(name: &str, most: usize) -> std::result::Result<(), String> {
    match name.len() {
        bytes if bytes <= most => Ok(()),
        bytes => Err(format!("{bytes} bytes, more than the {most} that a name may have")),
    }
}

/// Parses the line of that number; the error is the problem and its remedy, without file and line.
fn parse_line(line: &str, number: usize) -> std::result::Result<Prompt, String> {
    let value: Value = serde_json::from_str(line).map_err(|error| {
        // serde_json's message ends with a line number, which is always 1 here.
        let message = error.to_string();
        let message = message.rsplit_once(" at line ").map_or(message.as_str(), |(head, _)| head);
        format!(
            "not valid JSON ({message} at column {}); write one JSON object a line, e.g. {EXAMPLE}",
            error.column()
        )
    })?;
    let Value::Object(fields) = value else {
        return Err(format!("{} instead of a JSON object; write e.g. {EXAMPLE}", kind(&value)));
    };
    let id = text(&fields, "id")?.filter(|id| !id.trim().is_empty());
    let id = id.map_or_else(|| number.to_string(), str::to_owned);
    let category =
        text(&fields, "category")?.filter(|category| !category.trim().is_empty()).unwrap_or(UNCATEGORISED);
    for (field, name) in [("id", id.as_str()), ("category", category)] {
        check_name(name).map_err(|problem| format!("the \"{field}\" has {problem}; shorten it"))?;
    }
    let content = match (text(&fields, "prompt")?, present(&fields, "messages")) {
        (Some(_), Some(_)) => {
            return Err("both \"prompt\" and \"messages\"; keep one of them".into());
        }
        (None, None) => {
            return Err("neither \"prompt\" nor \"messages\"; give one of them".into());
        }
        (Some(prompt), None) if prompt.trim().is_empty() => {
            return Err("the \"prompt\" is empty; write one or delete the line".into());
        }
        (Some(prompt), None) => PromptText::Plain(prompt.to_owned()),
        (None, Some(list)) => PromptText::Messages(messages(list)?),
    };
    let answer = text(&fields, "answer")?;
    if answer.is_some_and(|answer| answer.trim().is_empty()) {
        return Err("the \"answer\" is empty; leave it out to use the model's own continuation".into());
    }
    let expected = text(&fields, "expected")?;
    if expected.is_some_and(|expected| expected.trim().is_empty()) {
        return Err(
            "the \"expected\" text is empty; leave it out, or give what a right answer contains".into()
        );
    }
    let span = text(&fields, "span")?;
    if span.is_some_and(|span| span.trim().is_empty()) {
        return Err("the \"span\" is empty; leave it out, or give a part of the prompt's text".into());
    }
    Ok(Prompt {
        id,
        category: category.to_owned(),
        content,
        answer: answer.map(str::to_owned),
        expected: expected.map(str::to_owned),
        span: span.map(str::to_owned),
    })
}

/// The field, unless it is missing or null.
fn present<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    fields.get(name).filter(|value| !value.is_null())
}

/// The text of a field; `None` if it is missing or null.
fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> std::result::Result<Option<&'a str>, String> {
    match present(fields, name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(other) => Err(format!("\"{name}\" is {}; write it as a string in quotes", kind(other))),
    }
}

fn messages(list: &Value) -> std::result::Result<Vec<Message>, String> {
    let Value::Array(list) = list else {
        return Err(format!(
            "\"messages\" is {}; write a list of {{\"role\", \"content\"}} objects",
            kind(list)
        ));
    };
    let mut messages = Vec::with_capacity(list.len());
    for (index, message) in list.iter().enumerate() {
        let field = |name: &str| match message.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(format!(
                "message {} has no text as its \"{name}\"; write {{\"role\": \"user\", \
                 \"content\": \"…\"}}",
                index + 1
            )),
        };
        let message = Message { role: field("role")?, content: field("content")? };
        if message.role.trim().is_empty() {
            return Err(format!("message {} has an empty \"role\"; write e.g. \"user\"", index + 1));
        }
        messages.push(message);
    }
    if messages.iter().all(|m| m.content.trim().is_empty()) {
        return Err("the \"messages\" are empty; write one or delete the line".into());
    }
    Ok(messages)
}

/// The name of a JSON value's type.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<Vec<Prompt>> {
        parse_prompts("prompts.jsonl", text.as_bytes())
    }

    fn refusal(bytes: &[u8]) -> String {
        let error = parse_prompts("prompts.jsonl", bytes).expect_err("accepted");
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    }

    #[test]
    fn reads_text_messages_answers_and_default_category() {
        let prompts = parse(
            "\u{feff}{\"id\":\"a\",\"category\":\"qa\",\"prompt\":\"Hi\"}\r\n\n  \n\
             {\"id\":\"b\",\"messages\":[{\"role\":\"system\",\"content\":\"Be brief.\"},\
             {\"role\":\"user\",\"content\":\"Hi\"}],\"answer\":\"Ho\",\"category\":null,\"span\":\"brief\"}",
        )
        .expect("valid");
        assert_eq!(prompts.len(), 2);
        assert_eq!(prompts[0].category, "qa");
        assert_eq!(prompts[0].content, PromptText::Plain("Hi".into()));
        assert_eq!(prompts[0].answer, None);
        assert_eq!(prompts[1].category, UNCATEGORISED);
        assert_eq!(prompts[1].text(), "Be brief.\n\nHi");
        assert_eq!(prompts[1].answer.as_deref(), Some("Ho"));
        assert_eq!(prompts.iter().map(|p| p.span.as_deref()).collect::<Vec<_>>(), [None, Some("brief")]);
    }

    #[test]
    fn prompts_without_an_id_are_numbered_by_their_lines() {
        let file = b"{\"prompt\":\"x\"}\n\n{\"id\":\" \",\"prompt\":\"y\"}\n{\"id\":\"z\",\"prompt\":\"z\"}";
        let ids = parse_prompts("prompts.jsonl", file).expect("prompts").into_iter().map(|prompt| prompt.id);
        assert_eq!(ids.collect::<Vec<_>>(), ["1", "3", "z"]);
    }

    #[test]
    fn refusals_name_line_and_mend() {
        let cases: [(&[u8], &[&str]); 16] = [
            (b"", &["prompts.jsonl holds no prompts"]),
            (b"\n \n", &["holds no prompts"]),
            (b"\n{\"id\":\"a\"", &["line 2", "not valid JSON", "column"]),
            (b"[1]", &["line 1", "a list instead of a JSON object"]),
            (b"{\"id\":7,\"prompt\":\"x\"}", &["\"id\" is a number", "quotes"]),
            (b"{\"prompt\":\"x\"}\n{\"id\":\"1\",\"prompt\":\"x\"}", &["line 2", "already used on line 1"]),
            (b"{\"id\":\"a\"}", &["neither \"prompt\" nor \"messages\""]),
            (b"{\"id\":\"a\",\"prompt\":\"x\",\"messages\":[]}", &["both \"prompt\" and \"messages\""]),
            (b"{\"id\":\"a\",\"prompt\":\" \\n\"}", &["is empty"]),
            (b"{\"id\":\"a\",\"messages\":[]}", &["are empty"]),
            (b"{\"id\":\"a\",\"messages\":[{\"role\":\"user\"}]}", &["message 1", "\"content\""]),
            (b"{\"id\":\"a\",\"prompt\":\"x\",\"answer\":\"\"}", &["\"answer\" is empty"]),
            (b"{\"id\":\"a\",\"prompt\":\"x\",\"span\":\" \"}", &["\"span\" is empty"]),
            (b"{\"id\":\"a\",\"prompt\":\"x\",\"expected\":\"\"}", &["\"expected\" text is empty"]),
            (b"{\"id\":\"a\",\"prompt\":\"\xff\"}", &["line 1", "UTF-8"]),
            (
                b"{\"id\":\"a\",\"prompt\":\"x\"}\n\n{\"id\":\"a\",\"prompt\":\"y\"}",
                &["line 3", "\"a\"", "line 1"],
            ),
        ];
        for (bytes, parts) in cases {
            let message = refusal(bytes);
            for part in parts {
                assert!(message.contains(part), "{message:?} lacks {part:?}");
            }
        }
    }

    #[test]
    fn names_are_bounded_in_bytes() {
        let line = |id: &str, category: &str| {
            serde_json::json!({"id": id, "category": category, "prompt": "x"}).to_string()
        };
        let longest = "ä".repeat(LONGEST_NAME / 2);
        let prompts = parse(&line(&longest, &longest)).expect("names as long as they may be");
        assert_eq!((&prompts[0].id, &prompts[0].category), (&longest, &longest));
        let long = format!("{longest}a");
        for (field, line) in [("id", line(&long, "qa")), ("category", line("a", &long))] {
            let message = refusal(format!("\n{line}").as_bytes());
            let wanted = format!("prompts.jsonl line 2: the \"{field}\" has 257 bytes");
            assert!(message.starts_with(&wanted) && message.ends_with("; shorten it"), "{message}");
        }
        let huge = refusal(line(&"a".repeat(10 << 20), "qa").as_bytes());
        assert!(huge.len() < 200, "the sentence repeats the name");
    }

    #[test]
    fn the_digest_is_that_of_the_bytes() {
        assert_eq!(
            prompts_sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }

    #[test]
    fn bundled_prompts_with_answers_are_of_every_category_and_share_nothing() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/prompts");
        let files = ["answers.jsonl", "answers-held-out.jsonl"];
        let [first, second] = files.map(|name| read_prompts(&folder.join(name)).expect(name).prompts);
        for (name, prompts) in files.into_iter().zip([&first, &second]) {
            let mut categories: HashMap<&str, usize> = HashMap::new();
            for prompt in prompts {
                *categories.entry(&prompt.category).or_default() += 1;
                assert!(prompt.answer.is_none() && prompt.expected().is_some(), "{name} {}", prompt.id);
            }
            assert!(prompts.len() >= 60 && categories.len() == 6, "{name}: {categories:?}");
            assert!(categories.values().all(|count| *count >= 10), "{name}: {categories:?}");
            let lengths = || prompts.iter().map(|prompt| prompt.text().len());
            assert!(lengths().any(|bytes| bytes < 500) && lengths().any(|bytes| bytes > 2_500), "{name}");
        }
        assert!(first.iter().all(|one| second.iter().all(|other| one.text() != other.text())));
    }

    #[test]
    fn a_missing_file_is_bad_input() {
        let error = read_prompts(Path::new("no/such/file.jsonl")).expect_err("read");
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains("no/such/file.jsonl"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_prompts("f", &bytes);
        }

        #[test]
        fn any_text_survives(id in "[a-z]{1,8}", prompt in ".*\\S.*") {
            let line = serde_json::json!({"id": id, "prompt": prompt}).to_string();
            let prompts = parse(&line).expect("valid");
            prop_assert_eq!(&prompts[0].content, &PromptText::Plain(prompt));
        }
    }
}
