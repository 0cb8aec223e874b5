//! Chat templates: Jinja as `transformers` runs it, on a template that nobody has checked.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::jinja::{self, Failure, Value};
use super::{Message, shorten};
use crate::{Error, Result};

/// Far more than a template adds to its messages.
const OUTPUT_LIMIT: usize = 4 << 20;

/// A model's chat template with the special tokens that it may write.
#[derive(Debug, Clone)]
pub(super) struct ChatTemplate {
    text: String,
    bos_token: Option<String>,
    eos_token: Option<String>,
    /// The file or folder that errors name.
    source: PathBuf,
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
    pub(super) fn render(&self, messages: &[Message]) -> Result<String> {
        let source = self.source.display();
        let unusable = |reason: &str| {
            Error::input(format!("the chat template of {source} cannot be used: {}", shorten(reason)))
        };
        let given: usize = messages.iter().map(|m| m.role.len() + m.content.len()).sum();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        match jinja::render(&self.text, || self.variables(messages), given, now) {
            Ok(text) if text.len() > OUTPUT_LIMIT.saturating_add(given.saturating_mul(4)) => {
                Err(unusable(&format!("it writes {} bytes for messages of {given} bytes", text.len())))
            }
            Ok(text) => Ok(text),
            Err(Failure::Raised(reason)) => Err(Error::input(format!(
                "the chat template of {source} refuses the prompt: {}",
                shorten(&reason)
            ))),
            Err(Failure::Broken { reason, line: Some(line) }) => {
                Err(unusable(&format!("in line {line}, {reason}")))
            }
            Err(Failure::Broken { reason, line: None }) => Err(unusable(&reason)),
        }
    }

    /// As in transformers: tools and documents are there and none, a special token that the model lacks is absent.
    fn variables(&self, messages: &[Message]) -> jinja::Result<Vec<(Rc<str>, Value)>> {
        let messages = messages.iter().map(|message| {
            Value::mapping([("role", Value::text(&message.role)), ("content", Value::text(&message.content))])
        });
        let mut variables = vec![
            ("messages".into(), Value::list(messages.collect::<jinja::Result<_>>()?)?),
            ("tools".into(), Value::None),
            ("documents".into(), Value::None),
            ("add_generation_prompt".into(), Value::Bool(true)),
        ];
        for (name, token) in [("bos_token", &self.bos_token), ("eos_token", &self.eos_token)] {
            variables.extend(token.as_ref().map(|token| (name.into(), Value::text(token))));
        }
        Ok(variables)
    }
}
