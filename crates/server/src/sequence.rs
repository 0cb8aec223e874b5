//! A running sequence: its session, where it is, and what it yields.

use crate::job::{EndReason, Event, Failure, Figures, Generate, Job, Task};
use crate::served::Under;
use layerscope_engine::{Chooser, ComputeType, Error, Hooks, Result, Session, Tensor};
use layerscope_eval::{TokenLikelihood, likelihood_behind};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// Given tokens that run at once: bounds the memory of their logits, and how long others wait.
const FORCED_AT_ONCE: usize = 128;

/// A sequence that runs.
pub(crate) struct Sequence {
    pub(crate) under: Under,
    pub(crate) session: Session,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) stage: Stage,
    /// Bytes of keys and values that it was admitted with.
    pub(crate) kv_bytes: u64,
    task: Running,
    events: UnboundedSender<Event>,
    arrived: Instant,
    started: Instant,
    first_token: Option<Instant>,
    generated: usize,
    /// Continuations that have been scored.
    scored: usize,
    kv_after_prefill: usize,
}

/// Where a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its prompt goes in, chunk by chunk.
    Prompt,
    /// Given tokens run next, from that row on.
    Forced(usize),
    /// The continuation of that index is scored next.
    Score(usize),
    /// That token runs next.
    Token(u32),
    /// It is done, or cannot go on.
    Ended,
}

enum Running {
    Generate(Box<(Generate, Chooser)>),
    Score(Vec<Vec<u32>>),
}

/// Tokens that a job runs behind its prompt at most, the last prompt token counted among them.
pub(crate) fn decode_len(task: &Task) -> usize {
    match task {
        Task::Generate(generate) => generate.forced.len().saturating_add(generate.max_new_tokens),
        Task::Score(continuations) => continuations.iter().map(Vec::len).max().unwrap_or(0),
    }
}

impl Sequence {
    /// A sequence whose session has been given its prompt.
    ///
    /// # Errors
    /// Where a number of the sampling is out of range.
    pub(crate) fn new(job: Job, session: Session, kv_bytes: u64, taken_over: usize) -> Result<Self> {
        let Job { under, prompt, task, events, arrived } = job;
        let task = match task {
            Task::Generate(generate) => {
                let chooser =
                    Chooser::new(generate.choice.clone(), &[&prompt[..], &generate.forced].concat())?;
                Running::Generate(Box::new((generate, chooser)))
            }
            Task::Score(continuations) => Running::Score(continuations),
        };
        let sequence = Self {
            under,
            session,
            prompt,
            stage: Stage::Prompt,
            kv_bytes,
            task,
            events,
            arrived,
            started: Instant::now(),
            first_token: None,
            generated: 0,
            scored: 0,
            kv_after_prefill: 0,
        };
        let _ = sequence.events.send(Event::Started { taken_over });
        Ok(sequence)
    }

    /// Whether nobody waits for it any more.
    pub(crate) fn is_left(&self) -> bool {
        self.events.is_closed()
    }

    pub(crate) fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Prompt rows that have yet to run, about.
    pub(crate) fn rows_left(&self) -> usize {
        self.prompt.len().saturating_sub(self.session.len())
    }

    /// What it took so far.
    pub(crate) fn figures(&self) -> Figures {
        let since = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let tpot = self.first_token.filter(|_| self.generated > 1);
        Figures {
            kv_bytes: self.kv_after_prefill,
            queued_s: since(self.arrived, self.started),
            ttft_s: self.first_token.map(|first| since(self.arrived, first)),
            tpot_s: tpot.map(|first| since(first, Instant::now()) / (self.generated - 1) as f64),
        }
    }

    /// The sequence cannot go on.
    pub(crate) fn fail(&mut self, failure: Failure) {
        let _ = self.events.send(Event::Failed(failure));
        self.stage = Stage::Ended;
    }

    fn end(&mut self, reason: EndReason) {
        let _ = self.events.send(Event::Ended { reason, figures: self.figures() });
        self.stage = Stage::Ended;
    }

    /// Takes logits of the next token, which a pass has yielded.
    ///
    /// # Errors
    /// Where they are not finite.
    pub(crate) fn take(&mut self, logits: &Tensor) -> Result<()> {
        if self.stage == Stage::Prompt {
            self.kv_after_prefill = self.session.store().allocated_bytes();
            match &self.task {
                Running::Score(_) => {
                    self.stage = Stage::Score(self.scored);
                    return Ok(());
                }
                Running::Generate(generate) if !generate.0.forced.is_empty() => {
                    self.session.truncate(self.prompt.len() - 1)?;
                    self.stage = Stage::Forced(0);
                    return Ok(());
                }
                Running::Generate(..) => {}
            }
        }
        self.choose(logits)
    }

    fn choose(&mut self, logits: &Tensor) -> Result<()> {
        let Running::Generate(generate) = &mut self.task else { return Ok(()) };
        let (generate, chooser) = &mut **generate;
        let token = chooser.choose(logits)?;
        let likelihood = match generate.likelihoods {
            Some(top) => Some(TokenLikelihood::of(&logits.to_vec()?, token, top)),
            None => None,
        };
        self.generated += 1;
        self.first_token.get_or_insert_with(Instant::now);
        let is_end = generate.stop_tokens.contains(&token);
        let is_last = self.generated == generate.max_new_tokens;
        let figures = self.figures();
        let _ = self.events.send(Event::Token { token, likelihood, figures });
        self.stage = Stage::Token(token);
        if is_end || is_last {
            self.end(if is_end { EndReason::Stop } else { EndReason::Length });
        }
        Ok(())
    }

    /// Runs the next given tokens, or scores the next continuation, in a pass of its own.
    ///
    /// # Errors
    /// Whatever fails beneath.
    pub(crate) fn run_given(&mut self) -> Result<()> {
        match self.stage {
            Stage::Forced(from) => self.run_forced(from),
            Stage::Score(index) => self.score(index),
            Stage::Prompt | Stage::Token(_) | Stage::Ended => Ok(()),
        }
    }

    /// The prompt's last token and the given ones are rows; each row's logits are of the token behind it.
    fn run_forced(&mut self, from: usize) -> Result<()> {
        let Running::Generate(generate) = &self.task else { return Ok(()) };
        let generate = &generate.0;
        let last = self.prompt.last().copied().ok_or(Error::EmptyPrompt("the prompt is empty"))?;
        let rows: Vec<u32> = std::iter::once(last).chain(generate.forced.iter().copied()).collect();
        // What the row of the last given token yields is wanted where more is to come.
        let count = rows.len() - usize::from(generate.max_new_tokens == 0);
        let piece = from..count.min(from + FORCED_AT_ONCE);
        let x = self.session.teacher_forced(&rows[piece.clone()], &mut Hooks::none(), &mut vec![])?;
        let first = self.prompt.len() - 1;
        let positions: Vec<usize> = piece.clone().map(|row| first + row).collect();
        let logits = self.session.decoder().unembed(&x, &positions, &mut Hooks::none(), ComputeType::F32)?;
        let numbers = logits.to_vec()?;
        let vocab = numbers.len() / piece.len();
        let top = generate.likelihoods.unwrap_or(0);
        let targets = &generate.forced[piece.start..generate.forced.len().min(piece.end)];
        let found = targets.iter().zip(numbers.chunks_exact(vocab));
        let found = found.map(|(&token, logits)| (token, TokenLikelihood::of(logits, token, top))).collect();
        let _ = self.events.send(Event::Forced(found));
        if piece.end < count {
            self.stage = Stage::Forced(piece.end);
            return Ok(());
        }
        if generate.max_new_tokens == 0 {
            self.end(EndReason::Length);
            return Ok(());
        }
        self.choose(&Tensor::from_vec(numbers[numbers.len() - vocab..].to_vec(), &[vocab])?)
    }

    fn score(&mut self, index: usize) -> Result<()> {
        let Running::Score(continuations) = &self.task else { return Ok(()) };
        let likelihood = likelihood_behind(&mut self.session, &self.prompt, &continuations[index])?;
        self.first_token.get_or_insert_with(Instant::now);
        let longest = continuations.iter().map(Vec::len).max().unwrap_or(0);
        let is_last = index + 1 == continuations.len();
        let _ = self.events.send(Event::Scored(likelihood));
        if is_last {
            self.end(EndReason::Length);
            return Ok(());
        }
        self.scored = index + 1;
        self.stage = Stage::Score(self.scored);
        // What decode rows move under such policies does not come back: the prompt runs again.
        if self.session.policy().rules().selection().refers_to_stored() {
            let (decoder, policy) = (self.under.decoder(), self.under.policy.clone());
            self.session = Session::new(decoder, policy, self.prompt.len(), longest)?;
            self.session.begin_prefill(&self.prompt)?;
            self.stage = Stage::Prompt;
        }
        Ok(())
    }
}
