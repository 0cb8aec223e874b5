//! The run folder, written by `layerscope record` and read by all other commands.
//!
//! [`RunWriter`] records into it, [`Run`] reads it. [`Manifest`] describes its content; [`Table`] lists its
//! Parquet files, whose columns carry unit and description. Optional files are [`Continuations`], texts under
//! a policy, written by [`ContinuationsWriter`], [`SPANS`], written by [`SpansWriter`], and [`POLICIES`], attention under
//! policies, written by [`PoliciesWriter`], [`PATCHES`], maps of activation patches, written by [`PatchesWriter`], and [`Sets`], searched sets of KV heads, written by [`SetsWriter`]. Undefined numbers are NaN in memory and null in files.

mod added_table;
mod continuations;
mod durable;
mod figures;
mod json_file;
mod layout;
mod manifest;
mod mirror;
mod parquet_file;
mod patches;
mod policies;
mod reader;
mod reads;
mod received;
mod row_groups;
mod rows;
mod rows_read;
mod schema;
mod sets;
mod show;
mod spans;
mod table_bytes;
mod table_file;
mod tables;
mod time;
mod writer;

pub use continuations::{CONTINUATIONS, Continuation, Continuations, ContinuationsWriter};
pub use manifest::{
    AdapterRecord, BosToken, FailedPrompt, MANIFEST, Manifest, ModelInfo, PromptStates, SCHEMA_VERSION,
    Settings, Status, TrainingRecord,
};
pub use mirror::{SmallFile, mirror, small_files};
pub use patches::{PATCHES, PatchesWriter, write_patching};
pub use policies::{POLICIES, PoliciesWriter};
pub use reader::Run;
pub use schema::Table;
pub use sets::{JudgedSet, SETS, SearchOrder, SearchUnits, SetSearch, Sets, SetsWriter};
pub use show::{ShowPolicy, ShowPrompt, ShowReport};
pub use spans::{SPANS, SpansWriter};
pub use writer::{RunWriter, check_alike};

#[cfg(test)]
mod tests;
