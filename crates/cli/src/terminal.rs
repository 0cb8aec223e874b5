//! Standard output and standard error. All text goes through here: names, prompts, tokens and errors may hold anything, so
//! control characters are spelt out, as reports spell them out.

use layerscope_engine::{Error, Result};
use layerscope_figures::{acts, visible, visible_line};
use std::borrow::Cow;
use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

/// Longest line on standard error, characters, and what is left of a longer one at both ends.
const LONGEST: usize = 1000;
const BEGINNING: usize = 700;
const END: usize = 250;
/// Most lines of an error in arguments, and what is left of more at both ends.
const MOST_LINES: usize = 12;
const FIRST_LINES: usize = 7;
const LAST_LINES: usize = 4;

/// Whether somebody reads standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Reads,
    /// It left, as `head` does.
    Left,
}

/// Text on standard output at once.
///
/// # Errors
/// [`Error::Failure`] where it cannot be written; a reader that left is no error.
pub(crate) fn write(text: &str) -> Result<Reader> {
    write_escaped(&visible(text))
}

/// Text and a line break on standard output.
///
/// # Errors
/// As [`write`].
pub(crate) fn print(text: &str) -> Result<()> {
    write_escaped(&format!("{}\n", visible(text))).map(|_| ())
}

/// JSON and a line break on standard output. What acts on a terminal is escaped as JSON escapes it, so that values stay equal.
///
/// # Errors
/// As [`write`].
pub(crate) fn print_json(json: &str) -> Result<()> {
    write_escaped(&format!("{}\n", escaped_json(json))).map(|_| ())
}

#[allow(clippy::disallowed_methods)]
fn write_escaped(text: &str) -> Result<Reader> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(Reader::Reads),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Reader::Left),
        Err(error) => Err(Error::failure(format!("cannot write to standard output: {error}"))),
    }
}

/// A line on standard error. Where it cannot be written there is nobody to tell.
pub(crate) fn say(line: &str) {
    say_escaped(&self::line(line));
}

/// Lines on standard error, each as [`say`] has it.
pub(crate) fn say_lines(lines: &str) {
    lines.lines().for_each(say);
}

#[allow(clippy::disallowed_methods)]
fn say_escaped(text: &str) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}

/// Whether standard error is a terminal.
#[allow(clippy::disallowed_methods)]
pub(crate) fn is_there() -> bool {
    std::io::stderr().is_terminal()
}

/// A text as one line, not too long.
pub(crate) fn line(text: &str) -> String {
    shortened(&visible_line(text))
}

/// What clap has to say: help and version on standard output, errors on standard error.
///
/// # Errors
/// As [`write`].
pub(crate) fn explain(arguments: &clap::Error) -> Result<ExitCode> {
    use clap::error::ErrorKind as Kind;
    let text = visible(arguments.to_string().trim_end());
    if !arguments.use_stderr() {
        return write_escaped(&format!("{text}\n")).map(|_| ExitCode::SUCCESS);
    }
    match arguments.kind() {
        Kind::DisplayHelpOnMissingArgumentOrSubcommand => say_escaped(&text),
        _ => say_escaped(&few_lines(&text)),
    }
    Ok(ExitCode::from(2))
}

fn few_lines(text: &str) -> String {
    let mut lines: Vec<Cow<'_, str>> = text.lines().map(|line| shortened(line).into()).collect();
    if lines.len() > MOST_LINES {
        lines.splice(FIRST_LINES..lines.len() - LAST_LINES, ["…".into()]);
    }
    lines.join("\n")
}

/// The beginning and the end of a text that is too long: the cause stands first, the mend last.
fn shortened(text: &str) -> String {
    let length = text.chars().count();
    if length <= LONGEST {
        return text.to_owned();
    }
    let beginning = text.chars().take(BEGINNING);
    beginning.chain(" … ".chars()).chain(text.chars().skip(length - END)).collect()
}

fn escaped_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            // Between values; within them it is escaped already.
            '\n' => escaped.push('\n'),
            acting if acts(acting) => {
                for unit in acting.encode_utf16(&mut [0; 2]) {
                    escaped.push_str(&format!("\\u{unit:04x}"));
                }
            }
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_keeps_its_values() {
        let text = "a\u{9b}31m\u{7f}\u{202e}\n\t\u{1b}\u{1ffff}é";
        let json = serde_json::json!({ text: [text] });
        let pretty = serde_json::to_string_pretty(&json).expect("JSON");
        let escaped = escaped_json(&pretty);
        assert!(escaped.chars().all(|character| character == '\n' || !acts(character)), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).expect("JSON"), json);
    }

    #[test]
    fn long_lines_keep_both_ends() {
        assert_eq!(line("a\nb\u{1b}[2J"), "a⏎b␛[2J");
        let long = line(&format!("cannot read {}; give another", "é".repeat(5000)));
        assert!(long.chars().count() < LONGEST, "{long}");
        assert!(long.starts_with("cannot read é") && long.ends_with("é; give another"));
        assert_eq!(line(&"x".repeat(LONGEST)).len(), LONGEST);
    }

    #[test]
    fn errors_in_arguments_have_few_lines() {
        let many = few_lines(&format!("error: {}\n\nUsage: layerscope\n\nsee --help", "x\n".repeat(500)));
        assert_eq!(many.lines().count(), MOST_LINES);
        assert!(many.starts_with("error: x") && many.ends_with("Usage: layerscope\n\nsee --help"), "{many}");
    }
}
