//! Patching between two recorded prompts of a run; the map is kept in the run folder.

use crate::recorded_with;
use layerscope_cutoff::patching::{PatchEvent, PatchQuestion, patch};
use layerscope_diagnostics::patching::{PatchDirection, PatchMap, PatchMetric, PatchSite};
use layerscope_diagnostics::run::{PatchesWriter, Run};
use layerscope_engine::{Error, Interrupt, Model, Result, Tokenizer};
use serde::{Deserialize, Serialize};

/// What is asked of two recorded prompts, or of two texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchRequest {
    /// What is replaced.
    pub site: PatchSite,
    /// In which run.
    pub direction: PatchDirection,
    /// What the effect is measured by; the logit difference where a token is given, else KL.
    pub metric: Option<PatchMetric>,
    /// The answer, one token as it follows the prompt; the most likely next token of the clean run where none is given.
    pub answer: Option<String>,
    /// The wrong answer; the most likely next token of the corrupted run where none is given.
    pub wrong: Option<String>,
    /// Layers; all where none are given.
    pub layers: Option<Vec<usize>>,
    /// Positions; all where none are given. A head is replaced at all of them at once.
    pub positions: Option<Vec<usize>>,
}

/// A map, and whether the run folder has it now.
#[derive(Debug)]
pub struct KeptPatches {
    /// The map.
    pub map: PatchMap,
    /// False where the folder has an earlier map of the same question of which more is computed.
    pub kept: bool,
}

/// Patches between two recorded prompts, `[clean, corrupted]`, and adds the map to the run folder; of an interrupted one, what is done.
/// It replaces an earlier map of the same question, unless more of that is computed.
///
/// # Errors
/// [`Error::Input`] if the model, its precision or its adapter is not the run's, there is no such prompt, or as [`patch`];
/// [`Error::Interrupted`] where no cell is done; [`Error::Failure`] if the folder cannot be written.
pub fn patch_prompts(
    run: &Run,
    model: &Model,
    ids: [&str; 2],
    request: &PatchRequest,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(PatchEvent),
) -> Result<KeptPatches> {
    recorded_with::check(run, model)?;
    let [clean, corrupted] = ids.map(|id| run.prompt(id).map(|prompt| prompt.prompt_tokens));
    let tokens = [clean?, corrupted?];
    // Before what may take minutes.
    drop(PatchesWriter::open(run)?);
    let mut map = patch_tokens(model, [&tokens[0], &tokens[1]], request, interrupt, observe)?;
    [map.clean.id, map.corrupted.id] = ids.map(str::to_owned);
    let kept = PatchesWriter::open(run)?.put(map.clone())?;
    Ok(KeptPatches { map, kept })
}

/// Patches between two prompts of token ids, `[clean, corrupted]`.
///
/// # Errors
/// As [`patch`]; [`Error::Input`] where an answer is not one token.
pub fn patch_tokens(
    model: &Model,
    [clean, corrupted]: [&[u32]; 2],
    request: &PatchRequest,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(PatchEvent),
) -> Result<PatchMap> {
    let Model { tokenizer, decoder, .. } = model;
    let answer = |name, text: &Option<String>| {
        text.as_deref().map(|text| one_token(name, text, tokenizer)).transpose()
    };
    let question = PatchQuestion {
        clean,
        corrupted,
        site: request.site,
        direction: request.direction,
        metric: request.metric,
        answer: answer("answer", &request.answer)?,
        wrong: answer("wrong answer", &request.wrong)?,
        layers: request.layers.as_deref(),
        positions: request.positions.as_deref(),
    };
    patch(decoder, &question, &|id| tokenizer.token_text(id), interrupt, observe)
}

/// The token that a text is.
fn one_token(name: &str, text: &str, tokenizer: &Tokenizer) -> Result<u32> {
    match tokenizer.encode_fitting(text)?[..] {
        [token] => Ok(token),
        ref tokens => {
            let shown: Vec<String> =
                tokens.iter().take(8).map(|&id| format!("{:?}", tokenizer.token_text(id))).collect();
            Err(Error::input(format!(
                "the {name} {text:?} is {} tokens ({}), not one; give one token as it follows the prompt, with its leading space if it \
                 has one",
                tokens.len(),
                shown.join(", ")
            )))
        }
    }
}
