//! `layerscope man`: man pages, one of the program and one of each command.

use crate::args::Arguments;
use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use layerscope_engine::{Error, Result};
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(folder: &Path) -> Result<ExitCode> {
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    let mut program = Arguments::command()
        .disable_help_subcommand(true)
        .subcommand_help_heading("COMMANDS")
        .subcommand_value_name("COMMAND");
    program.build();
    for command in std::iter::once(&program).chain(program.get_subcommands()) {
        let page = Page::of(command);
        layerscope_engine::write_file(&folder.join(page.man.get_filename()), page.text().as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

struct Page<'a> {
    man: Man,
    command: &'a Command,
}

impl<'a> Page<'a> {
    fn of(command: &'a Command) -> Self {
        let man = Man::new(command.clone())
            .source(concat!("layerscope ", env!("CARGO_PKG_VERSION")))
            .manual("layerscope");
        Self { man, command }
    }

    fn text(&self) -> String {
        let mut text = vec![];
        let parts = [
            Man::render_title,
            Man::render_name_section,
            Man::render_synopsis_section,
            Man::render_description_section,
            Man::render_options_section,
        ];
        for part in parts {
            // A vector takes whatever is written.
            let _ = part(&self.man, &mut text);
        }
        if self.command.has_subcommands() {
            let _ = self.man.render_subcommands_section(&mut text);
        }
        if let Some(examples) = self.command.get_after_help() {
            let _ = examples_section(&examples.to_string()).to_writer(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    }
}

/// What stands behind the options in the help, line for line: filled as a paragraph, commands would run into each other.
fn examples_section(examples: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]).control("nf", []);
    for line in examples.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff
}
