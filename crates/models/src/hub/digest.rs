//! The Hub's checksums, which are also the names of blobs in the cache.

use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The expected checksum of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Checksum {
    /// SHA-256 of the content, for LFS files.
    Sha256(String),
    /// SHA-1 of git's header `blob LENGTH\0` and the content, for other files.
    GitBlob(String),
}

impl Checksum {
    /// Checks the number of hexadecimal digits; `None` if it is wrong.
    pub(crate) fn sha256(hex: &str) -> Option<Self> {
        is_hex(hex, 64).then(|| Self::Sha256(hex.to_lowercase()))
    }

    pub(crate) fn git_blob(hex: &str) -> Option<Self> {
        is_hex(hex, 40).then(|| Self::GitBlob(hex.to_lowercase()))
    }

    pub(crate) fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::GitBlob(hex)) = self;
        hex
    }

    /// A hasher of this kind for content of this many bytes.
    pub(crate) fn digest(&self, bytes: u64) -> Running {
        match self {
            Self::Sha256(_) => Running::Sha256(Sha256::new()),
            Self::GitBlob(_) => Running::GitBlob(Sha1::new_with_prefix(format!("blob {bytes}\0"))),
        }
    }
}

/// A hasher that takes content in chunks.
pub(crate) enum Running {
    Sha256(Sha256),
    GitBlob(Sha1),
}

impl Running {
    pub(crate) fn update(&mut self, piece: &[u8]) {
        match self {
            Self::Sha256(digest) => digest.update(piece),
            Self::GitBlob(digest) => digest.update(piece),
        }
    }

    pub(crate) fn hex(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Sha256(digest) => hex(&digest.finalize()),
            Self::GitBlob(digest) => hex(&digest.finalize()),
        }
    }
}

pub(crate) fn is_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_sha256sum_and_git() {
        let of = |checksum: Option<Checksum>| {
            let checksum = checksum.unwrap();
            let mut running = checksum.digest(6);
            running.update(b"hel");
            running.update(b"lo\n");
            (running.hex(), checksum.hex().to_owned())
        };
        // printf 'hello\n' | git hash-object --stdin
        let (is, should) = of(Checksum::git_blob("ce013625030ba8dba906f756967f9e9ca394464a"));
        assert_eq!(is, should);
        // printf 'hello\n' | sha256sum
        let known = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let (is, should) = of(Checksum::sha256(&known.to_uppercase()));
        assert_eq!(is, should);
    }

    #[test]
    fn what_is_no_digest_is_refused() {
        assert_eq!(Checksum::sha256("../../etc/passwd"), None);
        assert_eq!(Checksum::git_blob(&"g".repeat(40)), None);
    }
}
