//! The two runs without a patch, and what is kept of them.

use super::question::Plan;
use super::{PatchDirection, PatchEvent, PatchQuestion, PatchSite};
use crate::kept::{Pieces, joined, keep_rows};
use layerscope_engine::{Decoder, HookPoint, Hooks, Interrupt, Policy, Result, Session, Site, Tensor};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Both runs. Rows are those at the positions from [`Plan::from`] on.
pub(super) struct Runs {
    /// The run that is patched: its keys and values.
    pub(super) base: Session,
    /// Its residual streams `[rows, d]` at the entrance of each layer 0 … L; `None` where no patch starts there.
    pub(super) streams: Vec<Option<Tensor>>,
    /// The source's activations at each layer, `[rows, d]` or `[rows, H, head_dim]`; `None` at layers that are not patched.
    pub(super) sources: Vec<Option<Tensor>>,
    /// Logits `[V]` after the last position, of the clean and of the corrupted run.
    pub(super) logits: [Vec<f32>; 2],
}

impl Runs {
    /// # Errors
    /// [`layerscope_engine::Error::Interrupted`], or whatever fails beneath.
    pub(super) fn of(
        decoder: &Arc<Decoder>,
        question: &PatchQuestion<'_>,
        plan: &Plan,
        interrupt: &Interrupt,
        observe: &mut dyn FnMut(PatchEvent),
    ) -> Result<Self> {
        let (base, source) = match question.direction {
            PatchDirection::Denoising => (question.corrupted, question.clean),
            PatchDirection::Noising => (question.clean, question.corrupted),
        };
        let positions = plan.from..plan.len;
        let all = 2 * plan.len;

        let kept: Pieces = RefCell::new(vec![vec![]; plan.depth]);
        let mut hooks = Hooks::none();
        for &layer in &plan.layers {
            let point = HookPoint { layer, site: hooked(question.site) };
            keep_rows(&mut hooks, point, positions.clone(), &kept, layer);
        }
        let (_, source_logits) =
            run(decoder, source, hooks, interrupt, &mut |done| observe(PatchEvent::Tokens { done, all }))?;
        let sources = joined(kept)?;

        let kept: Pieces = RefCell::new(vec![vec![]; plan.depth + 1]);
        let mut hooks = Hooks::none();
        for entrance in entrances(question.site, plan) {
            let point = match entrance.checked_sub(1) {
                Some(last) if entrance == plan.depth => HookPoint { layer: last, site: Site::ResidPost },
                _ => HookPoint { layer: entrance, site: Site::ResidPre },
            };
            keep_rows(&mut hooks, point, positions.clone(), &kept, entrance);
        }
        let (base, base_logits) = run(decoder, base, hooks, interrupt, &mut |done| {
            observe(PatchEvent::Tokens { done: plan.len + done, all });
        })?;
        let streams = joined(kept)?;

        let logits = match question.direction {
            PatchDirection::Denoising => [source_logits, base_logits],
            PatchDirection::Noising => [base_logits, source_logits],
        };
        Ok(Self { base, streams, sources, logits })
    }
}

/// A prompt through the full model, and the logits after its last token.
fn run(
    decoder: &Arc<Decoder>,
    prompt: &[u32],
    mut hooks: Hooks<'_>,
    interrupt: &Interrupt,
    progress: &mut dyn FnMut(usize),
) -> Result<(Session, Vec<f32>)> {
    let full = Policy::full(decoder.config().layers);
    let mut session = Session::resumable(decoder, full, prompt.len(), 1)?;
    let logits = session.prefill(prompt, &mut hooks, interrupt, progress)?.to_vec()?;
    Ok((session, logits))
}

/// Where the source's activation is read.
pub(super) fn hooked(site: PatchSite) -> Site {
    match site {
        PatchSite::ResidPre => Site::ResidPre,
        PatchSite::AttnOut => Site::AttentionOutput,
        PatchSite::MlpOut => Site::MlpOutput,
        PatchSite::Head => Site::WeightedValues,
    }
}

/// Entrances of layers at which rows of the base are needed: of the patched layers, and where patched rows go on beside others.
fn entrances(site: PatchSite, plan: &Plan) -> BTreeSet<usize> {
    let go_on = plan.layers.iter().map(|&layer| Plan::entrance(site, layer));
    let go_on = go_on.filter(|_| site != PatchSite::Head);
    plan.layers.iter().copied().chain(go_on).collect()
}
