//! The thread that runs the model: sequences join and leave at every step, and share forward passes.

use crate::job::{Failure, Job, Message};
use crate::metrics::Metrics;
use crate::prefixes::Prefixes;
use crate::sequence::{Sequence, Stage, decode_len};
use crate::served::Served;
use layerscope_engine::{Error, Result, Session, Tensor, Turn, advance_together};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

/// Prompt rows of other sequences that join the oldest one's chunk in a pass, so that short prompts need not wait for long ones.
const ROWS_BESIDE: usize = 512;

pub(crate) struct Scheduler {
    messages: Receiver<Message>,
    waiting: VecDeque<Job>,
    running: Vec<Sequence>,
    prefixes: Prefixes,
    metrics: Arc<Metrics>,
    queued: Arc<AtomicUsize>,
    kv_memory: u64,
    max_sequences: usize,
    timeout: Duration,
    /// Whether activations of texts are not rounded.
    exact: bool,
    /// Nothing new comes.
    stopping: bool,
    /// Counts passes, so that given tokens of several sequences take turns.
    passes: usize,
}

impl Scheduler {
    pub(crate) fn new(served: &Served, messages: Receiver<Message>, metrics: Arc<Metrics>) -> Self {
        let limits = served.limits();
        Self {
            messages,
            waiting: VecDeque::new(),
            running: vec![],
            prefixes: Prefixes::default(),
            metrics,
            queued: served.queued(),
            kv_memory: served.kv_memory(),
            max_sequences: limits.max_sequences,
            timeout: limits.timeout,
            exact: limits.exact,
            stopping: false,
            passes: 0,
        }
    }

    /// Until it is told to stop, and what runs has ended.
    pub(crate) fn run(mut self) {
        loop {
            self.receive();
            if self.stopping && self.running.is_empty() && self.waiting.is_empty() {
                return;
            }
            self.drop_left();
            self.admit();
            self.run_given();
            self.pass();
            self.end();
        }
    }

    /// Takes what has come; waits where nothing runs.
    fn receive(&mut self) {
        if self.running.is_empty() && self.waiting.is_empty() && !self.stopping {
            match self.messages.recv() {
                Ok(message) => self.take(message),
                Err(_) => self.stopping = true,
            }
        }
        loop {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Job(job) => self.waiting.push_back(*job),
            Message::Stop => self.stopping = true,
        }
    }

    /// Sequences that nobody waits for, or that took too long.
    fn drop_left(&mut self) {
        let (timeout, now) = (self.timeout, Instant::now());
        let is_late = |arrived: Instant| now.saturating_duration_since(arrived) > timeout;
        let before = self.waiting.len();
        self.waiting.retain(|job| {
            if is_late(job.arrived) {
                let _ = job.events.send(crate::job::Event::Failed(Failure::Late));
            }
            !is_late(job.arrived) && !job.events.is_closed()
        });
        self.queued.fetch_sub(before - self.waiting.len(), Ordering::Relaxed);
        for sequence in &mut self.running {
            if is_late(sequence.arrived()) {
                sequence.fail(Failure::Late);
            } else if sequence.is_left() {
                sequence.stage = Stage::Ended;
            }
        }
        self.end();
    }

    /// Begins waiting sequences, in their order, while their keys and values fit.
    fn admit(&mut self) {
        while self.running.len() < self.max_sequences {
            let Some(job) = self.waiting.front() else { break };
            let need = kv_need(job);
            let used: u64 = self.running.iter().map(|sequence| sequence.kv_bytes).sum();
            if used + need > self.kv_memory && !self.running.is_empty() {
                break;
            }
            let Some(job) = self.waiting.pop_front() else { break };
            match self.begin(&job, self.kv_memory.saturating_sub(used + need)) {
                // Others will end, and prefixes can go.
                Err(Error::OutOfMemory { .. }) if !self.running.is_empty() => {
                    self.waiting.push_front(job);
                    break;
                }
                begun => {
                    self.queued.fetch_sub(1, Ordering::Relaxed);
                    let events = job.events.clone();
                    let begun = begun.and_then(|(session, shared)| {
                        self.metrics.prompt_tokens(&job.under, job.prompt.len(), shared);
                        Sequence::new(job, session, need, shared)
                    });
                    match begun {
                        Ok(sequence) => self.running.push(sequence),
                        Err(error) => {
                            let _ = events.send(crate::job::Event::Failed(error.into()));
                        }
                    }
                }
            }
        }
        self.metrics.load(self.running.len(), self.waiting.len());
        self.count_kv();
    }

    /// A session whose prompt goes in, and how many of its tokens were taken over from another.
    fn begin(&mut self, job: &Job, for_prefixes: u64) -> Result<(Session, usize)> {
        let policy = &job.under.policy;
        let new =
            || Session::new(job.under.decoder(), policy.clone(), job.prompt.len(), decode_len(&job.task));
        let mut session = match new() {
            Err(Error::OutOfMemory { .. }) => {
                self.prefixes.shrink_to(0);
                new()?
            }
            session => session?,
        };
        if job.task.generates_alone() && !self.exact {
            session.round_activations();
        }
        let running = self.running.iter().map(|sequence| (&*sequence.prompt, &sequence.session));
        let shared = match self.prefixes.longest(&session, &job.prompt, running) {
            Some((other, len)) => {
                session.begin_prefill_after(&job.prompt, other, len)?;
                len
            }
            None => {
                session.begin_prefill(&job.prompt)?;
                0
            }
        };
        self.prefixes.shrink_to(for_prefixes);
        Ok((session, shared))
    }

    /// Given tokens of one sequence, which run in a pass of their own.
    fn run_given(&mut self) {
        self.passes += 1;
        let given = |sequence: &Sequence| matches!(sequence.stage, Stage::Forced(_) | Stage::Score(_));
        let with_given: Vec<usize> =
            (0..self.running.len()).filter(|&index| given(&self.running[index])).collect();
        if with_given.is_empty() {
            return;
        }
        let sequence = &mut self.running[with_given[self.passes % with_given.len()]];
        if let Err(error) = sequence.run_given() {
            sequence.fail(error.into());
        }
    }

    /// A token of each sequence that decodes, and chunks of prompts: one pass for each model, and for those that round and those that do not.
    fn pass(&mut self) {
        let takes_part = self.taking_part();
        if takes_part.is_empty() {
            return;
        }
        let mut sequences: Vec<&mut Sequence> = self
            .running
            .iter_mut()
            .enumerate()
            .filter(|(index, _)| takes_part.contains(index))
            .map(|(_, sequence)| sequence)
            .collect();
        while let Some(first) = sequences.first() {
            let (decoder, rounds) = (Arc::clone(first.session.decoder()), first.session.rounds());
            let (alike, others) = sequences.into_iter().partition(|sequence| {
                let session = &sequence.session;
                Arc::ptr_eq(session.decoder(), &decoder) && session.rounds() == rounds
            });
            pass_of(alike);
            sequences = others;
        }
    }

    /// All that decode; of those whose prompts go in the oldest, and the shortest others beside it.
    fn taking_part(&self) -> Vec<usize> {
        let in_stage = |of: fn(Stage) -> bool| {
            let all = self.running.iter().enumerate();
            all.filter(move |(_, sequence)| of(sequence.stage)).map(|(index, _)| index)
        };
        let mut prompts: Vec<usize> = in_stage(|stage| stage == Stage::Prompt).collect();
        let oldest = prompts.iter().copied().min_by_key(|&index| self.running[index].arrived());
        prompts.retain(|&index| Some(index) != oldest);
        prompts.sort_by_key(|&index| self.running[index].rows_left());
        let mut room = ROWS_BESIDE;
        let beside = prompts.into_iter().take_while(|&index| {
            let rows = self.running[index].rows_left();
            let fits = rows <= room;
            room = room.saturating_sub(rows);
            fits
        });
        let beside: Vec<usize> = beside.collect();
        in_stage(|stage| matches!(stage, Stage::Token(_))).chain(oldest).chain(beside).collect()
    }

    /// Takes out what has ended.
    fn end(&mut self) {
        for index in (0..self.running.len()).rev() {
            if self.running[index].stage != Stage::Ended {
                continue;
            }
            let Sequence { session, prompt, .. } = {
                let ended = self.running.swap_remove(index);
                self.metrics.ended(&ended.under, &ended.figures());
                ended
            };
            let used: u64 = self.running.iter().map(|sequence| sequence.kv_bytes).sum();
            if !session.is_prefilling() && session.shares_its_prompt() {
                self.prefixes.keep(prompt, session);
                self.prefixes.shrink_to(self.kv_memory.saturating_sub(used));
            }
        }
        if self.running.is_empty() {
            self.count_kv();
            self.metrics.load(0, self.waiting.len());
        }
    }

    fn count_kv(&self) {
        let allocated = |sequence: &Sequence| sequence.session.store().allocated_bytes();
        let running = self.running.iter().map(|sequence| (&sequence.under, allocated(sequence)));
        self.metrics.kv(running, self.prefixes.bytes());
    }
}

/// Runs one pass of sequences of the same model that round alike.
fn pass_of(mut sequences: Vec<&mut Sequence>) {
    match advance(&mut sequences) {
        Ok(logits) => {
            for (sequence, logits) in sequences.into_iter().zip(logits) {
                let taken = logits.map_or(Ok(()), |logits| sequence.take(&logits));
                if let Err(error) = taken {
                    sequence.fail(error.into());
                }
            }
        }
        Err(error) => {
            let failure = Failure::from(error);
            sequences.into_iter().for_each(|sequence| sequence.fail(failure.clone()));
        }
    }
}

/// Logits of those that have some.
fn advance(sequences: &mut [&mut Sequence]) -> Result<Vec<Option<Tensor>>> {
    let token = |sequence: &Sequence| match sequence.stage {
        Stage::Token(token) => Some(token),
        _ => None,
    };
    if let [sequence] = sequences
        && let Some(token) = token(sequence)
    {
        let logits = sequence.session.step(token, &mut layerscope_engine::Hooks::none())?;
        return Ok(vec![Some(logits)]);
    }
    let mut turns: Vec<Turn<'_>> = sequences
        .iter_mut()
        .map(|sequence| Turn { token: token(sequence), session: &mut sequence.session })
        .collect();
    advance_together(&mut turns)
}

/// Bytes of keys and values that a job's sequence takes at most.
pub(crate) fn kv_need(job: &Job) -> u64 {
    let decoder = job.under.decoder();
    let in_memory = job.under.policy.in_memory(job.prompt.len(), decode_len(&job.task), decoder.device());
    decoder.sequence_need(&in_memory).kv
}
