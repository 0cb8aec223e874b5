//! The parts of a layer that attention and MLP share: experts, residual additions, norms and hook points.

use super::SequenceRows;
use super::experts::ExpertLayer;
use super::forward::Layer;
use super::layer::{Norm, Projection};
use crate::hooks::Site;
use crate::tensor::{Tensor, with_f32};
use crate::weights::LinearMode;
use crate::{ComputeType, Result};

/// What happens to the output of attention or MLP before it is added to the residual stream.
pub(super) struct Output<'a> {
    pub(super) norm: &'a Option<Norm>,
    /// The hook point of the normalised output.
    pub(super) normalized: Site,
    /// The hook point of what is added.
    pub(super) site: Site,
}

impl<'p> Layer<'p, '_, '_> {
    /// Σ weight·expert(x) over the experts that each row is routed to; of each sequence on its own.
    pub(super) fn experts(&self, layer: &ExpertLayer, x: &Tensor) -> Result<Tensor> {
        if let [_] = self.pass.sequences {
            return self.experts_of_sequence(layer, x);
        }
        let mut first = 0;
        let of_sequence = |sequence: &SequenceRows| {
            first += sequence.rows;
            self.experts_of_sequence(layer, &x.narrow(first - sequence.rows, sequence.rows)?)
        };
        let sums = self.pass.sequences.iter().map(of_sequence).collect::<Result<Vec<_>>>()?;
        Tensor::cat(&sums.iter().collect::<Vec<_>>())
    }

    fn experts_of_sequence(&self, layer: &ExpertLayer, x: &Tensor) -> Result<Tensor> {
        let (compute, f) = (self.pass.compute, self.config.activation);
        // In f32: a rounded score may choose another expert.
        let scores = layer.router.forward(x, ComputeType::F32)?;
        let routes = with_f32(&scores, |scores| layer.route(scores))?;
        let mut sum = x.zeros(x.dims())?;
        for (expert, route) in layer.experts.iter().zip(&routes).filter(|(_, route)| !route.rows.is_empty()) {
            let x = x.select(&route.rows)?;
            let gated = Projection::forward_gated(f, [&expert.gate, &expert.up], &x, compute.into())?;
            sum.add_weighted_rows(
                &expert.down.forward(&gated, compute.into())?,
                &route.rows,
                &route.weights,
            )?;
        }
        Ok(sum)
    }

    /// residual + projection(x): one operation where nothing happens in between.
    pub(super) fn add_projected(
        &mut self,
        residual: &Tensor,
        projection: &Projection,
        x: &Tensor,
        output: Output<'_>,
    ) -> Result<Tensor> {
        let direct = output.norm.is_none() && self.config.residual_scale == 1.0 && !self.hooked(output.site);
        match direct {
            true => projection.forward_with_residual(x, residual, self.mode()),
            false => self.add(residual, projection.forward(x, self.mode())?, output),
        }
    }

    /// residual + norm(y) · residual_scale.
    pub(super) fn add(&mut self, residual: &Tensor, y: Tensor, output: Output<'_>) -> Result<Tensor> {
        let y = match output.norm {
            Some(norm) => norm.forward_hooked(&y, self.at, output.normalized, self.pass.hooks, None)?,
            None => y,
        };
        residual.add(&self.hook(output.site, y.scaled(self.config.residual_scale)?)?)
    }

    /// norm(x), if there is a norm, in the type in which rows are multiplied.
    pub(super) fn norm(&mut self, norm: &Option<Norm>, x: &Tensor, site: Site) -> Result<Tensor> {
        let compute = self.pass.compute;
        match norm {
            Some(norm) => norm.forward_hooked(x, self.at, site, self.pass.hooks, Some(compute)),
            None => x.for_products(compute),
        }
    }

    pub(super) fn mode(&self) -> LinearMode<'p> {
        LinearMode { compute: self.pass.compute, rows: Some(self.rows), adapted: self.adapted }
    }

    /// `[rows, heads · head_dim]` to `[rows, heads, head_dim]`.
    pub(super) fn by_head(&self, x: &Tensor, heads: usize) -> Result<Tensor> {
        x.reshape(&[self.at.positions.len(), heads, self.config.head_dim])
    }

    pub(super) fn hook(&mut self, site: Site, x: Tensor) -> Result<Tensor> {
        self.pass.hooks.visit(self.at.layer, site, self.at.positions, x)
    }

    pub(super) fn hooked(&self, site: Site) -> bool {
        self.pass.hooks.wants(self.at.layer, site)
    }
}
