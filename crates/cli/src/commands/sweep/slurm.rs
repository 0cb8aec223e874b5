//! Jobs as a Slurm array: a script, and its submission.

use super::{Planned, collect};
use crate::{output, terminal};
use layerscope_diagnostics::ranges;
use layerscope_engine::{Error, Result, write_file};
use serde_json::json;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, ExitCode};

pub(super) fn run(planned: &Planned, jobs: Option<u16>, json: bool) -> Result<ExitCode> {
    let numbers: Vec<usize> = planned.undone()?.iter().map(|job| job.number).collect();
    if numbers.is_empty() {
        return collect::run(planned, &[], json);
    }
    let path = planned.layout.script();
    write_file(&path, script(planned)?.as_bytes())?;
    let at_once = jobs.or(planned.sweep.slurm.jobs).map_or(String::new(), |jobs| format!("%{jobs}"));
    let array = format!("--array={}{at_once}", ranges::text(&numbers));
    let log = format!("--output={}/logs/slurm-collect-%j.log", folder_of_logs(planned)?);
    let submitted = submit(&path, &[&array])?;
    let collecting = match &submitted {
        Some(id) => submit(&path, &[&format!("--dependency=afterany:{id}"), &log])?,
        None => None,
    };
    if json {
        output::json(&json!({ "script": path, "jobs": numbers, "array": submitted, "collect": collecting }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some((array_id, collecting)) = submitted.zip(collecting) else {
        terminal::print(&format!("wrote {}", path.display()))?;
        terminal::say(
            "layerscope: there is no sbatch here; where there is one, these commands submit the sweep:",
        );
        let script = quoted(&path.display().to_string());
        terminal::print(&format!(
            "id=$(sbatch --parsable {array} {script})\nsbatch --dependency=afterany:${{id%%;*}} {} {script}",
            quoted(&log)
        ))?;
        return Ok(ExitCode::SUCCESS);
    };
    terminal::print(&format!(
        "submitted {} as array {array_id}, and {collecting}, which writes table and report once they have ended",
        if numbers.len() == 1 { "1 job".to_owned() } else { format!("{} jobs", numbers.len()) }
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Submits the script, and returns the number that it got; none where there is no `sbatch`.
fn submit(script: &Path, options: &[&str]) -> Result<Option<String>> {
    let output = match Command::new("sbatch").arg("--parsable").args(options).arg(script).output() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::failure(format!("cannot start sbatch: {error}"))),
        Ok(output) => output,
    };
    let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if !output.status.success() {
        return Err(Error::failure(format!("sbatch refused {}: {}", script.display(), said(&output.stderr))));
    }
    // NUMBER or NUMBER;CLUSTER
    Ok(said(&output.stdout).split(';').next().map(str::to_owned))
}

/// The folder of everything, as file names in options of Slurm have it, which replaces what follows a %.
fn folder_of_logs(planned: &Planned) -> Result<String> {
    let folder = planned.layout.out.display().to_string();
    match folder.contains(['"', '\n', '\\']) {
        true => Err(Error::input(format!(
            "the name of {folder} has a quote, a backslash or a line break, which scripts of Slurm cannot have; choose another --out"
        ))),
        false => Ok(folder.replace('%', "%%")),
    }
}

/// The script of a task of the array, which does its job, and of the job behind it, which collects.
fn script(planned: &Planned) -> Result<String> {
    let program = std::env::current_exe()
        .map_err(|error| Error::failure(format!("cannot find the layerscope program: {error}")))?;
    let program = quoted(&program.display().to_string());
    let log = folder_of_logs(planned)?;
    let slurm = &planned.sweep.slurm;
    let options: String = slurm.options.iter().map(|option| format!("#SBATCH {option}\n")).collect();
    let setup: String = slurm.setup.iter().map(|line| format!("{line}\n")).collect();
    let [job, collect] =
        [&["--job"][..], &["--collect"][..]].map(|more| quoted_words(&planned.command(more)));
    Ok(format!(
        "#!/bin/bash
# Written by layerscope sweep. A task of an array does the job of its number; without an array, what is recorded is collected.
#SBATCH --job-name=layerscope-sweep
#SBATCH --output=\"{log}/logs/slurm-%A_%a.log\"
#SBATCH --open-mode=append
# A preempted task starts again, and goes on where it stopped. A minute before its time is over, a task ends its prompt and stops.
#SBATCH --requeue
#SBATCH --signal=B:TERM@60
{options}{setup}if [ -n \"$SLURM_ARRAY_TASK_ID\" ]; then
    exec {program} {job} \"$SLURM_ARRAY_TASK_ID\"
fi
exec {program} {collect}
"
    ))
}

fn quoted_words(words: &[String]) -> String {
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A word of a shell's command.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+@:=,%".contains(&byte);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell() {
        assert_eq!(quoted("/a/b@c+d.gguf"), "/a/b@c+d.gguf");
        assert_eq!(quoted("it's $HOME"), "'it'\\''s $HOME'");
        assert_eq!(quoted(""), "''");
    }
}
