//! The report as a tagged PDF (PDF/UA-1), typeset by typst.

mod characters;
mod layout;
mod world;

use crate::document::Document;
use characters::Characters;
use layerscope_engine::{Error, Result};
use typst::foundations::Smart;
use typst_layout::PagedDocument;
use typst_pdf::{PdfOptions, PdfStandard, PdfStandards};
use world::ReportWorld;

/// Whether this build writes PDF.
pub(crate) fn check_compiled_in() -> Result<()> {
    Ok(())
}

/// The document as PDF.
///
/// # Errors
/// [`Error::Failure`] if typesetting fails.
pub(crate) fn pdf(document: &Document) -> Result<Vec<u8>> {
    let fonts = world::fonts();
    // A font may list a character and still lack its glyph. The second attempt keeps only characters that the
    // built-in fonts are known to have.
    let first = typeset(document, Characters::of(fonts.book()));
    first.or_else(|_| typeset(document, Characters::built_in()))
}

fn typeset(document: &Document, characters: Characters) -> Result<Vec<u8>> {
    let failed = |what: &dyn std::fmt::Display| Error::failure(format!("the PDF cannot be typeset: {what}"));
    let world = ReportWorld::new(layout::files(document, &characters)?);
    let document = typst::compile::<PagedDocument>(&world).output;
    let message = |errors: &[typst::diag::SourceDiagnostic]| {
        errors.first().map_or_else(String::new, |error| error.message.to_string())
    };
    let document = document.map_err(|errors| failed(&message(&errors)))?;
    let standards = PdfStandards::new(&[PdfStandard::Ua_1]).map_err(|error| failed(&error.message()))?;
    let creator = Smart::Custom(Some(format!("layerscope {}", env!("CARGO_PKG_VERSION"))));
    let options = PdfOptions { standards, creator, ..PdfOptions::default() };
    typst_pdf::pdf(&document, &options).map_err(|errors| failed(&message(&errors)))
}
