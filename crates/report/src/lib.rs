//! Reports on recorded runs that others can check.
//!
//! [`Report::read`] reads run folders into one typed report; [`render`] writes it as HTML, PDF, Markdown or JSON. The report
//! says nothing that is not in the run folder: the same folder gives the same bytes.

pub mod compare;
mod data;
mod document;
mod html;
mod markdown;
mod output;
mod patching;
#[cfg_attr(not(feature = "pdf"), path = "no_pdf.rs")]
mod pdf;
mod policies;
mod read;
mod schema;
mod scores;
mod sections;
pub mod spans;
pub mod under_policies;

pub use output::{File, ReportFormat, render, render_sweep, write};
pub use patching::{PatchFigure, patching_svg};
pub use policies::{trade_off, trade_off_svg};

pub use schema::schema;
pub use scores::scores;

pub use data::{
    Chosen, Correlation, FailureCase, PromptFigures, REPORT_SCHEMA, ReadToken, Reading, Report,
    RunComparison, RunReport,
};
