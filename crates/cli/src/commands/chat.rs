//! `layerscope chat`: a conversation under a policy; each answer says what it took.

use super::generate::{choice, summary};
use crate::args::ChatArguments;
use crate::interrupt::{self, heeded};
use crate::terminal::{self, Reader};
use crate::{models, progress};
use layerscope_engine::{
    Choice, Error, ErrorKind, GenerationEvent, GenerationSettings, Message, Model, Policy, Previous,
    PromptText, Result, Sampling, generate_after, write_file,
};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

const COMMANDS: &str = "\
/policy NAME   change the policy, e.g. /policy speed:24+bos; /policy alone says which it is
/again         ask the last question anew, under the policy of now
/undo          take back the last question and its answer
/system TEXT   what the model is told before the first turn; /system alone takes it away
/clear         begin a new conversation
/save FILE     write the conversation as a line of a prompt file (JSON)
/exit          leave, as Ctrl-D does";

pub(crate) fn run(arguments: &ChatArguments) -> Result<ExitCode> {
    let choice = choice(&arguments.sampling)?;
    let device = models::device(arguments.model.device)?;
    let opened = models::open_to_generate(&arguments.model, &device, arguments.exact)?;
    if !opened.tokenizer.has_chat_template() {
        return Err(Error::input(format!(
            "{} has no chat template, so it takes no turns; use `layerscope generate --raw`",
            arguments.model.model
        )));
    }
    let policy = Policy::parse_for(&arguments.policy, &opened.config)?;
    let held = policy.in_memory(1, arguments.max_new_tokens.min(opened.config.context), &device);
    let need = models::memory_need(&opened, arguments.model.weights, &device, &arguments.kv, &held)?;
    let model = models::load(opened, arguments.model.weights, &device, &need)?;
    let model = models::with_kv(model, &arguments.kv)?;
    let model = models::with_adapter(model, &arguments.adapter, std::slice::from_ref(&policy))?;
    let mut chat = Chat {
        model: &model,
        policy,
        system: arguments.system.clone(),
        turns: vec![],
        previous: None,
        choice,
        answers: 0,
        max_new_tokens: arguments.max_new_tokens,
        rounded: !arguments.exact,
    };
    terminal::say(&format!("[{}] {}; /help lists commands, Ctrl-D leaves", chat.policy, model.name));
    let mut lines = DefaultEditor::new().map_err(|error| cannot_read(&error))?;
    loop {
        let line = match lines.readline("> ") {
            Ok(line) => line,
            Err(ReadlineError::Eof | ReadlineError::Interrupted) => return Ok(ExitCode::SUCCESS),
            Err(error) => return Err(cannot_read(&error)),
        };
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = lines.add_history_entry(line);
        let done = match line.strip_prefix('/') {
            Some("exit" | "quit") => return Ok(ExitCode::SUCCESS),
            Some(command) => chat.command(command),
            None => chat.ask(line),
        };
        match done {
            Ok(Reader::Reads) => {}
            Ok(Reader::Left) => return Ok(ExitCode::SUCCESS),
            // What the user can mend does not end the conversation.
            Err(error) if error.kind() == ErrorKind::Input => terminal::say(&format!("layerscope: {error}")),
            Err(error) => return Err(error),
        }
    }
}

fn cannot_read(error: &ReadlineError) -> Error {
    Error::failure(format!("cannot read standard input: {error}"))
}

/// A conversation.
struct Chat<'m> {
    model: &'m Model,
    policy: Policy,
    system: Option<String>,
    /// The user's messages and the model's answers, in turns.
    turns: Vec<Message>,
    /// The last answer's prompt, with which the next one begins.
    previous: Option<Previous>,
    choice: Choice,
    /// So many answers were given: each draws other random numbers.
    answers: u64,
    max_new_tokens: usize,
    rounded: bool,
}

impl Chat<'_> {
    /// A line that begins with `/`, without it.
    fn command(&mut self, line: &str) -> Result<Reader> {
        let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match (name, rest) {
            ("help", _) => terminal::say_lines(COMMANDS),
            ("policy", "") => terminal::say(&format!("[{}]", self.policy)),
            ("policy", name) => {
                self.policy = Policy::parse_for(name, self.model.config())?;
                terminal::say(&format!("[{}] from the next answer on", self.policy));
            }
            ("again", _) => return self.again(),
            ("undo", _) => match self.turns.len() {
                0 => terminal::say("nothing was asked yet"),
                turns => {
                    self.turns.truncate(turns - 2);
                    let left = self.turns.len() / 2;
                    terminal::say(&format!(
                        "taken back; {left} question{} left",
                        if left == 1 { " is" } else { "s are" }
                    ));
                }
            },
            ("system", text) => {
                self.system = Some(text.to_owned()).filter(|text| !text.is_empty());
                terminal::say(if text.is_empty() {
                    "no system message"
                } else {
                    "set, from the next answer on"
                });
            }
            ("clear", _) => {
                self.turns.clear();
                terminal::say("a new conversation");
            }
            ("save", "") => return Err(Error::input("/save needs the name of a file")),
            ("save", file) => self.save(Path::new(file))?,
            _ => return Err(Error::input(format!("/{name} is no command; /help lists them"))),
        }
        Ok(Reader::Reads)
    }

    /// The last question, anew.
    fn again(&mut self) -> Result<Reader> {
        let [.., question, answer] = &self.turns[..] else {
            return Err(Error::input("nothing was asked yet"));
        };
        let (question, answer) = (question.clone(), answer.clone());
        self.turns.truncate(self.turns.len() - 2);
        let done = self.ask(&question.content);
        if done.is_err() {
            self.turns.extend([question, answer]);
        }
        done
    }

    /// A question; its answer is written while it comes.
    fn ask(&mut self, question: &str) -> Result<Reader> {
        let question = Message::new("user", question);
        let mut messages = self.messages();
        messages.push(question.clone());
        let (text, reader) = self.answer(&PromptText::Messages(messages))?;
        self.turns.extend([question, Message::new("assistant", text)]);
        Ok(reader)
    }

    /// The conversation so far.
    fn messages(&self) -> Vec<Message> {
        let system = self.system.iter().map(|text| Message::new("system", text.as_str()));
        system.chain(self.turns.iter().cloned()).collect()
    }

    fn answer(&mut self, prompt: &PromptText) -> Result<(String, Reader)> {
        let tokenizer = &self.model.tokenizer;
        let prompt = tokenizer.encode_prompt(prompt)?;
        let context = self.model.config().context;
        let room = (context + 1).saturating_sub(prompt.len());
        if room == 0 {
            return Err(Error::input(format!(
                "the conversation has {} tokens and the model a context of {context}; /undo or /clear makes room",
                prompt.len()
            )));
        }
        let settings = GenerationSettings {
            max_new_tokens: self.max_new_tokens.min(room),
            choice: self.choice_of_now(),
            stop_tokens: tokenizer.eos_ids(),
            statistics: false,
            rounded: self.rounded,
        };
        let (mut stream, mut text, mut failed) = (tokenizer.stream(true), String::new(), None);
        let mut reader = Reader::Reads;
        let mut bar = progress::PrefillBar::new(prompt.len());
        let (previous, decoder, policy) = (&mut self.previous, &self.model.decoder, self.policy.clone());
        let generation = heeded(|interrupt| {
            generate_after(previous, decoder, &prompt, policy, &settings, interrupt, &mut |event| {
                let token = match event {
                    GenerationEvent::Prefilled(done) => {
                        bar.prefilled(done);
                        return ControlFlow::Continue(());
                    }
                    GenerationEvent::Token(generated) => generated.token,
                };
                bar.finish();
                let written = stream.push(token).and_then(|piece| {
                    let piece = piece.unwrap_or_default();
                    text.push_str(&piece);
                    terminal::write(&piece)
                });
                match written {
                    Ok(Reader::Reads) => return ControlFlow::Continue(()),
                    Ok(Reader::Left) => reader = Reader::Left,
                    Err(error) => failed = Some(error),
                }
                ControlFlow::Break(())
            })
        });
        bar.finish();
        // Ctrl-C ends the answer alone.
        let interrupted = interrupt::taken();
        let generation = match generation {
            Err(Error::Interrupted) if interrupted => {
                return Err(Error::input("no answer was begun; ask again"));
            }
            generation => generation?,
        };
        if let Some(error) = failed {
            return Err(error);
        }
        let rest = stream.finish()?;
        text.push_str(&rest);
        terminal::print(&rest)?;
        self.answers += 1;
        terminal::say(&summary(self.model, &self.policy, prompt.len(), &generation));
        Ok((text, reader))
    }

    /// Each answer draws other random numbers than the one before.
    fn choice_of_now(&self) -> Choice {
        let mut choice = self.choice.clone();
        if let Sampling::Random { seed, .. } = &mut choice.sampling {
            *seed = seed.wrapping_add(self.answers);
        }
        choice
    }

    fn save(&self, file: &Path) -> Result<()> {
        let line = serde_json::json!({"id": "chat", "messages": self.messages()});
        write_file(file, format!("{line}\n").as_bytes())
            .map_err(|error| Error::input(format!("{error}; choose another file")))?;
        terminal::say(&format!("{} turns written to {}", self.turns.len(), file.display()));
        Ok(())
    }
}
