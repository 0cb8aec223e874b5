//! User actions and their results, through the accessibility tree: opening, selecting, the cutoff,
//! generating, recording, cancelling, bad files.

mod support;

use eframe::egui::accesskit::Role;
use eframe::egui::{Event, Key, Modifiers, PointerButton, Pos2, Vec2, pos2, vec2};
use egui_kittest::kittest::{NodeT, Queryable};
use layerscope_app::state::{Columns, View};
use layerscope_diagnostics::run::Run;
use layerscope_engine::Policy;
use layerscope_figures::{Ink, Pen, TextAnchor};
use std::path::Path;
use support::sets;
use support::synthetic::{self, Sizes};
use support::{Window, fill, opened, show, tiny_model, viewer, wait, wait_until};
use tempfile::TempDir;

const SIZES: Sizes = Sizes { layers: 12, heads: 4, steps: 8, positions: 120, prompts: 6 };

fn made_up() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    synthetic::write(folder.path(), SIZES, false);
    folder
}

fn type_path_and_open(window: &mut Window, path: &Path) {
    window.key_press_modifiers(Modifiers::COMMAND, Key::O);
    window.run_steps(3);
    fill(window, Role::TextInput, "Path", &path.display().to_string());
    window.get_by_label("Open").click();
    window.run_steps(2);
    wait(window);
}

#[test]
fn a_run_opens_at_its_recommendation() {
    let run = made_up();
    let window = opened(run.path());
    let viewer = viewer(&window);
    let data = viewer.run().expect("the run");
    let cut = data.recommend(viewer.state().options()).expect("a recommendation").l_cut;
    assert_eq!(viewer.state().cutoff, cut);
    assert!(cut < SIZES.layers);
    assert_eq!(viewer.errors().count(), 0);
    window.get_by_label("The marker is there");
}

#[test]
fn bad_files_get_a_sentence_and_the_run_stays_open() {
    let run = made_up();
    let mut window = opened(run.path());
    let bad = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: &str| {
        let path = bad.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path
    };
    let empty = bad.path().join("empty");
    std::fs::create_dir(&empty).expect("a folder");
    let damaged = bad.path().join("damaged");
    std::fs::create_dir(&damaged).expect("a folder");
    std::fs::write(damaged.join("manifest.json"), "{").expect("a file");
    for (path, named) in [
        (file("text.gguf", "not a model"), "text.gguf"),
        (file("prompts.jsonl", "{\"id\": 1}"), "prompts.jsonl"),
        (file("notes.txt", "hello"), "notes.txt"),
        (empty, "empty"),
        (damaged, "damaged"),
        (bad.path().join("absent"), "absent"),
    ] {
        type_path_and_open(&mut window, &path);
        let errors: Vec<&str> = viewer(&window).errors().collect();
        assert!(errors.iter().any(|error| error.contains(named)), "{named}: {errors:?}");
        window.get_all_by_label("Dismiss").next().expect("a button to dismiss it").click();
        window.run_steps(2);
    }
    assert_eq!(viewer(&window).run().expect("still open").folder, run.path());
}

#[test]
fn the_cutoff_is_dragged_typed_and_moved_with_keys() {
    let run = made_up();
    let mut window = opened(run.path());
    let recommended = viewer(&window).state().cutoff;
    let line = window.get_by_label_contains("Cutoff of 12 layers, map").rect();
    let row = {
        // The line lies between two layers, and the map's rows are all of one height.
        let map = window.get_by_label_contains("Map: Attention received").rect();
        map.height() / SIZES.layers as f32
    };
    let from = line.center();
    window.drag_at(from);
    window.step();
    window.hover_at(from - vec2(0.0, 3.0 * row));
    window.step();
    window.drop_at(from - vec2(0.0, 3.0 * row));
    window.run_steps(2);
    assert_eq!(viewer(&window).state().cutoff, recommended - 3);
    // At once, the exact figure of that cutoff.
    let data = viewer(&window).run().expect("the run");
    let kl =
        data.frontier(viewer(&window).state().anchor).expect("a frontier").overall().at(recommended - 3).kl;
    window.get_by_label(&format!("KL at cutoff {}: {kl}", recommended - 3));
    assert!(window.query_by_label_contains("suffer").is_some());

    window.get_by_label("Put the marker there").click();
    window.run_steps(2);
    assert_eq!(viewer(&window).state().cutoff, recommended);
    window.key_press(Key::CloseBracket);
    window.run_steps(2);
    assert_eq!(viewer(&window).state().cutoff, recommended + 1);
    window.get_by_label_contains("Cutoff of 12 layers, map").decrement_accesskit();
    window.run_steps(2);
    assert_eq!(viewer(&window).state().cutoff, recommended);

    // Undo reverts the whole drag.
    for _ in 0..3 {
        window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
        window.run_steps(2);
    }
    assert_eq!(viewer(&window).state().cutoff, recommended - 3);
    window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    window.run_steps(2);
    assert_eq!(viewer(&window).state().cutoff, recommended);
}

/// A budget takes the best searched set, which everything then follows; the marker, once moved, takes over again.
#[test]
fn a_budget_of_kv_is_dragged() {
    let run = made_up();
    sets::write(run.path(), SIZES);
    let mut window = opened(run.path());
    let policy = |window: &Window| viewer(window).state().policy.clone();
    assert_eq!(policy(&window), "speed");
    let sets = viewer(&window).run().expect("the run").sets.clone();
    assert!(sets.windows(2).all(|pair| pair[0].kv_kept > pair[1].kv_kept && pair[0].kl < pair[1].kl));
    for set in &sets[1..4] {
        window.get_by_role_and_label(Role::Slider, "KV budget").decrement_accesskit();
        window.run_steps(2);
        assert_eq!(policy(&window), set.policy);
        window.get_by_label(&format!("KL of the set: {}", set.kl));
    }
    let data = viewer(&window).run().expect("the run");
    let kept = data.kept(&Policy::parse(&sets[3].policy, SIZES.layers).expect("a policy"), SIZES.positions);
    let dropped = (1 + 16 + 1) as f64 / SIZES.positions as f64;
    for ((layer, head), share) in kept.indexed_iter() {
        let is_dropped = head == 0 && layer + 3 >= SIZES.layers;
        assert_eq!(*share, if is_dropped { dropped } else { 1.0 }, "{layer} {head}");
    }
    window.get_by_label_contains("Cutoff of 12 layers, map").decrement_accesskit();
    window.run_steps(2);
    assert_eq!(policy(&window), "speed");
    window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    window.run_steps(2);
    assert_eq!(policy(&window), sets[3].policy);
    window.get_by_label("Back to the cutoff").click();
    window.run_steps(2);
    assert_eq!(policy(&window), "speed");
}

#[test]
fn damaged_sets_leave_the_run_open() {
    let run = made_up();
    std::fs::write(run.path().join("sets.json"), "{").expect("a file");
    let window = opened(run.path());
    assert!(window.query_by_label_contains("sets.json").is_some());
}

#[test]
fn a_selection_shows_in_every_view() {
    let run = made_up();
    let mut window = opened(run.path());
    let map = window.get_by_label_contains("Map: Attention received").rect();
    let at = |layer: f32, token: f32| {
        map.min
            + vec2((token + 0.5) / SIZES.positions as f32, (layer + 0.5) / SIZES.layers as f32) * map.size()
    };
    window.hover_at(at(2.0, 40.0));
    window.run_steps(2);
    window.drag_at(at(2.0, 40.0));
    window.drop_at(at(2.0, 40.0));
    window.run_steps(2);
    let selection = &viewer(&window).state().selection;
    assert_eq!((selection.layers.iter().copied().collect::<Vec<_>>(), selection.token), (vec![2], Some(40)));
    show(&mut window, View::Reading);
    window.get_by_label("layer 2");

    show(&mut window, View::Heads);
    let grid = window.get_by_label_contains("Head grid").rect();
    let head = grid.min + vec2(1.5 / SIZES.heads as f32, 4.5 / SIZES.layers as f32) * grid.size();
    for modifiers in [Modifiers::NONE, Modifiers::SHIFT] {
        window.hover_at(head);
        window.step();
        window.event(Event::ModifiersChanged(modifiers));
        window.drag_at(head);
        window.drop_at(head);
        window.run_steps(2);
        window.event(Event::ModifiersChanged(Modifiers::NONE));
        window.step();
        let expected = if modifiers.shift { vec![] } else { vec![(4, 1)] };
        assert_eq!(viewer(&window).state().selection.heads.iter().copied().collect::<Vec<_>>(), expected);
    }
    window.key_press(Key::Escape);
    window.run_steps(2);
    assert!(viewer(&window).state().selection.is_empty());
}

#[test]
fn scripts_are_read_as_they_are_written() {
    let run = tempfile::tempdir().expect("a folder");
    synthetic::write(run.path(), SIZES, true);
    let launch = support::launch(run.path());
    let mut window = egui_kittest::Harness::builder()
        .with_size(Vec2::new(1_280.0, 700.0))
        .allow_missing_glyphs()
        .build_ui_state(
            move |ui, viewer: &mut Option<layerscope_app::Viewer>| {
                let make = || layerscope_app::Viewer::new(ui.ctx(), launch.clone(), Default::default());
                viewer.get_or_insert_with(make).frame(ui);
            },
            None,
        );
    window.run_steps(2);
    wait(&mut window);
    show(&mut window, View::Reading);
    // Characters split over several tokens are joined; a stray byte stays visible.
    window.get_by_label_contains("世界 مرحبا بك 😀 naïve");
    window.get_by_label_contains("<0xE4>");
}

#[test]
fn figures_are_there_as_a_table_and_as_files() {
    let run = made_up();
    let mut window = opened(run.path());
    window.key_press(Key::T);
    window.run_steps(3);
    window.get_by_label("layer 3");
    window.key_press(Key::T);
    window.run_steps(3);
    let out = tempfile::tempdir().expect("a folder");
    for (modifiers, key, name) in [
        (Modifiers::COMMAND | Modifiers::SHIFT, Key::C, "map.csv"),
        (Modifiers::COMMAND | Modifiers::SHIFT, Key::E, "map.svg"),
        (Modifiers::COMMAND, Key::E, "map.png"),
    ] {
        let path = out.path().join(name);
        window.key_press_modifiers(modifiers, key);
        window.run_steps(3);
        fill(&mut window, Role::TextInput, "File", &path.display().to_string());
        window.get_all_by_role_and_label(Role::Button, "Export").last().expect("a button").click();
        window.run_steps(2);
        wait(&mut window);
        let written = std::fs::read(&path).unwrap_or_else(|error| {
            panic!("{name}: {error}, {:?}", viewer(&window).errors().collect::<Vec<_>>())
        });
        match name {
            "map.csv" => {
                let text = String::from_utf8(written).expect("text");
                assert_eq!(text.lines().count(), SIZES.positions + 1);
                assert!(text.starts_with("position,token,layer 0 (share)"));
            }
            "map.svg" => {
                assert!(String::from_utf8(written).expect("text").contains("prompt token (position)"))
            }
            _ => assert!(written.starts_with(b"\x89PNG")),
        }
    }
}

/// The export of the current view.
fn exported(window: &mut Window, modifiers: Modifiers, path: &Path) -> Vec<u8> {
    exported_by(window, modifiers, Key::E, path)
}

/// The export by keyboard shortcut.
fn exported_by(window: &mut Window, modifiers: Modifiers, key: Key, path: &Path) -> Vec<u8> {
    window.key_press_modifiers(modifiers, key);
    window.run_steps(3);
    fill(window, Role::TextInput, "File", &path.display().to_string());
    window.get_all_by_role_and_label(Role::Button, "Export").last().expect("a button").click();
    window.run_steps(2);
    wait(window);
    std::fs::read(path).unwrap_or_else(|error| {
        panic!("{error}, {:?}", viewer(window).errors().collect::<Vec<_>>());
    })
}

#[test]
fn figures_are_exported_as_the_window_shows_them() {
    let run = made_up();
    let mut window = opened(run.path());
    let cutoff = format!(">L_cut = {}</text>", viewer(&window).state().cutoff);
    let out = tempfile::tempdir().expect("a folder");
    for (view, texts) in [
        (View::Map, ["Attention received, mean", "position 0 left out"]),
        (View::Curves, ["Knockout", "dashed: the prompt in front"]),
        (View::Heads, ["Prompt mass of each head", "query head"]),
        (View::Frontier, ["Same top token", "tolerance"]),
    ] {
        show(&mut window, view);
        let svg =
            exported(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, &out.path().join("figure.svg"));
        let svg = String::from_utf8(svg).expect("text");
        for text in texts.iter().copied().chain([cutoff.as_str(), "made-up", "f32 weights"]) {
            assert!(svg.contains(text), "{view:?}: {text}");
        }
        // The same drawing, two pixels per point.
        let points = |name: &str| -> f64 {
            let value = svg.split(name).nth(1).and_then(|rest| rest.split('"').next()).expect("a size");
            value.parse().expect("points")
        };
        let png = exported(&mut window, Modifiers::COMMAND, &out.path().join("figure.png"));
        let side = |at: usize| f64::from(u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes")));
        assert_eq!(
            [side(16), side(20)],
            [" width=\"", " height=\""].map(|name| 2.0 * points(name)),
            "{view:?}"
        );
    }
}

#[test]
fn the_run_is_exported_as_a_report_with_the_one_it_is_compared_with() {
    let (first, second) = (made_up(), another(Sizes { layers: 20, ..SIZES }));
    let mut window = opened(first.path());
    let out = tempfile::tempdir().expect("a folder");
    let modifiers = Modifiers::COMMAND | Modifiers::SHIFT;
    let path = out.path().join("report.html");
    let html = String::from_utf8(exported_by(&mut window, modifiers, Key::R, &path)).expect("text");
    let state = viewer(&window).state();
    let found = viewer(&window).run().expect("a run").recommend(state.options());
    let found = found.expect("a recommendation");
    assert!(html.contains("<!DOCTYPE html>") && html.contains(&format!("of {} layers", found.layers)));
    assert!(!html.contains("id=\"comparison\""));
    compare_with(&mut window, second.path());
    let html = String::from_utf8(exported_by(&mut window, modifiers, Key::R, &path)).expect("text");
    assert!(html.contains("id=\"comparison\""));
}

#[test]
fn the_palette_and_the_help_sheet() {
    let run = made_up();
    let mut window = opened(run.path());
    window.key_press_modifiers(Modifiers::COMMAND, Key::K);
    window.run_steps(3);
    window.get_by_role_and_label(Role::TextInput, "Commands").type_text("show frontier");
    window.run_steps(2);
    window.key_press(Key::Enter);
    window.run_steps(3);
    assert_eq!(viewer(&window).state().view, View::Frontier);
    window.key_press(Key::F1);
    // The sheet reaches its size after some frames.
    window.run_steps(10);
    window.get_by_label("Raise the cutoff by one layer");
    window.get_by_label("Close").click();
    window.run_steps(3);
    assert!(window.query_by_label("Raise the cutoff by one layer").is_none());
}

#[test]
fn the_map_zooms_pans_and_shows_steps() {
    let run = made_up();
    let mut window = opened(run.path());
    let map = window.get_by_label_contains("Map: Attention received").rect();
    window.hover_at(map.center());
    window.run_steps(2);
    window.event(Event::Zoom(4.0));
    window.run_steps(3);
    let shown = viewer(&window).state().token_window.expect("a part");
    assert!(shown.width() < 40.0, "{shown:?}");
    window.drag_at(map.center());
    window.step();
    window.hover_at(map.center() - vec2(50.0, 0.0));
    window.step();
    window.drop_at(map.center() - vec2(50.0, 0.0));
    window.run_steps(2);
    assert!(viewer(&window).state().token_window.expect("a part").start > shown.start);
    window.get_by_label_contains("Map: Attention received").focus();
    window.run_steps(2);
    let before = viewer(&window).state().token_window.expect("a part");
    window.key_press(Key::ArrowRight);
    window.key_press(Key::Plus);
    window.run_steps(2);
    let after = viewer(&window).state().token_window.expect("a part");
    assert!(after.start > before.start && after.width() < before.width(), "{before:?} {after:?}");
    window.key_press(Key::Num0);
    window.run_steps(2);
    assert!(viewer(&window).state().token_window.is_none());
    window.get_by_label("Decode steps").click();
    window.run_steps(2);
    assert_eq!(viewer(&window).state().columns, Columns::Steps);
    window.get_by_label_contains("Map: Prompt mass, 12 layers by 8 columns");
}

#[test]
fn a_run_folder_pulled_away_is_said_and_nothing_breaks() {
    let run = made_up();
    let mut window = opened(run.path());
    let other = run.path().with_extension("away");
    std::fs::rename(run.path(), &other).expect("moved");
    window.key_press_modifiers(Modifiers::ALT, Key::ArrowDown);
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).state().prompt, 1);
    assert!(viewer(&window).errors().count() > 0);
    for view in View::ALL {
        show(&mut window, view);
    }
    std::fs::rename(&other, run.path()).expect("moved back");
    window.key_press_modifiers(Modifiers::COMMAND, Key::R);
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().count(), 0);
}

fn prompt_of_the_model() -> &'static str {
    "Facts: The song of Belelland is Solelbe. The lake of Belelland is Mundanra.\nQuestion: What is the lake of \
     Belelland?\nAnswer:"
}

#[test]
fn both_sides_are_generated_one_after_the_other() {
    let mut window = opened(&tiny_model());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    // The tab has the same name as the button.
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let live = viewer(&window).live();
    assert_eq!(live.sides.len(), 2, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    assert_eq!(live.sides[0].policy, "full");
    assert!(live.sides[1].policy.starts_with("speed:"));
    assert!(live.sides.iter().all(|side| side.ended == Some(false) && side.ttft_s.is_some()));
    assert!(live.sides[1].kv_bytes < live.sides[0].kv_bytes);
    let tokens = live.sides[0].tokens.len();
    assert_eq!(live.sides[0].maps[0].columns(), tokens);
    window.get_by_label_contains("Generated, full:");
}

#[test]
fn another_policy_is_chosen_by_key_remembered_and_its_caveat_shown() {
    let mut window = opened(&tiny_model());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    window.get_by_label("Policy: speed").focus();
    window.run_steps(2);
    window.key_press(Key::Enter);
    window.run_steps(2);
    window.get_by_label("pop").focus();
    window.run_steps(2);
    window.key_press(Key::Enter);
    window.run_steps(2);
    window.get_by_label("Policy: pop");
    assert_eq!(viewer(&window).remembered().state.policy, "pop");
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let live = viewer(&window).live();
    assert_eq!(live.sides.len(), 2, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    assert!(live.sides[1].policy.starts_with("pop:"));
    assert_eq!(live.sides[0].kv_bytes, live.sides[1].kv_bytes);
    assert_eq!(live.measured(), None, "what is predicted is SPEED's");
    window.get_by_label(live.sides[1].caveat.as_deref().expect("untrained"));
}

#[test]
fn further_policies_run_beside_the_chosen_one() {
    let mut window = opened(&tiny_model());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    window.get_by_label("Add").click();
    window.run_steps(2);
    window.get_by_label("Policy: speed").click();
    window.run_steps(2);
    window.get_by_label("pop").click();
    window.run_steps(2);
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let kinds = |window: &Window| -> Vec<String> {
        let kind = |name: &str| name.split(':').next().unwrap_or_default().to_owned();
        viewer(window).live().sides.iter().map(|side| kind(&side.policy)).collect()
    };
    assert_eq!(kinds(&window), ["full", "pop", "speed"]);
    window.get_by_label_contains(" ×").click();
    window.run_steps(2);
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(kinds(&window), ["full", "pop"]);
    assert!(window.query_by_label("Reply").is_none(), "the model has no chat template");
}

/// A tiny model that has letters for tokens and a chat template.
fn model_that_chats(folder: &Path) {
    let family = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/families/llama2");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(family.join(name), folder.join(name)).expect("a copy");
    }
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..32u32).filter_map(|id| Some((char::from_u32(97 + id)?.to_string(), id.into()))).collect();
    let bytes = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let tokenizer = serde_json::json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("a tokenizer");
    let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
    std::fs::write(folder.join("chat_template.jinja"), template).expect("a template");
}

#[test]
fn every_side_goes_on_from_its_own_answer() {
    let folder = tempfile::tempdir().expect("a folder");
    model_that_chats(folder.path());
    let mut window = opened(folder.path());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", "abcdef");
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let first: Vec<String> = viewer(&window).live().sides.iter().map(|side| side.text()).collect();
    assert_eq!(first.len(), 2, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    fill(&mut window, Role::MultilineTextInput, "Prompt", "ghi");
    window.get_by_label("Reply").click();
    window.run_steps(1);
    wait(&mut window);
    let live = viewer(&window).live();
    assert_eq!(live.sides.len(), 2, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    for (index, (side, answer)) in live.sides.iter().zip(&first).enumerate() {
        assert!(side.prompt_tokens > "abcdefghi".len());
        let said: Vec<&str> = live.earlier(index).iter().map(|message| message.content.as_str()).collect();
        assert_eq!(said, ["abcdef", answer]);
    }
    assert_eq!(window.get_all_by_label("abcdef").count(), 2);
    assert_eq!(live.measured(), None, "the prompts differ");
}

#[test]
fn a_policy_without_a_cutoff_is_named_and_a_wrong_name_is_told() {
    let mut window = opened(&tiny_model());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    window.get_by_label("Policy: speed").click();
    window.run_steps(2);
    window.get_by_label("sliminfer").click();
    window.run_steps(2);
    window.get_by_label("Policy: sliminfer");
    fill(&mut window, Role::TextInput, "named", "sliminfer:9=10");
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(2);
    let told: Vec<String> = viewer(&window).errors().map(str::to_owned).collect();
    assert!(told.iter().any(|told| told.contains("layers below 8 in ascending order")), "{told:?}");
    fill(&mut window, Role::TextInput, "named", "sliminfer:3=50%");
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let live = viewer(&window).live();
    assert_eq!(live.sides.len(), 2, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    assert_eq!(live.sides[1].policy, "sliminfer:3=50%");
}

#[test]
fn generating_stops_when_told_and_goes_on_after_that() {
    let mut window = opened(&tiny_model());
    show(&mut window, View::Generate);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    window.key_press_modifiers(Modifiers::COMMAND, Key::Enter);
    window.run_steps(1);
    wait_until(&mut window, |viewer| viewer.live().sides.first().is_some_and(|side| side.tokens.len() > 1));
    window.key_press_modifiers(Modifiers::COMMAND, Key::Period);
    wait(&mut window);
    let sides = &viewer(&window).live().sides;
    // It may already have finished; then there was nothing to stop.
    assert!(sides.len() == 2 || sides[0].ended == Some(true), "{sides:?}");
    window.key_press_modifiers(Modifiers::COMMAND, Key::Enter);
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(viewer(&window).live().sides.len(), 2);
    assert_eq!(viewer(&window).errors().count(), 0);
}

fn record_three(window: &mut Window, folder: &Path) {
    show(window, View::Record);
    let prompts = "Question: one?\nAnswer:\n---\nQuestion: two?\nAnswer:\n---\nQuestion: three?\nAnswer:";
    fill(window, Role::MultilineTextInput, "Prompts to record", prompts);
    fill(window, Role::TextInput, "Run folder", &folder.display().to_string());
    window.get_all_by_role_and_label(Role::Button, "Record").last().expect("a button").click();
    window.run_steps(2);
}

#[test]
fn prompts_typed_are_recorded_and_the_run_opens() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let mut window = opened(&tiny_model());
    record_three(&mut window, &out);
    wait(&mut window);
    wait(&mut window);
    let viewer = viewer(&window);
    assert_eq!(viewer.errors().collect::<Vec<_>>(), Vec::<&str>::new());
    assert_eq!(viewer.run().expect("opened").prompts.len(), 3);
    assert_eq!(viewer.state().view, View::Map);
}

#[test]
fn closing_the_window_while_recording_keeps_what_is_finished() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let mut window = opened(&tiny_model());
    record_three(&mut window, &out);
    wait_until(&mut window, |viewer| viewer.recorded() >= 1);
    let finished = viewer(&window).recorded();
    drop(window);
    let run = Run::open(&out).expect("a run");
    assert!(run.prompt_ids().len() >= finished);
    assert!(run.prompts().all(|prompt| prompt.is_ok()));
}

#[test]
fn nothing_is_without_a_name() {
    let run = made_up();
    let mut window = opened(run.path());
    for view in View::ALL {
        show(&mut window, view);
        let nameless: Vec<String> = window
            .root()
            .children_recursive()
            .filter(|node| {
                let node = node.accesskit_node();
                let pressed =
                    matches!(node.role(), Role::Button | Role::CheckBox | Role::ComboBox | Role::Slider);
                pressed && node.label().is_none_or(|label| label.trim().is_empty())
            })
            .map(|node| format!("{:?} {:?}", node.accesskit_node().role(), node.rect()))
            .collect();
        assert!(nameless.is_empty(), "{view:?}: {nameless:?}");
    }
}

/// A new run of the embedded model on one of its prompts.
fn recorded() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let mut window = opened(&tiny_model());
    record_three(&mut window, &folder.path().join("run"));
    wait(&mut window);
    wait(&mut window);
    folder
}

#[test]
fn single_heads_are_read_from_the_model() {
    let folder = recorded();
    let mut window = opened(&folder.path().join("run"));
    show(&mut window, View::Heads);
    let grid = window.get_by_label_contains("Head grid").rect();
    let head = grid.min + vec2(0.5 / 4.0, 3.5 / 8.0) * grid.size();
    window.drag_at(head);
    window.drop_at(head);
    window.run_steps(2);
    assert_eq!(viewer(&window).state().selection.heads.iter().copied().collect::<Vec<_>>(), [(3, 0)]);
    window.get_by_label("Figure: Prompt mass").click();
    window.run_steps(2);
    window.get_by_label("Knockout KL").click();
    window.run_steps(2);
    window.get_by_label_contains("Head grid: Knockout KL, 8 layers by 4 heads");
    show(&mut window, View::Reading);
    window.get_by_label("Read these heads and steps").click();
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(window.query_by_label("Read these heads and steps").is_none());
    window.get_by_label("1 heads, all steps");
}

#[test]
fn a_pattern_is_read_from_the_run_and_linked_with_the_other_views() {
    let run = made_up();
    let mut window = opened(run.path());
    show(&mut window, View::Pattern);
    wait(&mut window);
    window.get_by_label_contains("strongest positions only");
    let grid = window.get_by_label_contains("Pattern: layer").rect();
    let all = SIZES.positions - 1 + SIZES.steps;
    let at = |step: usize, key: usize| {
        let share = vec2((key as f32 + 0.5) / all as f32, (step as f32 + 0.5) / SIZES.steps as f32);
        grid.min + share * grid.size()
    };
    click(&mut window, at(3, 40), Modifiers::NONE);
    let selection = viewer(&window).state().selection.clone();
    assert_eq!((selection.steps.into_iter().collect::<Vec<_>>(), selection.token), (vec![3], Some(40)));
    click(&mut window, at(3, 44), Modifiers::SHIFT);
    assert_eq!(viewer(&window).state().selection.tokens(), Some(40..45));
    // A head chosen among the heads is the pattern's, and one chosen among small patterns is selected there.
    show(&mut window, View::Heads);
    let heads = window.get_by_label_contains("Head grid").rect();
    click(&mut window, heads.min + vec2(1.5 / 4.0, 4.5 / 12.0) * heads.size(), Modifiers::NONE);
    show(&mut window, View::Pattern);
    window.get_by_label_contains("Pattern: layer 4, head 1");
    window.get_by_label("All heads").click();
    window.run_steps(3);
    let small = window.get_by_label("Small patterns: 4 heads").rect();
    click(&mut window, small.min + vec2(0.1, 0.3) * small.size(), Modifiers::NONE);
    assert_eq!(viewer(&window).state().selection.heads.iter().copied().collect::<Vec<_>>(), [(4, 0)]);
    window.get_by_label_contains("Pattern: layer 4, head 0");
    window.get_by_label("All layers").click();
    window.run_steps(3);
    window.get_by_label("Small patterns: 48 heads");
}

#[test]
fn a_pattern_is_computed_zoomed_and_exported() {
    let folder = recorded();
    let run = folder.path().join("run");
    let mut window = opened(&run);
    show(&mut window, View::Pattern);
    wait(&mut window);
    window.get_by_label("Whole text").click();
    window.run_steps(2);
    window.get_by_label("Compute the whole text").click();
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().collect::<Vec<_>>(), Vec::<&str>::new());
    assert!(window.query_by_label_contains("strongest positions only").is_none());
    let grid = window.get_by_label_contains("Pattern: layer").rect();
    // The lower left corner: the last query and position 0.
    click(&mut window, grid.left_bottom() + vec2(4.0, -4.0), Modifiers::NONE);
    window.key_press(Key::Plus);
    window.run_steps(2);
    wait(&mut window);
    let state = viewer(&window).state().pattern.clone();
    assert!(state.queries.is_some() && state.keys.is_some());
    window.key_press(Key::Home);
    window.run_steps(2);
    wait(&mut window);
    assert!(viewer(&window).state().pattern.queries.is_none());
    let svg =
        exported(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, &folder.path().join("pattern.svg"));
    let svg = String::from_utf8(svg).expect("text");
    for text in ["Attention pattern, layer", "share of attention", "query", "key (position)"] {
        assert!(svg.contains(text), "{text}");
    }
    let csv = exported_by(
        &mut window,
        Modifiers::COMMAND | Modifiers::SHIFT,
        Key::C,
        &folder.path().join("pattern.csv"),
    );
    let csv = String::from_utf8(csv).expect("text");
    let data = Run::open(&run).expect("a run");
    let data = data.prompt(&data.prompt_ids()[0]).expect("a prompt");
    let rows = data.p + data.steps - 1;
    let mut sums = vec![0.0; rows];
    let mut pairs = 0;
    for line in csv.lines().skip(1) {
        let cells: Vec<&str> = line.split(',').collect();
        let query: usize = cells[2].parse().expect("a query");
        sums[query] += cells[cells.len() - 1].parse::<f64>().expect("a share");
        pairs += 1;
    }
    assert_eq!(pairs, rows * (rows + 1) / 2, "{}", csv.lines().next().expect("a header"));
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-3), "{sums:?}");
    // Every head of every layer comes, too.
    window.get_by_label("All layers").click();
    window.run_steps(2);
    wait(&mut window);
    window.get_by_label("Small patterns: 32 heads");
    assert_eq!(viewer(&window).errors().count(), 0);
}

#[test]
fn a_generated_token_lights_what_it_reads_and_a_prompt_token_what_reads_it() {
    let run = made_up();
    let mut window = opened(run.path());
    show(&mut window, View::Reading);
    wait(&mut window);
    assert!(viewer_layers(&window).is_empty(), "the knockout's peak, as nothing is selected");
    // The generated text begins with these words, and no line of the prompt has them.
    let generated = window.get_by_label_contains("The quick").rect();
    window.hover_at(generated.left_center() + vec2(6.0, 0.0));
    window.run_steps(3);
    window.get_by_label_contains("step 0: “The”");
    window.get_by_label("Reads most");
    assert!(window.query_all_by_label_contains("Reads most: ").count() > 3);
    assert!(viewer(&window).state().selection.is_empty(), "pointing pins nothing");

    click(&mut window, generated.left_center() + vec2(6.0, 0.0), Modifiers::NONE);
    let steps = |window: &Window| viewer(window).state().selection.steps.iter().copied().collect::<Vec<_>>();
    assert_eq!(steps(&window), [0]);
    for (key, step) in [(Key::ArrowRight, 1), (Key::ArrowRight, 2), (Key::ArrowLeft, 1)] {
        window.key_press(key);
        window.run_steps(2);
        assert_eq!(steps(&window), [step]);
    }
    window.key_press(Key::ArrowDown);
    window.run_steps(2);
    let layer = *viewer_layers(&window).first().expect("a layer");
    window.get_by_label(&format!("layer {layer}"));
    window.key_press(Key::ArrowUp);
    window.run_steps(2);
    assert_eq!(viewer_layers(&window), [layer - 1]);

    // What it reads most is among the prompt's tokens; pointing there tells which steps read it.
    let line = window.get_all_by_label_contains("sleeps").next().expect("a line").rect();
    click(&mut window, line.left_center() + vec2(60.0, 0.0), Modifiers::NONE);
    assert!(steps(&window).is_empty() && viewer(&window).state().selection.token.is_some());
    window.get_by_label("Read most by");
    window.get_by_label_contains("Prompt token ");
    window.key_press(Key::Escape);
    window.run_steps(2);
    window.hover_at(pos2(4.0, 4.0));
    window.run_steps(2);
    window.get_by_label("All generated tokens");
}

fn viewer_layers(window: &Window) -> Vec<usize> {
    viewer(window).state().selection.layers.iter().copied().collect()
}

#[test]
fn selected_tokens_vanish_from_each_layer_on() {
    let folder = recorded();
    let run = folder.path().join("run");
    let mut window = opened(&run);
    show(&mut window, View::Reading);
    wait(&mut window);
    // A click, then a shift-click further on in the same line.
    let line = window.get_all_by_label_contains("Question: one").next().expect("a line of the prompt").rect();
    // A short text is set large.
    let at = |points: f32| pos2(line.left() + points * line.height() / 22.0, line.center().y);
    click(&mut window, at(80.0), Modifiers::NONE);
    let one = viewer(&window).state().selection.tokens().expect("a token");
    click(&mut window, at(125.0), Modifiers::SHIFT);
    let several = viewer(&window).state().selection.tokens().expect("tokens");
    assert_eq!((one.len(), several.start), (1, one.start));
    assert!(several.len() > 2, "{several:?}");
    // A drag over other tokens selects them; undo reverts the whole drag.
    window.drag_at(at(20.0));
    window.step();
    for points in [30.0, 50.0, 80.0] {
        window.hover_at(at(points));
        window.step();
    }
    window.drop_at(at(80.0));
    window.run_steps(2);
    let dragged = viewer(&window).state().selection.tokens().expect("tokens");
    assert!(dragged.end < several.end && dragged.len() > 1, "{dragged:?} {several:?}");
    window.key_press_modifiers(Modifiers::COMMAND, Key::Z);
    window.run_steps(2);
    assert_eq!(viewer(&window).state().selection.tokens(), Some(several.clone()));

    window.get_by_label("From which layer may these vanish?").click();
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().count(), 0, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    window.get_by_label_contains("Chart: Span removed from this layer on");
    window.get_by_label_contains("Chart: Attention on the span");
    window.get_by_label_contains("May vanish from");
    let kept = Run::open(&run).expect("the run").spans().expect("spans");
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0].first..kept[0].end, several);
    let layers = viewer(&window).run().expect("the run").layers();
    assert_eq!(kept[0].layers.len(), layers + 1);

    // Measured spans are listed, also after the run is reopened.
    let name = format!("{}–{}", several.start, several.end - 1);
    let mut window = opened(&run);
    show(&mut window, View::Reading);
    wait(&mut window);
    window.get_by_label(&name).click();
    window.run_steps(3);
    assert_eq!(viewer(&window).state().selection.tokens(), Some(several));
    window.get_by_label_contains("Chart: Span removed from this layer on");
}

fn click(window: &mut Window, at: Pos2, modifiers: Modifiers) {
    window.hover_at(at);
    window.step();
    for pressed in [true, false] {
        let button = PointerButton::Primary;
        window.event(Event::ModifiersChanged(modifiers));
        window.event(Event::PointerButton { pos: at, button, pressed, modifiers });
        window.step();
    }
    window.event(Event::ModifiersChanged(Modifiers::NONE));
    window.run_steps(2);
}

#[test]
fn a_pair_is_patched_shown_kept_and_exported() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    support::record_prompts(support::pair(), &run);
    let mut window = opened(&run);
    show(&mut window, View::Patching);
    // The one of as many tokens is offered, and it is said why the other is not.
    window.get_by_label("Corrupted prompt: carl").click();
    window.run_steps(3);
    window.get_by_label_contains("1 other prompt has not");
    window.get_by_label("Corrupted prompt: carl").click();
    window.run_steps(3);
    window.get_by_label_contains("No map of prompt anna is in the run folder yet");
    fill(&mut window, Role::TextInput, "Answer", "A");
    fill(&mut window, Role::TextInput, "Wrong answer", "C");
    window.get_by_role_and_label(Role::Button, "Patch").click();
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(viewer(&window).errors().count(), 0, "{:?}", viewer(&window).errors().collect::<Vec<_>>());
    let kept = Run::open(&run).expect("the run").patches().expect("maps");
    let map = &kept[0];
    assert!(kept.len() == 1 && map.is_complete());
    assert_eq!((map.answer.text.as_str(), map.wrong.text.as_str()), ("A", "C"));

    // The strongest patch, pointed at and clicked.
    let (row, at) = map.strongest()[0];
    let (layer, column) = (map.layers[row], map.columns[at]);
    let grid = window.get_by_label_contains("Map of patches: anna / carl").rect();
    let share = vec2(
        (column as f32 + 0.5) / map.columns.len() as f32,
        (layer as f32 + 0.5) / map.layers.len() as f32,
    );
    click(&mut window, grid.min + grid.size() * share, Modifiers::NONE);
    window.run_steps(2);
    window.get_by_label_contains(&format!("layer {layer}, position {column}  ·  "));
    assert_eq!(viewer_layers(&window), [layer]);
    assert_eq!(viewer(&window).state().selection.token, Some(column));

    let table = exported_by(
        &mut window,
        Modifiers::COMMAND | Modifiers::SHIFT,
        Key::C,
        &folder.path().join("map.csv"),
    );
    let table = String::from_utf8(table).expect("text");
    assert!(table.starts_with("layer,position,clean token,corrupted token,effect,"), "{table}");
    assert_eq!(table.lines().count(), 1 + map.cells.len());
    let svg = exported(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, &folder.path().join("map.svg"));
    let svg = String::from_utf8(svg).expect("text");
    assert!(svg.contains("residual stream before the layer") && svg.contains("anna / carl"), "{svg}");

    // Heads beside it; both are listed when the run is opened again, and shown without a model.
    window.get_by_label("Patched: residual stream before the layer").click();
    window.run_steps(3);
    window.get_by_label("output of one attention head").click();
    window.run_steps(3);
    window.get_by_role_and_label(Role::Button, "Patch").click();
    window.run_steps(1);
    wait(&mut window);
    window.get_by_label_contains("Map of patches: anna / carl: output of one attention head");
    let launch =
        layerscope_app::Launch { models: vec![], view: Some(View::Patching), ..support::launch(&run) };
    let mut window = support::window(launch, Vec2::new(1_280.0, 760.0));
    wait(&mut window);
    window.get_by_label_contains("Map of patches: anna / carl: ");
    window.get_by_label_contains("Map: anna / carl").click();
    window.run_steps(3);
    window.get_all_by_label_contains("output of one attention head").next().expect("the other map").click();
    window.run_steps(3);
    window.get_by_label_contains("Map of patches: anna / carl: output of one attention head");
}

#[test]
fn a_prompt_without_a_partner_is_told_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    support::record_prompts(support::lessons(1), &run);
    let mut window = opened(&run);
    show(&mut window, View::Patching);
    window.get_by_label_contains("Patching needs two prompts of as many tokens");
    // The palette says the same.
    window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::T);
    window.run_steps(3);
    assert_eq!(window.get_all_by_label_contains("Patching needs two prompts of as many tokens").count(), 2);
}

#[test]
fn tokens_cannot_vanish_without_the_runs_model() {
    let run = made_up();
    let mut window = opened(run.path());
    show(&mut window, View::Reading);
    wait(&mut window);
    let line = window.get_all_by_label_contains("sleeps").next().expect("a line").rect();
    click(&mut window, line.left_center() + vec2(60.0, 0.0), Modifiers::NONE);
    assert!(viewer(&window).state().selection.tokens().is_some());
    window.get_by_label_contains("open the run’s model");
    assert!(window.query_by_label("From which layer may these vanish?").is_none());
    // The shortcut shows the same message.
    window.key_press_modifiers(Modifiers::COMMAND, Key::L);
    window.run_steps(2);
    assert!(viewer(&window).errors().any(|error| error.contains("made-up")));
}

#[test]
fn without_an_argument_the_model_within_is_recorded_on_the_spot() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompts = b"{\"id\": \"a\", \"prompt\": \"Question: one?\\nAnswer:\"}\n";
    let launch = layerscope_app::Launch {
        open: layerscope_app::Open::Demo {
            model: layerscope_engine::ModelSource::path(tiny_model()),
            prompts: layerscope_diagnostics::prompts::PromptFile {
                name: "demo.jsonl".into(),
                sha256: layerscope_diagnostics::prompts::prompts_sha256(prompts),
                prompts: layerscope_diagnostics::prompts::parse_prompts("demo.jsonl", prompts)
                    .expect("a prompt"),
            },
            lessons: support::lessons(4),
            max_new_tokens: 4,
            folder: folder.path().join("demo"),
        },
        ..support::launch(folder.path())
    };
    let mut window = support::window(launch, Vec2::new(1_280.0, 760.0));
    wait_until(&mut window, |viewer| viewer.run().is_some() && !viewer.is_waiting());
    assert_eq!(viewer(&window).run().expect("a run").prompts.len(), 1);
    assert_eq!(viewer(&window).state().view, View::Map);
}

#[test]
fn an_adapter_is_trained_stopped_and_compared() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut window = opened(&tiny_model());
    show(&mut window, View::Adapt);
    assert!(window.get_by_label("Train").accesskit_node().is_disabled());
    let prompts = folder.path().join("prompts.jsonl");
    std::fs::write(&prompts, support::lesson_lines(6)).expect("prompts");
    fill(&mut window, Role::TextInput, "Prompts", &prompts.display().to_string());
    let adapter = folder.path().join("taught");
    fill(&mut window, Role::TextInput, "Adapter’s folder", &adapter.display().to_string());
    window.get_by_label("Train").click();
    window.run_steps(2);
    let steps = |viewer: &layerscope_app::Viewer| {
        viewer.adapting().progress.as_ref().map_or(0, |progress| progress.losses.len())
    };
    wait_until(&mut window, |viewer| steps(viewer) > 2);
    window.get_by_label("Stop").click();
    wait(&mut window);
    assert_eq!(viewer(&window).errors().count(), 0);
    let progress = viewer(&window).adapting().progress.as_ref().expect("a training");
    let outcome = progress.outcome.as_ref().expect("what it changed");
    assert!(outcome.steps > 2 && outcome.held_out == 1 && outcome.full_depth.is_none(), "{outcome:?}");
    let cutoffs: Vec<usize> = progress.held_out[0].frontier.iter().map(|(cutoff, _)| *cutoff).collect();
    assert!(
        progress.cutoff.is_some_and(|own| cutoffs.contains(&own)) && cutoffs.ends_with(&[8]),
        "{cutoffs:?}"
    );
    assert!(adapter.join("adapter_model.safetensors").is_file());

    window.get_by_label("Generate with and without it").click();
    window.run_steps(2);
    fill(&mut window, Role::MultilineTextInput, "Prompt", prompt_of_the_model());
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    let names: Vec<String> = viewer(&window).live().sides.iter().map(|side| side.name()).collect();
    let policy = viewer(&window).live().sides[1].policy.clone();
    assert_eq!(names, ["full".to_owned(), policy.clone(), format!("{policy} + taught")]);
    window.get_by_label_contains(&format!("Generated, {policy} + taught:"));
    window.get_by_label("and with taught").click();
    window.run_steps(2);
    window.get_all_by_label("Generate").last().expect("a button").click();
    window.run_steps(1);
    wait(&mut window);
    assert_eq!(viewer(&window).live().sides.len(), 2);
}

#[derive(Debug)]
struct Dropped(std::path::PathBuf);

impl eframe::egui::DroppedFile for Dropped {
    fn path(&self) -> &Path {
        &self.0
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.0).map_err(|error| error.to_string())
    }
}

#[test]
fn a_run_dropped_on_the_window_opens() {
    let (first, second) = (made_up(), made_up());
    let mut window = opened(first.path());
    window.input_mut().dropped_files.push(std::sync::Arc::new(Dropped(second.path().to_owned())));
    window.run_steps(2);
    wait(&mut window);
    assert_eq!(viewer(&window).run().expect("a run").folder, second.path());
}

/// A synthetic run of other sizes.
fn another(sizes: Sizes) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    synthetic::write(folder.path(), sizes, false);
    folder
}

/// Opens a second run from the view that compares.
fn compare_with(window: &mut Window, folder: &Path) {
    show(window, View::Compare);
    window.get_by_label("Compare with another run …").click();
    window.run_steps(3);
    fill(window, Role::TextInput, "Run folder", &folder.display().to_string());
    window.get_all_by_role_and_label(Role::Button, "Compare").last().expect("a button").click();
    window.run_steps(2);
    wait(window);
}

#[test]
fn two_runs_are_compared() {
    let (first, second) = (made_up(), another(Sizes { layers: 20, ..SIZES }));
    let mut window = opened(first.path());
    // Without a second run, the view explains how to open one.
    compare_with(&mut window, second.path());
    let state = viewer(&window).state();
    let deeper = viewer(&window).second_run().expect("the second run");
    assert_eq!((state.view, deeper.folder.as_path()), (View::Compare, second.path()));
    let cuts = [viewer(&window).run().expect("the run"), deeper]
        .map(|run| run.recommend(state.options()).expect("a recommendation").l_cut);
    window.get_by_label_contains(&format!("{} of 12 layers (", cuts[0]));
    window.get_by_label_contains(&format!("{} of 20 layers (", cuts[1]));
    window.get_by_label_contains("The recommendations ");
    // Their prompts have the same names and texts.
    window.get_by_label_contains("6 prompts that both have");
    for chart in ["Frontier, anchor bos", "Frontier, difference", "Knockout", "Knockout, difference"] {
        window.get_by_label(&format!("Chart: {chart}"));
    }
    // Curves run over the share of depth, and are exported as the window shows them.
    let out = tempfile::tempdir().expect("a folder");
    let svg = exported(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, &out.path().join("two.svg"));
    let svg = String::from_utf8(svg).expect("text");
    for text in
        ["depth, % of layers", "second less first", "Prompt entropy, difference", "12 layers", "20 layers"]
    {
        assert!(svg.contains(text), "{text}");
    }
    window.key_press_modifiers(Modifiers::COMMAND | Modifiers::SHIFT, Key::C);
    window.run_steps(3);
    let path = out.path().join("two.csv");
    fill(&mut window, Role::TextInput, "File", &path.display().to_string());
    window.get_all_by_role_and_label(Role::Button, "Export").last().expect("a button").click();
    window.run_steps(2);
    wait(&mut window);
    let csv = std::fs::read_to_string(&path).expect("figures");
    // Both frontiers and their difference at the shallower run's cutoffs.
    let rows = |figure: &str| csv.lines().filter(|line| line.starts_with(figure)).count();
    assert_eq!(rows("\"Frontier, anchor bos\""), 12 + 20);
    assert_eq!(rows("\"Frontier, difference\""), 12);

    window.get_by_label("Close the second run").click();
    window.run_steps(3);
    assert!(viewer(&window).second_run().is_none());
}

#[test]
fn a_second_run_is_dropped_with_shift_and_a_bad_one_is_said() {
    let (first, second) = (made_up(), another(Sizes { prompts: 3, ..SIZES }));
    let mut window = opened(first.path());
    window.event(Event::ModifiersChanged(Modifiers::SHIFT));
    window.step();
    for path in [first.path().join("absent"), second.path().to_owned()] {
        window.input_mut().dropped_files.push(std::sync::Arc::new(Dropped(path)));
        window.run_steps(2);
        wait(&mut window);
    }
    window.event(Event::ModifiersChanged(Modifiers::NONE));
    window.step();
    let viewer = viewer(&window);
    assert!(viewer.errors().any(|error| error.contains("absent")));
    assert_eq!(viewer.run().expect("the first").folder, first.path());
    assert_eq!(viewer.second_run().expect("the second").folder, second.path());
    // The same number of layers: the axis is layers.
    window.get_by_label_contains("3 prompts that both have");
}

#[test]
fn what_is_remembered_survives_and_what_is_not_for_this_run_is_dropped() {
    let run = made_up();
    let mut window = opened(run.path());
    window.key_press(Key::B);
    window.key_press_modifiers(Modifiers::ALT, Key::ArrowDown);
    window.run_steps(2);
    wait(&mut window);
    let written = serde_json::to_string(&viewer(&window).remembered()).expect("plain data");
    let read: layerscope_app::Remembered = serde_json::from_str(&written).expect("as written");
    assert!(!read.state.leave_out_bos);
    assert_eq!(read.recent, [run.path().canonicalize().expect("a folder")]);
    let context = eframe::egui::Context::default();
    let viewer = layerscope_app::Viewer::new(&context, support::launch(run.path()), read);
    assert!(!viewer.state().leave_out_bos);
    assert_eq!(viewer.state().prompt, 0);
}

#[test]
fn a_picture_may_be_as_large_as_4k() {
    let run = made_up();
    let path = run.path().join("4k.png");
    let size = Vec2::new(3_840.0, 2_160.0);
    layerscope_app::screenshot(support::launch(run.path()), size, 1.0, &path).expect("a picture");
    // A PNG has its width and height in its first chunk.
    let bytes = std::fs::read(&path).expect("the picture");
    assert_eq!(bytes[16..24], [0, 0, 15, 0, 0, 0, 8, 112]);
}

#[test]
fn a_token_selected_in_the_map_is_scrolled_to_in_the_text() {
    let run = tempfile::tempdir().expect("a folder");
    synthetic::write(run.path(), Sizes { positions: 6_000, prompts: 1, ..SIZES }, false);
    let mut window = opened(run.path());
    let map = window.get_by_label_contains("Map: Attention received").rect();
    let at = map.min + vec2(0.9, 0.5) * map.size();
    window.drag_at(at);
    window.drop_at(at);
    window.run_steps(2);
    let token = viewer(&window).state().selection.token.expect("a token");
    show(&mut window, View::Reading);
    window.run_steps(4);
    // The pointer is put where the line must be: in the middle of the text, where it finds tokens nearby.
    let line = window.get_all_by_label_contains("sleeps").nth(8).expect("a line in sight").rect();
    window.hover_at(line.left_center() + vec2(20.0, 0.0));
    window.run_steps(30);
    let shown = window.get_all_by_label_contains("position ").find_map(|node| {
        let node = node.accesskit_node();
        let label = node.label().or(node.value())?;
        label.strip_prefix("position ")?.split(':').next()?.parse::<usize>().ok()
    });
    assert!(shown.is_some_and(|shown| shown.abs_diff(token) < 300), "{shown:?} {token}");
}

/// Where the figures of points are told.
#[derive(Default)]
struct Hovers(Vec<([f64; 4], String)>);

impl layerscope_figures::Surface for Hovers {
    fn polyline(&mut self, _: &[[f64; 2]], _: Pen) {}
    fn polygon(&mut self, _: &[[f64; 2]], _: Ink) {}
    fn text(&mut self, _: [f64; 2], _: TextAnchor, _: Ink, _: &str) {}
    fn rimmed(&mut self, _: [f64; 2], _: TextAnchor, _: Ink, _: &str) {}
    fn title(&mut self, _: [f64; 2], _: &str) {}
    fn upwards(&mut self, _: [f64; 2], _: Ink, _: &str) {}
    fn hover(&mut self, area: [f64; 4], text: &str) {
        self.0.push((area, text.to_owned()));
    }
}

#[test]
fn measured_policies_tell_their_figures_and_are_exported() {
    let run = made_up();
    let mut window = opened(run.path());
    show(&mut window, View::Frontier);
    assert!(window.query_by_label("Policies").is_none(), "nothing was measured");
    let bench = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/bench.json");
    std::fs::copy(bench, run.path().join("bench.json")).expect("measurements");
    let mut window = opened(run.path());
    show(&mut window, View::Frontier);
    window.get_by_label("Policies").click();
    window.run_steps(3);
    let area = window.get_by_label_contains("Figure: Quality and cost").rect();
    let measured = viewer(&window).run().and_then(|run| run.bench.clone().ok()?).expect("measurements");
    let mut hovers = Hovers::default();
    let size = [f64::from(area.width()), f64::from(area.height())];
    layerscope_report::trade_off(&measured).expect("a figure").draw(size, false, &mut hovers);
    let ([x, y, width, height], text) =
        hovers.0.iter().find(|(_, text)| text.starts_with("speed:20\n")).expect("a point");
    window.hover_at(area.min + vec2((x + width / 2.0) as f32, (y + height / 2.0) as f32));
    window.run_steps(30);
    assert!(text.contains("KL 3.3169 nats per token") && text.contains("s (0.65 of full)"), "{text}");
    window.get_by_label_contains(&text.replace('\n', "  ·  "));

    let out = tempfile::tempdir().expect("a folder");
    let svg = exported(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, &out.path().join("p.svg"));
    let svg = String::from_utf8(svg).expect("text");
    for text in ["Quality and cost of policies", "peak memory / full", "selfonly:22+bos", "2 threads"] {
        assert!(svg.contains(text), "{text}");
    }
    let csv =
        exported_by(&mut window, Modifiers::COMMAND | Modifiers::SHIFT, Key::C, &out.path().join("p.csv"));
    let csv = String::from_utf8(csv).expect("text");
    assert!(csv.starts_with("policy,prompt (tokens),new (tokens),KL (nats)"), "{csv}");
    assert_eq!(csv.lines().count(), measured.results.len() + 1);
    window.get_by_label("Cutoffs").click();
    window.run_steps(3);
    window.get_by_label_contains("Chart: KL divergence");
}

#[test]
fn damaged_measurements_leave_the_run_open() {
    let run = made_up();
    std::fs::write(run.path().join("bench.json"), "{").expect("a file");
    let mut window = opened(run.path());
    show(&mut window, View::Frontier);
    window.get_by_label_contains("Chart: KL divergence");
    window.get_by_label("Policies").click();
    window.run_steps(3);
    window.get_by_label_contains("measure again with --out FILE.json");
}
