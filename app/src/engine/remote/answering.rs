//! Answers questions about files of this machine.

use super::question::{Answer, OTHERS, PromptOf, Question, is_relative};
use super::service::Machine;
use crate::data::{Found, PromptMaps, look};
use layerscope_diagnostics::prompts::read_prompts;
use layerscope_diagnostics::run::{Run, SmallFile, small_files};
use layerscope_engine::{Error, ModelSource, Result};
use layerscope_report::{Report, render};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of maps that are kept for questions about their parts.
const MAPS_KEPT: usize = 1 << 30;
/// Bytes of a piece: few enough that a token does not wait long behind one.
const PIECE: usize = 16 << 10;

/// What is known of this machine, and maps that were asked for.
#[derive(Debug)]
pub(super) struct Answering {
    machine: Machine,
    /// Latest last.
    maps: Mutex<Vec<(PromptOf, Arc<PromptMaps>)>>,
}

impl Answering {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, maps: Mutex::default() }
    }

    /// Answers a question; gives bytes piece by piece to `piece`, which returns whether they are still wanted.
    pub(super) fn answer(
        &self,
        question: Question,
        piece: &mut dyn FnMut(Vec<u8>) -> bool,
    ) -> Result<Answer> {
        let mut bytes = |bytes: &[u8]| {
            let all = bytes.chunks(PIECE).all(|part| piece(part.to_vec()));
            if all { Ok(()) } else { Err(Error::Interrupted) }
        };
        match question {
            Question::Look { path } => self.look(&path),
            Question::Models => {
                let names = (self.machine.models)().into_iter().map(|source| source.name);
                Ok(Answer::Models(names.collect()))
            }
            Question::Run { folder } => {
                let files = small_files(&folder, &OTHERS)?;
                files.iter().try_for_each(|file| bytes(&file.bytes))?;
                let files = files.into_iter().map(|SmallFile { name, bytes }| (name, bytes.len() as u64));
                Ok(Answer::Files { files: files.collect(), model: self.model_of(&folder)? })
            }
            Question::Maps { of } => Ok(Answer::Maps(self.maps(of)?.tops())),
            Question::Part { of, want } => {
                let part = self.maps(of)?.part(&want);
                part.map(Answer::Part).ok_or_else(|| Error::input("the maps have no such part"))
            }
            Question::Prompts { path } => {
                // Parsed here, so that a sentence about it names the file.
                read_prompts(&path)?;
                let read = layerscope_files::read(&path);
                bytes(&read.map_err(|error| Error::io("read the prompts", &path, &error))?)?;
                Ok(Answer::Bytes)
            }
            Question::Report { folders, options, name } => {
                let path = Path::new(&name);
                if !is_relative(path) {
                    return Err(Error::input(format!("{name:?} is no name of a file")));
                }
                let files = render(&Report::read(&folders, options)?, path)?;
                files.iter().try_for_each(|file| bytes(&file.bytes))?;
                let files = files.iter().map(|file| {
                    let name = file.path.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>();
                    (name.join("/"), file.bytes.len() as u64)
                });
                Ok(Answer::Files { files: files.collect(), model: None })
            }
        }
    }

    fn look(&self, path: &Path) -> Result<Answer> {
        let (found, model) = match look(path) {
            Found::Model => (Found::Model, Some(ModelSource::path(path))),
            Found::Nothing => {
                let model = (self.machine.resolve)(&path.to_string_lossy()).map_err(|error| {
                    Error::input(format!(
                        "there is no run folder, model or prompt file {}: {error}",
                        path.display()
                    ))
                })?;
                (Found::Model, Some(model))
            }
            found => (found, None),
        };
        Ok(Answer::Found { found, model })
    }

    /// The model of a run: where it was loaded from before, or else that of its name, for which the disk is searched.
    fn model_of(&self, folder: &Path) -> Result<Option<ModelSource>> {
        let model = Run::open(folder)?.manifest().model.clone();
        let seen = (self.machine.seen.remembered)(&model.sha256).map(ModelSource::path);
        Ok(seen.or_else(|| ModelSource::find(&(self.machine.models)(), &model.name).cloned()))
    }

    /// The maps of a prompt; read once for all questions about them.
    fn maps(&self, of: PromptOf) -> Result<Arc<PromptMaps>> {
        let mut kept = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let maps = match kept.iter().position(|(known, _)| *known == of) {
            Some(index) => kept.remove(index).1,
            None => {
                kept.retain(|(known, _)| known.folder != of.folder || known.revision == of.revision);
                Arc::new(PromptMaps::read(&of.folder, 0, &of.id)?)
            }
        };
        kept.push((of, Arc::clone(&maps)));
        let mut held: usize = kept.iter().map(|(_, maps)| maps.bytes()).sum();
        while held > MAPS_KEPT && kept.len() > 1 {
            held -= kept.remove(0).1.bytes();
        }
        Ok(maps)
    }
}
