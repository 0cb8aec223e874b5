//! What crosses between a window and an engine on another machine.

use crate::Target;
use crate::mutate::{Random, below, bytes, one_in};
use crate::recorded::{self, MODEL};
use layerscope_app::SeenModels;
use layerscope_app::engine::message::{Command, Event, Under};
use layerscope_app::engine::remote::{Link, Machine, Pipes, PromptOf, Question, reread, serve};
use layerscope_diagnostics::run::Run;
use layerscope_engine::{DeviceChoice, Interrupt, ModelSource, PromptText, Sampling, WeightsPrecision};
use std::io::{self, Read, pipe};
use std::sync::{Arc, Mutex, PoisonError};

/// Which side speaks, a byte, and what it says: a greeting and frames.
pub const TARGET: Target = Target { name: "frames", read, mutate: changed, seeds };

fn read(input: &[u8]) {
    let Some((side, stream)) = input.split_first() else { return };
    let is_from_window = side % 2 == 0;
    let again = reread(stream, is_from_window);
    assert!(reread(&again, is_from_window) == again, "what is written is not what was read");
}

/// Bytes of a greeting before the length of its version.
const GREETING: usize = 12;

/// A frame changed, left out, repeated or moved, of the length that it then has; `None` where there is none.
fn changed(input: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let version = usize::from(*input.get(1 + GREETING)?);
    let (greeting, mut rest) = input.split_at_checked(1 + GREETING + 1 + version)?;
    let mut frames = vec![];
    while let Some((length, behind)) = rest.split_first_chunk() {
        let Some((frame, behind)) = behind.split_at_checked(u32::from_le_bytes(*length) as usize) else {
            break;
        };
        frames.push(frame.to_vec());
        rest = behind;
    }
    let (chosen, other) = (below(frames.len(), random), below(frames.len(), random));
    let mut frame = frames.get(chosen)?.clone();
    if one_in(2, random) {
        bytes::change(&mut frame, random);
        frames[chosen] = frame;
    } else if one_in(3, random) {
        frames.remove(chosen);
    } else {
        frames.insert(other, frame);
    }
    let frames =
        frames.iter().flat_map(|frame| [&(frame.len() as u32).to_le_bytes(), frame.as_slice()].concat());
    Some(greeting.iter().copied().chain(frames).collect())
}

/// Keeps what is read.
struct Heard<R> {
    way: R,
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl<R: Read> Read for Heard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.way.read(buffer)?;
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..read]);
        Ok(read)
    }
}

/// What both sides say while a model is loaded, generates and is asked for.
fn seeds() -> Vec<Vec<u8>> {
    // The engine's thread would be one of a pool that it makes; other targets need all of a pool's threads.
    rayon::current_num_threads();
    let machine = Machine {
        resolve: |_| Ok(ModelSource::embedded("layerscope-tiny", MODEL)),
        models: || vec![ModelSource::embedded("layerscope-tiny", MODEL)],
        seen: SeenModels::default(),
    };
    let said: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
    let (from_window, to_engine) = pipe().expect("a pipe");
    let (from_engine, to_window) = pipe().expect("a pipe");
    let from_window = Heard { way: from_window, bytes: Arc::clone(&said[0]) };
    let from_engine = Heard { way: from_engine, bytes: Arc::clone(&said[1]) };
    let served = std::thread::spawn(move || serve(from_window, to_window, machine, &Interrupt::new(false)));
    let pipes = Pipes { input: Box::new(from_engine), output: Box::new(to_engine), program: None };
    let (link, engine) = Link::connect("elsewhere", pipes, || {}).expect("an engine");
    let perform = |command: Command| {
        engine.send(command).expect("room for a command");
        while engine.is_busy() {
            match engine.try_event() {
                Some(Event::Failed(sentence)) => panic!("{sentence}"),
                Some(_) => {}
                None => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    };
    let source = ModelSource::named("layerscope-tiny", "layerscope-tiny");
    perform(Command::LoadModel { source, precision: WeightsPrecision::Native, device: DeviceChoice::Cpu });
    let side = |policy: &str| Under {
        prompt: PromptText::Plain("The lake is Mundanra.".to_owned()),
        policy: policy.to_owned(),
        adapter: None,
    };
    let sides = vec![side("full"), side("speed:4+bos")];
    perform(Command::Generate { sides, max_new_tokens: 3, sampling: Sampling::Greedy });
    let (prompt_tokens, continuation) = (vec![1, 2, 3], vec![4, 5]);
    perform(Command::ReadPattern { prompt_tokens, continuation, layers: vec![0, 3] });
    let folder = recorded::with(&[]);
    let run = Run::open(folder.path()).expect("a run");
    let (revision, id) = (run.manifest().revision, run.prompt_ids()[0].clone());
    let of = PromptOf { folder: folder.path().to_owned(), revision, id };
    for question in
        [Question::Models, Question::Look { path: folder.path().to_owned() }, Question::Maps { of }]
    {
        link.ask(question).expect("an answer");
    }
    drop((link, engine));
    let _ = served.join();
    let heard = |side: usize| said[side].lock().unwrap_or_else(PoisonError::into_inner).clone();
    [0, 1].map(|side: usize| [vec![side as u8], heard(side)].concat()).to_vec()
}
