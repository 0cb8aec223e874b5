//! The embedded model, and whole reruns of it with plain attention in f64.

#![allow(dead_code, clippy::unwrap_used, missing_docs, unreachable_pub)]

use layerscope_diagnostics::reference_distributions::map_logits;
use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, Device, Hooks, Location, Model, ModelSource, Pass, Result,
    SequenceRows, Tensor, WeightsPrecision, folder_config, with_f32,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::LazyLock;

pub static MODEL: LazyLock<Model> = LazyLock::new(|| load(&tiny()));

pub fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf")
}

pub fn load(path: &Path) -> Model {
    Model::load(&ModelSource::path(path), WeightsPrecision::F32, &Device::Cpu, &mut |_, _| Ok(())).unwrap()
}

/// A family's tiny random model (`fixtures/families`).
pub fn family(name: &str) -> Arc<Decoder> {
    family_on(name, &Device::Cpu)
}

pub fn family_on(name: &str, device: &Device) -> Arc<Decoder> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/families").join(name);
    let (_, config, files) = folder_config(&folder, None).unwrap();
    let weights = files.weights(&config).unwrap();
    let decoder = Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(()));
    Arc::new(decoder.unwrap())
}

/// Whole-sequence attention in f64 where `hidden(layer, KV head, query, key)` says what a query does not see.
struct Naive<'a> {
    decoder: &'a Decoder,
    hidden: &'a dyn Fn(usize, usize, usize, usize) -> bool,
}

impl Attend for Naive<'_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        _: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let [k, v] = kv.unwrap();
        let shape = self.decoder.attention_shape(at.layer);
        let (rows, heads, dim) = (at.positions.len(), shape.query_heads, shape.head_dim);
        let mut output = vec![0f32; rows * heads * dim];
        let mut run = |q: &[f32], k: &[f32], v: &[f32]| {
            for query in 0..rows {
                for head in 0..heads {
                    let q = &q[(query * heads + head) * dim..][..dim];
                    let kv_head = head / (heads / shape.kv_heads);
                    let row = |x: &'_ [f32], key: usize| -> Vec<f64> {
                        let start = (key * shape.kv_heads + kv_head) * dim;
                        x[start..start + dim].iter().map(|&x| f64::from(x)).collect()
                    };
                    let visible: Vec<usize> = (0..=query)
                        .filter(|&key| shape.window.is_none_or(|window| query - key < window))
                        .filter(|&key| !(self.hidden)(at.layer, kv_head, query, key))
                        .collect();
                    let scores: Vec<f64> = visible
                        .iter()
                        .map(|&key| {
                            let product: f64 =
                                row(k, key).iter().zip(q).map(|(k, &q)| k * f64::from(q)).sum();
                            let score = product * f64::from(shape.scale);
                            let cap = shape.soft_cap.map(f64::from);
                            cap.map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                    let mut sum = vec![0.0; dim];
                    for (&key, score) in visible.iter().zip(&scores) {
                        let p = (score - max).exp() / total;
                        for (sum, v) in sum.iter_mut().zip(row(v, key)) {
                            *sum += p * v;
                        }
                    }
                    for (out, x) in output[(query * heads + head) * dim..][..dim].iter_mut().zip(sum) {
                        *out = x as f32;
                    }
                }
            }
        };
        with_f32(q, |q| with_f32(k, |k| with_f32(v, |v| run(q, k, v))))???;
        Tensor::from_vec(output, &[rows, heads, dim])
    }
}

/// Logits of the decode rows from a run over the whole sequence.
pub fn whole_run(
    decoder: &Arc<Decoder>,
    sequence: &[u32],
    p: usize,
    hidden: &dyn Fn(usize, usize, usize) -> bool,
) -> Vec<Vec<f32>> {
    whole_run_by_head(decoder, sequence, p, &|layer, _, query, key| hidden(layer, query, key))
}

/// The same where KV heads see different keys: `hidden(layer, KV head, query, key)`.
pub fn whole_run_by_head(
    decoder: &Arc<Decoder>,
    sequence: &[u32],
    p: usize,
    hidden: &dyn Fn(usize, usize, usize, usize) -> bool,
) -> Vec<Vec<f32>> {
    whole_run_with_hooks(decoder, sequence, p, hidden, &mut Hooks::none())
}

/// Logits after the last token of a whole run with hooks.
pub fn logits_with_hooks(decoder: &Arc<Decoder>, prompt: &[u32], hooks: &mut Hooks<'_>) -> Vec<f32> {
    whole_run_with_hooks(decoder, prompt, prompt.len(), &|_, _, _, _| false, hooks).remove(0)
}

fn whole_run_with_hooks(
    decoder: &Arc<Decoder>,
    sequence: &[u32],
    p: usize,
    hidden: &dyn Fn(usize, usize, usize, usize) -> bool,
    hooks: &mut Hooks<'_>,
) -> Vec<Vec<f32>> {
    let positions: Vec<usize> = (0..sequence.len()).collect();
    let x = decoder.embed(sequence, &positions, hooks).unwrap();
    let mut attend = Naive { decoder, hidden };
    let sequence_len = sequence.len();
    let attend = &mut attend;
    let mut pass = Pass {
        attend,
        hooks,
        sequences: &[SequenceRows { rows: positions.len(), sequence_len, first_decode: p - 1 }],
        compute: ComputeType::F32,
        rows_on_device: None,
    };
    let x = decoder.forward(x, &positions, Depth::of_layers(0..decoder.config().layers), &mut pass).unwrap();
    let decode = x.narrow(p - 1, sequence.len() + 1 - p).unwrap();
    map_logits(decoder, &decode, |_, logits| logits.to_vec()).unwrap()
}
