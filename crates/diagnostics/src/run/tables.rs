//! The seven tables of a run folder, which exist together or not at all.

use std::collections::BTreeSet;
use std::path::Path;

use layerscope_engine::{Error, Result};

use super::layout;
use super::manifest::{Manifest, Status};
use super::schema::Table;
use super::table_file::TableFile;

/// The open tables of a run.
#[derive(Debug)]
pub(super) struct Tables {
    prompts: TableFile,
    layers: TableFile,
    heads: TableFile,
    steps: TableFile,
    tokens: TableFile,
    frontier: TableFile,
    knockout: TableFile,
}

impl Tables {
    /// Opens the run's tables; `None` if none have been written yet.
    ///
    /// # Errors
    /// [`Error::Input`] if some are missing or damaged.
    pub(super) fn open(run: &Path, manifest: &Manifest) -> Result<Option<Self>> {
        let open = |table| layout::open_table(run, table);
        let files = (
            open(Table::Prompts)?,
            open(Table::Layers)?,
            open(Table::Heads)?,
            open(Table::Steps)?,
            open(Table::Tokens)?,
            open(Table::Frontier)?,
            open(Table::Knockout)?,
        );
        match files {
            (
                Some(prompts),
                Some(layers),
                Some(heads),
                Some(steps),
                Some(tokens),
                Some(frontier),
                Some(knockout),
            ) => Ok(Some(Self { prompts, layers, heads, steps, tokens, frontier, knockout })),
            (None, None, None, None, None, None, None) if manifest.status == Status::Running => Ok(None),
            _ => {
                let missing: Vec<&str> = Table::ALL
                    .iter()
                    .map(|table| table.file_name())
                    .filter(|name| !layerscope_files::exists(&run.join(name)))
                    .collect();
                Err(Error::input(format!(
                    "{} lacks {}; restore what is missing or record the run again",
                    run.display(),
                    missing.join(", ")
                )))
            }
        }
    }

    pub(super) fn get(&self, table: Table) -> &TableFile {
        match table {
            Table::Prompts => &self.prompts,
            Table::Layers => &self.layers,
            Table::Heads => &self.heads,
            Table::Steps => &self.steps,
            Table::Tokens => &self.tokens,
            Table::Frontier => &self.frontier,
            Table::Knockout => &self.knockout,
        }
    }

    /// The prompts in the tables, all of them prompts of the run.
    pub(super) fn prompt_ids(&self, manifest: &Manifest) -> Result<Vec<String>> {
        let ids = self.prompts.prompt_ids()?;
        let known: BTreeSet<&String> = manifest.prompts.ids.iter().collect();
        match ids.iter().find(|id| !known.contains(id)) {
            Some(id) => Err(self.prompts.damaged(&format!("prompt {id:?} is not of this run"))),
            None => Ok(ids),
        }
    }
}
