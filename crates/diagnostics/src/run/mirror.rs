//! A run folder without its long tables, for a reader on another machine: its small files, and a folder in memory that can be
//! opened with them.
//!
//! The long tables of the mirror have no rows. Of an unfinished run the small tables of its parts are there, too.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use layerscope_engine::{Error, Result};
use layerscope_files::InMemory;

use super::layout;
use super::manifest::MANIFEST;
use super::parquet_file;
use super::patches::PATCHES;
use super::policies::POLICIES;
use super::reader::{PAUSE, Run, TRIES, state};
use super::schema::Table;
use super::sets::SETS;
use super::spans::SPANS;

/// The tables whose rows grow with prompt or text.
const LONG: [Table; 2] = [Table::Steps, Table::Tokens];
/// Files beside the tables that views show.
const ADDED: [&str; 4] = [SPANS, POLICIES, SETS, PATCHES];

/// A small file of a run folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SmallFile {
    /// Its path in the run folder, with `/` between folders.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Everything but the long tables and the texts under policies, of one moment; of `others`, files that other programs put into the
/// folder, those that are there.
///
/// # Errors
/// As [`Run::open`].
pub fn small_files(folder: &Path, others: &[&str]) -> Result<Vec<SmallFile>> {
    for _ in 0..TRIES {
        let before = state(folder)?;
        Run::open(folder)?;
        let files = read(folder, others);
        if state(folder)? == before {
            return files;
        }
        std::thread::sleep(PAUSE);
    }
    Err(Error::input(format!(
        "{} keeps changing while it is read; wait until the recording is done",
        folder.display()
    )))
}

fn read(folder: &Path, others: &[&str]) -> Result<Vec<SmallFile>> {
    let mut files = vec![];
    let mut take = |name: String, path: PathBuf| match layerscope_files::read(&path) {
        Ok(bytes) => {
            files.push(SmallFile { name, bytes });
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(Error::io("read", &path, &error)),
    };
    take(MANIFEST.into(), layout::manifest(folder))?;
    for table in short() {
        let name = table.file_name();
        if !take(name.into(), layout::merged(folder).join(name))? {
            take(name.into(), folder.join(name))?;
        }
    }
    for index in layout::part_indices(folder)? {
        for table in short() {
            take(part_name(index, table), layout::part(folder, index).join(table.file_name()))?;
        }
    }
    for name in ADDED.iter().chain(others) {
        take((*name).into(), folder.join(name))?;
    }
    Ok(files)
}

/// A folder in memory of small files of a run, which [`Run::open`] opens by `path` until it is dropped.
///
/// # Errors
/// [`Error::Input`] on a file that is none of a run's and none of `others`.
pub fn mirror(path: PathBuf, files: Vec<SmallFile>, others: &[&str]) -> Result<InMemory> {
    if let Some(file) = files.iter().find(|file| !is_known(&file.name, others)) {
        return Err(Error::input(format!("{:?} is no small file of a run", file.name)));
    }
    // A run has all tables or none.
    let long = match files.iter().any(|file| file.name == Table::Prompts.file_name()) {
        true => &LONG[..],
        false => &[],
    };
    let empty = |table: &Table| Ok((table.file_name().into(), parquet_file::empty(&table.columns())?));
    let long = long.iter().map(empty).collect::<Result<Vec<_>>>()?;
    let files = files.into_iter().map(|SmallFile { name, bytes }| (name.into(), bytes));
    Ok(InMemory::new(path, files.chain(long)))
}

fn short() -> impl Iterator<Item = Table> {
    Table::ALL.into_iter().filter(|table| !LONG.contains(table))
}

fn part_name(index: usize, table: Table) -> String {
    format!("parts/{index:05}/{}", table.file_name())
}

/// Whether a run has such a small file. Nothing else is taken, whoever names it.
fn is_known(name: &str, others: &[&str]) -> bool {
    let of_part = || {
        let (index, _) = name.strip_prefix("parts/")?.split_once('/')?;
        let index = index.parse().ok()?;
        short().find(|table| part_name(index, *table) == name)
    };
    let added = ADDED.iter().chain(others).any(|known| *known == name);
    let is_table = short().any(|table| table.file_name() == name);
    name == MANIFEST || is_table || added || of_part().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_runs_are_taken() {
        for name in [MANIFEST, "prompts.parquet", "parts/00007/heads.parquet", "bench.json", SPANS] {
            assert!(is_known(name, &["bench.json"]), "{name}");
        }
        for name in [
            "../manifest.json",
            "/etc/passwd",
            "tokens.parquet",
            "parts/7/heads.parquet",
            "parts/00007/../heads.parquet",
            "parts/00007/tokens.parquet",
            "bench.json",
            "",
        ] {
            assert!(!is_known(name, &[]), "{name}");
        }
        let file = SmallFile { name: "../out".into(), bytes: vec![] };
        assert!(mirror("elsewhere:/run".into(), vec![file], &[]).is_err());
    }
}
