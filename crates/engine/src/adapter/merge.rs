//! A checkpoint with an adapter in its weights: W + s·B·A.

use super::peft::Places;
use super::{Adapter, AdapterRows, LowRank, Target};
use crate::weights::{Place, SafetensorsFiles, without_wrapper};
use crate::{Error, ModelConfig, Result};
use layerscope_kernels::matmul::WeightFormat;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// The additions to one tensor of a checkpoint.
type Additions<'a> = Vec<(Place, Target, &'a LowRank)>;

impl Adapter {
    /// Writes the checkpoint of a folder into another, with the adapter added to its weights; types and all other files stay as they are.
    /// `progress(done, all)` counts files with weights.
    ///
    /// # Errors
    /// [`Error::Input`] where the adapter acts on decode rows alone, `out` is the checkpoint's folder or has a checkpoint, or weights
    /// are of a type that nothing can be added to; [`Error::MalformedFile`] on a damaged checkpoint; [`Error::Io`].
    pub fn merge(
        &self,
        checkpoint: &Path,
        out: &Path,
        config: &ModelConfig,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<()> {
        if self.rows == AdapterRows::Decode {
            return Err(Error::input(
                "this adapter acts on decode rows alone, which weights cannot; use it with --adapter, or train one with --rows all",
            ));
        }
        let files = SafetensorsFiles::open(checkpoint)?;
        let mut by_tensor = self.by_tensor(config)?;
        std::fs::create_dir_all(out).map_err(|error| Error::io("create", out, &error))?;
        for (done, path) in files.files().iter().enumerate() {
            let Some(name) = path.file_name() else { continue };
            let target = out.join(name);
            if target.exists() {
                return Err(Error::input(format!(
                    "{} is there already; give a new folder",
                    target.display()
                )));
            }
            merge_file(path, &target, &mut by_tensor, config)?;
            progress(done + 1, files.files().len())?;
        }
        if let Some(name) = by_tensor.keys().next() {
            return Err(Error::malformed(checkpoint, format_args!("tensor `{name}` is missing")));
        }
        copy_others(checkpoint, out)
    }

    fn by_tensor(&self, config: &ModelConfig) -> Result<BTreeMap<String, Additions<'_>>> {
        let mut by_tensor: BTreeMap<String, Additions<'_>> = BTreeMap::new();
        for (layer, target, place) in Places::in_hugging_face(config)?.0 {
            if let Some(matrix) = self.matrices.get(&(layer, target)) {
                by_tensor.entry(place.name.clone()).or_default().push((place, target, matrix));
            }
        }
        Ok(by_tensor)
    }
}

/// Writes one file of a checkpoint once more; takes the additions to its tensors.
fn merge_file(
    path: &Path,
    out: &Path,
    additions: &mut BTreeMap<String, Additions<'_>>,
    config: &ModelConfig,
) -> Result<()> {
    let bytes = layerscope_files::read(path).map_err(|error| Error::io("read", path, &error))?;
    let damaged = |error: safetensors::SafeTensorError| Error::damaged(path, error);
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(damaged)?;
    let file = SafeTensors::deserialize(&bytes).map_err(damaged)?;
    let mut changed = BTreeMap::new();
    for (name, tensor) in file.tensors() {
        let canonical = without_wrapper(&name);
        // Some checkpoints leave out the first part of the name.
        let key = additions
            .keys()
            .find(|key| **key == canonical || key.split_once('.').is_some_and(|(_, rest)| rest == canonical));
        let Some(of_tensor) = key.cloned().and_then(|key| additions.remove(&key)) else { continue };
        changed.insert(name.clone(), added(path, &name, &tensor, &of_tensor, config)?);
    }
    let views = file.tensors().into_iter().map(|(name, tensor)| {
        let view = match changed.get(&name) {
            Some(data) => TensorView::new(tensor.dtype(), tensor.shape().to_vec(), data).map_err(damaged)?,
            None => tensor,
        };
        Ok((name, view))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    let failed = |error: &dyn std::fmt::Display| {
        Error::failure(format!("{} cannot be written: {error}", out.display()))
    };
    // Under its own name only once it is whole.
    let partial = out.with_extension("partial");
    safetensors::serialize_to_file(views, header.metadata().clone(), &partial).map_err(|e| failed(&e))?;
    std::fs::rename(&partial, out).map_err(|error| failed(&error))
}

/// The bytes of a tensor with what is added to it, in its own type.
fn added(
    path: &Path,
    name: &str,
    tensor: &TensorView<'_>,
    additions: &Additions<'_>,
    config: &ModelConfig,
) -> Result<Vec<u8>> {
    let format = match tensor.dtype() {
        Dtype::F32 => WeightFormat::F32,
        Dtype::F16 => WeightFormat::F16,
        Dtype::BF16 => WeightFormat::BF16,
        other => {
            return Err(Error::input(format!(
                "{}: {name} is of type {other:?}; an adapter can be merged into F32, F16 and BF16",
                path.display()
            )));
        }
    };
    let mut numbers = vec![0.0; tensor.shape().iter().product()];
    format.dequantize(tensor.data(), &mut numbers);
    for (place, target, matrix) in additions {
        let [out, columns] = target.shape(config).unwrap_or_default();
        let stored = place.rows.of(out);
        let shape = if place.transposed { [columns, stored] } else { [stored, columns] };
        if tensor.shape() != shape {
            let what = format_args!("tensor `{name}` is {:?} instead of {shape:?}", tensor.shape());
            return Err(Error::malformed(path, what));
        }
        for row in 0..out {
            let source = place.rows.source(row, out);
            for (column, addition) in matrix.row(row).into_iter().enumerate() {
                let index =
                    if place.transposed { column * stored + source } else { source * columns + column };
                numbers[index] += addition;
            }
        }
    }
    Ok(match format {
        WeightFormat::F16 => numbers.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect(),
        WeightFormat::BF16 => numbers.iter().flat_map(|&x| half::bf16::from_f32(x).to_le_bytes()).collect(),
        _ => numbers.iter().flat_map(|x| x.to_le_bytes()).collect(),
    })
}

/// Copies what is beside the weights: config, tokenizer, chat template.
fn copy_others(checkpoint: &Path, out: &Path) -> Result<()> {
    let entries = std::fs::read_dir(checkpoint).map_err(|error| Error::io("read", checkpoint, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| Error::io("read", checkpoint, &error))?.path();
        let is_weights = path.extension().is_some_and(|extension| {
            ["safetensors", "bin", "gguf", "pt", "pth", "h5", "msgpack", "onnx"]
                .iter()
                .any(|e| extension == *e)
        });
        let (Some(name), false, true) = (path.file_name(), is_weights, path.is_file()) else { continue };
        std::fs::copy(&path, out.join(name)).map_err(|error| Error::io("copy", &path, &error))?;
    }
    Ok(())
}
