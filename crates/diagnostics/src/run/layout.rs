//! The layout of a run folder, and how finished parts are merged into its tables.
//!
//! ```text
//! RUN/manifest.json, *.parquet   the run for readers; replaced only by renames
//! RUN/continuations.json         optional texts under policies; replaced only by renames, not merged
//! RUN/spans.parquet              optional removed spans (`layerscope span-ablation`); likewise
//! RUN/policies.parquet           optional attention under policies (`layerscope record --policy`); likewise
//! RUN/patches.parquet            optional maps of activation patches (`layerscope patch`); likewise
//! RUN/sets.json                  optional sets of KV heads (`layerscope search`); likewise
//! RUN/bench.json                 optional measurements (`layerscope bench`)
//! RUN/parts/00007/*.parquet      prompt 7 of the list, complete: renamed after it was synced
//! RUN/parts/.tmp-00007/          prompt 7, unfinished; may be deleted
//! RUN/merging/                   new tables, unfinished; may be deleted
//! RUN/merged/                    new tables and manifest, complete, being moved to RUN/
//! ```
//!
//! The rename of `merging` to `merged` commits the new tables. After it, the move is only completed, never
//! undone: by the same recording, or by the next one to open the folder. Readers take each file from `merged`
//! if it is still there. The manifest moves last, so a manifest with `complete` implies complete tables.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use layerscope_engine::{Error, Result};

use super::durable::{remove_folder, rename, sync_folder};
use super::manifest::MANIFEST;
use super::schema::Table;
use super::table_file::TableFile;

pub(super) const LOCK: &str = ".lock";
const PARTS: &str = "parts";
const MERGING: &str = "merging";
const MERGED: &str = "merged";

pub(super) fn parts(run: &Path) -> PathBuf {
    run.join(PARTS)
}

/// The finished part of the prompt with that index in the manifest's list.
pub(super) fn part(run: &Path, index: usize) -> PathBuf {
    parts(run).join(format!("{index:05}"))
}

/// The same part during writing.
pub(super) fn unfinished_part(run: &Path, index: usize) -> PathBuf {
    parts(run).join(format!(".tmp-{index:05}"))
}

pub(super) fn merging(run: &Path) -> PathBuf {
    run.join(MERGING)
}

pub(super) fn merged(run: &Path) -> PathBuf {
    run.join(MERGED)
}

/// Indices of the finished parts, ascending.
pub(super) fn part_indices(run: &Path) -> Result<Vec<usize>> {
    let folder = parts(run);
    let names = match layerscope_files::names(&folder) {
        Ok(names) => names,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("read", &folder, &error)),
    };
    let mut indices = Vec::new();
    for name in names {
        let index = name.to_str().and_then(|name| name.parse().ok());
        // Only names in our format: `7` is not a part.
        indices.extend(index.filter(|index| part(run, *index) == folder.join(&name)));
    }
    indices.sort_unstable();
    Ok(indices)
}

/// Opens a part's table; `None` if it is missing.
pub(super) fn open_part_table(run: &Path, index: usize, table: Table) -> Result<Option<TableFile>> {
    TableFile::open(part(run, index).join(table.file_name()), &table.columns())
}

/// Opens a table of the run, from `merged` if it has not moved yet; `None` if there is none.
pub(super) fn open_table(run: &Path, table: Table) -> Result<Option<TableFile>> {
    match TableFile::open(merged(run).join(table.file_name()), &table.columns())? {
        Some(file) => Ok(Some(file)),
        None => TableFile::open(run.join(table.file_name()), &table.columns()),
    }
}

/// The current manifest.
pub(super) fn manifest(run: &Path) -> PathBuf {
    let moving = merged(run).join(MANIFEST);
    if layerscope_files::exists(&moving) { moving } else { run.join(MANIFEST) }
}

/// Commits the content of `merging`, which must be complete and synced.
pub(super) fn commit(run: &Path) -> Result<()> {
    sync_folder(&merging(run))?;
    rename(&merging(run), &merged(run))?;
    sync_folder(run)
}

/// Moves the committed files into place and removes the parts, which are now in the tables. Idempotent.
pub(super) fn publish(run: &Path) -> Result<()> {
    let from = merged(run);
    for table in Table::ALL {
        move_if_there(&from.join(table.file_name()), &run.join(table.file_name()))?;
    }
    // The tables must be durable under their names before the manifest refers to them.
    sync_folder(run)?;
    move_if_there(&from.join(MANIFEST), &run.join(MANIFEST))?;
    sync_folder(run)?;
    remove_folder(&parts(run))?;
    remove_folder(&from)?;
    sync_folder(run)
}

fn move_if_there(from: &Path, to: &Path) -> Result<()> {
    if from.exists() { rename(from, to) } else { Ok(()) }
}

/// Recovers a folder after a kill: completes a committed move and removes unfinished files.
pub(super) fn recover(run: &Path) -> Result<()> {
    remove_folder(&merging(run))?;
    if merged(run).exists() {
        publish(run)?;
    }
    Ok(())
}
