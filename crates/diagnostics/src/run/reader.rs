//! Reads a run folder, finished or not, prompt by prompt.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use layerscope_engine::{Error, Result};
use ndarray::Array2;

use super::continuations::Continuations;
use super::figures;
use super::layout;
use super::manifest::{MANIFEST, Manifest};
use super::reads;
use super::received;
use super::rows_read::PromptRows;
use super::schema::{READS, Table};
use super::sets::Sets;
use super::show::ShowReport;
use super::table_file::TableFile;
use super::tables::Tables;
use super::{patches, policies, spans};
use crate::patching::PatchMap;
use crate::reads::RowReads;
use crate::record::{PolicyRecord, PromptSummary, ReceivedFigures, SpanRecord, StepFigures};

/// Attempts to open a folder that changes during opening, and the pause between them.
pub(super) const TRIES: usize = 20;
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// An open run folder. Prompts are read on demand.
#[derive(Debug)]
pub struct Run {
    folder: PathBuf,
    manifest: Manifest,
    /// The recorded prompts, in the order of the prompt file.
    ids: Vec<String>,
    tables: Option<Tables>,
    /// The prompts whose rows are not merged into the tables yet: id → index of the part.
    parts: BTreeMap<String, usize>,
}

impl Run {
    /// Opens the run in `folder`. Of an unfinished run, the finished prompts can be read.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no run, if a newer version wrote it, or if a file is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self> {
        for _ in 0..TRIES {
            let before = state(folder)?;
            let opened = Self::open_once(folder);
            // A recording replaced files during opening, so the open files may be old and new.
            if state(folder)? == before {
                return opened;
            }
            std::thread::sleep(PAUSE);
        }
        Err(Error::input(format!(
            "{} keeps changing while it is read; wait until the recording is done",
            folder.display()
        )))
    }

    fn open_once(folder: &Path) -> Result<Self> {
        let mut manifest = Manifest::read(folder, &layout::manifest(folder))?;
        let tables = Tables::open(folder, &manifest)?;
        let mut places: BTreeMap<String, Option<usize>> = BTreeMap::new();
        if let Some(tables) = &tables {
            for id in tables.prompt_ids(&manifest)? {
                places.insert(id, None);
            }
        }
        for index in layout::part_indices(folder)? {
            if let Some(id) = manifest.prompts.ids.get(index) {
                places.entry(id.clone()).or_insert(Some(index));
            }
        }
        let found = |id: &&String| places.contains_key(*id);
        let ids: Vec<String> = manifest.prompts.ids.iter().filter(found).cloned().collect();
        if let Some(lost) = manifest.prompts.done.iter().find(|id| !found(id)) {
            return Err(Error::input(format!(
                "{} lacks the rows of prompt {lost:?}, which {MANIFEST} calls done; restore them or record the run \
                 again",
                folder.display()
            )));
        }
        // The recording may have been killed after it wrote a prompt and before it updated the manifest.
        manifest.prompts.failed.retain(|failed| !found(&&failed.id));
        manifest.prompts.done.clone_from(&ids);
        let parts = places.into_iter();
        Ok(Self {
            folder: folder.to_owned(),
            manifest,
            ids,
            tables,
            parts: parts.filter_map(|(id, part)| Some((id, part?))).collect(),
        })
    }

    /// The run folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The manifest, with the finished prompts that were found.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The recorded prompts, in the order of the prompt file.
    pub fn prompt_ids(&self) -> &[String] {
        &self.ids
    }

    /// A prompt's means per layer and head, frontier, attention knockout, tokens and continuation.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no such prompt or its rows are damaged.
    pub fn prompt(&self, id: &str) -> Result<PromptSummary> {
        let rows = |table| self.source(id, table);
        figures::prompt(id, &self.manifest.model, rows)
    }

    /// Iterates over all prompts, as [`Self::prompt`].
    pub fn prompts(&self) -> impl Iterator<Item = Result<PromptSummary>> {
        self.ids.iter().map(|id| self.prompt(id))
    }

    /// A prompt's figures per layer and decode step.
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub fn steps(&self, id: &str) -> Result<StepFigures> {
        let file = self.source(id, Table::Steps)?;
        let columns = Table::Steps.columns();
        let listed = |name: &str| READS.iter().any(|column| column.name == name);
        // The lists are most of the table.
        let names: Vec<&str> =
            columns.iter().map(|column| column.name).filter(|name| !listed(name)).collect();
        figures::steps(&PromptRows::read(file.get(), id, &names)?, self.manifest.model.layers)
    }

    /// The prompt positions that each decode step reads most, `[L, N]`; `None` in runs of schemas before 4.
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub fn reads(&self, id: &str) -> Result<Option<Array2<RowReads>>> {
        let file = self.source(id, Table::Steps)?;
        reads::reads(file.get(), id, self.manifest.model.layers)
    }

    /// The attention received by each prompt position, `[L, p]`; ids and texts of the tokens are in
    /// [`PromptSummary`].
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub fn tokens(&self, id: &str) -> Result<ReceivedFigures> {
        let file = self.source(id, Table::Tokens)?;
        received::received(file.get(), id, self.manifest.model.layers)
    }

    /// The texts under policies; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged or of a newer version.
    pub fn continuations(&self) -> Result<Option<Continuations>> {
        Continuations::read(self)
    }

    /// Searched sets of KV heads; `None` if there are none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged or of a newer version.
    pub fn sets(&self) -> Result<Option<Sets>> {
        Sets::read(self)
    }

    /// The removed spans, by prompt and position; empty if there are none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged.
    pub fn spans(&self) -> Result<Vec<SpanRecord>> {
        spans::read(self)
    }

    /// Attention under policies, by prompt; empty if there is none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged.
    pub fn policies(&self) -> Result<Vec<PolicyRecord>> {
        policies::read(self, self.prompt_ids())
    }

    /// Attention of one prompt under policies; empty if there is none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged.
    pub fn policies_of(&self, id: &str) -> Result<Vec<PolicyRecord>> {
        policies::read(self, &[id.to_owned()])
    }

    /// The maps of activation patches, by clean and corrupted prompt; empty if there are none.
    ///
    /// # Errors
    /// [`Error::Input`] if the file is damaged.
    pub fn patches(&self) -> Result<Vec<PatchMap>> {
        patches::read(self)
    }

    /// The output of `show --json`.
    ///
    /// # Errors
    /// As [`Self::prompt`].
    pub fn show(&self) -> Result<ShowReport> {
        ShowReport::of(self)
    }

    /// The file with a prompt's rows in a table.
    pub(super) fn source(&self, id: &str, table: Table) -> Result<Source<'_>> {
        if let Some(index) = self.parts.get(id) {
            let part = layout::open_part_table(&self.folder, *index, table)?;
            return part.map(Source::Part).ok_or_else(|| {
                Error::input(format!(
                    "{} changed while it was read, a recording seems to go on; run the same command again",
                    self.folder.display()
                ))
            });
        }
        match &self.tables {
            Some(tables) if self.ids.iter().any(|known| known == id) => Ok(Source::Tables(tables.get(table))),
            _ => Err(Error::input(format!(
                "{} holds no recorded prompt {id:?}; it holds {}",
                self.folder.display(),
                some_names(&self.ids)
            ))),
        }
    }
}

/// The location of a prompt's rows in a table.
pub(super) enum Source<'a> {
    Tables(&'a TableFile),
    Part(TableFile),
}

impl Source<'_> {
    pub(super) fn get(&self) -> &TableFile {
        match self {
            Source::Tables(file) => file,
            Source::Part(file) => file,
        }
    }
}

/// Changes whenever a recording changes the folder's tables: the manifest's revision, and whether a move is
/// in progress.
pub(super) fn state(folder: &Path) -> Result<(u64, bool)> {
    let moving = layerscope_files::exists(&layout::merged(folder));
    let manifest = Manifest::read(folder, &layout::manifest(folder));
    // The manifest may have moved between the check and the read.
    let manifest = manifest.or_else(|_| Manifest::read(folder, &layout::manifest(folder)))?;
    Ok((manifest.revision, moving))
}

fn some_names(ids: &[String]) -> String {
    match ids {
        [] => "none yet".into(),
        [first, .., last] if ids.len() > 8 => {
            format!("{} prompts, {first:?} to {last:?}", ids.len())
        }
        _ => {
            let names: Vec<String> = ids.iter().map(|id| format!("{id:?}")).collect();
            names.join(", ")
        }
    }
}
