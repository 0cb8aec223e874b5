//! What a view can be exported as.

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// A picture in pixels, two a point.
    Png,
    /// A picture in shapes and text.
    Svg,
    /// The figures beneath the view.
    Csv,
}

impl Format {
    /// All of them, in the order of the menu.
    pub const ALL: [Self; 3] = [Self::Png, Self::Svg, Self::Csv];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Svg => "SVG",
            Self::Csv => "CSV",
        }
    }

    /// How its files' names end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Svg => "svg",
            Self::Csv => "csv",
        }
    }

    /// What is exported in it.
    pub fn contents(self) -> &'static str {
        match self {
            Self::Png | Self::Svg => "the view",
            Self::Csv => "the figures",
        }
    }
}
