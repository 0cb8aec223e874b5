//! Tables that are added to a recorded run, each one file with rows of some of its prompts.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::PathBuf;

use arrow_array::RecordBatch;
use layerscope_engine::Result;

use super::durable::{lock, rename, sync_folder, temporary_name};
use super::rows_read::PromptRows;
use super::schema::{Column, Table};
use super::table_file::TableFile;
use super::{Run, layout, parquet_file};

/// Calls `read` with the rows of each of some prompts that has any; never where there is no file.
pub(super) fn each_prompt(
    run: &Run,
    prompt_ids: &[String],
    (name, columns): (&str, &[Column]),
    mut read: impl FnMut(&str, &PromptRows<'_>) -> Result<()>,
) -> Result<()> {
    let Some(file) = TableFile::open(run.folder().join(name), columns)? else { return Ok(()) };
    let known: BTreeSet<&String> = run.prompt_ids().iter().collect();
    if let Some(id) = file.prompt_ids()?.iter().find(|id| !known.contains(id)) {
        return Err(file.damaged(&format!("the run has no prompt {id:?}")));
    }
    for id in prompt_ids {
        let rows = PromptRows::read(&file, id, &[])?;
        if rows.len() > 0 {
            read(id, &rows)?;
        }
    }
    Ok(())
}

/// A number that `prompts.parquet` has of a prompt; 0 where it lacks the prompt.
pub(super) fn count_of_prompt(run: &Run, id: &str, column: &str) -> Result<usize> {
    let file = run.source(id, Table::Prompts)?;
    let counts = PromptRows::read(file.get(), id, &[column])?.counts(column)?;
    Ok(counts.first().copied().unwrap_or(0))
}

/// A table that is written anew, as a whole; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub(super) struct AddedTable {
    folder: PathBuf,
    name: &'static str,
    columns: &'static [Column],
    /// The recorded prompts, in the order of the file.
    prompt_ids: Vec<String>,
    _lock: File,
}

impl AddedTable {
    /// # Errors
    /// [`layerscope_engine::Error::Input`] if another process is writing to the folder.
    pub(super) fn lock(run: &Run, name: &'static str, columns: &'static [Column]) -> Result<Self> {
        let lock = lock(run.folder(), layout::LOCK)?;
        let (folder, prompt_ids) = (run.folder().to_owned(), run.prompt_ids().to_vec());
        Ok(Self { folder, name, columns, prompt_ids, _lock: lock })
    }

    /// The place of a prompt among those of the run.
    pub(super) fn place(&self, prompt_id: &str) -> Option<usize> {
        self.prompt_ids.iter().position(|id| id == prompt_id)
    }

    /// Replaces the table; durable once this returns.
    ///
    /// # Errors
    /// [`layerscope_engine::Error::Failure`] if the folder cannot be written; the earlier file is kept.
    pub(super) fn replace(&self, batches: impl Iterator<Item = Result<RecordBatch>>) -> Result<()> {
        let temporary = self.folder.join(temporary_name(self.name));
        parquet_file::write(&temporary, self.columns, |take| {
            batches.into_iter().try_for_each(|batch| take(batch?))
        })?;
        rename(&temporary, &self.folder.join(self.name))?;
        sync_folder(&self.folder)
    }
}
