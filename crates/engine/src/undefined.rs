//! Where a damaged model's activations stop being numbers.

use crate::{Decoder, Error, HookPoint, Hooks, Interrupt, Policy, Result, Session, Site, Tensor};
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

/// Where activations first are NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UndefinedFrom {
    /// The embedding's output.
    Embedding,
    /// The output of this layer.
    Layer(usize),
    /// The final norm or the unembedding: the residual stream is finite after every layer.
    Unembedding,
}

impl fmt::Display for UndefinedFrom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embedding => f.write_str("the embedding"),
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Unembedding => f.write_str("the final norm or the unembedding"),
        }
    }
}

impl Error {
    /// Undefined logits whose origin was not looked for.
    pub const UNDEFINED_LOGITS: Self = Self::UndefinedLogits { from: None };

    /// The same error; undefined logits of a sequence are traced to the layer where they begin, for which the sequence runs
    /// once more.
    #[must_use]
    pub fn located(self, decoder: &Arc<Decoder>, tokens: &[u32], interrupt: &Interrupt) -> Self {
        match self {
            Self::UndefinedLogits { from: None } => {
                Self::UndefinedLogits { from: undefined_from(decoder, tokens, interrupt).ok() }
            }
            other => other,
        }
    }
}

/// Where the activations of a sequence first are NaN or infinite, if its logits are.
fn undefined_from(decoder: &Arc<Decoder>, tokens: &[u32], interrupt: &Interrupt) -> Result<UndefinedFrom> {
    let layers = decoder.config().layers;
    let first = Cell::new(None);
    let look = |place: UndefinedFrom, x: &Tensor| {
        if first.get().is_none_or(|known| place < known) && x.to_vec()?.iter().any(|x| !x.is_finite()) {
            first.set(Some(place));
        }
        Ok(())
    };
    let mut hooks = Hooks::none();
    hooks.observe(HookPoint { layer: 0, site: Site::ResidPre }, |_, x| look(UndefinedFrom::Embedding, x));
    for layer in 0..layers {
        let point = HookPoint { layer, site: Site::ResidPost };
        let look = &look;
        hooks.observe(point, move |_, x| look(UndefinedFrom::Layer(layer), x));
    }
    let mut session = Session::new(decoder, Policy::full(layers), tokens.len(), 1)?;
    session.prefill(tokens, &mut hooks, interrupt, &mut |_| {})?;
    drop(hooks);
    Ok(first.get().unwrap_or(UndefinedFrom::Unembedding))
}
