//! `layerscope show`: prints a run's figures by layer.

use crate::args::ShowArguments;
use crate::output::{self, figure};
use crate::terminal::{self, line};
use layerscope_cutoff::budget::search_name;
use layerscope_cutoff::recommend::{Kept, KeptByCutoff};
use layerscope_diagnostics::patching::{PatchMap, PatchReport};
use layerscope_diagnostics::policies::summarise_policies;
use layerscope_diagnostics::record::{Anchor, PolicyRecord, PromptSummary};
use layerscope_diagnostics::run::{Manifest, Run, Status};
use layerscope_diagnostics::summary::{knockout_by_kv_head, largest, mean, summarise_run};
use layerscope_engine::{Error, Result};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

pub(crate) fn run(arguments: &ShowArguments) -> Result<ExitCode> {
    let run = Run::open(&arguments.run)?;
    if arguments.json {
        let mut report = run.show()?;
        if let Some(id) = &arguments.prompt_id {
            known(&run, id)?;
            report.prompts.retain(|prompt| prompt.id == *id);
            report.patches.retain(|map| [&map.clean, &map.corrupted].iter().any(|of| of.prompt_id == *id));
        }
        output::json(&report)?;
    } else if arguments.summary_json {
        output::json(&summarise_run(&prompts(&run)?))?;
    } else if let Some(id) = &arguments.prompt_id {
        known(&run, id)?;
        terminal::print(&one_prompt(&run, id)?)?;
    } else if arguments.by_category {
        terminal::print(&by_category(&run)?)?;
    } else {
        terminal::print(&overall(&run)?)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A heading for the run and its table over all prompts.
pub(crate) fn overall(run: &Run) -> Result<String> {
    let prompts = prompts(run)?;
    let all: Vec<&PromptSummary> = prompts.iter().collect();
    let cutoffs = cutoff_table(&all);
    let (layers, policies) = (layer_table(&all), policy_table(&run.policies()?));
    let (heads, sets, patches) = (head_lines(&prompts), set_lines(run)?, patch_table(run.patches()?));
    Ok(format!(
        "{}\n{layers}\n{LEGEND}{heads}\n\n{cutoffs}{policies}{sets}{patches}",
        heading(run.manifest(), &prompts)
    ))
}

/// KV heads that are told by name.
const HEADS: usize = 8;
/// KL below which hiding the prompt from a KV head alone is next to nothing, nats.
const NEXT_TO_NOTHING: f64 = 0.001;

/// The KV heads that cost most without the prompt; empty where that was not measured.
fn head_lines(prompts: &[PromptSummary]) -> String {
    let by_head = knockout_by_kv_head(prompts);
    let heads = by_head.first().map_or(0, Vec::len);
    if heads < 2 {
        return String::new();
    }
    let all = || by_head.iter().flatten().copied();
    let most = largest(all(), HEADS).into_iter().map(|index| {
        let (layer, head) = (index / heads, index % heads);
        format!("{layer}.{head} {}", figure(by_head[layer][head], 4))
    });
    let small = all().filter(|kl| *kl < NEXT_TO_NOTHING).count();
    format!(
        "\nprompt hidden at one KV head alone (layer.head), nats: {}; {small} of {} below {NEXT_TO_NOTHING}",
        most.collect::<Vec<_>>().join(", "),
        all().count()
    )
}

/// What each search of sets has found: the KV that the best set within tolerances keeps; empty where nothing was searched.
fn set_lines(run: &Run) -> Result<String> {
    let Some(sets) = run.sets()? else { return Ok(String::new()) };
    let layers = run.manifest().model.layers;
    let rows = sets.searches.iter().map(|search| {
        let kept = |tolerance: f64| {
            let within = search.sets.iter().filter(|set| set.judged.kl <= tolerance);
            let least = within.map(|set| set.kv_kept).fold(f64::NAN, f64::min);
            figure(100.0 * least, 1)
        };
        let mut row = vec![search_name(search, layers), search.judged.len().to_string()];
        row.extend(TOLERANCES.map(kept));
        row
    });
    let header = ["dropped", "prompts", "KV % ≤ 0.01", "≤ 0.03", "≤ 0.1", "≤ 0.3"];
    let table = output::table(&header, rows.collect());
    Ok(format!(
        "\n\n{table}\nSearched sets: the least share of the KV bytes that stays within so many nats of KL, on prompts that the search did \
         not look at\nwhere there are others. `layerscope recommend RUN --kv-budget 50%` names the best policy for a budget."
    ))
}

/// KL of the columns of searched sets, nats.
const TOLERANCES: [f64; 4] = [0.01, 0.03, 0.1, 0.3];

/// What was recorded under policies; empty where nothing was.
fn policy_table(records: &[PolicyRecord]) -> String {
    if records.is_empty() {
        return String::new();
    }
    let rows = summarise_policies(records).into_iter().map(|summary| {
        let mean_of = |figures: &[f64]| figure(mean(figures.iter().copied()), 4);
        vec![
            line(&summary.policy).to_string(),
            summary.prompts.to_string(),
            figure(summary.divergence.kl, 4),
            figure(summary.divergence.top1, 3),
            mean_of(&summary.bos_mass),
            mean_of(&summary.prompt_mass),
            mean_of(&summary.decode_mass),
        ]
    });
    let head = ["policy", "prompts", "KL", "top1", "BoS", "prompt", "decode"];
    let table = output::table(&head, rows.collect());
    format!(
        "\n\n{table}\nUnder policies, along the same text. KL: nats per token, from the full model. BoS, prompt, decode: masses, means \
         over layers."
    )
}

/// The maps of activation patches; empty where there are none.
fn patch_table(maps: Vec<PatchMap>) -> String {
    if maps.is_empty() {
        return String::new();
    }
    let rows = maps.into_iter().map(PatchReport::from).map(|map| {
        let strongest = map.strongest.first().map_or("–".to_owned(), |patch| {
            let column = patch.position.or(patch.head).unwrap_or(0);
            format!(
                "{} at layer {}, {} {column}",
                figure(patch.effect, 3),
                patch.layer,
                map.site.column_name()
            )
        });
        let shown = |text: &str| line(text).to_string();
        vec![
            shown(&map.clean.prompt_id),
            shown(&map.corrupted.prompt_id),
            map.site.name().to_owned(),
            map.direction.name().to_owned(),
            map.metric.name().to_owned(),
            format!("{}/{}", map.done, map.cells),
            strongest,
        ]
    });
    let head = ["clean", "corrupted", "patched", "direction", "metric", "cells", "strongest effect"];
    format!(
        "\n\n{}\nActivation patches between prompts: effect 0 is as in the corrupted run, 1 as in the clean run.",
        output::table(&head, rows.collect())
    )
}

fn by_category(run: &Run) -> Result<String> {
    let prompts = prompts(run)?;
    let mut text = heading(run.manifest(), &prompts);
    let categories: BTreeSet<&str> = prompts.iter().map(|p| p.category.as_str()).collect();
    for category in categories {
        let chosen: Vec<&PromptSummary> = prompts.iter().filter(|p| p.category == category).collect();
        let (layers, cutoffs) = (layer_table(&chosen), cutoff_table(&chosen));
        let _ = write!(text, "\n{} ({} prompts)\n{layers}\n\n{cutoffs}\n", line(category), chosen.len());
    }
    text.push_str(LEGEND);
    Ok(text)
}

fn one_prompt(run: &Run, id: &str) -> Result<String> {
    let prompt = run.prompt(id)?;
    let head = format!(
        "{} ({}), {} prompt tokens, {} decode steps{}\n{}\n",
        line(id),
        line(&prompt.category),
        prompt.p,
        prompt.steps,
        if prompt.answer_given { ", given answer" } else { "" },
        prompt.generated_text.trim()
    );
    Ok(format!("{head}\n{}\n{LEGEND}\n\n{}", layer_table(&[&prompt]), cutoff_table(&[&prompt])))
}

fn known(run: &Run, id: &str) -> Result<()> {
    if run.prompt_ids().iter().any(|known| known == id) {
        return Ok(());
    }
    Err(Error::input(format!("{}: no prompt `{id}` is recorded in this run", run.folder().display())))
}

fn prompts(run: &Run) -> Result<Vec<PromptSummary>> {
    let prompts: Vec<PromptSummary> = run.prompts().collect::<Result<_>>()?;
    if prompts.is_empty() {
        return Err(Error::input(format!(
            "{}: no prompt is recorded yet; `layerscope record` resumes the run",
            run.folder().display()
        )));
    }
    Ok(prompts)
}

fn heading(manifest: &Manifest, prompts: &[PromptSummary]) -> String {
    let (model, states) = (&manifest.model, &manifest.prompts);
    let lengths = || prompts.iter().map(|p| p.p);
    let mut text = format!(
        "{}: {} layers, {} heads ({} KV), {} weights, {}\n{} prompts of {} to {} tokens, {} decode steps each",
        line(&model.name),
        model.layers,
        model.heads,
        model.kv_heads,
        line(&manifest.weights),
        line(&manifest.device),
        prompts.len(),
        lengths().min().unwrap_or(0),
        lengths().max().unwrap_or(0),
        manifest.settings.max_new_tokens,
    );
    if manifest.status == Status::Running {
        let left = states.ids.len().saturating_sub(states.done.len() + states.failed.len());
        let _ = write!(text, "; unfinished, {left} prompts to go (`layerscope record` resumes it)");
    }
    if !states.failed.is_empty() {
        let _ = write!(text, "; {} failed", states.failed.len());
    }
    if let Some(bos) = &model.bos {
        let _ = write!(text, "\nposition 0 holds {:?} (id {})", bos.text, bos.id);
    }
    if let Some(kl) = manifest.native_kl {
        let _ =
            write!(text, "\nnative weights are {} nats per token from f32 arithmetic (KL)", figure(kl, 5));
    }
    if let Some(window) = model.window {
        let _ = write!(
            text,
            "\nlayers {:?} see a sliding window of {window} tokens: their masses are over the keys within it",
            model.windowed_layers
        );
    }
    text.push('\n');
    text
}

const LEGEND: &str = "\
bos, prompt, decode: share of attention of the generating tokens on position 0, on the prompt, on generated tokens
entropy: how evenly attention spreads over the prompt (1 = evenly); selectivity: prompt · (1 − entropy)
straightening: curvature of the prompt's trajectory less that after layer 0, degrees; lens KL: final ‖ logit lens, nats
knockout KL: prompt hidden at this layer alone; cut here: prompt hidden from this layer up (+bos: position 0 kept), nats";

/// Means over prompts, one row per layer.
fn layer_table(prompts: &[&PromptSummary]) -> String {
    let header = [
        "layer",
        "bos",
        "prompt",
        "decode",
        "entropy",
        "selectivity",
        "straightening",
        "lens KL",
        "knockout KL",
        "cut here",
        "cut here+bos",
    ];
    let layers = prompts.first().map_or(0, |p| p.layers.bos_mass.len());
    let mean = |figure: &dyn Fn(&PromptSummary) -> f64| mean(prompts.iter().map(|prompt| figure(prompt)));
    let rows = (0..layers).map(|layer| {
        let cut = |anchor: Anchor| mean(&|p| p.at(anchor, layer).kl);
        vec![
            layer.to_string(),
            figure(mean(&|p| p.layers.bos_mass[layer]), 3),
            figure(mean(&|p| p.layers.prompt_mass[layer]), 3),
            figure(mean(&|p| p.layers.decode_mass[layer]), 3),
            figure(mean(&|p| p.layers.prompt_entropy[layer]), 3),
            figure(mean(&|p| p.layers.selectivity[layer]), 3),
            figure(mean(&|p| p.layers.straightening_prompt_deg[layer + 1]), 1),
            figure(mean(&|p| p.layers.lens_kl[layer]), 2),
            figure(mean(&|p| p.knockout_at(layer).kl), 4),
            figure(cut(Anchor::None), 4),
            figure(cut(Anchor::Bos), 4),
        ]
    });
    output::table(&header, rows.collect())
}

/// What each cutoff costs, one row per cutoff: distributions, texts and answers, with and without position 0 as anchor.
fn cutoff_table(prompts: &[&PromptSummary]) -> String {
    let header = [
        "cutoff",
        "KL+bos",
        "same top+bos",
        "texts+bos",
        "answers+bos",
        "KL",
        "same top",
        "texts",
        "answers",
    ];
    let layers = prompts.first().map_or(0, |p| p.layers.bos_mass.len());
    let mean = |figure: &dyn Fn(&PromptSummary) -> f64| mean(prompts.iter().map(|prompt| figure(prompt)));
    let kept = Anchor::ALL.map(|anchor| KeptByCutoff::new(prompts, anchor, layers));
    let shown =
        |kept: Kept| if kept.of == 0 { "–".to_owned() } else { format!("{}/{}", kept.kept, kept.of) };
    let rows = (1..=layers).map(|cutoff| {
        let mut row = vec![cutoff.to_string()];
        for (anchor, kept) in Anchor::ALL.into_iter().zip(&kept) {
            row.extend([
                figure(mean(&|p| p.at(anchor, cutoff).kl), 4),
                figure(mean(&|p| p.at(anchor, cutoff).top1), 3),
                shown(kept.texts_at(cutoff)),
                shown(kept.answers_at(cutoff)),
            ]);
        }
        row
    });
    format!("{}\n{CUTOFF_LEGEND}", output::table(&header, rows.collect()))
}

const CUTOFF_LEGEND: &str = "\
cutoff c: the prompt keeps KV in layers 0 … c−1 only (+bos: position 0 everywhere); KL in nats, same top: share of steps
texts: prompts whose greedy text is the full model's, token by token; answers: of those that the full model gives, how many are kept";
