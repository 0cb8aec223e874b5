//! Writes a run folder. Every finished prompt survives a kill; an interrupted run resumes.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use layerscope_engine::{Error, Result};

use super::durable::{self, create_folder, remove_folder, rename, replace_file, sync_folder, write_synced};
use super::layout;
use super::manifest::{FailedPrompt, MANIFEST, Manifest, Status};
use super::parquet_file::{self, Merger};
use super::reader::Run;
use super::rows;
use super::rows_read::PromptRows;
use super::schema::Table;
use super::table_file::TableFile;
use super::tables::Tables;
use crate::record::PromptRecord;

/// Writes a run folder, prompt by prompt; holds the folder's lock until it is dropped.
#[derive(Debug)]
pub struct RunWriter {
    run: PathBuf,
    manifest: Manifest,
    /// Whether the folder had no run.
    new: bool,
    /// The device of this recording.
    device: String,
    /// By index in the manifest's list of prompts.
    done: BTreeMap<usize, Done>,
    failed: BTreeMap<usize, FailedPrompt>,
    index_of_id: BTreeMap<String, usize>,
    _lock: File,
}

/// A recorded prompt.
#[derive(Debug, Clone, Copy)]
struct Done {
    place: Place,
    native_kl: Option<f64>,
}

/// Where a recorded prompt's rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Part,
    Tables,
}

impl RunWriter {
    /// Creates a run in the folder `run`, or resumes the existing one.
    ///
    /// # Errors
    /// [`Error::Input`] if the folder has a run of another model, other weights, settings or prompts, a
    /// damaged run, or other files, or if another recording is writing to it; [`Error::Failure`] if it cannot
    /// be written.
    pub fn create_or_resume(run: &Path, wanted: Manifest) -> Result<Self> {
        wanted
            .check()
            .map_err(|problem| Error::failure(format!("internal error (please report it): {problem}")))?;
        create_folder(run)?;
        refuse_foreign_folder(run)?;
        let lock = durable::lock(run, layout::LOCK)?;
        layout::recover(run)?;
        let index_of_id = wanted.prompts.ids.iter().cloned().zip(0..).collect();
        let device = wanted.device.clone();
        let resumed = layout::manifest(run).exists();
        let manifest = if resumed {
            let stored = Manifest::read(run, &layout::manifest(run))?;
            if let Some(difference) = stored.difference(&wanted) {
                return Err(Error::input(format!(
                    "{} was recorded with {difference}; choose another --out or use the same settings",
                    run.display()
                )));
            }
            stored
        } else {
            wanted
        };
        let mut writer = Self {
            run: run.to_owned(),
            manifest,
            new: !resumed,
            device,
            done: BTreeMap::new(),
            failed: BTreeMap::new(),
            index_of_id,
            _lock: lock,
        };
        if resumed {
            writer.find_done()?;
        } else {
            writer.save()?;
            // Makes the folder's name durable; a failure here loses no prompt.
            if let Some(parent) = run.parent().filter(|parent| *parent != Path::new("")) {
                let _ = sync_folder(parent);
            }
        }
        Ok(writer)
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        &self.run
    }

    /// Whether the run was created, not resumed.
    pub fn is_new(&self) -> bool {
        self.new
    }

    /// The current manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Whether the prompt is recorded already; false if it failed, because resuming retries it.
    pub fn is_done(&self, prompt_id: &str) -> bool {
        let index = self.index_of_id.get(prompt_id);
        index.is_some_and(|index| self.done.contains_key(index))
    }

    /// Adds a recorded prompt; durable once this returns.
    ///
    /// # Errors
    /// [`Error::Failure`] where the folder cannot be written; prompts added earlier are kept.
    pub fn append(&mut self, record: &PromptRecord) -> Result<()> {
        let index = self.pending_index(&record.summary.id)?;
        rows::check_shapes(record, &self.manifest.model)?;
        self.settle()?;
        self.write_part(index, |table, path| {
            parquet_file::write(path, &table.columns(), |take| {
                rows::batches(table, record, &self.manifest.model, take)
            })
        })?;
        let done =
            Done { place: Place::Part, native_kl: record.summary.native_kl.filter(|kl| kl.is_finite()) };
        self.done.insert(index, done);
        self.failed.remove(&index);
        self.manifest.status = Status::Running;
        self.note_device();
        self.save()
    }

    /// Notes that a prompt could not be recorded.
    ///
    /// # Errors
    /// As [`Self::append`].
    pub fn fail(&mut self, prompt_id: &str, error: &Error) -> Result<()> {
        let index = self.pending_index(prompt_id)?;
        let undefined = matches!(error, Error::UndefinedLogits { .. });
        let failed = FailedPrompt { id: prompt_id.to_owned(), reason: error.to_string(), undefined };
        self.failed.insert(index, failed);
        self.manifest.status = Status::Running;
        self.save()
    }

    /// Takes over the prompts of another run that this one lacks, their rows unchanged; how many. [`Self::finish`] puts them into the
    /// tables.
    ///
    /// # Errors
    /// [`Error::Input`] where the other run has another model, other weights, settings or prompts, or was begun by another version;
    /// [`Error::Failure`] where the folder cannot be written; what was taken over is kept.
    pub fn take(&mut self, other: &Run) -> Result<usize> {
        check_alike(&self.manifest, other)?;
        let there = other.manifest();
        self.settle()?;
        there.device.clone_into(&mut self.device);
        let mut taken = 0;
        for id in other.prompt_ids().iter().filter(|id| !self.is_done(id)).cloned().collect::<Vec<_>>() {
            let index = self.pending_index(&id)?;
            self.write_part(index, |table, path| {
                let mut copied = Merger::create(path, table)?;
                copied.append(other.source(&id, table)?.get(), &id)?;
                copied.finish()
            })?;
            let done = self.check_part(index)?;
            self.done.insert(index, done);
            self.failed.remove(&index);
            self.note_device();
            taken += 1;
        }
        for failed in &there.prompts.failed {
            if let Some(index) =
                self.index_of_id.get(&failed.id).filter(|index| !self.done.contains_key(index))
            {
                self.failed.insert(*index, failed.clone());
            }
        }
        self.manifest.status = Status::Running;
        self.save()?;
        Ok(taken)
    }

    /// Merges recorded prompts into the run's tables, and marks the run complete if no prompt is left.
    ///
    /// Also works on an interrupted run; recording may continue afterwards. Does nothing if there is nothing
    /// new.
    ///
    /// # Errors
    /// [`Error::Failure`] if the folder cannot be written; nothing recorded is lost, and another `finish` or
    /// a resumed recording retries.
    pub fn finish(&mut self) -> Result<&Manifest> {
        self.settle()?;
        let status = if self.manifest.nothing_left() { Status::Complete } else { Status::Running };
        let has_parts = self.done.values().any(|done| done.place == Place::Part);
        let has_tables = self.run.join(Table::Prompts.file_name()).exists();
        let changed = self.manifest.status != status;
        self.manifest.status = status;
        if has_parts || !has_tables {
            self.merge()?;
        } else if changed {
            self.save()?;
        }
        Ok(&self.manifest)
    }

    /// Completes the move that an earlier failed `finish` committed; it contains everything done so far.
    fn settle(&mut self) -> Result<()> {
        if layout::merged(&self.run).exists() {
            layout::publish(&self.run)?;
            self.all_in_tables();
        }
        Ok(())
    }

    fn all_in_tables(&mut self) {
        for done in self.done.values_mut() {
            done.place = Place::Tables;
        }
    }

    /// The index of a prompt of this run that is not recorded yet.
    fn pending_index(&self, prompt_id: &str) -> Result<usize> {
        match self.index_of_id.get(prompt_id) {
            Some(index) if !self.done.contains_key(index) => Ok(*index),
            _ => Err(Error::failure(format!(
                "internal error (please report it): prompt {prompt_id:?} is recorded already or not of this run"
            ))),
        }
    }

    /// Writes a prompt's rows of each table by `write`.
    fn write_part(&self, index: usize, write: impl Fn(Table, &Path) -> Result<()>) -> Result<()> {
        let unfinished = layout::unfinished_part(&self.run, index);
        let written = self.write_unfinished_part(index, &unfinished, write);
        if written.is_err() {
            // Removes the partial files, which may fill the disk; the first error is returned.
            let _ = remove_folder(&unfinished);
        }
        written
    }

    fn write_unfinished_part(
        &self,
        index: usize,
        unfinished: &Path,
        write: impl Fn(Table, &Path) -> Result<()>,
    ) -> Result<()> {
        let parts = layout::parts(&self.run);
        if !parts.exists() {
            create_folder(&parts)?;
            sync_folder(&self.run)?;
        }
        remove_folder(unfinished)?;
        create_folder(unfinished)?;
        for table in Table::ALL {
            write(table, &unfinished.join(table.file_name()))?;
        }
        sync_folder(unfinished)?;
        rename(unfinished, &layout::part(&self.run, index))?;
        sync_folder(&parts)
    }

    /// Finds the prompts that the folder already has; an unreadable part is recorded again.
    fn find_done(&mut self) -> Result<()> {
        if let Some(tables) = Tables::open(&self.run, &self.manifest)? {
            let prompts = tables.get(Table::Prompts);
            for id in tables.prompt_ids(&self.manifest)? {
                if let Some(index) = self.index_of_id.get(&id) {
                    let done = done_row(prompts, &id, Place::Tables)?;
                    self.done.insert(*index, done);
                }
            }
        }
        for index in layout::part_indices(&self.run)? {
            if self.done.contains_key(&index) {
                continue;
            }
            match self.check_part(index) {
                Ok(done) => {
                    self.done.insert(index, done);
                }
                Err(_) => remove_folder(&layout::part(&self.run, index))?,
            }
        }
        for failed in &self.manifest.prompts.failed {
            if let Some(index) = self.index_of_id.get(&failed.id) {
                self.failed.insert(*index, failed.clone());
            }
        }
        self.failed.retain(|index, _| !self.done.contains_key(index));

        let before = self.manifest.clone();
        self.update_states();
        if !self.manifest.nothing_left() {
            self.manifest.status = Status::Running;
        }
        if self.manifest == before {
            return Ok(());
        }
        self.save()
    }

    fn check_part(&self, index: usize) -> Result<Done> {
        let id = self.manifest.prompts.ids.get(index);
        let id = id.ok_or_else(|| Error::input("a part of no prompt"))?;
        let missing = || Error::input("a part lacks a table");
        for table in Table::ALL {
            let file = layout::open_part_table(&self.run, index, table)?.ok_or_else(missing)?;
            if table == Table::Prompts && file.prompt_ids()? != [id.clone()] {
                return Err(Error::input("a part of another prompt"));
            }
        }
        let prompts = layout::open_part_table(&self.run, index, Table::Prompts)?.ok_or_else(missing)?;
        done_row(&prompts, id, Place::Part)
    }

    /// Merges tables in prompt order and replaces the run's.
    fn merge(&mut self) -> Result<()> {
        self.update_states();
        self.manifest.touch();
        let merging = layout::merging(&self.run);
        remove_folder(&merging)?;
        create_folder(&merging)?;
        let written = self.write_merged(&merging);
        if written.is_err() {
            // Removes the partial tables, which may fill the disk; the parts still exist.
            let _ = remove_folder(&merging);
        }
        written?;
        layout::commit(&self.run)?;
        self.all_in_tables();
        layout::publish(&self.run)
    }

    fn write_merged(&self, merging: &Path) -> Result<()> {
        for table in Table::ALL {
            let old = layout::open_table(&self.run, table)?;
            let mut merger = Merger::create(&merging.join(table.file_name()), table)?;
            for (index, done) in &self.done {
                let id = &self.manifest.prompts.ids[*index];
                let part;
                let source = match done.place {
                    Place::Tables => old.as_ref(),
                    Place::Part => {
                        part = layout::open_part_table(&self.run, *index, table)?;
                        part.as_ref()
                    }
                };
                let source = source.ok_or_else(|| {
                    Error::failure(format!(
                        "the {} of prompt {id:?} has vanished from {}; run the same command again",
                        table.file_name(),
                        self.run.display()
                    ))
                })?;
                merger.append(source, id)?;
            }
            merger.finish()?;
        }
        write_synced(&merging.join(MANIFEST), &self.manifest.to_json()?)
    }

    /// Updates the manifest's lists and means.
    fn update_states(&mut self) {
        let states = &mut self.manifest.prompts;
        let id = |index: &usize| states.ids[*index].clone();
        states.done = self.done.keys().map(id).collect();
        states.failed = self.failed.values().cloned().collect();
        let native_kl: Vec<f64> = self.done.values().filter_map(|d| d.native_kl).collect();
        self.manifest.native_kl =
            (!native_kl.is_empty()).then(|| native_kl.iter().sum::<f64>() / native_kl.len() as f64);
    }

    fn note_device(&mut self) {
        let devices = &mut self.manifest.device;
        if !devices.split("; ").any(|device| device == self.device) {
            *devices = format!("{devices}; {}", self.device);
        }
    }

    fn save(&mut self) -> Result<()> {
        self.update_states();
        self.manifest.touch();
        replace_file(&self.run, MANIFEST, &self.manifest.to_json()?)
    }
}

/// Checks that a run has the model, prompts, settings and version of another one, whose manifest is given, so that both can be merged.
///
/// # Errors
/// [`Error::Input`], which says what differs.
pub fn check_alike(manifest: &Manifest, other: &Run) -> Result<()> {
    let there = other.manifest();
    let version = (there.layerscope != manifest.layerscope)
        .then(|| format!("layerscope {}, not {}", there.layerscope, manifest.layerscope));
    match there.difference(manifest).or(version) {
        None => Ok(()),
        Some(difference) => Err(Error::input(format!(
            "{} was recorded with {difference}; runs of one model, prompt file and settings can be merged",
            other.folder().display()
        ))),
    }
}

fn done_row(prompts: &TableFile, id: &str, place: Place) -> Result<Done> {
    let rows = PromptRows::read(prompts, id, &["native_kl"])?;
    rows.expect_len(Some(1))?;
    let native_kl = rows.figures("native_kl")?;
    let native_kl = native_kl.first().copied().filter(|kl| kl.is_finite());
    Ok(Done { place, native_kl })
}

/// Rejects a folder that has files but no run, so that a run is not mixed with other files.
fn refuse_foreign_folder(run: &Path) -> Result<()> {
    if layout::manifest(run).exists() {
        return Ok(());
    }
    let ours = [layout::LOCK.to_owned(), durable::temporary_name(MANIFEST)];
    let entries = fs::read_dir(run).map_err(|error| match error.kind() {
        ErrorKind::PermissionDenied => durable::write_error(run, &error),
        _ => Error::io("read", run, &error),
    })?;
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("read", run, &error))?;
        if !ours.iter().any(|name| entry.file_name() == name.as_str()) {
            return Err(Error::input(format!(
                "{} is not empty and holds no run; choose another --out",
                run.display()
            )));
        }
    }
    Ok(())
}
