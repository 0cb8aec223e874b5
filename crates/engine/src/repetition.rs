//! Texts that end in a loop: the same tokens over and over, as greedy decoding falls into, more so without the anchor.

use serde::{Deserialize, Serialize};

/// Fewest times that a loop goes round.
const LEAST_ROUNDS: usize = 3;
/// Fewest tokens that a loop covers: shorter repeats are style.
const LEAST_TOKENS: usize = 12;

/// A loop at the end of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repetition {
    /// Tokens of one round.
    pub period: usize,
    /// Whole rounds, the first among them.
    pub rounds: usize,
}

impl Repetition {
    /// The loop that `tokens` end in: at least three rounds and twelve tokens; of several the one that covers most tokens, of
    /// these the shortest. O(n²) at worst, for n tokens.
    pub fn at_end_of(tokens: &[u32]) -> Option<Self> {
        let loops = (1..=tokens.len() / LEAST_ROUNDS).map(|period| {
            let earlier = tokens[..tokens.len() - period].iter().rev();
            let same =
                tokens.iter().rev().zip(earlier).take_while(|(later, earlier)| later == earlier).count();
            Self { period, rounds: same / period + 1 }
        });
        loops
            .filter(|found| found.rounds >= LEAST_ROUNDS && found.tokens() >= LEAST_TOKENS)
            .max_by_key(|found| (found.tokens(), std::cmp::Reverse(found.period)))
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

    fn found(tokens: &[u32]) -> Option<(usize, usize)> {
        Repetition::at_end_of(tokens).map(|found| (found.period, found.rounds))
    }

    #[test]
    fn loops_at_the_end_are_found() {
        let text = |rounds: usize, rest: &[u32]| {
            let mut tokens = vec![90, 91, 92];
            tokens.extend([1, 2, 3, 4].repeat(rounds));
            tokens.extend(rest);
            tokens
        };
        assert_eq!(found(&text(3, &[])), Some((4, 3)));
        assert_eq!(found(&text(7, &[])), Some((4, 7)));
        // Broken off within a round, it is the same loop seen from another token.
        assert_eq!(found(&text(7, &[1, 2])), Some((4, 7)));
        assert_eq!(found(&text(2, &[])), None);
        assert_eq!(found(&text(7, &[50])), None);
        assert_eq!(found(&[5; 12]), Some((1, 12)));
        assert_eq!(found(&[5; 11]), None);
        assert_eq!(found(&[]), None);
    }

    proptest! {
        #[test]
        fn what_is_found_is_there(tokens in proptest::collection::vec(0_u32..3, 0..80)) {
            if let Some(found) = Repetition::at_end_of(&tokens) {
                let end = &tokens[tokens.len() - found.tokens()..];
                let (first, _) = end.split_at(found.period);
                prop_assert!(end.chunks(found.period).all(|round| round == first));
            }
        }

        #[test]
        fn a_loop_is_found_after_any_text(
            mut tokens in proptest::collection::vec(0_u32..50, 0..40), round in proptest::collection::vec(0_u32..50, 1..9), rounds in 3_usize..9,
        ) {
            tokens.extend(round.repeat(rounds));
            let covered = round.len() * rounds;
            let found = Repetition::at_end_of(&tokens).map_or(0, Repetition::tokens);
            prop_assert!(covered < LEAST_TOKENS || found >= covered, "{found} of {covered}");
        }
    }
}
