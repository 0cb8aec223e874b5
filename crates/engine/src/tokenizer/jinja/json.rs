//! `json.dumps` of Python.

use std::rc::Rc;

use super::budget::{Budget, Text};
use super::filters::sorted;
use super::operators::compare;
use super::syntax::Comparison;
use super::value::{Value, float_text};
use super::{Result, broken};

/// The layout of [`to_json`].
#[derive(Debug, Default)]
pub(super) struct JsonLayout {
    /// Spaces a level, on lines of their own; everything on one line where it is none.
    pub(super) indent: Option<usize>,
    /// Whether objects are written with their keys in order.
    pub(super) sort_keys: bool,
    /// What stands between items and between a key and its value, where it is not Python's default.
    pub(super) separators: Option<(Rc<str>, Rc<str>)>,
}

/// `value` as `json.dumps(value, ensure_ascii=False)` writes it: with a space after each comma and colon.
pub(super) fn to_json(value: &Value, layout: &JsonLayout, budget: &Budget) -> Result<Value> {
    let mut out = budget.text();
    Json { layout, budget, out: &mut out }.write(value, 0)?;
    out.finish()
}

struct Json<'a, 'b> {
    layout: &'a JsonLayout,
    budget: &'b Budget,
    out: &'a mut Text<'b>,
}

impl Json<'_, '_> {
    fn write(&mut self, value: &Value, level: usize) -> Result<()> {
        self.budget.steps(1)?;
        match value {
            Value::Str(text) => self.string(text),
            Value::List(list) => {
                self.out.push("[")?;
                for (index, item) in list.items.iter().enumerate() {
                    self.separate(index, level + 1)?;
                    self.write(item, level + 1)?;
                }
                self.close(list.items.is_empty(), level, "]")
            }
            Value::Mapping(mapping) => {
                self.budget.bytes(size_of_val(mapping.entries.as_slice()))?;
                let mut entries: Vec<&(Value, Value)> = mapping.entries.iter().collect();
                if self.layout.sort_keys {
                    let budget = self.budget;
                    entries = sorted(entries, |a, b| compare(Comparison::Less, &a.0, &b.0, budget))?;
                }
                self.out.push("{")?;
                for (index, (key, item)) in entries.into_iter().enumerate() {
                    self.separate(index, level + 1)?;
                    match key {
                        Value::Str(key) => self.string(key)?,
                        other => self.string(&scalar(other)?)?,
                    }
                    self.out.push(self.layout.separators.as_ref().map_or(": ", |(_, colon)| colon))?;
                    self.write(item, level + 1)?;
                }
                self.close(mapping.entries.is_empty(), level, "}")
            }
            _ => self.out.push(&scalar(value)?),
        }
    }

    fn string(&mut self, text: &str) -> Result<()> {
        self.out.push("\"")?;
        for piece in text.split_inclusive(|c: char| c < ' ' || c == '"' || c == '\\') {
            let last = piece.chars().next_back().filter(|&c| c < ' ' || c == '"' || c == '\\');
            let Some(last) = last else {
                self.out.push(piece)?;
                continue;
            };
            // What is escaped is a single byte.
            self.out.push(&piece[..piece.len() - 1])?;
            match last {
                '"' => self.out.push("\\\"")?,
                '\\' => self.out.push("\\\\")?,
                '\n' => self.out.push("\\n")?,
                '\r' => self.out.push("\\r")?,
                '\t' => self.out.push("\\t")?,
                '\x08' => self.out.push("\\b")?,
                '\x0c' => self.out.push("\\f")?,
                control => self.out.push(&format!("\\u{:04x}", u32::from(control)))?,
            }
        }
        self.out.push("\"")
    }

    fn separate(&mut self, index: usize, level: usize) -> Result<()> {
        if index > 0 {
            let comma = if self.layout.indent.is_some() { "," } else { ", " };
            self.out.push(self.layout.separators.as_ref().map_or(comma, |(comma, _)| comma))?;
        }
        self.end_line(level)
    }

    fn close(&mut self, is_empty: bool, level: usize, bracket: &str) -> Result<()> {
        if !is_empty {
            self.end_line(level)?;
        }
        self.out.push(bracket)
    }

    fn end_line(&mut self, level: usize) -> Result<()> {
        match self.layout.indent {
            Some(indent) => {
                self.out.push("\n")?;
                self.out.repeat(" ", indent.saturating_mul(level))
            }
            None => Ok(()),
        }
    }
}

/// A value that is no container and no text, as JSON spells it.
fn scalar(value: &Value) -> Result<String> {
    Ok(match value {
        Value::None => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Float(number) if number.is_nan() => "NaN".to_owned(),
        Value::Float(number) if number.is_infinite() => {
            (if *number > 0.0 { "Infinity" } else { "-Infinity" }).to_owned()
        }
        Value::Float(number) => float_text(*number),
        _ => return Err(broken(format!("{} cannot be written as JSON", value.kind()))),
    })
}
