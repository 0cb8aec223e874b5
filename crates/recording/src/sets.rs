//! Searches the sets of layers or KV heads that may forget the prompt, on some prompts of a run, and judges them on the others.

use crate::recorded_with;
use layerscope_cutoff::Answer;
use layerscope_cutoff::answers::judge_sets;
use layerscope_cutoff::cost::{CostModel, Workload};
use layerscope_cutoff::search::{SearchOptions, Shown, price, search};
use layerscope_diagnostics::probe::{self, Decoding, ProbedRun};
use layerscope_diagnostics::record::{Anchor, Divergence, PromptSummary};
use layerscope_diagnostics::reference_distributions::StepComparison;
use layerscope_diagnostics::run::{JudgedSet, Run, SearchUnits, SetSearch, SetsWriter};
use layerscope_diagnostics::summary::mean_upper_bound95;
use layerscope_engine::{Error, Interrupt, Model, Policy, Result, check_interrupt, check_memory};
use std::time::Instant;

/// Most prompts that a search looks at unless told otherwise.
const MOST_SEARCHED: usize = 24;

/// Progress of a search.
#[derive(Debug, Clone, Copy)]
pub enum SetsEvent<'a> {
    /// A prompt of the search is run: its number from 0, and how many there are.
    Running {
        /// Prompts done.
        done: usize,
        /// Prompts of the search.
        all: usize,
    },
    /// So many of the units are dropped.
    Dropped {
        /// Units dropped.
        done: usize,
        /// Units that there are.
        all: usize,
        /// Mean KL then, nats.
        kl: f64,
    },
    /// The sets are judged on a prompt.
    Judging {
        /// Its id.
        id: &'a str,
        /// Prompts done.
        done: usize,
        /// Prompts that they are judged on.
        all: usize,
    },
}

/// Searches sets with a run's model, judges them, and adds both to the run folder. `prompts` of the run's prompts are searched on,
/// where nothing is said two thirds of them and at most 24; the others judged on. All are both where there are no more.
///
/// # Errors
/// [`Error::Input`] if the model or its precision is not the run's, nothing is recorded, or memory does not suffice;
/// [`Error::Interrupted`]; [`Error::Failure`] if the folder cannot be written.
pub fn search_sets(
    run: &Run,
    model: &Model,
    options: &SearchOptions,
    prompts: Option<usize>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(SetsEvent<'_>),
) -> Result<SetSearch> {
    recorded_with::check(run, model)?;
    let mut writer = SetsWriter::open(run)?;
    let start = Instant::now();
    let summaries: Vec<PromptSummary> = run.prompts().collect::<Result<_>>()?;
    if summaries.is_empty() {
        return Err(Error::input(format!(
            "{} holds no recorded prompt to search with; record some with layerscope record",
            run.folder().display()
        )));
    }
    let standard = (2 * summaries.len()).div_ceil(3).min(MOST_SEARCHED);
    let (searched, judged) = split(&summaries, prompts.unwrap_or(standard).max(1));
    check_need(model, &searched, options)?;
    let mut runs = vec![];
    for prompt in &searched {
        observe(SetsEvent::Running { done: runs.len(), all: searched.len() });
        runs.push(run_again(model, prompt, interrupt)?);
    }
    let layers = model.config().layers;
    let units = options.cutoff.unwrap_or(layers) * if options.heads { model.config().kv_heads } else { 1 };
    let references: Vec<&ProbedRun> = runs.iter().collect();
    let (shown, found) = search(&model.decoder, &references, options, interrupt, &mut |done, kl| {
        observe(SetsEvent::Dropped { done, all: units, kl });
    })?;
    drop(references);
    drop(runs);
    let mut sets = vec![(shown, found.before)];
    for dropped in &found.dropped {
        let before = &sets[sets.len() - 1].0;
        sets.push((before.without(dropped.unit), dropped.divergence));
    }
    // Beyond the worst KL, nothing is judged.
    sets.retain(|(_, divergence)| divergence.kl <= options.worst_kl);
    let judgement = judge(model, &sets, &judged, interrupt, observe)?;
    let kept = kv_kept(run, model, &summaries)?;
    let found = SetSearch {
        units: if options.heads { SearchUnits::Heads } else { SearchUnits::Layers },
        order: options.order,
        first: options.ends.first,
        last: options.ends.last,
        cutoff: options.cutoff.unwrap_or(layers),
        searched: searched.iter().map(|prompt| prompt.id.clone()).collect(),
        judged: judged.iter().map(|prompt| prompt.id.clone()).collect(),
        tried: found.tried,
        cheaper_than_before: found.cheaper_than_before,
        seconds: start.elapsed().as_secs_f64(),
        sets: sets
            .iter()
            .enumerate()
            .map(|(index, (shown, divergence))| {
                judgement.of(index, &shown.policy_name(), divergence.kl, &kept)
            })
            .collect::<Result<_>>()?,
    };
    writer.put(found.clone())?;
    Ok(found)
}

/// Prompts for the search and the others; all of them where that leaves none. Those for the search are spread over categories, and
/// evenly over each, since prompts beside each other in a file are often alike in length.
fn split(prompts: &[PromptSummary], count: usize) -> (Vec<&PromptSummary>, Vec<&PromptSummary>) {
    let mut categories: Vec<(&str, Vec<usize>)> = vec![];
    for (index, prompt) in prompts.iter().enumerate() {
        match categories.iter_mut().find(|(category, _)| *category == prompt.category) {
            Some((_, members)) => members.push(index),
            None => categories.push((&prompt.category, vec![index])),
        }
    }
    let mut wanted = vec![0; categories.len()];
    let mut left = count.min(prompts.len());
    while left > 0 {
        for ((_, members), wanted) in categories.iter().zip(&mut wanted) {
            if *wanted < members.len() && left > 0 {
                *wanted += 1;
                left -= 1;
            }
        }
    }
    let evenly = |(members, wanted): (&Vec<usize>, usize)| -> Vec<usize> {
        (0..wanted).map(|index| members[(2 * index + 1) * members.len() / (2 * wanted)]).collect()
    };
    let members = categories.iter().map(|(_, members)| members);
    let chosen: Vec<usize> = members.zip(wanted).flat_map(evenly).collect();
    let of = |searched: bool| -> Vec<&PromptSummary> {
        let is_chosen = |index: &usize| chosen.contains(index) == searched;
        (0..prompts.len()).filter(is_chosen).map(|index| &prompts[index]).collect()
    };
    let (searched, judged) = (of(true), of(false));
    let judged = if judged.is_empty() { searched.clone() } else { judged };
    (searched, judged)
}

/// A recorded prompt, along its recorded text.
fn run_again(model: &Model, prompt: &PromptSummary, interrupt: &Interrupt) -> Result<ProbedRun> {
    let (tokens, text) = (&prompt.prompt_tokens, Decoding::Given(&prompt.generated));
    let run = probe::run(&model.reference()?, tokens, &text, interrupt, &mut |_| {})?;
    // As it was recorded: greedily, and without ending the text.
    let excluded = if prompt.answer_given { &[][..] } else { model.tokenizer.eos_ids() };
    let distributions = run.distributions.excluding(excluded);
    let run = ProbedRun { distributions, greedy: !prompt.answer_given, ..run };
    match model.adapter {
        Some(_) => probe::run_adapted(&model.decoder, tokens, run, interrupt, &mut |_| {}),
        None => Ok(run),
    }
}

/// That the prompts of a search fit into memory together.
fn check_need(model: &Model, searched: &[&PromptSummary], options: &SearchOptions) -> Result<()> {
    let config = model.config();
    let tokens: usize = searched.iter().map(|prompt| prompt.p + prompt.steps).sum();
    let steps: usize = searched.iter().map(|prompt| prompt.steps).sum();
    let streams = steps.saturating_mul(config.layers + 1).saturating_mul(2 + options.at_once);
    let need = model
        .decoder
        .sequence_need(&vec![tokens; config.layers])
        .with_probes(config, tokens, steps)
        .with_residuals(config, streams);
    let name = format!("a search over {} prompts", searched.len());
    check_memory(&name, &need, model.decoder.device()).map_err(|error| match error {
        Error::OutOfMemory { needed, free, sentence } => {
            let sentence = format!("{sentence}; a search over fewer prompts takes less (--search-prompts 4)");
            Error::OutOfMemory { needed, free, sentence }
        }
        other => other,
    })
}

/// What sets come to on the prompts that they are judged on.
struct Judgement {
    /// `[prompt][set]`.
    divergences: Vec<Vec<Divergence>>,
    /// Prompts with an unchanged text under each set, and those of which that is known.
    unchanged: (Vec<usize>, usize),
    /// Prompts that keep their answer under each set, and those that have one.
    answered: (Vec<usize>, usize),
}

fn judge(
    model: &Model,
    sets: &[(Shown, Divergence)],
    judged: &[&PromptSummary],
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(SetsEvent<'_>),
) -> Result<Judgement> {
    let shown: Vec<Shown> = sets.iter().map(|(shown, _)| shown.clone()).collect();
    let mut judgement = Judgement {
        divergences: vec![],
        unchanged: (vec![0; sets.len()], 0),
        answered: (vec![0; sets.len()], 0),
    };
    for (done, prompt) in judged.iter().enumerate() {
        check_interrupt(interrupt)?;
        observe(SetsEvent::Judging { id: &prompt.id, done, all: judged.len() });
        let mut run = run_again(model, prompt, interrupt)?;
        let priced = price(&model.decoder, &run, &shown, interrupt)?;
        if run.greedy {
            let full = choices(model, &run)?;
            judgement.unchanged.1 += 1;
            for (count, steps) in judgement.unchanged.0.iter_mut().zip(&priced) {
                let same = steps.iter().map(|step| step.choice).eq(full.iter().copied());
                *count += usize::from(same);
            }
        }
        let layers = model.config().layers;
        let answered = prompt.text_at(Anchor::Bos, layers).answered == Some(true);
        if let (Some(text), true, Some(&last)) = (&prompt.expected, answered, prompt.prompt_tokens.last()) {
            let most_likely: Vec<Vec<u32>> =
                priced.iter().map(|steps| steps.iter().map(|step| step.argmax).collect()).collect();
            let texts: Vec<(&Shown, &[u32])> =
                shown.iter().zip(&most_likely).map(|(shown, likely)| (shown, &likely[..])).collect();
            let answer = Answer { text, max_new_tokens: prompt.steps };
            let kept = judge_sets(model, &mut run, last, &texts, &answer, interrupt, &mut |_, _| {})?;
            judgement.answered.1 += 1;
            for (count, kept) in judgement.answered.0.iter_mut().zip(kept) {
                *count += usize::from(kept);
            }
        }
        judgement.divergences.push(priced.iter().map(|steps| StepComparison::mean(steps)).collect());
    }
    Ok(judgement)
}

/// The tokens with which the full model's greedy text goes on at each step. Where the weights are quantised these need not all be
/// the recorded ones, which were generated in other arithmetic.
fn choices(model: &Model, run: &ProbedRun) -> Result<Vec<u32>> {
    if run.refers_to_another {
        return Ok(run.continuation.clone());
    }
    let compared = run.distributions.compare(&model.decoder, &run.residuals[model.config().layers])?;
    Ok(compared.iter().map(|step| step.choice).collect())
}

impl Judgement {
    fn of(
        &self,
        index: usize,
        policy: &str,
        kl_searched: f64,
        kv_kept: &dyn Fn(&str) -> Result<f64>,
    ) -> Result<JudgedSet> {
        let divergences: Vec<Divergence> = self.divergences.iter().map(|sets| sets[index]).collect();
        let kl: Vec<[f64; 1]> = divergences.iter().map(|divergence| [divergence.kl]).collect();
        let rows: Vec<&[f64]> = kl.iter().map(|row| &row[..]).collect();
        Ok(JudgedSet {
            policy: policy.to_owned(),
            kv_kept: kv_kept(policy)?,
            kl_searched,
            judged: Divergence::mean(&divergences),
            kl_upper95: mean_upper_bound95(&rows).first().copied().unwrap_or(f64::NAN),
            texts_unchanged: self.unchanged.0[index],
            texts: self.unchanged.1,
            answers_kept: self.answered.0[index],
            answers: self.answered.1,
        })
    }
}

/// Share of the KV bytes that a policy keeps at the lengths of a run's prompts.
fn kv_kept<'a>(
    run: &'a Run,
    model: &'a Model,
    prompts: &[PromptSummary],
) -> Result<impl Fn(&str) -> Result<f64> + use<'a>> {
    let cost = CostModel::new(&run.manifest().model, run.manifest().kv_element_bytes);
    let workloads: Vec<Workload> =
        prompts.iter().map(|prompt| Workload::new(prompt.p, prompt.steps)).collect();
    let bytes = move |policy: &Policy| -> f64 {
        workloads.iter().map(|workload| cost.cost(policy, *workload).kv_bytes as f64).sum()
    };
    let full = bytes(&Policy::full(model.config().layers));
    Ok(move |name: &str| Ok(bytes(&Policy::parse_for(name, model.config())?) / full))
}
