//! Weights from a file: its tensors, at the places where a family keeps them.

use super::bytes::{FileBytes, Where};
use super::linear::dequantized;
use super::mapped::FileState;
use super::place::{Place, RowOrder};
use super::{Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Error, ModelConfig, Result};
use candle_core::{Device, Tensor};
use layerscope_kernels::matmul::{Layout, WeightFormat};
use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// A tensor in a file, its bytes within it.
pub(super) struct FileTensor {
    pub(super) bytes: TensorBytes,
    pub(super) format: WeightFormat,
    pub(super) shape: Vec<usize>,
}

/// Where a tensor's elements are.
pub(super) enum TensorBytes {
    /// In the mapped file.
    InFile(Arc<FileBytes>, Range<usize>),
    /// Converted from a type that only this file format has.
    Owned(Vec<u8>),
}

/// A file, or several files of one model, with tensors by name.
pub(super) trait TensorFiles {
    /// The file or folder to name in errors.
    fn path(&self) -> &Path;
    /// The names of all tensors, without those that no decoder reads.
    fn names(&self) -> Vec<&str>;
    /// The name under which the file has a tensor, if it has it.
    fn name_of(&self, name: &str) -> Option<&str>;
    /// A tensor by a name from [`Self::name_of`]; `wide` asks for f32 where the type must be converted.
    fn tensor(&self, name: &str, wide: bool) -> Result<FileTensor>;
    /// The files that are mapped, as they were then.
    fn mapped(&self) -> Vec<FileState>;
    /// The order into which rows in memory are brought, where products are faster from it.
    fn layout(&self) -> Layout;
}

/// The weights of a model of a known family in a file.
pub(super) struct FileWeights<'a, F> {
    files: &'a F,
    config: &'a ModelConfig,
    place: fn(Weight, &ModelConfig) -> Place,
    /// Tensors that were read.
    read: RefCell<BTreeSet<String>>,
}

impl<'a, F: TensorFiles> FileWeights<'a, F> {
    pub(super) fn new(
        files: &'a F,
        config: &'a ModelConfig,
        place: fn(Weight, &ModelConfig) -> Place,
    ) -> Self {
        Self { files, config, place, read: RefCell::default() }
    }

    fn error(&self, name: &str, problem: impl std::fmt::Display) -> Error {
        Error::malformed(self.files.path(), format_args!("tensor `{name}` {problem}"))
    }

    /// The tensor at a place, `[rows, columns]` of which the place picks rows.
    fn tensor(&self, place: &Place, (rows, columns): (usize, usize), wide: bool) -> Result<FileTensor> {
        let Some(name) = self.files.name_of(&place.name) else {
            return Err(self.error(&place.name, "is missing"));
        };
        let mut tensor = self.files.tensor(name, wide)?;
        let of = place.rows.of(rows);
        let expected = if place.transposed { (columns, of) } else { (of, columns) };
        // A vector is a column; experts that lie one after the other are rows.
        let shape = match tensor.shape.as_slice() {
            &[len] if columns == 1 => (len, 1),
            [outer @ .., last] if !outer.is_empty() => (outer.iter().product(), *last),
            _ => (0, 0),
        };
        if shape != expected {
            let expected = [expected.0, expected.1];
            return Err(self.error(
                name,
                format_args!(
                    "has shape {:?} where {:?} is expected; the file may be damaged, or of another model",
                    tensor.shape,
                    if columns == 1 { &expected[..1] } else { &expected[..] }
                ),
            ));
        }
        self.read.borrow_mut().insert(name.to_owned());
        if place.transposed {
            tensor = self.transposed(name, &tensor, shape)?;
        }
        Ok(tensor)
    }

    /// The transpose of a matrix of floats.
    fn transposed(
        &self,
        name: &str,
        tensor: &FileTensor,
        (rows, columns): (usize, usize),
    ) -> Result<FileTensor> {
        if tensor.format.is_quantized() {
            return Err(self
                .error(name, "is block-quantised with rows and columns exchanged, which is not supported"));
        }
        let (from, width) = (tensor.bytes(), tensor.format.bytes(1));
        let mut to = Vec::with_capacity(from.len());
        for column in 0..columns {
            for row in 0..rows {
                to.extend_from_slice(&from[(row * columns + column) * width..][..width]);
            }
        }
        Ok(FileTensor { bytes: TensorBytes::Owned(to), format: tensor.format, shape: vec![columns, rows] })
    }

    /// The place's rows of a vector, in f32.
    fn read_vector(&self, place: &Place, len: usize) -> Result<Vec<f32>> {
        let tensor = self.tensor(place, (len, 1), true)?;
        let all = dequantized(&tensor.bytes(), tensor.format, place.rows.of(len));
        let offset = if place.plus_one { 1.0 } else { 0.0 };
        Ok((0..len).map(|row| all[place.rows.source(row, len)] + offset).collect())
    }
}

impl FileTensor {
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        match &self.bytes {
            TensorBytes::InFile(file, range) => {
                file.as_in_file(range, self.format, self.shape.last().copied().unwrap_or(0))
            }
            TensorBytes::Owned(bytes) => Cow::Borrowed(bytes),
        }
    }

    /// The file and its bytes, where memory has its rows in an order.
    fn in_memory(&self, order: RowOrder) -> Option<(Arc<FileBytes>, Range<usize>)> {
        match &self.bytes {
            TensorBytes::InFile(file, range) if matches!(file.place(range, order), Where::HugePages(_)) => {
                Some((Arc::clone(file), range.clone()))
            }
            _ => None,
        }
    }

    fn len(&self) -> usize {
        match &self.bytes {
            TensorBytes::InFile(_, range) => range.len(),
            TensorBytes::Owned(bytes) => bytes.len(),
        }
    }
}

impl<F: TensorFiles> WeightSource for FileWeights<'_, F> {
    fn linear(&self, weight: Weight, shape: (usize, usize), precision: WeightsPrecision) -> Result<Linear> {
        let place = (self.place)(weight, self.config);
        let keep = precision == WeightsPrecision::Native;
        let tensor = self.tensor(&place, shape, !keep)?;
        let row_bytes = tensor.len() / place.rows.of(shape.0);
        let part = |range: Range<usize>| match &tensor.bytes {
            TensorBytes::InFile(file, whole) => {
                let range = whole.start + range.start..whole.start + range.end;
                Linear::in_file(Arc::clone(file), range, RowOrder::All, tensor.format, shape, keep)
            }
            TensorBytes::Owned(bytes) => Linear::from_blocks(&bytes[range], tensor.format, shape, keep),
        };
        Ok(match place.rows.start() {
            Some(start) => part(start * row_bytes..(start + shape.0) * row_bytes),
            None => {
                if let Some((file, range)) = tensor.in_memory(place.rows).filter(|_| keep) {
                    return Ok(Linear::in_file(file, range, place.rows, tensor.format, shape, keep));
                }
                let bytes = tensor.bytes();
                let rows = (0..shape.0).map(|row| place.rows.source(row, shape.0) * row_bytes);
                let gathered: Vec<u8> =
                    rows.flat_map(|start| &bytes[start..start + row_bytes]).copied().collect();
                Linear::from_blocks_in(self.files.layout(), &gathered, tensor.format, shape, keep)
            }
        })
    }

    fn vector(&self, weight: Weight, len: usize) -> Result<Tensor> {
        let place = (self.place)(weight, self.config);
        Ok(Tensor::from_vec(self.read_vector(&place, len)?, len, &Device::Cpu)?)
    }

    fn bias(&self, weight: Weight, len: usize) -> Result<Option<Tensor>> {
        let place = (self.place)(weight, self.config).bias();
        if self.files.name_of(&place.name).is_none() {
            return Ok(None);
        }
        Ok(Some(Tensor::from_vec(self.read_vector(&place, len)?, len, &Device::Cpu)?))
    }

    fn has(&self, weight: Weight) -> bool {
        let place = (self.place)(weight, self.config);
        self.files.name_of(&place.name).is_some()
    }

    fn mapped_files(&self) -> Vec<FileState> {
        self.files.mapped()
    }

    fn check_all_read(&self) -> Result<()> {
        let read = self.read.borrow();
        let unread: Vec<&str> = self.files.names().into_iter().filter(|name| !read.contains(*name)).collect();
        let Some(first) = unread.first() else { return Ok(()) };
        let more = match unread.len() - 1 {
            0 => String::new(),
            more => format!(" and {more} others"),
        };
        let problem = format_args!(
            "tensor `{first}`{more} {} no part of architecture `{}` as layerscope runs it, so its answers would be wrong; \
             it may be a variant that is not supported yet",
            if unread.len() == 1 { "is" } else { "are" },
            self.config.architecture
        );
        Err(Error::malformed(self.files.path(), problem))
    }
}
