//! Parquet metadata of row groups: byte ranges, and prompts by statistics.

use parquet::errors::ParquetError;
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::statistics::Statistics;

/// Rejects column chunks outside the file, because a reader would allocate their sizes.
pub(super) fn check_ranges(
    groups: &[RowGroupMetaData],
    length: u64,
) -> std::result::Result<(), ParquetError> {
    let fits = |start: i64, size: i64| {
        let end = start.checked_add(size);
        start >= 0 && size >= 0 && end.is_some_and(|end| end as u64 <= length)
    };
    for column in groups.iter().flat_map(RowGroupMetaData::columns) {
        let data = column.data_page_offset();
        let start = column.dictionary_page_offset().unwrap_or(data);
        if !fits(start, column.compressed_size()) || !fits(data, 0) || column.num_values() < 0 {
            return Err(ParquetError::General("a column lies outside the file".into()));
        }
    }
    if groups.iter().any(|group| group.num_rows() < 0) {
        return Err(ParquetError::General("a negative number of rows".into()));
    }
    Ok(())
}

/// The row group's prompt, if its statistics show that there is only one.
pub(super) fn single_prompt(group: &RowGroupMetaData) -> Option<&str> {
    let statistics = id_statistics(group)?;
    let (min, max) = (statistics.min_bytes_opt()?, statistics.max_bytes_opt()?);
    let exact = statistics.min_is_exact() && statistics.max_is_exact();
    let single = exact && min == max && statistics.null_count_opt() == Some(0);
    str::from_utf8(min).ok().filter(|_| single)
}

/// Whether the row group may contain rows of the prompt.
pub(super) fn may_hold(group: &RowGroupMetaData, prompt_id: &str) -> bool {
    let range = id_statistics(group)
        .and_then(|statistics| Some((statistics.min_bytes_opt()?, statistics.max_bytes_opt()?)));
    range.is_none_or(|(min, max)| min <= prompt_id.as_bytes() && prompt_id.as_bytes() <= max)
}

fn id_statistics(group: &RowGroupMetaData) -> Option<&Statistics> {
    let mut columns = group.columns().iter();
    columns.find(|column| column.column_path().string() == "prompt_id")?.statistics()
}
