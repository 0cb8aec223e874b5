//! Progress on standard error: bars on a terminal, lines elsewhere.

mod log;

use crate::terminal;
use indicatif::{
    HumanDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use layerscope_bench::{BenchEvent, BenchPlan, QualityEvent};
use layerscope_cutoff::diffusion::DiffusionEvent;
use layerscope_cutoff::patching::PatchEvent;
use layerscope_diagnostics::needle::NeedleEvent;
use layerscope_engine::Result;
use layerscope_models::Progress;
use layerscope_recording::RecordingEvent;
use layerscope_recording::continuations::ContinuationEvent;
use layerscope_recording::policies::PolicyEvent;
use layerscope_recording::sets::SetsEvent;
use log::Log;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What takes less needs no bar.
const BEFORE_A_BAR: Duration = Duration::from_secs(1);

/// Whether `--quiet` was given.
static QUIET: AtomicBool = AtomicBool::new(false);

/// How long something takes before progress is shown, in lines where standard error is no terminal.
fn patience() -> Duration {
    match (QUIET.load(Ordering::Relaxed), terminal::is_there()) {
        (true, _) => Duration::MAX,
        (false, true) => BEFORE_A_BAR,
        (false, false) => log::EVERY,
    }
}

/// Shows no progress from now on.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Where bars are drawn.
fn target() -> ProgressDrawTarget {
    match (QUIET.load(Ordering::Relaxed), terminal::is_there()) {
        (true, _) => ProgressDrawTarget::hidden(),
        (false, true) => ProgressDrawTarget::stderr(),
        (false, false) => ProgressDrawTarget::term_like_with_hz(Box::new(Log::new()), 1),
    }
}

/// A bar of so many units.
fn bar(length: usize, template: &str) -> ProgressBar {
    ProgressBar::with_draw_target(Some(length as u64), target()).with_style(style(template))
}

/// Lines have no drawings.
fn style(template: &str) -> ProgressStyle {
    let mut template = template.to_owned();
    if !terminal::is_there() {
        for drawing in ["{bar:30} ", "{bar:20} ", "{spinner} "] {
            template = template.replace(drawing, "");
        }
    }
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.with_key("eta", |state: &ProgressState, out: &mut dyn std::fmt::Write| {
        // Nothing is known before the first unit.
        let _ = match state.pos() {
            0 => out.write_char('–'),
            _ => write!(out, "{:#}", HumanDuration(state.eta())),
        };
    })
}

/// The bar's message: names are escaped as everywhere.
#[allow(clippy::disallowed_methods)]
fn show(bar: &ProgressBar, message: &str) {
    bar.set_message(terminal::line(message));
}

/// What stands before the bar.
#[allow(clippy::disallowed_methods)]
fn name(bar: &ProgressBar, prefix: &str) {
    bar.set_prefix(terminal::line(prefix));
}

/// Runs `load` and shows how many layers it has loaded; `load` reports them through its argument.
pub(crate) fn loading<T>(load: impl FnOnce(&mut dyn FnMut(usize, usize) -> Result<()>) -> T) -> T {
    let bar = bar(0, "loading {bar:30} {pos}/{len} layers");
    let loaded = load(&mut |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
        Ok(())
    });
    bar.finish_and_clear();
    loaded
}

/// A bar while a model is downloaded; notes go to standard error.
pub(crate) struct FetchBar(ProgressBar);

impl FetchBar {
    pub(crate) fn new() -> Self {
        let template =
            "fetching {msg} {bar:30} {binary_bytes}/{binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        Self(ProgressBar::hidden().with_style(style(template)))
    }

    pub(crate) fn observe(&mut self, progress: Progress<'_>) {
        match progress {
            Progress::Bytes { file, done, all } => {
                if self.0.is_hidden() {
                    self.0.set_draw_target(target());
                    // Bytes that are already on disk do not count towards the speed.
                    self.0.set_position(done);
                    self.0.reset_eta();
                }
                self.0.set_length(all);
                show(&self.0, file);
                self.0.set_position(done);
            }
            Progress::Note(sentence) => self.0.suspend(|| terminal::say(&format!("layerscope: {sentence}"))),
        }
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar while spans are removed, with the current one.
pub(crate) struct SpansBar {
    bar: ProgressBar,
    done: usize,
    spans: usize,
}

impl SpansBar {
    pub(crate) fn new(spans: usize) -> Self {
        let template = "{prefix} {bar:30} {pos}/{len} {msg}, {elapsed} elapsed";
        Self { bar: bar(0, template), done: 0, spans }
    }

    /// Starts the next span.
    pub(crate) fn start(&mut self, id: &str) {
        self.done += 1;
        let of = if self.spans > 1 { format!(" ({} of {})", self.done, self.spans) } else { String::new() };
        name(&self.bar, &format!("{id}{of}"));
    }

    pub(crate) fn observe(&self, event: DiffusionEvent) {
        let (done, all, what) = match event {
            DiffusionEvent::Tokens { done, all } => (done, all, "tokens"),
            DiffusionEvent::Layers { done, all } => (done, all, "layers"),
        };
        self.bar.set_length(all as u64);
        self.bar.set_position(done as u64);
        show(&self.bar, what);
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| terminal::say(line));
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar while activations are patched.
pub(crate) struct PatchBar(ProgressBar);

impl PatchBar {
    pub(crate) fn new() -> Self {
        Self(bar(0, "{msg} {bar:30} {percent} %, {elapsed} elapsed, {eta} left"))
    }

    pub(crate) fn observe(&self, event: PatchEvent) {
        let (done, all, what) = match event {
            PatchEvent::Tokens { done, all } => (done, all, "running both prompts"),
            PatchEvent::Rows { done, all } => (done, all, "patching"),
        };
        if self.0.message() != what {
            show(&self.0, what);
            self.0.set_position(0);
            self.0.reset_eta();
        }
        self.0.set_length(all as u64);
        self.0.set_position(done as u64);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar of a search for sets.
pub(crate) struct SearchBar(ProgressBar);

impl SearchBar {
    pub(crate) fn new() -> Self {
        Self(bar(0, "{prefix} {bar:30} {pos}/{len} {msg}, {elapsed} elapsed"))
    }

    pub(crate) fn observe(&self, event: SetsEvent<'_>) {
        let (what, done, all, message) = match event {
            SetsEvent::Running { done, all } => ("running", done, all, "prompts".to_owned()),
            SetsEvent::Dropped { done, all, kl } => {
                ("searching", done, all, format!("dropped, KL {kl:.4} nats"))
            }
            SetsEvent::Judging { id, done, all } => ("judging", done, all, format!("prompts, {id}")),
        };
        name(&self.0, what);
        self.0.set_length(all as u64);
        self.0.set_position(done as u64);
        show(&self.0, &message);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar over the jobs of a sweep; each that ends is told in a line.
pub(crate) struct SweepBar(ProgressBar);

impl SweepBar {
    pub(crate) fn new(jobs: usize, done: usize) -> Self {
        let bar = bar(jobs, "jobs {bar:30} {pos}/{len}, {elapsed} elapsed, {msg}");
        bar.set_position(done as u64);
        Self(bar)
    }

    pub(crate) fn started(&self, job: &str) {
        show(&self.0, job);
    }

    pub(crate) fn done(&self, line: &str) {
        self.0.inc(1);
        if !QUIET.load(Ordering::Relaxed) {
            self.say(line);
        }
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        self.0.suspend(|| terminal::say(line));
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Progress of recording under policies.
pub(crate) struct PoliciesBar(ProgressBar);

impl PoliciesBar {
    pub(crate) fn new() -> Self {
        Self(bar(0, "{prefix} {bar:30} {pos}/{len} {msg}, {elapsed} elapsed"))
    }

    pub(crate) fn observe(&self, event: PolicyEvent<'_>) {
        match event {
            PolicyEvent::Started { id, tokens } => {
                name(&self.0, &format!("{id} under policies"));
                self.0.set_length(tokens as u64);
                self.0.set_position(0);
            }
            PolicyEvent::Tokens(more) => self.0.inc(more as u64),
        }
        show(&self.0, "tokens");
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Ticks of a bar of training.
const WHOLE: f64 = 1_000.0;

/// A bar of training, with the last loss and held-out figures.
pub(crate) struct AdaptBar {
    bar: ProgressBar,
    held_out: String,
    /// Whether evaluations are told line by line.
    quiet: bool,
}

impl AdaptBar {
    pub(crate) fn new(quiet: bool) -> Self {
        let bar = bar(0, "prompts {bar:30} {pos}/{len}, {elapsed} elapsed, {eta} left");
        Self { bar, held_out: String::new(), quiet }
    }

    pub(crate) fn observe(&mut self, event: &layerscope_adapt::Event<'_>) {
        use layerscope_adapt::Event;
        match event {
            Event::Preparing { bytes, most, transposed } => {
                let size = |bytes: u64| layerscope_engine::readable_bytes(bytes as f64);
                let rest = match bytes > most {
                    true => format!(", {} of it in a file", size(bytes - most)),
                    false => String::new(),
                };
                terminal::say(&format!(
                    "prompts will take up to {}{rest}, and transposed weights {}",
                    size(*bytes),
                    size(*transposed as u64)
                ));
            }
            Event::Prepared { done, all } => {
                self.bar.set_length(*all as u64);
                self.bar.set_position(*done as u64);
            }
            Event::LeftOut { id, reason } => {
                self.bar.suspend(|| terminal::say(&format!("left out {id}: {reason}")));
            }
            Event::Started { trained, held_out, bytes, in_file, resumed } => {
                self.bar.finish_and_clear();
                let size = layerscope_engine::readable_bytes(*bytes as f64);
                let mut line =
                    format!("training on {trained} prompts, {held_out} held out, {size} of memory for both");
                if *in_file > 0 {
                    line += &format!("; keys of {in_file} prompts are in a file");
                }
                if *resumed > 0 {
                    line += &format!("; going on from step {resumed}");
                }
                terminal::say(&line);
                self.bar = bar(WHOLE as usize, "{bar:20} {percent} %, {elapsed} elapsed, {eta} left{msg}");
                self.bar.reset_eta();
            }
            Event::Step { step, loss, done } => {
                show(&self.bar, &format!(", step {step}, loss {loss:.3}{}", self.held_out));
                self.bar.set_position((done * WHOLE) as u64);
            }
            Event::Evaluated { step, figures, .. } => {
                self.held_out = format!(", held-out KL {:.3}", figures.kl);
                if !self.quiet {
                    let answers = figures.answers.map(|share| format!(", answers {:.0} %", share * 100.0));
                    let line = format!(
                        "step {step}: held-out KL {:.4}, same top token {:.1} %{}",
                        figures.kl,
                        figures.top1 * 100.0,
                        answers.unwrap_or_default()
                    );
                    self.bar.suspend(|| terminal::say(&line));
                }
            }
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// A bar of prompt tokens.
pub(crate) struct TokensBar(ProgressBar);

impl TokensBar {
    pub(crate) fn new(what: &str, tokens: usize) -> Self {
        let bar = bar(tokens, "{prefix} {bar:30} {pos}/{len} tokens, {elapsed} elapsed, {eta} left");
        name(&bar, what);
        Self(bar)
    }

    pub(crate) fn set(&self, done: usize) {
        self.0.set_position(done as u64);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// Shows a spinner with a message while `work` runs.
pub(crate) fn waiting<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let spinner = bar(0, "{spinner} {msg} {elapsed}");
    show(&spinner, what);
    spinner.enable_steady_tick(std::time::Duration::from_millis(100));
    let done = work();
    spinner.finish_and_clear();
    done
}

/// Two bars while measuring: all generations with an estimate, and the current one.
pub(crate) struct BenchBars {
    all: ProgressBar,
    present: ProgressBar,
    repeats: usize,
    new_tokens: usize,
}

impl BenchBars {
    pub(crate) fn new(plan: &BenchPlan) -> Self {
        let bars = MultiProgress::with_draw_target(target());
        let all = bar(0, "measuring {bar:30} {elapsed} elapsed, {eta} left");
        let present = bar(0, "  {bar:20} {pos}/{len} tokens, {msg}");
        let (all, present) = (bars.add(all), bars.add(present));
        Self { all, present, repeats: plan.repeats, new_tokens: plan.new_tokens }
    }

    pub(crate) fn observe(&self, event: BenchEvent<'_>) {
        match event {
            BenchEvent::Started { policy, length, repeat } => {
                let round = match repeat {
                    0 => "warm-up".to_owned(),
                    repeat => format!("repeat {repeat}/{}", self.repeats),
                };
                self.present.set_length((length + self.new_tokens) as u64);
                self.present.set_position(0);
                show(&self.present, &format!("{policy} at {length}, {round}"));
            }
            BenchEvent::Tokens(done) => self.present.set_position(done as u64),
            BenchEvent::Finished { work_done, work } => {
                self.all.set_length(work);
                self.all.set_position(work_done);
            }
        }
    }

    pub(crate) fn finish(&self) {
        self.present.finish_and_clear();
        self.all.finish_and_clear();
    }
}

/// A bar while quality is measured, with the current policy and prompt.
pub(crate) struct QualityBar(ProgressBar);

impl QualityBar {
    pub(crate) fn new(plan: &BenchPlan, prompts: usize) -> Self {
        let all = prompts * (plan.policies.len() + 1);
        let bar = bar(all, "quality {bar:30} {pos}/{len}, {elapsed} elapsed, {eta} left, {msg}");
        bar.enable_steady_tick(std::time::Duration::from_millis(250));
        Self(bar)
    }

    pub(crate) fn observe(&self, event: QualityEvent<'_>) {
        match event {
            QualityEvent::Started { id, policy } => show(&self.0, &format!("{policy} on {id}")),
            QualityEvent::Finished => self.0.inc(1),
        }
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar while needles are looked for, with what is looked for now.
pub(crate) struct NeedleBar(ProgressBar);

impl NeedleBar {
    pub(crate) fn new(generations: usize) -> Self {
        let template = "needles {bar:30} {pos}/{len}, {elapsed} elapsed, {eta} left, {msg}";
        Self(bar(generations, template))
    }

    pub(crate) fn observe(&self, event: NeedleEvent<'_>) {
        match event {
            NeedleEvent::Started { id, policy } => show(&self.0, &format!("{policy} on {id}")),
            NeedleEvent::Finished(_) => self.0.inc(1),
        }
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar over the items of an evaluation.
pub(crate) struct EvalBar(ProgressBar);

impl EvalBar {
    pub(crate) fn new(items: usize) -> Self {
        let template = "items {bar:30} {pos}/{len}, {elapsed} elapsed, {eta} left, {msg}";
        Self(bar(items, template))
    }

    pub(crate) fn observe(&self, event: layerscope_eval::Event<'_>) {
        match event {
            layerscope_eval::Event::Started { id, policy } => show(&self.0, &format!("{policy} on {id}")),
            layerscope_eval::Event::Finished => self.0.inc(1),
            layerscope_eval::Event::LeftOut { .. } => {}
        }
    }

    /// Says something above the bar.
    pub(crate) fn suspend(&self, say: impl FnOnce()) {
        self.0.suspend(say);
    }

    pub(crate) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

/// A bar while failure cases are generated, with the current one.
pub(crate) struct FailureCaseBar {
    bar: ProgressBar,
    id: String,
    tokens: usize,
}

impl FailureCaseBar {
    pub(crate) fn new() -> Self {
        let bar = bar(0, "failure cases {bar:30} {pos}/{len}, {elapsed} elapsed, {msg}");
        Self { bar, id: String::new(), tokens: 0 }
    }

    pub(crate) fn observe(&mut self, event: ContinuationEvent<'_>) {
        match event {
            ContinuationEvent::Chosen { prompts, earlier } => {
                self.bar.set_length(prompts as u64);
                self.bar.set_position(earlier as u64);
            }
            ContinuationEvent::Started { id, tokens } => (self.id, self.tokens) = (id.to_owned(), tokens),
            ContinuationEvent::Tokens(done) => {
                show(&self.bar, &format!("{}, {done}/{} tokens", self.id, self.tokens));
            }
            ContinuationEvent::Finished(_) => self.bar.inc(1),
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Two bars while recording: prompts of the file with an estimate, and the stage of the current one.
pub(crate) struct RecordingBars {
    bars: MultiProgress,
    prompts: ProgressBar,
    present: ProgressBar,
    failures: usize,
    begun: Instant,
}

impl RecordingBars {
    pub(crate) fn new(prompts: usize) -> Self {
        let bars = MultiProgress::with_draw_target(target());
        let prompts =
            bars.add(bar(prompts, "recording {bar:30} {pos}/{len} prompts, {elapsed} elapsed, {eta} left"));
        let present = bars.add(bar(0, "  {prefix} {bar:20} {msg}"));
        Self { bars, prompts, present, failures: 0, begun: Instant::now() }
    }

    pub(crate) fn failures(&self) -> usize {
        self.failures
    }

    pub(crate) fn observe(&mut self, event: RecordingEvent<'_>) {
        match event {
            RecordingEvent::Resumed { done, .. } => {
                self.prompts.set_position(done as u64);
                self.prompts.reset_eta();
                if done > 0 {
                    self.say(&format!("resuming: {done} prompts are recorded already"));
                }
            }
            RecordingEvent::Started { id, tokens } => {
                self.present.set_length(tokens as u64);
                self.present.set_position(0);
                // Its time is that of its last change, and while all prompts run first none is finished.
                self.prompts.tick();
                name(&self.present, id);
                show(&self.present, &format!("0/{tokens} tokens"));
            }
            RecordingEvent::Tokens(done) => {
                self.present.set_position(done as u64);
                let all = self.present.length().unwrap_or(0);
                show(&self.present, &format!("{done}/{all} tokens"));
            }
            RecordingEvent::FrontierLayers { done, all } => {
                self.present.set_length(all as u64);
                self.present.set_position(done as u64);
                show(&self.present, &format!("frontier, layer {done}/{all}"));
            }
            RecordingEvent::Texts { done, all } => {
                self.present.set_length(all as u64);
                self.present.set_position(done as u64);
                show(&self.present, &format!("texts under cutoffs, token {done}/{all}"));
            }
            RecordingEvent::LargestCutoffs { done, all } => {
                self.present.set_length(all as u64);
                self.present.set_position(done as u64);
                self.prompts.tick();
                name(&self.present, "all prompts");
                show(&self.present, &format!("largest cutoffs, prompt {}/{all}", done + 1));
            }
            RecordingEvent::Recommended(ahead) => {
                self.prompts.reset_eta();
                // A short recording recommends at its end, soon enough.
                if self.begun.elapsed() >= patience() {
                    let rest = "the rest of the frontier and attention knockout follow";
                    self.say(&format!("layerscope: {}; {rest}", ahead.headline()));
                }
            }
            RecordingEvent::Finished(_) => self.prompts.inc(1),
            RecordingEvent::Failed { id, reason } => {
                self.prompts.inc(1);
                self.failures += 1;
                self.say(&format!("layerscope: prompt {id}: {reason}"));
            }
        }
    }

    pub(crate) fn finish(&self) {
        self.present.finish_and_clear();
        self.prompts.finish_and_clear();
    }

    /// Prints a line above the bars, which stays; also if standard error is not a terminal.
    fn say(&self, line: &str) {
        // `suspend` panics where the terminal is gone.
        match terminal::is_there() && !self.bars.is_hidden() {
            true => drop(self.bars.println(terminal::line(line))),
            false => terminal::say(line),
        }
    }
}

/// A bar while a prompt goes in, once that takes a while.
pub(crate) struct PrefillBar {
    bar: Option<ProgressBar>,
    tokens: usize,
    begun: Instant,
}

impl PrefillBar {
    /// For a prompt of so many tokens.
    pub(crate) fn new(tokens: usize) -> Self {
        Self { bar: None, tokens, begun: Instant::now() }
    }

    /// So many of them have run.
    pub(crate) fn prefilled(&mut self, done: usize) {
        if self.bar.is_none() && self.begun.elapsed() > BEFORE_A_BAR {
            self.bar = Some(bar(self.tokens, "prefill {bar:30} {pos}/{len} tokens, {eta} left"));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(done as u64);
        }
    }

    /// The first token is there.
    pub(crate) fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}
