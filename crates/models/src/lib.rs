//! Finds models: resolves a name, path or Hub id, lists the models on this disk, and fetches from the Hugging Face Hub.
//!
//! ```no_run
//! use layerscope_models::{Places, Reference, fetch};
//! use std::sync::atomic::AtomicBool;
//!
//! let places = Places::from_environment();
//! let path = match Reference::parse("Qwen/Qwen3-0.6B-GGUF:Q8_0", &places)? {
//!     Reference::Path(path) => path,
//!     Reference::Local(model) => model.path,
//!     Reference::Hub(hub) => fetch(&hub, &places, &mut |_| {}, &AtomicBool::new(false))?,
//! };
//! # Ok::<(), layerscope_models::Error>(())
//! ```
//!
//! It does not open models: the result is the path of a GGUF file, or of a folder with `config.json`,
//! `tokenizer.json` and safetensors.

mod checkpoint;
mod error;
mod file_names;
mod hub;
mod local;
mod places;
mod reference;
mod seen;
mod text;

pub use error::{Error, ErrorKind, Result};
pub use hub::{Progress, fetch};
pub use local::{LocalModel, ModelFormat, Origin, local_models};
pub use places::{HubPlaces, Places, Token};
pub use reference::{HubReference, Reference, Wanted};
pub use seen::{is_known, remember, remembered};
