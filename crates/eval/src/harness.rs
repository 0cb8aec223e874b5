//! Result files of lm-evaluation-harness, one or several per policy.
//!
//! `results_DATE.json` has the scores of tasks; where the harness ran with `--log_samples`, `samples_TASK_DATE.jsonl` beside it has those
//! of each item, so that policies are compared item by item.

use crate::summary::{Cell, Row, Scored, summarise};
use layerscope_diagnostics::summary::{Difference, Pairing};
use layerscope_engine::{Error, Result, write_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The file's name in a run folder.
pub const HARNESS: &str = "lm-eval.json";

const SCHEMA: u32 = 1;
/// How deep result files are looked for: the harness makes a folder for each model.
const LEVELS: usize = 3;
/// Standard errors from the mean to the ends of a 95 % interval.
const NORMAL_95: f64 = 1.959_963_985;

/// Scores of policies by lm-evaluation-harness.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HarnessScores {
    schema: u32,
    /// Version of layerscope that wrote it.
    pub layerscope: String,
    /// What was read.
    #[serde(flatten)]
    pub harness: Harness,
    /// The policies; all are compared with the first.
    pub policies: Vec<String>,
    /// Scores by metric and task.
    pub rows: Vec<Row>,
    /// Metrics of tasks that are no score of 0 to 1, and are left out.
    pub left_out: Vec<String>,
}

/// Runs of lm-evaluation-harness.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Harness {
    /// Its version; several if the runs have several.
    pub lm_eval: String,
    /// The runs.
    pub runs: Vec<HarnessRun>,
}

/// A run of lm-evaluation-harness.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HarnessRun {
    /// Name of its result file.
    pub file: String,
    /// The policy; the harness's model class where it was not layerscope's server that answered.
    pub policy: String,
    /// The model as the run names it; empty where it does not.
    pub model: String,
    /// Its tasks.
    pub tasks: Vec<String>,
}

impl HarnessScores {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Input`] if it cannot be read, is damaged or of a newer version.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = layerscope_files::read(path).map_err(|error| Error::io("read", path, &error))?;
        let mend = "delete it and run layerscope lm-eval again";
        let found: Self = serde_json::from_slice(&bytes).map_err(|error| {
            Error::input(format!("{} has no scores of layerscope ({error}); {mend}", path.display()))
        })?;
        if found.schema > SCHEMA {
            return Err(Error::input(format!(
                "{} was written by a newer layerscope; update layerscope",
                path.display()
            )));
        }
        if found.rows.iter().any(|row| row.cells.len() != found.policies.len()) {
            return Err(Error::input(format!("{} has rows that lack policies; {mend}", path.display())));
        }
        Ok(found)
    }

    /// Writes it into a folder, which is made where there is none.
    ///
    /// # Errors
    /// [`Error::Failure`] where that is not possible.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
        let text = serde_json::to_string(self).map_err(|error| Error::failure(error.to_string()))?;
        write_file(&folder.join(HARNESS), format!("{text}\n").as_bytes())
    }
}

/// Reads result files, and all that are in folders. Policies are in the order in which they come; of a folder's, `full` is the first. Where a
/// policy has run a task twice, the later file counts; where several models have run under it, each is one of its own.
///
/// # Errors
/// [`Error::Input`] where there is no result file, one cannot be read, or no task was run under every policy.
pub fn read_harness(paths: &[PathBuf]) -> Result<HarnessScores> {
    let mut files: Vec<ResultFile> = vec![];
    for path in paths {
        let mut found = vec![];
        if path.is_dir() {
            result_files(path, LEVELS, &mut found)?;
            // Names have the date.
            found.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
        } else {
            found.push(path.clone());
        }
        let mut found: Vec<ResultFile> =
            found.iter().map(|path| ResultFile::read(path)).collect::<Result<_>>()?;
        if found.is_empty() {
            return Err(Error::input(format!(
                "{} has no results_….json of lm-evaluation-harness; give the folder of its --output_path",
                path.display()
            )));
        }
        found.sort_by_key(|file| file.run.policy != "full");
        files.extend(found);
    }
    tell_models_apart(&mut files);
    let mut policies: Vec<String> = vec![];
    for file in &files {
        if !policies.contains(&file.run.policy) {
            policies.push(file.run.policy.clone());
        }
    }
    let mut tasks: BTreeMap<(String, String), Task> = BTreeMap::new();
    for file in &files {
        for (name, task) in &file.tasks {
            tasks.insert((name.clone(), file.run.policy.clone()), task.clone());
        }
    }
    let left_out: BTreeSet<&String> = files.iter().flat_map(|file| &file.left_out).collect();
    let versions: BTreeSet<&str> = files.iter().map(|file| file.version.as_str()).collect();
    let rows = rows(&tasks, &policies);
    if rows.is_empty() {
        return Err(Error::input(format!(
            "no task has scores of 0 to 1 under every one of {}; run the same tasks under each",
            policies.join(", ")
        )));
    }
    Ok(HarnessScores {
        schema: SCHEMA,
        layerscope: env!("CARGO_PKG_VERSION").to_owned(),
        harness: Harness {
            lm_eval: versions.into_iter().collect::<Vec<_>>().join(", "),
            runs: files.iter().map(|file| file.run.clone()).collect(),
        },
        left_out: left_out.into_iter().cloned().collect(),
        rows,
        policies,
    })
}

/// Policies under which several models have run are named with the model: a model with and without an adapter, say.
fn tell_models_apart(files: &mut [ResultFile]) {
    let mut models: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for HarnessRun { policy, model, .. } in files.iter().map(|file| &file.run) {
        // One without a name may be any of them.
        let known = models.entry(policy.clone()).or_default();
        known.extend(Some(model.clone()).filter(|model| !model.is_empty()));
    }
    for HarnessRun { policy, model, .. } in files.iter_mut().map(|file| &mut file.run) {
        if !model.is_empty() && models[policy].len() > 1 {
            *policy = format!("{policy} of {model}");
        }
    }
}

/// Rows from items where every policy has them, otherwise from the scores of tasks.
fn rows(tasks: &BTreeMap<(String, String), Task>, policies: &[String]) -> Vec<Row> {
    let names: BTreeSet<&String> = tasks.keys().map(|(name, _)| name).collect();
    let of_task = |name: &str| -> Option<Vec<&Task>> {
        policies.iter().map(|policy| tasks.get(&(name.to_owned(), policy.clone()))).collect()
    };
    let has_items = |name: &str| of_task(name).is_some_and(|of| of.iter().all(|task| !task.items.is_empty()));
    let paired: BTreeSet<&String> = names.iter().copied().filter(|name| has_items(name)).collect();
    let of_items = tasks.iter().filter(|((name, _), _)| paired.contains(name));
    let items = of_items.flat_map(|((name, policy), task)| {
        task.items.iter().map(move |(id, scores)| Scored { policy, id, category: name, scores })
    });
    let mut rows = summarise(items, policies);
    if let [only] = paired.iter().collect::<Vec<_>>()[..] {
        rows.iter_mut().for_each(|row| row.category = Some((*only).clone()));
    }
    for name in names {
        let Some(of_policies) = of_task(name) else { continue };
        for metric in of_policies[0].totals.keys() {
            let is_there = |row: &Row| row.metric == *metric && row.category.as_ref() == Some(name);
            let totals: Option<Vec<&Total>> =
                of_policies.iter().map(|task| task.totals.get(metric)).collect();
            let Some(totals) = totals.filter(|_| !rows.iter().any(is_there)) else { continue };
            let cell = |(index, total): (usize, &&Total)| Cell {
                policy: policies[index].clone(),
                score: total.score,
                difference: (index > 0).then(|| total.less(totals[0])),
            };
            rows.push(Row {
                category: Some(name.clone()),
                metric: metric.clone(),
                items: of_policies.iter().map(|task| task.count).min().unwrap_or(0),
                pairing: Pairing::Unpaired,
                cells: totals.iter().enumerate().map(cell).collect(),
            });
        }
    }
    rows.sort_by(|a, b| (&a.metric, &a.category).cmp(&(&b.metric, &b.category)));
    rows
}

/// The result files in a folder and in folders beneath it, `levels` deep.
fn result_files(folder: &Path, levels: usize, found: &mut Vec<PathBuf>) -> Result<()> {
    let cannot = |error: &std::io::Error| Error::io("read", folder, error);
    for entry in std::fs::read_dir(folder).map_err(|error| cannot(&error))? {
        let entry = entry.map_err(|error| cannot(&error))?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        // Links are not followed, so that there is no way round in circles.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if levels > 0 {
                result_files(&path, levels - 1, found)?;
            }
        } else if name.starts_with("results_") && name.ends_with(".json") {
            found.push(path);
        }
    }
    Ok(())
}

/// A `results_DATE.json` with the samples beside it.
struct ResultFile {
    run: HarnessRun,
    version: String,
    tasks: BTreeMap<String, Task>,
    left_out: Vec<String>,
}

/// A task of a run.
#[derive(Debug, Clone, Default)]
struct Task {
    /// Items that have run.
    count: usize,
    /// By metric.
    totals: BTreeMap<String, Total>,
    /// Each item's scores, where they were logged; items of the same task and content have the same id.
    items: Vec<(String, BTreeMap<String, f64>)>,
}

/// A task's score by a metric.
#[derive(Debug, Clone, Copy)]
struct Total {
    score: f64,
    /// NaN where there is none.
    standard_error: f64,
}

impl Total {
    /// The difference from another, of independent samples.
    fn less(&self, other: &Self) -> Difference {
        let mean = self.score - other.score;
        let half = NORMAL_95 * self.standard_error.hypot(other.standard_error);
        Difference { mean, lower95: mean - half, upper95: mean + half }
    }
}

/// What is read of a result file.
#[derive(Deserialize)]
struct Content {
    results: BTreeMap<String, Map<String, Value>>,
    /// Tasks, without the groups that `results` has, too.
    configs: BTreeMap<String, Value>,
    config: Config,
    #[serde(default, rename = "n-samples")]
    samples: BTreeMap<String, Samples>,
    #[serde(default)]
    higher_is_better: BTreeMap<String, BTreeMap<String, Option<bool>>>,
    #[serde(default)]
    lm_eval_version: String,
    #[serde(default)]
    model_name: Option<String>,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    model: Value,
    #[serde(default)]
    model_args: Value,
}

#[derive(Default, Deserialize)]
struct Samples {
    effective: usize,
}

/// What is read of a line of a samples file.
#[derive(Deserialize)]
struct Sample {
    doc_id: Value,
    #[serde(default)]
    doc_hash: String,
    #[serde(default)]
    filter: Option<String>,
    #[serde(flatten)]
    other: BTreeMap<String, Value>,
}

impl ResultFile {
    fn read(path: &Path) -> Result<Self> {
        let bytes = layerscope_files::read(path).map_err(|error| Error::io("read", path, &error))?;
        let content: Content = serde_json::from_slice(&without_nan(&bytes)).map_err(|error| {
            Error::input(format!("{} is no result file of lm-evaluation-harness ({error})", path.display()))
        })?;
        let (policy, model) = content.config.policy_and_model(content.model_name.as_deref());
        let file = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut left_out = vec![];
        let mut tasks = BTreeMap::new();
        for (name, figures) in &content.results {
            if !content.configs.contains_key(name) {
                continue;
            }
            let higher = content.higher_is_better.get(name);
            let mut task = Task {
                count: content.samples.get(name).map_or(0, |samples| samples.effective),
                ..Task::default()
            };
            for (key, value) in figures {
                let (Some((metric, filter)), Some(score)) = (key.split_once(','), value.as_f64()) else {
                    continue;
                };
                if metric.ends_with("_stderr") {
                    continue;
                }
                let is_score = higher.and_then(|of| of.get(metric).copied().flatten()) != Some(false);
                if !is_score || !(0.0..=1.0).contains(&score) {
                    left_out.push(format!("{} of {name}", metric_name(metric, filter)));
                    continue;
                }
                let error = figures.get(&format!("{metric}_stderr,{filter}")).and_then(Value::as_f64);
                let total = Total { score, standard_error: error.unwrap_or(f64::NAN) };
                task.totals.insert(metric_name(metric, filter), total);
            }
            if let Some(samples) = samples_beside(path, name) {
                task.items = items(&samples, name, &task.totals)?;
            }
            tasks.insert(name.clone(), task);
        }
        let run = HarnessRun { file, policy, model, tasks: tasks.keys().cloned().collect() };
        Ok(Self { run, version: content.lm_eval_version, tasks, left_out })
    }
}

impl Config {
    /// The policy that answered, and the model's name.
    fn policy_and_model(&self, model_name: Option<&str>) -> (String, String) {
        let class = self.model.as_str().unwrap_or("unknown").to_owned();
        let argument = |name: &str| match &self.model_args {
            Value::Object(arguments) => arguments.get(name)?.as_str().map(str::to_owned),
            Value::String(text) => {
                let mut pairs = text.split(',').filter_map(|pair| pair.split_once('='));
                pairs.find(|(key, _)| *key == name).map(|(_, value)| value.to_owned())
            }
            _ => None,
        };
        if class == "layerscope" {
            let policy =
                argument("policy").map_or_else(|| "full".into(), |policy| policy.replace("%2C", ","));
            return (policy, argument("model").unwrap_or_default());
        }
        let model = argument("model").or_else(|| argument("pretrained"));
        let model = model.or(model_name.map(str::to_owned)).unwrap_or_default();
        match model.split_once('@') {
            Some((model, policy)) if class.ends_with("completions") => (policy.to_owned(), model.to_owned()),
            _ => (class, model),
        }
    }
}

/// A metric's name, with that of its filter where there is one.
fn metric_name(metric: &str, filter: &str) -> String {
    if filter == "none" { metric.to_owned() } else { format!("{metric} ({filter})") }
}

/// The samples of a task that were logged with a result file.
fn samples_beside(results: &Path, task: &str) -> Option<PathBuf> {
    let (_, date) = results.file_stem()?.to_str()?.rsplit_once('_')?;
    let path = results.with_file_name(format!("samples_{task}_{date}.jsonl"));
    path.exists().then_some(path)
}

/// The scores of each item. A metric that is no score of 0 to 1 of each item is not among them.
fn items(
    path: &Path,
    task: &str,
    totals: &BTreeMap<String, Total>,
) -> Result<Vec<(String, BTreeMap<String, f64>)>> {
    let file = layerscope_files::open(path).map_err(|error| Error::io("read", path, &error))?;
    let mut found: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for (index, line) in BufReader::new(file).split(b'\n').enumerate() {
        let line = line.map_err(|error| Error::io("read", path, &error))?;
        if line.trim_ascii().is_empty() {
            continue;
        }
        let sample: Sample = serde_json::from_slice(&without_nan(&line)).map_err(|error| {
            Error::input(format!(
                "{} line {} is no sample of lm-evaluation-harness ({error})",
                path.display(),
                index + 1
            ))
        })?;
        let filter = sample.filter.as_deref().unwrap_or("none");
        let scores = found.entry(format!("{task} {} {}", sample.doc_id, sample.doc_hash)).or_default();
        for (metric, value) in &sample.other {
            let name = metric_name(metric, filter);
            let value = value.as_f64().or(value.as_bool().map(f64::from));
            let value = value.filter(|value| (0.0..=1.0).contains(value));
            if let Some(value) = value.filter(|_| totals.contains_key(&name)) {
                scores.insert(name, value);
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// JSON as Python writes it, with null for NaN and infinities, which JSON does not have.
fn without_nan(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len());
    let (mut in_text, mut at) = (false, 0);
    while let Some(&byte) = json.get(at) {
        let number =
            [&b"NaN"[..], b"-Infinity", b"Infinity"].into_iter().find(|name| json[at..].starts_with(name));
        match (in_text, byte, number) {
            (false, _, Some(name)) => {
                out.extend_from_slice(b"null");
                at += name.len();
                continue;
            }
            (true, b'\\', _) => {
                out.extend_from_slice(&json[at..json.len().min(at + 2)]);
                at += 2;
                continue;
            }
            (_, b'"', _) => in_text = !in_text,
            _ => {}
        }
        out.push(byte);
        at += 1;
    }
    out
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    const DATE: &str = "2026-01-02T03-04-05.678900";

    /// A result file of one task under a policy, and its samples where `scores` has some.
    fn write(folder: &Path, policy: &str, accuracy: f64, scores: &[f64]) {
        std::fs::create_dir_all(folder).unwrap();
        let results = json!({
            "results": {"quiz": {"alias": "quiz", "acc,none": accuracy, "acc_stderr,none": 0.1, "ppl,none": 7.5,
                "loss,none": 0.5, "em,strict": accuracy, "em_stderr,strict": "N/A"},
                "group": {"acc,none": 1.0}},
            "configs": {"quiz": {}},
            "config": {"model": "layerscope", "model_args": {"policy": policy, "model": "tiny"}},
            "n-samples": {"quiz": {"original": 9, "effective": 4}},
            "higher_is_better": {"quiz": {"acc": true, "loss": false, "em": null}},
            "lm_eval_version": "0.4.13",
        });
        std::fs::write(folder.join(format!("results_{DATE}.json")), results.to_string()).unwrap();
        if !scores.is_empty() {
            let line = |(index, score): (usize, &f64)| {
                json!({"doc_id": index, "doc_hash": "ab", "filter": "none", "metrics": ["acc"], "acc": score})
                    .to_string()
                    + "\n"
            };
            let lines: String = scores.iter().enumerate().map(line).collect();
            std::fs::write(folder.join(format!("samples_quiz_{DATE}.jsonl")), lines).unwrap();
        }
    }

    #[test]
    fn items_are_paired_and_tasks_without_items_have_intervals_of_their_standard_errors() {
        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("b"), "full", 0.75, &[1.0, 1.0, 1.0, 0.0]);
        write(&folder.path().join("a"), "speed:4", 0.5, &[1.0, 0.0, 1.0, 0.0]);
        let scores = read_harness(&[folder.path().to_owned()]).unwrap();
        assert_eq!(scores.policies, ["full", "speed:4"]);
        assert_eq!(scores.left_out, ["loss of quiz", "ppl of quiz"]);
        let [acc, em] = &scores.rows[..] else { panic!("{:?}", scores.rows) };
        assert_eq!((acc.metric.as_str(), acc.items, acc.pairing), ("acc", 4, Pairing::Paired));
        assert_eq!(acc.category.as_deref(), Some("quiz"));
        assert_eq!((acc.cells[0].score, acc.cells[1].score), (0.75, 0.5));
        assert_eq!(acc.cells[1].difference.unwrap().mean, -0.25);
        assert_eq!((em.metric.as_str(), em.items, em.pairing), ("em (strict)", 4, Pairing::Unpaired));
        let difference = em.cells[1].difference.unwrap();
        assert!(difference.mean == -0.25 && difference.lower95.is_nan());
        scores.write(folder.path()).unwrap();
        let read = HarnessScores::read(&folder.path().join(HARNESS)).unwrap();
        assert_eq!(read.rows[0], scores.rows[0]);

        let folder = tempfile::tempdir().unwrap();
        write(&folder.path().join("a"), "full", 0.75, &[1.0]);
        write(&folder.path().join("b"), "speed:4", 0.5, &[]);
        let scores = read_harness(&[folder.path().join("b"), folder.path().join("a")]).unwrap();
        assert_eq!(scores.policies, ["speed:4", "full"]);
        let difference = scores.rows[0].cells[1].difference.unwrap();
        assert_eq!((scores.rows[0].pairing, difference.mean), (Pairing::Unpaired, 0.25));
        assert!((difference.upper95 - 0.25 - 1.96 * 0.1 * 2f64.sqrt()).abs() < 1e-5);
    }

    #[test]
    fn models_under_one_policy_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        for (name, accuracy) in [("m", 0.75), ("m:base", 0.5)] {
            let of_model = folder.path().join(name.replace(':', "-"));
            write(&of_model, "full", accuracy, &[]);
            let file = of_model.join(format!("results_{DATE}.json"));
            let text = std::fs::read_to_string(&file).unwrap().replace("\"tiny\"", &format!("{name:?}"));
            std::fs::write(&file, text).unwrap();
        }
        let scores = read_harness(&[folder.path().to_owned()]).unwrap();
        assert_eq!(scores.policies, ["full of m", "full of m:base"]);
        assert_eq!(scores.rows[0].cells[1].difference.unwrap().mean, -0.25);
    }

    #[test]
    fn a_run_says_under_what_it_ran() {
        let of = |model: &str, arguments: Value| {
            let config = Config { model: model.into(), model_args: arguments };
            let (policy, model) = config.policy_and_model(Some("name"));
            format!("{policy} / {model}")
        };
        assert_eq!(of("layerscope", json!("base_url=http://x,policy=snapkv:0.5%2C8")), "snapkv:0.5,8 / ");
        assert_eq!(of("layerscope", Value::Null), "full / ");
        let arguments = json!({"model": "m@speed:24+bos", "base_url": "http://x"});
        assert_eq!(of("local-completions", arguments), "speed:24+bos / m");
        assert_eq!(of("local-completions", json!("model=m")), "local-completions / m");
        assert_eq!(of("hf", json!("pretrained=a/b,dtype=float32")), "hf / a/b");
        assert_eq!(of("vllm", Value::Null), "vllm / name");
    }

    #[test]
    fn numbers_that_json_does_not_have_are_null() {
        let fixed = without_nan(br#"{"a": NaN, "b\"NaN": [-Infinity, Infinity], "NaN": "\\"}"#);
        assert_eq!(fixed, br#"{"a": null, "b\"NaN": [null, null], "NaN": "\\"}"#);
        assert_eq!(without_nan(b"\"\\"), b"\"\\");
    }

    #[test]
    fn what_cannot_be_read_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let read = |path: &Path| read_harness(&[path.to_owned()]).unwrap_err().to_string();
        assert!(read(folder.path()).contains("--output_path"));
        assert!(read(&folder.path().join("absent.json")).contains("absent.json"));
        let file = folder.path().join("results_x.json");
        std::fs::write(&file, "{\"results\": {}}").unwrap();
        assert!(read(&file).contains("results_x.json is no result file"));
        std::fs::remove_file(&file).unwrap();
        write(folder.path(), "full", 0.75, &[1.0]);
        std::fs::write(folder.path().join(format!("samples_quiz_{DATE}.jsonl")), "\n{}\n").unwrap();
        assert!(read(folder.path()).contains("line 2 is no sample"));
        let damaged = folder.path().join(HARNESS);
        std::fs::write(&damaged, "{}").unwrap();
        assert!(
            HarnessScores::read(&damaged).unwrap_err().to_string().contains("run layerscope lm-eval again")
        );
    }
}
