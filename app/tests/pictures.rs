//! Snapshots of each view, light and dark, on a synthetic run. `UPDATE_SNAPSHOTS=true cargo test -p
//! layerscope-app` updates them.

mod support;

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Theme, Vec2};
use egui_kittest::SnapshotResults;
use egui_kittest::kittest::Queryable;
use layerscope_app::adapting::Adapting;
use layerscope_app::engine::Event;
use layerscope_app::state::View;
use layerscope_app::views::adapt::{self, AdaptScene};
use layerscope_diagnostics::record::{Divergence, SpanMasses, SpanRecord, SpanRow};
use layerscope_diagnostics::run::{Run, SpansWriter};
use layerscope_engine::{AdapterTraining, HeldOutFigures};
use std::path::Path;
use support::synthetic::{self, Sizes};
use support::{patches, sets};

const SIZES: Sizes = Sizes { layers: 12, heads: 8, steps: 16, positions: 240, prompts: 9 };

#[test]
fn every_view_looks_as_it_should() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("made-up");
    synthetic::write(&run, SIZES, false);
    let mut results = SnapshotResults::new();
    for theme in [Theme::Dark, Theme::Light] {
        for view in View::ALL {
            let launch =
                layerscope_app::Launch { view: Some(view), theme: Some(theme), ..support::launch(&run) };
            let mut window = support::window(launch, Vec2::new(1_080.0, 640.0));
            support::wait(&mut window);
            let name = format!("{}-{theme:?}", view.name()).to_lowercase();
            results.add(window.try_snapshot(name));
        }
    }
}

#[test]
fn a_budget_shows_what_each_head_keeps() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("made-up");
    synthetic::write(&run, SIZES, false);
    sets::write(&run, SIZES);
    let mut results = SnapshotResults::new();
    let views = [(View::Heads, Theme::Light), (View::Map, Theme::Dark), (View::Frontier, Theme::Light)];
    for (view, theme) in views {
        let launch = layerscope_app::Launch { view: Some(view), theme: Some(theme), ..support::launch(&run) };
        let mut window = support::window(launch, Vec2::new(1_280.0, 860.0));
        support::wait(&mut window);
        for _ in 0..7 {
            window.get_by_role_and_label(Role::Slider, "KV budget").decrement_accesskit();
            window.run_steps(2);
        }
        results.add(window.try_snapshot(format!("budget-{}-{theme:?}", view.name()).to_lowercase()));
    }
}

#[test]
fn two_runs_are_seen_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let [run, deeper] = ["made-up", "deeper"].map(|name| folder.path().join(name));
    synthetic::write(&run, SIZES, false);
    synthetic::write(&deeper, Sizes { layers: 20, prompts: 6, ..SIZES }, false);
    let mut results = SnapshotResults::new();
    for (theme, size) in [(Theme::Dark, Vec2::new(900.0, 640.0)), (Theme::Light, Vec2::new(1_280.0, 900.0))] {
        let launch = layerscope_app::Launch { theme: Some(theme), ..support::launch(&run) };
        let mut window = support::window(launch, size);
        support::wait(&mut window);
        window.state_mut().as_mut().expect("a viewer").compare_with(&deeper);
        support::wait(&mut window);
        results.add(window.try_snapshot(format!("compare-two-{theme:?}").to_lowercase()));
    }
}

/// Measurements of `layerscope bench` on SmolLM2-135M-Instruct, added to the synthetic run.
#[test]
fn measured_policies_are_set_against_their_costs() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("made-up");
    synthetic::write(&run, SIZES, false);
    let bench = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/bench.json");
    std::fs::copy(bench, run.join("bench.json")).expect("measurements");
    let mut results = SnapshotResults::new();
    for (theme, size) in [(Theme::Dark, Vec2::new(1_440.0, 860.0)), (Theme::Light, Vec2::new(900.0, 640.0))] {
        let launch = layerscope_app::Launch {
            view: Some(View::Frontier),
            theme: Some(theme),
            ..support::launch(&run)
        };
        let mut window = support::window(launch, size);
        support::wait(&mut window);
        window.get_by_label("Policies").click();
        window.run_steps(4);
        results.add(window.try_snapshot(format!("policies-{theme:?}").to_lowercase()));
    }
}

/// Scores of SmolLM2-135M-Instruct by lm-evaluation-harness on BIG-Bench Hard, added to the synthetic run.
#[test]
fn scores_stand_beside_their_differences() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("made-up");
    synthetic::write(&run, SIZES, false);
    let scores = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/lm-eval.json");
    std::fs::copy(scores, run.join("lm-eval.json")).expect("scores");
    let mut results = SnapshotResults::new();
    for (theme, size) in [(Theme::Dark, Vec2::new(1_440.0, 860.0)), (Theme::Light, Vec2::new(900.0, 640.0))] {
        let launch = layerscope_app::Launch {
            view: Some(View::Frontier),
            theme: Some(theme),
            ..support::launch(&run)
        };
        let mut window = support::window(launch, size);
        support::wait(&mut window);
        window.get_by_label("Answers").click();
        window.run_steps(4);
        results.add(window.try_snapshot(format!("answers-{theme:?}").to_lowercase()));
    }
}

#[test]
fn a_map_of_few_tokens_names_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("few");
    synthetic::write(&run, Sizes { positions: 24, layers: 6, prompts: 1, ..SIZES }, false);
    let mut window = support::window(support::launch(&run), Vec2::new(800.0, 500.0));
    support::wait(&mut window);
    window.snapshot("map-few-tokens");
}

#[test]
fn removed_tokens_are_told_beside_the_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("made-up");
    synthetic::write(&run, SIZES, false);
    write_span(&run);
    let mut results = SnapshotResults::new();
    for theme in [Theme::Dark, Theme::Light] {
        let launch =
            layerscope_app::Launch { view: Some(View::Reading), theme: Some(theme), ..support::launch(&run) };
        let mut window = support::window(launch, Vec2::new(1_080.0, 640.0));
        support::wait(&mut window);
        window.get_by_label("20–36").click();
        window.run_steps(4);
        results.add(window.try_snapshot(format!("reading-span-{theme:?}").to_lowercase()));
    }
}

/// A pinned generated token with what it reads, and a pointed prompt token, on pages of 66 and of 7,824 tokens and in windows from small
/// to large.
#[test]
fn a_page_is_read_at_any_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut results = SnapshotResults::new();
    for (positions, width, height, theme) in [
        (66, 800.0, 600.0, Theme::Dark),
        (66, 1_280.0, 800.0, Theme::Light),
        (66, 2_560.0, 1_440.0, Theme::Dark),
        (7_824, 800.0, 600.0, Theme::Light),
        (7_824, 1_280.0, 800.0, Theme::Dark),
        (7_824, 1_920.0, 1_200.0, Theme::Light),
    ] {
        let run = folder.path().join(format!("{positions}"));
        if !run.exists() {
            synthetic::write(&run, Sizes { layers: 30, heads: 9, steps: 64, positions, prompts: 3 }, false);
        }
        let launch =
            layerscope_app::Launch { view: Some(View::Reading), theme: Some(theme), ..support::launch(&run) };
        let mut window = support::window(launch, Vec2::new(width, height));
        support::wait(&mut window);
        for _ in 0..12 {
            window.key_press(Key::ArrowRight);
            window.run_steps(2);
        }
        window.run_steps(3);
        results.add(window.try_snapshot(format!("reading-{positions}-{width}")));
    }
}

/// The pattern of a real text of the embedded model, one head and all, zoomed to its tokens, and under a cutoff.
#[test]
fn a_pattern_is_seen_at_any_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    support::record(&run);
    let mut results = SnapshotResults::new();
    let whole: &[&str] = &["Whole text", "Compute the whole text"];
    for (name, labels, keys, width, height, theme) in [
        ("record", &[][..], 0, 800.0, 600.0, Theme::Light),
        ("whole", whole, 0, 1_280.0, 800.0, Theme::Light),
        ("whole", whole, 0, 2_560.0, 1_440.0, Theme::Dark),
        ("tokens", whole, 7, 1_280.0, 800.0, Theme::Dark),
        ("tokens", whole, 5, 1_920.0, 1_200.0, Theme::Light),
        ("heads", &["Whole text", "Compute the whole text", "All heads"], 0, 1_280.0, 800.0, Theme::Dark),
        ("heads", &["Whole text", "Compute the whole text", "All heads"], 0, 800.0, 600.0, Theme::Light),
        (
            "layers",
            &["Whole text", "Compute the whole text", "All layers"],
            0,
            1_920.0,
            1_200.0,
            Theme::Light,
        ),
        ("layers", &["Whole text", "Compute the whole text", "All layers"], 0, 800.0, 600.0, Theme::Dark),
    ] {
        let launch =
            layerscope_app::Launch { view: Some(View::Pattern), theme: Some(theme), ..support::launch(&run) };
        let mut window = support::window(launch, Vec2::new(width, height));
        support::wait(&mut window);
        for label in labels {
            window.get_by_label(label).click();
            window.run_steps(2);
            support::wait(&mut window);
        }
        if keys > 0 {
            let grid = window.get_by_label_contains("Pattern: layer").rect();
            let at = grid.min + grid.size() * Vec2::new(0.3, 0.6);
            window.drag_at(at);
            window.drop_at(at);
            window.run_steps(2);
        }
        for _ in 0..keys {
            window.key_press(Key::Plus);
            window.run_steps(2);
            support::wait(&mut window);
        }
        window.hover_at(eframe::egui::pos2(2.0, 2.0));
        window.run_steps(8);
        results.add(window.try_snapshot(format!("pattern-{name}-{width}")));
    }
}

/// A map of positions that lacks a column, one of heads, and a long one, in windows from small to large.
#[test]
fn patches_are_seen_at_any_size() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut results = SnapshotResults::new();
    for (positions, heads, width, height, theme) in [
        (24, false, 800.0, 600.0, Theme::Light),
        (24, false, 1_280.0, 800.0, Theme::Dark),
        (24, true, 1_280.0, 800.0, Theme::Light),
        (24, true, 800.0, 600.0, Theme::Dark),
        (240, false, 1_280.0, 800.0, Theme::Light),
        (240, false, 2_560.0, 1_440.0, Theme::Dark),
    ] {
        let run = folder.path().join(format!("{positions}"));
        if !run.exists() {
            synthetic::write(&run, Sizes { layers: 30, heads: 9, positions, prompts: 4, ..SIZES }, false);
            patches::write(&run);
        }
        let launch = layerscope_app::Launch {
            view: Some(View::Patching),
            theme: Some(theme),
            ..support::launch(&run)
        };
        let mut window = support::window(launch, Vec2::new(width, height));
        support::wait(&mut window);
        if heads {
            window.get_by_label_contains("Map: prompt-1").click();
            window.run_steps(3);
            window.get_by_label_contains("one attention head").click();
            window.run_steps(3);
        }
        window.hover_at(eframe::egui::pos2(2.0, 2.0));
        window.run_steps(8);
        let what = if heads { "heads".to_owned() } else { positions.to_string() };
        results.add(window.try_snapshot(format!("patching-{what}-{width}")));
    }
}

/// A training of SmolLM2-135M-Instruct for cutoff 22, with the figures of `docs/adapting.md`, and losses between them.
#[test]
fn a_training_is_watched() {
    let mut adapting = Adapting::new();
    let policy = "speed:22+bos".to_owned();
    adapting.take(&Event::TrainingStarted {
        policy,
        cutoff: Some(22),
        trained: 202,
        held_out: 22,
        resumed: 0,
    });
    let mut step = 0;
    let mut last = HeldOutFigures::default();
    for (until, kl, top1, answers) in [
        (0, 0.611, 0.794, 0.1),
        (50, 0.265, 0.849, 0.5),
        (100, 0.237, 0.866, 0.7),
        (200, 0.229, 0.869, 0.7),
        (400, 0.218, 0.872, 0.8),
    ] {
        while step < until {
            step += 1;
            let loss = 0.2 + 0.5 * (-(step as f64) / 40.0).exp() + 0.08 * (step as f64 * 1.7).sin();
            adapting.take(&Event::TrainingStep { step, loss, done: step as f64 / 600.0 });
        }
        let figures = HeldOutFigures { kl, top1, answers: Some(answers) };
        let below = 1.0 - step as f64 / 800.0;
        let frontier =
            [(11, 4.1), (15, 2.6), (18, 1.7), (22, kl), (24, 0.09 + 0.1 * kl), (27, 0.03), (30, 0.0)];
        let frontier = frontier.map(|(cutoff, kl)| (cutoff, if cutoff < 22 { kl * below } else { kl }));
        adapting.take(&Event::HeldOut { step, figures, frontier: frontier.to_vec() });
        last = figures;
    }
    let training = AdapterTraining {
        steps: 400,
        tokens: 51_200,
        rows: 51_200,
        seconds: 455.0,
        prompts: 202,
        held_out: 22,
        before: HeldOutFigures { kl: 0.611, top1: 0.794, answers: Some(0.1) },
        after: last,
        full_depth: Some(HeldOutFigures { kl: 0.09, top1: 0.91, answers: Some(0.9) }),
    };
    let mut results = SnapshotResults::new();
    for theme in [Theme::Dark, Theme::Light] {
        if theme == Theme::Light {
            let training = training.clone();
            adapting.take(&Event::TrainingEnded { folder: "adapter".into(), training, cancelled: false });
        }
        let mut adapting = adapting.clone();
        let mut window = egui_kittest::Harness::builder()
            .with_size(Vec2::new(1_080.0, 700.0))
            .wgpu()
            .build_ui(move |ui| {
                layerscope_app::design::apply(ui.ctx());
                ui.ctx().set_theme(theme);
                let mut scene = AdaptScene {
                    adapting: &mut adapting,
                    model: Some("SmolLM2-135M-Instruct.Q4_1.gguf"),
                    layers: 30,
                    policy: Ok("speed:22+bos"),
                    tolerance: 0.1,
                    busy: theme == Theme::Dark,
                    as_table: false,
                };
                adapt::show(ui, &mut scene);
            });
        window.run_steps(4);
        results.add(window.try_snapshot(format!("adapt-training-{theme:?}").to_lowercase()));
    }
}

/// Adds a span of the first prompt that can be removed from the deeper layers on.
fn write_span(folder: &Path) {
    let layers = SIZES.layers;
    let row = |layer: usize| {
        let depth = layer as f64 / layers as f64 - 0.7;
        SpanRow {
            layer,
            divergence: Divergence {
                kl: if layer == layers { 0.0 } else { 2.6 / (1.0 + (36.0 * depth).exp()) + 1e-4 },
                top1: 0.5,
                dnll: 0.0,
            },
            decode_mass: if layer == layers { f64::NAN } else { 0.02 + 0.3 * (-90.0 * depth * depth).exp() },
            masses: SpanMasses::UNDEFINED,
            found: None,
        }
    };
    let record = SpanRecord {
        prompt_id: "prompt-1".into(),
        first: 20,
        end: 37,
        text: "jumps over the lazy dog, and then it sleeps.".into(),
        layers: (0..=layers).map(row).collect(),
    };
    let run = Run::open(folder).expect("a run");
    SpansWriter::open(&run).expect("a writer").put(record).expect("a span");
}
