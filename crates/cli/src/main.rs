//! The `layerscope` binary: how deep does a language model need its prompt to go?

mod args;
mod commands;
mod interrupt;
mod models;
mod output;
mod progress;

use args::{Arguments, Command};
use clap::Parser;
use layerscope_engine::Result;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("layerscope: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    layerscope_engine::keep_freed_memory();
    // The viewer's engine runs on its own thread, which creates the pool.
    if !matches!(arguments.command, Command::View(_)) {
        layerscope_engine::one_pool()?;
    }
    let interrupt = interrupt::install()?;
    quiet_guarded_panics();
    match arguments.command {
        Command::Demo(arguments) => commands::demo::run(&arguments, interrupt),
        Command::Record(arguments) => commands::record::run(&arguments, interrupt),
        Command::Show(arguments) => commands::show::run(&arguments),
        Command::Recommend(arguments) => commands::recommend::run(&arguments),
        Command::Diffusion(arguments) => commands::diffusion::run(&arguments, interrupt),
        Command::Report(arguments) => commands::report::run(&arguments, interrupt),
        Command::Generate(arguments) => commands::generate::run(&arguments, interrupt),
        Command::Bench(arguments) => commands::bench::run(&arguments, interrupt),
        Command::Needle(arguments) => commands::needle::run(&arguments, interrupt),
        Command::View(arguments) => commands::view::run(&arguments, interrupt),
        Command::Capture(arguments) => commands::capture::run(&arguments, interrupt),
        Command::Models(arguments) => commands::models::run(&arguments),
        Command::Inspect(arguments) => commands::inspect::run(&arguments, interrupt),
        Command::Completions { shell } => commands::completions(shell),
    }
}

/// Hides panic messages of libraries on damaged files: the panic becomes an error with its own sentence.
fn quiet_guarded_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !layerscope_engine::is_guarded() {
            usual(panic);
        }
    }));
}
