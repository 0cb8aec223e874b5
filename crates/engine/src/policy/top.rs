//! The best of some scores.

/// The indices of the `count` largest scores, the first of equals, ascending; index 0 is always among them.
pub(super) fn top_with_first(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (1..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut top: Vec<usize> = std::iter::once(0).chain(order).take(count.min(scores.len())).collect();
    top.sort_unstable();
    top
}

#[cfg(test)]
mod tests {
    use super::top_with_first;

    #[test]
    fn equal_scores_keep_the_first_and_index_0_always_stays() {
        assert_eq!(top_with_first(&[-9.0, 1.0, 2.0, 2.0, 1.0], 3), [0, 2, 3]);
        assert_eq!(top_with_first(&[-9.0, 1.0, 1.0, 1.0], 2), [0, 1]);
        assert_eq!(top_with_first(&[0.0, f32::NAN, 1.0], 2).len(), 2);
        assert_eq!(top_with_first(&[1.0], 4), [0]);
    }
}
