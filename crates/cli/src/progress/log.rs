//! Progress where standard error is no terminal: a line now and then, for logs.

use crate::terminal;
use indicatif::TermLike;
use std::io::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two lines.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// Bars are drawn for so many columns.
const WIDTH: u16 = 500;

/// What bars are drawn on. All that one drawing shows is a line.
#[derive(Debug)]
pub(super) struct Log(Mutex<State>);

#[derive(Debug)]
struct State {
    drawn: String,
    said: Instant,
}

impl Log {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { drawn: String::new(), said: Instant::now() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was drawn, with a semicolon between the bars; `None` where there is nothing.
fn as_line(drawn: &str) -> Option<String> {
    let bars = drawn.lines().map(|bar| bar.split_whitespace().collect::<Vec<_>>().join(" "));
    let bars: Vec<String> = bars.filter(|bar| !bar.is_empty()).collect();
    (!bars.is_empty()).then(|| bars.join("; "))
}

impl TermLike for Log {
    fn width(&self) -> u16 {
        WIDTH
    }

    fn move_cursor_up(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> Result<()> {
        self.write_str(text)?;
        self.write_str("\n")
    }

    fn write_str(&self, text: &str) -> Result<()> {
        self.state().drawn.push_str(text);
        Ok(())
    }

    fn clear_line(&self) -> Result<()> {
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.state();
        let line = as_line(&state.drawn);
        state.drawn.clear();
        if let Some(line) = line.filter(|_| state.said.elapsed() >= EVERY) {
            terminal::say(&line);
            state.said = Instant::now();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_of_a_drawing_are_one_line() {
        let drawn = "recording  3/25 prompts, 40s elapsed   \n  g5  814/1200 tokens      ";
        assert_eq!(
            as_line(drawn).as_deref(),
            Some("recording 3/25 prompts, 40s elapsed; g5 814/1200 tokens")
        );
        assert_eq!(as_line(" \n "), None);
    }
}
