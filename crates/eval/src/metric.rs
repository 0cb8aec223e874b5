//! Metrics of generated texts.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// What a generated text is judged by; 0 to 1, the best over all right answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// The text contains the answer.
    Contains,
    /// The text is the answer, but for case, punctuation, articles and spaces (SQuAD, Rajpurkar et al. 2016).
    ExactMatch,
    /// Harmonic mean of the precision and recall of words, after the same changes (SQuAD).
    F1,
    /// F-measure of the longest common subsequence of words (Lin 2004), without stemming.
    RougeL,
}

impl Metric {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Contains, Self::ExactMatch, Self::F1, Self::RougeL];

    /// Its name in task files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contains => "contains",
            Self::ExactMatch => "exact_match",
            Self::F1 => "f1",
            Self::RougeL => "rouge_l",
        }
    }

    /// The metric of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|metric| metric.name() == name)
    }

    /// The score of a text, the best over the right answers.
    pub fn score<S: AsRef<str>>(self, text: &str, answers: &[S]) -> f64 {
        let of = |answer: &S| self.of_answer(text, answer.as_ref());
        answers.iter().map(of).fold(0.0, f64::max)
    }

    fn of_answer(self, text: &str, answer: &str) -> f64 {
        let is = |right: bool| if right { 1.0 } else { 0.0 };
        match self {
            Self::Contains => is(text.contains(answer.trim())),
            Self::ExactMatch => is(squad_words(text) == squad_words(answer)),
            Self::F1 => f1(&squad_words(text), &squad_words(answer)),
            Self::RougeL => rouge_l(&rouge_words(text), &rouge_words(answer)),
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Words in lower case, without ASCII punctuation and articles. An article is one wherever it stands alone between characters that
/// are no letters or digits.
fn squad_words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let plain: Vec<char> = lower.chars().filter(|c| !c.is_ascii_punctuation()).collect();
    let mut kept = String::new();
    for run in plain.chunk_by(|a, b| a.is_alphanumeric() == b.is_alphanumeric()) {
        let run: String = run.iter().collect();
        kept.push_str(if ["a", "an", "the"].contains(&run.as_str()) { " " } else { &run });
    }
    kept.split_whitespace().map(str::to_owned).collect()
}

/// Runs of ASCII letters and digits in lower case.
fn rouge_words(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    let words = lower.split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn f1(text: &[String], answer: &[String]) -> f64 {
    if text.is_empty() || answer.is_empty() {
        return if text == answer { 1.0 } else { 0.0 };
    }
    let mut left: HashMap<&str, usize> = HashMap::new();
    for word in answer {
        *left.entry(word).or_default() += 1;
    }
    let mut common = 0;
    for word in text {
        if let Some(count) = left.get_mut(word.as_str()).filter(|count| **count > 0) {
            *count -= 1;
            common += 1;
        }
    }
    harmonic(common, text.len(), answer.len())
}

fn rouge_l(text: &[String], answer: &[String]) -> f64 {
    // One row of the table of common subsequences after the other.
    let mut row = vec![0; answer.len() + 1];
    for word in text {
        let mut diagonal = 0;
        for (column, other) in answer.iter().enumerate() {
            let above = row[column + 1];
            row[column + 1] = if word == other { diagonal + 1 } else { above.max(row[column]) };
            diagonal = above;
        }
    }
    harmonic(row[answer.len()], text.len(), answer.len())
}

fn harmonic(common: usize, text: usize, answer: usize) -> f64 {
    if common == 0 {
        return 0.0;
    }
    let (precision, recall) = (common as f64 / text as f64, common as f64 / answer as f64);
    2.0 * precision * recall / (precision + recall)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_is_what_people_mean() {
        let score = |metric: Metric, text: &str, answer: &str| metric.score(text, &[answer]);
        assert_eq!(score(Metric::Contains, "It is Paris.", " Paris"), 1.0);
        assert_eq!(score(Metric::Contains, "It is paris.", "Paris"), 0.0);
        assert_eq!(score(Metric::ExactMatch, " The Paris! ", "paris"), 1.0);
        assert_eq!(score(Metric::ExactMatch, "Paris, France", "Paris"), 0.0);
        assert_eq!(score(Metric::F1, "the cat sat", "a cat"), 2.0 / 3.0);
        assert_eq!(score(Metric::F1, "", ""), 1.0);
        assert_eq!(score(Metric::F1, "the", "cat"), 0.0);
        assert_eq!(score(Metric::RougeL, "police kill the gunman", "police killed the gunman"), 0.75);
        assert_eq!(score(Metric::RougeL, "", "a"), 0.0);
        assert_eq!(Metric::ExactMatch.score("b", &["a", "b"]), 1.0);
        assert_eq!(Metric::named("rouge_l"), Some(Metric::RougeL));
    }
}
