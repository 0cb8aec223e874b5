//! What can be exported: the view in front, or the whole run as a report.

use layerscope_report::ReportFormat;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExportFormat {
    /// A picture in pixels, two a point.
    Png,
    /// A picture in shapes and text.
    Svg,
    /// The figures beneath the view.
    Csv,
    /// The whole run, or both runs that are compared, as a report.
    Report(ReportFormat),
}

impl ExportFormat {
    /// All that this build has, in the order of the menu.
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

    /// How its files' names end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Svg => "svg",
            Self::Csv => "csv",
            Self::Report(format) => format.extension(),
        }
    }

    /// What is exported in it.
    pub fn contents(self) -> &'static str {
        match self {
            Self::Png | Self::Svg => "the view",
            Self::Csv => "the figures",
            Self::Report(_) => "a report",
        }
    }
}
