//! Bars of progress on standard error; nothing is drawn where that is no terminal.

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use layerscope_cutoff::recording::Event;

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

pub(crate) fn loading() -> ProgressBar {
    ProgressBar::new(0).with_style(style("loading {bar:30} {pos}/{len} layers"))
}

/// Two bars while recording: prompts of the file with an estimate, and what the present one is at.
pub(crate) struct RecordingBars {
    bars: MultiProgress,
    prompts: ProgressBar,
    present: ProgressBar,
    failures: usize,
}

impl RecordingBars {
    pub(crate) fn new(prompts: usize) -> Self {
        let bars = MultiProgress::new();
        let prompts = bars.add(
            ProgressBar::new(prompts as u64)
                .with_style(style("recording {bar:30} {pos}/{len} prompts, {elapsed} elapsed, {eta} left")),
        );
        let present = bars.add(ProgressBar::new(0).with_style(style("  {prefix} {bar:20} {msg}")));
        Self { bars, prompts, present, failures: 0 }
    }

    pub(crate) fn failures(&self) -> usize {
        self.failures
    }

    pub(crate) fn observe(&mut self, event: Event<'_>) {
        match event {
            Event::Resumed { done, .. } => {
                self.prompts.set_position(done as u64);
                self.prompts.reset_eta();
                if done > 0 {
                    self.say(&format!("resuming: {done} prompts are recorded already"));
                }
            }
            Event::Started { id, tokens } => {
                self.present.set_length(tokens as u64);
                self.present.set_position(0);
                self.present.set_prefix(id.to_owned());
                self.present.set_message(format!("0/{tokens} tokens"));
            }
            Event::Tokens(done) => {
                self.present.set_position(done as u64);
                let all = self.present.length().unwrap_or(0);
                self.present.set_message(format!("{done}/{all} tokens"));
            }
            Event::FrontierLayers { done, all } => {
                self.present.set_length(all as u64);
                self.present.set_position(done as u64);
                self.present.set_message(format!("frontier, layer {done}/{all}"));
            }
            Event::Finished(_) => self.prompts.inc(1),
            Event::Failed { id, reason } => {
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

    /// A line that stays, above the bars; without a terminal on standard error all the same.
    fn say(&self, line: &str) {
        self.bars.suspend(|| eprintln!("{line}"));
    }
}
