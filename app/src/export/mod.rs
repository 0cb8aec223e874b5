//! Pictures of any part of the window, drawn without a window: PNG and SVG.

mod drawing;
mod paint;
mod svg;

pub use drawing::Drawing;
