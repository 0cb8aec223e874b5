//! What is asked, and what it takes: checks, the cells that run, memory.

use super::{PatchDirection, PatchMetric, PatchSite};
use crate::copies::{groups_side_by_side, rows_at_once};
use layerscope_engine::{Decoder, Error, ModelConfig, Policy, Result, check_memory, logit_rows};

/// What is asked.
#[derive(Debug, Clone)]
pub struct PatchQuestion<'a> {
    /// Token ids of the clean prompt, length p.
    pub clean: &'a [u32],
    /// Token ids of the corrupted prompt, as many.
    pub corrupted: &'a [u32],
    /// What is replaced.
    pub site: PatchSite,
    /// In which run.
    pub direction: PatchDirection,
    /// What the effect is measured by; the logit difference where a token is given, else KL.
    pub metric: Option<PatchMetric>,
    /// The answer; the most likely next token of the clean run where none is given.
    pub answer: Option<u32>,
    /// The wrong answer; the most likely next token of the corrupted run where none is given.
    pub wrong: Option<u32>,
    /// Layers, in 0 … L−1; all where none are given.
    pub layers: Option<&'a [usize]>,
    /// Positions, in 0 … p−1; all where none are given. Each is a column; a head is replaced at all of them at once.
    pub positions: Option<&'a [usize]>,
}

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum PatchEvent {
    /// So many tokens of both prompts went through the model.
    Tokens {
        /// Tokens done.
        done: usize,
        /// Tokens of both prompts, 2p.
        all: usize,
    },
    /// So much of the patches is done, in rows that went through a layer.
    Rows {
        /// Rows done, counted once per layer.
        done: usize,
        /// All of them.
        all: usize,
    },
}

/// What is computed.
pub(super) struct Plan {
    /// Prompt tokens p.
    pub(super) len: usize,
    /// Layers L of the model.
    pub(super) depth: usize,
    /// Rows of the map, ascending.
    pub(super) layers: Vec<usize>,
    /// Columns of the map, ascending.
    pub(super) columns: Vec<usize>,
    /// Of heads, the positions where they are replaced, ascending; empty at other sites.
    pub(super) head_positions: Vec<usize>,
    /// The first position whose rows are kept: none before it differs between the prompts or is patched.
    pub(super) from: usize,
}

impl Plan {
    /// # Errors
    /// As [`super::patch`].
    pub(super) fn new(question: &PatchQuestion<'_>, config: &ModelConfig) -> Result<Self> {
        let len = question.clean.len();
        let differs = question.first_difference(config)?;
        let layers = chosen(question.layers, config.layers, "layer")?;
        let positions = chosen(question.positions, len, "position")?;
        let first = positions.iter().copied().find(|&position| position >= differs);
        let is_head = question.site == PatchSite::Head;
        Ok(Self {
            len,
            depth: config.layers,
            layers,
            columns: if is_head { (0..config.heads).collect() } else { positions.clone() },
            head_positions: if is_head { positions } else { vec![] },
            // Of positions before the first difference nothing runs; the last row is kept in any case.
            from: first.unwrap_or(len - 1),
        })
    }

    /// Rows that are kept of each layer.
    pub(super) fn kept(&self) -> usize {
        self.len - self.from
    }

    /// The layer at whose entrance the rows of a patched layer go on.
    pub(super) fn entrance(site: PatchSite, layer: usize) -> usize {
        if site == PatchSite::ResidPre { layer } else { layer + 1 }
    }

    pub(super) fn check_memory(&self, decoder: &Decoder) -> Result<()> {
        let config = decoder.config();
        let sequence = Policy::full(self.depth).capacity(self.len, 1);
        // Both runs' rows; copies on their way, with what is joined and cut of them.
        let rows = self.kept();
        let widest = config.hidden.max(config.query_width()).div_ceil(config.hidden);
        let streams = rows.saturating_mul(self.depth + 1).saturating_mul(1 + widest);
        let of_column = if self.head_positions.is_empty() { self.layers.len() } else { self.columns.len() };
        let cells = cells_at_once(decoder, rows).min(of_column);
        // Of later positions there are more cells at once.
        let copies =
            cells_at_once(decoder, 1).max(rows).min(of_column.saturating_mul(rows)).saturating_mul(4);
        let mut need =
            decoder.sequence_need(&sequence).with_residuals(config, streams.saturating_add(copies));
        // Of a copy that alone has more rows than go through the layers at once, and of groups side by side.
        let times = rows.div_ceil(rows_at_once(decoder.device())).max(1);
        let groups = groups_side_by_side(decoder.device()).min(cells);
        need.activations = need.activations.saturating_mul((times * groups) as u64);
        // The logits of cells and the clean distribution.
        let logits = (16 + logit_rows(config.vocab)).saturating_mul(config.vocab);
        need.probes = need.probes.saturating_add((logits * size_of::<f32>()) as u64);
        let name = format!("patching a prompt of {} tokens", self.len);
        check_memory(&name, &need, decoder.device()).map_err(|error| match error {
            Error::OutOfMemory { needed, free, sentence } => {
                let sentence = format!("{sentence}; later positions keep fewer rows (--positions last)");
                Error::OutOfMemory { needed, free, sentence }
            }
            other => other,
        })
    }
}

/// Cells of `rows` rows each that go up through the layers together, in groups of as many as go through a layer at once.
pub(super) fn cells_at_once(decoder: &Decoder, rows: usize) -> usize {
    const GROUPS: usize = 16;
    (GROUPS * rows_at_once(decoder.device()) / rows.max(1)).max(1)
}

impl PatchQuestion<'_> {
    /// The first position at which the prompts differ.
    fn first_difference(&self, config: &ModelConfig) -> Result<usize> {
        let (clean, corrupted) = (self.clean.len(), self.corrupted.len());
        if clean != corrupted {
            return Err(Error::input(format!(
                "the clean prompt has {clean} tokens and the corrupted one {corrupted}; patching needs as many in both: replace words \
                 by others of as many tokens"
            )));
        }
        config.check_sequence(clean, 1)?;
        let given = self.answer.iter().chain(&self.wrong);
        let tokens = self.clean.iter().chain(self.corrupted).chain(given);
        if let Some(id) = tokens.copied().find(|&id| id as usize >= config.vocab) {
            return Err(Error::input(format!(
                "the model has no token {id}; take the model that the prompts were recorded with"
            )));
        }
        let differs = self.clean.iter().zip(self.corrupted).position(|(clean, corrupted)| clean != corrupted);
        differs.ok_or_else(|| {
            Error::input("the clean and the corrupted prompt are the same tokens; change what the answer depends on in one")
        })
    }
}

/// What was chosen of `all`, ascending and each once.
fn chosen(wanted: Option<&[usize]>, all: usize, name: &str) -> Result<Vec<usize>> {
    let Some(wanted) = wanted else { return Ok((0..all).collect()) };
    let mut wanted = wanted.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    match wanted.last() {
        None => Err(Error::input(format!("no {name} is chosen; give some from 0 to {}", all - 1))),
        Some(&last) if last >= all => Err(Error::input(format!(
            "there is no {name} {last} to patch; give {name}s from 0 to {}",
            all - 1
        ))),
        Some(_) => Ok(wanted),
    }
}
