//! The state of a recording, and the form for the next one.

use crate::engine::message::{Event, RecordingStage};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_engine::Result;
use std::path::PathBuf;
use std::time::Duration;
use web_time::Instant;

/// The recording form and the recording's progress.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The text of the prompt field.
    pub text: String,
    /// Decode steps of each prompt.
    pub max_new_tokens: usize,
    /// The run folder to write.
    pub folder: String,
    /// Whether to record with the adapter, where there is one.
    pub with_adapter: bool,
    /// The current or last recording.
    pub progress: Option<Progress>,
}

/// Progress of a recording.
#[derive(Debug)]
pub struct Progress {
    /// Prompts done, including earlier ones of a resumed run.
    pub done: usize,
    /// Prompts in all.
    pub all: usize,
    /// The prompt being recorded.
    pub prompt: String,
    /// The share of it that is done.
    pub share: f32,
    /// Its current step.
    pub stage: Option<RecordingStage>,
    /// What will be recommended, once that is known.
    pub recommended: Option<String>,
    /// Prompts that failed, with the reason.
    pub failed: Vec<(String, String)>,
    /// Whether it ended.
    pub ended: bool,
    started: Instant,
    earlier: usize,
}

impl Recorder {
    /// An empty form.
    pub fn new() -> Self {
        Self { max_new_tokens: 32, folder: "layerscope-run".into(), ..Self::default() }
    }

    /// The prompts typed: JSON Lines, or plain prompts with a line of dashes between them.
    ///
    /// # Errors
    /// As [`parse_prompts`].
    pub fn prompts(&self) -> Result<PromptFile> {
        let lines =
            if self.text.trim_start().starts_with('{') { self.text.clone() } else { self.as_json_lines() };
        Ok(PromptFile {
            name: "prompts.jsonl".into(),
            sha256: prompts_sha256(lines.as_bytes()),
            prompts: parse_prompts("the prompts typed", lines.as_bytes())?,
        })
    }

    fn as_json_lines(&self) -> String {
        let mut prompts = vec![String::new()];
        for line in self.text.lines() {
            match line.trim() {
                dashes if dashes.len() >= 3 && dashes.chars().all(|c| c == '-') => {
                    prompts.push(String::new())
                }
                _ => {
                    if let Some(prompt) = prompts.last_mut() {
                        prompt.push_str(line);
                        prompt.push('\n');
                    }
                }
            }
        }
        let prompts = prompts.iter().map(|prompt| prompt.trim()).filter(|prompt| !prompt.is_empty());
        let line = |(index, prompt)| {
            let id = format!("prompt-{}", index + 1);
            serde_json::json!({ "id": id, "category": "typed", "prompt": prompt }).to_string() + "\n"
        };
        prompts.enumerate().map(line).collect()
    }

    /// Handles an event of the engine. Returns the run folder when a recording ends with at least one prompt.
    pub fn take(&mut self, event: &Event) -> Option<PathBuf> {
        if let Event::RecordingStarted { done, all } = event {
            self.progress = Some(Progress {
                done: *done,
                all: *all,
                prompt: String::new(),
                share: 0.0,
                stage: None,
                recommended: None,
                failed: vec![],
                ended: false,
                started: Instant::now(),
                earlier: *done,
            });
        }
        let progress = self.progress.as_mut()?;
        match event {
            Event::PromptStarted { id, .. } => {
                progress.prompt.clone_from(id);
                (progress.share, progress.stage) = (0.0, None);
            }
            Event::PromptProgress { share, stage } => {
                (progress.share, progress.stage) = (*share, Some(*stage));
            }
            Event::Recommended { headline } => progress.recommended = Some(headline.clone()),
            Event::PromptFinished { .. } => {
                progress.done += 1;
                progress.share = 0.0;
            }
            Event::PromptFailed { id, reason } => {
                progress.done += 1;
                progress.share = 0.0;
                progress.failed.push((id.clone(), reason.clone()));
            }
            Event::RecordingEnded { folder, .. } => {
                progress.ended = true;
                return (progress.done > progress.failed.len()).then(|| folder.clone());
            }
            Event::Idle => progress.ended = true,
            _ => {}
        }
        None
    }
}

impl Progress {
    /// Share of the recording that is done, in \[0, 1\].
    pub fn overall(&self) -> f32 {
        ((self.done as f32 + self.share) / self.all.max(1) as f32).min(1.0)
    }

    /// Estimated remaining time; `None` before there is a rate: all prompts may run, which is half of each, before the first is done.
    pub fn left(&self) -> Option<Duration> {
        let done = (self.done - self.earlier) as f32 + self.share;
        let left = self.all as f32 - self.done as f32 - self.share;
        (done > 0.5).then(|| self.started.elapsed().mul_f32((left / done).max(0.0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_prompts_and_json_lines() {
        let mut recorder = Recorder::new();
        recorder.text = "First \"quoted\"\nsecond line\n---\n\n----\nAnother".into();
        let file = recorder.prompts().expect("two prompts");
        let texts: Vec<String> = file.prompts.iter().map(|prompt| prompt.text()).collect();
        assert_eq!(texts, ["First \"quoted\"\nsecond line", "Another"]);
        recorder.text = "{\"id\": \"a\", \"prompt\": \"x\"}\n".into();
        assert_eq!(recorder.prompts().expect("one prompt").prompts[0].id, "a");
        recorder.text = "  \n---\n".into();
        assert!(recorder.prompts().is_err());
    }
}
