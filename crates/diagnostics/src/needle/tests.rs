//! Needle prompts with the embedded model's tokenizer.

use super::*;
use crate::prompts::parse_prompts;
use layerscope_engine::GgufFile;
use proptest::prelude::*;
use std::path::Path;

fn tokenizer() -> Tokenizer {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
    let file = GgufFile::open(&path).expect("the embedded model");
    Tokenizer::from_gguf(file.metadata(), file.path()).expect("a tokenizer")
}

fn grid(lengths: &[usize], depths: &[u32]) -> Grid {
    Grid {
        lengths: lengths.to_vec(),
        depths: depths.to_vec(),
        samples: 2,
        seed: 5,
        haystack: Haystack::Sentences,
    }
}

fn prompts(grid: &Grid) -> Result<Vec<NeedlePrompt>> {
    grid.prompts(&tokenizer(), &Interrupt::new(false))
}

#[test]
fn prompts_keep_to_the_budget_and_hide_the_needle_at_its_depth() {
    let tokenizer = tokenizer();
    for haystack in [Haystack::Sentences, Haystack::Noise] {
        let grid = Grid { haystack, ..grid(&[400, 1_500], &[0, 30, 50, 100]) };
        let prompts = prompts(&grid).expect("prompts");
        assert_eq!(prompts.len(), grid.count());
        for prompt in &prompts {
            let encoded = tokenizer.encode_prompt(&PromptText::Plain(prompt.text.clone()));
            assert_eq!(encoded.expect("tokens"), prompt.tokens);
            // The longest sentences have about forty tokens of this vocabulary.
            let short = prompt.length - prompt.tokens.len();
            assert!(short < 60, "{} is {short} short", prompt.id);
            // The needle is after the right share of sentences.
            let haystack = &prompt.text[INTRODUCTION.len()..];
            let (before, after) = haystack.split_once("The special magic number").expect("a needle");
            let after = after.split("\n\nQuestion").next().unwrap_or_default();
            let (before, after) = (before.matches('.').count(), after.matches('.').count() - 1);
            let depth = before as f64 / (before + after) as f64;
            assert!((depth - f64::from(prompt.depth) / 100.0).abs() <= 0.5 / (before + after) as f64 + 1e-9);
            assert_eq!(prompt.text.matches(&prompt.answer).count(), 1, "{}", prompt.id);
            assert_eq!(prompt.text.matches(|c: char| c.is_ascii_digit()).count(), 7);
        }
    }
}

#[test]
fn prompts_differ_from_each_other_and_not_from_run_to_run() {
    let grid = grid(&[300, 301], &[0, 50]);
    let made = prompts(&grid).expect("prompts");
    assert_eq!(made, prompts(&grid).expect("prompts"));
    for prompt in &made {
        let same = |other: &&NeedlePrompt| {
            other.id == prompt.id || other.text == prompt.text || other.answer == prompt.answer
        };
        assert_eq!(made.iter().filter(same).count(), 1, "{}", prompt.id);
    }
    let other = prompts(&Grid { seed: 6, ..grid }).expect("prompts");
    assert!(made.iter().zip(&other).all(|(a, b)| a.answer != b.answer && a.text != b.text));
}

#[test]
fn lines_are_those_of_a_prompt_file() {
    let made = prompts(&grid(&[300], &[0, 50])).expect("prompts");
    let lines: Vec<String> = made.iter().map(|p| serde_json::to_string(&p.line()).expect("JSON")).collect();
    let read = parse_prompts("needles.jsonl", lines.join("\n").as_bytes()).expect("a prompt file");
    assert_eq!(read.len(), made.len());
    for (read, made) in read.iter().zip(&made) {
        assert_eq!(read.id, made.id);
        assert_eq!(read.content, PromptText::Plain(made.text.clone()));
        assert_eq!(read.expected(), Some(made.answer.as_str()));
    }
}

#[test]
fn what_cannot_be_made_is_refused_in_one_sentence() {
    let refusal = |grid: Grid| prompts(&grid).expect_err("refused").to_string();
    assert!(refusal(grid(&[20], &[0])).contains("length of 20"));
    assert!(refusal(grid(&[300], &[101])).contains("101"));
    assert!(refusal(grid(&[300, 300], &[0])).contains("300 is given twice"));
    assert!(refusal(grid(&[300], &[7, 7])).contains("7 is given twice"));
    assert!(refusal(grid(&[], &[0])).contains("no prompts"));
    assert!(refusal(Grid { samples: 0, ..grid(&[300], &[0]) }).contains("no prompts"));
    let interrupted = grid(&[300], &[0]).prompts(&tokenizer(), &Interrupt::new(true));
    assert!(matches!(interrupted, Err(Error::Interrupted)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_length_and_depth_keep_to_the_budget(length in 150_usize..900, depth in 0_u32..=100, seed: u64) {
        let grid = Grid { samples: 1, seed, ..grid(&[length], &[depth]) };
        let prompt = &prompts(&grid).expect("prompts")[0];
        prop_assert!(prompt.tokens.len() <= length && length - prompt.tokens.len() < 60);
    }
}
