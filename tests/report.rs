//! `layerscope report`: every number in every format compared with the run folder's files, read without our
//! own reader; hostile texts; comparison; bad input.

#![allow(clippy::print_stderr, clippy::unwrap_used)]

mod support;
#[path = "support/tables.rs"]
mod tables;

use scraper::Html;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{demo_prompts, fixtures, json, layerscope, numbers, refuse, run, stderr, succeed, tiny_model};
use tables::{Frame, Table, equal, html_tables, markdown_tables, select, text, within};

/// A run of the embedded model, recorded once.
fn demo() -> &'static Path {
    static RUN: std::sync::OnceLock<(tempfile::TempDir, PathBuf)> = std::sync::OnceLock::new();
    let (_, run) = RUN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("demo");
        succeed(layerscope().arg("demo").arg("--out").arg(&run));
        (folder, run)
    });
    run
}

fn report(runs: &[&Path], outs: &[&Path]) -> Command {
    let mut command = layerscope();
    command.arg("report").args(runs);
    for out in outs {
        command.arg("-o").arg(out);
    }
    command
}

fn page(path: &Path) -> Html {
    Html::parse_document(&std::fs::read_to_string(path).unwrap())
}

/// A run's files, with their values by layer and by cutoff.
struct RunFiles {
    layers: usize,
    frontier: Frame,
    by_layer: Frame,
    knockout: Frame,
    heads: Frame,
    prompts: Frame,
}

impl RunFiles {
    fn read(run: &Path) -> Self {
        let manifest: Value =
            serde_json::from_slice(&std::fs::read(run.join("manifest.json")).unwrap()).unwrap();
        let frame = |name: &str| Frame::read(&run.join(name));
        Self {
            layers: manifest["model"]["layers"].as_u64().unwrap() as usize,
            frontier: frame("frontier.parquet"),
            by_layer: frame("layers.parquet"),
            knockout: frame("knockout.parquet"),
            heads: frame("heads.parquet"),
            prompts: frame("prompts.parquet"),
        }
    }

    fn category_of(&self, prompt_id: &str) -> &str {
        let row = self.prompts.texts("prompt_id").iter().position(|id| id == prompt_id).unwrap();
        &self.prompts.texts("category")[row]
    }

    fn of_category(&self, frame: &Frame, row: usize, category: Option<&str>) -> bool {
        category.is_none_or(|category| self.category_of(&frame.texts("prompt_id")[row]) == category)
    }

    fn frontier(&self, figure: &str, anchor: &str, category: Option<&str>) -> Vec<f64> {
        let frame = &self.frontier;
        let mean = |cutoff: usize| {
            frame.mean(figure, |row| {
                frame.numbers("cutoff")[row] == cutoff as f64
                    && frame.texts("anchor")[row] == anchor
                    && self.of_category(frame, row, category)
            })
        };
        (1..=self.layers).map(mean).collect()
    }

    /// Means at layers from `first` on; −1 is the embedding.
    fn layer(&self, figure: &str, first: i32, category: Option<&str>) -> Vec<f64> {
        let frame = &self.by_layer;
        let mean = |layer: i32| {
            frame.mean(figure, |row| {
                frame.numbers("layer")[row] == f64::from(layer) && self.of_category(frame, row, category)
            })
        };
        (first..self.layers as i32).map(mean).collect()
    }

    fn knockout(&self) -> Vec<f64> {
        let frame = &self.knockout;
        let mean = |layer: usize| frame.mean("kl", |row| frame.numbers("layer")[row] == layer as f64);
        (0..self.layers).map(mean).collect()
    }
}

#[test]
fn every_number_is_the_run_folders() {
    let (run, folder) = (demo(), tempfile::tempdir().unwrap());
    let [html, as_json, markdown, pdf] =
        ["html", "json", "md", "pdf"].map(|extension| folder.path().join(format!("report.{extension}")));
    succeed(&mut report(&[run], &[&html, &as_json, &markdown, &pdf]));
    let files = RunFiles::read(run);
    let page = page(&html);
    let tables = html_tables(&page);
    against_the_files(&tables, &files);
    against_the_tokens(&tables, run, &page);
    let recommendation = json(layerscope().arg("recommend").arg(run).arg("--json"));
    against_the_recommendation(&page, &tables, &recommendation);
    let summary = json(layerscope().arg("show").arg(run).arg("--summary-json"));
    against_the_summary(&tables, &summary);

    // Markdown and PDF show the same as HTML; JSON has all digits.
    let shown = |table: &Table| -> Vec<Vec<String>> {
        table.rows.iter().map(|row| row.iter().map(|cell| cell.text.clone()).collect()).collect()
    };
    let in_markdown = markdown_tables(&std::fs::read_to_string(&markdown).unwrap());
    for table in tables.values() {
        let rows = shown(table);
        let same = |other: &Vec<Vec<String>>| {
            other.len() == rows.len() + 1
                && other[1..]
                    .iter()
                    .zip(&rows)
                    .all(|(a, b)| a.iter().map(|c| c.trim()).eq(b.iter().map(|c| c.trim())))
        };
        assert!(in_markdown.iter().any(same), "Markdown lacks {}: {rows:?}", table.id);
    }
    let held: Value = serde_json::from_slice(&std::fs::read(&as_json).unwrap()).unwrap();
    let mut all = vec![];
    every_number(&held, &mut all);
    all.sort_by(f64::total_cmp);
    let is_held = |value: f64| {
        // Shares are shown in percent.
        [value, value / 100.0].iter().any(|value| {
            let at = all.partition_point(|held| *held < value - 1e-12 * value.abs());
            all.get(at).is_some_and(|held| (held - value).abs() <= 1e-9 * value.abs().max(1e-9))
        })
    };
    for table in tables.values().filter(|table| !table.id.starts_with("steps-")) {
        for cell in table.rows.iter().flatten() {
            // Layers and positions are indices, which are not in the JSON.
            let counted = cell.value.is_some_and(|value| value.fract() == 0.0);
            assert!(counted || cell.value.is_none_or(is_held), "JSON lacks {cell:?} of {}", table.id);
        }
    }
    let schema = std::fs::read_to_string(fixtures().join("../docs/report.schema.json")).unwrap();
    let schema = jsonschema::validator_for(&serde_json::from_str(&schema).unwrap()).unwrap();
    let errors: Vec<String> =
        schema.iter_errors(&held).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let bytes = std::fs::read(&pdf).unwrap();
    assert!(
        bytes.starts_with(b"%PDF-")
            && contains(&bytes, b"/StructTreeRoot")
            && contains(&bytes, b"pdfuaid:part")
    );
    if let Some(words) = pdf_words(&pdf) {
        for cell in tables.values().flat_map(|table| table.rows.iter().flatten()) {
            if cell.value.is_some() {
                assert!(words.contains(&cell.text), "the PDF lacks {cell:?}");
            }
        }
    }
}

fn against_the_files(tables: &std::collections::BTreeMap<String, Table>, files: &RunFiles) {
    let divergence = &tables["divergence-data"];
    equal(&divergence.numbers(1), &files.frontier("kl", "bos", None), "KL, bos");
    equal(&divergence.numbers(3), &files.frontier("kl", "none", None), "KL, none");
    for (id, figure) in [("top-token-data", "top1"), ("likelihood-data", "dnll")] {
        equal(&tables[id].numbers(1), &files.frontier(figure, "bos", None), figure);
        equal(&tables[id].numbers(2), &files.frontier(figure, "none", None), figure);
    }
    let by_category = &tables["divergence-by-category-data"];
    assert!(by_category.columns.len() > 2);
    for (column, name) in by_category.columns.iter().enumerate().skip(1) {
        let category = name.strip_suffix(" nats").unwrap();
        equal(&by_category.numbers(column), &files.frontier("kl", "bos", Some(category)), category);
    }
    for (id, figures, first) in [
        ("masses", &["prompt_mass", "bos_mass", "decode_mass"][..], 0),
        ("entropy", &["prompt_entropy"], 0),
        ("selectivity", &["selectivity"], 0),
        ("straightening", &["straightening_prompt_deg", "straightening_decode_deg"], -1),
        ("lens", &["lens_kl"], 0),
        ("lens-top1", &["lens_top1_agreement"], 0),
    ] {
        let table = &tables[&format!("{id}-data")];
        for (index, figure) in figures.iter().enumerate() {
            equal(&table.numbers(1 + 6 * index), &files.layer(figure, first, None), figure);
        }
        if let Some(table) = tables.get(&format!("{id}-by-category-data")) {
            for (column, name) in table.columns.iter().enumerate().skip(1) {
                let category = name.split(' ').next().unwrap();
                equal(&table.numbers(column), &files.layer(figures[0], first, Some(category)), name);
            }
        }
    }
    let knockout = files.knockout();
    equal(&tables["knockout-data"].numbers(1), &knockout, "knockout");
    for (row, figure) in
        ["prompt_mass", "selectivity", "prompt_entropy", "lens_kl", "straightening_prompt_deg"]
            .iter()
            .enumerate()
    {
        let found = tables["correlations"].numbers(1)[row];
        equal(&[found], &[spearman(&files.layer(figure, 0, None), &knockout)], figure);
    }
    let heads = &tables["heads-data"];
    for row in 0..heads.rows.len() {
        let (layer, head) = (heads.numbers(0)[row], heads.numbers(1)[row]);
        let mean = files.heads.mean("prompt_mass", |row| {
            files.heads.numbers("layer")[row] == layer && files.heads.numbers("head")[row] == head
        });
        equal(&[heads.numbers(2)[row]], &[mean], "a head");
    }
    let prompts = &tables["prompts-table"];
    assert_eq!(
        prompts.texts(0),
        files.prompts.texts("prompt_id").iter().map(String::as_str).collect::<Vec<_>>()
    );
    equal(&prompts.numbers(2), files.prompts.numbers("p"), "p");
    equal(&prompts.numbers(10), files.prompts.numbers("prefill_s"), "prefill");
    // Savings by the cost model's formula, with the last prompt token among the decode tokens.
    let layers = files.layers as f64;
    let requests: Vec<(f64, f64)> = files
        .prompts
        .numbers("p")
        .iter()
        .zip(files.prompts.numbers("steps"))
        .map(|(p, steps)| (p - 1.0, *steps))
        .collect();
    let full: f64 = requests.iter().map(|(p, n)| (p + n) * layers).sum();
    let saved = (1..=files.layers).map(|cutoff| {
        let cut: f64 = requests.iter().map(|(p, n)| (p - 1.0) * cutoff as f64 + (1.0 + n) * layers).sum();
        (1.0 - cut / full) * 100.0
    });
    equal(&tables["savings-data"].numbers(1), &saved.collect::<Vec<_>>(), "KV saved");
}

/// The readings, compared with `tokens.parquet` and `steps.parquet`.
fn against_the_tokens(tables: &std::collections::BTreeMap<String, Table>, run: &Path, page: &Html) {
    let tokens = Frame::read(&run.join("tokens.parquet"));
    let steps = Frame::read(&run.join("steps.parquet"));
    let ids: Vec<String> = select(page, "#readings h3")
        .into_iter()
        .map(|heading| text(heading).trim_start_matches("Prompt ").split(',').next().unwrap().to_owned())
        .collect();
    assert!(ids.len() > 1);
    for (index, id) in ids.iter().enumerate() {
        let table = &tables[&format!("tokens-{}-data", index + 1)];
        for row in 0..table.rows.len() {
            let position = table.numbers(0)[row];
            let here = |row: usize| {
                tokens.texts("prompt_id")[row] == *id && tokens.numbers("position")[row] == position
            };
            equal(&[table.numbers(2)[row]], &[tokens.mean("received_mean", here)], "received");
            let most = (0..tokens.numbers("layer").len()).filter(|row| here(*row)).max_by(|a, b| {
                tokens.numbers("received_mean")[*a].total_cmp(&tokens.numbers("received_mean")[*b])
            });
            let most = most.unwrap();
            equal(&[table.numbers(4)[row]], &[tokens.numbers("received_mean")[most]], "received there");
        }
        let table = &tables[&format!("steps-{}-data", index + 1)];
        for (step, mass) in table.numbers(2).into_iter().enumerate() {
            let mean = steps.mean("prompt_mass", |row| {
                steps.texts("prompt_id")[row] == *id && steps.numbers("step")[row] == step as f64
            });
            // The map has single precision.
            assert!((mass - mean).abs() < 1e-6, "{id} {step}: {mass} {mean}");
        }
    }
}

fn against_the_recommendation(
    page: &Html,
    tables: &std::collections::BTreeMap<String, Table>,
    recommendation: &Value,
) {
    let headline = text(select(page, ".headline")[0]);
    assert_eq!(
        headline,
        format!("Cut at {} of {} layers", recommendation["l_cut"], recommendation["layers"])
    );
    let facts: Vec<f64> = select(page, ".facts data")
        .into_iter()
        .map(|data| data.attr("value").unwrap().parse().unwrap())
        .collect();
    let of = |name: &str| recommendation[name].as_f64().unwrap();
    let percent = |name: &str| of(name) * 100.0;
    let expected = [
        of("kl"),
        of("kl_below"),
        percent("top1"),
        percent("answers_kept"),
        percent("text_unchanged"),
        percent("kv_saved"),
        percent("predicted_ttft_saved"),
        percent("predicted_tpot_saved"),
        of("prompts"),
    ];
    equal(&facts, &expected, "the answer");
    let reasons: Vec<String> = select(page, "#answer ul li").into_iter().map(text).collect();
    let expected: Vec<&str> =
        recommendation["reasons"].as_array().unwrap().iter().map(|r| r.as_str().unwrap()).collect();
    assert_eq!(reasons, expected);
    let bounds: Vec<f64> = recommendation["frontier"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["kl_upper95"].as_f64().unwrap())
        .collect();
    equal(&tables["divergence-data"].numbers(2), &bounds, "bounds");
    for (row, category) in recommendation["categories"].as_array().unwrap().iter().enumerate() {
        let cells = &tables["categories"].rows[row];
        assert_eq!(cells[0].text, category["category"].as_str().unwrap());
        for (column, name) in [(2, "kl"), (4, "kl_below")] {
            equal(&[cells[column].value.unwrap()], &[category[name].as_f64().unwrap()], name);
        }
    }
}

fn against_the_summary(tables: &std::collections::BTreeMap<String, Table>, summary: &Value) {
    let parts = ["mean", "mean_ci95_lower", "mean_ci95_upper", "q05", "q50", "q95"];
    for (id, figure) in
        [("entropy-data", "prompt_entropy"), ("lens-data", "lens_kl"), ("masses-data", "prompt_mass")]
    {
        for (index, part) in parts.iter().enumerate() {
            let layers = summary["overall"]["figures"][figure].as_array().unwrap();
            let expected: Vec<f64> =
                layers.iter().map(|layer| layer[part].as_f64().unwrap_or(f64::NAN)).collect();
            equal(&tables[id].numbers(1 + index), &expected, part);
        }
    }
}

fn spearman(a: &[f64], b: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: &f64| {
            let below = values.iter().filter(|other| *other < value).count() as f64;
            let equal = values.iter().filter(|other| *other == value).count() as f64;
            below + (equal - 1.0) / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() - 1) as f64 / 2.0;
    let sum = |f: &dyn Fn(f64, f64) -> f64| a.iter().zip(&b).map(|(a, b)| f(a - mean, b - mean)).sum::<f64>();
    sum(&|a, b| a * b) / (sum(&|a, _| a * a) * sum(&|_, b| b * b)).sqrt()
}

fn every_number(value: &Value, all: &mut Vec<f64>) {
    match value {
        Value::Number(number) => all.extend(number.as_f64()),
        Value::Array(items) => items.iter().for_each(|item| every_number(item, all)),
        Value::Object(fields) => fields.values().for_each(|field| every_number(field, all)),
        _ => {}
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The words of a PDF; `None` with a message if Poppler's pdftotext is missing.
fn pdf_words(pdf: &Path) -> Option<BTreeSet<String>> {
    let Ok(output) = Command::new("pdftotext").args(["-layout"]).arg(pdf).arg("-").output() else {
        assert!(
            std::env::var_os("LAYERSCOPE_REQUIRE_REPORT_CHECKS").is_none(),
            "pdftotext is absent; install poppler-utils"
        );
        eprintln!("skipped: pdftotext is absent; install poppler-utils");
        return None;
    };
    assert!(output.status.success());
    assert_eq!(stderr(&output), "", "pdftotext finds the PDF invalid");
    Some(String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect())
}

#[test]
fn the_same_run_gives_the_same_bytes() {
    let (run, folder) = (demo(), tempfile::tempdir().unwrap());
    for extension in ["html", "json", "md", "pdf"] {
        let [first, second] = ["a", "b"]
            .map(|name| folder.path().join(extension).join(name).join(format!("report.{extension}")));
        for out in [&first, &second] {
            std::fs::create_dir_all(out.parent().unwrap()).unwrap();
            succeed(&mut report(&[run], &[out]));
        }
        assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap(), "{extension}");
        assert!(first.with_file_name("report-figures").is_dir() == (extension == "md"));
    }
}

/// Injection attempts for every format.
const HOSTILE: [&str; 6] = [
    "<script>alert(1)</script><img src=x onerror=alert(1)> \"'><svg onload=alert(1)>",
    "![x](http://example.com/x.png) [a](javascript:alert(1)) | `tick` ``` *b* _i_ # h\n\n```\n# not a heading\n```",
    "#read(\"/etc/passwd\") #panic() $x$ @cite <label> \\ */ // /* = Heading",
    "שלום \u{202e}evil\u{202c} مرحبا \u{2066}x\u{2069}",
    "nul \u{0} bell \u{7} escape \u{1b}[31mred\u{1b}[0m del \u{7f} c1 \u{85} ls \u{2028} bom \u{feff}",
    "日本語 👩‍👩‍👧 𝔘 \u{10fff0} \u{fffe} ]]> --> <!-- &amp; &#x41;",
];

#[test]
fn hostile_texts_come_out_as_text() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("<b>prompts.jsonl");
    let lines: Vec<String> = HOSTILE
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let line = serde_json::json!({ "id": format!("{index} {text}"), "category": text, "prompt": text.repeat(3) });
            line.to_string()
        })
        .collect();
    std::fs::write(&prompts, lines.join("\n")).unwrap();
    let out = folder.path().join("run <i>&\"'|`");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts).args([
        "--max-new-tokens",
        "4",
        "--out",
    ]);
    succeed(record.arg(&out));
    let [html, markdown, pdf] =
        ["html", "md", "pdf"].map(|extension| folder.path().join(format!("h.{extension}")));
    // A tolerance at which a cutoff is recommended, so that there are failure cases.
    let mut command = report(&[&out], &[&html, &markdown, &pdf]);
    succeed(command.args(["--tolerance", "9"]));

    let page = page(&html);
    let scripts = select(&page, "script");
    assert!(scripts.iter().all(|script| script.attr("src").is_none()));
    let ours = scripts.iter().filter(|script| script.attr("type").is_none()).count();
    assert_eq!(ours, 1, "one script, ours");
    assert!(select(&page, "img, iframe, object, embed, link, form, b, i").is_empty());
    for element in select(&page, "*") {
        for (name, value) in element.value().attrs() {
            assert!(!name.starts_with("on"), "{name}={value}");
            assert!(!value.starts_with("javascript:"), "{name}={value}");
        }
    }
    let shown = text(select(&page, "body")[0]);
    for part in [
        "<script>alert(1)</script>",
        "![x](http://example.com/x.png)",
        "#read(\"/etc/passwd\")",
        "שלום",
        "日本語",
    ] {
        assert!(shown.contains(part), "{part}");
    }
    for acts in ['\u{202e}', '\u{2066}', '\u{0}', '\u{7}', '\u{1b}', '\u{2028}'] {
        assert!(!shown.contains(acts), "{acts:?}");
    }
    assert!(shown.contains("⟨U+202E⟩") && shown.contains('␛'));

    let text = std::fs::read_to_string(&markdown).unwrap();
    use pulldown_cmark::{Event, Options, Parser, Tag};
    for event in Parser::new_ext(&text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Image { dest_url, .. }) => {
                assert!(dest_url.starts_with("h-figures/"), "{dest_url}")
            }
            Event::Start(Tag::Link { dest_url, .. }) => {
                assert!(dest_url.starts_with("https://arxiv.org/"), "{dest_url}");
            }
            Event::Html(html) | Event::InlineHtml(html) => {
                let ours = html.starts_with("<details>") || html.starts_with("</details>");
                assert!(ours && !html.contains("<script"), "{html}");
            }
            Event::Start(Tag::Heading { .. }) => {}
            _ => {}
        }
    }
    let headings = text.lines().filter(|line| line.starts_with('#')).count();
    assert!(headings > 10);
    assert!(!text.contains('\u{202e}') && !text.contains('\u{1b}'));
    assert!(std::fs::read(&pdf).unwrap().starts_with(b"%PDF-"));
    if let Some(words) = pdf_words(&pdf) {
        assert!(
            words.iter().any(|word| word.contains("<script>alert"))
                && words.iter().any(|word| word.contains("#read("))
        );
        assert!(!words.iter().any(|word| word.contains("root:x:0")));
    }
    // Figures contain names of categories and tokens.
    for figure in std::fs::read_dir(folder.path().join("h-figures")).unwrap() {
        let svg = std::fs::read_to_string(figure.unwrap().path()).unwrap();
        let svg = roxmltree::Document::parse(&svg).expect("XML");
        assert!(svg.descendants().all(|node| node.tag_name().name() != "script"));
    }
}

/// What is drawn as one glyph stands for few characters: Poppler takes no more than 63.
#[test]
fn letters_with_many_marks_are_read_from_a_pdf() {
    let folder = tempfile::tempdir().unwrap();
    let prompts = folder.path().join("marks.jsonl");
    let texts = [
        ("a", "\u{301}"),
        ("e", "\u{328}\u{302}"),
        ("\u{915}", "\u{94d}\u{915}"),
        ("\u{1f469}", "\u{200d}\u{1f469}"),
    ];
    let lines = texts.iter().enumerate().map(|(index, (letter, mark))| {
        let text = format!("{letter}{}", mark.repeat(100));
        let id: String = text.chars().take(40).collect();
        format!("{}\n", serde_json::json!({ "id": format!("{index}{id}"), "category": id, "prompt": text }))
    });
    std::fs::write(&prompts, lines.collect::<String>()).unwrap();
    let (out, pdf) = (folder.path().join("run"), folder.path().join("marks.pdf"));
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(&prompts);
    succeed(record.args(["--max-new-tokens", "4", "--out"]).arg(&out));
    succeed(report(&[&out], &[&pdf]).args(["--tolerance", "9"]));
    if let Some(words) = pdf_words(&pdf) {
        assert!(words.iter().any(|word| word.contains("<U+0301>")), "{words:?}");
    }
}

#[test]
fn two_runs_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let second = folder.path().join("f32");
    let mut record = layerscope();
    record.arg("record").arg(tiny_model()).arg("--prompts").arg(demo_prompts()).args([
        "--weights",
        "f32",
        "--out",
    ]);
    succeed(record.arg(&second));
    let [html, as_json] = ["html", "json"].map(|extension| folder.path().join(format!("both.{extension}")));
    succeed(&mut report(&[demo(), &second], &[&html, &as_json]));
    let (a, b) = (RunFiles::read(demo()), RunFiles::read(&second));
    let page = page(&html);
    let tables = html_tables(&page);
    let less = |first: Vec<f64>, second: Vec<f64>| -> Vec<f64> {
        first.iter().zip(&second).map(|(a, b)| b - a).collect()
    };
    let difference = less(a.layer("prompt_mass", 0, None), b.layer("prompt_mass", 0, None));
    let table = &tables["difference-1-prompt-mass-data"];
    equal(&table.numbers(1), &difference, "difference of prompt mass");
    for row in &table.rows {
        let [mean, lower, upper] = [1, 2, 3].map(|column| row[column].value.unwrap());
        assert!(lower <= mean && mean <= upper);
    }
    let difference = less(a.frontier("kl", "bos", None), b.frontier("kl", "bos", None));
    equal(&tables["difference-1-frontier-data"].numbers(1), &difference, "difference of KL");
    equal(&tables["comparison-frontiers-data"].numbers(2), &b.frontier("kl", "bos", None), "second frontier");
    equal(&tables["run2-divergence-data"].numbers(1), &b.frontier("kl", "bos", None), "second run");
    let held: Value = serde_json::from_slice(&std::fs::read(&as_json).unwrap()).unwrap();
    let comparison = &held["comparisons"][0];
    assert_eq!((&comparison["pairing"], &comparison["agreement"]["agree"]), (&"paired".into(), &true.into()));
    let cuts = &comparison["agreement"]["l_cut"];
    assert_eq!(
        [&cuts[0], &cuts[1]],
        [&held["runs"][0]["recommendation"]["l_cut"], &held["runs"][1]["recommendation"]["l_cut"]]
    );
    assert!(text(select(&page, "#comparison")[0]).contains("The recommendations agree"));
    // A run compared with itself has no differences, and runs of the same name get numbers.
    succeed(&mut report(&[demo(), demo(), demo()], &[&as_json]));
    let held: Value = serde_json::from_slice(&std::fs::read(&as_json).unwrap()).unwrap();
    assert_eq!(
        [0, 1, 2].map(|run| held["runs"][run]["name"].as_str().unwrap()),
        ["demo", "demo (2)", "demo (3)"]
    );
    for figure in held["comparisons"][0]["figures"].as_array().unwrap() {
        for layer in figure["layers"].as_array().unwrap() {
            assert!(
                numbers(&serde_json::json!([layer["mean"], layer["lower95"], layer["upper95"]]))
                    .iter()
                    .all(|d| d.is_nan() || *d == 0.0)
            );
        }
    }
}

#[test]
fn failure_cases_and_measurements_are_shown_where_the_run_has_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut record = layerscope();
    record
        .arg("record")
        .arg(tiny_model())
        .arg("--prompts")
        .arg(demo_prompts())
        .args(["--failure-cases", "0"]);
    succeed(record.args(["--max-new-tokens", "16", "--out"]).arg(&out));
    let html = folder.path().join("r.html");
    succeed(&mut report(&[&out], &[&html]));
    let before = page(&html);
    assert!(text(select(&before, "#failures")[0]).contains("was not generated"));
    assert!(select(&before, "#bench").is_empty());
    let mut bench = layerscope();
    bench.arg("bench").arg(tiny_model()).args([
        "--lengths",
        "256",
        "--new-tokens",
        "4",
        "--repeats",
        "1",
        "--quality",
        "1",
        "--out",
    ]);
    succeed(bench.arg(&out));
    succeed(report(&[&out], &[&html]).arg("--model").arg(tiny_model()));
    let after = page(&html);
    let measured: Value = serde_json::from_slice(&std::fs::read(out.join("bench.json")).unwrap()).unwrap();
    let medians: Vec<f64> = measured["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["ttft_s"]["median"].as_f64().unwrap())
        .collect();
    equal(&html_tables(&after)["bench-table"].numbers(4), &medians, "TTFT");
    let of_policies = |figure: &dyn Fn(&Value) -> Option<f64>| -> Vec<f64> {
        measured["results"].as_array().unwrap().iter().map(|m| figure(m).unwrap()).collect()
    };
    let quality = &html_tables(&after)["bench-quality-256-data"];
    equal(&quality.numbers(1), &of_policies(&|m| m["quality"]["kl"].as_f64()), "KL");
    equal(&quality.numbers(6), &of_policies(&|m| m["ttft_ratio"].as_f64()), "TTFT / full");
    let figure = &select(&after, "#bench-quality-256 svg");
    assert_eq!(figure.len(), 2, "one for wide and one for narrow pages");
    assert!(text(figure[0]).contains("speed:6+bos") && text(figure[0]).contains("KV bytes / full"));
    assert!(select(&after, "#evaluation").is_empty());
    let mut eval = layerscope();
    eval.arg("eval").arg(tiny_model()).arg("--tasks").arg(demo_prompts());
    eval.args(["--policies", "full,speed:6+bos", "--max-new-tokens", "8", "--json", "--out"]);
    let judged = json(eval.arg(&out));
    succeed(&mut report(&[&out], &[&html]));
    let tables = html_tables(&page(&html));
    let of_cells = |index: usize, figure: &dyn Fn(&Value) -> f64| -> Vec<f64> {
        judged["rows"].as_array().unwrap().iter().map(|row| 100.0 * figure(&row["cells"][index])).collect()
    };
    let scores = &tables["evaluation-scores"];
    equal(&scores.numbers(3), &of_cells(0, &|cell| cell["score"].as_f64().unwrap()), "full");
    equal(&scores.numbers(4), &of_cells(1, &|cell| cell["score"].as_f64().unwrap()), "speed:6+bos");
    let differences = of_cells(1, &|cell| cell["difference"]["mean"].as_f64().unwrap());
    equal(&tables["evaluation-differences"].numbers(4), &differences, "difference");
    let file = out.join("eval.json");
    let of_another =
        std::fs::read_to_string(&file).unwrap().replace("\"model_sha256\":\"", "\"model_sha256\":\"0");
    std::fs::write(&file, of_another).unwrap();
    refuse(&mut report(&[&out], &[&html]), 2, &["eval.json", "another model"]);
    std::fs::remove_file(&file).unwrap();
    let continuations: Value =
        serde_json::from_slice(&std::fs::read(out.join("continuations.json")).unwrap()).unwrap();
    let entries = continuations["entries"].as_array().unwrap();
    let texts = select(&after, "#failures .texts");
    assert!(!entries.is_empty() && texts.len() == entries.len());
    for (texts, entry) in texts.into_iter().zip(entries) {
        let sides = within(texts, ".text");
        assert_eq!(sides.len(), 2);
        assert_eq!(
            text(sides[1]).replace("(end)", ""),
            entry["generated_token_text"]
                .as_array()
                .unwrap()
                .iter()
                .map(|t| t.as_str().unwrap())
                .collect::<String>()
        );
        assert_eq!(within(texts, "mark").is_empty(), entry["first_difference"].is_null());
    }
}

#[test]
fn bad_input_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    refuse(&mut report(&[&at("no-run")], &[&at("r.html")]), 2, &["no-run"]);
    refuse(&mut report(&[demo()], &[&at("r.docx")]), 2, &["r.docx", ".html"]);
    refuse(&mut report(&[demo()], &[&at("nowhere/r.html")]), 2, &["nowhere"]);
    refuse(report(&[demo()], &[&at("r.html")]).arg("--tolerance=-1"), 2, &["tolerance"]);
    refuse(report(&[demo()], &[&at("r.html")]).args(["--model", "no-such.gguf"]), 2, &["no-such.gguf"]);
    assert!(!at("r.html").exists());
    let output = run(layerscope().args(["report"]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}
