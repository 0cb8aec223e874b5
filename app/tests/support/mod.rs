//! A viewer without a window, driven through its accessibility tree.

#![allow(dead_code)]

pub(crate) mod patches;
pub(crate) mod remote;
pub(crate) mod sets;
pub(crate) mod synthetic;

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Modifiers, Theme, Vec2};
use egui_kittest::Harness;
use layerscope_app::state::View;
use layerscope_app::{Launch, Open, Remembered, SeenModels, Viewer};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_engine::{DeviceChoice, ModelSource};
use layerscope_kernels::Instructions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The viewer, created in the first frame in the harness's context.
pub(crate) type Window = Harness<'static, Option<Viewer>>;

/// Only a hang takes longer.
const PATIENCE: Duration = Duration::from_secs(120);

/// The embedded model.
pub(crate) fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/layerscope-tiny.gguf")
}

/// The first prompts that `layerscope demo --adapt` trains on.
pub(crate) fn lesson_lines(count: usize) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/tiny/adapt.jsonl");
    let lines = std::fs::read_to_string(path).expect("prompts");
    lines.lines().take(count).map(|line| format!("{line}\n")).collect()
}

/// Records prompts of the embedded model into a folder.
pub(crate) fn record(folder: &Path) {
    record_prompts(lessons(2), folder);
}

/// Records these prompts.
pub(crate) fn record_prompts(prompts: PromptFile, folder: &Path) {
    let open = Open::Demo {
        model: ModelSource::path(tiny_model()),
        prompts,
        lessons: lessons(1),
        max_new_tokens: 24,
        folder: folder.to_owned(),
    };
    let mut window = window(Launch { open, ..launch(folder) }, Vec2::new(800.0, 600.0));
    wait(&mut window);
    wait(&mut window);
}

/// Two prompts of as many tokens and one of fewer.
pub(crate) fn pair() -> PromptFile {
    let prompt = |id: &str, text: &str| format!("{{\"id\": \"{id}\", \"prompt\": \"{text}\"}}\n");
    let lines = [
        prompt("anna", "Anna has a red box. Who has the red box?"),
        prompt("carl", "Carl has a red box. Who has the red box?"),
        prompt("short", "Short."),
    ]
    .concat();
    PromptFile {
        name: "pair.jsonl".into(),
        sha256: prompts_sha256(lines.as_bytes()),
        prompts: parse_prompts("pair.jsonl", lines.as_bytes()).expect("prompts"),
    }
}

/// The same as a prompt file.
pub(crate) fn lessons(count: usize) -> PromptFile {
    let lines = lesson_lines(count);
    PromptFile {
        name: "adapt.jsonl".into(),
        sha256: prompts_sha256(lines.as_bytes()),
        prompts: parse_prompts("adapt.jsonl", lines.as_bytes()).expect("prompts"),
    }
}

/// Options that open a path, with the embedded model available by name.
pub(crate) fn launch(path: &Path) -> Launch {
    Launch {
        open: Open::Path(path.to_owned()),
        models: vec![ModelSource::path(tiny_model())],
        model_of_runs: None,
        seen: SeenModels::default(),
        runs_folder: std::env::temp_dir(),
        view: None,
        theme: Some(Theme::Dark),
        drawn_in_software: false,
        device: DeviceChoice::Cpu,
        host: None,
    }
}

/// Computes with vector instructions that all processors have on which pictures are compared: others round native weights otherwise,
/// and a colour may be the next one.
fn compute_alike() {
    let available = Instructions::available();
    if let Some(common) = available.into_iter().find(|instructions| instructions.name() == "avx2") {
        common.choose();
    }
}

/// A window of this size, after its first frames.
pub(crate) fn window(launch: Launch, size: Vec2) -> Window {
    compute_alike();
    let mut window = Harness::builder().with_size(size).with_max_steps(64).wgpu().build_ui_state(
        move |ui, viewer: &mut Option<Viewer>| {
            let make = || Viewer::new(ui.ctx(), launch.clone(), Remembered::default());
            viewer.get_or_insert_with(make).frame(ui);
        },
        None,
    );
    window.run_steps(2);
    window
}

/// A window on a path, after everything is read.
pub(crate) fn opened(path: &Path) -> Window {
    let mut window = window(launch(path), Vec2::new(1_280.0, 760.0));
    wait(&mut window);
    window
}

/// The viewer of a window.
pub(crate) fn viewer(window: &Window) -> &Viewer {
    window.state().as_ref().expect("made in the first frame")
}

/// Draws frames until nothing is being read, recorded or generated.
pub(crate) fn wait(window: &mut Window) {
    wait_until(window, |viewer| !viewer.is_waiting());
    window.run_steps(4);
}

/// Draws frames until a condition holds.
pub(crate) fn wait_until(window: &mut Window, so: impl Fn(&Viewer) -> bool) {
    let start = Instant::now();
    loop {
        window.step();
        if so(viewer(window)) {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Shows a view by its tab.
pub(crate) fn show(window: &mut Window, view: View) {
    use egui_kittest::kittest::Queryable;
    // Buttons may have the same name; the tabs come first.
    window.get_all_by_label(view.name()).next().expect("its tab").click();
    window.run_steps(3);
    assert_eq!(viewer(window).state().view, view);
}

/// Replaces the text of a field.
pub(crate) fn fill(window: &mut Window, role: Role, label: &str, text: &str) {
    use egui_kittest::kittest::Queryable;
    window.get_by_role_and_label(role, label).focus();
    window.run_steps(2);
    window.key_press_modifiers(Modifiers::COMMAND, Key::A);
    window.run_steps(1);
    window.get_by_role_and_label(role, label).type_text(text);
    window.run_steps(2);
}
