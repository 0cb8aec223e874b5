//! A pyramid whose values are elsewhere: its top is there first, the rest comes part by part, and coarser levels stand in meanwhile.

use super::{GROUP, Pyramid, levels_of};
use crate::scale::SAMPLED;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ops::Range;

/// Groups of columns of a part.
const PART: usize = 256;
/// Most values of a pyramid whose parts come from elsewhere.
const MOST_VALUES: usize = 1 << 30;

/// A part of a pyramid that is asked for by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PyramidPart {
    /// 256 neighbouring groups of a level, or as many as are left.
    Groups {
        /// The level; 0 are the values, and a group of level l has 4 to the power of l columns.
        level: u8,
        /// Which of the level's parts.
        index: u32,
    },
    /// The values that percentiles are taken from.
    Sample {
        /// Whether they leave the first column out.
        without_first: bool,
    },
}

/// The upper levels of a pyramid, and what is known of all columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PyramidTop {
    rows: usize,
    columns: usize,
    level: u8,
    /// `[groups of the level][rows]`.
    values: Vec<f32>,
    row_max_after_first: Vec<f32>,
}

/// What of a pyramid is there whose values are elsewhere.
#[derive(Debug, Clone)]
pub(super) struct Partial {
    pub(super) columns: usize,
    /// Which parts of each level below the top are there.
    there: Vec<Vec<bool>>,
    /// With the first column, and without it.
    samples: [Option<Vec<f32>>; 2],
}

impl Partial {
    /// Whether a group is there.
    fn has(&self, level: usize, group: usize) -> bool {
        self.there.get(level).is_none_or(|parts| parts.get(group / PART).copied().unwrap_or(false))
    }
}

impl Pyramid {
    /// Its upper levels: the finest one of at most `most` groups, from which those above follow.
    pub fn top(&self, most: usize) -> PyramidTop {
        let groups = |level: usize| self.levels[level].len() / self.rows.max(1);
        let level = (0..self.levels.len()).find(|level| groups(*level) <= most.max(1));
        let level = level.unwrap_or(self.levels.len() - 1);
        PyramidTop {
            rows: self.rows,
            columns: self.columns(),
            level: level as u8,
            values: self.levels[level].clone(),
            row_max_after_first: self.row_max_after_first.clone(),
        }
    }

    /// A pyramid of which so far the upper levels are there; `None` if they contradict themselves or are of too many columns.
    pub fn from_top(top: PyramidTop) -> Option<Self> {
        let PyramidTop { rows, columns, level, values, row_max_after_first } = top;
        let level = usize::from(level);
        let all = rows.checked_mul(columns).filter(|all| *all <= MOST_VALUES)?;
        let levels = levels_of(columns);
        let groups = columns.div_ceil(GROUP.checked_pow(level as u32)?);
        let is_sound = level < levels
            && Some(values.len()) == rows.checked_mul(groups)
            && row_max_after_first.len() == rows
            && (rows > 0 || all == columns);
        if !is_sound {
            return None;
        }
        let mut pyramid = Self::new(rows);
        pyramid.row_max_after_first = row_max_after_first;
        pyramid.levels = vec![vec![]; level];
        pyramid.levels.push(values);
        pyramid.raise();
        let parts = |level: usize| columns.div_ceil(GROUP.pow(level as u32)).div_ceil(PART);
        pyramid.partial = (level > 0).then(|| {
            let there = (0..level).map(|level| vec![false; parts(level)]).collect();
            Box::new(Partial { columns, there, samples: [None, None] })
        });
        Some(pyramid)
    }

    /// A part, of a pyramid that is whole; `None` where it has no such part.
    pub fn part(&self, part: PyramidPart) -> Option<Vec<f32>> {
        match part {
            PyramidPart::Groups { level, index } => {
                let values = self.levels.get(usize::from(level))?;
                let start = (index as usize).checked_mul(PART * self.rows)?;
                let end = (start.checked_add(PART * self.rows)?).min(values.len());
                values.get(start..end).filter(|part| !part.is_empty()).map(<[f32]>::to_vec)
            }
            PyramidPart::Sample { without_first } => Some(self.sample(SAMPLED, without_first)),
        }
    }

    /// Takes a part that has come; returns whether it is one of this pyramid's. The pyramid then has another id.
    pub fn put(&mut self, part: PyramidPart, values: Vec<f32>) -> bool {
        let rows = self.rows;
        let Some(partial) = &mut self.partial else { return false };
        match part {
            PyramidPart::Sample { without_first } => {
                partial.samples[usize::from(without_first)] = Some(values);
            }
            PyramidPart::Groups { level, index } => {
                let (level, index) = (usize::from(level), index as usize);
                let Some(there) = partial.there.get_mut(level).and_then(|parts| parts.get_mut(index)) else {
                    return false;
                };
                let groups = partial.columns.div_ceil(GROUP.pow(level as u32));
                let of_part = index * PART..((index + 1) * PART).min(groups);
                if values.len() != of_part.len() * rows {
                    return false;
                }
                *there = true;
                let whole = &mut self.levels[level];
                if whole.is_empty() {
                    // Zeros take no memory until they are written over.
                    *whole = vec![0.0; groups * rows];
                }
                whole[of_part.start * rows..of_part.end * rows].copy_from_slice(&values);
            }
        }
        self.id = Self::next_id();
        true
    }

    /// Whether all of it is there.
    pub fn is_whole(&self) -> bool {
        self.partial.is_none()
    }

    /// Whether the values of a column are there.
    pub fn has_column(&self, column: usize) -> bool {
        column < self.columns() && self.partial.as_ref().is_none_or(|partial| partial.has(0, column))
    }

    /// The parts with the values of some columns that are not there.
    pub fn lacking_columns(&self, columns: Range<usize>) -> Vec<PyramidPart> {
        let mut parts = BTreeSet::new();
        self.note_lacking(0, columns.start..columns.end.min(self.columns()), &mut parts);
        parts.into_iter().collect()
    }

    /// The sample that percentiles need, if it is not there.
    pub fn lacking_sample(&self, without_first: bool) -> Option<PyramidPart> {
        let partial = self.partial.as_ref()?;
        let is_there = partial.samples[usize::from(without_first)].is_some();
        (!is_there).then_some(PyramidPart::Sample { without_first })
    }

    /// Notes the parts of a level and of those above it that hold some columns and are not there.
    pub(crate) fn note_lacking(&self, from: usize, columns: Range<usize>, parts: &mut BTreeSet<PyramidPart>) {
        let Some(partial) = &self.partial else { return };
        if columns.is_empty() {
            return;
        }
        for (level, there) in partial.there.iter().enumerate().skip(from) {
            let size = GROUP.pow(level as u32) * PART;
            for index in columns.start / size..=(columns.end - 1) / size {
                if there.get(index) == Some(&false) {
                    parts.insert(PyramidPart::Groups { level: level as u8, index: index as u32 });
                }
            }
        }
    }

    /// A group, or the finest one above it that is there.
    pub(super) fn group(&self, level: usize, group: usize) -> &[f32] {
        let (mut level, mut group) = (level, group);
        while let Some(partial) = &self.partial
            && !partial.has(level, group)
        {
            level += 1;
            group /= GROUP;
        }
        let values = &self.levels[level];
        values.get(group * self.rows..(group + 1) * self.rows).unwrap_or(&[])
    }

    /// The sample that has come; of the finest level that is there meanwhile.
    pub(super) fn sample_of_parts(&self, without_first: bool) -> Option<&[f32]> {
        let partial = self.partial.as_ref()?;
        let sample = partial.samples[usize::from(without_first)].as_deref();
        sample.or_else(|| {
            let whole = &self.levels[partial.there.len()];
            Some(&whole[if without_first { self.rows.min(whole.len()) } else { 0 }..])
        })
    }

    /// The largest value of each row over some columns, one by one where they are there.
    pub(crate) fn max_of_each(&self, columns: Range<usize>, largest: &mut [f32]) {
        largest.fill(f32::NAN);
        for column in columns.start..columns.end.min(self.columns()) {
            self.keeps.merge(largest, self.group(0, column));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pyramid(rows: usize, columns: usize) -> Pyramid {
        let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 7_919) % 1_009) as f32).collect();
        Pyramid::from_rows(&values, rows, columns)
    }

    fn all_parts(pyramid: &Pyramid) -> Vec<PyramidPart> {
        let samples = [false, true].into_iter().filter_map(|without| pyramid.lacking_sample(without));
        pyramid.lacking_columns(0..pyramid.columns()).into_iter().chain(samples).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn with_all_parts_it_is_the_same(rows in 1_usize..4, columns in 0_usize..3_000, most in 1_usize..100, a in any::<usize>(), b in any::<usize>()) {
            let whole = pyramid(rows, columns);
            let mut partial = Pyramid::from_top(whole.top(most)).expect("a top");
            prop_assert_eq!((partial.rows(), partial.columns()), (rows, columns));
            // As text, in which NaN, the largest of no columns, equals itself.
            for without_first in [false, true] {
                let (of_partial, of_whole) = (partial.row_max(without_first), whole.row_max(without_first));
                prop_assert_eq!(format!("{of_partial:?}"), format!("{of_whole:?}"));
            }
            for part in all_parts(&partial) {
                let before = partial.id();
                prop_assert!(partial.put(part, whole.part(part).expect("a part")));
                prop_assert!(partial.id() != before);
            }
            prop_assert!(all_parts(&partial).is_empty());
            prop_assert_eq!(&partial.levels, &whole.levels);
            prop_assert_eq!(partial.sample(SAMPLED, true), whole.sample(SAMPLED, true));
            let (a, b) = (a % (columns + 1), b % (columns + 1));
            let (mut of_partial, mut of_whole) = (vec![0.0; rows], vec![0.0; rows]);
            partial.max_over(a.min(b)..a.max(b), &mut of_partial);
            whole.max_over(a.min(b)..a.max(b), &mut of_whole);
            prop_assert_eq!(format!("{of_partial:?}"), format!("{of_whole:?}"));
        }

        #[test]
        fn what_is_not_there_is_stood_in_for_by_no_less(columns in 300_usize..3_000, put in any::<u64>(), a in any::<usize>(), b in any::<usize>()) {
            let whole = pyramid(2, columns);
            let mut partial = Pyramid::from_top(whole.top(64)).expect("a top");
            for (index, part) in all_parts(&partial).into_iter().enumerate() {
                if put >> (index % 64) & 1 == 1 {
                    partial.put(part, whole.part(part).expect("a part"));
                }
            }
            let (a, b) = (a % columns, b % columns);
            let (mut of_partial, mut of_whole) = (vec![0.0; 2], vec![0.0; 2]);
            partial.max_over(a.min(b)..a.max(b) + 1, &mut of_partial);
            whole.max_over(a.min(b)..a.max(b) + 1, &mut of_whole);
            for (stands_in, value) in of_partial.iter().zip(&of_whole) {
                prop_assert!(stands_in >= value, "{of_partial:?} {of_whole:?}");
            }
            match partial.has_column(a) {
                true => prop_assert_eq!(partial.column(a), whole.column(a)),
                false => prop_assert!(partial.value(0, a).is_nan() && partial.column(a).is_empty()),
            }
        }
    }

    #[test]
    fn parts_of_other_pyramids_are_refused() {
        let whole = pyramid(3, 2_000);
        let mut partial = Pyramid::from_top(whole.top(64)).expect("a top");
        let part = PyramidPart::Groups { level: 0, index: 0 };
        assert!(!partial.put(part, vec![1.0; 5]));
        assert!(!partial.put(PyramidPart::Groups { level: 0, index: 99 }, vec![1.0; 3 * PART]));
        assert!(!partial.put(PyramidPart::Groups { level: 9, index: 0 }, vec![1.0; 3]));
        assert!(!partial.has_column(0));
        assert_eq!(whole.part(PyramidPart::Groups { level: 77, index: 0 }), None);
        assert_eq!(whole.part(PyramidPart::Groups { level: 0, index: u32::MAX }), None);
    }

    #[test]
    fn tops_that_contradict_themselves_are_refused() {
        let sound = pyramid(3, 2_000).top(64);
        assert!(Pyramid::from_top(sound.clone()).is_some());
        for wrong in [
            PyramidTop { rows: 4, ..sound.clone() },
            PyramidTop { rows: 0, ..sound.clone() },
            PyramidTop { columns: usize::MAX, ..sound.clone() },
            PyramidTop { columns: 20, ..sound.clone() },
            PyramidTop { level: 200, ..sound.clone() },
            PyramidTop { values: vec![], ..sound.clone() },
            PyramidTop { row_max_after_first: vec![], ..sound },
        ] {
            assert!(Pyramid::from_top(wrong.clone()).is_none(), "{wrong:?}");
        }
    }
}
