//! `layerscope record`: records a model on a prompt file into a run folder.

use crate::args::RecordArguments;
use crate::commands::{recommend, show};
use crate::interrupt::heeded;
use crate::progress::{FailureCaseBar, PoliciesBar, RecordingBars};
use crate::{models, output, terminal};
use layerscope_cutoff::recommend::Recommendation;
use layerscope_diagnostics::prompts::{PromptFile, read_prompts};
use layerscope_diagnostics::run::{CONTINUATIONS, Continuation, Manifest, Run};
use layerscope_engine::{
    Device, DeviceChoice, Error, MemoryNeed, Model, OpenedModel, Policy, Result, WeightsPrecision,
};
use layerscope_recording::continuations::continue_failure_cases;
use layerscope_recording::policies::record_policies;
use layerscope_recording::{Recorded, RecordingEvent};
use serde_json::json;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// What to record, and how to print the result.
pub(crate) struct Recording<'a> {
    pub(crate) prompts: &'a PromptFile,
    pub(crate) recorded: Recorded,
    /// Policies under which attention is recorded besides.
    pub(crate) policies: Vec<Policy>,
    /// Number of prompts to generate from under the recommended cutoff.
    pub(crate) failure_cases: usize,
    /// The run folder.
    pub(crate) out: &'a Path,
    /// Arguments that repeat the recording, for the manifest.
    pub(crate) command: Vec<String>,
    pub(crate) json: bool,
}

/// Records; `ahead` as in [`Recorded`].
pub(crate) fn run(arguments: &RecordArguments, ahead: bool) -> Result<ExitCode> {
    let prompts = read_prompts(&arguments.prompts)?;
    let device = models::device(arguments.model.device)?;
    let opened = models::open(&arguments.model, &device)?;
    let parsed = |name: &String| Policy::parse_for(name, &opened.config);
    let policies = arguments.policy.iter().map(parsed).collect::<Result<_>>()?;
    let need = memory_need(&opened, &prompts, &device, arguments);
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    if let Some(path) = &model.path {
        models::remember(model.sha256(), path);
    }
    let model = models::with_adapter(model, &arguments.adapter, &[])?;
    let out = match arguments.shard {
        Some(shard) => arguments.out.join(shard.folder_name()),
        None => arguments.out.clone(),
    };
    let recording = Recording {
        policies,
        prompts: &prompts,
        recorded: Recorded {
            max_new_tokens: arguments.max_new_tokens as usize,
            heads: arguments.heads.wanted(),
            shard: arguments.shard,
            ahead,
        },
        failure_cases: arguments.failure_cases,
        out: &out,
        command: command(arguments),
        json: arguments.json,
    };
    record(&model, &recording)
}

/// Memory for the longest prompt that fits the model's context.
fn memory_need(
    opened: &OpenedModel,
    prompts: &PromptFile,
    device: &Device,
    arguments: &RecordArguments,
) -> MemoryNeed {
    let (config, steps) = (&opened.config, arguments.max_new_tokens as usize);
    let lengths =
        prompts.prompts.iter().filter_map(|prompt| opened.tokenizer.encode_prompt(&prompt.content).ok());
    let fitting = lengths.map(|tokens| tokens.len()).filter(|length| length + steps <= config.context + 1);
    let longest = fitting.max().unwrap_or(0);
    let kept = Policy::full(config.layers).for_model(config).most_held(longest, steps, device);
    opened.memory_need(arguments.model.weights.into(), device, &kept).with_probes(config, longest, steps)
}

/// The arguments that repeat a recording, with file names only: full paths may be private.
fn command(arguments: &RecordArguments) -> Vec<String> {
    let RecordArguments {
        model,
        adapter,
        prompts,
        max_new_tokens,
        heads,
        failure_cases,
        policy,
        out,
        // All shares together are the run.
        shard: _,
        json: _,
    } = arguments;
    let options = [
        ("--weights", WeightsPrecision::from(model.weights).name().to_owned()),
        ("--prompts", last_part(prompts)),
        ("--max-new-tokens", max_new_tokens.to_string()),
        ("--failure-cases", failure_cases.to_string()),
        ("--out", last_part(out)),
    ];
    let architecture = model.architecture.iter().map(|name| ("--architecture", name.clone()));
    let device = Some(model.device.device).filter(|&device| device != DeviceChoice::Auto);
    let device = device.iter().map(|device| ("--device", device.to_string()));
    let policies = policy.iter().map(|name| ("--policy", name.clone()));
    let heads = heads.wanted().map(|on| ("--heads", if on { "on" } else { "off" }.to_owned()));
    let adapter = adapter.adapter.iter().map(|folder| ("--adapter", last_part(folder)));
    let options =
        options.into_iter().chain(heads).chain(policies).chain(adapter).chain(architecture).chain(device);
    let options = options.flat_map(|(name, value)| [name.to_owned(), value]);
    ["record".to_owned(), last_part(Path::new(&model.model))].into_iter().chain(options).collect()
}

/// The name of a file or folder, without its parent folders.
pub(crate) fn last_part(path: &Path) -> String {
    path.components()
        .next_back()
        .map_or_else(String::new, |part| part.as_os_str().to_string_lossy().into_owned())
}

/// Records, generates the failure cases, then prints the figures and the recommendation.
pub(crate) fn record(model: &Model, recording: &Recording<'_>) -> Result<ExitCode> {
    match record_and_print(model, recording) {
        Err(Error::Interrupted) => {
            terminal::say(&format!(
                "layerscope: interrupted; the same command resumes {}",
                recording.out.display()
            ));
            Ok(ExitCode::from(Error::Interrupted.exit_code()))
        }
        done => done,
    }
}

fn record_and_print(model: &Model, recording: &Recording<'_>) -> Result<ExitCode> {
    let (manifest, failed) = record_prompts(model, recording)?;
    let code = if failed > 0 { ExitCode::from(2) } else { ExitCode::SUCCESS };
    if manifest.prompts.done.is_empty() {
        return Ok(code);
    }
    let run = Run::open(recording.out)?;
    if let Some(shard) = recording.recorded.shard {
        under_policies(&run, model, &recording.policies)?;
        terminal::say(&format!(
            "layerscope: shard {shard} with {} prompts is in {}; `layerscope merge-runs` puts shards together",
            manifest.prompts.done.len(),
            recording.out.display()
        ));
        return Ok(code);
    }
    let recommendation = match recommend::of_run(&run, recommend::Options::default()) {
        Ok(recommendation) => recommendation,
        Err(error) if recording.json => return Err(error),
        Err(error) => {
            terminal::print(&show::overall(&run)?)?;
            return Err(error);
        }
    };
    let cases = failure_cases(&run, model, &recommendation, recording.failure_cases)?;
    under_policies(&run, model, &recording.policies)?;
    if recording.json {
        output::json(&json!({ "show": run.show()?, "recommendation": recommendation }))?;
        return Ok(code);
    }
    terminal::print(&show::overall(&run)?)?;
    terminal::print(&recommend::text(&recommendation))?;
    if let Some(text) = failure_case_text(&cases) {
        terminal::print(&text)?;
    }
    if failed > 0 {
        terminal::say(&format!(
            "layerscope: {failed} of {} prompts failed, see above",
            recording.prompts.prompts.len()
        ));
    }
    Ok(code)
}

/// Records attention under policies.
fn under_policies(run: &Run, model: &Model, policies: &[Policy]) -> Result<()> {
    if policies.is_empty() {
        return Ok(());
    }
    for caveat in model.caveats(policies) {
        terminal::say(&format!("layerscope: {caveat}"));
    }
    let bar = PoliciesBar::new();
    let recorded =
        heeded(|interrupt| record_policies(run, model, policies, interrupt, &mut |event| bar.observe(event)));
    bar.finish();
    recorded
}

/// Returns the manifest and the number of failed prompts.
fn record_prompts(model: &Model, recording: &Recording<'_>) -> Result<(Manifest, usize)> {
    let Recording { prompts, recorded: what, out, command, .. } = recording;
    let mut bars = RecordingBars::new(prompts.prompts.len());
    let recorded = heeded(|interrupt| {
        let observe = &mut |event: RecordingEvent<'_>| bars.observe(event);
        layerscope_recording::record(model, prompts, *what, out, command, interrupt, observe)
    });
    bars.finish();
    Ok((recorded?, bars.failures()))
}

/// The run's failure cases under the recommended cutoff, worst first; empty if full depth is recommended.
pub(crate) fn failure_cases(
    run: &Run,
    model: &Model,
    recommendation: &Recommendation,
    count: usize,
) -> Result<Vec<Continuation>> {
    let Some(point) = recommendation.point().filter(|_| count > 0) else { return Ok(vec![]) };
    let mut bar = FailureCaseBar::new();
    let continued = heeded(|interrupt| {
        continue_failure_cases(run, model, point, count, interrupt, &mut |event| bar.observe(event))
    });
    bar.finish();
    continued
}

/// Whether and where each text diverges from the full model's.
fn failure_case_text(cases: &[Continuation]) -> Option<String> {
    let mut text = format!(
        "\nGenerated under {} from the prompts that it changes most (texts in {CONTINUATIONS}):\n",
        terminal::line(&cases.first()?.policy)
    );
    for case in cases {
        let difference = match case.first_difference {
            None => "the full model's text".to_owned(),
            Some(step) => format!("another text from generated token {} on", step + 1),
        };
        let repetition = if case.repetition.is_some() { ", ending in a loop" } else { "" };
        let kl = output::figure(case.kl, 4);
        let _ =
            write!(text, "\n  - {}: KL {kl} nats, {difference}{repetition}", terminal::line(&case.prompt_id));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn a_command_is_kept_without_the_folders_of_its_files() {
        let given = "layerscope record /home/someone/models/tiny.gguf/ --prompts ../private/p.jsonl --out /tmp/x/../run \
                     --weights f32 --json";
        let parsed = Arguments::try_parse_from(given.split_whitespace()).expect("a command");
        let Command::Record(arguments) = parsed.command else { panic!("record") };
        let kept = command(&arguments);
        assert_eq!(
            kept.join(" "),
            "record tiny.gguf --weights f32 --prompts p.jsonl --max-new-tokens 32 --failure-cases 5 --out run"
        );
        // The result is itself a valid command, and converting it again changes nothing.
        let again =
            Arguments::try_parse_from(["layerscope".to_owned()].iter().chain(&kept)).expect("a command");
        let Command::Record(again) = again.command else { panic!("record") };
        assert_eq!(command(&again), kept);
        assert_eq!(last_part(Path::new("..")), "..");
    }
}
