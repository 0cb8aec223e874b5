//! The recommendation ahead of everything else: the frontier from the largest cutoff down, of all prompts, until one fails.
//!
//! A cutoff qualifies only with all larger ones ([`layerscope_cutoff::recommend`]), so what lies below the largest that fails changes nothing,
//! unless it is undefined: then nothing is recommended from the run. The few cutoffs that are computed here are computed again with the rest.

use crate::RecordingEvent;
use crate::prompt::BegunPrompt;
use layerscope_cutoff::frontier::{CausalMap, Work};
use layerscope_cutoff::recommend::{Evidence, FrontierPoint, Options, Recommendation, headline, recommend};
use layerscope_diagnostics::run::Manifest;
use layerscope_engine::{Interrupt, Model, Result};

/// How many times the work of the runs the frontier must be. With less, the recommendation would come little earlier.
const LEAST_WORK: f64 = 2.0;

/// Prompts that run ahead at most: an interruption before the first is finished loses their runs.
const MOST_PROMPTS: usize = 256;

/// Cutoffs that are computed together: their rows share the reading of weights.
const AT_ONCE: usize = 2;

/// What a run will recommend by default.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ahead {
    /// The cutoff; `None` where full depth is to be kept.
    pub point: Option<FrontierPoint>,
    /// Layers L.
    pub layers: usize,
    /// Mean KL over prompts there, nats.
    pub kl: f64,
    /// Share of the KV bytes saved at the run's own lengths.
    pub kv_saved: f64,
}

impl Ahead {
    /// One line.
    pub fn headline(&self) -> String {
        let kl = self.point.map_or_else(String::new, |_| format!(", KL {:.4} nats", self.kl));
        headline(self.point, self.layers, self.kv_saved) + &kl
    }
}

/// Whether prompts of so many tokens are to run first: where the frontier is most of the work, and what all runs keep takes at most half of
/// the free memory.
///
/// # Errors
/// [`layerscope_engine::Error::Failure`] where the GPU fails.
pub(crate) fn is_worthwhile(model: &Model, lengths: &[usize], steps: usize, map: CausalMap) -> Result<bool> {
    let config = model.config();
    let work = Work::of(config, lengths, steps);
    // What an adapter was made for is recommended without all larger cutoffs.
    let known_late = model.adapter.is_some();
    if known_late || lengths.len() > MOST_PROMPTS || work.frontier(map, config) < LEAST_WORK * work.run {
        return Ok(false);
    }
    // Keys and values, those of texts under cutoffs, too; residual streams; distributions and their logits.
    let texts = 1 + AT_ONCE;
    let (tokens, rows): (usize, usize) = (lengths.iter().sum(), lengths.len() * steps);
    let need = model.decoder.sequence_need(&vec![tokens + texts * rows; config.layers]);
    let floats = rows * ((config.layers + 1) * config.hidden + 2 * config.vocab);
    let kept = need.total().saturating_add((size_of::<f32>() * floats) as u64);
    let free = model.decoder.device().free_memory()?;
    Ok(free.is_none_or(|free| kept <= free / 2))
}

/// What is recommended by default from all these prompts; `None` where nothing is.
///
/// # Errors
/// [`layerscope_engine::Error::Interrupted`], or whatever fails beneath.
pub(crate) fn recommended(
    model: &Model,
    prompts: &mut [BegunPrompt<'_>],
    manifest: &Manifest,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(RecordingEvent<'_>),
) -> Result<Option<Ahead>> {
    let (options, layers, all) = (Options::default(), model.config().layers, prompts.len());
    let summaries = prompts.iter().map(|prompt| prompt.summary(vec![], vec![]));
    let mut summaries = summaries.collect::<Result<Vec<_>>>()?;
    let mut lowest = layers;
    loop {
        let cutoffs = lowest.saturating_sub(AT_ONCE).max(1)..lowest;
        for (done, (prompt, summary)) in prompts.iter_mut().zip(&mut summaries).enumerate() {
            observe(RecordingEvent::LargestCutoffs { done, all });
            // Full depth is in every part.
            summary.frontier.retain(|row| row.cutoff < layers);
            summary.frontier.extend(prompt.part_of_frontier(options.anchor, cutoffs.clone(), interrupt)?);
        }
        lowest = cutoffs.start;
        // Where nothing can be recommended, the recording says why at its end.
        let Ok(recommended) = recommend(Evidence { manifest, prompts: &summaries }, options) else {
            return Ok(None);
        };
        if recommended.exact_l_cut > lowest || lowest <= 1 {
            let Recommendation { kl, kv_saved, .. } = recommended;
            return Ok(Some(Ahead { point: recommended.point(), layers, kl, kv_saved }));
        }
    }
}
