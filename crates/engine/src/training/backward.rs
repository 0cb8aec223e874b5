//! The backward pass through the layers.

use super::attention::{self, matrix, numbers};
use super::derivatives::{activation, norm as norm_gradient, rotation};
use super::{Rows, SavedLayer, Tape, TrainingSequence};
use crate::adapter::{Adapter, Target};
use crate::decoder::experts::{Expert, ExpertLayer};
use crate::decoder::layer::{LayerWeights, Mlp, Norm, Projection};
use crate::policy::Visibility;
use crate::product::product;
use crate::tensor::Tensor;
use crate::weights::Linear;
use crate::{ComputeType, Decoder, Error, Result};
use ndarray::{Array2, ArrayView2, Axis};
use std::collections::BTreeMap;

/// The matrices once more, transposed, which gradients are multiplied with.
pub struct BackwardWeights {
    layers: Vec<TransposedLayer>,
    unembedding: Linear,
    compute: ComputeType,
}

struct TransposedLayer {
    matrices: BTreeMap<Target, Linear>,
    /// Gate, up and down of each expert.
    experts: Vec<[Linear; 3]>,
    router: Option<Linear>,
}

/// Gradients of one matrix's addition.
#[derive(Debug, Clone, PartialEq)]
pub struct Gradient {
    /// Of A, `[rank, in]`; empty where A is the identity, which is not trained.
    pub a: Array2<f32>,
    /// Of B, `[out, rank]`.
    pub b: Array2<f32>,
}

/// Gradients of an adapter, by layer and target.
pub type Gradients = BTreeMap<(usize, Target), Gradient>;

impl BackwardWeights {
    /// Of a model, in the type in which rows are multiplied: bf16 takes two bytes a weight, f32 four.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn new(decoder: &Decoder, compute: ComputeType) -> Result<Self> {
        let layers = (0..decoder.config().layers).map(|layer| {
            let layer_weights = decoder.layer(layer)?;
            let matrices = Target::ALL.into_iter().filter_map(|target| {
                let projection = layer_weights.projection(target)?;
                Some(projection.weight.transposed(compute).map(|transposed| (target, transposed)))
            });
            let (mut experts, mut router) = (vec![], None);
            if let Mlp::Experts(layer) = &layer_weights.mlp {
                for Expert { gate, up, down } in &layer.experts {
                    let [gate, up, down] = [gate, up, down].map(|one| one.weight.transposed(compute));
                    experts.push([gate?, up?, down?]);
                }
                router = Some(layer.router.transposed(ComputeType::F32)?);
            }
            Ok(TransposedLayer { matrices: matrices.collect::<Result<_>>()?, experts, router })
        });
        let layers = layers.collect::<Result<_>>()?;
        Ok(Self { layers, unembedding: decoder.unembedding().weight.transposed(compute)?, compute })
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let of_layer = |layer: &TransposedLayer| {
            let others = layer.experts.iter().flatten().chain(&layer.router);
            layer.matrices.values().chain(others).map(Linear::bytes).sum::<usize>()
        };
        self.layers.iter().map(of_layer).sum::<usize>() + self.unembedding.bytes()
    }
}

/// The gradient of the residual stream `x [rows, d]` that `logits` `[rows, V]` were made from, from that of the logits.
///
/// # Errors
/// [`Error::Misuse`] where sizes do not agree.
pub fn unembed_backward(
    decoder: &Decoder,
    weights: &BackwardWeights,
    x: &Tensor,
    logits: &[f32],
    mut dlogits: Vec<f32>,
) -> Result<Array2<f32>> {
    let config = decoder.config();
    if let Some(cap) = config.logit_soft_cap {
        let cap = cap as f32;
        for (gradient, logit) in dlogits.iter_mut().zip(logits) {
            *gradient *= 1.0 - (logit / cap) * (logit / cap);
        }
    }
    let scale = config.logit_scale as f32;
    if scale != 1.0 {
        dlogits.iter_mut().for_each(|gradient| *gradient *= scale);
    }
    let dlogits = Tensor::from_vec(dlogits, &[x.rows(), config.vocab])?;
    let dnormed = matrix(&weights.unembedding.forward(&dlogits, weights.compute)?)?;
    through_norm(Some(decoder.final_norm()), &matrix(x)?, dnormed)
}

/// Gradients of an adapter from that of the tape's last residual stream `[rows, d]`. `decoder` is the adapted one that the tape is
/// of.
///
/// # Errors
/// [`Error::Misuse`] where they do not belong together.
pub fn backward(
    decoder: &Decoder,
    weights: &BackwardWeights,
    adapter: &Adapter,
    (batch, visibility): (&[TrainingSequence], &Visibility),
    tape: &Tape,
    dlast: Array2<f32>,
) -> Result<Gradients> {
    let Some(first) = adapter.matrices().keys().map(|(layer, _)| *layer).min() else {
        return Ok(Gradients::new());
    };
    let mut gradients = Gradients::new();
    let mut dx = dlast;
    for layer in (first..decoder.config().layers).rev() {
        if layer + 1 == tape.cutoff && tape.kept.len() < tape.rows[0].positions.len() {
            // Rows that ended at the cutoff have no gradient from above.
            let mut all = Array2::zeros((tape.rows[0].positions.len(), dx.ncols()));
            for (row, gradient) in tape.kept.iter().zip(dx.outer_iter()) {
                all.row_mut(*row as usize).assign(&gradient);
            }
            dx = all;
        }
        let mut backward = LayerBackward {
            decoder,
            layer,
            weights: decoder.layer(layer)?,
            transposed: &weights.layers[layer],
            compute: weights.compute,
            adapter,
            rows: &tape.rows[usize::from(layer >= tape.cutoff)],
            saved: &tape.layers[layer],
            gradients: &mut gradients,
        };
        dx = backward.run(&tape.attention[layer], (batch, visibility), dx)?;
    }
    Ok(gradients)
}

struct LayerBackward<'a> {
    decoder: &'a Decoder,
    layer: usize,
    weights: &'a LayerWeights,
    transposed: &'a TransposedLayer,
    compute: ComputeType,
    adapter: &'a Adapter,
    rows: &'a Rows,
    saved: &'a SavedLayer,
    gradients: &'a mut Gradients,
}

impl LayerBackward<'_> {
    /// The gradient of the residual stream before the layer from that behind it.
    fn run(
        &mut self,
        attention: &attention::SavedAttention,
        (batch, visibility): (&[TrainingSequence], &Visibility),
        dx: Array2<f32>,
    ) -> Result<Array2<f32>> {
        let config = self.decoder.config();
        let parallel = config.parallel_residual;
        let (weights, saved) = (self.weights, self.saved);
        let mid = if parallel { &saved.pre } else { &saved.mid };
        let normed = self.normed(&weights.mlp_norm, mid)?;
        let dy = self.output(&weights.mlp_post_norm, &dx, |layer| layer.mlp_output(&normed))?;
        let dnormed = self.mlp(&normed, dy)?;
        let dmid = through_norm(weights.mlp_norm.as_ref(), mid, dnormed)?;
        // What reaches attention's output: with parallel halves the layer's alone.
        let (mut dpre, at_attention) = match parallel {
            true => (&dx + &dmid, dx),
            false => {
                let sum = dx + &dmid;
                (sum.clone(), sum)
            }
        };
        let z = attention.z.view();
        let dy = self.output(&weights.attention_post_norm, &at_attention, |layer| {
            let z = tensor(&z)?;
            matrix(&layer.weights.attention_output.forward(&z, layer.compute.into())?)
        })?;
        let dz = self.linear(Target::AttentionOutput, &z, &dy)?;
        let place = (self.rows, self.layer);
        let [mut dq, mut dk, dv] =
            attention::backward(self.decoder, batch, visibility, place, attention, &dz);
        if let Some([cos, sin]) =
            self.decoder.rotation_of(self.layer, &self.rows.positions, &self.rows.sequences)?
        {
            rotation([&cos, &sin], config.head_dim, &mut dq);
            rotation([&cos, &sin], config.head_dim, &mut dk);
        }
        if let Some([query, key]) = &weights.query_key_norms {
            dq = through_norm(Some(query), &saved.query, dq)?;
            dk = through_norm(Some(key), &saved.key, dk)?;
        }
        let normed = self.normed(&weights.attention_norm, &saved.pre)?;
        let mut dnormed = self.linear(Target::Query, &normed.view(), &dq)?;
        dnormed += &self.linear(Target::Key, &normed.view(), &dk)?;
        dnormed += &self.linear(Target::Value, &normed.view(), &dv)?;
        dpre += &through_norm(weights.attention_norm.as_ref(), &saved.pre, dnormed)?;
        Ok(dpre)
    }

    fn normed(&self, norm: &Option<Norm>, x: &Array2<f32>) -> Result<Array2<f32>> {
        match norm {
            Some(norm) => matrix(&norm.forward(&tensor(&x.view())?, Some(self.compute))?),
            None => Ok(x.clone()),
        }
    }

    /// The gradient of what attention or MLP puts out, before its norm and its factor, from that of the residual stream.
    fn output(
        &self,
        norm: &Option<Norm>,
        dx: &Array2<f32>,
        before_norm: impl FnOnce(&Self) -> Result<Array2<f32>>,
    ) -> Result<Array2<f32>> {
        let dy = dx * self.decoder.config().residual_scale as f32;
        match norm {
            Some(norm) => through_norm(Some(norm), &before_norm(self)?, dy),
            None => Ok(dy),
        }
    }

    /// The MLP's output before its norm.
    fn mlp_output(&self, normed: &Array2<f32>) -> Result<Array2<f32>> {
        let f = self.decoder.config().activation;
        match &self.weights.mlp {
            Mlp::Gated { down, .. } | Mlp::Plain { down, .. } => {
                let (hidden, ..) = self.hidden(f);
                matrix(&down.forward(&tensor(&hidden.view())?, self.compute.into())?)
            }
            Mlp::Experts(experts) => {
                let mut sum = Array2::zeros(normed.raw_dim());
                for run in self.expert_runs(experts, normed)? {
                    for ((row, weight), output) in
                        run.rows.iter().zip(&run.weights).zip(run.output.outer_iter())
                    {
                        sum.row_mut(*row as usize).scaled_add(*weight, &output);
                    }
                }
                Ok(sum)
            }
        }
    }

    /// The input of the down projection, and the derivatives of it by gate and by up projection (1 where there is no gate).
    fn hidden(&self, f: crate::Activation) -> (Array2<f32>, Array2<f32>, Array2<f32>) {
        let SavedLayer { gate, up, .. } = self.saved;
        let mut hidden = gate.mapv(|x| activation(f, x)[0]);
        let mut by_gate = gate.mapv(|x| activation(f, x)[1]);
        let by_up = hidden.clone();
        if !up.is_empty() {
            hidden *= up;
            by_gate *= up;
        }
        (hidden, by_gate, by_up)
    }

    /// The gradient of the MLP's input from that of its output.
    fn mlp(&mut self, normed: &Array2<f32>, dy: Array2<f32>) -> Result<Array2<f32>> {
        let f = self.decoder.config().activation;
        match &self.weights.mlp {
            Mlp::Gated { .. } => {
                let (hidden, by_gate, by_up) = self.hidden(f);
                let dhidden = self.linear(Target::Down, &hidden.view(), &dy)?;
                let mut dx = self.linear(Target::Gate, &normed.view(), &(by_gate * &dhidden))?;
                dx += &self.linear(Target::Up, &normed.view(), &(by_up * &dhidden))?;
                Ok(dx)
            }
            Mlp::Plain { .. } => {
                let (hidden, by_up, _) = self.hidden(f);
                let dhidden = self.linear(Target::Down, &hidden.view(), &dy)?;
                self.linear(Target::Up, &normed.view(), &(by_up * &dhidden))
            }
            Mlp::Experts(experts) => self.experts(experts, normed, &dy),
        }
    }

    /// The gradient of a projection's input; adds that of its addition to the gradients.
    fn linear(&mut self, target: Target, x: &ArrayView2<'_, f32>, dy: &Array2<f32>) -> Result<Array2<f32>> {
        let transposed = self.transposed.matrices.get(&target);
        let transposed = transposed.ok_or_else(|| Error::misuse("a matrix is missing"))?;
        let mut dx = matrix(&transposed.forward(&tensor(&dy.view())?, self.compute)?)?;
        if let Some(addition) = self.adapter.matrices().get(&(self.layer, target)) {
            let projection = self.weights.projection(target);
            let dropout = projection.and_then(|projection| projection.addition.as_ref()?.dropout);
            let dropped = |mut x: Array2<f32>| {
                if let Some((dropout, matrix)) = dropout {
                    dropout.apply(matrix, numbers(&mut x));
                }
                x
            };
            let kept = dropout.map(|_| dropped(x.to_owned()));
            let x = kept.as_ref().map_or(x.view(), |kept| kept.view());
            let (a, b) = (view(&addition.a, addition.columns())?, view(&addition.b, addition.rank)?);
            let dlow = product(&dy.view(), &b, addition.scale);
            let gradient = match addition.is_of_full_rank() {
                true => {
                    dx += &dropped(dlow);
                    Gradient { a: Array2::zeros((0, 0)), b: product(&dy.t(), &x, addition.scale) }
                }
                false => {
                    dx += &dropped(product(&dlow.view(), &a, 1.0));
                    let low = product(&x, &a.t(), 1.0);
                    let b = product(&dy.t(), &low.view(), addition.scale);
                    Gradient { a: product(&dlow.t(), &x, 1.0), b }
                }
            };
            self.gradients.insert((self.layer, target), gradient);
        }
        Ok(dx)
    }
}

/// An expert's rows, their weights, and what it makes of them.
struct ExpertRun {
    expert: usize,
    rows: Vec<u32>,
    weights: Vec<f32>,
    gate: Array2<f32>,
    up: Array2<f32>,
    output: Array2<f32>,
}

impl LayerBackward<'_> {
    fn expert_runs(&self, layer: &ExpertLayer, normed: &Array2<f32>) -> Result<Vec<ExpertRun>> {
        let (x, f) = (tensor(&normed.view())?, self.decoder.config().activation);
        let scores = layer.router.forward(&x, ComputeType::F32)?.to_vec()?;
        let mut runs = vec![];
        for (expert, route) in layer.route(&scores).into_iter().enumerate() {
            if route.rows.is_empty() {
                continue;
            }
            let (weights, x) = (&layer.experts[expert], x.select(&route.rows)?);
            let both = Projection::forward_together([&weights.gate, &weights.up], &x, self.compute.into())?;
            let [gate, up] = both;
            let output = weights.down.forward(&gate.gated(f, &up)?, self.compute.into())?;
            runs.push(ExpertRun {
                expert,
                rows: route.rows,
                weights: route.weights,
                gate: matrix(&gate)?,
                up: matrix(&up)?,
                output: matrix(&output)?,
            });
        }
        Ok(runs)
    }

    fn experts(&self, layer: &ExpertLayer, normed: &Array2<f32>, dy: &Array2<f32>) -> Result<Array2<f32>> {
        let f = self.decoder.config().activation;
        let count = layer.experts.len();
        let mut dx = Array2::zeros(normed.raw_dim());
        // Of each row: weights of experts, and their gradients; 0 where an expert is not used.
        let mut weights = Array2::zeros((normed.nrows(), count));
        let mut dweights = Array2::zeros((normed.nrows(), count));
        let mut used = Array2::from_elem((normed.nrows(), count), false);
        for run in self.expert_runs(layer, normed)? {
            let rows: Vec<usize> = run.rows.iter().map(|&row| row as usize).collect();
            let mut dy = dy.select(Axis(0), &rows);
            for (index, &row) in rows.iter().enumerate() {
                dweights[[row, run.expert]] = run.output.row(index).dot(&dy.row(index));
                weights[[row, run.expert]] = run.weights[index];
                used[[row, run.expert]] = true;
                dy.row_mut(index).mapv_inplace(|dy| dy * run.weights[index]);
            }
            let [gate, up, down] = &self.transposed.experts[run.expert];
            let back = |weights: &Linear, dy: &Array2<f32>| {
                matrix(&weights.forward(&tensor(&dy.view())?, self.compute)?)
            };
            let dhidden = back(down, &dy)?;
            let dgate = run.gate.mapv(|x| activation(f, x)[1]) * &run.up * &dhidden;
            let dup = run.gate.mapv(|x| activation(f, x)[0]) * &dhidden;
            let through = back(gate, &dgate)? + back(up, &dup)?;
            for (&row, gradient) in rows.iter().zip(through.outer_iter()) {
                let mut sum = dx.row_mut(row);
                sum += &gradient;
            }
        }
        dx += &self.router(layer, normed, [&weights, &dweights], &used)?;
        Ok(dx)
    }

    /// The gradient through the weights of experts: a softmax over all scores, or over those of the experts that are used.
    fn router(
        &self,
        layer: &ExpertLayer,
        normed: &Array2<f32>,
        [weights, dweights]: [&Array2<f32>; 2],
        used: &Array2<bool>,
    ) -> Result<Array2<f32>> {
        let Some(router) = &self.transposed.router else { return Ok(Array2::zeros(normed.raw_dim())) };
        let mut dscores = Array2::zeros(weights.raw_dim());
        let scores = match layer.normalized {
            true => None,
            false => Some(matrix(&layer.router.forward(&tensor(&normed.view())?, ComputeType::F32)?)?),
        };
        for (row, mut dscores) in dscores.outer_iter_mut().enumerate() {
            let along: f32 = weights.row(row).dot(&dweights.row(row));
            for (expert, dscore) in dscores.iter_mut().enumerate() {
                // p·(∂L/∂p − Σ p·∂L/∂p), where p of an unused expert is not 0 if all share the softmax.
                let p = match &scores {
                    None => weights[[row, expert]],
                    Some(scores) => {
                        let max = scores.row(row).iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        let all: f32 = scores.row(row).iter().map(|score| (score - max).exp()).sum();
                        (scores[[row, expert]] - max).exp() / all
                    }
                };
                let own = if used[[row, expert]] { dweights[[row, expert]] } else { 0.0 };
                *dscore = p * (own - along);
            }
        }
        matrix(&router.forward(&tensor(&dscores.view())?, ComputeType::F32)?)
    }
}

fn through_norm(norm: Option<&Norm>, x: &Array2<f32>, dy: Array2<f32>) -> Result<Array2<f32>> {
    match norm {
        Some(norm) => {
            let weight = norm.weight.to_vec()?;
            Ok(norm_gradient(&weight, norm.bias.is_some(), norm.epsilon, &x.view(), &dy))
        }
        None => Ok(dy),
    }
}

fn view(numbers: &[f32], columns: usize) -> Result<ArrayView2<'_, f32>> {
    let rows = numbers.len() / columns.max(1);
    ArrayView2::from_shape((rows, columns), numbers)
        .map_err(|_| Error::misuse("an adapter's matrix has another size than its rank says"))
}

fn tensor(x: &ArrayView2<'_, f32>) -> Result<Tensor> {
    let numbers = x.as_slice().map_or_else(|| x.iter().copied().collect(), <[f32]>::to_vec);
    Tensor::from_vec(numbers, &[x.nrows(), x.ncols()])
}
