//! Export formats: of the current view, or of the run as a report.

use layerscope_report::ReportFormat;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// A bitmap, two pixels per point.
    Png,
    /// A vector picture.
    Svg,
    /// The data of the view.
    Csv,
    /// A report of the run, or of both compared runs.
    Report(ReportFormat),
}

impl ExportFormat {
    /// The formats of this build, in menu order.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Png, Self::Svg, Self::Csv].into_iter().chain(ReportFormat::compiled_in().map(Self::Report))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Svg => "SVG",
            Self::Csv => "CSV",
            Self::Report(format) => format.name(),
        }
    }

    /// Its file extension.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Svg => "svg",
            Self::Csv => "csv",
            Self::Report(format) => format.extension(),
        }
    }

    /// A description of the exported content.
    pub fn contents(self) -> &'static str {
        match self {
            Self::Png | Self::Svg => "the view",
            Self::Csv => "the figures",
            Self::Report(_) => "a report",
        }
    }
}
