//! The output formats of a report.

use crate::data::Report;
use crate::document::Document;
use layerscope_engine::{Error, Result, write_file};
use layerscope_sweep::Results;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
pub enum ReportFormat {
    /// One self-contained HTML file.
    Html,
    /// A tagged PDF.
    Pdf,
    /// Markdown with SVG files beside it.
    Markdown,
    /// Every number as JSON.
    Json,
}

impl ReportFormat {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Html, Self::Pdf, Self::Markdown, Self::Json];

    /// The formats of this build; PDF needs the feature `pdf`.
    pub fn compiled_in() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|format| format.check_compiled_in().is_ok())
    }

    fn check_compiled_in(self) -> Result<()> {
        if self == Self::Pdf { crate::pdf::check_compiled_in() } else { Ok(()) }
    }

    /// Its file extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Pdf => "pdf",
            Self::Markdown => "md",
            Self::Json => "json",
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Html => "HTML",
            Self::Pdf => "PDF",
            Self::Markdown => "Markdown",
            Self::Json => "JSON",
        }
    }

    /// The format by a file name's extension.
    ///
    /// # Errors
    /// [`Error::Input`] if the extension is unknown, or of a format that this build leaves out.
    pub fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        let known = Self::ALL.into_iter().find(|format| extension.as_deref() == Some(format.extension()));
        let format = known.ok_or_else(|| {
            Error::input(format!(
                "{} does not say which format is meant; end it in .html, .pdf, .md or .json",
                path.display()
            ))
        })?;
        format.check_compiled_in()?;
        Ok(format)
    }
}

/// A file of a report.
#[derive(Debug)]
pub struct File {
    /// Its path.
    pub path: PathBuf,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Renders a report in the format of `path`'s extension; `path` is the main file. Writes nothing.
///
/// # Errors
/// [`Error::Input`] if the extension is not of a format of this build; [`Error::Failure`] if rendering fails.
pub fn render(report: &Report, path: &Path) -> Result<Vec<File>> {
    rendered(&|| Document::of(report), &|| json(report), path)
}

/// Renders the results of a sweep in the format of `path`'s extension. Writes nothing.
///
/// # Errors
/// As [`render`].
pub fn render_sweep(results: &Results, path: &Path) -> Result<Vec<File>> {
    rendered(&|| Document::of_sweep(results), &|| json(results), path)
}

fn rendered(
    document: &dyn Fn() -> Document,
    json: &dyn Fn() -> Result<Vec<u8>>,
    path: &Path,
) -> Result<Vec<File>> {
    let one = |bytes| vec![File { path: path.to_owned(), bytes }];
    Ok(match ReportFormat::of(path)? {
        ReportFormat::Html => one(crate::html::html(&document()).into_bytes()),
        ReportFormat::Pdf => one(crate::pdf::pdf(&document())?),
        ReportFormat::Markdown => markdown(&document(), path),
        ReportFormat::Json => one(json()?),
    })
}

/// Writes files, each atomically, and creates their folders.
///
/// # Errors
/// [`Error`] if a folder cannot be created or a file cannot be written.
pub fn write(files: &[File]) -> Result<()> {
    for file in files {
        if let Some(folder) = file.path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        }
        write_file(&file.path, &file.bytes)?;
    }
    Ok(())
}

/// Markdown links to its figures by relative path, in a folder of the same name.
fn markdown(document: &Document, path: &Path) -> Vec<File> {
    let stem = path.file_stem().map_or_else(|| "report".into(), |stem| stem.to_string_lossy());
    let folder = format!("{stem}-figures");
    let (text, figures) = crate::markdown::markdown(document, &in_url(&folder));
    let beside = path.parent().unwrap_or(Path::new("")).join(folder);
    let figures =
        figures.into_iter().map(|(name, svg)| File { path: beside.join(name), bytes: svg.into_bytes() });
    std::iter::once(File { path: path.to_owned(), bytes: text.into_bytes() }).chain(figures).collect()
}

/// A percent-encoded file name (RFC 3986, 2.3).
fn in_url(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let byte = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(byte).collect()
}

fn json(report: &impl Serialize) -> Result<Vec<u8>> {
    let mut bytes = serde_json::to_vec_pretty(report)
        .map_err(|error| Error::failure(format!("cannot write the report as JSON: {error}")))?;
    bytes.push(b'\n');
    Ok(bytes)
}
