//! The views' data: a run in memory.

mod comparison;
mod figure;
mod found;
mod maps;
mod patches;
mod pattern;
mod run_data;
mod task;

pub use comparison::RunPair;
pub use figure::{HeadFigure, StepFigure, TokenFigure};
pub use found::{Found, look};
pub use layerscope_figures::{Pyramid, Scale, ScaleKind, exact, short};
pub use maps::{MapKey, MapPart, MapTops, PromptMaps, Want};
pub use patches::DrawnPatches;
pub use pattern::{CellFigure, Sight, TILE, TileKey, Tiles, lacking};
pub use run_data::RunData;
pub use task::Task;
