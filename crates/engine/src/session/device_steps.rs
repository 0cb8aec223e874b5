//! Decode steps on a GPU, one token each: the same work every time, so that from the second on it is queued as one graph.
//!
//! What changes between steps is in the GPU's memory: the token, its position, and how many tokens were decoded, by which
//! the last span of keys has grown. Kernels read it when they run.

use super::attention::shape_under;
use super::blocks::Blocks;
use super::device_attention::by_segment;
use super::{LayerStatistics, Session, flattened, through_layers};
use crate::decoder::{Attend, Decoder, Location, Pass, RowsOnDevice};
use crate::hooks::Hooks;
use crate::kv::KvStore;
use crate::tensor::{DeviceTensor, Tensor};
use crate::{ComputeType, Depth, Device, Error, Policy, Result};
use layerscope_kernels::attention::cuda::spans::{self, SpanAttention, StatisticsOnDevice};
use layerscope_kernels::cuda::{self, Buffer, Element, Graph, Pool, store};
use layerscope_kernels::{AttentionStatistics, Received, SEGMENTS, Segment};
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
    /// Where the first step stores its key.
    first_slot: usize,
    keys_at_most: usize,
}

impl Session<'_> {
    /// Whether steps are the same work each time: on a GPU they are, unless decode rows do not see each other, or experts or
    /// prompt tokens take turns, whom the host chooses.
    pub(super) fn can_step_on_device(&self) -> bool {
        let (config, rules) = (self.decoder.config(), self.policy.rules());
        matches!(self.decoder.device(), Device::Cuda(_))
            && config.experts.is_none()
            && !self.blocks.as_ref().is_some_and(Blocks::changes)
            && self.tokens.is_none()
            && (0..config.layers).all(|layer| rules.decode_rows_see_each_other(layer))
    }

    pub(super) fn step_on_device(
        &mut self,
        token: u32,
        statistics: Option<&mut Vec<LayerStatistics>>,
    ) -> Result<Tensor> {
        assert!(self.len + 1 >= self.prompt_len, "decode comes after prefill");
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
            None => DeviceSteps::new(self.decoder, &self.store, self.prompt_len, self.len)?,
        };
        steps.plan.row.tokens.write(0, &[token])?;
        let step = Step {
            decoder: self.decoder,
            policy: &self.policy,
            store: &self.store,
            sequence_len: self.sequence_len,
            position: self.len,
            plan: &steps.plan,
            with_statistics: statistics.is_some(),
        };
        let (logits, found) = step.advance(&mut steps.stages[usize::from(step.with_statistics)])?;
        if let Some(statistics) = statistics {
            statistics.extend(found);
        }
        for layer in 0..layers {
            self.store.note(layer, &[self.len]);
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
        let mut spans = store.device_spans(layer, Some(prompt_len));
        let decode = Segment::Decode as u32;
        let joins = |span: &spans::DeviceKeySpan| {
            span.segment == decode && (span.first_position + span.len) as usize == position
        };
        match spans.last_mut().filter(|span| joins(span)) {
            Some(span) => (span.len, span.grows) = (span.len + 1, 1),
            None => spans.push(store.device_span_of_next(layer, position)),
        }
        let on_device = device.allocate(size_of_val(spans.as_slice()))?;
        on_device.write(0, &spans)?;
        Ok(Self {
            spans: on_device,
            span_count: spans.len(),
            first_slot: store.len(layer),
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
        let mut attend = PlannedAttention { step: self, statistics: statistics.as_ref() };
        let mut hooks = Hooks::none();
        let mut pass = Pass {
            attend: &mut attend,
            hooks: &mut hooks,
            sequence_len: self.sequence_len,
            compute: ComputeType::Bf16,
            rows_on_device: Some(&plan.row),
            keys_values_from: None,
        };
        let (x, depth) = (decoder.embed_on_device(&plan.row, 1)?, Depth::of_layers(0..plan.layers.len()));
        let above = self.policy.rules().keys_values_above();
        let x = through_layers(decoder, above, x, &[self.position], depth, &mut pass)?;
        let logits = decoder.unembed(&x, &[self.position], &mut Hooks::none(), ComputeType::Bf16)?;
        store::advance(&plan.row.positions, 1, &plan.decoded)?;
        Ok(Output { logits: flattened(&logits)?, statistics })
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
        let layers = mass.chunks_exact(heads).zip(entropy.chunks_exact(heads));
        let statistics = layers.map(|(mass, entropy)| LayerStatistics {
            rows: AttentionStatistics { mass: mass.to_vec(), entropy: entropy.to_vec() },
            received: Received::new(0),
        });
        Ok((logits.into(), statistics.collect()))
    }
}

/// Attention of the one row over the keys of the plan.
struct PlannedAttention<'a> {
    step: &'a Step<'a>,
    /// Mass and entropy, `[layers, H, segments]`.
    statistics: Option<&'a [DeviceTensor; 2]>,
}

impl Attend for PlannedAttention<'_> {
    fn attend(&mut self, at: Location<'_>, [q, k, v]: [&Tensor; 3], _: &mut Hooks<'_>) -> Result<Tensor> {
        let Step { decoder, policy, store, plan, .. } = *self.step;
        let (shape, layer) = (shape_under(policy.rules(), decoder, at.layer), &plan.layers[at.layer]);
        store.append_on_device(at.layer, layer.first_slot, Some(&plan.decoded), [k, v])?;
        let q =
            q.on_device().ok_or_else(|| Error::failure("a query is not on the GPU; please report this"))?;
        let output = DeviceTensor::undefined(q.device(), q.element(), q.dims())?;
        let found = match self.statistics {
            Some([mass, entropy]) => Some([mass.narrow(at.layer, 1)?, entropy.narrow(at.layer, 1)?]),
            None => None,
        };
        spans::attention(&SpanAttention {
            shape,
            queries: q.numbers(),
            positions: &plan.row.positions,
            rows: 1,
            spans: &layer.spans,
            span_count: layer.span_count,
            keys_at_most: layer.keys_at_most,
            key_element: store.precision().device_element(),
            rows_per_copy: 1,
            visible_spans: None,
            decoded: Some(&plan.decoded),
            output: output.numbers(),
            statistics: found.as_ref().map(|[mass, entropy]| StatisticsOnDevice {
                mass: mass.numbers(),
                entropy: entropy.numbers(),
            }),
            normalisers: None,
        })?;
        Ok(output.into())
    }
}
