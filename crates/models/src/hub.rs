//! Fetching a model from the Hugging Face Hub into the cache that the Python tools share.
//!
//! The crate `hf-hub` is not used: 1.0 neither resumes nor verifies files and depends on a hundred crates;
//! 0.5 appends any response body to a partial file and panics on invalid responses.

mod blob;
mod cache;
mod choice;
mod client;
mod digest;
mod listing;
mod redirect;
mod refusal;
mod request;

pub(crate) use cache::is_commit;

use crate::checkpoint::{COMPANIONS, INDEX, WEIGHTS, shards};
use crate::places::Places;
use crate::reference::{HubReference, Wanted};
use crate::text::bytes;
use crate::{Error, Result};
use cache::Repository;
use choice::{Choice, choose};
use client::Client;
use listing::{Listing, RemoteFile};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

/// Progress of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress<'a> {
    /// `done` of `all` bytes of the model are on disk; `file` is being fetched.
    Bytes {
        /// Its name in the repository.
        file: &'a str,
        /// Bytes of the model on disk, including those of earlier fetches.
        done: u64,
        /// Bytes of the whole model.
        all: u64,
    },
    /// A message for the user, e.g. that the Hub is unreachable and the copy on this disk is used.
    Note(&'a str),
}

/// Fetches the files of a model that are not in the cache, and returns its GGUF file or its snapshot folder.
///
/// Online, one request asks for the revision's newest commit. If it fails and the cache has a complete copy,
/// that copy is used, and a note says why. A checkpoint or file at a full commit hash needs no request once
/// it is in the cache. `interrupted` is checked several times a second.
///
/// # Errors
/// [`Error::Input`] if the repository, revision or file does not exist; [`Error::Failure`] if the network,
/// the server or the disk fails; [`Error::Interrupted`]. The next fetch resumes from the bytes on disk,
/// except after a wrong checksum, when they are deleted.
pub fn fetch(
    reference: &HubReference,
    places: &Places,
    progress: &mut dyn FnMut(Progress<'_>),
    interrupted: &AtomicBool,
) -> Result<PathBuf> {
    let hub = &places.hub;
    let cache = hub.cache.as_deref().ok_or_else(|| {
        Error::input("there is no home folder to keep models in; name one in the variable HF_HOME")
    })?;
    let repository = Repository::new(cache, &reference.id);
    let cached = repository.cached(reference);
    if hub.offline {
        return cached.map_err(|missing| {
            Error::input(format!(
                "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set and {missing} in {}; unset it to fetch what is missing",
                repository.folder().display()
            ))
        });
    }
    // A commit never changes, but choosing a GGUF file by quantisation needs the Hub's listing.
    if is_commit(&reference.revision)
        && let Ok(path) = &cached
        && (path.is_dir() || matches!(reference.wanted, Wanted::File(_)))
    {
        return Ok(path.clone());
    }
    let client = Client::new(hub)?;
    let listing = match (client.listing(reference, interrupted), cached) {
        (Ok(listing), _) => listing,
        (Err(Error::Interrupted), _) => return Err(Error::Interrupted),
        (Err(error), Ok(path)) => {
            progress(Progress::Note(&format!("{error}; using the copy on this disk")));
            return Ok(path);
        }
        (Err(error), Err(_)) => return Err(error),
    };
    Fetch { reference, client: &client, repository: &repository, listing: &listing, progress, interrupted }
        .run()
}

/// One fetch, with the Hub's listing.
struct Fetch<'a> {
    reference: &'a HubReference,
    client: &'a Client,
    repository: &'a Repository,
    listing: &'a Listing,
    progress: &'a mut dyn FnMut(Progress<'_>),
    interrupted: &'a AtomicBool,
}

impl<'a> Fetch<'a> {
    fn run(mut self) -> Result<PathBuf> {
        let snapshot = self.repository.snapshot(&self.listing.commit);
        let path = match choose(&self.reference.id, &self.reference.wanted, &self.listing.names())? {
            Choice::Gguf(file) => {
                self.fetch_all(&[self.listing.file(&file)?])?;
                snapshot.join(file)
            }
            Choice::Checkpoint => {
                let files = self.checkpoint()?;
                self.fetch_all(&files)?;
                snapshot
            }
        };
        // Last, so that a branch never refers to an incomplete snapshot, which an offline fetch would use.
        let reference = self.repository.set_reference(&self.reference.revision, &self.listing.commit);
        if let Err(error) = reference {
            (self.progress)(Progress::Note(&error.to_string()));
        }
        Ok(path)
    }

    /// The files of the safetensors model. Fetches the index first, because it names the shards.
    fn checkpoint(&mut self) -> Result<Vec<&'a RemoteFile>> {
        let listing: &'a Listing = self.listing;
        let mut names: Vec<String> = COMPANIONS.map(str::to_owned).to_vec();
        names.retain(|name| listing.has(name));
        if listing.has(INDEX) {
            let index = listing.file(INDEX)?;
            self.fetch_all(&[index])?;
            let path = self.repository.snapshot(&listing.commit).join(INDEX);
            let text = layerscope_files::read_text(&path).map_err(|e| Error::io("read", &path, &e))?;
            let shards =
                shards(&text).map_err(|wrong| Error::input(format!("{}: {wrong}", self.reference.id)))?;
            names.push(INDEX.to_owned());
            names.extend(shards);
        } else {
            names.push(WEIGHTS.to_owned());
        }
        names.iter().map(|name| listing.file(name)).collect()
    }

    fn fetch_all(&mut self, files: &[&RemoteFile]) -> Result<()> {
        self.check_space(files)?;
        let all = files.iter().map(|file| file.bytes).sum();
        let mut before = 0;
        for file in files {
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let name = file.name.as_str();
            if !self.repository.has(&self.listing.commit, file) {
                blob::Fetch {
                    client: self.client,
                    repository: self.repository,
                    reference: self.reference,
                    commit: &self.listing.commit,
                    file,
                    interrupted: self.interrupted,
                }
                .run(&mut |step| match step {
                    blob::Step::Bytes(done) => {
                        (self.progress)(Progress::Bytes { file: name, done: before + done, all })
                    }
                    blob::Step::Waits => (self.progress)(Progress::Note(&format!(
                        "another program is fetching {name} of {}; waiting for it",
                        self.reference.id
                    ))),
                })?;
            }
            before += file.bytes;
            (self.progress)(Progress::Bytes { file: name, done: before, all });
        }
        Ok(())
    }

    /// Fails before the fetch if the disk has too little space.
    fn check_space(&self, files: &[&RemoteFile]) -> Result<()> {
        let missing = |file: &&&RemoteFile| !self.repository.has(&self.listing.commit, file);
        let needed: u64 = files.iter().filter(missing).map(|file| self.repository.bytes_to_fetch(file)).sum();
        let Some(free) = self.repository.free_space().filter(|free| *free < needed) else { return Ok(()) };
        let sentence = format!(
            "{} needs {} more, but {} has {} free; make room, or name a folder on a larger disk in HF_HUB_CACHE",
            self.reference,
            bytes(needed),
            self.repository.folder().display(),
            bytes(free)
        );
        Err(Error::DiskFull { needed, free, sentence })
    }
}
