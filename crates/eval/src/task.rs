//! Task files: JSON Lines, one item per line. A prompt file with answers is one.
//!
//! ```json
//! {"id": "q1", "category": "qa", "prompt": "…", "expected": "Paris"}
//! {"id": "m1", "category": "science", "prompt": "…", "choices": ["…", "…"], "answer": 1}
//! {"id": "s1", "prompt": "…", "answers": ["…", "…"], "metric": "rouge_l", "stop": ["\n"], "max_new_tokens": 40}
//! ```

use crate::metric::Metric;
use layerscope_diagnostics::prompts::{Prompt, parse_prompts, prompts_sha256};
use layerscope_engine::{Error, PromptText, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// An item.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Unique within the file.
    pub id: String,
    /// For summaries.
    pub category: String,
    /// The model's input.
    pub content: PromptText,
    /// What is asked.
    pub question: Question,
}

/// What is asked of the model.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// Which of these texts is likeliest behind the prompt; the right one's index.
    Choice {
        /// The texts; at least two.
        choices: Vec<String>,
        /// Index of the right one.
        right: usize,
    },
    /// The generated text.
    Text {
        /// Right answers; at least one.
        answers: Vec<String>,
        /// What it is judged by.
        metric: Metric,
        /// Texts that end it, and are not part of it.
        stop: Vec<String>,
        /// Most tokens; what the evaluation says where there is none.
        max_new_tokens: Option<usize>,
    },
}

/// A whole task file.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskFile {
    /// The file's name without its folder.
    pub name: String,
    /// SHA-256 of its bytes, lower-case hexadecimal.
    pub sha256: String,
    /// Its items in file order; never empty.
    pub items: Vec<Item>,
}

/// Reads the task file at `path`.
///
/// # Errors
/// [`Error::Input`] with file, line and remedy if the file is missing, empty or malformed.
pub fn read_tasks(path: &Path) -> Result<TaskFile> {
    let bytes = layerscope_files::read(path).map_err(|error| Error::io("read the tasks", path, &error))?;
    let items = parse_tasks(&path.display().to_string(), &bytes)?;
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(TaskFile { name: name.to_string_lossy().into_owned(), sha256: prompts_sha256(&bytes), items })
}

/// Parses the bytes of a task file; `file` is its name in error messages.
///
/// # Errors
/// As [`read_tasks`].
pub fn parse_tasks(file: &str, bytes: &[u8]) -> Result<Vec<Item>> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let (mut fields, mut prompts) = (vec![], vec![]);
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let (own, of_prompt) = split(line);
        if let Some(own) = own {
            fields.push((index + 1, own));
        }
        prompts.extend_from_slice(&of_prompt);
        prompts.push(b'\n');
    }
    let prompts = parse_prompts(file, &prompts)?;
    let items = prompts.into_iter().zip(fields).map(|(prompt, (line, fields))| {
        item(prompt, &fields).map_err(|problem| Error::input(format!("{file} line {line}: {problem}")))
    });
    items.collect()
}

/// A line's fields, and what of it is a prompt's line; the line itself where it is no object, which a prompt's parser then says.
fn split(line: &[u8]) -> (Option<Map<String, Value>>, Vec<u8>) {
    if line.trim_ascii().is_empty() {
        return (None, vec![]);
    }
    let Ok(Value::Object(fields)) = serde_json::from_slice(line) else {
        return (Some(Map::new()), line.to_vec());
    };
    let mut of_prompt = fields.clone();
    // An answer may be a choice's index.
    if of_prompt.get("answer").is_some_and(Value::is_number) {
        of_prompt.remove("answer");
    }
    let text = serde_json::to_vec(&of_prompt).unwrap_or_else(|_| line.to_vec());
    (Some(fields), text)
}

fn item(prompt: Prompt, fields: &Map<String, Value>) -> std::result::Result<Item, String> {
    let content = with_few_shot(prompt.content.clone(), text(fields, "few_shot")?)?;
    let question = match texts(fields, "choices")? {
        Some(choices) => choice(choices, fields)?,
        None => generated(&prompt, fields)?,
    };
    Ok(Item { id: prompt.id, category: prompt.category, content, question })
}

fn with_few_shot(content: PromptText, before: Option<&str>) -> std::result::Result<PromptText, String> {
    match (before, content) {
        (None, content) => Ok(content),
        (Some(before), PromptText::Plain(text)) => Ok(PromptText::Plain(format!("{before}{text}"))),
        (Some(_), PromptText::Messages(_)) => {
            Err("\"few_shot\" beside \"messages\"; write the examples as messages of their own".into())
        }
    }
}

fn choice(choices: Vec<String>, fields: &Map<String, Value>) -> std::result::Result<Question, String> {
    if choices.len() < 2 || choices.iter().any(String::is_empty) {
        return Err("\"choices\" needs at least two texts, none of them empty".into());
    }
    let right = match fields.get("answer") {
        Some(Value::Number(index)) => {
            index.as_u64().map(|index| index as usize).filter(|index| *index < choices.len())
        }
        Some(Value::String(text)) => choices.iter().position(|choice| choice == text),
        _ => None,
    };
    match right {
        Some(right) => Ok(Question::Choice { choices, right }),
        None => Err(format!(
            "\"answer\" names none of the choices; give the right one's index, 0 to {}, or its text",
            choices.len() - 1
        )),
    }
}

fn generated(prompt: &Prompt, fields: &Map<String, Value>) -> std::result::Result<Question, String> {
    let answers = match texts(fields, "answers")? {
        Some(answers) => answers,
        None => prompt.expected().map(str::to_owned).into_iter().collect(),
    };
    if answers.is_empty() {
        return Err("no \"expected\", \"answer\", \"answers\" or \"choices\"; say what is right".into());
    }
    let metric = match text(fields, "metric")? {
        None => Metric::Contains,
        Some(name) => Metric::named(name).ok_or_else(|| {
            let known = Metric::ALL.map(Metric::name).join(", ");
            format!("there is no metric {name:?}; give one of {known}")
        })?,
    };
    let max_new_tokens = match fields.get("max_new_tokens") {
        None | Some(Value::Null) => None,
        Some(count) => match count.as_u64().filter(|count| *count > 0) {
            Some(count) => Some(count as usize),
            None => return Err("\"max_new_tokens\" must be a number of tokens, at least 1".into()),
        },
    };
    let stop = texts(fields, "stop")?.unwrap_or_default();
    if stop.iter().any(String::is_empty) {
        return Err("a text in \"stop\" is empty; leave it out".into());
    }
    Ok(Question::Text { answers, metric, stop, max_new_tokens })
}

/// The text of a field; `None` if it is missing or null.
fn text<'a>(fields: &'a Map<String, Value>, name: &str) -> std::result::Result<Option<&'a str>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("\"{name}\" is no text; write it as a string in quotes")),
    }
}

/// The texts of a field that is a list, or one text.
fn texts(fields: &Map<String, Value>, name: &str) -> std::result::Result<Option<Vec<String>>, String> {
    let wrong = || format!("\"{name}\" is no list of texts; write [\"…\", \"…\"]");
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(vec![text.clone()])),
        Some(Value::Array(list)) => {
            let texts: Option<Vec<String>> =
                list.iter().map(|text| text.as_str().map(str::to_owned)).collect();
            texts.map(Some).ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Vec<Item>> {
        parse_tasks("tasks.jsonl", text.as_bytes())
    }

    #[test]
    fn items_are_read() {
        let items = parse(
            "{\"id\": \"a\", \"prompt\": \"Q\", \"expected\": \" Paris \"}\n\n\
             {\"id\": \"b\", \"category\": \"s\", \"prompt\": \"Q\", \"choices\": [\" x\", \" y\"], \"answer\": 1}\n\
             {\"id\": \"c\", \"prompt\": \"Q\", \"few_shot\": \"E\\n\", \"answers\": [\"u\", \"v\"], \"metric\": \"f1\", \
             \"stop\": \"\\n\", \"max_new_tokens\": 4}\n",
        )
        .unwrap();
        let contains = |answer: &str| Question::Text {
            answers: vec![answer.to_owned()],
            metric: Metric::Contains,
            stop: vec![],
            max_new_tokens: None,
        };
        assert_eq!(items[0].question, contains("Paris"));
        assert_eq!(
            items[1].question,
            Question::Choice { choices: vec![" x".to_owned(), " y".to_owned()], right: 1 }
        );
        assert_eq!(items[2].content, PromptText::Plain("E\nQ".to_owned()));
        assert!(
            matches!(&items[2].question, Question::Text { metric: Metric::F1, stop, .. } if *stop == ["\n"])
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (line, words) in [
            ("{\"id\": \"a\", \"prompt\": \"Q\"}", "say what is right"),
            ("{\"id\": \"a\", \"prompt\": \"Q\", \"choices\": [\"x\"], \"answer\": 0}", "at least two"),
            ("{\"id\": \"a\", \"prompt\": \"Q\", \"choices\": [\"x\", \"y\"], \"answer\": 2}", "0 to 1"),
            (
                "{\"id\": \"a\", \"prompt\": \"Q\", \"choices\": [\"x\", 3], \"answer\": 0}",
                "no list of texts",
            ),
            ("{\"id\": \"a\", \"prompt\": \"Q\", \"expected\": \"x\", \"metric\": \"bleu\"}", "exact_match"),
            ("{\"id\": \"a\", \"prompt\": \"Q\", \"expected\": \"x\", \"max_new_tokens\": 0}", "at least 1"),
            ("{\"id\": \"a\", \"expected\": \"x\"}", "neither \"prompt\" nor \"messages\""),
            ("[1]", "instead of a JSON object"),
            ("{", "not valid JSON"),
        ] {
            let error = parse(&format!("\n{line}\n")).unwrap_err().to_string();
            assert!(error.contains("tasks.jsonl line 2: ") && error.contains(words), "{line}: {error}");
        }
    }
}
