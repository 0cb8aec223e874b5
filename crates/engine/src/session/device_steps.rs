//! Decode steps on a GPU, one token each: the same work every time, so that from the second on it is queued as one graph.
//!
//! What changes between steps is in the GPU's memory: the token, its position, and how many tokens were decoded, by which
//! the last span of keys has grown. Kernels read it when they run.

use super::{Session, flattened};
use crate::attention::LayerStatistics;
use crate::attention::device::{DeviceKeys, by_segment};
use crate::decoder::{Attend, Decoder, KeysValuesOf, Location, Pass, RowsOnDevice, SequenceRows};
use crate::hooks::Hooks;
use crate::kv::{KeyRange, KvStore, View};
use crate::policy::CrossLayerKv;
use crate::tensor::{DeviceTensor, Tensor};
use crate::{ComputeType, Depth, Device, Error, Policy, Result};
use layerscope_kernels::attention::cuda::spans::{self, SpanAttention, StatisticsOnDevice};
use layerscope_kernels::cuda::{self, Buffer, Element, Graph, Pool, store};
use layerscope_kernels::{AttentionStatistics, Received, SEGMENTS, Segment};
use std::ops::Range;
use std::sync::Arc;

/// What the steps of a sequence share.
pub(super) struct DeviceSteps {
    /// Without and with statistics, each with memory of its own.
    stages: [(Stage, Pool); 2],
    plan: Plan,
}

/// How far one kind of step has come.
enum Stage {
    /// It never ran.
    New,
    /// It ran, so that the pool has all the memory that it takes.
    Warm,
    /// It is a graph, which leaves its output in the same place each time.
    Captured(Graph, Output),
}

/// What a step yields.
struct Output {
    logits: Tensor,
    /// Mass and entropy, `[layers, H, segments]`.
    statistics: Option<[DeviceTensor; 2]>,
}

/// What steps read.
struct Plan {
    /// The one row.
    row: RowsOnDevice,
    /// Tokens decoded since this was made, i32.
    decoded: Buffer,
    layers: Vec<LayerPlan>,
}

/// A layer's keys, with that of the first step.
struct LayerPlan {
    spans: Buffer,
    span_count: usize,
    /// Where the first step stores its key, of each group of KV heads.
    first_slots: Vec<usize>,
    keys_at_most: usize,
}

impl Session {
    /// Whether steps are the same work each time: on a GPU they are, unless decode rows do not see each other, or experts or
    /// prompt tokens take turns, whom the host chooses.
    pub(super) fn can_step_on_device(&self) -> bool {
        let (config, rules) = (self.decoder.config(), self.policy.rules().selection());
        matches!(self.decoder.device(), Device::Cuda(_))
            && config.experts.is_none()
            && self.selection.as_ref().is_none_or(|selection| selection.is_settled())
            && !(0..config.layers).any(|layer| rules.self_only_mask(layer))
    }

    pub(super) fn step_on_device(
        &mut self,
        token: u32,
        statistics: Option<&mut Vec<LayerStatistics>>,
    ) -> Result<Tensor> {
        self.check_has_prompt()?;
        let (layers, vocab) = (self.decoder.config().layers, self.decoder.config().vocab);
        if token as usize >= vocab {
            return Err(Error::UnknownToken { token, vocab });
        }
        for layer in 0..layers {
            self.store.check_room(layer, 1)?;
        }
        // Taken out, so that nothing half done stays behind.
        let mut steps = match self.device_steps.take() {
            Some(steps) => steps,
            None => DeviceSteps::new(&self.decoder, &self.store, self.prompt_len, self.len)?,
        };
        steps.plan.row.tokens.write(0, &[token])?;
        let step = Step {
            decoder: &self.decoder,
            policy: &self.policy,
            store: &self.store,
            sequence_len: self.sequence_len,
            position: self.len,
            plan: &steps.plan,
            with_statistics: statistics.is_some(),
        };
        let (logits, measured) = step.advance(&mut steps.stages[usize::from(step.with_statistics)])?;
        if let Some(statistics) = statistics {
            statistics.extend(measured);
        }
        for layer in 0..layers {
            self.store.add_positions(layer, &[self.len]);
        }
        self.len += 1;
        self.device_steps = Some(steps);
        Ok(logits)
    }
}

impl DeviceSteps {
    /// For steps from `position` on.
    fn new(decoder: &Decoder, store: &KvStore, prompt_len: usize, position: usize) -> Result<Self> {
        let Device::Cuda(device) = decoder.device() else {
            return Err(Error::failure("these are steps on a GPU; please report this"));
        };
        let numbers = |number: i32| -> Result<Buffer> {
            let buffer = device.allocate(size_of::<i32>())?;
            buffer.write(0, &[number])?;
            Ok(buffer)
        };
        let row =
            RowsOnDevice { positions: Arc::new(numbers(position as i32)?), tokens: Arc::new(numbers(0)?) };
        let layers = (0..decoder.config().layers)
            .map(|layer| LayerPlan::new(device, store, layer, prompt_len, position))
            .collect::<Result<_>>()?;
        let plan = Plan { row, decoded: numbers(0)?, layers };
        let stage = || (Stage::New, Pool::new(device));
        Ok(Self { stages: [stage(), stage()], plan })
    }
}

impl LayerPlan {
    fn new(
        device: &cuda::Device,
        store: &KvStore,
        layer: usize,
        prompt_len: usize,
        position: usize,
    ) -> Result<Self> {
        let mut ranges = store.ranges(layer, View { prompt_len: Some(prompt_len), ..View::default() });
        // The last decode key of each group of KV heads, which grows with those that follow.
        let mut growing = vec![];
        for next in store.next_ranges(layer, position) {
            let joins = |range: &KeyRange| {
                range.group == next.group
                    && range.segment == Segment::Decode
                    && range.first_position + range.len == position
                    && range.slot + range.len == next.slot
            };
            match ranges.iter().position(joins) {
                Some(index) => {
                    ranges[index].len += 1;
                    growing.push(index);
                }
                None => {
                    growing.push(ranges.len());
                    ranges.push(next);
                }
            }
        }
        let spans = ranges.iter().map(|range| store.device_span(layer, range)).collect::<Option<Vec<_>>>();
        let mut spans =
            spans.ok_or_else(|| Error::failure("these are steps on a GPU; please report this"))?;
        growing.into_iter().for_each(|index| spans[index].grows = 1);
        let on_device = device.allocate(size_of_val(spans.as_slice()))?;
        on_device.write(0, &spans)?;
        Ok(Self {
            spans: on_device,
            span_count: spans.len(),
            first_slots: store.next_slots(layer),
            keys_at_most: store.capacity(layer),
        })
    }
}

/// One step.
struct Step<'a> {
    decoder: &'a Decoder,
    policy: &'a Policy,
    store: &'a KvStore,
    sequence_len: usize,
    position: usize,
    plan: &'a Plan,
    with_statistics: bool,
}

impl Step<'_> {
    /// Runs it, as a graph where that is possible; logits `[V]` and the statistics of each layer.
    fn advance(&self, (stage, memory): &mut (Stage, Pool)) -> Result<(Tensor, Vec<LayerStatistics>)> {
        let device = self.plan.decoded.device();
        if matches!(stage, Stage::Warm) {
            let (graph, output) = device.capture(memory, || self.queue())?;
            *stage = Stage::Captured(graph, output);
        }
        if let Stage::Captured(graph, output) = stage {
            graph.launch()?;
            return output.taken();
        }
        let output = device.with_memory(memory, || self.queue())?;
        *stage = Stage::Warm;
        output.taken()
    }

    /// Queues the work: nothing in it depends on the host's numbers.
    fn queue(&self) -> Result<Output> {
        let (decoder, plan) = (self.decoder, self.plan);
        let (device, config) = (plan.decoded.device(), decoder.config());
        // Of all layers together, so that they are read at once.
        let figures =
            || DeviceTensor::undefined(device, Element::F32, &[config.layers, config.heads, SEGMENTS]);
        let statistics = match self.with_statistics {
            true => Some([figures()?, figures()?]),
            false => None,
        };
        let shared = match self.policy.rules().cross_layer_kv() {
            Some(CrossLayerKv::SharedNorm(layer)) => layer,
            _ => config.layers,
        };
        let x = decoder.embed_on_device(&plan.row, 1)?;
        let x = self.through(x, Depth::of_layers(0..shared), statistics.as_ref())?;
        self.project_shared(&x, shared)?;
        let x = self.through(x, Depth::of_layers(shared..config.layers), statistics.as_ref())?;
        let logits = decoder.unembed(&x, &[self.position], &mut Hooks::none(), ComputeType::Bf16)?;
        store::advance(&plan.row.positions, 1, &plan.decoded)?;
        Ok(Output { logits: flattened(&logits)?, statistics })
    }

    fn through(
        &self,
        x: Tensor,
        depth: Range<Depth>,
        statistics: Option<&[DeviceTensor; 2]>,
    ) -> Result<Tensor> {
        let mut attend = PlannedAttention { step: self, statistics };
        let mut hooks = Hooks::none();
        let sequences =
            [SequenceRows { rows: 1, sequence_len: self.sequence_len, first_decode: self.position }];
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequences: &sequences,
            compute: ComputeType::Bf16,
            rows_on_device: Some(&self.plan.row),
        };
        self.decoder.forward(x, &[self.position], depth, &mut pass)
    }

    /// Stores K and V of the layers from `first` on, projected from the residual stream `x [1, d]` that enters it.
    fn project_shared(&self, x: &Tensor, first: usize) -> Result<()> {
        let of = KeysValuesOf {
            layers: first..self.plan.layers.len(),
            shared_norm: Some(first),
            first_decode: self.position,
            sequence_len: self.sequence_len,
            compute: ComputeType::Bf16,
            rows_on_device: Some(&self.plan.row),
        };
        if of.layers.is_empty() {
            return Ok(());
        }
        self.decoder.project_keys_values(x, &[self.position], of, &mut Hooks::none(), &mut |layer, kv| {
            self.append(layer, kv)
        })
    }

    fn append(&self, layer: usize, kv: [&Tensor; 2]) -> Result<()> {
        let LayerPlan { first_slots, .. } = &self.plan.layers[layer];
        self.store.append_on_device(layer, first_slots, &self.plan.decoded, kv)
    }
}

impl Output {
    /// Copied to where the next step does not write.
    fn taken(&self) -> Result<(Tensor, Vec<LayerStatistics>)> {
        let logits = self.logits.on_device().map(DeviceTensor::copied).transpose()?;
        let logits = logits.ok_or_else(|| Error::failure("logits are not on the GPU; please report this"))?;
        let Some([mass, entropy]) = &self.statistics else { return Ok((logits.into(), vec![])) };
        let heads = mass.dims()[1];
        let (mass, entropy) = (by_segment(mass)?, by_segment(entropy)?);
        let layers = mass.chunks_exact(heads).zip(entropy.chunks_exact(heads)).enumerate();
        let statistics = layers.map(|(layer, (mass, entropy))| {
            let rows = AttentionStatistics { mass: mass.to_vec(), entropy: entropy.to_vec() };
            LayerStatistics { rows, received: Received::new(0) }.checked(layer)
        });
        Ok((logits.into(), statistics.collect::<Result<_>>()?))
    }
}

/// Attention of the one row over the keys of the plan.
struct PlannedAttention<'a> {
    step: &'a Step<'a>,
    /// Mass and entropy, `[layers, H, segments]`.
    statistics: Option<&'a [DeviceTensor; 2]>,
}

impl Attend for PlannedAttention<'_> {
    fn has_keys_values(&self, layer: usize) -> bool {
        self.step.policy.shares_norm_at(layer)
    }

    fn attend(
        &mut self,
        at: Location<'_>,
        q: &Tensor,
        kv: Option<[&Tensor; 2]>,
        _: &mut Hooks<'_>,
    ) -> Result<Tensor> {
        let Step { decoder, policy, store, plan, .. } = *self.step;
        let (shape, layer) = (policy.attention_shape(decoder, at.layer), &plan.layers[at.layer]);
        if let Some(kv) = kv {
            self.step.append(at.layer, kv)?;
        }
        let q =
            q.on_device().ok_or_else(|| Error::failure("a query is not on the GPU; please report this"))?;
        let output = DeviceTensor::undefined(q.device(), q.element(), q.dims())?;
        let measured = match self.statistics {
            Some([mass, entropy]) => Some([mass.narrow(at.layer, 1)?, entropy.narrow(at.layer, 1)?]),
            None => None,
        };
        let keys = DeviceKeys {
            spans: &layer.spans,
            count: layer.span_count,
            at_most: layer.keys_at_most,
            element: store.precision().device_element(),
            decoded: Some(&plan.decoded),
        };
        spans::attention(&SpanAttention {
            statistics: measured.as_ref().map(|[mass, entropy]| StatisticsOnDevice {
                mass: mass.numbers(),
                entropy: entropy.numbers(),
            }),
            ..keys.attention(shape, &plan.row.positions, [q, &output])
        })?;
        Ok(output.into())
    }
}
