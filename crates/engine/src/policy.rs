//! Policies: which prompt tokens exist at which layers.

use crate::{Error, Result};
use serde::Serialize;
use std::fmt;

/// SPEED (shallow prefill, deep decode): prompt tokens run through and keep KV in layers 0 … cutoff−1 only. A cutoff
/// of L is the full model.
///
/// The last prompt token is the first decode token and runs full depth; an anchored position 0 keeps KV at every layer.
/// Positions are never renumbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Policy {
    cutoff: usize,
    anchor_bos: bool,
    layers: usize,
}

impl Policy {
    /// Everything everywhere.
    pub fn full(layers: usize) -> Self {
        Self { cutoff: layers, anchor_bos: false, layers }
    }

    /// SPEED at a cutoff, 1 … `layers`.
    ///
    /// # Errors
    /// [`Error::Input`] on a cutoff of 0 or beyond the last layer.
    pub fn speed(cutoff: usize, anchor_bos: bool, layers: usize) -> Result<Self> {
        if cutoff == 0 || cutoff > layers {
            return Err(Error::input(format!(
                "policy speed:{cutoff}: the cutoff must be between 1 and {layers}, the model's number of layers"
            )));
        }
        Ok(Self { cutoff, anchor_bos, layers })
    }

    /// The policy of a name: `full`, `speed:24` or `speed:24+bos`.
    ///
    /// # Errors
    /// [`Error::Input`] on an unknown name or a cutoff that the model does not have.
    pub fn parse(name: &str, layers: usize) -> Result<Self> {
        if name == "full" {
            return Ok(Self::full(layers));
        }
        let unknown =
            || Error::input(format!("unknown policy `{name}` (known: full, speed:CUTOFF, speed:CUTOFF+bos)"));
        let rest = name.strip_prefix("speed:").ok_or_else(unknown)?;
        let (cutoff, anchor_bos) = match rest.strip_suffix("+bos") {
            Some(cutoff) => (cutoff, true),
            None => (rest, false),
        };
        Self::speed(cutoff.parse().map_err(|_| unknown())?, anchor_bos, layers)
    }

    /// Prompt tokens run through layers 0 … this−1.
    pub fn cutoff(&self) -> usize {
        self.cutoff
    }

    /// Whether a position of a prompt of `prompt_len` tokens exists at layers ≥ cutoff.
    pub fn keeps_full_depth(&self, position: usize, prompt_len: usize) -> bool {
        position + 1 >= prompt_len || (self.anchor_bos && position == 0)
    }

    /// Tokens whose KV each layer keeps, for a prompt of `prompt_len` tokens and `decode_len` decode tokens (the last
    /// prompt token is the first of them); length L.
    pub fn capacity(&self, prompt_len: usize, decode_len: usize) -> Vec<usize> {
        let prefill_len = prompt_len.saturating_sub(1);
        let anchors = usize::from(self.anchor_bos).min(prefill_len);
        (0..self.layers)
            .map(|layer| decode_len + if layer < self.cutoff { prefill_len } else { anchors })
            .collect()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.cutoff == self.layers, self.anchor_bos) {
            (true, _) => f.write_str("full"),
            (false, true) => write!(f, "speed:{}+bos", self.cutoff),
            (false, false) => write!(f, "speed:{}", self.cutoff),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for name in ["full", "speed:3", "speed:3+bos"] {
            assert_eq!(Policy::parse(name, 8).unwrap().to_string(), name);
        }
        assert_eq!(Policy::parse("speed:8+bos", 8).unwrap().to_string(), "full");
        for wrong in ["speed:0", "speed:9", "speed:", "speed:-1", "fast", "speed:3+eos", "pop:3"] {
            assert_eq!(Policy::parse(wrong, 8).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn capacity_is_the_cost_models() {
        let policy = Policy::parse("speed:2+bos", 3).unwrap();
        // 9 prefill tokens below the cutoff, the anchor above, 5 decode tokens everywhere.
        assert_eq!(policy.capacity(10, 5), [14, 14, 6]);
        assert_eq!(Policy::parse("speed:2", 3).unwrap().capacity(10, 5), [14, 14, 5]);
        assert_eq!(Policy::full(3).capacity(1, 5), [5, 5, 5]);
    }
}
