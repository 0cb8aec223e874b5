//! Reads a prompt's figures as arrays and checks them against the model's sizes.

use layerscope_engine::Result;
use ndarray::Array2;

use super::manifest::ModelInfo;
use super::reader::Source;
use super::rows_read::PromptRows;
use super::schema::Table;
use crate::prompts::check_name;
use crate::record::{
    Anchor, AttentionMeans, Divergence, FrontierRow, KnockoutRow, LayerFigures, LensFigures, PromptSummary,
    StepFigures, TextUnderCutoff, Timings,
};

/// Reads a prompt; `source` returns the file of each table.
pub(super) fn prompt<'a>(
    id: &str,
    model: &ModelInfo,
    source: impl Fn(Table) -> Result<Source<'a>>,
) -> Result<PromptSummary> {
    let file = source(Table::Prompts)?;
    let rows = PromptRows::read(file.get(), id, &[])?;
    rows.expect_len(Some(1))?;
    let lacking = || rows.damaged("it has no row");
    let text = |name| rows.texts(name)?.pop().ok_or_else(lacking);
    let texts = |name| rows.text_lists(name)?.pop().ok_or_else(lacking);
    let token_ids = |name| rows.token_id_lists(name)?.pop().ok_or_else(lacking);
    let figure = |name| rows.figures(name)?.pop().ok_or_else(lacking);
    let count = |name| rows.counts(name)?.pop().ok_or_else(lacking);
    // Times are never undefined; only another program could write null.
    let seconds = |name| figure(name).map(|seconds: f64| if seconds.is_nan() { 0.0 } else { seconds });

    let (p, steps) = (count("p")?, count("steps")?);
    let category = text("category")?;
    check_name(&category).map_err(|problem| rows.damaged(format!("its category has {problem}")))?;
    let summary = PromptSummary {
        id: id.to_owned(),
        category,
        text: text("text")?,
        p,
        steps,
        prompt_tokens: token_ids("tokens")?,
        prompt_token_text: texts("token_text")?,
        generated: token_ids("generated")?,
        generated_token_text: texts("generated_token_text")?,
        generated_text: text("generated_text")?,
        answer_given: rows.bools("answer_given")?.pop().ok_or_else(lacking)?,
        expected: rows.optional_texts("expected")?.pop().ok_or_else(lacking)?,
        native_kl: Some(figure("native_kl")?).filter(|kl| !kl.is_nan()),
        timings: Timings {
            prefill_s: seconds("prefill_s")?,
            decode_s: seconds("decode_s")?,
            probe_s: seconds("probe_s")?,
            frontier_s: seconds("frontier_s")?,
        },
        layers: layers(&PromptRows::read(source(Table::Layers)?.get(), id, &[])?, model.layers)?,
        heads: heads(&PromptRows::read(source(Table::Heads)?.get(), id, &[])?, model)?,
        frontier: frontier(&PromptRows::read(source(Table::Frontier)?.get(), id, &[])?, model.layers, steps)?,
        knockout: knockout(&PromptRows::read(source(Table::Knockout)?.get(), id, &[])?, model)?,
    };
    let lengths = [summary.prompt_tokens.len(), summary.prompt_token_text.len()];
    let step_lengths = [summary.generated.len(), summary.generated_token_text.len()];
    if lengths != [p; 2] || step_lengths != [steps; 2] {
        return Err(rows.damaged("its tokens are not as many as p and steps say"));
    }
    Ok(summary)
}

fn layers(rows: &PromptRows<'_>, layers: usize) -> Result<LayerFigures> {
    let curve = layers.checked_add(1);
    rows.expect_len(curve)?;
    // Row r is layer r − 1. Files rewritten by other programs may have another order.
    let at = rows.ints("layer")?.into_iter();
    let at: Vec<Option<usize>> = at.map(|layer| usize::try_from(i64::from(layer) + 1).ok()).collect();
    let place = Places::new(rows, at, layers + 1, "layer")?;
    let whole = |name| rows.figures(name).map(|values| place.put(values));
    let without_embedding = |name| {
        whole(name).map(|mut values| {
            values.remove(0);
            values
        })
    };
    Ok(LayerFigures {
        bos_mass: without_embedding("bos_mass")?,
        prompt_mass: without_embedding("prompt_mass")?,
        decode_mass: without_embedding("decode_mass")?,
        prompt_entropy: without_embedding("prompt_entropy")?,
        prompt_entropy_nats: without_embedding("prompt_entropy_nats")?,
        selectivity: without_embedding("selectivity")?,
        lens_kl: without_embedding("lens_kl")?,
        lens_top1_agreement: without_embedding("lens_top1_agreement")?,
        curvature_prompt_deg: whole("curvature_prompt_deg")?,
        straightening_prompt_deg: whole("straightening_prompt_deg")?,
        curvature_decode_deg: whole("curvature_decode_deg")?,
        straightening_decode_deg: whole("straightening_decode_deg")?,
    })
}

fn heads(rows: &PromptRows<'_>, model: &ModelInfo) -> Result<AttentionMeans> {
    let grid = Grid::new(rows, model.layers, model.heads, "head")?;
    grid.attention(rows)
}

/// Figures per decode step.
pub(super) fn steps(rows: &PromptRows<'_>, layers: usize) -> Result<StepFigures> {
    let steps = rows.len() / layers;
    let grid = Grid::new(rows, layers, steps, "step")?;
    let first_row = |mut values: Vec<usize>| {
        values.truncate(steps);
        values
    };
    let mut token_ids = grid.place.put(rows.token_ids("token_id")?);
    token_ids.truncate(steps);
    Ok(StepFigures {
        positions: first_row(grid.place.put(rows.counts("position")?)),
        token_ids,
        attention: grid.attention(rows)?,
        lens: LensFigures {
            kl: grid.array(rows, rows.figures("lens_kl")?)?.mapv(|kl| kl as f32),
            top1: grid.array(rows, rows.token_ids("lens_top1")?)?,
        },
    })
}

/// Attention by layer and step, of rows that are a full grid.
pub(super) fn attention_by_step(
    rows: &PromptRows<'_>,
    layers: usize,
    steps: usize,
) -> Result<AttentionMeans> {
    Grid::new(rows, layers, steps, "step")?.attention(rows)
}

fn frontier(rows: &PromptRows<'_>, layers: usize, steps: usize) -> Result<Vec<FrontierRow>> {
    let anchors = rows.texts("anchor")?.into_iter();
    let keys = anchors.zip(rows.counts("cutoff")?);
    keys.zip(divergences(rows)?.into_iter().zip(texts(rows)?))
        .map(|((anchor, cutoff), (divergence, text))| {
            let anchor =
                Anchor::from_name(&anchor).ok_or_else(|| rows.damaged(format!("{anchor:?} is no anchor")))?;
            if !(1..=layers).contains(&cutoff) {
                return Err(rows.damaged(format!("there is no cutoff {cutoff}")));
            }
            if let Some(step) = text.departs.filter(|&step| step >= steps) {
                return Err(rows.damaged(format!("a text of {steps} steps departs at step {step}")));
            }
            Ok(FrontierRow { anchor, cutoff, divergence, text })
        })
        .collect()
}

/// What becomes of the text in each row.
fn texts(rows: &PromptRows<'_>) -> Result<Vec<TextUnderCutoff>> {
    let departs = rows.optional_counts("departs")?.into_iter();
    let unchanged_and_answered =
        rows.optional_bools("unchanged")?.into_iter().zip(rows.optional_bools("answered")?);
    let all = departs.zip(unchanged_and_answered);
    Ok(all.map(|(departs, (unchanged, answered))| TextUnderCutoff { unchanged, departs, answered }).collect())
}

fn knockout(rows: &PromptRows<'_>, model: &ModelInfo) -> Result<Vec<KnockoutRow>> {
    let keys = rows.counts("layer")?.into_iter();
    keys.zip(divergences(rows)?.into_iter().zip(by_kv_head(rows, model.kv_heads)?))
        .map(|(layer, (divergence, by_kv_head))| {
            if layer >= model.layers {
                return Err(rows.damaged(format!("there is no layer {layer}")));
            }
            Ok(KnockoutRow { layer, divergence, by_kv_head })
        })
        .collect()
}

/// What hiding the prompt from each KV head costs, in each row; empty where that was not measured.
fn by_kv_head(rows: &PromptRows<'_>, kv_heads: usize) -> Result<Vec<Vec<Divergence>>> {
    let lists = ["kl_by_kv_head", "top1_by_kv_head", "dnll_by_kv_head"].map(|name| rows.figure_lists(name));
    let [kl, top1, dnll] = lists;
    let (top1, dnll) = (top1?, dnll?);
    let rows_of_lists = kl?.into_iter().zip(top1.into_iter().zip(dnll));
    rows_of_lists
        .map(|(kl, (top1, dnll))| {
            let heads = kl.len();
            if (heads > 0 && heads != kv_heads) || [top1.len(), dnll.len()] != [heads; 2] {
                return Err(rows.damaged(format!("figures of {heads} KV heads instead of {kv_heads}")));
            }
            let of_head = |(kl, (top1, dnll))| Divergence { kl, top1, dnll };
            Ok(kl.into_iter().zip(top1.into_iter().zip(dnll)).map(of_head).collect())
        })
        .collect()
}

pub(super) fn divergences(rows: &PromptRows<'_>) -> Result<Vec<Divergence>> {
    let top1_and_dnll = rows.figures("top1")?.into_iter().zip(rows.figures("dnll")?);
    let kl = rows.figures("kl")?.into_iter();
    let all = kl.zip(top1_and_dnll);
    Ok(all.map(|(kl, (top1, dnll))| Divergence { kl, top1, dnll }).collect())
}

/// The target index of each row: a permutation of 0 … rows−1.
struct Places(Vec<usize>);

impl Places {
    /// `at[row]` is the row's target index, `None` for a key out of range.
    fn new(rows: &PromptRows<'_>, at: Vec<Option<usize>>, len: usize, key: &str) -> Result<Self> {
        let mut taken = vec![false; rows.len()];
        let mut places = Vec::with_capacity(at.len());
        for place in at {
            let free = place.filter(|place| *place < len);
            let free = free.filter(|place| taken.get(*place) == Some(&false));
            let place = free.ok_or_else(|| rows.damaged(format!("a {key} out of range or twice")))?;
            taken[place] = true;
            places.push(place);
        }
        Ok(Self(places))
    }

    fn put<T: Clone + Default>(&self, values: Vec<T>) -> Vec<T> {
        let mut put = vec![T::default(); values.len()];
        for (place, value) in self.0.iter().zip(values) {
            put[*place] = value;
        }
        put
    }
}

/// Rows keyed by layer and a second index, as `[layers, width]`.
pub(super) struct Grid {
    place: Places,
    shape: (usize, usize),
}

impl Grid {
    pub(super) fn new(rows: &PromptRows<'_>, layers: usize, width: usize, key: &str) -> Result<Self> {
        rows.expect_len(layers.checked_mul(width))?;
        let keys = rows.counts("layer")?.into_iter().zip(rows.counts(key)?);
        let at = keys.map(|(layer, index)| {
            let start = layer.checked_mul(width)?;
            (index < width).then(|| start.checked_add(index)).flatten()
        });
        Ok(Self { place: Places::new(rows, at.collect(), layers * width, key)?, shape: (layers, width) })
    }

    pub(super) fn array<T: Clone + Default>(
        &self,
        rows: &PromptRows<'_>,
        values: Vec<T>,
    ) -> Result<Array2<T>> {
        Array2::from_shape_vec(self.shape, self.place.put(values))
            .map_err(|_| rows.damaged("its rows are not a full grid"))
    }

    fn attention(&self, rows: &PromptRows<'_>) -> Result<AttentionMeans> {
        let figure = |name| self.array(rows, rows.figures(name)?);
        Ok(AttentionMeans {
            bos_mass: figure("bos_mass")?,
            prompt_mass: figure("prompt_mass")?,
            decode_mass: figure("decode_mass")?,
            prompt_entropy: figure("prompt_entropy")?,
            prompt_entropy_nats: figure("prompt_entropy_nats")?,
            selectivity: figure("selectivity")?,
        })
    }
}
