//! Typed access to the rows of one prompt in one table; null becomes NaN.

use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Float64Type, Int32Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use layerscope_engine::{Error, Result};

use super::table_file::TableFile;

/// Bytes of text that a column has at most for one prompt: a small file can repeat a long text any number of times.
pub(super) const MOST_TEXT: usize = 256 << 20;

/// The rows of one prompt.
pub(super) struct PromptRows<'a> {
    file: &'a TableFile,
    prompt_id: &'a str,
    batches: Vec<RecordBatch>,
}

impl<'a> PromptRows<'a> {
    /// Reads the rows of a prompt; `columns` as in [`TableFile::each_batch`].
    pub(super) fn read(file: &'a TableFile, prompt_id: &'a str, columns: &[&str]) -> Result<Self> {
        let mut batches = Vec::new();
        file.each_batch(prompt_id, columns, &mut |batch| {
            batches.push(batch);
            Ok(())
        })?;
        Ok(Self { file, prompt_id, batches })
    }

    /// Its rows in runs of the same text in a column.
    pub(super) fn runs_of(&self, name: &str) -> Result<Vec<(String, Self)>> {
        Ok(self.runs(&self.texts(name)?))
    }

    /// Its rows in runs of the same number in a column.
    pub(super) fn runs_of_count(&self, name: &str) -> Result<Vec<(usize, Self)>> {
        Ok(self.runs(&self.counts(name)?))
    }

    fn runs<T: PartialEq + Clone>(&self, values: &[T]) -> Vec<(T, Self)> {
        let mut first = 0;
        let runs = values.chunk_by(|a, b| a == b).map(|run| {
            let rows = self.slice(first, run.len());
            first += run.len();
            (run[0].clone(), rows)
        });
        runs.collect()
    }

    /// The text that all rows have in a column; `None` where all have null. It takes its bytes of `room`.
    pub(super) fn one_text(&self, name: &str, room: &mut usize) -> Result<Option<String>> {
        let other = || self.damaged(format!("the column {name} holds other or too many values"));
        let mut one: Option<Option<String>> = None;
        for array in self.column(name) {
            for text in array?.as_string_view_opt().ok_or_else(other)? {
                match &one {
                    Some(known) if known.as_deref() == text => {}
                    Some(_) => return Err(self.damaged(format!("{name} differs where it must not"))),
                    None => {
                        *room = room.checked_sub(text.map_or(0, str::len)).ok_or_else(other)?;
                        one = Some(text.map(str::to_owned));
                    }
                }
            }
        }
        Ok(one.flatten())
    }

    /// The token id that all rows have in a column.
    pub(super) fn one_token_id(&self, name: &str) -> Result<u32> {
        self.one(name, &self.token_ids(name)?)
    }

    /// The figure that all rows have in a column.
    pub(super) fn one_figure(&self, name: &str) -> Result<f64> {
        let bits: Vec<u64> = self.figures(name)?.into_iter().map(f64::to_bits).collect();
        self.one(name, &bits).map(f64::from_bits)
    }

    fn one<T: Copy + PartialEq>(&self, name: &str, values: &[T]) -> Result<T> {
        match values.split_first() {
            Some((first, rest)) if rest.iter().all(|value| value == first) => Ok(*first),
            _ => Err(self.damaged(format!("{name} differs where it must not"))),
        }
    }

    /// `len` of its rows, from row `first` on.
    fn slice(&self, first: usize, len: usize) -> Self {
        let (mut before, mut batches) = (0, vec![]);
        for batch in &self.batches {
            let start = first.max(before);
            let end = (first + len).min(before + batch.num_rows());
            if start < end {
                batches.push(batch.slice(start - before, end - start));
            }
            before += batch.num_rows();
        }
        Self { file: self.file, prompt_id: self.prompt_id, batches }
    }

    pub(super) fn len(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The error that these rows are damaged or were changed.
    pub(super) fn damaged(&self, problem: impl std::fmt::Display) -> Error {
        self.file.damaged_rows(self.prompt_id, &problem)
    }

    /// Checks the number of rows; `None` means that the expected number overflows.
    pub(super) fn expect_len(&self, expected: Option<usize>) -> Result<()> {
        match (self.len(), expected) {
            (found, Some(expected)) if found == expected => Ok(()),
            (found, Some(expected)) => Err(self.damaged(format!("{found} rows instead of {expected}"))),
            (found, None) => Err(self.damaged(format!("{found} rows are too few"))),
        }
    }

    fn column<'b>(&'b self, name: &'b str) -> impl Iterator<Item = Result<&'b ArrayRef>> {
        self.batches.iter().map(move |batch| {
            batch.column_by_name(name).ok_or_else(|| self.damaged(format!("the column {name} is missing")))
        })
    }

    /// Collects a column; `values` appends the values of one batch.
    fn gather<T>(
        &self,
        name: &str,
        mut values: impl FnMut(&ArrayRef, &mut Vec<T>) -> Option<()>,
    ) -> Result<Vec<T>> {
        let mut all = Vec::with_capacity(self.len());
        for array in self.column(name) {
            values(array?, &mut all)
                .ok_or_else(|| self.damaged(format!("the column {name} holds other or too many values")))?;
        }
        Ok(all)
    }

    /// The same with null where there is no such column, as in a file of an earlier version.
    fn gather_optional<T: Clone>(
        &self,
        name: &str,
        mut values: impl FnMut(&ArrayRef, &mut Vec<Option<T>>) -> Option<()>,
    ) -> Result<Vec<Option<T>>> {
        match self.lacks(name) {
            true => Ok(vec![None; self.len()]),
            false => self.gather(name, &mut values),
        }
    }

    fn lacks(&self, name: &str) -> bool {
        self.batches.iter().any(|batch| batch.column_by_name(name).is_none())
    }

    /// NaN where there is no such column, as in a file of an earlier version.
    pub(super) fn optional_figures(&self, name: &str) -> Result<Vec<f64>> {
        match self.lacks(name) {
            true => Ok(vec![f64::NAN; self.len()]),
            false => self.figures(name),
        }
    }

    pub(super) fn figures(&self, name: &str) -> Result<Vec<f64>> {
        self.gather(name, |array, all| {
            let values = array.as_primitive_opt::<Float64Type>()?;
            all.extend(values.iter().map(|value| value.unwrap_or(f64::NAN)));
            Some(())
        })
    }

    /// Lists of figures, null in them NaN; empty for null, and where there is no such column, as in a file of an earlier version.
    pub(super) fn figure_lists(&self, name: &str) -> Result<Vec<Vec<f64>>> {
        let lists = self.gather_optional(name, |array, all| {
            for list in array.as_list_opt::<i32>()?.iter() {
                let values = |list: ArrayRef| {
                    let values = list.as_primitive_opt::<Float64Type>()?.iter();
                    Some(values.map(|value| value.unwrap_or(f64::NAN)).collect::<Vec<f64>>())
                };
                all.push(list.map(|list| values(list).ok_or(())).transpose().ok()?);
            }
            Some(())
        })?;
        Ok(lists.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// Lists of integers; `None` where there is none, as in a file of an earlier version.
    pub(super) fn int_lists(&self, name: &str) -> Result<Vec<Option<Vec<i32>>>> {
        self.lists::<Int32Type>(name)
    }

    /// Lists of f32, as [`Self::int_lists`].
    pub(super) fn single_lists(&self, name: &str) -> Result<Vec<Option<Vec<f32>>>> {
        self.lists::<Float32Type>(name)
    }

    fn lists<T: ArrowPrimitiveType>(&self, name: &str) -> Result<Vec<Option<Vec<T::Native>>>> {
        self.gather_optional(name, |array, all| {
            for list in array.as_list_opt::<i32>()?.iter() {
                let values = |list: ArrayRef| {
                    let values = list.as_primitive_opt::<T>().filter(|values| values.null_count() == 0)?;
                    Some(values.values().to_vec())
                };
                all.push(list.map(|list| values(list).ok_or(())).transpose().ok()?);
            }
            Some(())
        })
    }

    pub(super) fn ints(&self, name: &str) -> Result<Vec<i32>> {
        self.gather(name, |array, all| {
            let values = array.as_primitive_opt::<Int32Type>()?;
            for value in values {
                all.push(value?);
            }
            Some(())
        })
    }

    /// Non-negative integers.
    pub(super) fn counts(&self, name: &str) -> Result<Vec<usize>> {
        let ints = self.ints(name)?;
        let counts = ints.into_iter().map(usize::try_from);
        counts.collect::<std::result::Result<_, _>>().map_err(|_| self.damaged(format!("a negative {name}")))
    }

    pub(super) fn token_ids(&self, name: &str) -> Result<Vec<u32>> {
        self.gather(name, |array, all| {
            for value in array.as_primitive_opt::<UInt32Type>()? {
                all.push(value?);
            }
            Some(())
        })
    }

    pub(super) fn texts(&self, name: &str) -> Result<Vec<String>> {
        let mut room = MOST_TEXT;
        self.gather(name, |array, all| texts(array, &mut room, all))
    }

    pub(super) fn bools(&self, name: &str) -> Result<Vec<bool>> {
        self.gather(name, |array, all| {
            for value in array.as_boolean_opt()? {
                all.push(value?);
            }
            Some(())
        })
    }

    /// Non-negative integers, with null for undefined ones.
    pub(super) fn optional_counts(&self, name: &str) -> Result<Vec<Option<usize>>> {
        let counts: Vec<Option<Option<usize>>> = self.gather_optional(name, |array, all| {
            let values = array.as_primitive_opt::<Int32Type>()?.iter();
            all.extend(values.map(|value| value.map(|value| usize::try_from(value).ok())));
            Some(())
        })?;
        let counts = counts.into_iter().map(|count| match count {
            Some(None) => Err(self.damaged(format!("a negative {name}"))),
            count => Ok(count.flatten()),
        });
        counts.collect()
    }

    /// The same, with null for undefined values.
    pub(super) fn optional_texts(&self, name: &str) -> Result<Vec<Option<String>>> {
        let mut room = MOST_TEXT;
        self.gather_optional(name, |array, all| {
            for text in array.as_string_view_opt()? {
                room = room.checked_sub(text.map_or(0, str::len))?;
                all.push(text.map(str::to_owned));
            }
            Some(())
        })
    }

    /// The same, with null for undefined values.
    pub(super) fn optional_bools(&self, name: &str) -> Result<Vec<Option<bool>>> {
        self.gather_optional(name, |array, all| {
            all.extend(array.as_boolean_opt()?);
            Some(())
        })
    }

    pub(super) fn token_id_lists(&self, name: &str) -> Result<Vec<Vec<u32>>> {
        self.gather(name, |array, all| {
            for list in array.as_list_opt::<i32>()?.iter() {
                let list = list?;
                let values = list.as_primitive_opt::<UInt32Type>()?;
                all.push(values.iter().collect::<Option<_>>()?);
            }
            Some(())
        })
    }

    pub(super) fn text_lists(&self, name: &str) -> Result<Vec<Vec<String>>> {
        let mut room = MOST_TEXT;
        self.gather(name, |array, all| {
            for list in array.as_list_opt::<i32>()?.iter() {
                let mut items = Vec::new();
                texts(&list?, &mut room, &mut items)?;
                all.push(items);
            }
            Some(())
        })
    }
}

/// Appends the texts of an array, as long as there is room for so many bytes.
fn texts(array: &ArrayRef, room: &mut usize, all: &mut Vec<String>) -> Option<()> {
    for text in array.as_string_view_opt()? {
        *room = room.checked_sub(text?.len())?;
        all.push(text?.to_owned());
    }
    Some(())
}
