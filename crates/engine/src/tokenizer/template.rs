//! Chat templates: Jinja as `transformers` runs it, on a template that nobody has checked.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, ErrorKind, context};

use super::python::{self, JsonLayout};
use super::{Message, shorten};
use crate::{Error, Result};

/// Far more than a template needs, which takes well under a millisecond.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Far more than a template adds to its messages.
const OUTPUT_LIMIT: usize = 4 << 20;
const STACK_SIZE: usize = 16 << 20;

/// A model's chat template with the special tokens that it may write.
#[derive(Debug, Clone)]
pub(super) struct ChatTemplate {
    text: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// The file or folder that errors name.
    source: PathBuf,
}

/// Why a template gave no text.
enum Failure {
    /// The template itself said so, with `raise_exception`.
    Raised(String),
    Broken(String),
}

impl ChatTemplate {
    pub(super) fn new(
        text: String,
        bos_token: Option<String>,
        eos_token: Option<String>,
        source: &Path,
    ) -> Self {
        Self { text, bos_token, eos_token, source: source.to_path_buf() }
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// `messages` as the model is to read them, ending where the assistant is to speak.
    ///
    /// The template runs on fuel and on a thread of its own: fuel ends a loop that writes nothing, the thread has the stack
    /// for deep nesting, and one still running at the time limit is left behind.
    pub(super) fn render(&self, messages: &[Message]) -> Result<String> {
        self.render_within(TIME_LIMIT, messages)
    }

    fn render_within(&self, time_limit: Duration, messages: &[Message]) -> Result<String> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let template = self.clone();
        let messages = messages.to_vec();
        std::thread::Builder::new()
            .name("chat template".to_owned())
            .stack_size(STACK_SIZE)
            .spawn(move || {
                // Nobody is listening any more where the time limit has passed.
                let _ = sender.send(template.evaluate(&messages));
            })
            .map_err(|error| Error::failure(format!("cannot start a thread: {error}")))?;
        let source = self.source.display();
        match receiver.recv_timeout(time_limit) {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(Failure::Raised(reason))) => Err(Error::input(format!(
                "the chat template of {source} refuses the prompt: {}",
                shorten(&reason)
            ))),
            Ok(Err(Failure::Broken(reason))) => Err(Error::input(format!(
                "the chat template of {source} cannot be used: {}",
                shorten(&reason)
            ))),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::input(format!(
                "the chat template of {source} cannot be used: it runs for more than {time_limit:?}"
            ))),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(Error::input(format!("the chat template of {source} cannot be used: it is damaged")))
            }
        }
    }

    fn evaluate(&self, messages: &[Message]) -> std::result::Result<String, Failure> {
        let environment = environment().map_err(|error| failure(&error))?;
        let template = environment.template_from_named_str("chat_template", &self.text).map_err(|error| {
            match uses_generation_tag(&self.text) {
                true => Failure::Broken("its {% generation %} tag is not supported".to_owned()),
                false => failure(&error),
            }
        })?;
        // As in transformers: tools and documents are there and none, a special token that the model lacks is absent.
        let mut special_tokens = Vec::new();
        special_tokens.extend(self.bos_token.as_ref().map(|text| ("bos_token", text)));
        special_tokens.extend(self.eos_token.as_ref().map(|text| ("eos_token", text)));
        let special_tokens = Value::from_pairs(special_tokens);
        let context = context! {
            messages => Value::from_iter(messages.iter().map(|message| {
                Value::from_pairs([("role", &message.role), ("content", &message.content)])
            })),
            tools => Value::from(()),
            documents => Value::from(()),
            add_generation_prompt => true,
            ..special_tokens
        };
        let given: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let mut output =
            Bounded { bytes: Vec::new(), limit: OUTPUT_LIMIT.saturating_add(given.saturating_mul(4)) };
        template.render_captured_to(context, &mut output).map_err(|error| failure(&error))?;
        String::from_utf8(output.bytes).map_err(|error| Failure::Broken(error.to_string()))
    }
}

fn environment() -> std::result::Result<Environment<'static>, minijinja::Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(20_000_000));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", tojson);
    Ok(environment)
}

/// Marks an error as the template's own words.
#[derive(Debug)]
struct Raised(String);

impl std::fmt::Display for Raised {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> std::result::Result<Value, minijinja::Error> {
    let message = message.to_string();
    let error = minijinja::Error::new(ErrorKind::InvalidOperation, message.clone());
    Err(error.with_source(Raised(message)))
}

/// The time now, in UTC: where the model's training saw dates, a day's difference is none.
fn strftime_now(format: &str) -> std::result::Result<String, minijinja::Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    python::strftime(format, now)
        .map_err(|problem| minijinja::Error::new(ErrorKind::InvalidOperation, problem))
}

/// The filter of transformers, which, unlike Jinja's own, does not escape for HTML.
fn tojson(value: &Value, arguments: Kwargs) -> std::result::Result<String, minijinja::Error> {
    let indent: Option<usize> = arguments.get("indent")?;
    let sort_keys: Option<bool> = arguments.get("sort_keys")?;
    let ensure_ascii: Option<bool> = arguments.get("ensure_ascii")?;
    arguments.assert_all_used()?;
    let refuse = |problem: &'static str| minijinja::Error::new(ErrorKind::InvalidOperation, problem);
    if ensure_ascii == Some(true) {
        return Err(refuse("tojson(ensure_ascii=true) is not supported"));
    }
    if indent.is_some_and(|indent| indent > 16) {
        return Err(refuse("tojson with an indent above 16 is not supported"));
    }
    let layout = JsonLayout { indent, sort_keys: sort_keys.unwrap_or(false) };
    python::to_json(value, &layout)
        .map_err(|problem| minijinja::Error::new(ErrorKind::InvalidOperation, problem))
}

fn failure(error: &minijinja::Error) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(Raised(message)) = error.downcast_ref() {
            return Failure::Raised(message.clone());
        }
        cause = error.source();
    }
    Failure::Broken(error.to_string())
}

/// Whether the template has the tag with which transformers marks what the assistant said, for training.
fn uses_generation_tag(text: &str) -> bool {
    text.split("{%")
        .skip(1)
        .any(|tag| tag.trim_start_matches(['-', '+']).trim_start().starts_with("generation"))
}

/// Output that refuses to grow without end.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for Bounded {
    fn write(&mut self, piece: &[u8]) -> io::Result<usize> {
        if self.bytes.len().saturating_add(piece.len()) > self.limit {
            return Err(io::Error::other(format!("it writes more than {} bytes", self.limit)));
        }
        self.bytes.extend_from_slice(piece);
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_without_end_is_stopped() {
        let loops = "{% for a in range(100000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}";
        let template = ChatTemplate::new(loops.to_owned(), None, None, Path::new("a.gguf"));
        let error = template.render_within(Duration::from_millis(50), &[]);
        assert_eq!(
            error.map_err(|error| error.to_string()),
            Err("the chat template of a.gguf cannot be used: it runs for more than 50ms".to_owned())
        );
    }
}
