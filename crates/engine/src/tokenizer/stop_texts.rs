//! Texts that end a text.

/// Finds stop texts in a text that comes in pieces, and holds back what may be the beginning of one.
#[derive(Debug, Clone)]
pub struct StopTexts {
    stops: Vec<String>,
    held: String,
}

impl StopTexts {
    /// Looks for these; empty ones stop nothing.
    pub fn new(mut stops: Vec<String>) -> Self {
        stops.retain(|stop| !stop.is_empty());
        Self { stops, held: String::new() }
    }

    /// The text that can be shown, and whether a stop text came.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let begins = |stop: &String| {
            let longest = self.held.len().min(stop.len().saturating_sub(1));
            (1..=longest).rev().find(|&len| stop.is_char_boundary(len) && self.held.ends_with(&stop[..len]))
        };
        let held = self.stops.iter().filter_map(begins).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - held);
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// What was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_ends_before_the_first_stop_text_and_nothing_of_one_is_shown() {
        let mut stops = StopTexts::new(vec!["\n\n".to_owned(), "END".to_owned()]);
        assert_eq!(stops.push("a\n"), ("a".to_owned(), false));
        assert_eq!(stops.push("bE"), ("\nb".to_owned(), false));
        assert_eq!(stops.push("N"), (String::new(), false));
        assert_eq!(stops.push("é"), ("ENé".to_owned(), false));
        assert_eq!(stops.push("x\n\nyEND"), ("x".to_owned(), true));
        let mut stops = StopTexts::new(vec!["é!".to_owned()]);
        assert_eq!(stops.push("caf\u{e9}"), ("caf".to_owned(), false));
        assert_eq!(stops.finish(), "é");
        assert_eq!(StopTexts::new(vec![]).push("all"), ("all".to_owned(), false));
    }
}
