//! `layerscope merge-runs`: puts runs of one model and prompt file together.

use crate::args::MergeRunsArguments;
use crate::{output, terminal};
use layerscope_diagnostics::run::{
    MANIFEST, Manifest, PatchesWriter, PoliciesWriter, PromptStates, Run, RunWriter, SETS, SpansWriter,
    check_alike,
};
use layerscope_engine::{Error, Result};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Most prompts that a sentence names.
const NAMED: usize = 8;

pub(crate) fn run(arguments: &MergeRunsArguments) -> Result<ExitCode> {
    let folders = run_folders(&arguments.runs)?;
    let out = &arguments.out;
    let Merged { run: merged, taken, missing, doubled } = merge(&folders, out)?;
    let PromptStates { ids, failed, .. } = &merged.manifest().prompts;
    if arguments.json {
        output::json(&json!({
            "run": out,
            "runs": folders,
            "prompts": merged.prompt_ids().len(),
            "taken": taken,
            "missing": missing,
            "failed": failed,
            "doubled": doubled,
        }))?;
    } else {
        terminal::print(&format!(
            "{} of {} prompts are in {}, {taken} of them new",
            merged.prompt_ids().len(),
            ids.len(),
            out.display()
        ))?;
    }
    for failed in failed {
        terminal::say(&format!("layerscope: prompt {:?} failed: {}", failed.id, failed.reason));
    }
    if !missing.is_empty() {
        let named: Vec<String> = missing.iter().take(NAMED).map(|id| format!("{id:?}")).collect();
        let more = if missing.len() > NAMED { ", …" } else { "" };
        terminal::say(&format!(
            "layerscope: {} missing: {}{more}; record the rest, and merge again",
            if missing.len() == 1 {
                "1 prompt is".to_owned()
            } else {
                format!("{} prompts are", missing.len())
            },
            named.join(", ")
        ));
    }
    Ok(if missing.is_empty() && failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Runs that were put together.
pub(crate) struct Merged {
    /// The run of all.
    pub(crate) run: Run,
    /// Prompts that it did not have before.
    pub(crate) taken: usize,
    /// Prompts that no run has, by id.
    pub(crate) missing: Vec<String>,
    /// Prompts that several runs have, by id.
    pub(crate) doubled: Vec<String>,
}

/// Puts the runs of these folders together in `out`.
///
/// # Errors
/// [`Error::Input`] where they are not of one model, prompt file, precision, settings and version, or `out` is one of them.
pub(crate) fn merge(folders: &[PathBuf], out: &Path) -> Result<Merged> {
    let is_out = |folder: &&PathBuf| {
        folder.canonicalize().ok().is_some_and(|path| out.canonicalize().ok() == Some(path))
    };
    if let Some(folder) = folders.iter().find(is_out) {
        return Err(Error::input(format!(
            "--out {} is one of the runs to merge; choose another",
            folder.display()
        )));
    }
    let runs: Vec<Run> = folders.iter().map(|folder| Run::open(folder)).collect::<Result<_>>()?;
    let first = runs.first().ok_or_else(|| Error::input("name a run folder to merge"))?.manifest();
    runs.iter().try_for_each(|run| check_alike(first, run))?;
    let doubled = doubled(&runs);
    for (id, [first, second]) in &doubled {
        let (first, second) = (first.display(), second.display());
        terminal::say(&format!("layerscope: prompt {id:?} is in {first} and in {second}; the first counts"));
    }
    output::check_folder(out)?;
    let mut writer = RunWriter::create_or_resume(out, empty(first))?;
    let mut taken = 0;
    for run in &runs {
        taken += writer.take(run)?;
    }
    writer.finish()?;
    drop(writer);
    let merged = Run::open(out)?;
    add_tables(&merged, &runs)?;
    let PromptStates { ids, failed, .. } = &merged.manifest().prompts;
    let known =
        |id: &&String| merged.prompt_ids().contains(id) || failed.iter().any(|failed| failed.id == **id);
    let missing: Vec<String> = ids.iter().filter(|id| !known(id)).cloned().collect();
    Ok(Merged { taken, missing, doubled: doubled.into_keys().collect(), run: merged })
}

/// The run folders of some folders: themselves, or those right within, by name.
fn run_folders(folders: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = vec![];
    for folder in folders {
        if folder.join(MANIFEST).exists() {
            found.push(folder.clone());
            continue;
        }
        let entries = std::fs::read_dir(folder).map_err(|error| Error::io("read", folder, &error))?;
        let within = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut within: Vec<PathBuf> = within.filter(|path| path.join(MANIFEST).exists()).collect();
        if within.is_empty() {
            return Err(Error::input(format!(
                "{} holds no run, nor a folder with one; name the --out folders of layerscope record",
                folder.display()
            )));
        }
        within.sort();
        found.extend(within);
    }
    Ok(found)
}

/// The manifest of a run that has no prompt yet.
fn empty(of: &Manifest) -> Manifest {
    let prompts = PromptStates { done: vec![], failed: vec![], ..of.prompts.clone() };
    Manifest { prompts, revision: 0, native_kl: None, ..of.clone() }
}

/// Prompts that several runs have, with the first two.
fn doubled(runs: &[Run]) -> BTreeMap<String, [&Path; 2]> {
    let mut of: BTreeMap<&String, &Path> = BTreeMap::new();
    let mut doubled = BTreeMap::new();
    for run in runs {
        for id in run.prompt_ids() {
            match of.get(id) {
                Some(&first) => {
                    doubled.entry(id.clone()).or_insert([first, run.folder()]);
                }
                None => {
                    of.insert(id, run.folder());
                }
            }
        }
    }
    doubled
}

/// Attention under policies, removed spans and activation patches of the prompts, where runs have any. Searched sets are of a run's own prompts.
fn add_tables(merged: &Run, runs: &[Run]) -> Result<()> {
    let mut policies = PoliciesWriter::open(merged)?;
    let (mut records, mut seen) = (vec![], BTreeSet::new());
    for record in runs.iter().map(Run::policies).collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        let is_new = seen.insert((record.prompt_id.clone(), record.policy.clone()));
        if is_new && !policies.has(&record.prompt_id, &record.policy) {
            records.push(record);
        }
    }
    if !records.is_empty() {
        policies.put(records)?;
    }
    drop(policies);
    let mut spans = SpansWriter::open(merged)?;
    for record in runs.iter().map(Run::spans).collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        spans.put(record)?;
    }
    drop(spans);
    let mut patches = PatchesWriter::open(merged)?;
    for map in runs.iter().map(Run::patches).collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        patches.put(map)?;
    }
    drop(patches);
    for run in runs.iter().filter(|run| run.folder().join(SETS).exists()) {
        terminal::say(&format!(
            "layerscope: the sets of {} were searched on its prompts alone and are left out; `layerscope search` searches anew",
            run.folder().display()
        ));
    }
    Ok(())
}
