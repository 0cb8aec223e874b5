//! Dropout (Srivastava et al. 2014) of what an adapter's A reads.

use crate::adapter::Target;

/// Sets inputs to zero at random. The same seed gives the same zeros, which the backward pass needs once more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// Share of inputs that become zero, below 1; the others are divided by what remains.
    pub rate: f32,
    /// Of the step.
    pub seed: u64,
}

impl Dropout {
    /// Drops inputs `[rows, in]` of one matrix, in place.
    pub(crate) fn apply(self, (layer, target): (usize, Target), x: &mut [f32]) {
        let of_matrix = mixed(self.seed ^ mixed(layer as u64 * Target::ALL.len() as u64 + target as u64));
        let threshold = (f64::from(self.rate) * 2f64.powi(64)) as u64;
        let factor = 1.0 / (1.0 - self.rate);
        for (x, index) in x.iter_mut().zip(0u64..) {
            *x *= if mixed(of_matrix.wrapping_add(index)) < threshold { 0.0 } else { factor };
        }
    }
}

/// SplitMix64 (Steele et al. 2014): the number at a place of a random sequence.
fn mixed(place: u64) -> u64 {
    let mut z = place.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_that_is_dropped_is_the_rate_and_the_mean_stays() {
        let dropout = Dropout { rate: 0.3, seed: 5 };
        let run = |layer: usize, target: Target, dropout: Dropout| {
            let mut x = vec![1.0; 20_000];
            dropout.apply((layer, target), &mut x);
            x
        };
        let x = run(3, Target::Gate, dropout);
        let zeros = x.iter().filter(|x| **x == 0.0).count() as f64 / x.len() as f64;
        assert!((zeros - 0.3).abs() < 0.02, "{zeros}");
        let mean = x.iter().sum::<f32>() / x.len() as f32;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
        assert_eq!(x, run(3, Target::Gate, dropout));
        for other in [
            run(2, Target::Gate, dropout),
            run(3, Target::Up, dropout),
            run(3, Target::Gate, Dropout { seed: 6, ..dropout }),
        ] {
            assert_ne!(x, other);
        }
    }
}
