//! Grids of needle prompts: seed and haystack in nine bytes, then lengths, depths and samples, each on a line.

use super::{fixture, text};
use crate::Target;
use crate::mutate::{Random, text as words};
use layerscope_bench::parse_lengths;
use layerscope_diagnostics::needle::{Grid, Haystack};
use layerscope_engine::{GgufFile, Interrupt, Tokenizer};
use std::sync::LazyLock;

/// Prompts of a grid fit their length and hold their number once.
pub const TARGET: Target = Target { name: "needle", read, mutate, seeds };

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let file = GgufFile::in_memory("smollm.gguf", fixture("tokenizer/smollm.gguf")).expect("a GGUF file");
    Tokenizer::from_gguf(file.metadata(), file.path()).expect("a tokenizer")
});

/// Tokens of all prompts together that are made in a moment.
const MOST_TOKENS: usize = 3_000;

fn read(input: &[u8]) {
    let Some((seed, rest)) = input.split_first_chunk::<8>() else { return };
    let Some((haystack, rest)) = rest.split_first() else { return };
    let Some(mut lines) = text(rest).map(str::lines) else { return };
    let Ok(lengths) = parse_lengths(lines.next().unwrap_or_default()) else { return };
    let depths = lines.next().unwrap_or_default().split(',').map(str::parse).collect::<Result<Vec<u32>, _>>();
    let (Ok(depths), Some(samples)) = (depths, lines.next().and_then(|samples| samples.parse().ok())) else {
        return;
    };
    let haystack = if haystack % 2 == 0 { Haystack::Sentences } else { Haystack::Noise };
    let grid = Grid { lengths, depths, samples, seed: u64::from_le_bytes(*seed), haystack };
    if grid.check().is_err() || !is_small(&grid) {
        return;
    }
    if let Ok(prompts) = grid.prompts(&TOKENIZER, &Interrupt::new(false)) {
        for prompt in prompts {
            assert!(
                prompt.tokens.len() <= prompt.length,
                "{} of {} tokens",
                prompt.tokens.len(),
                prompt.length
            );
            assert_eq!(prompt.text.matches(&prompt.answer).count(), 1, "the number stands once");
            assert!(prompt.text.contains(&prompt.needle));
        }
    }
}

fn is_small(grid: &Grid) -> bool {
    let tokens = grid.lengths.iter().try_fold(0usize, |sum, &length| sum.checked_add(length));
    let all = tokens.and_then(|tokens| tokens.checked_mul(grid.depths.len())?.checked_mul(grid.samples));
    all.is_some_and(|all| all <= MOST_TOKENS)
}

fn mutate(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let (seed, lines) = input.split_at_checked(9)?;
    let lines = words::changed(text(lines)?, &[",", "\n", "k", "0", "50", "100", "128"], random);
    Some([seed, lines.as_bytes()].concat())
}

fn seeds() -> Vec<Vec<u8>> {
    let grids = ["128\n50\n1", "200,300\n0,100\n1", "1k\n0\n1", "64\n0,25,50,75,100\n2"];
    let inputs = grids
        .iter()
        .flat_map(|grid| [0, 1].map(|haystack| [&[7; 8][..], &[haystack], grid.as_bytes()].concat()));
    inputs.collect()
}
