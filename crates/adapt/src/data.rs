//! Prompts with what the full model says of them.

use layerscope_diagnostics::probe::{continue_greedily, decode_rows, teacher_forced};
use layerscope_diagnostics::prompts::Prompt;
use layerscope_engine::training::{LayerKeys, Prefix, TrainingSequence, prefix};
use layerscope_engine::{
    AdapterRows, Error, Hooks, Interrupt, Model, Policy, Result, Session, Tensor, Visibility,
};
use std::sync::Arc;

/// A prompt, its continuation, and the full model's last residual stream along it.
pub struct Item {
    /// The prompt's id.
    pub id: String,
    /// Tokens of the continuation, N: the prompt's answer, or the full model's greedy text.
    pub continuation: Vec<u32>,
    /// Whether the continuation is the prompt's answer.
    pub is_answer: bool,
    /// Residual stream of the N decode rows behind the last layer of the full model, `[N, d]`.
    pub(crate) teacher: Tensor,
    pub(crate) sequence: TrainingSequence,
}

impl Item {
    /// Bytes of what it keeps in memory.
    pub fn bytes(&self) -> usize {
        let prefix = self.sequence.prefix.iter().map(|layer| layer.keys.len() + layer.values.len());
        (prefix.sum::<usize>() + self.teacher.elements()) * size_of::<f32>()
    }
}

/// Runs a prompt through the full model, once: its continuation of at most `max_new_tokens` tokens, the teacher's residual stream, and,
/// for an adapter of decode rows, the prompt's keys and values that exist under a policy. `known` is the full model's text, where an
/// earlier run has generated it.
///
/// # Errors
/// [`Error::Input`] on a prompt that cannot be run, or whose answer has fewer than two tokens; [`Error::Interrupted`].
pub fn prepare(
    model: &Model,
    prompt: &Prompt,
    (visibility, rows): (&Visibility, AdapterRows),
    max_new_tokens: usize,
    known: Option<&[u32]>,
    interrupt: &Interrupt,
) -> Result<Item> {
    let tokenizer = &model.tokenizer;
    let tokens = tokenizer.encode_prompt(&prompt.content)?;
    let p = tokens.len();
    let answer = prompt.answer.as_ref().map(|answer| tokenizer.encode_fitting(answer)).transpose()?;
    let answer = answer.map(|answer| answer.into_iter().take(max_new_tokens).collect::<Vec<u32>>());
    let steps = answer.as_ref().map_or(max_new_tokens, Vec::len);
    if p < 2 || steps < 2 {
        let reason = "has fewer than two tokens, or an answer of fewer than two";
        return Err(Error::input(format!("prompt {:?} {reason}; leave it out", prompt.id)));
    }
    let policy = Policy::full(model.config().layers);
    let mut session = Session::resumable(&model.decoder, policy, p, steps)?;
    let first = session.prefill(&tokens, &mut Hooks::none(), interrupt, &mut |_| {})?;
    let is_answer = answer.is_some();
    let continuation = match (answer, known) {
        (Some(answer), _) => answer,
        (None, Some(known)) if known.len() == steps => known.to_vec(),
        (None, _) => {
            continue_greedily(&mut session, first, steps, tokenizer.eos_ids(), interrupt, &mut |_, _| {})?
        }
    };
    let mut forced = teacher_forced(&model.decoder, &mut session, &tokens, &continuation)?;
    let teacher = forced.residuals.pop().ok_or_else(|| Error::failure("the model has no layers"))?;
    session.truncate(p - 1)?;
    let decoded = decode_rows(&tokens, &continuation);
    let sequence = match rows {
        AdapterRows::Decode => TrainingSequence {
            tokens: decoded,
            first_position: p - 1,
            prompt_len: p,
            prefix: Arc::new(visible(prefix(&session)?, visibility)),
        },
        AdapterRows::All => TrainingSequence {
            tokens: [&tokens[..p - 1], &decoded].concat(),
            first_position: 0,
            prompt_len: p,
            prefix: Arc::default(),
        },
    };
    Ok(Item { id: prompt.id.clone(), continuation, is_answer, teacher, sequence })
}

/// What is there of the full model's keys and values under a policy: from the cutoff on those of anchors.
fn visible(prefix: Prefix, visibility: &Visibility) -> Prefix {
    let of_layer = |(layer, keys): (usize, LayerKeys)| match layer < visibility.cutoff {
        true => keys,
        false => anchors_of(&keys, visibility),
    };
    prefix.into_iter().enumerate().map(of_layer).collect()
}

fn anchors_of(layer: &LayerKeys, visibility: &Visibility) -> LayerKeys {
    let count = layer.positions.len();
    let is_kept = |slot: &usize| visibility.anchors.contains(layer.positions[*slot]);
    let slots: Vec<usize> = (0..count).filter(is_kept).collect();
    if slots.is_empty() {
        return LayerKeys::default();
    }
    let row_len = |numbers: &[f32]| numbers.len() / count.max(1);
    let select = |numbers: &[f32], heads: usize| -> Vec<f32> {
        let dim = row_len(numbers) / heads;
        let rows = (0..heads).flat_map(|head| slots.iter().map(move |slot| (head * count + slot) * dim));
        rows.flat_map(|start| &numbers[start..start + dim]).copied().collect()
    };
    let heads = layer.kv_heads;
    LayerKeys {
        positions: slots.iter().map(|&slot| layer.positions[slot]).collect(),
        keys: select(&layer.keys, heads),
        values: select(&layer.values, heads),
        kv_heads: heads,
    }
}
