//! The `layerscope` binary: how deep does a language model need its prompt to go?

mod args;
mod commands;
mod interrupt;
mod models;
mod output;
mod progress;
mod scores;
mod terminal;

use args::{Arguments, Command};
use clap::{CommandFactory, FromArgMatches};
use layerscope_engine::Result;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match arguments() {
        Ok(arguments) => run(arguments),
        Err(error) => terminal::explain(&error),
    };
    done.unwrap_or_else(|error| {
        terminal::say(&format!("layerscope: {error}"));
        ExitCode::from(error.exit_code())
    })
}

/// The arguments. A number below 0 is a value like others, for the command to refuse in its own words.
fn arguments() -> std::result::Result<Arguments, clap::Error> {
    let with_numbers = |argument: clap::Arg| {
        let takes_values = argument.get_action().takes_values() && !argument.is_positional();
        argument.allow_negative_numbers(takes_values)
    };
    let command = Arguments::command().mut_subcommands(|command| command.mut_args(with_numbers));
    Arguments::from_arg_matches(&command.try_get_matches()?)
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    layerscope_engine::keep_freed_memory();
    layerscope_engine::explain_bus_errors();
    layerscope_engine::choose_instructions()?;
    if let Some(threads) = arguments.threads {
        layerscope_engine::use_threads(threads.into());
    }
    if arguments.pin {
        layerscope_engine::pin_threads();
    }
    if arguments.quiet {
        progress::be_quiet();
    }
    // The engines of the viewer and of the server run on threads of their own, which create the pool.
    if !matches!(arguments.command, Command::View(_) | Command::Engine(_) | Command::Serve(_)) {
        layerscope_engine::one_pool()?;
    }
    interrupt::install()?;
    tell_panics();
    match arguments.command {
        Command::Demo(arguments) => commands::demo::run(&arguments),
        Command::Record(arguments) => commands::record::run(&arguments, true),
        Command::MergeRuns(arguments) => commands::merge_runs::run(&arguments),
        Command::Sweep(arguments) => commands::sweep::run(&arguments),
        Command::Show(arguments) => commands::show::run(&arguments),
        Command::Recommend(arguments) => commands::recommend::run(&arguments),
        Command::Diffusion(arguments) => commands::diffusion::run(&arguments),
        Command::Patch(arguments) => commands::patch::run(&arguments),
        Command::Search(arguments) => commands::search::run(&arguments),
        Command::Report(arguments) => commands::report::run(&arguments),
        Command::Generate(arguments) => commands::generate::run(&arguments),
        Command::Chat(arguments) => commands::chat::run(&arguments),
        Command::Bench(arguments) => commands::bench::run(&arguments),
        Command::Needle(arguments) => commands::needle::run(&arguments),
        Command::Eval(arguments) => commands::eval::run(&arguments),
        Command::LmEval(arguments) => commands::lm_eval::run(&arguments),
        Command::Serve(arguments) => commands::serve::run(arguments),
        Command::Adapt(arguments) => commands::adapt::run(&arguments),
        Command::Merge(arguments) => commands::merge::run(&arguments),
        Command::Patterns(arguments) => commands::patterns::run(&arguments),
        Command::View(arguments) => commands::view::run(&arguments),
        Command::Engine(arguments) => commands::engine::run(&arguments),
        Command::Capture(arguments) => commands::capture::run(&arguments),
        Command::Models(arguments) => commands::models::run(&arguments),
        Command::Inspect(arguments) => commands::inspect::run(&arguments),
        Command::Completions { shell } => commands::completions(shell),
        Command::Man { folder } => commands::man::run(&folder),
    }
}

/// Panics are told as errors are. Panics of libraries on damaged files are not: each becomes an error with its own sentence.
fn tell_panics() {
    std::panic::set_hook(Box::new(|panic| {
        if layerscope_engine::is_guarded() {
            return;
        }
        terminal::say(&format!("layerscope: {panic}; please report this"));
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            backtrace.to_string().lines().for_each(terminal::say);
        }
    }));
}
