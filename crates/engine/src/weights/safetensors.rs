//! Weights of a Hugging Face checkpoint: one or several memory-mapped safetensors files.

use super::bytes::FileBytes;
use super::gguf::first_line;
use super::linear::qtensor;
use super::{Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Error, Result};
use candle_core::quantized::GgmlDType;
use candle_core::{Device, Tensor};
use safetensors::{Dtype, SafeTensors};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The safetensors files of a folder.
pub struct SafetensorsFiles {
    folder: PathBuf,
    files: Vec<PathBuf>,
    tensors: HashMap<String, Place>,
}

/// Where a tensor is.
struct Place {
    file: Arc<FileBytes>,
    range: Range<usize>,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl SafetensorsFiles {
    /// Maps the files that `model.safetensors.index.json` lists, or else every `*.safetensors` of the folder.
    ///
    /// # Errors
    /// [`Error::Input`] where there is none, one is missing, cut short or not a safetensors file.
    pub fn open(folder: &Path) -> Result<Self> {
        let files = list_files(folder)?;
        let mut tensors = HashMap::new();
        for path in &files {
            let file = Arc::new(FileBytes::map(path)?);
            let (header_len, header) =
                SafeTensors::read_metadata((*file).as_ref()).map_err(|e| open_error(path, &e))?;
            for (name, info) in header.tensors() {
                let start = size_of::<u64>() + header_len;
                let range = start + info.data_offsets.0..start + info.data_offsets.1;
                let place =
                    Place { file: Arc::clone(&file), range, dtype: info.dtype, shape: info.shape.clone() };
                tensors.insert(name, place);
            }
        }
        Ok(Self { folder: folder.to_owned(), files, tensors })
    }

    /// The files, in order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Where a tensor of a known shape is, and its type.
    fn place(&self, weight: Weight, shape: &[usize]) -> Result<(&Place, GgmlDType)> {
        let name = weight.hugging_face_name();
        let problem =
            |what: String| Error::input(format!("{}: tensor `{name}` {what}", self.folder.display()));
        let place = self.tensors.get(&name).ok_or_else(|| problem("is missing".to_owned()))?;
        if place.shape != shape {
            return Err(problem(format!(
                "has shape {:?} where {shape:?} is expected; is config.json of the same model?",
                place.shape
            )));
        }
        let dtype = match place.dtype {
            Dtype::F32 => GgmlDType::F32,
            Dtype::F16 => GgmlDType::F16,
            Dtype::BF16 => GgmlDType::BF16,
            other => return Err(problem(format!("is of type {other:?}; known: f32, f16, bf16"))),
        };
        let elements: usize = shape.iter().product();
        let whole = place.range.len() == elements * dtype.type_size();
        if !whole || (*place.file).as_ref().get(place.range.clone()).is_none() {
            return Err(problem("is cut short; fetch the file again".to_owned()));
        }
        Ok((place, dtype))
    }
}

impl WeightSource for SafetensorsFiles {
    fn linear(&self, weight: Weight, shape: (usize, usize), precision: WeightsPrecision) -> Result<Linear> {
        let (place, dtype) = self.place(weight, &[shape.0, shape.1])?;
        let keep = precision == WeightsPrecision::Native;
        Linear::in_file(Arc::clone(&place.file), place.range.clone(), dtype, shape, keep)
    }

    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor> {
        let (place, dtype) = self.place(weight, &[len])?;
        Ok(qtensor(&(*place.file).as_ref()[place.range.clone()], dtype, &[len])?.dequantize(&Device::Cpu)?)
    }

    fn has(&self, weight: Weight) -> bool {
        self.tensors.contains_key(&weight.hugging_face_name())
    }
}

fn open_error(file: &Path, error: &safetensors::SafeTensorError) -> Error {
    let error = error.to_string();
    Error::input(format!(
        "{}: damaged or unreadable safetensors file ({}); fetch it again",
        file.display(),
        first_line(&error)
    ))
}

fn list_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join("model.safetensors.index.json");
    if index.exists() {
        let text = std::fs::read_to_string(&index).map_err(|e| Error::io("read", &index, &e))?;
        let wrong = |what: &str| Error::input(format!("{}: {what}", index.display()));
        let json: serde_json::Value =
            serde_json::from_str(&text).map_err(|e| wrong(&format!("not valid JSON ({e})")))?;
        let map = json.get("weight_map").and_then(|m| m.as_object());
        let map = map.ok_or_else(|| wrong("`weight_map` is missing"))?;
        let mut names = BTreeSet::new();
        for name in map.values() {
            let name = name.as_str().ok_or_else(|| wrong("`weight_map` names no file"))?;
            if Path::new(name).components().count() != 1 || name.starts_with('.') {
                return Err(wrong(&format!(
                    "`weight_map` names `{name}`, which is not a file of this folder"
                )));
            }
            names.insert(name);
        }
        let files: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
        if let Some(missing) = files.iter().find(|file| !file.exists()) {
            return Err(Error::input(format!(
                "{}: named by {} but absent; fetch it",
                missing.display(),
                index.display()
            )));
        }
        return Ok(files);
    }
    let entries = std::fs::read_dir(folder).map_err(|e| Error::io("read the model folder", folder, &e))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(Error::input(format!("{}: no .safetensors file in this folder", folder.display())));
    }
    Ok(files)
}
