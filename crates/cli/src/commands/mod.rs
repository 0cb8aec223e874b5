//! One module per command.

pub(crate) mod adapt;
pub(crate) mod bench;
pub(crate) mod capture;
pub(crate) mod chat;
pub(crate) mod demo;
pub(crate) mod diffusion;
#[cfg_attr(not(feature = "viewer"), path = "no_engine.rs")]
pub(crate) mod engine;
pub(crate) mod eval;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod lm_eval;
pub(crate) mod man;
pub(crate) mod merge;
pub(crate) mod merge_runs;
pub(crate) mod models;
pub(crate) mod needle;
pub(crate) mod patch;
pub(crate) mod patterns;
pub(crate) mod recommend;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod search;
#[cfg_attr(not(feature = "server"), path = "no_server.rs")]
pub(crate) mod serve;
pub(crate) mod show;
pub(crate) mod sweep;
#[cfg_attr(not(feature = "viewer"), path = "no_viewer.rs")]
pub(crate) mod view;

use crate::args::{Arguments, positions};
use clap::CommandFactory;
use layerscope_engine::{Error, Result};
use std::process::ExitCode;

/// Parses `0,5,10-20` as numbers below `all`, the number of layers or positions; `last` is the last one.
fn chosen(text: &str, all: usize, name: &str) -> Result<Vec<usize>> {
    let last = all.saturating_sub(1);
    let mut chosen = vec![];
    for part in text.split(',') {
        match positions(part) {
            Ok(range) if range.end <= all => chosen.extend(range),
            _ if part.trim() == "last" => chosen.push(last),
            _ => {
                return Err(Error::input(format!(
                    "`{part}` is not a {name} or range of {name}s from 0 to {last}; give them as in --{name}s 0,5,10-20"
                )));
            }
        }
    }
    Ok(chosen)
}

/// The key of a server: the one given, or that of a variable, which other accounts cannot see as they see arguments.
#[cfg(any(feature = "server", feature = "viewer"))]
fn api_key(given: Option<&String>) -> Option<String> {
    let key = given.cloned().or_else(|| std::env::var("LAYERSCOPE_API_KEY").ok());
    key.filter(|key| !key.is_empty())
}

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<ExitCode> {
    let mut script = vec![];
    clap_complete::generate(shell, &mut Arguments::command(), "layerscope", &mut script);
    crate::terminal::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
