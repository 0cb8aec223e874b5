//! The plain reference: the whole sequence at once, with explicit masks, and keys and values of rows that stop computed by
//! hand.

use candle_core::{D, Device, Tensor as HostTensor};
use layerscope_engine::{
    Attend, ComputeType, Decoder, Depth, GgufFile, HookPoint, Hooks, Location, ModelConfig, Pass, Result,
    SequenceRows, Site, Tensor, Weight, WeightSource, WeightsPrecision, gguf_config,
};
use std::cell::RefCell;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

pub(crate) struct Tiny {
    file: GgufFile,
    pub(crate) decoder: Arc<Decoder>,
}

/// This crate's folder where the tests run, which need not be where they were compiled.
pub(crate) fn crate_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// The embedded model with room for longer prompts.
pub(crate) static TINY: LazyLock<Tiny> = LazyLock::new(|| {
    let path = crate_folder().join("../../fixtures/tiny/layerscope-tiny.gguf");
    let file = GgufFile::open(&path).unwrap();
    let mut config = gguf_config(&file, None).unwrap();
    config.context = 4096;
    let decoder = load(&file, config, &layerscope_engine::Device::Cpu);
    Tiny { file, decoder }
});

fn load(file: &GgufFile, config: ModelConfig, device: &layerscope_engine::Device) -> Arc<Decoder> {
    let weights = file.weights(&config).unwrap();
    let decoder = Decoder::load(config.clone(), &weights, WeightsPrecision::F32, device, &mut |_, _| Ok(()));
    Arc::new(decoder.unwrap())
}

/// The same on a GPU's kernels, which the CPU runs in its place unless there is a GPU to test.
#[cfg(target_os = "linux")]
pub(crate) fn on_gpu() -> Arc<Decoder> {
    let device = layerscope_engine::Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    load(&TINY.file, TINY.decoder.config().clone(), &device)
}

/// Which keys a row does not see, and which rows have keys and values from the entrance of layer `from`.
#[derive(Clone, Copy)]
pub(crate) struct Reference<'a> {
    /// (layer, query, key)
    pub(crate) hidden: &'a dyn Fn(usize, usize, usize) -> bool,
    pub(crate) projected: Option<Projected<'a>>,
    /// (layer, query head, query, key), where heads differ.
    pub(crate) hidden_by_head: Option<&'a dyn Fn(usize, usize, usize, usize) -> bool>,
}

#[derive(Clone, Copy)]
pub(crate) struct Projected<'a> {
    pub(crate) from: usize,
    pub(crate) shared_norm: bool,
    pub(crate) row: &'a dyn Fn(usize) -> bool,
}

/// Attention of a whole sequence with a mask.
struct Masked<'a> {
    reference: Reference<'a>,
    /// Residual stream at the entrance of the layer that keys and values are projected from, `[rows, d]`.
    stopped: Rc<RefCell<Option<HostTensor>>>,
}

impl Attend for Masked<'_> {
    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        _: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let [k, v] = kv.unwrap();
        let shape = TINY.decoder.attention_shape(at.layer);
        let (rows, group) = (at.positions.len(), shape.query_heads / shape.kv_heads);
        let (q, mut k, mut v) = (q.to_host()?, k.to_host()?, v.to_host()?);
        if let Some(projected) = self.reference.projected.filter(|projected| at.layer >= projected.from) {
            let stopped = self.stopped.borrow();
            let norm = if projected.shared_norm { projected.from } else { at.layer };
            let [keys, values] = by_hand(stopped.as_ref().unwrap(), norm, at.layer);
            let mask: Vec<u8> = (0..rows).map(|row| u8::from((projected.row)(row))).collect();
            let mask = HostTensor::from_vec(mask, (rows, 1, 1), &Device::Cpu)?.broadcast_as(k.shape())?;
            (k, v) = (mask.where_cond(&keys, &k)?, mask.where_cond(&values, &v)?);
        }
        let by_query_head = |x: &HostTensor| -> Result<HostTensor> {
            let heads: Vec<HostTensor> = (0..shape.query_heads)
                .map(|head| x.narrow(1, head / group, 1))
                .collect::<candle_core::Result<_>>()?;
            Ok(HostTensor::cat(&heads, 1)?.transpose(0, 1)?.contiguous()?)
        };
        let (k, v) = (by_query_head(&k)?, by_query_head(&v)?);
        let scores = (q.transpose(0, 1)?.contiguous()?.matmul(&k.transpose(1, 2)?.contiguous()?)?
            * f64::from(shape.scale))?;
        let by_head = |head: usize, query: usize, key: usize| {
            self.reference.hidden_by_head.is_some_and(|hidden| hidden(at.layer, head, query, key))
        };
        let mask: Vec<f32> = (0..shape.query_heads)
            .flat_map(|head| (0..rows).map(move |query| (head, query)))
            .flat_map(|(head, query)| (0..rows).map(move |key| (head, query, key)))
            .map(|(head, query, key)| {
                let hidden =
                    key > query || (self.reference.hidden)(at.layer, query, key) || by_head(head, query, key);
                if hidden { f32::NEG_INFINITY } else { 0.0 }
            })
            .collect();
        let mask = HostTensor::from_vec(mask, (shape.query_heads, rows, rows), &Device::Cpu)?;
        let pattern = candle_nn::ops::softmax(&(scores + mask)?, D::Minus1)?;
        Ok(pattern.matmul(&v)?.transpose(0, 1)?.contiguous()?.into())
    }
}

/// K, rotated, and V of rows at positions 0 …, W·(x / rms(x) · g), with norm and rotation in f64.
fn by_hand(x: &HostTensor, norm: usize, layer: usize) -> [HostTensor; 2] {
    let config = TINY.decoder.config();
    let weights = TINY.file.weights(config).unwrap();
    let (rows, d) = x.dims2().unwrap();
    let (heads, dim, width) = (config.kv_heads, config.head_dim, config.kv_heads * config.head_dim);
    let gain = weights.vector(Weight::AttentionNorm(norm), d).unwrap().to_vec1::<f32>().unwrap();
    let mut normed = vec![];
    for row in x.to_vec2::<f32>().unwrap() {
        let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
        let scale = 1.0 / (square / d as f64 + config.norm_epsilon).sqrt();
        normed.extend(row.iter().zip(&gain).map(|(&x, &g)| (f64::from(x) * scale * f64::from(g)) as f32));
    }
    let normed = Tensor::from_vec(normed, &[rows, d]).unwrap();
    let product = |weight| {
        let linear = weights.linear(weight, (width, d), WeightsPrecision::F32).unwrap();
        linear.forward(&normed, ComputeType::F32).unwrap().to_host().unwrap()
    };
    let frequencies = config.rope[layer].as_ref().unwrap().frequencies(1);
    let mut keys = product(Weight::Key(layer)).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (index, head) in keys.chunks_exact_mut(dim).enumerate() {
        let position = (index / heads) as f64;
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position * frequency).sin_cos();
            let (a, b) = (f64::from(head[pair]), f64::from(head[pair + dim / 2]));
            head[pair] = (a * cos - b * sin) as f32;
            head[pair + dim / 2] = (b * cos + a * sin) as f32;
        }
    }
    let keys = HostTensor::from_vec(keys, (rows, heads, dim), &Device::Cpu).unwrap();
    [keys, product(Weight::Value(layer)).reshape((rows, heads, dim)).unwrap()]
}

/// Logits of the rows from p − 1 on, from a run over the whole sequence.
pub(crate) fn whole_run(sequence: &[u32], p: usize, reference: Reference<'_>) -> Vec<Vec<f32>> {
    whole_run_with(sequence, p, reference, Hooks::none())
}

/// The same, seen by hooks.
pub(crate) fn whole_run_with(
    sequence: &[u32],
    p: usize,
    reference: Reference<'_>,
    mut hooks: Hooks<'_>,
) -> Vec<Vec<f32>> {
    let decoder = &TINY.decoder;
    let positions: Vec<usize> = (0..sequence.len()).collect();
    let stopped = Rc::new(RefCell::new(None));
    if let Some(projected) = reference.projected {
        let point = HookPoint { layer: projected.from, site: Site::ResidPre };
        let stopped = Rc::clone(&stopped);
        hooks.add(point, move |_, x| {
            *stopped.borrow_mut() = Some(Tensor::from_array(x.to_owned())?.to_host()?);
            Ok(None)
        });
    }
    let x = decoder.embed(sequence, &positions, &mut hooks).unwrap();
    let mut attend = Masked { reference, stopped };
    let sequences = [SequenceRows { rows: sequence.len(), sequence_len: sequence.len(), first_decode: 0 }];
    let (attend, hooks) = (&mut attend, &mut hooks);
    let mut pass =
        Pass { attend, hooks, sequences: &sequences, compute: ComputeType::F32, rows_on_device: None };
    let depth = Depth::of_layers(0..decoder.config().layers);
    let x = decoder.forward(x, &positions, depth, &mut pass).unwrap();
    let decode = x.narrow(p - 1, sequence.len() + 1 - p).unwrap();
    logits(&decode)
}

pub(crate) fn logits(x: &Tensor) -> Vec<Vec<f32>> {
    let positions = vec![0; x.rows()];
    let logits = TINY.decoder.unembed(x, &positions, &mut Hooks::none(), ComputeType::F32).unwrap();
    logits.to_host().unwrap().to_vec2().unwrap()
}
