//! The list of a repository's files: `/api/models/ID/revision/REVISION?blobs=true`.

use super::digest::{Checksum, is_hex};
use crate::file_names::stays_inside;
use crate::{Error, Result};
use serde::Deserialize;

/// A commit and its files.
#[derive(Debug)]
pub(crate) struct Listing {
    id: String,
    pub(crate) commit: String,
    files: Vec<(String, Option<RemoteFile>)>,
}

/// A file, with its size and checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) checksum: Checksum,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl Listing {
    /// Parses the Hub's response; the error says what is wrong with it.
    pub(crate) fn parse(id: &str, json: &[u8]) -> std::result::Result<Self, String> {
        let answer: Answer = serde_json::from_slice(json).map_err(|e| e.to_string())?;
        if !is_hex(&answer.sha, 40) {
            return Err("it names no commit".to_owned());
        }
        let files = answer
            .siblings
            .into_iter()
            .filter(|sibling| stays_inside(&sibling.rfilename))
            .map(|sibling| (sibling.rfilename.clone(), RemoteFile::from_answer(sibling)))
            .collect();
        Ok(Self { id: id.to_owned(), commit: answer.sha.to_lowercase(), files })
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.files.iter().any(|(file, _)| file == name)
    }

    /// Names and sizes.
    pub(crate) fn names(&self) -> Vec<(String, u64)> {
        self.files
            .iter()
            .map(|(name, file)| (name.clone(), file.as_ref().map_or(0, |file| file.bytes)))
            .collect()
    }

    pub(crate) fn file(&self, name: &str) -> Result<&RemoteFile> {
        match self.files.iter().find(|(file, _)| file == name) {
            Some((_, Some(file))) => Ok(file),
            Some((_, None)) => Err(Error::failure(format!(
                "the server lists {name} of {} without size or checksum; is HF_ENDPOINT the address of a Hugging Face Hub?",
                self.id
            ))),
            None => Err(Error::input(format!(
                "{} is incomplete on the Hub: it has no {name}, which its index lists",
                self.id
            ))),
        }
    }
}

impl RemoteFile {
    fn from_answer(sibling: Sibling) -> Option<Self> {
        let (bytes, checksum) = match (sibling.lfs, sibling.size, sibling.blob_id) {
            (Some(lfs), _, _) => (lfs.size, Checksum::sha256(&lfs.sha256)?),
            (None, Some(size), Some(blob)) => (size, Checksum::git_blob(&blob)?),
            _ => return None,
        };
        Some(Self { name: sibling.rfilename, bytes, checksum })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789012345678901234567890123456789";

    #[test]
    fn sizes_and_checksums_come_from_large_file_storage_or_git() {
        let json = format!(
            r#"{{"sha": "{COMMIT}", "gated": false, "siblings": [
                {{"rfilename": "big.gguf", "size": 9, "blobId": "{COMMIT}",
                  "lfs": {{"sha256": "{}", "size": 7, "pointerSize": 130}}}},
                {{"rfilename": "small.json", "size": 5, "blobId": "{COMMIT}"}},
                {{"rfilename": "bare.json"}},
                {{"rfilename": "../outside"}}]}}"#,
            "a".repeat(64)
        );
        let listing = Listing::parse("o/n", json.as_bytes()).unwrap();
        assert_eq!(listing.commit, COMMIT);
        let big = listing.file("big.gguf").unwrap();
        assert_eq!((big.bytes, big.checksum.hex().len()), (7, 64));
        let small = listing.file("small.json").unwrap();
        assert_eq!((small.bytes, small.checksum.hex().len()), (5, 40));
        assert!(listing.file("bare.json").unwrap_err().to_string().contains("without size"));
        assert!(!listing.has("../outside"));
    }

    #[test]
    fn nonsense_is_no_listing() {
        for json in
            ["", "<html>", "[]", r#"{"sha": "main", "siblings": []}"#, r#"{"sha": null, "siblings": []}"#]
        {
            assert!(Listing::parse("o/n", json.as_bytes()).is_err(), "{json}");
        }
    }
}
