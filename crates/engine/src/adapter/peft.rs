//! Adapters in the format of PEFT: a folder with `adapter_config.json` and `adapter_model.safetensors`. What the format has no word
//! for (which rows, which policy, which model and data) is in `layerscope.json` beside them.

use super::{Adapter, AdapterInfo, AdapterRows, LowRank, Target};
use crate::family::Family;
use crate::weights::{Place, Weight};
use crate::{Error, ModelConfig, Result, write_file};
use layerscope_kernels::matmul::WeightFormat;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const CONFIG: &str = "adapter_config.json";
pub(super) const TENSORS: &str = "adapter_model.safetensors";
const INFO: &str = "layerscope.json";
/// What PEFT puts before the names of a model's modules.
const PREFIX: &str = "base_model.model.";

/// The entries of `adapter_config.json` that matter. The others are checked one by one.
#[derive(Deserialize)]
struct Config {
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: BTreeMap<String, usize>,
    #[serde(default)]
    alpha_pattern: BTreeMap<String, f64>,
}

impl Adapter {
    /// Reads a folder for a model; `None` where nothing says what it was made for, as for PEFT's own, which act on all rows.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Input`] or [`Error::MalformedFile`] where it has what is not understood, does not fit the model, or
    /// adds nothing to it.
    pub(super) fn read_peft(folder: &Path, config: &ModelConfig) -> Result<(Self, Option<AdapterInfo>)> {
        let path = folder.join(CONFIG);
        let text = layerscope_files::read_text(&path).map_err(|error| Error::io("read", &path, &error))?;
        let entries: Value = serde_json::from_str(&text).map_err(|error| Error::damaged(&path, error))?;
        refuse_unknown(&path, &entries)?;
        let settings: Config =
            serde_json::from_value(entries).map_err(|error| Error::damaged(&path, error))?;
        let info = read_info(folder)?;
        let rows = info.as_ref().map_or(AdapterRows::All, |info| info.rows);
        let tensors = Tensors::open(folder)?;
        let places = Places::in_hugging_face(config)?;
        let mut matrices = BTreeMap::new();
        for (layer, target, place) in places.0 {
            let Some([out, columns]) = target.shape(config) else { continue };
            let module = place.module();
            let Some((a, rank)) =
                tensors.matrix(&format!("{module}.lora_A.weight"), [None, Some(columns)])?
            else {
                continue;
            };
            let name = format!("{module}.lora_B.weight");
            let stored = place.rows.of(out);
            let Some((b, _)) = tensors.matrix(&name, [Some(stored), Some(rank)])? else {
                return Err(Error::damaged(folder, format_args!("{name} is missing")));
            };
            let wanted = pattern(&settings.rank_pattern, &module).copied().unwrap_or(settings.r);
            if rank != wanted {
                return Err(Error::damaged(
                    &path,
                    format_args!("{module} has rank {rank}, and the settings say {wanted}"),
                ));
            }
            let alpha = pattern(&settings.alpha_pattern, &module).copied().unwrap_or(settings.lora_alpha);
            let divisor = if settings.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
            let b = place.rows_of(b, rank, out);
            let a = if rank == columns && is_identity(a, rank) { vec![] } else { a.to_vec() };
            matrices.insert((layer, target), LowRank { a, b, rank, scale: (alpha / divisor) as f32 });
        }
        tensors.check_all_read()?;
        if matrices.is_empty() {
            return Err(Error::damaged(folder, "no tensor of the adapter belongs to this model"));
        }
        Ok((Self::new(rows, matrices, config)?, info))
    }

    /// Writes a folder.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, folder: &Path, info: &AdapterInfo, config: &ModelConfig) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        let modules = Modules::of(self, config)?;
        let failed =
            |error: SafeTensorError| Error::failure(format!("the adapter cannot be written: {error}"));
        let views = modules.tensors.iter().map(|(name, (shape, data))| {
            Ok((
                name,
                TensorView::new(Dtype::F32, shape.clone(), bytemuck::cast_slice(data)).map_err(failed)?,
            ))
        });
        let views = views.collect::<Result<Vec<_>>>()?;
        let metadata = Some([("format".to_owned(), "pt".to_owned())].into());
        let bytes = safetensors::serialize(views, metadata).map_err(failed)?;
        write_file(&folder.join(TENSORS), &bytes)?;
        write_json(&folder.join(CONFIG), &modules.config(info))?;
        write_json(&folder.join(INFO), info)
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::failure(format!("{}: {error}", path.display())))?;
    write_file(path, (text + "\n").as_bytes())
}

fn read_info(folder: &Path) -> Result<Option<AdapterInfo>> {
    let path = folder.join(INFO);
    match layerscope_files::read_text(&path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|error| Error::damaged(&path, error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, &error)),
    }
}

fn is_identity(matrix: &[f32], size: usize) -> bool {
    let is_right = |(index, x): (usize, &f32)| *x == if index % (size + 1) == 0 { 1.0 } else { 0.0 };
    matrix.iter().enumerate().all(is_right)
}

/// Refuses settings that would change the result and are not understood.
fn refuse_unknown(path: &Path, entries: &Value) -> Result<()> {
    let refuse = |what: &str| Err(Error::damaged(path, format_args!("{what} is not supported")));
    let entry = |name: &str| entries.get(name).filter(|value| !value.is_null());
    if entry("peft_type").and_then(Value::as_str) != Some("LORA") {
        return refuse("an adapter that is not LoRA");
    }
    for (name, harmless) in [
        ("use_dora", json!(false)),
        ("use_qalora", json!(false)),
        ("lora_bias", json!(false)),
        ("bias", json!("none")),
        ("modules_to_save", json!([])),
        ("layer_replication", json!([])),
        ("trainable_token_indices", json!([])),
        ("target_parameters", json!([])),
        ("alora_invocation_tokens", json!([])),
        ("arrow_config", json!({})),
    ] {
        if let Some(value) = entry(name).filter(|value| **value != harmless) {
            return refuse(&format!("`{name}`: {value}"));
        }
    }
    // Others change the base weights as well.
    match entry("init_lora_weights") {
        None | Some(Value::Bool(_)) => Ok(()),
        Some(Value::String(name)) if name == "gaussian" => Ok(()),
        Some(other) => refuse(&format!("`init_lora_weights`: {other}")),
    }
}

/// The entry of a pattern that ends a module's name, the longest of them.
fn pattern<'a, T>(patterns: &'a BTreeMap<String, T>, module: &str) -> Option<&'a T> {
    let matching = patterns.iter().filter(|(name, _)| {
        let rest = module.strip_suffix(name.as_str().trim_start_matches('^'));
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    matching.max_by_key(|(name, _)| name.len()).map(|(_, value)| value)
}

/// Where checkpoints of a family keep the matrices that can be adapted.
pub(super) struct Places(pub(super) Vec<(usize, Target, Place)>);

impl Places {
    /// In Hugging Face's checkpoints.
    pub(super) fn in_hugging_face(config: &ModelConfig) -> Result<Self> {
        Ok(Self::by(config, Family::named(config.family)?.in_hugging_face))
    }

    /// In GGUF files.
    pub(super) fn in_gguf(config: &ModelConfig) -> Result<Self> {
        Ok(Self::by(config, Family::named(config.family)?.in_gguf))
    }

    fn by(config: &ModelConfig, place: fn(Weight, &ModelConfig) -> Place) -> Self {
        let places = (0..config.layers).flat_map(|layer| {
            let of = move |target: Target| (layer, target, place(target.weight(layer), config));
            Target::ALL.into_iter().filter(|target| target.shape(config).is_some()).map(of)
        });
        Self(places.collect())
    }
}

impl Place {
    /// Of a tensor's B `[stored rows, rank]`, the rows of the matrix in their order.
    pub(super) fn rows_of(&self, b: &[f32], rank: usize, out: usize) -> Vec<f32> {
        (0..out).flat_map(|row| &b[self.rows.source(row, out) * rank..][..rank]).copied().collect()
    }

    /// The module of a matrix.
    fn module(&self) -> String {
        let name = self.name.strip_suffix(".weight").unwrap_or(&self.name);
        // GPT-2's checkpoints leave out the first part.
        if name.starts_with("h.") { format!("transformer.{name}") } else { name.to_owned() }
    }
}

/// The tensors of `adapter_model.safetensors`, in f32, by the name of their module.
struct Tensors<'a> {
    folder: &'a Path,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    read: RefCell<BTreeSet<String>>,
}

impl<'a> Tensors<'a> {
    fn open(folder: &'a Path) -> Result<Self> {
        let path = folder.join(TENSORS);
        let bytes = layerscope_files::read(&path).map_err(|error| Error::io("read", &path, &error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| Error::damaged(&path, error))?;
        let mut tensors = BTreeMap::new();
        for (name, tensor) in file.tensors() {
            let format = match tensor.dtype() {
                Dtype::F32 => WeightFormat::F32,
                Dtype::F16 => WeightFormat::F16,
                Dtype::BF16 => WeightFormat::BF16,
                other => {
                    let what = format_args!("{name} is of type {other:?}; known: F32, F16, BF16");
                    return Err(Error::damaged(&path, what));
                }
            };
            let mut numbers = vec![0.0; tensor.shape().iter().product()];
            format.dequantize(tensor.data(), &mut numbers);
            tensors.insert(bare(&name), (tensor.shape().to_vec(), numbers));
        }
        Ok(Self { folder, tensors, read: RefCell::default() })
    }

    /// A matrix of a module, and its number of rows; `None` where there is none.
    fn matrix(&self, name: &str, [rows, columns]: [Option<usize>; 2]) -> Result<Option<(&[f32], usize)>> {
        // Some checkpoints leave out the first part of the name.
        let shorter = name.split_once('.').map(|(_, rest)| rest);
        let Some((name, (shape, numbers))) =
            [Some(name), shorter].into_iter().flatten().find_map(|name| self.tensors.get_key_value(name))
        else {
            return Ok(None);
        };
        let fits = |wanted: Option<usize>, actual: usize| wanted.is_none_or(|wanted| wanted == actual);
        match shape[..] {
            [r, c] if fits(rows, r) && fits(columns, c) => {
                self.read.borrow_mut().insert(name.clone());
                Ok(Some((numbers, r)))
            }
            _ => Err(Error::input(format!(
                "{}: {name} is {shape:?}, and this model's matrix is of another shape; the adapter was made for another model",
                self.folder.join(TENSORS).display()
            ))),
        }
    }

    fn check_all_read(&self) -> Result<()> {
        match self.tensors.keys().find(|name| !self.read.borrow().contains(*name)) {
            Some(name) => {
                let what = format_args!("{name} belongs to nothing that can be adapted in this model");
                Err(Error::damaged(&self.folder.join(TENSORS), what))
            }
            None => Ok(()),
        }
    }
}

/// A tensor's name without what PEFT and multimodal models wrap a decoder in.
fn bare(name: &str) -> String {
    let name = name.strip_prefix(PREFIX).unwrap_or(name).replace(".default.weight", ".weight");
    match name.strip_prefix("model.language_model.") {
        Some(rest) => format!("model.{rest}"),
        None => name,
    }
}

/// An adapter by the modules of a family's checkpoints.
struct Modules {
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    /// Rank and scale of each module.
    settings: BTreeMap<String, (usize, f32)>,
    fan_in_fan_out: bool,
}

impl Modules {
    fn of(adapter: &Adapter, config: &ModelConfig) -> Result<Self> {
        let mut parts: BTreeMap<String, Vec<(Place, Target, &LowRank)>> = BTreeMap::new();
        for (layer, target, place) in Places::in_hugging_face(config)?.0 {
            if let Some(matrix) = adapter.matrices.get(&(layer, target)) {
                parts.entry(place.module()).or_default().push((place, target, matrix));
            }
        }
        let fan_in_fan_out = parts.values().flatten().any(|(place, ..)| place.transposed);
        let mut modules = Self { tensors: BTreeMap::new(), settings: BTreeMap::new(), fan_in_fan_out };
        for (module, parts) in parts {
            // Matrices that a checkpoint keeps in one have a common A: theirs one below the other, each read by its own rows of B.
            let rank: usize = parts.iter().map(|(.., matrix)| matrix.rank).sum();
            let scale = parts[0].2.scale;
            let (mut a, mut rows, mut first) = (vec![], 0, 0);
            let mut b: Vec<f32> = vec![];
            for (place, target, matrix) in &parts {
                let [out, _] = target.shape(config).unwrap_or_default();
                rows = place.rows.of(out);
                b.resize(rows * rank, 0.0);
                for row in 0..out {
                    let to = place.rows.source(row, out) * rank + first;
                    let from = &matrix.b[row * matrix.rank..][..matrix.rank];
                    let factor = matrix.scale / scale;
                    b[to..to + matrix.rank].iter_mut().zip(from).for_each(|(to, from)| *to = from * factor);
                }
                a.extend_from_slice(&matrix.whole_a());
                first += matrix.rank;
            }
            let columns = a.len() / rank;
            modules.tensors.insert(format!("{PREFIX}{module}.lora_A.weight"), (vec![rank, columns], a));
            modules.tensors.insert(format!("{PREFIX}{module}.lora_B.weight"), (vec![rows, rank], b));
            modules.settings.insert(module, (rank, scale));
        }
        Ok(modules)
    }

    /// `adapter_config.json`.
    fn config(&self, info: &AdapterInfo) -> Value {
        let &(rank, scale) = self.settings.values().next().unwrap_or(&(1, 1.0));
        let alpha = |rank: usize, scale: f32| f64::from(scale) * rank as f64;
        let others = self.settings.iter().filter(|(_, settings)| **settings != (rank, scale));
        let ranks: BTreeMap<&String, usize> = others.clone().map(|(name, (rank, _))| (name, *rank)).collect();
        let alphas: BTreeMap<&String, f64> =
            others.map(|(name, &(rank, scale))| (name, alpha(rank, scale))).collect();
        json!({
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": info.model,
            "r": rank,
            "lora_alpha": alpha(rank, scale),
            "lora_dropout": 0.0,
            "use_rslora": false,
            "use_dora": false,
            "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out,
            "init_lora_weights": true,
            "inference_mode": true,
            "modules_to_save": null,
            "rank_pattern": ranks,
            "alpha_pattern": alphas,
            "target_modules": self.settings.keys().collect::<Vec<_>>(),
        })
    }
}
