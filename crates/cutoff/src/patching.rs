//! Activation patching: what single activations of one prompt do in the run of another. (Causal tracing, Meng et al. 2022; patching
//! of heads, Wang et al. 2023; how to choose prompts, direction and metric, Heimersheim & Nanda 2024.)
//!
//! Two prompts of as many tokens differ in what the answer depends on. An activation of the one, the *source*, takes the place of the
//! same activation in the run of the other, the *base*, and the next token after the last position tells what it did.
//!
//! Each cell of the map is what a rerun of the base with a hook that replaces the activation would give. Rows before the patched
//! position, and all rows below the patched layer, are the base's: they are stored, and only the rows from the position on run, through
//! the layers above. Cells of one position have as many rows each, so they go up through the layers together as copies of rows
//! ([`crate::copies`]). Above the last attention only the last row matters. Where the source's activation has the base's bits,
//! nothing runs.
//!
//! A map of all L layers and of the m positions from the first token that differs runs about L·(L+1)/2 · m·(m+1)/2 rows through a
//! layer each.

mod measure;
mod question;
mod rerun;
mod runs;

pub use question::{PatchEvent, PatchQuestion};

use layerscope_diagnostics::patching::{PatchDirection, PatchMap, PatchMetric, PatchSite, PatchToken};
use layerscope_engine::{Decoder, Error, Interrupt, Result};
use measure::Measure;
use question::Plan;
use rerun::Rerun;
use runs::Runs;
use std::sync::Arc;

/// The map that a question asks for; `token_text` says how tokens are shown. Where the work is interrupted once both prompts have run, the map lacks the cells that are not
/// done: those of early positions, or heads of low layers.
///
/// # Errors
/// [`Error::Input`] where the prompts differ in length or not at all, on a layer, position or token that is not there, where the
/// metric is the logit difference and both answers are the same token, or where memory does not suffice; [`Error::UndefinedLogits`];
/// [`Error::Interrupted`] where no cell is done.
pub fn patch(
    decoder: &Arc<Decoder>,
    question: &PatchQuestion<'_>,
    token_text: &dyn Fn(u32) -> String,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(PatchEvent),
) -> Result<PatchMap> {
    let plan = Plan::new(question, decoder.config())?;
    plan.check_memory(decoder)?;
    let runs = Runs::of(decoder, question, &plan, interrupt, observe)?;
    let measure = Measure::new(question, &runs)?;
    let mut cells = vec![None; plan.layers.len() * plan.columns.len()];
    let mut rerun = Rerun::new(decoder, question, &plan, &runs, &measure, &mut cells);
    match rerun.all(interrupt, observe) {
        Err(Error::Interrupted) if cells.iter().any(Option::is_some) => {}
        done => done?,
    }
    let token = |id| PatchToken { id, text: token_text(id) };
    let [clean, corrupted] = measure.prompts(question, &token);
    Ok(PatchMap {
        site: question.site,
        direction: question.direction,
        metric: measure.metric,
        clean,
        corrupted,
        answer: token(measure.answer),
        wrong: token(measure.wrong),
        layers: plan.layers,
        columns: plan.columns,
        head_positions: plan.head_positions,
        cells,
    })
}
