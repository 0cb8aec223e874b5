//! The best of some scores.

/// The indices of the `count` largest scores, in descending order; the first of equals.
pub(crate) fn largest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let before = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    if count < order.len() {
        order.select_nth_unstable_by(count, before);
        order.truncate(count);
    }
    order.sort_unstable_by(before);
    order
}

/// The indices of the `count` largest scores, the first of equals, ascending; index 0 is always among them.
pub(super) fn top_with_first(scores: &[f32], count: usize) -> Vec<usize> {
    let Some(rest) = scores.get(1..).filter(|_| count > 0) else { return vec![] };
    let mut top: Vec<usize> = largest(rest, count - 1).into_iter().map(|index| index + 1).collect();
    top.push(0);
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
