//! Files here or on another machine: runs, maps, prompt files and reports.

use crate::data::{PromptMaps, RunData, Want};
use crate::engine::remote::{Answer, Answered, Link, MapPart, OTHERS, PromptOf, Question, is_relative};
use layerscope_cutoff::recommend::Options;
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256, read_prompts};
use layerscope_diagnostics::run::{SmallFile, mirror};
use layerscope_engine::{Error, Result};
use layerscope_report::{File, Report, render};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where files are read.
#[derive(Debug, Clone)]
pub(super) enum Files {
    /// On this machine.
    Here,
    /// Where a connection leads.
    There(Arc<Link>),
}

fn other_answer<T>() -> Result<T> {
    Err(Error::failure("another answer came than to what was asked"))
}

impl Files {
    /// Reads a run folder.
    ///
    /// # Errors
    /// As [`RunData::read`]; errors of the connection.
    pub(super) async fn run(&self, folder: &Path) -> Result<RunData> {
        let Self::There(link) = self else { return RunData::read(folder) };
        let Answered { answer: Answer::Files { files, model }, bytes } =
            link.answer(Question::Run { folder: folder.to_owned() }).await?
        else {
            return other_answer();
        };
        let files = split(files, bytes)?;
        let files: Vec<_> = files.into_iter().map(|(name, bytes)| SmallFile { name, bytes }).collect();
        // Sentences name the folder there.
        let there = PathBuf::from(format!("{}:{}", link.host(), folder.display()));
        let _mirror = mirror(there.clone(), files, &OTHERS)?;
        let mut run = RunData::read(&there)?;
        (run.folder, run.model) = (folder.to_owned(), model);
        Ok(run)
    }

    /// Reads the maps of a run's prompt: whole, or first the upper levels.
    ///
    /// # Errors
    /// As [`PromptMaps::read`]; errors of the connection.
    pub(super) async fn maps(&self, run: &RunData, prompt: usize, id: &str) -> Result<PromptMaps> {
        let Self::There(link) = self else { return PromptMaps::read(&run.folder, prompt, id) };
        match link.answer(Question::Maps { of: prompt_of(run, id) }).await?.answer {
            Answer::Maps(tops) => PromptMaps::from_tops(prompt, tops).ok_or_else(|| {
                Error::failure(format!("{} sent maps that contradict themselves", link.host()))
            }),
            _ => other_answer(),
        }
    }

    /// Fetches what views want and waits for it.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(super) async fn complete(
        &self,
        run: &RunData,
        maps: &mut PromptMaps,
        id: &str,
        wants: Vec<Want>,
    ) -> Result<()> {
        let Self::There(link) = self else { return Ok(()) };
        for want in wants {
            let part = link.answer(Question::Part { of: prompt_of(run, id), want: want.clone() }).await?;
            let Answer::Part(part) = part.answer else { return other_answer() };
            if !maps.put(want, part) {
                return Err(unfit(link));
            }
        }
        Ok(())
    }

    /// Asks for a part of maps and gives it to `done`, on another thread.
    pub(super) fn part_then(
        link: &Arc<Link>,
        of: PromptOf,
        want: Want,
        done: impl FnOnce(Result<MapPart>) + Send + 'static,
    ) {
        link.ask_then(Question::Part { of, want }, move |answered| {
            done(answered.and_then(|answered| match answered.answer {
                Answer::Part(part) => Ok(part),
                _ => other_answer(),
            }));
        });
    }

    /// The text of a prompt file, which has been parsed once.
    ///
    /// # Errors
    /// As [`read_prompts`]; errors of the connection.
    pub(super) async fn prompt_text(&self, path: &Path) -> Result<String> {
        match self {
            Self::Here => prompt_text(path),
            Self::There(link) => {
                let bytes = link.answer(Question::Prompts { path: path.to_owned() }).await?.bytes;
                String::from_utf8(bytes)
                    .map_err(|_| Error::input(format!("{} is no UTF-8 text", path.display())))
            }
        }
    }

    /// The prompts of a file.
    ///
    /// # Errors
    /// As [`Self::prompt_text`].
    pub(super) async fn prompts(&self, path: &Path) -> Result<PromptFile> {
        let Self::There(link) = self else { return read_prompts(path) };
        let bytes = link.answer(Question::Prompts { path: path.to_owned() }).await?.bytes;
        let name = path.file_name().unwrap_or(path.as_os_str());
        Ok(PromptFile {
            name: name.to_string_lossy().into_owned(),
            sha256: prompts_sha256(&bytes),
            prompts: parse_prompts(&path.display().to_string(), &bytes)?,
        })
    }

    /// Renders a report of run folders; `path` is the main file, which is written here.
    ///
    /// # Errors
    /// As [`Report::read`] and [`render`]; errors of the connection.
    pub(super) async fn report(
        &self,
        folders: Vec<PathBuf>,
        options: Options,
        path: &Path,
    ) -> Result<Vec<File>> {
        let Self::There(link) = self else { return render(&Report::read(&folders, options)?, path) };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let Answered { answer: Answer::Files { files, .. }, bytes } =
            link.answer(Question::Report { folders, options, name }).await?
        else {
            return other_answer();
        };
        let beside = path.parent().unwrap_or(Path::new(""));
        let file = |(name, bytes): (String, Vec<u8>)| match is_relative(Path::new(&name)) {
            true => Ok(File { path: beside.join(name), bytes }),
            false => Err(Error::failure(format!("{} named a file {name:?} of a report", link.host()))),
        };
        split(files, bytes)?.into_iter().map(file).collect()
    }
}

/// The text of a prompt file of this machine, which has been parsed once.
///
/// # Errors
/// As [`read_prompts`].
pub(super) fn prompt_text(path: &Path) -> Result<String> {
    read_prompts(path)?;
    layerscope_files::read_text(path).map_err(|error| Error::io("read", path, &error))
}

/// The prompt of a run, for questions.
pub(super) fn prompt_of(run: &RunData, id: &str) -> PromptOf {
    PromptOf { folder: run.folder.clone(), revision: run.manifest.revision, id: id.to_owned() }
}

pub(super) fn unfit(link: &Link) -> Error {
    Error::failure(format!("{} sent a part that does not fit the prompt’s maps", link.host()))
}

/// Files from their names and sizes and their bytes one after the other.
fn split(files: Vec<(String, u64)>, bytes: Vec<u8>) -> Result<Vec<(String, Vec<u8>)>> {
    let mut rest = bytes.as_slice();
    let file = |(name, size): (String, u64)| {
        let (first, others) = rest.split_at_checked(usize::try_from(size).ok()?)?;
        rest = others;
        Some((name, first.to_vec()))
    };
    let files: Option<Vec<_>> = files.into_iter().map(file).collect();
    files.ok_or_else(|| Error::failure("fewer bytes came than were announced"))
}
