//! Depth within the decoder, in half-layers.

use std::ops::Range;

/// A boundary between half-layers: each layer is attention, then MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Depth(usize);

impl Depth {
    /// Before a layer; `entering(L)` is the end of the decoder.
    pub fn entering(layer: usize) -> Self {
        Self(2 * layer)
    }

    /// Between a layer's attention and its MLP.
    pub fn after_attention(layer: usize) -> Self {
        Self(2 * layer + 1)
    }

    /// From the start of the first layer of a range to the end of the last.
    pub fn of_layers(layers: Range<usize>) -> Range<Self> {
        Self::entering(layers.start)..Self::entering(layers.end)
    }

    /// The half-layers of a range, each as the depth at which it begins.
    pub fn halves(range: Range<Self>) -> impl Iterator<Item = Self> {
        (range.start.0..range.end.0).map(Self)
    }

    /// The layer whose half begins here.
    pub fn layer(self) -> usize {
        self.0 / 2
    }

    /// Whether that half is attention, not MLP.
    pub fn is_attention(self) -> bool {
        self.0.is_multiple_of(2)
    }

    /// The first layer whose attention comes after this depth.
    pub fn next_attention(self) -> usize {
        self.0.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_alternate() {
        let halves: Vec<(usize, bool)> = Depth::halves(Depth::after_attention(1)..Depth::after_attention(2))
            .map(|half| (half.layer(), half.is_attention()))
            .collect();
        assert_eq!(halves, [(1, false), (2, true)]);
        assert_eq!(Depth::after_attention(1).next_attention(), 2);
        assert_eq!(Depth::entering(1).next_attention(), 1);
    }
}
