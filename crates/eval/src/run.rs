//! Runs items under policies.

use crate::likelihood::{Likelihood, likelihoods};
use crate::results::{Evaluation, ItemResult};
use crate::task::{Item, Question};
use layerscope_engine::{
    Error, GenerationEvent, GenerationSettings, Interrupt, Model, Policy, PromptText, Result, Sampling,
    Tokenizer, check_interrupt, generate,
};
use std::collections::{BTreeMap, HashSet};
use std::ops::ControlFlow;

/// What happens.
#[derive(Debug)]
pub enum Event<'a> {
    /// An item begins.
    Started {
        /// Its id.
        id: &'a str,
        /// The policy.
        policy: &'a str,
    },
    /// It is done, or was before.
    Finished,
    /// It cannot be run.
    LeftOut {
        /// Its id.
        id: &'a str,
        /// Why.
        reason: String,
    },
}

/// Runs each item under each policy that has not run, all policies of an item one after the other. An item that some policy cannot run
/// is left out; an interrupt ends it early, and what is done is kept. `save` is called with the results again and again.
///
/// # Errors
/// [`Error::Interrupted`], or whatever fails beneath but bad items.
pub fn evaluate(
    model: &Model,
    items: &[Item],
    policies: &[Policy],
    evaluation: &mut Evaluation,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(Event<'_>),
    save: &mut dyn FnMut(&Evaluation) -> Result<()>,
) -> Result<()> {
    let done: HashSet<(String, String)> =
        evaluation.results.iter().map(|result| (result.policy.clone(), result.id.clone())).collect();
    for item in items {
        for policy in policies {
            let name = policy.to_string();
            if done.contains(&(name.clone(), item.id.clone())) {
                observe(Event::Finished);
                continue;
            }
            check_interrupt(interrupt)?;
            observe(Event::Started { id: &item.id, policy: &name });
            match run(model, item, policy, &evaluation.settings, interrupt) {
                Ok(result) => evaluation.results.push(result),
                Err(error) if error.kind() == layerscope_engine::ErrorKind::Input => {
                    observe(Event::LeftOut { id: &item.id, reason: error.to_string() });
                }
                Err(error) => return Err(error),
            }
            observe(Event::Finished);
            save(evaluation)?;
        }
    }
    Ok(())
}

fn run(
    model: &Model,
    item: &Item,
    policy: &Policy,
    settings: &crate::Settings,
    interrupt: &Interrupt,
) -> Result<ItemResult> {
    let tokenizer = &model.tokenizer;
    let empty = |prompt_tokens: usize| ItemResult {
        id: item.id.clone(),
        category: item.category.clone(),
        policy: policy.to_string(),
        prompt_tokens,
        scores: BTreeMap::new(),
        text: None,
        choices: vec![],
    };
    match &item.question {
        Question::Choice { choices, right } => {
            let encoded = choices.iter().map(|choice| split(tokenizer, &item.content, choice, settings.raw));
            let encoded: Vec<(Vec<u32>, Vec<u32>)> = encoded.collect::<Result<_>>()?;
            let mut found: Vec<Likelihood> = vec![];
            // Choices that move the prompt's last token, by spaces at its end, have prompts of their own.
            for same in encoded.chunk_by(|a, b| a.0 == b.0) {
                let continuations: Vec<Vec<u32>> = same.iter().map(|(_, choice)| choice.clone()).collect();
                found.extend(likelihoods(model, &same[0].0, &continuations, policy, interrupt)?);
            }
            let best = |figure: &dyn Fn(usize) -> f64| {
                (0..choices.len())
                    .reduce(|best, other| if figure(other) > figure(best) { other } else { best })
            };
            let is_right = |best: Option<usize>| if best == Some(*right) { 1.0 } else { 0.0 };
            let plain = best(&|index| found[index].log_likelihood);
            let by_length = best(&|index| {
                found[index].log_likelihood / choices[index].trim().chars().count().max(1) as f64
            });
            let scores = [("acc".to_owned(), is_right(plain)), ("acc_norm".to_owned(), is_right(by_length))];
            let tokens = encoded.first().map_or(0, |(prompt, _)| prompt.len());
            Ok(ItemResult { scores: scores.into(), choices: found, ..empty(tokens) })
        }
        Question::Text { answers, metric, stop, max_new_tokens } => {
            let prompt = prompt_tokens(tokenizer, &item.content, settings.raw)?;
            let most = max_new_tokens.unwrap_or(settings.max_new_tokens);
            let text = text(model, &prompt, policy, stop, most, interrupt)?;
            let score = (metric.name().to_owned(), metric.score(&text, answers));
            Ok(ItemResult { scores: [score].into(), text: Some(text), ..empty(prompt.len()) })
        }
    }
}

/// Greedy, up to a stop text.
fn text(
    model: &Model,
    prompt: &[u32],
    policy: &Policy,
    stop: &[String],
    max_new_tokens: usize,
    interrupt: &Interrupt,
) -> Result<String> {
    let settings = GenerationSettings {
        max_new_tokens,
        choice: Sampling::Greedy.into(),
        stop_tokens: model.tokenizer.eos_ids(),
        statistics: false,
        rounded: false,
    };
    let end = |text: &str| stop.iter().filter_map(|stop| text.find(stop.as_str())).min();
    let mut tokens = vec![];
    let mut failed = None;
    generate(&model.decoder, prompt, policy.clone(), &settings, interrupt, &mut |event| {
        let GenerationEvent::Token(seen) = event else { return ControlFlow::Continue(()) };
        tokens.push(seen.token);
        if stop.is_empty() {
            return ControlFlow::Continue(());
        }
        match model.tokenizer.decode_skipping_special(&tokens) {
            Ok(text) if end(&text).is_none() => ControlFlow::Continue(()),
            Ok(_) => ControlFlow::Break(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        }
    })?;
    // An interrupt while decoding ends the text early, which is then no answer.
    check_interrupt(interrupt)?;
    if let Some(error) = failed {
        return Err(error);
    }
    let mut text = model.tokenizer.decode_skipping_special(&tokens)?;
    text.truncate(end(&text).unwrap_or(text.len()));
    Ok(text)
}

fn prompt_tokens(tokenizer: &Tokenizer, content: &PromptText, raw: bool) -> Result<Vec<u32>> {
    match (raw, content) {
        (true, PromptText::Plain(text)) => Ok(tokenizer.with_bos(tokenizer.encode_fitting(text)?)),
        _ => tokenizer.encode_prompt(content),
    }
}

/// The tokens of a prompt and of a choice behind it. Text is tokenized as a whole and cut where the prompt alone ends, spaces at the
/// prompt's end counted to the choice, as lm-evaluation-harness does; behind a chat template's prompt a choice is tokenized alone.
///
/// # Errors
/// [`Error::Input`] where the prompt has no tokens.
pub fn split(
    tokenizer: &Tokenizer,
    content: &PromptText,
    choice: &str,
    raw: bool,
) -> Result<(Vec<u32>, Vec<u32>)> {
    let text = match content {
        PromptText::Plain(text) if raw || !tokenizer.has_chat_template() => text,
        _ => return Ok((tokenizer.encode_prompt(content)?, tokenizer.encode_fitting(choice)?)),
    };
    let context = text.trim_end();
    let prompt = tokenizer.encode_fitting(context)?;
    let whole = tokenizer.encode_fitting(&format!("{text}{choice}"))?;
    if prompt.is_empty() && !tokenizer.adds_bos() {
        return Err(Error::input("the prompt has no tokens before its choices; give it some text"));
    }
    let behind = whole.get(prompt.len()..).unwrap_or_default().to_vec();
    Ok((tokenizer.with_bos(whole[..prompt.len().min(whole.len())].to_vec()), behind))
}
