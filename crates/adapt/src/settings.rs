//! How to train.

use layerscope_engine::{AdapterRows, Policy, Target};

/// How to train.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The policy to train under: one with a cutoff, or one that evicts before decode.
    pub policy: Policy,
    /// The rows that the adapter acts on.
    pub rows: AdapterRows,
    /// Rank r; `None` to train every element of the matrices.
    pub rank: Option<usize>,
    /// α; the adapter's factor is α/r, or α/√r.
    pub alpha: f64,
    /// Whether the factor is α/√r (Kalajdzievski 2023).
    pub rank_stabilised: bool,
    /// Matrices that get an addition.
    pub targets: Vec<Target>,
    /// Share of steps that run at a cutoff above the policy's, drawn evenly from there to full depth, so that the adapted model stays
    /// near the full one there, too.
    pub other_cutoffs: f64,
    /// Share of the inputs of A that are set to zero in training, at random; the others grow to the same sum.
    pub dropout: f32,
    /// Highest learning rate; it rises for a few steps, then falls as half a cosine.
    pub learning_rate: f64,
    /// Steps, at most.
    pub steps: usize,
    /// Minutes of training, at most.
    pub minutes: Option<f64>,
    /// Prompts in a step.
    pub batch: usize,
    /// Decode rows of a prompt.
    pub max_new_tokens: usize,
    /// Share of the prompts that are held out.
    pub held_out: f64,
    /// Steps between evaluations on held-out prompts.
    pub evaluate_every: usize,
    /// Held-out KL at which training ends, nats.
    pub target_kl: Option<f64>,
    /// Weight of the cross-entropy of the continuations, 0 to 1; the rest is KL's.
    pub sft: f64,
    /// What prompts with an answer are continued by.
    pub continued: Continued,
    /// Most bytes of prompts' keys and values in memory; the rest goes to a file in the adapter's folder. `None` for half of what is
    /// free.
    pub prompt_memory: Option<u64>,
    /// Whether each measurement on held-out prompts covers some cutoffs beside the policy's. Changes nothing in the result.
    pub with_frontier: bool,
    /// Seed of the adapter, of the order and of what is held out.
    pub seed: u64,
}

/// What prompts with an answer are continued by; the others are by the full model's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Continued {
    /// The answer.
    Answers,
    /// The full model's text.
    Own,
}

impl Settings {
    /// The defaults.
    pub fn new(policy: Policy) -> Self {
        Self {
            policy,
            rows: AdapterRows::Decode,
            rank: Some(16),
            alpha: 32.0,
            rank_stabilised: false,
            targets: Target::ALL.to_vec(),
            other_cutoffs: 0.25,
            dropout: 0.0,
            learning_rate: 1e-3,
            steps: 400,
            minutes: None,
            batch: 4,
            max_new_tokens: 32,
            held_out: 0.1,
            evaluate_every: 50,
            target_kl: None,
            sft: 0.0,
            continued: Continued::Answers,
            prompt_memory: None,
            with_frontier: false,
            seed: 0,
        }
    }

    /// All that the result depends on.
    pub(crate) fn identity(&self) -> String {
        format!("{:?}", Self { prompt_memory: None, with_frontier: false, ..self.clone() })
    }
}
