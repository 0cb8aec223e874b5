//! `layerscope patch`: activations of one prompt's run in the run of another.

mod output;

use super::chosen;
use crate::args::{ModelArguments, PatchArguments, Weights};
use crate::interrupt::heeded;
use crate::progress::PatchBar;
use crate::{models, terminal};
use layerscope_cutoff::patching::{PatchQuestion, patch};
use layerscope_diagnostics::patching::{PatchDirection, PatchMap};
use layerscope_diagnostics::run::{MANIFEST, Run};
use layerscope_engine::{Error, Model, Policy, PromptText, Result, Tokenizer};
use layerscope_recording::patching::recorded_pair;
use output::Destination;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(arguments: &PatchArguments) -> Result<ExitCode> {
    let destination = arguments.out.as_deref().map(Destination::of).transpose()?;
    let pair = match Path::new(&arguments.model).join(MANIFEST).is_file() {
        true => Pair::recorded(arguments)?,
        false => Pair::of_texts(arguments)?,
    };
    let map = pair.patched(arguments)?;
    if let Some(destination) = &destination {
        destination.write(&map, &pair.model)?;
    }
    output::print(&map, &pair.model, arguments)?;
    if map.is_complete() {
        return Ok(ExitCode::SUCCESS);
    }
    terminal::say(&format!("layerscope: interrupted; {}", output::done(&map)));
    Ok(ExitCode::from(Error::Interrupted.exit_code()))
}

/// Two prompts and the model that runs them.
struct Pair {
    model: Model,
    /// Names of the clean and of the corrupted prompt.
    ids: [String; 2],
    /// Their tokens.
    tokens: [Vec<u32>; 2],
}

impl Pair {
    fn of_texts(arguments: &PatchArguments) -> Result<Self> {
        if arguments.run_model.is_some() {
            return Err(Error::input(format!(
                "--model is for a run folder, which {} is not (it has no {MANIFEST}); leave it out",
                arguments.model
            )));
        }
        let device = models::device(arguments.device)?;
        let weights = arguments.weights.unwrap_or(Weights::Native);
        let opened = models::open(&ModelArguments {
            model: arguments.model.clone(),
            weights,
            architecture: arguments.architecture.clone(),
            device: arguments.device,
        })?;
        let tokens = |name, text| prompt_tokens(name, text, arguments.raw, &opened.tokenizer);
        let tokens = [tokens("clean", &arguments.clean)?, tokens("corrupted", &arguments.corrupted)?];
        let len = tokens[0].len();
        opened.config.check_sequence(len, 1)?;
        let kept = Policy::full(opened.config.layers).in_memory(len, 1, &device);
        let need = opened.memory_need(weights.into(), &device, &kept);
        let model = models::load(opened, weights, &device, &need)?;
        Ok(Self { model, ids: ["clean", "corrupted"].map(str::to_owned), tokens })
    }

    fn recorded(arguments: &PatchArguments) -> Result<Self> {
        let given = [
            ("--raw", arguments.raw),
            ("--weights", arguments.weights.is_some()),
            ("--architecture", arguments.architecture.is_some()),
        ];
        if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
            return Err(Error::input(format!(
                "{} is a run folder, whose prompts and model are as they were recorded; leave {name} out",
                arguments.model
            )));
        }
        let run = Run::open(Path::new(&arguments.model))?;
        let ids = [arguments.clean.clone(), arguments.corrupted.clone()];
        // Before the model is loaded.
        for id in &ids {
            run.prompt(id)?;
        }
        let model = models::of_run(&run, arguments.run_model.as_deref(), arguments.device)?;
        let tokens = recorded_pair(&run, &model, [&ids[0], &ids[1]])?;
        Ok(Self { model, ids, tokens })
    }

    fn patched(&self, arguments: &PatchArguments) -> Result<PatchMap> {
        let (Model { tokenizer, decoder, .. }, [clean, corrupted]) = (&self.model, &self.tokens);
        let answer = |name, text: &Option<String>| {
            text.as_deref().map(|text| one_token(name, text, tokenizer)).transpose()
        };
        let layers = arguments.layers.as_deref();
        let layers = layers.map(|text| chosen(text, decoder.config().layers, "layer")).transpose()?;
        let positions = arguments.positions.as_deref();
        let positions = positions.map(|text| chosen(text, clean.len(), "position")).transpose()?;
        let question = PatchQuestion {
            clean,
            corrupted,
            site: arguments.what,
            direction: match arguments.noising {
                true => PatchDirection::Noising,
                false => PatchDirection::Denoising,
            },
            metric: arguments.metric.map(Into::into),
            answer: answer("answer", &arguments.answer)?,
            wrong: answer("wrong", &arguments.wrong)?,
            layers: layers.as_deref(),
            positions: positions.as_deref(),
        };
        let bar = PatchBar::new();
        let token_text = |id| tokenizer.token_text(id);
        let map = heeded(|interrupt| {
            patch(decoder, &question, &token_text, interrupt, &mut |event| bar.observe(event))
        });
        bar.finish();
        let mut map = map?;
        [map.clean.id, map.corrupted.id] = self.ids.clone();
        Ok(map)
    }
}

fn prompt_tokens(name: &str, text: &str, raw: bool, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    if text.is_empty() {
        return Err(Error::input(format!("the {name} prompt is empty; give some text with --{name}")));
    }
    match raw {
        true => Ok(tokenizer.with_bos(tokenizer.encode_fitting(text)?)),
        false => tokenizer.encode_prompt(&PromptText::Plain(text.to_owned())),
    }
}

/// The token that a text is.
fn one_token(name: &str, text: &str, tokenizer: &Tokenizer) -> Result<u32> {
    match tokenizer.encode_fitting(text)?[..] {
        [token] => Ok(token),
        ref tokens => {
            let shown: Vec<String> =
                tokens.iter().take(8).map(|&id| format!("{:?}", tokenizer.token_text(id))).collect();
            Err(Error::input(format!(
                "--{name} {text:?} is {} tokens ({}), not one; give one token as it follows the prompt, with its leading space if it \
                 has one",
                tokens.len(),
                shown.join(", ")
            )))
        }
    }
}
