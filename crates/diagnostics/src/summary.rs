//! Summaries over prompts: mean, quantiles and a bootstrap interval of the mean, per figure and layer.
//!
//! The bootstrap resamples prompts, because the tokens of one prompt are not independent: 2,000 resamples
//! with replacement, percentile interval (Efron & Tibshirani 1993, chapter 13). The seed is fixed, so the
//! same prompts always give the same interval.

use std::collections::BTreeMap;

use ndarray::{Array1, Array2, ArrayView1, Axis};
use ndarray_stats::interpolate::Linear;
use ndarray_stats::{MaybeNan, Quantile1dExt};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{LAYER_FIGURES, PromptSummary};
use crate::undefined::number_or_null;

/// Resamples of the bootstrap; a fuzzer looks at what is summarised, not at how exactly.
pub const RESAMPLES: usize = if cfg!(fuzzing) { 20 } else { 2_000 };

/// Seed of the bootstrap's generator.
const SEED: u64 = 0x5bee_dca7;

/// One figure over prompts. Figures without any defined value are null throughout.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Summary {
    /// Prompts with a defined value.
    pub count: usize,
    /// Prompts without one (undefined or infinite), left out.
    pub missing: usize,
    /// Arithmetic mean.
    pub mean: f64,
    /// Lower end of the 95 % bootstrap interval of the mean: the 2.5th percentile.
    pub mean_ci95_lower: f64,
    /// Upper end of the 95 % bootstrap interval of the mean: the 97.5th percentile.
    pub mean_ci95_upper: f64,
    /// 5 % quantile.
    pub q05: f64,
    /// 25 % quantile.
    pub q25: f64,
    /// Median.
    pub q50: f64,
    /// 75 % quantile.
    pub q75: f64,
    /// 95 % quantile.
    pub q95: f64,
}

/// The per-layer figures of a group of prompts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct GroupSummary {
    /// The category; `None` for all prompts.
    pub category: Option<String>,
    /// Prompts in the group.
    pub prompts: usize,
    /// Figure → one summary per layer, in the lengths of [`crate::record::LayerFigures`].
    #[schemars(
        description = "Figure → one summary per layer, in the lengths of [`crate::run::LayerFigures`]."
    )]
    pub figures: BTreeMap<&'static str, Vec<Summary>>,
}

/// The per-layer figures of a run, overall and per category.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct RunSummary {
    /// All prompts.
    pub overall: GroupSummary,
    /// Each category, by name.
    pub categories: Vec<GroupSummary>,
}

/// Summarises the per-layer figures over prompts, overall and per category.
pub fn summarise_run(prompts: &[PromptSummary]) -> RunSummary {
    let mut by_category: BTreeMap<&str, Vec<&PromptSummary>> = BTreeMap::new();
    for prompt in prompts {
        by_category.entry(&prompt.category).or_default().push(prompt);
    }
    let categories = by_category.into_iter();
    RunSummary {
        overall: summarise_group(None, &prompts.iter().collect::<Vec<_>>()),
        categories: categories.map(|(category, prompts)| summarise_group(Some(category), &prompts)).collect(),
    }
}

fn summarise_group(category: Option<&str>, prompts: &[&PromptSummary]) -> GroupSummary {
    let named: Vec<_> = prompts.iter().map(|prompt| prompt.layers.named()).collect();
    let figures = LAYER_FIGURES.iter().enumerate().map(|(figure, name)| {
        let rows: Vec<&[f64]> = named.iter().map(|figures| figures[figure].1).collect();
        (*name, summarise(&rows))
    });
    GroupSummary { category: category.map(str::to_owned), prompts: prompts.len(), figures: figures.collect() }
}

/// Summarises a figure of [`PromptSummary::by_layer`] over prompts at layers 0 … L−1.
pub fn summarise_by_layer<'a>(
    prompts: impl IntoIterator<Item = &'a PromptSummary>,
    figure: &str,
) -> Vec<Summary> {
    let rows: Vec<Vec<f64>> = prompts.into_iter().map(|prompt| prompt.by_layer(figure)).collect();
    summarise(&rows.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// Summarises each column over the rows: `rows[prompt][column]`. In shorter rows, values count as missing.
pub fn summarise(rows: &[&[f64]]) -> Vec<Summary> {
    let means = bootstrap_means(rows, SEED);
    let columns = columns(rows);
    let columns = columns.axis_iter(Axis(1)).zip(means.axis_iter(Axis(1)));
    columns
        .map(|(values, means)| {
            let count = values.iter().filter(|value| value.is_finite()).count();
            let [q05, q25, q50, q75, q95] = quantiles(values, [0.05, 0.25, 0.5, 0.75, 0.95]);
            let [mean_ci95_lower, mean_ci95_upper] = quantiles(means, [0.025, 0.975]);
            Summary {
                count,
                missing: values.len() - count,
                mean: mean(values.iter().copied()),
                mean_ci95_lower,
                mean_ci95_upper,
                q05,
                q25,
                q50,
                q75,
                q95,
            }
        })
        .collect()
}

/// The one-sided 95 % upper bound of each column's mean over the rows: the 95th percentile of the bootstrap's means.
///
/// `rows[prompt][column]`; NaN if a column has no finite value.
pub fn mean_upper_bound95(rows: &[&[f64]]) -> Vec<f64> {
    let means = bootstrap_means(rows, SEED);
    let bounds = means.axis_iter(Axis(1)).map(|means| {
        let [bound] = quantiles(means, [0.95]);
        bound
    });
    bounds.collect()
}

/// How one figure differs between two groups of prompts. NaN where it is undefined in either.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Difference {
    /// Mean of the second group less that of the first.
    #[serde(deserialize_with = "number_or_null")]
    pub mean: f64,
    /// Lower end of its 95 % bootstrap interval over prompts.
    #[serde(deserialize_with = "number_or_null")]
    pub lower95: f64,
    /// Upper end of its 95 % bootstrap interval over prompts.
    #[serde(deserialize_with = "number_or_null")]
    pub upper95: f64,
}

/// Which prompts of two groups belong together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pairing {
    /// Row i of both groups is the same prompt: differences are taken prompt by prompt, and prompts are resampled.
    Paired,
    /// The groups have nothing to do with each other and are resampled apart.
    Unpaired,
}

/// The difference of each column, second minus first: `rows[prompt][column]`. Paired groups have equally many
/// rows.
pub fn differences(first: &[&[f64]], second: &[&[f64]], pairing: Pairing) -> Vec<Difference> {
    let width = |rows: &[&[f64]]| rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let width = width(first).min(width(second));
    let column_means = |rows: &[&[f64]]| -> Vec<f64> {
        (0..width).map(|column| mean(rows.iter().filter_map(|row| row.get(column).copied()))).collect()
    };
    let (means, resampled) = match pairing {
        Pairing::Paired => {
            let rows = first.iter().zip(second);
            let rows: Vec<Vec<f64>> =
                rows.map(|(a, b)| a.iter().zip(*b).map(|(a, b)| b - a).collect()).collect();
            let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
            (column_means(&rows), bootstrap_means(&rows, SEED))
        }
        Pairing::Unpaired => {
            let (a, b) = (column_means(first), column_means(second));
            let means = a.iter().zip(&b).map(|(a, b)| b - a).collect();
            // A different seed, so that the two groups are resampled independently.
            let (a, b) = (bootstrap_means(first, SEED), bootstrap_means(second, SEED ^ 1));
            let resamples = a.nrows().min(b.nrows());
            let slice = ndarray::s![..resamples, ..width];
            (means, &b.slice(slice) - &a.slice(slice))
        }
    };
    let columns = means.into_iter().enumerate();
    columns
        .map(|(column, mean)| {
            let bounds = match column < resampled.ncols() {
                true => quantiles(resampled.column(column), [0.025, 0.975]),
                false => [f64::NAN; 2],
            };
            Difference { mean, lower95: bounds[0], upper95: bounds[1] }
        })
        .collect()
}

/// Spearman's rank correlation of two figures over the indices where both are defined, with mean ranks for
/// ties; NaN for fewer than three indices or a constant figure.
pub fn rank_correlation(first: &[f64], second: &[f64]) -> f64 {
    let both = first.iter().zip(second).filter(|(a, b)| a.is_finite() && b.is_finite());
    let (first, second): (Vec<f64>, Vec<f64>) = both.map(|(a, b)| (*a, *b)).unzip();
    if first.len() < 3 {
        return f64::NAN;
    }
    let (a, b) = (ranks(&first), ranks(&second));
    let middle = (first.len() - 1) as f64 / 2.0;
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.into_iter().zip(b) {
        let (a, b) = (a - middle, b - middle);
        ab += a * b;
        aa += a * a;
        bb += b * b;
    }
    ab / (aa * bb).sqrt()
}

/// Rank of each value in ascending order, from 0; ties have their mean rank.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut start = 0;
    for tied in order.chunk_by(|a, b| values[*a] == values[*b]) {
        let rank = start as f64 + (tied.len() - 1) as f64 / 2.0;
        tied.iter().for_each(|index| ranks[*index] = rank);
        start += tied.len();
    }
    ranks
}

/// Mean of the finite values; NaN if there are none.
pub fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for value in values.into_iter().filter(|value| value.is_finite()) {
        sum += value;
        count += 1;
    }
    sum / count as f64
}

/// Median of the finite values (the mean of the middle two for an even number); NaN if there are none.
pub fn median(values: &[f64]) -> f64 {
    let [median] = quantiles(ArrayView1::from(values), [0.5]);
    median
}

/// The rows as an array, padded with NaN.
fn columns(rows: &[&[f64]]) -> Array2<f64> {
    let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    Array2::from_shape_fn((rows.len(), width), |(row, column)| {
        rows[row].get(column).copied().unwrap_or(f64::NAN)
    })
}

/// Means of each column over resampled rows, `[RESAMPLES, columns]`; all columns share the resamples.
fn bootstrap_means(rows: &[&[f64]], seed: u64) -> Array2<f64> {
    let width = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let Some(count) = u32::try_from(rows.len()).ok().filter(|count| *count > 0) else {
        return Array2::from_elem((0, width), f64::NAN);
    };
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut means = Array2::zeros((RESAMPLES, width));
    let mut counts = vec![0_u32; width];
    for mut sums in means.outer_iter_mut() {
        counts.fill(0);
        for _ in 0..count {
            // u32, so that 32- and 64-bit machines draw the same numbers.
            let row = rows[rng.random_range(0..count) as usize];
            for ((sum, count), value) in sums.iter_mut().zip(&mut counts).zip(row) {
                if value.is_finite() {
                    *sum += value;
                    *count += 1;
                }
            }
        }
        for (sum, count) in sums.iter_mut().zip(&counts) {
            *sum /= f64::from(*count);
        }
    }
    means
}

/// Quantiles of the finite values, linearly interpolated between order statistics; NaN if there are none.
fn quantiles<const K: usize>(values: ArrayView1<'_, f64>, shares: [f64; K]) -> [f64; K] {
    // Excludes infinities and values that would overflow to them: interpolating between two is undefined.
    let usable = |value: f64| value.abs() < f64::MAX / 4.0;
    let mut values = values.mapv(|value| if usable(value) { value } else { f64::NAN });
    let mut values = f64::remove_nan_mut(values.view_mut());
    match values.first().copied() {
        None => return [f64::NAN; K],
        // Quickselect is quadratic for equal values, and means of resamples are often all equal.
        Some(first) if values.iter().all(|value| *value == first) => return [f64::from_not_nan(first); K],
        Some(_) => {}
    }
    let shares: Array1<_> = shares.iter().filter_map(f64::try_as_not_nan).copied().collect();
    let quantiles = values.quantiles_mut(&shares, &Linear).unwrap_or_default();
    std::array::from_fn(|index| quantiles.get(index).map_or(f64::NAN, |value| f64::from_not_nan(*value)))
}

/// Wilson's 95 % score interval of a share (1927): within \[0, 1\] for few and extreme outcomes too, and all
/// of \[0, 1\] without outcomes.
pub fn wilson95(successes: usize, count: usize) -> [f64; 2] {
    const Z: f64 = 1.959_963_984_540_054;
    if count == 0 {
        return [0.0, 1.0];
    }
    let n = count as f64;
    let share = successes as f64 / n;
    let centre = share + Z * Z / (2.0 * n);
    let spread = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    [((centre - spread) / scale).max(0.0), ((centre + spread) / scale).min(1.0)]
}

/// Indices of the largest finite values, at most `count`, largest first; of equal values, the earlier ones.
pub fn largest(values: impl IntoIterator<Item = f64>, count: usize) -> Vec<usize> {
    // Indices ascend, so a value goes after its equals. Few values exceed the last of a full list.
    let mut best: Vec<(usize, f64)> = vec![];
    for (index, value) in values.into_iter().enumerate().filter(|(_, value)| value.is_finite()) {
        if best.len() < count || best.last().is_some_and(|&(_, least)| value > least) {
            best.insert(best.partition_point(|&(_, better)| better >= value), (index, value));
            best.truncate(count);
        }
    }
    best.into_iter().map(|(index, _)| index).collect()
}

/// Ascending numbers as a list of ranges: `0–4, 6, 8–9`.
pub fn ranges(numbers: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = vec![];
    for &number in numbers {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let text = |(first, last): (usize, usize)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}–{last}"),
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Mean KL over prompts with the prompt hidden from one KV head of a layer, by layer and head; empty where it was not measured
/// of every prompt.
pub fn knockout_by_kv_head(prompts: &[PromptSummary]) -> Vec<Vec<f64>> {
    let Some(first) = prompts.first() else { return vec![] };
    let (layers, heads) =
        (first.knockout.len(), first.knockout.first().map_or(0, |row| row.by_kv_head.len()));
    let of = |prompt: &PromptSummary, layer: usize, head: usize| {
        let row = prompt.knockout.iter().find(|row| row.layer == layer)?;
        row.by_kv_head.get(head).map(|divergence| divergence.kl)
    };
    let mean_of = |layer, head| {
        let kl: Vec<f64> = prompts.iter().map(|prompt| of(prompt, layer, head)).collect::<Option<_>>()?;
        Some(mean(kl))
    };
    let of_layer = |layer| (0..heads).map(|head| mean_of(layer, head)).collect::<Option<Vec<f64>>>();
    let all: Option<Vec<Vec<f64>>> = (0..layers).map(of_layer).collect();
    all.filter(|_| heads > 0).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn column(values: &[f64]) -> Vec<Vec<f64>> {
        values.iter().map(|value| vec![*value]).collect()
    }

    fn one(values: &[f64]) -> Summary {
        let rows = column(values);
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        summarise(&rows).remove(0)
    }

    #[test]
    fn known_values() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let summary = one(&values);
        assert_eq!((summary.count, summary.missing), (101, 0));
        assert_eq!(summary.mean, 50.0);
        let quantiles = [summary.q05, summary.q25, summary.q50, summary.q75, summary.q95];
        assert_eq!(quantiles, [5.0, 25.0, 50.0, 75.0, 95.0]);
        // The standard error of the mean is 29.15/√101 = 2.90, so the interval is about 50 ± 5.7.
        assert!((summary.mean_ci95_lower - 44.3).abs() < 0.5, "{summary:?}");
        assert!((summary.mean_ci95_upper - 55.7).abs() < 0.5, "{summary:?}");
        let rows = column(&values);
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        // One-sided: 50 + 1.645 · 2.90.
        assert!((mean_upper_bound95(&rows)[0] - 54.8).abs() < 0.4);
    }

    #[test]
    fn quantiles_are_interpolated() {
        let summary = one(&[1.0, 2.0]);
        assert_eq!((summary.q25, summary.q50), (1.25, 1.5));
    }

    #[test]
    fn undefined_values_are_left_out_and_counted() {
        let summary = one(&[1.0, f64::NAN, 3.0, f64::INFINITY]);
        assert_eq!((summary.count, summary.missing), (2, 2));
        assert_eq!((summary.mean, summary.q50), (2.0, 2.0));
        assert!((1.0..=3.0).contains(&summary.mean_ci95_lower));
        let none = one(&[f64::NAN]);
        assert_eq!((none.count, none.missing), (0, 1));
        assert!(none.mean.is_nan() && none.q50.is_nan() && none.mean_ci95_upper.is_nan());
        assert!(summarise(&[]).is_empty());
    }

    #[test]
    fn a_column_does_not_depend_on_its_neighbours() {
        let alone = [1.0, 5.0, 2.0, 8.0];
        let rows: Vec<Vec<f64>> = alone.iter().map(|value| vec![9.0, *value]).collect();
        let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        assert_eq!(summarise(&rows)[1], one(&alone));
        assert_eq!(summarise(&rows)[0].mean_ci95_upper, 9.0);
    }

    fn differ(first: &[f64], second: &[f64], pairing: Pairing) -> Difference {
        let (first, second) = (column(first), column(second));
        let first: Vec<&[f64]> = first.iter().map(Vec::as_slice).collect();
        let second: Vec<&[f64]> = second.iter().map(Vec::as_slice).collect();
        differences(&first, &second, pairing).remove(0)
    }

    #[test]
    fn paired_differences_leave_out_what_prompts_have_in_common() {
        let first: Vec<f64> = (0..40).map(|prompt| f64::from(prompt * 7 % 40)).collect();
        let second: Vec<f64> = first.iter().map(|value| value + 1.0).collect();
        let paired = differ(&first, &second, Pairing::Paired);
        assert_eq!(paired, Difference { mean: 1.0, lower95: 1.0, upper95: 1.0 });
        // Unpaired, the spread over prompts hides the difference: standard error √(2 · 11.7² / 40) = 2.6.
        let unpaired = differ(&first, &second, Pairing::Unpaired);
        assert!((unpaired.mean - 1.0).abs() < 1e-12);
        assert!((unpaired.lower95 + 4.1).abs() < 0.5 && (unpaired.upper95 - 6.1).abs() < 0.5, "{unpaired:?}");
    }

    #[test]
    fn differences_of_nothing_are_undefined() {
        assert!(differences(&[], &[], Pairing::Unpaired).is_empty());
        let difference = differ(&[f64::NAN], &[1.0], Pairing::Paired);
        assert!(difference.mean.is_nan() && difference.lower95.is_nan());
        assert_eq!(differ(&[1.0], &[3.0], Pairing::Unpaired).mean, 2.0);
    }

    #[test]
    fn known_rank_correlations() {
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[10.0, 20.0, 90.0]), 1.0);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0, f64::NAN], &[3.0, 2.0, 1.0, 9.0]), -1.0);
        // Ties: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
        let tied = rank_correlation(&[1.0, 2.0, 2.0, 3.0], &[1.0, 2.0, 3.0, 4.0]);
        assert!((tied - 0.948_683_298).abs() < 1e-9);
        assert!(rank_correlation(&[1.0; 4], &[1.0, 2.0, 3.0, 4.0]).is_nan());
        assert!(rank_correlation(&[1.0], &[1.0]).is_nan());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            values in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(0.5)], 0..30),
        ) {
            let shares = [0.0, 0.025, 0.3, 0.95, 1.0];
            let actual = quantiles(ndarray::aview1(&values), shares);
            let mut sorted = values;
            sorted.sort_by(f64::total_cmp);
            for (share, actual) in shares.into_iter().zip(actual) {
                let at = share * sorted.len().saturating_sub(1) as f64;
                let (low, high) = (sorted.get(at.floor() as usize), sorted.get(at.ceil() as usize));
                let wanted = low.zip(high).map_or(f64::NAN, |(low, high)| low + (high - low) * at.fract());
                prop_assert!((actual - wanted).abs() < 1e-9 || (actual.is_nan() && wanted.is_nan()), "{actual} {wanted}");
            }
        }

        #[test]
        fn the_largest_come_first_and_of_equals_the_earlier(
            values in proptest::collection::vec(prop_oneof![-9.0..9.0_f64, Just(f64::NAN), Just(1.0)], 0..20), count in 0_usize..25,
        ) {
            let actual = largest(values.iter().copied(), count);
            let defined = values.iter().filter(|value| !value.is_nan()).count();
            prop_assert_eq!(actual.len(), count.min(defined));
            let before = |a: usize, b: usize| values[a] > values[b] || (values[a] == values[b] && a < b);
            prop_assert!(actual.windows(2).all(|pair| before(pair[0], pair[1])));
            let last = actual.last().copied();
            let left_out = (0..values.len()).filter(|index| !values[*index].is_nan() && !actual.contains(index));
            prop_assert!(last.is_none_or(|last| left_out.clone().all(|index| before(last, index))));
        }

        #[test]
        fn bounds_lie_within_the_data_and_in_order(values in proptest::collection::vec(-10.0..10.0_f64, 1..20)) {
            let summary = one(&values);
            let least = values.iter().copied().fold(f64::INFINITY, f64::min) - 1e-9;
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max) + 1e-9;
            let ordered = [least, summary.q05, summary.q25, summary.q50, summary.q75, summary.q95, most];
            prop_assert!(ordered.is_sorted(), "{summary:?}");
            let interval = [least, summary.mean_ci95_lower, summary.mean_ci95_upper, most];
            prop_assert!(interval.is_sorted(), "{summary:?}");
        }

        #[test]
        fn any_floats_are_summarised(values in proptest::collection::vec(any::<f64>(), 0..12)) {
            let rows = column(&values);
            let rows: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
            let _ = (summarise(&rows), mean_upper_bound95(&rows));
        }
    }

    #[test]
    fn numbers_that_follow_each_other_are_a_range() {
        assert_eq!(ranges(&[0, 1, 2, 3, 4, 6, 8, 9]), "0–4, 6, 8–9");
        assert_eq!((ranges(&[]).as_str(), ranges(&[7]).as_str()), ("", "7"));
    }

    #[test]
    fn wilsons_interval() {
        // Newcombe 1998, table I: 81 of 263 and 0 of 20.
        let [lower, upper] = wilson95(81, 263);
        assert!((lower - 0.2553).abs() < 1e-4 && (upper - 0.3662).abs() < 1e-4, "{lower} {upper}");
        let [lower, upper] = wilson95(0, 20);
        assert!(lower == 0.0 && (upper - 0.1611).abs() < 1e-4, "{upper}");
        assert_eq!(wilson95(0, 0), [0.0, 1.0]);
    }

    proptest! {
        #[test]
        fn the_share_lies_in_its_interval(count in 1_usize..500, part in 0.0..=1.0_f64) {
            let successes = (count as f64 * part) as usize;
            let [lower, upper] = wilson95(successes, count);
            let share = successes as f64 / count as f64;
            prop_assert!(0.0 <= lower && lower <= share + 1e-12 && share <= upper + 1e-12 && upper <= 1.0);
            // More prompts with the same share narrow the interval.
            let [narrower, wider] = wilson95(2 * successes, 2 * count);
            prop_assert!(wider - narrower < upper - lower);
        }
    }
}
