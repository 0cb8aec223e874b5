//! The state of a live generation: full depth, the cutoff, and the cutoff with an adapter, side by side.

use crate::data::{Pyramid, StepFigure};
use crate::engine::message::{Candidate, Event, LiveAttention, LiveToken, Under};
use crate::views::frontier::LiveSavings;
use layerscope_engine::{Message, PromptText, Repetition};

/// The figures that decode steps show live.
pub const LIVE_FIGURES: [StepFigure; 4] =
    [StepFigure::PromptMass, StepFigure::BosMass, StepFigure::DecodeMass, StepFigure::PromptEntropy];

/// Generations under several policies, one after the other.
#[derive(Debug, Clone, Default)]
pub struct Live {
    /// Names of the sides that were asked for.
    pub asked: Vec<String>,
    /// What they run, in the same order.
    pub under: Vec<Under>,
    /// The sides that have begun, in the order in which they run.
    pub sides: Vec<Side>,
    /// The cutoff whose predicted savings this generation measures; `None` if the other side is not SPEED,
    /// for which the frontier predicts.
    pub cutoff: Option<usize>,
}

/// Generation under one policy.
#[derive(Debug, Clone)]
pub struct Side {
    /// The policy's name.
    pub policy: String,
    /// The adapter's name.
    pub adapter: Option<String>,
    /// A caveat to show with the output.
    pub caveat: Option<String>,
    /// Prompt tokens p.
    pub prompt_tokens: usize,
    /// Prompt tokens processed.
    pub prefilled: usize,
    /// The tokens.
    pub tokens: Vec<Shown>,
    /// The rest of the text after the last token.
    pub text_rest: String,
    /// Bytes of KV.
    pub kv_bytes: u64,
    /// Time to first token, seconds.
    pub ttft_s: Option<f64>,
    /// Time per output token after the first, seconds; provisional until the end.
    pub tpot_s: Option<f64>,
    /// Whether it ended, and if so whether the user stopped it.
    pub ended: Option<bool>,
    /// The loop at the end of its text, after the end.
    pub repetition: Option<Repetition>,
    /// Layer × decode step, in the order of [`LIVE_FIGURES`].
    pub maps: [Pyramid; 4],
}

/// A displayed token.
#[derive(Debug, Clone, PartialEq)]
pub struct Shown {
    /// Its id.
    pub id: u32,
    /// Its text by itself.
    pub token: String,
    /// The text that it adds.
    pub text: String,
    /// The most likely tokens.
    pub top: Vec<Candidate>,
}

impl Live {
    /// Handles an event of the engine; `layers` is the model's number of layers.
    pub fn take(&mut self, event: &Event, layers: usize) {
        match event {
            Event::GenerationStarted { side, policy, adapter, prompt_tokens, kv_bytes, caveat } => {
                self.sides.truncate(*side);
                self.sides.push(Side {
                    policy: policy.clone(),
                    adapter: adapter.clone(),
                    caveat: caveat.clone(),
                    prompt_tokens: *prompt_tokens,
                    prefilled: 0,
                    tokens: vec![],
                    text_rest: String::new(),
                    kv_bytes: *kv_bytes,
                    ttft_s: None,
                    tpot_s: None,
                    ended: None,
                    repetition: None,
                    maps: std::array::from_fn(|_| Pyramid::new(layers)),
                });
            }
            Event::Prefilled { side, done, .. } => {
                if let Some(side) = self.sides.get_mut(*side) {
                    side.prefilled = *done;
                }
            }
            Event::Token(token) => {
                if let Some(side) = self.sides.get_mut(token.side) {
                    side.push(token);
                }
            }
            Event::GenerationEnded { side, ttft_s, tpot_s, kv_bytes, text_rest, cancelled } => {
                if let Some(side) = self.sides.get_mut(*side) {
                    (side.ttft_s, side.tpot_s, side.kv_bytes) = (*ttft_s, *tpot_s, *kv_bytes);
                    side.text_rest.clone_from(text_rest);
                    side.ended = Some(*cancelled);
                    let ids: Vec<u32> = side.tokens.iter().map(|token| token.id).collect();
                    side.repetition = Repetition::at_end_of(&ids);
                }
            }
            _ => {}
        }
    }

    /// The first step at which a side and the first have different tokens, or at which only one of them has ended.
    pub fn divergence(&self, side: usize) -> Option<usize> {
        let (first, second) = (self.sides.first()?, self.sides.get(side)?);
        let pairs = first.tokens.iter().zip(&second.tokens);
        if let Some(step) = pairs.enumerate().find(|(_, (a, b))| a.id != b.id).map(|(step, _)| step) {
            return Some(step);
        }
        let (a, b) = (first.tokens.len(), second.tokens.len());
        let ended = |side: &Side| side.ended == Some(false);
        (a != b && ended(first) && ended(second)).then_some(a.min(b))
    }

    /// The first step at which any side differs from the first.
    pub fn first_divergence(&self) -> Option<usize> {
        (1..self.sides.len()).filter_map(|side| self.divergence(side)).min()
    }

    /// What a side's prompt has before the last message, as a conversation.
    pub fn earlier(&self, side: usize) -> &[Message] {
        match self.under.get(side).map(|under| &under.prompt) {
            Some(PromptText::Messages(messages)) => messages.split_last().map_or(&[], |(_, earlier)| earlier),
            _ => &[],
        }
    }

    /// Every side with its own answer and the user's next message behind it; `None` until all have ended.
    pub fn reply(&self, text: &str) -> Option<Vec<Under>> {
        let ended = self.sides.iter().filter(|side| side.ended.is_some()).count();
        if ended == 0 || ended < self.under.len() {
            return None;
        }
        let next = |(under, side): (&Under, &Side)| {
            let mut messages = match &under.prompt {
                PromptText::Plain(text) => vec![Message::new("user", text)],
                PromptText::Messages(messages) => messages.clone(),
            };
            messages.extend([Message::new("assistant", side.text()), Message::new("user", text)]);
            Under { prompt: PromptText::Messages(messages), ..under.clone() }
        };
        Some(self.under.iter().zip(&self.sides).map(next).collect())
    }

    /// The measured savings of the cutoff, after full depth and the cutoff have ended without a stop.
    pub fn measured(&self) -> Option<LiveSavings> {
        let [full, cut, ..] = self.sides.as_slice() else { return None };
        if full.ended != Some(false) || cut.ended != Some(false) {
            return None;
        }
        let saved = |full: f64, cut: f64| 1.0 - cut / full;
        Some(LiveSavings {
            cutoff: self.cutoff?,
            ttft_saved: saved(full.ttft_s?, cut.ttft_s?),
            tpot_saved: full.tpot_s.zip(cut.tpot_s).map(|(full, cut)| saved(full, cut)),
        })
    }
}

impl Side {
    fn push(&mut self, token: &LiveToken) {
        self.prefilled = self.prompt_tokens;
        if token.step == 0 {
            self.ttft_s = Some(token.elapsed_s);
        } else if let Some(ttft_s) = self.ttft_s {
            self.tpot_s = Some((token.elapsed_s - ttft_s) / token.step as f64);
        }
        let of: [fn(&LiveAttention) -> f32; 4] =
            [|a| a.prompt_mass, |a| a.bos_mass, |a| a.decode_mass, |a| a.prompt_entropy];
        for (map, figure) in self.maps.iter_mut().zip(of) {
            let mut column: Vec<f32> = token.attention.iter().map(figure).collect();
            // The first token's query is part of the prefill, which keeps no statistics.
            column.resize(map.rows(), f32::NAN);
            map.push(&column);
        }
        self.tokens.push(Shown {
            id: token.id,
            token: token.token.clone(),
            text: token.text.clone(),
            top: token.top.clone(),
        });
    }

    /// Its policy and its adapter.
    pub fn name(&self) -> String {
        side_name(&self.policy, self.adapter.as_deref())
    }

    /// Its text so far.
    pub fn text(&self) -> String {
        let text: String = self.tokens.iter().map(|token| token.text.as_str()).collect();
        text + &self.text_rest
    }

    /// Whether its policy is full depth.
    pub fn is_full(&self) -> bool {
        self.policy == "full"
    }
}

/// A policy, and the adapter with which it runs.
pub fn side_name(policy: &str, adapter: Option<&str>) -> String {
    adapter.map_or_else(|| policy.to_owned(), |adapter| format!("{policy} + {adapter}"))
}
