//! Prompts' keys and values in a file, where they do not fit into memory.

use layerscope_engine::training::{HeadKeys, Prefix};
use layerscope_engine::{Error, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// A file that is gone with the process.
pub(crate) struct Spill {
    file: Mutex<File>,
    folder: PathBuf,
}

/// Where the keys and values of a prompt lie.
pub(crate) struct Spilled {
    spill: Arc<Spill>,
    layers: Vec<SpilledLayer>,
}

struct SpilledLayer {
    /// First byte of the first head's keys; those of its values follow, then the next head's.
    start: u64,
    heads: Vec<SpilledHead>,
}

struct SpilledHead {
    /// Bytes of the keys, and of the values.
    bytes: [usize; 2],
    /// All but the numbers.
    empty: HeadKeys,
}

impl Spill {
    /// # Errors
    /// [`Error::Failure`] where no file can be made in the folder.
    pub(crate) fn new(folder: &Path) -> Result<Arc<Self>> {
        let file = tempfile::tempfile_in(folder).map_err(|error| Error::io("write in", folder, &error))?;
        Ok(Arc::new(Self { file: Mutex::new(file), folder: folder.to_owned() }))
    }

    /// Puts a prompt's keys and values behind what is there.
    ///
    /// # Errors
    /// [`Error::Failure`] where the disk is full.
    pub(crate) fn write(self: &Arc<Self>, keys: &Prefix) -> Result<Spilled> {
        let failed = |error: std::io::Error| Error::io("write keys of prompts in", &self.folder, &error);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut layers = vec![];
        for layer in keys {
            let (first, mut heads) = (start, vec![]);
            for head in layer {
                for numbers in head.to_bytes() {
                    file.write_all(numbers).map_err(failed)?;
                }
                let bytes = head.to_bytes().map(<[u8]>::len);
                heads.push(SpilledHead { bytes, empty: head.without_numbers() });
                start += bytes.iter().sum::<usize>() as u64;
            }
            layers.push(SpilledLayer { start: first, heads });
        }
        Ok(Spilled { spill: Arc::clone(self), layers })
    }
}

impl Spilled {
    /// Keys and values of the first layers.
    ///
    /// # Errors
    /// [`Error::Failure`] where the file cannot be read.
    pub(crate) fn read(&self, layers: usize) -> Result<Prefix> {
        let folder = &self.spill.folder;
        let failed = |error: std::io::Error| Error::io("read keys of prompts in", folder, &error);
        let mut file = self.spill.file.lock().unwrap_or_else(PoisonError::into_inner);
        let of_layer = |layer: &SpilledLayer| {
            file.seek(SeekFrom::Start(layer.start)).map_err(failed)?;
            let of_head = |head: &SpilledHead| {
                let mut both = head.bytes.map(|bytes| vec![0; bytes]);
                for bytes in &mut both {
                    file.read_exact(bytes).map_err(failed)?;
                }
                Ok(Arc::new(head.empty.with_bytes(both)))
            };
            layer.heads.iter().map(of_head).collect()
        };
        self.layers.iter().take(layers).map(of_layer).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use layerscope_engine::training::KeyType;

    #[test]
    fn what_is_written_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let spill = Spill::new(folder.path()).unwrap();
        let head = |first: usize, count: usize, kind: KeyType| {
            let numbers = |start: usize| (start..start + 3 * count).map(|x| x as f32 * 0.5).collect();
            let positions = (first..first + count).collect();
            Arc::new(HeadKeys::new(positions, kind, [numbers(first), numbers(first + 1_000)]))
        };
        let prompts: Vec<Prefix> = vec![
            vec![
                vec![head(0, 3, KeyType::F32), head(1, 2, KeyType::F32)],
                vec![head(0, 0, KeyType::F32); 2],
                vec![head(2, 1, KeyType::F16), head(0, 4, KeyType::F16)],
            ],
            vec![vec![head(7, 2, KeyType::Bf16)]],
        ];
        let spilled: Vec<Spilled> = prompts.iter().map(|keys| spill.write(keys).unwrap()).collect();
        for (keys, spilled) in prompts.iter().zip(&spilled).rev() {
            for count in 0..=keys.len() {
                let read = spilled.read(count).unwrap();
                assert_eq!(read.len(), count);
                for (read, written) in read.iter().flatten().zip(keys.iter().flatten()) {
                    assert_eq!(read.positions, written.positions);
                    assert_eq!(read.to_bytes(), written.to_bytes());
                    assert_eq!(read.bytes(), written.bytes());
                }
            }
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
