//! A window on another machine: it shows what a window there would, and outlives its connection.

mod support;

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Modifiers, Theme, Vec2};
use egui_kittest::SnapshotResults;
use egui_kittest::kittest::Queryable;
use layerscope_app::Launch;
use layerscope_app::state::View;
use layerscope_diagnostics::run::Run;
use std::path::Path;
use support::remote::{Elsewhere, NAME};
use support::synthetic::{self, Sizes};
use support::{Window, fill, show, viewer, wait, wait_until};

const SIZES: Sizes = Sizes { layers: 12, heads: 8, steps: 300, positions: 9_000, prompts: 2 };
const SIZE: Vec2 = Vec2::new(1_280.0, 760.0);

/// The same run in a window here and in one elsewhere.
fn both(launch: impl Fn(Launch) -> Launch, run: &Path) -> ([Window; 2], Elsewhere) {
    let elsewhere = Elsewhere::default();
    let windows = [support::launch(run), elsewhere.launch(run)].map(|options| {
        let mut window = support::window(launch(options), SIZE);
        wait(&mut window);
        wait(&mut window);
        window
    });
    (windows, elsewhere)
}

/// The pixels above the status line, which names the other machine.
fn picture(window: &mut Window) -> Vec<u8> {
    let image = window.render().expect("a picture");
    let width = image.width() as usize * 4;
    let rows = image.height() as usize - 40;
    image.into_raw()[..rows * width].to_vec()
}

fn same(windows: &mut [Window; 2], what: &str) {
    let [here, there] = windows;
    for window in [&mut *here, &mut *there] {
        wait(window);
        wait(window);
    }
    assert_eq!(viewer(there).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    // The other machine's name moves glyphs in the texture that text is drawn from, which may round a pixel otherwise.
    let (here, there) = (picture(here), picture(there));
    let differing = here.iter().zip(&there).map(|(here, there)| here.abs_diff(*there)).filter(|by| *by > 0);
    let differing: Vec<u8> = differing.collect();
    let most = differing.iter().max().copied().unwrap_or_default();
    assert!(
        here.len() == there.len() && most <= 2,
        "{what}: {} values differ, by up to {most}",
        differing.len()
    );
}

fn run(folder: &Path, sizes: Sizes) -> std::path::PathBuf {
    let run = folder.join("made-up");
    synthetic::write(&run, sizes, false);
    run
}

#[test]
fn every_view_is_as_on_the_other_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), SIZES);
    for view in [View::Map, View::Pattern, View::Reading, View::Curves, View::Heads, View::Frontier] {
        let (mut windows, _elsewhere) = both(|launch| Launch { view: Some(view), ..launch }, &run);
        same(&mut windows, view.name());
    }
}

#[test]
fn maps_are_the_same_at_every_zoom_on_every_scale_and_as_a_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), SIZES);
    let (mut windows, _elsewhere) = both(|launch| Launch { view: Some(View::Map), ..launch }, &run);
    let whole = (2 * SIZES.layers * SIZES.positions * size_of::<f32>()) as u64;
    let come = |windows: &[Window; 2]| viewer(&windows[1]).traffic().expect("a connection").received;
    assert!(come(&windows) < whole, "{} of {whole} bytes", come(&windows));
    for step in 0..4 {
        for window in &mut windows {
            window.get_all_by_role(Role::Canvas).next().expect("the map").focus();
            window.run_steps(2);
            (0..4).for_each(|_| window.key_press(Key::Plus));
            window.run_steps(2);
        }
        same(&mut windows, &format!("zoom {step}"));
    }
    for window in &mut windows {
        window.get_by_label("Scale: Log").click();
        window.run_steps(3);
        window.get_by_label("Percentile").click();
        window.run_steps(3);
    }
    same(&mut windows, "the scale");
    for window in &mut windows {
        window.get_by_label("Decode steps").click();
        window.run_steps(3);
    }
    same(&mut windows, "steps");
    for window in &mut windows {
        window.get_by_label("Prompt tokens").click();
        window.run_steps(3);
        window.get_by_label("Table").click();
        window.run_steps(3);
    }
    same(&mut windows, "the table");
}

/// The export of the current view by a shortcut.
fn exported(window: &mut Window, modifiers: Modifiers, key: Key, path: &Path) -> Vec<u8> {
    window.key_press_modifiers(modifiers, key);
    window.run_steps(3);
    let label = window.query_by_label("File on this machine").map_or("File", |_| "File on this machine");
    fill(window, Role::TextInput, label, &path.display().to_string());
    window.get_all_by_role_and_label(Role::Button, "Export").last().expect("a button").click();
    window.run_steps(2);
    wait(window);
    assert_eq!(viewer(window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    std::fs::read(path).expect("a file")
}

#[test]
fn exports_and_reports_are_the_same() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), Sizes { positions: 2_000, steps: 40, ..SIZES });
    let (mut windows, _elsewhere) = both(|launch| Launch { view: Some(View::Map), ..launch }, &run);
    let command_shift = Modifiers::COMMAND | Modifiers::SHIFT;
    for (key, extension) in [(Key::E, "svg"), (Key::C, "csv"), (Key::R, "html")] {
        let [here, there] = [0, 1].map(|index| {
            let path = folder.path().join(format!("{index}")).join(format!("figure.{extension}"));
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            exported(&mut windows[index], command_shift, key, &path)
        });
        assert!(!here.is_empty() && here == there, "{extension} differs");
    }
}

#[test]
fn a_recording_elsewhere_is_shown_and_its_model_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let elsewhere = Elsewhere::default();
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, support::lesson_lines(2)).expect("prompts");
    let mut window = support::window(elsewhere.launch(&support::tiny_model()), SIZE);
    wait(&mut window);
    assert_eq!(viewer(&window).state().view, View::Record);
    open(&mut window, &prompts.display().to_string());
    fill(&mut window, Role::TextInput, "Run folder", &folder.path().join("run").display().to_string());
    record(&mut window);
    window.run_steps(2);
    wait(&mut window);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(viewer(&window).run().expect("the run").prompts.len(), 2);
    // Another window finds the run's model by its name there.
    let mut window = support::window(elsewhere.launch(&folder.path().join("run")), SIZE);
    wait(&mut window);
    assert!(viewer(&window).run().expect("the run").model.is_some());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", "The lake");
    window.key_press_modifiers(Modifiers::COMMAND, Key::Enter);
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    let live = viewer(&window).live();
    let tokens: Vec<usize> = live.sides.iter().map(|side| side.tokens.len()).collect();
    assert!(tokens.len() >= 2 && tokens.iter().all(|count| *count > 0), "{tokens:?}");
}

fn record(window: &mut Window) {
    // Behind the tab of the same name.
    window.get_all_by_role_and_label(Role::Button, "Record").last().expect("a button").click();
}

fn open(window: &mut Window, path: &str) {
    window.key_press_modifiers(Modifiers::COMMAND, Key::O);
    window.run_steps(3);
    assert!(window.query_by_label("Browse for a folder …").is_none());
    fill(window, Role::TextInput, &format!("Path on {NAME}"), path);
    window.get_by_label("Open").click();
    window.run_steps(2);
    wait(window);
}

#[test]
fn paths_are_those_of_the_other_machine_and_errors_are_sentences() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), Sizes { positions: 200, steps: 8, ..SIZES });
    let damaged = folder.path().join("damaged");
    std::fs::create_dir(&damaged).expect("a folder");
    for entry in std::fs::read_dir(&run).expect("a folder") {
        let path = entry.expect("a file").path();
        std::fs::copy(&path, damaged.join(path.file_name().expect("a name"))).expect("a copy");
    }
    std::fs::write(damaged.join("bench.json"), "{").expect("a file");
    let elsewhere = Elsewhere::default();
    let mut window = support::window(elsewhere.launch(Path::new("/no/such/run")), SIZE);
    wait(&mut window);
    let in_vain = viewer(&window).started_in_vain();
    assert!(in_vain.is_some_and(|reason| reason.contains("/no/such/run")), "{in_vain:?}");
    let mut window = support::window(elsewhere.launch(&run), SIZE);
    wait(&mut window);
    for (path, told) in [
        (
            "/no/such/run",
            "there is no run folder, model or prompt file /no/such/run: /no/such/run is no model there",
        ),
        (&*folder.path().display().to_string(), "manifest.json"),
    ] {
        open(&mut window, path);
        assert!(viewer(&window).errors().any(|error| error.contains(told)), "{path}");
        window.get_all_by_label("Dismiss").next().expect("a button to dismiss it").click();
        window.run_steps(2);
    }
    assert!(viewer(&window).run().is_some());
    assert_eq!(viewer(&window).started_in_vain(), None);
    // What cannot be read of the folder is named as it is there.
    open(&mut window, &damaged.display().to_string());
    let bench = viewer(&window).run().expect("the run").bench.as_ref().expect_err("a damaged file").clone();
    assert!(bench.contains(&format!("{NAME}:{}", damaged.join("bench.json").display())), "{bench}");
}

#[test]
fn what_is_shown_outlives_the_connection() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = run(folder.path(), Sizes { positions: 600, steps: 16, ..SIZES });
    let elsewhere = Elsewhere::default();
    let mut results = SnapshotResults::new();
    let launch = Launch { theme: Some(Theme::Light), view: Some(View::Map), ..elsewhere.launch(&run) };
    let mut window = support::window(launch, Vec2::new(1_080.0, 640.0));
    wait(&mut window);
    wait(&mut window);
    results.add(window.try_snapshot("remote-map-light"));
    elsewhere.cut();
    wait_until(&mut window, |viewer| viewer.connection_lost().is_some());
    window.run_steps(3);
    assert!(viewer(&window).run().is_some() && !viewer(&window).is_waiting());
    results.add(window.try_snapshot("remote-lost-light"));
    // Every view is still there, and what needs the other machine says so.
    window.key_press_modifiers(Modifiers::COMMAND, Key::Num4);
    window.run_steps(3);
    assert_eq!(viewer(&window).state().view, View::Heads);
    window.key_press_modifiers(Modifiers::COMMAND, Key::R);
    window.run_steps(3);
    assert!(viewer(&window).errors().any(|error| error.contains("reconnect first")));
    window.key_press_modifiers(Modifiers::COMMAND, Key::Num1);
    window.run_steps(3);
    window.get_by_label("Reconnect").click();
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).connection_lost(), None);
    window.key_press_modifiers(Modifiers::COMMAND, Key::R);
    window.run_steps(2);
    wait(&mut window);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().count(), 0);
}

#[test]
fn a_recording_ends_with_the_connection_and_goes_on_with_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("run");
    let elsewhere = Elsewhere::default();
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, support::lesson_lines(40)).expect("prompts");
    let mut window = support::window(elsewhere.launch(&support::tiny_model()), SIZE);
    wait(&mut window);
    open(&mut window, &prompts.display().to_string());
    fill(&mut window, Role::TextInput, "Run folder", &to.display().to_string());
    record(&mut window);
    wait_until(&mut window, |viewer| viewer.recorded() >= 2);
    elsewhere.cut();
    wait_until(&mut window, |viewer| viewer.connection_lost().is_some() && !viewer.is_waiting());
    let told = viewer(&window).recorded();
    window.get_by_label("Reconnect").click();
    window.run_steps(2);
    // The model is loaded again.
    wait(&mut window);
    let kept = Run::open(&to).expect("a run").prompt_ids().len();
    assert!((told..40).contains(&kept), "{kept} kept, {told} told");
    record(&mut window);
    wait_until(&mut window, |viewer| viewer.recorded() > kept);
    assert_eq!(viewer(&window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
}
