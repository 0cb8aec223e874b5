//! What the views draw: a run in memory, ready to be looked at from any side.

mod figure;
mod pyramid;
mod run_data;
mod scale;
mod task;

pub use figure::{StepFigure, TokenFigure};
pub use pyramid::Pyramid;
pub use run_data::{PromptMaps, RunData};
pub use scale::{Scale, ScaleKind, exact, short};
pub use task::Task;
