//! Jinja as chat templates use it, safe on a template that nobody has checked.
//!
//! A template comes with a model's file, so it is a program of somebody else's that runs in this process. A general engine
//! bounds it from outside, by time and by what it writes. That is too late: a value that holds itself or nests a million
//! levels deep overflows the stack where it is printed, compared or dropped, and `'a' * n`, `~`, `join` or `indent` take
//! gigabytes in one step. So this is an interpreter of its own, like those of llama.cpp and huggingface.js, in which every
//! step, every byte and every level is counted before it is taken:
//!
//! - The source has at most [`LONGEST_SOURCE`] bytes and nests at most [`DEEPEST`] levels. Chains (`a + b + c`, `a.b.c`,
//!   `a|f|g`, `elif`) are lists in the syntax tree, not levels.
//! - A list, tuple or mapping nests at most [`DEEPEST`] levels, and holds no namespace, loop or method; nor does a
//!   namespace. So no value holds itself, and every recursion over values ends.
//! - [`Budget`](budget::Budget) counts steps, and bytes before they are allocated. What values free is not given back.
//! - Calls nest at most [`DEEPEST_CALL`] levels, which fit on the stack of the thread that renders.
//!
//! The dialect is that of `transformers`: Jinja2's sandbox with `trim_blocks`, `lstrip_blocks` and loop controls, no
//! escaping, immutable values, and Python's texts of values. Iterators (`range`, `map`, `dict.items()`) are lists here.
//! Not supported, and refused with a sentence: inheritance and includes, recursive loops, filters that
//! no known template uses.

mod arguments;
mod budget;
mod checks;
mod filters;
mod format;
mod interpreter;
mod json;
mod lexer;
mod methods;
mod operators;
mod parser;
mod strftime;
mod syntax;
mod value;

#[cfg(test)]
mod tests;

use std::rc::Rc;

use budget::Budget;
use interpreter::Interpreter;

pub(super) use value::Value;

/// Bytes of a template's source; the longest of known models have 30 thousand.
const LONGEST_SOURCE: usize = 256 << 10;
/// Levels of nesting, of syntax and of values.
const DEEPEST: usize = 100;
/// Levels of statements, expressions and calls of macros that run within each other.
const DEEPEST_CALL: usize = 1000;
/// Stack for [`DEEPEST_CALL`] levels, with a wide margin in builds that are not optimised.
const STACK_SIZE: usize = 16 << 20;

/// Why a template gave no text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The template itself said so, with `raise_exception`.
    Raised(String),
    /// The template is no Jinja, does what Python refuses, or takes too much. Worded to follow "cannot be used:".
    Broken {
        /// What is wrong.
        reason: String,
        /// Line of the template, from 1, where it is known.
        line: Option<usize>,
    },
}

pub(super) type Result<T> = std::result::Result<T, Failure>;

fn broken(reason: impl Into<String>) -> Failure {
    Failure::Broken { reason: reason.into(), line: None }
}

impl Failure {
    fn at(self, at: usize) -> Self {
        match self {
            Self::Broken { reason, line } => Self::Broken { reason, line: line.or(Some(at)) },
            raised => raised,
        }
    }
}

/// What template `source` writes, given `variables`, which hold about `given` bytes, at `now` seconds after 1970.
///
/// `variables` makes them on the thread that renders: values are shared within it and cannot leave it.
pub(super) fn render(
    source: &str,
    variables: impl FnOnce() -> Result<Vec<(Rc<str>, Value)>> + Send,
    given: usize,
    now: u64,
) -> Result<String> {
    let rendered = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("chat template".to_owned()).stack_size(STACK_SIZE);
        let running = thread.spawn_scoped(scope, || {
            let budget = Budget::new(given);
            let template = parser::parse(source)?;
            Interpreter::new(variables()?, now, &budget).run(&template)
        });
        running.map(|running| running.join())
    });
    match rendered {
        Ok(Ok(rendered)) => rendered,
        Ok(Err(_)) => Err(broken("it is damaged")),
        Err(error) => Err(broken(format!("no thread can be started for it: {error}"))),
    }
}
