//! The layerscope viewer: how a model reads its prompt, layer by layer, what each cutoff costs, and both live.
//!
//! [`open_window`] shows it on a screen, [`screenshot`] draws it without one.

pub mod adapting;
pub mod command;
pub mod data;
pub mod design;
pub mod engine;
pub mod export;
pub mod live;
pub mod recorder;
pub mod state;
pub mod viewer;
pub mod views;
#[cfg(target_arch = "wasm32")]
pub mod web;
pub mod widgets;
mod window;

pub use eframe::egui::{Theme, vec2};
#[cfg(not(target_arch = "wasm32"))]
pub use viewer::screenshot;
pub use viewer::{Host, Launch, Open, Remembered, SeenModels, Viewer};
#[cfg(not(target_arch = "wasm32"))]
pub use window::open_window;
