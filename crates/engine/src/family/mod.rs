//! Model families: what tells each from a Llama, and where its files keep their weights.
//!
//! `docs/adding-a-family.md` shows how to add one.

mod gemma;
mod gpt;
mod llama;
mod names;

use crate::config::{Fields, Key, ModelConfig};
use crate::weights::{Place, Weight};
use crate::{Error, Result};

/// A family of decoders.
pub(crate) struct Family {
    /// Its name for people, and for `--architecture`.
    pub(crate) name: &'static str,
    /// `model_type` in `config.json`.
    model_types: &'static [&'static str],
    /// `general.architecture` in GGUF metadata.
    gguf_names: &'static [&'static str],
    /// Sets what tells the family from a Llama; the numbers that all families have are there already.
    pub(crate) configure: fn(&Fields<'_>, &mut ModelConfig) -> Result<()>,
    /// Where Hugging Face checkpoints keep a weight.
    pub(crate) in_hugging_face: fn(Weight, &ModelConfig) -> Place,
    /// Where GGUF files keep a weight.
    pub(crate) in_gguf: fn(Weight, &ModelConfig) -> Place,
}

static FAMILIES: [&Family; 16] = [
    &llama::LLAMA,
    &llama::MISTRAL,
    &llama::QWEN_2,
    &llama::QWEN_3,
    &llama::QWEN_3_MOE,
    &gemma::GEMMA,
    &gemma::GEMMA_2,
    &gemma::GEMMA_3,
    &llama::PHI_3,
    &llama::SMOLLM_3,
    &llama::OLMO_2,
    &llama::OLMOE,
    &llama::GRANITE,
    &gpt::GPT_NEOX,
    &gpt::GPT_2,
    &gpt::STARCODER_2,
];

impl Family {
    /// The names of all families.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        FAMILIES.iter().map(|family| family.name)
    }

    /// The family of a name for people.
    ///
    /// # Errors
    /// [`Error::UnsupportedFamily`] naming the known ones.
    pub(crate) fn named(name: &str) -> Result<&'static Self> {
        FAMILIES.iter().copied().find(|family| family.name == name).ok_or_else(|| {
            let known: Vec<&str> = Self::names().collect();
            Error::UnsupportedFamily {
                architecture: name.to_owned(),
                sentence: format!("unknown architecture `{name}` (known: {})", known.join(", ")),
            }
        })
    }

    /// The family of an architecture, or the one that the user says it is of.
    ///
    /// # Errors
    /// [`Error::UnsupportedFamily`] on one that is not known; where it has the numbers of a Llama-like decoder, the error says what
    /// would be assumed and how to say so.
    pub(crate) fn of(
        fields: &Fields<'_>,
        architecture: &str,
        assumed: Option<&str>,
    ) -> Result<&'static Self> {
        if let Some(assumed) = assumed {
            return Self::named(assumed);
        }
        let family = FAMILIES.iter().copied().find(|family| {
            let names = if fields.is_json() { family.model_types } else { family.gguf_names };
            names.contains(&architecture)
        });
        family.ok_or_else(|| {
            let known: Vec<&str> = Self::names().collect();
            let hint = match looks_like_a_llama(fields) {
                true => {
                    "; it has the numbers of a Llama-like decoder, so that with --architecture llama it is run as one: \
                     RMSNorm before attention and MLP, rotary embedding over whole heads, a gated SiLU MLP, every layer \
                     seeing every token. A weight that this leaves out is an error, a wrong assumption otherwise is not: \
                     check the answers"
                }
                false => "",
            };
            let sentence = format!(
                "{}: architecture `{architecture}` is not supported (known: {}){hint}",
                fields.path.display(),
                known.join(", ")
            );
            Error::UnsupportedFamily { architecture: architecture.to_owned(), sentence }
        })
    }
}

/// Whether a description has the numbers that a Llama-like decoder needs.
fn looks_like_a_llama(fields: &Fields<'_>) -> bool {
    [
        Key("hidden_size", "embedding_length"),
        Key("num_hidden_layers", "block_count"),
        Key("num_attention_heads", "attention.head_count"),
        Key("intermediate_size", "feed_forward_length"),
        Key("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
        Key("max_position_embeddings", "context_length"),
    ]
    .into_iter()
    .all(|key| fields.has(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_name_stands_for_two_families() {
        let names: Vec<&str> = Family::names().collect();
        let model_types: Vec<&str> = FAMILIES.iter().flat_map(|f| f.model_types).copied().collect();
        let gguf_names: Vec<&str> = FAMILIES.iter().flat_map(|f| f.gguf_names).copied().collect();
        for list in [names, model_types, gguf_names] {
            let unique: HashSet<&str> = list.iter().copied().collect();
            assert_eq!(unique.len(), list.len(), "{list:?}");
        }
    }
}
