//! Loops at the end of a text: the same tokens over and over. Greedy decoding falls into them, more often without BOS as anchor.

use serde::{Deserialize, Serialize};

/// Fewest rounds of a loop.
const LEAST_ROUNDS: usize = 3;
/// Fewest tokens that a loop covers: shorter repeats can be style.
const LEAST_TOKENS: usize = 12;

/// A loop at the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Tokens of one round.
    pub period: usize,
    /// Whole rounds, counting the first.
    pub rounds: usize,
}

impl Repetition {
    /// The loop that `tokens` end in, of at least three rounds and twelve tokens. Of several loops, the one that covers the
    /// most tokens; of those, the one with the shortest period. At worst O(n²) for n tokens.
    pub fn at_end_of(tokens: &[u32]) -> Option<Self> {
        let loops = (1..=tokens.len() / LEAST_ROUNDS).map(|period| {
            let earlier = tokens[..tokens.len() - period].iter().rev();
            let same =
                tokens.iter().rev().zip(earlier).take_while(|(later, earlier)| later == earlier).count();
            Self { period, rounds: same / period + 1 }
        });
        loops
            .filter(|repetition| repetition.rounds >= LEAST_ROUNDS && repetition.tokens() >= LEAST_TOKENS)
            .max_by_key(|repetition| (repetition.tokens(), std::cmp::Reverse(repetition.period)))
    }

    /// Tokens covered.
    pub fn tokens(self) -> usize {
        self.period * self.rounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn loop_at_end(tokens: &[u32]) -> Option<(usize, usize)> {
        Repetition::at_end_of(tokens).map(|repetition| (repetition.period, repetition.rounds))
    }

    #[test]
    fn loops_at_the_end_are_reported() {
        let text = |rounds: usize, rest: &[u32]| {
            let mut tokens = vec![90, 91, 92];
            tokens.extend([1, 2, 3, 4].repeat(rounds));
            tokens.extend(rest);
            tokens
        };
        assert_eq!(loop_at_end(&text(3, &[])), Some((4, 3)));
        assert_eq!(loop_at_end(&text(7, &[])), Some((4, 7)));
        // Broken off within a round, it is the same loop seen from another token.
        assert_eq!(loop_at_end(&text(7, &[1, 2])), Some((4, 7)));
        assert_eq!(loop_at_end(&text(2, &[])), None);
        assert_eq!(loop_at_end(&text(7, &[50])), None);
        assert_eq!(loop_at_end(&[5; 12]), Some((1, 12)));
        assert_eq!(loop_at_end(&[5; 11]), None);
        assert_eq!(loop_at_end(&[]), None);
    }

    proptest! {
        #[test]
        fn a_reported_loop_is_there(tokens in proptest::collection::vec(0_u32..3, 0..80)) {
            if let Some(repetition) = Repetition::at_end_of(&tokens) {
                let end = &tokens[tokens.len() - repetition.tokens()..];
                let (first, _) = end.split_at(repetition.period);
                prop_assert!(end.chunks(repetition.period).all(|round| round == first));
            }
        }

        #[test]
        fn a_loop_is_reported_after_any_text(
            mut tokens in proptest::collection::vec(0_u32..50, 0..40), round in proptest::collection::vec(0_u32..50, 1..9), rounds in 3_usize..9,
        ) {
            tokens.extend(round.repeat(rounds));
            let covered = round.len() * rounds;
            let reported = Repetition::at_end_of(&tokens).map_or(0, Repetition::tokens);
            prop_assert!(covered < LEAST_TOKENS || reported >= covered, "{reported} of {covered}");
        }
    }
}
