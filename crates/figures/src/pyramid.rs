//! Values of layers × columns with maxima over groups of 4, 16, 64 … columns: any zoom level reads a few
//! values per pixel, and a single large column never disappears. Of values with a sign the one farthest from zero is kept.

mod parts;

use ndarray::Array2;
use parts::Partial;
pub use parts::{PyramidPart, PyramidTop};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Columns that are reduced to one in the next level.
const GROUP: usize = 4;

/// Values `[columns][rows]`, and above them levels of maxima over 4, 16, 64 … columns. NaN means undefined; a
/// maximum ignores it.
#[derive(Debug)]
pub struct Pyramid {
    id: u64,
    rows: usize,
    keeps: Keeps,
    levels: Vec<Vec<f32>>,
    /// Largest value of each row over all columns except the first, which may be an attention sink.
    row_max_after_first: Vec<f32>,
    /// Of one whose values are elsewhere, what is there; levels of which nothing is there are empty.
    partial: Option<Box<Partial>>,
}

impl Pyramid {
    /// An empty pyramid of `rows` rows.
    pub fn new(rows: usize) -> Self {
        let (id, row_max_after_first) = (Self::next_id(), vec![f32::NAN; rows]);
        Self { id, rows, keeps: Keeps::Largest, levels: vec![vec![]], row_max_after_first, partial: None }
    }

    fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// From values row by row, `[rows, columns]`.
    ///
    /// # Panics
    /// If `values` is not of that size.
    pub fn from_rows(values: &[f32], rows: usize, columns: usize) -> Self {
        Self::keeping(Keeps::Largest, values, rows, columns)
    }

    /// [`Self::from_rows`] of values with a sign: a maximum is the value farthest from zero, so that strong negative ones are seen
    /// at every zoom.
    ///
    /// # Panics
    /// As [`Self::from_rows`].
    pub fn from_signed_rows(values: &[f32], rows: usize, columns: usize) -> Self {
        Self::keeping(Keeps::Farthest, values, rows, columns)
    }

    fn keeping(keeps: Keeps, values: &[f32], rows: usize, columns: usize) -> Self {
        assert_eq!(values.len(), rows * columns, "values are rows × columns");
        let mut pyramid = Self { keeps, ..Self::new(rows) };
        let mut base = vec![0.0; values.len()];
        // In bands of columns, so that the data stays in the CPU cache.
        const BAND: usize = 64;
        for start in (0..columns).step_by(BAND) {
            let band = start..(start + BAND).min(columns);
            for row in 0..rows {
                for column in band.clone() {
                    base[column * rows + row] = values[row * columns + column];
                }
            }
        }
        pyramid.levels[0] = base;
        pyramid.raise();
        for column in pyramid.levels[0].chunks_exact(rows.max(1)).skip(1) {
            keeps.merge(&mut pyramid.row_max_after_first, column);
        }
        pyramid
    }

    /// From values `[rows, columns]`.
    pub fn from_array(values: &Array2<f32>) -> Self {
        let (rows, columns) = values.dim();
        match values.as_slice() {
            Some(slice) => Self::from_rows(slice, rows, columns),
            None => Self::from_rows(&values.iter().copied().collect::<Vec<_>>(), rows, columns),
        }
    }

    /// Builds every level above the values.
    fn raise(&mut self) {
        while self.levels.last().is_some_and(|top| top.len() > self.rows) {
            let below = &self.levels[self.levels.len() - 1];
            let mut above = Vec::with_capacity(below.len().div_ceil(GROUP) + self.rows);
            for group in below.chunks(GROUP * self.rows) {
                let start = above.len();
                above.resize(start + self.rows, f32::NAN);
                for column in group.chunks_exact(self.rows) {
                    self.keeps.merge(&mut above[start..], column);
                }
            }
            self.levels.push(above);
        }
    }

    /// Appends a column to a pyramid that is whole.
    ///
    /// # Panics
    /// If `column` has another number of rows.
    pub fn push(&mut self, column: &[f32]) {
        assert_eq!(column.len(), self.rows, "a column has all rows");
        if self.columns() > 0 {
            self.keeps.merge(&mut self.row_max_after_first, column);
        }
        let rows = self.rows;
        self.levels[0].extend_from_slice(column);
        let mut index = self.columns() - 1;
        for level in 1..self.levels.len() {
            index /= GROUP;
            let values = &mut self.levels[level];
            if values.len() < (index + 1) * rows {
                values.resize((index + 1) * rows, f32::NAN);
            }
            self.keeps.merge(&mut values[index * rows..], column);
        }
        // The top level had one column. With two, it needs a next level.
        self.raise();
    }

    /// Unique id of the pyramid. Pushing changes the content and the number of columns, not the id; a part that has come changes it.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        match &self.partial {
            Some(partial) => partial.columns,
            None => self.levels[0].len().checked_div(self.rows).unwrap_or(0),
        }
    }

    /// The value; NaN if it is undefined, out of range or not there yet.
    pub fn value(&self, row: usize, column: usize) -> f32 {
        self.column(column).get(row).copied().unwrap_or(f32::NAN)
    }

    /// The values of a column, one per row; empty if it is out of range or not there yet.
    pub fn column(&self, column: usize) -> &[f32] {
        if !self.has_column(column) {
            return &[];
        }
        let start = column.saturating_mul(self.rows);
        self.levels[0].get(start..start + self.rows).unwrap_or(&[])
    }

    /// The largest value of each row over all columns, or over all except the first.
    pub fn row_max(&self, without_first: bool) -> Vec<f32> {
        if without_first {
            return self.row_max_after_first.clone();
        }
        let mut largest = vec![f32::NAN; self.rows];
        for column in self.levels[self.levels.len() - 1].chunks_exact(self.rows.max(1)) {
            self.keeps.merge(&mut largest, column);
        }
        largest
    }

    /// The level of which so many columns are read, and the columns of its groups.
    pub(crate) fn level_for(&self, columns: usize) -> (usize, usize) {
        let (mut level, mut size) = (0, 1);
        while level + 1 < self.levels.len() && size * GROUP * GROUP <= columns {
            level += 1;
            size *= GROUP;
        }
        (level, size)
    }

    /// Writes the largest value of each row over the columns of `range` to `largest`. The range is extended
    /// to whole groups, by at most a quarter of its length at each end, or to coarser ones where those are not there yet.
    pub fn max_over(&self, range: Range<usize>, largest: &mut [f32]) {
        largest.fill(f32::NAN);
        let range = range.start..range.end.min(self.columns());
        let (level, size) = self.level_for(range.len());
        let groups = range.start / size..range.end.div_ceil(size);
        if self.partial.is_some() {
            groups.for_each(|group| self.keeps.merge(largest, self.group(level, group)));
            return;
        }
        let values = &self.levels[level];
        let end = (groups.end * self.rows).min(values.len());
        for column in values[(groups.start * self.rows).min(end)..end].chunks_exact(self.rows.max(1)) {
            self.keeps.merge(largest, column);
        }
    }

    /// Up to `count` defined values, evenly spread, in no particular order.
    pub fn sample(&self, count: usize, without_first: bool) -> Vec<f32> {
        if let Some(sample) = self.sample_of_parts(without_first) {
            return sample.iter().copied().filter(|value| !value.is_nan()).collect();
        }
        let first = if without_first { self.rows.min(self.levels[0].len()) } else { 0 };
        let values = &self.levels[0][first..];
        // A step that is coprime to the number of rows visits all rows.
        let mut step = (values.len() / count.max(1)).max(1);
        while step > 1
            && (1..self.rows.max(1)).any(|f| f > 1 && step.is_multiple_of(f) && self.rows.is_multiple_of(f))
        {
            step += 1;
        }
        values.iter().step_by(step).copied().filter(|value| !value.is_nan()).collect()
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        self.levels.iter().map(|level| level.capacity() * size_of::<f32>()).sum()
    }
}

impl Clone for Pyramid {
    /// A copy with its own id, because it may change separately.
    fn clone(&self) -> Self {
        Self {
            id: Self::next_id(),
            rows: self.rows,
            keeps: self.keeps,
            levels: self.levels.clone(),
            row_max_after_first: self.row_max_after_first.clone(),
            partial: self.partial.clone(),
        }
    }
}

/// Levels of so many columns.
fn levels_of(columns: usize) -> usize {
    let above = std::iter::successors(Some(columns), |groups| (*groups > 1).then(|| groups.div_ceil(GROUP)));
    above.count()
}

/// Which of several values a group keeps.
#[derive(Debug, Clone, Copy)]
enum Keeps {
    /// The largest.
    Largest,
    /// The one farthest from zero; of two as far, the positive one.
    Farthest,
}

impl Keeps {
    /// Elementwise; ignores NaN.
    fn merge(self, kept: &mut [f32], values: &[f32]) {
        for (kept, &value) in kept.iter_mut().zip(values) {
            // f32::max returns the other value if one is NaN.
            *kept = match self {
                Self::Farthest if kept.abs() > value.abs() => *kept,
                Self::Farthest if value.abs() > kept.abs() => value,
                _ => kept.max(value),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain_max(values: &[f32], columns: usize, row: usize, range: Range<usize>) -> f32 {
        range.fold(f32::NAN, |largest, column| largest.max(values[row * columns + column]))
    }

    fn same(a: f32, b: f32) -> bool {
        a == b || (a.is_nan() && b.is_nan())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn maxima_hold_at_least_the_range_and_little_more(
            rows in 1_usize..7, columns in 1_usize..300, seed in any::<u32>(), a in any::<usize>(), b in any::<usize>(),
        ) {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                if state.is_multiple_of(11) { f32::NAN } else { (state >> 8) as f32 }
            };
            let values: Vec<f32> = (0..rows * columns).map(|_| next()).collect();
            let pyramid = Pyramid::from_rows(&values, rows, columns);
            let (a, b) = (a % columns, b % columns);
            let range = a.min(b)..a.max(b) + 1;
            let slack = range.len() / 4;
            let wide = range.start.saturating_sub(slack)..(range.end + slack).min(columns);
            let mut largest = vec![0.0; rows];
            pyramid.max_over(range.clone(), &mut largest);
            for (row, &actual) in largest.iter().enumerate() {
                let least = plain_max(&values, columns, row, range.clone());
                let most = plain_max(&values, columns, row, wide.clone());
                prop_assert!(least.is_nan() || actual >= least, "{actual} {least}");
                prop_assert!(actual.is_nan() || actual <= most, "{actual} {most}");
                prop_assert!(same(pyramid.value(row, a), values[row * columns + a]));
                prop_assert!(same(pyramid.row_max(false)[row], plain_max(&values, columns, row, 0..columns)));
                prop_assert!(same(pyramid.row_max(true)[row], plain_max(&values, columns, row, 1..columns)));
            }
        }

        #[test]
        fn pushing_columns_gives_the_same(rows in 1_usize..5, columns in 0_usize..150) {
            let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 7_919) % 1_009) as f32).collect();
            let whole = Pyramid::from_rows(&values, rows, columns);
            let mut grown = Pyramid::new(rows);
            for column in 0..columns {
                let values: Vec<f32> = (0..rows).map(|row| values[row * columns + column]).collect();
                grown.push(&values);
            }
            prop_assert_eq!(&whole.levels, &grown.levels);
            prop_assert_eq!(whole.columns(), grown.columns());
        }
    }

    #[test]
    fn a_hot_column_is_seen_at_every_zoom() {
        let (rows, columns, hot) = (3, 10_007, 6_503);
        let mut values = vec![0.1; rows * columns];
        values[columns + hot] = 1.0;
        let pyramid = Pyramid::from_rows(&values, rows, columns);
        for pixels in [1, 7, 100, 1_300, 10_007] {
            let mut seen = 0;
            for pixel in 0..pixels {
                let mut largest = vec![0.0; rows];
                pyramid.max_over(pixel * columns / pixels..(pixel + 1) * columns / pixels, &mut largest);
                seen += usize::from(largest[1] == 1.0);
                assert_eq!(largest[0], 0.1);
            }
            assert!((1..=2).contains(&seen), "{seen} of {pixels} pixels");
        }
    }

    #[test]
    fn a_strong_negative_value_is_seen_at_every_zoom() {
        let (columns, strong) = (1_000, 377);
        let mut values = vec![0.25; columns];
        values[strong] = -0.5;
        values[0] = f32::NAN;
        let signed = Pyramid::from_signed_rows(&values, 1, columns);
        let mut largest = [0.0];
        for width in [1, 3, 40, 700] {
            signed.max_over(strong..strong + width, &mut largest);
            assert_eq!(largest, [-0.5], "{width}");
        }
        assert_eq!(signed.row_max(false), [-0.5]);
        assert_eq!(Pyramid::from_rows(&values, 1, columns).row_max(false), [0.25]);
        assert_eq!(Pyramid::from_signed_rows(&[-0.5, 0.5], 1, 2).row_max(false), [0.5]);
    }

    #[test]
    fn samples_visit_every_row() {
        let (rows, columns) = (64, 4_096);
        let values: Vec<f32> = (0..rows * columns).map(|i| (i / columns) as f32).collect();
        let sample = Pyramid::from_rows(&values, rows, columns).sample(4_096, true);
        assert!((0..rows).all(|row| sample.contains(&(row as f32))));
        assert!((2_000..10_000).contains(&sample.len()), "{}", sample.len());
    }
}
