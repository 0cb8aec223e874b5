//! Frame times of the viewer on a run of 64 layers × 131,072 prompt tokens, and with 4,096 decode steps
//! streaming in.
//!
//! Prints the time until the run is drawn, memory beside the raw figures, and the UI thread's own work per frame (the
//! frame's code and its tessellation: everything but the graphics driver) while zooming, panning, dragging the cutoff
//! and generating. `cargo bench -p layerscope-app`

#![allow(clippy::print_stdout)]

use eframe::egui::{
    Context, CursorIcon, Event, Key, Modifiers, MouseWheelSource, MouseWheelUnit, PointerButton, Pos2,
    RawInput, Rect, TouchPhase, Ui, Vec2, pos2, vec2,
};
use layerscope_app::engine::message::{Event as EngineEvent, LiveAttention, LiveToken};
use layerscope_app::live::Live;
use layerscope_app::state::{View, ViewState};
use layerscope_app::views::generate::{self, Form, LiveScene};
use layerscope_app::{Launch, Open, Remembered, SeenModels, Theme, Viewer};
use std::time::Instant;

#[path = "../tests/support/synthetic.rs"]
mod synthetic;

const SIZES: synthetic::Sizes =
    synthetic::Sizes { layers: 64, heads: 16, steps: 32, positions: 131_072, prompts: 1 };
const WINDOW: Vec2 = vec2(1_600.0, 1_000.0);
/// A point within the map.
const ON_THE_MAP: Pos2 = pos2(600.0, 300.0);

fn main() {
    // `cargo test` only checks that it builds and starts.
    let quick = !std::env::args().any(|argument| argument == "--bench");
    let sizes = if quick { synthetic::Sizes { positions: 2_048, ..SIZES } } else { SIZES };
    let frames = if quick { 20 } else { 600 };
    let folder = tempfile::tempdir().expect("a folder");
    synthetic::write(folder.path(), sizes, false);

    let ctx = Context::default();
    frame(&ctx, vec![], |ui| drop(ui.label("fonts are laid out before anything is timed")));
    let mut viewer = open(&ctx, folder.path(), sizes);
    let mut run = |name: &str, count: usize, events: &dyn Fn(usize) -> Vec<Event>| {
        let times = (0..count).map(|index| frame(&ctx, events(index), |ui| viewer.frame(ui)).0);
        report(name, times.collect());
    };
    run("still", frames, &|_| vec![]);
    run("zooming", frames, &|index| {
        vec![Event::PointerMoved(ON_THE_MAP), wheel(if index % 200 < 100 { 40.0 } else { -40.0 })]
    });
    run("zooming in to pan", 30, &|_| vec![Event::PointerMoved(ON_THE_MAP), wheel(40.0)]);
    run("panning", frames, &|index| drag(ON_THE_MAP, vec2(6.0, 0.0), index, 50));
    let line = (100..900).map(|y| pos2(ON_THE_MAP.x, y as f32)).find(|at| {
        let cursor = |viewer: &mut Viewer| {
            frame(&ctx, vec![Event::PointerMoved(*at)], |ui| viewer.frame(ui));
            frame(&ctx, vec![], |ui| viewer.frame(ui)).1
        };
        cursor(&mut viewer) == CursorIcon::ResizeVertical
    });
    let line = line.expect("the cutoff's line on the map") + vec2(0.0, 4.0);
    let before = viewer.state().cutoff;
    let times = (0..frames)
        .map(|index| frame(&ctx, drag(line, vec2(0.0, -2.0), index, frames), |ui| viewer.frame(ui)).0);
    report("dragging the cutoff", times.collect());
    assert!(quick || viewer.state().cutoff < before, "the cutoff moved");
    frame(&ctx, vec![tab(Key::Num2)], |ui| viewer.frame(ui));
    let times = (0..10).map(|_| frame(&ctx, vec![], |ui| viewer.frame(ui)).0);
    report("reading, laid out", times.collect());
    let down = vec![Event::PointerMoved(ON_THE_MAP), wheel(-200.0)];
    let times = (0..frames).map(|_| frame(&ctx, down.clone(), |ui| viewer.frame(ui)).0);
    report("reading, scrolling", times.collect());
    let times = (0..frames).map(|index| {
        let at = pos2(420.0 + (index * 7 % 500) as f32, 200.0 + (index * 13 % 600) as f32);
        frame(&ctx, vec![Event::PointerMoved(at)], |ui| viewer.frame(ui)).0
    });
    report("reading, pointing at tokens", times.collect());
    for (view, key) in [("curves", Key::Num3), ("heads", Key::Num4), ("frontier", Key::Num5)] {
        frame(&ctx, vec![tab(key)], |ui| viewer.frame(ui));
        let times = (0..frames).map(|_| frame(&ctx, vec![], |ui| viewer.frame(ui)).0);
        report(view, times.collect());
    }
    stream(&ctx, if quick { 64 } else { 4_096 });
}

/// Opens the run and draws it once.
fn open(ctx: &Context, folder: &std::path::Path, sizes: synthetic::Sizes) -> Viewer {
    let raw = (2 * sizes.layers * sizes.positions * size_of::<f32>()) as f64;
    let (before, start) = (memory("VmRSS"), Instant::now());
    // Writing 5 there resets the peak.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let launch = Launch {
        open: Open::Path(folder.to_owned()),
        models: vec![],
        model_of_runs: None,
        seen: SeenModels::default(),
        runs_folder: ".".into(),
        view: Some(View::Map),
        theme: Some(Theme::Dark),
        drawn_in_software: false,
        device: layerscope_engine::DeviceChoice::Cpu,
        host: None,
    };
    let mut viewer = Viewer::new(ctx, launch, Remembered::default());
    viewer.settle().expect("the run opens");
    frame(ctx, vec![], |ui| viewer.frame(ui));
    println!("{} layers × {} tokens, {:.1} MB of raw figures", sizes.layers, sizes.positions, raw / 1e6);
    println!("opened and drawn in {:.2} s", start.elapsed().as_secs_f64());
    for (name, now) in [("held", memory("VmRSS")), ("at the peak", memory("VmHWM"))] {
        let grown = (now - before).max(0.0);
        println!("memory {name}: {:.1} MB more, {:.2} times the raw figures", grown / 1e6, grown / raw);
    }
    viewer
}

/// Bytes of this process, by a line of `/proc/self/status`; NaN on systems without it.
fn memory(line: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let value = status.lines().find_map(|known| known.strip_prefix(line)?.strip_prefix(':'));
    let kilobytes = value.and_then(|value| value.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kilobytes.map_or(f64::NAN, |kilobytes| kilobytes * 1024.0)
}

/// One frame: milliseconds that it took, tessellation included, and the cursor that it asks for.
fn frame(ctx: &Context, events: Vec<Event>, ui: impl FnMut(&mut Ui)) -> (f64, CursorIcon) {
    let time = ctx.input(|input| input.time) + 1.0 / 60.0;
    let screen_rect = Some(Rect::from_min_size(Pos2::ZERO, WINDOW));
    let input = RawInput { screen_rect, events, time: Some(time), ..Default::default() };
    let start = Instant::now();
    let mut output = ctx.run_ui(input, ui);
    // Discards the shapes, which would go to the graphics driver.
    output.textures_delta.clear();
    let cursor = output.platform_output.cursor_icon;
    let primitives = ctx.tessellate(output.shapes, output.pixels_per_point);
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    drop(primitives);
    (milliseconds, cursor)
}

/// Ctrl with a number: the tab of a view.
fn tab(key: Key) -> Event {
    Event::Key { key, physical_key: None, pressed: true, repeat: false, modifiers: Modifiers::COMMAND }
}

fn wheel(by: f32) -> Event {
    Event::MouseWheel {
        unit: MouseWheelUnit::Point,
        delta: vec2(0.0, by),
        phase: TouchPhase::Move,
        source: MouseWheelSource::Wheel,
        modifiers: Modifiers::NONE,
    }
}

/// The events of a frame of drags that are `length` frames long and go back and forth.
fn drag(from: Pos2, step: Vec2, index: usize, length: usize) -> Vec<Event> {
    let (back, at) = ((index / length) % 2 == 1, index % length);
    let along = if back { length - at } else { at } as f32;
    let pos = from + step * along;
    let press = |pressed| Event::PointerButton {
        pos,
        button: PointerButton::Primary,
        pressed,
        modifiers: Modifiers::NONE,
    };
    let mut events = vec![Event::PointerMoved(pos)];
    if at == 0 {
        events.push(press(true));
    }
    if at + 1 == length {
        events.push(press(false));
    }
    events
}

/// Decode steps streaming into the live view, one a frame.
fn stream(ctx: &Context, steps: usize) {
    const LAYERS: usize = 64;
    let (mut live, mut form, mut state) = (Live::default(), Form::default(), ViewState::default());
    form.prompt = "Why is the sky blue?".into();
    let started = EngineEvent::GenerationStarted {
        side: 0,
        policy: "full".into(),
        adapter: None,
        caveat: None,
        prompt_tokens: 1_000,
        kv_bytes: 1 << 20,
    };
    live.take(&started, LAYERS);
    let times = (0..steps).map(|step| {
        let share = |layer: usize| ((step * 31 + layer * 17) % 97) as f32 / 97.0;
        let attention = (0..LAYERS).map(|layer| LiveAttention {
            bos_mass: 0.2,
            prompt_mass: 0.8 * share(layer),
            decode_mass: 0.8 - 0.8 * share(layer),
            prompt_entropy: share(layer + 1),
        });
        let token = LiveToken {
            side: 0,
            step,
            id: step as u32,
            token: " word".into(),
            text: " word".into(),
            top: vec![],
            elapsed_s: step as f64 * 0.02,
            attention: attention.collect(),
        };
        let start = Instant::now();
        live.take(&EngineEvent::Token(Box::new(token)), LAYERS);
        let taken = start.elapsed().as_secs_f64() * 1e3;
        let (drawn, _) = frame(ctx, vec![], |ui| {
            let mut readout = None;
            let mut scene = LiveScene {
                form: &mut form,
                live: &live,
                state: &mut state,
                policy: "speed:48+bos",
                model: "made-up",
                adapter: None,
                busy: true,
                chats: false,
                has_prompt: false,
                readout: &mut readout,
            };
            generate::show(ui, &mut scene);
        });
        taken + drawn
    });
    report(&format!("{steps} decode steps streaming in"), times.collect());
}

fn report(name: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    println!(
        "{name:<32} median {:6.2} ms   99th percentile {:6.2} ms   most {:6.2} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    );
}
