//! Typst's environment: template, data, figures and fonts. No file system, network or clock.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use typst::diag::{FileError, FileResult};
use typst::foundations::{Bytes, Datetime, Duration};
use typst::syntax::{FileId, Source};
use typst::text::{Font, FontBook};
use typst::utils::LazyHash;
use typst::{Library, LibraryExt, World};
use typst_kit::fonts::{FontStore, embedded, system};

const TEMPLATE: &str = include_str!("report.typ");

/// The built-in fonts, then the system's, for scripts that the former lack; searched once.
pub(super) fn fonts() -> &'static FontStore {
    static FONTS: OnceLock<FontStore> = OnceLock::new();
    FONTS.get_or_init(|| {
        let mut fonts = FontStore::new();
        fonts.extend(embedded());
        fonts.extend(system());
        fonts
    })
}

/// The files of one report.
pub(super) struct ReportWorld {
    library: LazyHash<Library>,
    source: Source,
    files: BTreeMap<String, Bytes>,
}

impl ReportWorld {
    /// A world of files by path.
    pub(super) fn new(files: BTreeMap<String, Vec<u8>>) -> Self {
        let files = files.into_iter().map(|(path, bytes)| (path, Bytes::new(bytes)));
        Self {
            library: LazyHash::new(Library::default()),
            source: Source::detached(TEMPLATE),
            files: files.collect(),
        }
    }
}

impl World for ReportWorld {
    fn library(&self) -> &LazyHash<Library> {
        &self.library
    }

    fn book(&self) -> &LazyHash<FontBook> {
        fonts().book()
    }

    fn main(&self) -> FileId {
        self.source.id()
    }

    fn source(&self, id: FileId) -> FileResult<Source> {
        if id == self.source.id() { Ok(self.source.clone()) } else { Err(not_found(id)) }
    }

    fn file(&self, id: FileId) -> FileResult<Bytes> {
        let path = id.get().vpath().get_without_slash();
        self.files.get(path).cloned().ok_or_else(|| not_found(id))
    }

    fn font(&self, index: usize) -> Option<Font> {
        fonts().font(index)
    }

    fn today(&self, _: Option<Duration>) -> Option<Datetime> {
        None
    }
}

fn not_found(id: FileId) -> FileError {
    FileError::NotFound(id.get().vpath().get_without_slash().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use typst::syntax::{RootedPath, VirtualPath, VirtualRoot};

    #[test]
    fn nothing_but_the_report_is_there() {
        let world = ReportWorld::new(BTreeMap::from([("a.json".into(), b"{}".to_vec())]));
        let id = |path: &str| {
            let path = VirtualPath::new(path).expect("a path");
            RootedPath::new(VirtualRoot::Project, path).intern()
        };
        assert!(world.file(id("a.json")).is_ok());
        assert!(world.file(id("/etc/passwd")).is_err() && world.source(id("b.typ")).is_err());
        assert!(world.source(world.main()).is_ok() && world.today(None).is_none());
    }
}
