//! The state of a training, so that one that was stopped goes on to the same bytes.

use crate::optimizer::AdamW;
use layerscope_engine::{Error, HeldOutFigures, LowRank, Result, Target, write_file};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

const NAME: &str = "training.safetensors";
const STATE: &str = "state";

/// How far a training is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Everything that the result depends on.
    settings: String,
    pub(crate) step: usize,
    /// Decode rows, and all rows, that ran forward and backward.
    pub(crate) tokens: usize,
    pub(crate) rows: usize,
    pub(crate) seconds: f64,
    /// Held-out figures, from those without the adapter on.
    pub(crate) measured: Vec<Measured>,
}

/// Held-out figures on the way.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// After so many steps.
    pub step: usize,
    /// After so many seconds of training, without preparing the prompts.
    pub seconds: f64,
    /// What was measured.
    #[serde(flatten)]
    pub figures: HeldOutFigures,
}

impl Progress {
    /// None yet, of a training with these settings.
    pub(crate) fn of(settings: String) -> Self {
        Self { settings, step: 0, tokens: 0, rows: 0, seconds: 0.0, measured: vec![] }
    }
}

/// Matrices, moments and progress of a training.
pub(crate) struct Checkpoint {
    pub(crate) matrices: BTreeMap<(usize, Target), LowRank>,
    pub(crate) optimizer: AdamW,
    pub(crate) progress: Progress,
}

impl Checkpoint {
    /// Reads the checkpoint of a folder into `self`, whose matrices have the right sizes; false where there is none.
    ///
    /// # Errors
    /// [`Error::Input`] where it is damaged, or of other settings.
    pub(crate) fn resume(&mut self, folder: &Path) -> Result<bool> {
        let path = folder.join(NAME);
        let bytes = match layerscope_files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(Error::io("read", &path, &error)),
        };
        let damaged = |what: &str| Error::input(format!("{} is damaged ({what}); remove it", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let state = header.metadata().as_ref().and_then(|metadata| metadata.get(STATE));
        let progress: Progress = serde_json::from_str(state.ok_or_else(|| damaged("no state"))?)
            .map_err(|error| damaged(&error.to_string()))?;
        if progress.settings != self.progress.settings {
            return Err(Error::input(format!(
                "{} has a training with other settings, model or prompts; choose another --out, or remove it",
                folder.display()
            )));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(&error.to_string()))?;
        let read = |name: String, into: &mut Vec<f32>| {
            let tensor = file.tensor(&name).map_err(|error| damaged(&error.to_string()))?;
            if tensor.dtype() != Dtype::F32 || tensor.data().len() != into.len() * size_of::<f32>() {
                return Err(damaged(&name));
            }
            let numbers = tensor.data().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            *into = numbers.collect();
            Ok(())
        };
        for (key, matrix) in &mut self.matrices {
            let zeros = |values: &[f32]| [vec![0.0; values.len()], vec![0.0; values.len()]];
            let mut moments = [zeros(&matrix.a), zeros(&matrix.b)];
            for (part, values) in [("a", &mut matrix.a), ("b", &mut matrix.b)] {
                read(name(*key, part), values)?;
            }
            for (part, [first, second]) in ["a", "b"].into_iter().zip(&mut moments) {
                read(name(*key, &format!("{part}.first")), first)?;
                read(name(*key, &format!("{part}.second")), second)?;
            }
            self.optimizer.moments.insert(*key, moments);
        }
        self.optimizer.steps = progress.step;
        self.progress = progress;
        Ok(true)
    }

    /// Writes it, in place of an earlier one.
    ///
    /// # Errors
    /// [`Error::Failure`] where the folder cannot be written.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let mut tensors: Vec<(String, &[f32])> = vec![];
        for (key, matrix) in &self.matrices {
            let Some(moments) = self.optimizer.moments.get(key) else { continue };
            for ((part, values), [first, second]) in
                [("a", &matrix.a), ("b", &matrix.b)].into_iter().zip(moments)
            {
                tensors.push((name(*key, part), values));
                tensors.push((name(*key, &format!("{part}.first")), first));
                tensors.push((name(*key, &format!("{part}.second")), second));
            }
        }
        let failed =
            |error: SafeTensorError| Error::failure(format!("the checkpoint cannot be written: {error}"));
        let views = tensors.into_iter().map(|(name, values)| {
            let view = TensorView::new(Dtype::F32, vec![values.len()], bytemuck::cast_slice(values));
            Ok((name, view.map_err(failed)?))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let state =
            serde_json::to_string(&self.progress).map_err(|error| Error::failure(error.to_string()))?;
        let metadata = Some([(STATE.to_owned(), state)].into());
        write_file(&path(folder), &safetensors::serialize(views, metadata).map_err(failed)?)
    }
}

fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

fn name((layer, target): (usize, Target), part: &str) -> String {
    format!("{layer}.{}.{part}", target.name())
}
