//! Reading a decoder's weights.

use super::Decoder;
use super::experts::{Expert, ExpertLayer};
use super::layer::{LayerWeights, Mlp, Norm, Projection};
use super::rotary::RotaryTables;
use crate::config::{Experts, NormKind, NormPlacement, QueryKeyNorm};
use crate::tensor::Tensor;
use crate::weights::{Embedding, Linear, Weight, WeightSource, WeightsPrecision};
use crate::{Device, Error, KvPrecision, ModelConfig, Result};
use std::sync::Arc;

impl Decoder {
    /// Loads every weight, onto a device; `progress(done, all)` is called after each layer and may break off with an error.
    ///
    /// # Errors
    /// [`Error::MalformedFile`] where a weight is missing, misshapen, cut short or left over.
    pub fn load(
        config: ModelConfig,
        source: &dyn WeightSource,
        precision: WeightsPrecision,
        device: &Device,
        progress: &mut dyn FnMut(usize, usize) -> Result<()>,
    ) -> Result<Self> {
        let loader = Loader { config: &config, source, precision, device };
        let d = config.hidden;
        let embedding = loader.matrix(Weight::Embedding, config.vocab, d)?;
        let position_embedding = match config.learned_positions {
            true => Some(Embedding(loader.matrix(Weight::PositionEmbedding, config.context, d)?)),
            false => None,
        };
        let unembedding = match config.tied_embeddings {
            true => {
                // A copy that the file may have all the same.
                if source.has(Weight::Unembedding) {
                    source.linear(Weight::Unembedding, (config.vocab, d), precision)?;
                }
                Projection {
                    weight: embedding.clone(),
                    bias: loader.bias(Weight::Unembedding, config.vocab)?,
                    addition: None,
                }
            }
            false => loader.projection(Weight::Unembedding, config.vocab, d)?,
        };
        let mut layers = Vec::with_capacity(config.layers);
        for l in 0..config.layers {
            layers.push(loader.layer(l)?);
            progress(l + 1, config.layers)?;
        }
        let final_norm = loader.norm(Weight::FinalNorm, d)?;
        source.check_all_read()?;
        // Elsewhere the weights are copies.
        let in_place = precision == WeightsPrecision::Native && matches!(device, Device::Cpu);
        Ok(Self {
            mapped_files: if in_place { source.mapped_files() } else { vec![] },
            weights: Arc::default(),
            embedding: Embedding(embedding),
            position_embedding,
            layers,
            final_norm,
            unembedding,
            rotary: RotaryTables::new(&config),
            adapter_rows: None,
            precision,
            kv: KvPrecision::with(precision, device),
            device: device.clone(),
            config,
        })
    }
}

struct Loader<'a> {
    config: &'a ModelConfig,
    source: &'a dyn WeightSource,
    precision: WeightsPrecision,
    device: &'a Device,
}

impl Loader<'_> {
    fn layer(&self, l: usize) -> Result<LayerWeights> {
        let config = self.config;
        let (d, q, kv) = (config.hidden, config.query_width(), config.kv_width());
        let before = config.norm_placement != NormPlacement::After;
        let after = config.norm_placement != NormPlacement::Before;
        let norm = |wanted: bool, weight| wanted.then(|| self.norm(weight, d)).transpose();
        Ok(LayerWeights {
            attention_norm: norm(before, Weight::AttentionNorm(l))?,
            query: self.projection(Weight::Query(l), q, d)?,
            key: self.projection(Weight::Key(l), kv, d)?,
            value: self.projection(Weight::Value(l), kv, d)?,
            query_key_norms: match config.query_key_norm {
                None => None,
                Some(over) => {
                    let (q, kv) = match over {
                        QueryKeyNorm::EachHead => (config.head_dim, config.head_dim),
                        QueryKeyNorm::AllHeads => (q, kv),
                    };
                    Some([self.norm(Weight::QueryNorm(l), q)?, self.norm(Weight::KeyNorm(l), kv)?])
                }
            },
            attention_output: self.projection(Weight::AttentionOutput(l), d, q)?,
            attention_post_norm: norm(after, Weight::AttentionPostNorm(l))?,
            mlp_norm: norm(before, Weight::MlpNorm(l))?,
            mlp: self.mlp(l)?,
            mlp_post_norm: norm(after, Weight::MlpPostNorm(l))?,
        })
    }

    fn mlp(&self, l: usize) -> Result<Mlp> {
        let (d, f) = (self.config.hidden, self.config.feed_forward);
        if self.source.has(Weight::Router(l)) {
            return match &self.config.experts {
                Some(experts) => self.experts(l, experts).map(Mlp::Experts),
                None => Err(Error::input(format!(
                    "layer {l} has a router of experts, which architecture `{}` does not have",
                    self.config.architecture
                ))),
            };
        }
        let (up, down) = (self.projection(Weight::Up(l), f, d)?, self.projection(Weight::Down(l), d, f)?);
        Ok(match self.config.gated {
            true => Mlp::Gated { gate: self.projection(Weight::Gate(l), f, d)?, up, down },
            false => Mlp::Plain { up, down },
        })
    }

    fn experts(&self, l: usize, config: &Experts) -> Result<ExpertLayer> {
        let (d, f) = (self.config.hidden, config.feed_forward);
        let experts = (0..config.count).map(|e| {
            Ok(Expert {
                gate: self.projection(Weight::ExpertGate(l, e), f, d)?,
                up: self.projection(Weight::ExpertUp(l, e), f, d)?,
                down: self.projection(Weight::ExpertDown(l, e), d, f)?,
            })
        });
        Ok(ExpertLayer {
            router: self.matrix(Weight::Router(l), config.count, d)?,
            experts: experts.collect::<Result<_>>()?,
            used: config.used,
            normalized: config.normalized,
        })
    }

    fn projection(&self, weight: Weight, rows: usize, columns: usize) -> Result<Projection> {
        let (matrix, bias) = (self.matrix(weight, rows, columns)?, self.bias(weight, rows)?);
        Ok(Projection { weight: matrix, bias, addition: None })
    }

    fn matrix(&self, weight: Weight, rows: usize, columns: usize) -> Result<Linear> {
        self.source.linear(weight, (rows, columns), self.precision)?.to_device(self.device)
    }

    fn bias(&self, weight: Weight, len: usize) -> Result<Option<Tensor>> {
        let bias = self.source.bias(weight, len)?;
        bias.map(|bias| Tensor::from(bias).to_device(self.device)).transpose()
    }

    fn norm(&self, weight: Weight, len: usize) -> Result<Norm> {
        let scale = Tensor::from(self.source.vector(weight, len)?).to_device(self.device)?;
        let bias = match self.config.norm {
            NormKind::Rms => None,
            NormKind::Layer => Some(match self.bias(weight, len)? {
                Some(bias) => bias,
                None => Tensor::from_vec(vec![0.0; len], &[len])?.to_device(self.device)?,
            }),
        };
        Ok(Norm { weight: scale, bias, epsilon: self.config.norm_epsilon as f32 })
    }
}
