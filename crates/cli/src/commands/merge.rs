//! `layerscope merge`: a checkpoint with an adapter in its weights.

use crate::args::MergeArguments;
use crate::{models, terminal};
use layerscope_engine::{Adapter, Error, ModelFiles, OpenedModel, Result};
use std::process::ExitCode;

pub(crate) fn run(arguments: &MergeArguments) -> Result<ExitCode> {
    let source = models::resolve(&arguments.model)?;
    let folder = match &source.files {
        ModelFiles::Path(path) if path.is_dir() => path,
        _ => {
            return Err(Error::input(format!(
                "{} is no folder with safetensors, and an adapter cannot be merged into quantised weights; run it with --adapter, or give \
                 the checkpoint that the file was made from",
                source.name
            )));
        }
    };
    let opened = OpenedModel::open(&source)?;
    let (adapter, made_for) = Adapter::read(&arguments.adapter, &opened.config)?;
    adapter.merge(folder, &arguments.out, &opened.config, &mut |done, all| {
        terminal::say(&format!("{done} of {all} files"));
        Ok(())
    })?;
    terminal::say(&format!("merged checkpoint written to {}", arguments.out.display()));
    if let Some(made_for) = made_for {
        terminal::say(&format!("its adapter was made for --policy {}", made_for.policy));
    }
    Ok(ExitCode::SUCCESS)
}
