//! Weights of a Hugging Face checkpoint: one or several memory-mapped safetensors files.

use super::gguf::first_line;
use super::{Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Error, Result};
use candle_core::safetensors::MmapedSafetensors;
use candle_core::{DType, Device, Tensor};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The safetensors files of a folder.
pub struct SafetensorsFiles {
    folder: PathBuf,
    files: Vec<PathBuf>,
    tensors: MmapedSafetensors,
}

impl SafetensorsFiles {
    /// Maps the files that `model.safetensors.index.json` lists, or else every `*.safetensors` of the folder.
    ///
    /// # Errors
    /// [`Error::Input`] where there is none, one is missing, cut short or not a safetensors file.
    pub fn open(folder: &Path) -> Result<Self> {
        let files = list_files(folder)?;
        for file in &files {
            // One by one first, so that the message names the file that is wrong.
            // SAFETY: maps are only read; a file that others shorten meanwhile is the documented risk of mapping.
            unsafe { MmapedSafetensors::new(file) }.map_err(|e| open_error(file, &e))?;
        }
        // SAFETY: as above.
        let tensors = unsafe { MmapedSafetensors::multi(&files) }.map_err(|e| open_error(folder, &e))?;
        Ok(Self { folder: folder.to_owned(), files, tensors })
    }

    /// The files, in order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    fn tensor(&self, weight: Weight, shape: &[usize]) -> Result<Tensor> {
        let name = weight.hugging_face_name();
        let problem =
            |what: String| Error::input(format!("{}: tensor `{name}` {what}", self.folder.display()));
        let view = self.tensors.get(&name).map_err(|_| problem("is missing".to_owned()))?;
        if view.shape() != shape {
            return Err(problem(format!(
                "has shape {:?} where {shape:?} is expected; is config.json of the same model?",
                view.shape()
            )));
        }
        let tensor = self
            .tensors
            .load(&name, &Device::Cpu)
            .map_err(|e| problem(format!("cannot be read ({})", first_line(&e.to_string()))))?;
        match tensor.dtype() {
            DType::F32 | DType::F16 | DType::BF16 => Ok(tensor.to_dtype(DType::F32)?),
            other => Err(problem(format!("is of type {other:?}; known: f32, f16, bf16"))),
        }
    }
}

impl WeightSource for SafetensorsFiles {
    fn linear(&self, weight: Weight, shape: (usize, usize), _: WeightsPrecision) -> Result<Linear> {
        // On the CPU f16 and bf16 products would widen the weights at every call, so they are widened once.
        Ok(Linear::Dense(self.tensor(weight, &[shape.0, shape.1])?))
    }

    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor> {
        self.tensor(weight, &[len])
    }

    fn has(&self, weight: Weight) -> bool {
        self.tensors.get(&weight.hugging_face_name()).is_ok()
    }
}

fn open_error(file: &Path, error: &candle_core::Error) -> Error {
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
