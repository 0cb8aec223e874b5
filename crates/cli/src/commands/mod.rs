//! One module per command.

pub(crate) mod adapt;
pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod chat;
pub(crate) mod demo;
pub(crate) mod diffusion;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod lm_eval;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod merge_runs;
pub(crate) mod models;
pub(crate) mod needle;
pub(crate) mod patterns;
pub(crate) mod recommend;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod search;
#[cfg_attr(not(feature = "server"), path = "no_server.rs")]
pub(crate) mod serve;
pub(crate) mod show;
#[cfg_attr(not(feature = "viewer"), path = "no_viewer.rs")]
pub(crate) mod view;

use crate::args::Arguments;
use clap::CommandFactory;
use layerscope_engine::Result;
use std::process::ExitCode;

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Arguments::command(), "layerscope", &mut script);
    crate::terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
