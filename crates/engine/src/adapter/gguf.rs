//! Adapters in llama.cpp's format: a GGUF file with `A` and `B` beside the names of the model's own GGUF tensors.

use super::peft::Places;
use super::{Adapter, AdapterRows, LowRank};
use crate::weights::{GgufFile, GgufValue};
use crate::{Error, ModelConfig, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const ALPHA: &str = "adapter.lora.alpha";

impl Adapter {
    /// Reads a file for a model. Such an adapter acts on all rows.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::MalformedFile`] where it is no LoRA adapter, has what is not understood, or adds nothing to the model;
    /// [`Error::Input`] where it does not fit the model.
    pub(super) fn read_gguf(path: &Path, config: &ModelConfig) -> Result<Self> {
        let file = GgufFile::open(path)?;
        let refuse = |what: &str| Err(Error::malformed(path, what));
        let text = |key: &str| file.metadata().get(key).and_then(GgufValue::as_str);
        if text("general.type") != Some("adapter") || text("adapter.type") != Some("lora") {
            return refuse(
                "it is no LoRA adapter; give a folder of PEFT's or a GGUF file that convert_lora_to_gguf.py wrote",
            );
        }
        if file.metadata().contains_key("adapter.alora.invocation_tokens") {
            return refuse("an activated LoRA, which begins at certain tokens, is not supported");
        }
        let Some(&GgufValue::F32(alpha)) = file.metadata().get(ALPHA) else {
            return refuse("`adapter.lora.alpha` is missing");
        };
        let all: BTreeSet<String> = file.tensor_names().map(str::to_owned).collect();
        let mut unread = all.clone();
        let mut matrices = BTreeMap::new();
        for (layer, target, place) in Places::in_gguf(config)?.0 {
            let Some([out, columns]) = target.shape(config) else { continue };
            let names = ["lora_a", "lora_b"].map(|part| format!("{}.{part}", place.name));
            if !all.contains(&names[0]) {
                continue;
            }
            let [(a_shape, a), (b_shape, b)] = [file.numbers(&names[0])?, file.numbers(&names[1])?];
            let rank = a_shape.first().copied().unwrap_or(0);
            if rank == 0 || a_shape != [rank, columns] || b_shape != [place.rows.of(out), rank] {
                return Err(Error::input(format!(
                    "{}: {} is {a_shape:?} and {} is {b_shape:?}, and this model's matrix is of another shape; the adapter was made \
                     for another model",
                    path.display(),
                    names[0],
                    names[1]
                )));
            }
            // Zero stands for a factor of 1.
            let scale = if alpha == 0.0 { 1.0 } else { alpha / rank as f32 };
            let b = place.rows_of(&b, rank, out);
            matrices.insert((layer, target), LowRank { a, b, rank, scale });
            names.iter().for_each(|name| _ = unread.remove(name));
        }
        if matrices.is_empty() {
            return refuse("no tensor of the adapter belongs to this model");
        }
        match unread.first() {
            Some(name) => Err(Error::malformed(
                path,
                format_args!("{name} belongs to nothing that can be adapted in this model"),
            )),
            None => Self::new(AdapterRows::All, matrices, config),
        }
    }
}
