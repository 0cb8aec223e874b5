//! Off-screen pictures of figures and of any part of the window, as PNG and SVG.

mod drawing;
mod format;
#[cfg(not(target_arch = "wasm32"))]
mod paint;
mod raster;
mod svg;

pub use drawing::Drawing;
pub use format::ExportFormat;
pub use raster::png;
