//! A small run with everything that can lie in a run folder, recorded once.

use crate::scratch;
use layerscope_bench::{BenchPlan, BenchReport, Machine, PromptTokens};
use layerscope_cutoff::recommend::FrontierPoint;
use layerscope_cutoff::search::SearchOptions;
use layerscope_diagnostics::patching::{PatchDirection, PatchSite};
use layerscope_diagnostics::prompts::{PromptFile, parse_prompts, prompts_sha256};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::run::{Run, SearchOrder};
use layerscope_engine::{Device, Ends, Interrupt, Model, ModelSource, Policy, Result, WeightsPrecision};
use layerscope_recording::Recorded;
use layerscope_recording::continuations::continue_failure_cases;
use layerscope_recording::patching::{PatchRequest, patch_prompts};
use layerscope_recording::policies::record_policies;
use layerscope_recording::sets::search_sets;
use layerscope_recording::spans::{SpanRequest, SpanTokens, remove_span};
use std::path::Path;
use std::sync::LazyLock;
use tempfile::TempDir;

/// The embedded model.
pub(crate) const MODEL: &[u8] = include_bytes!("../../fixtures/tiny/layerscope-tiny.gguf");
const PROMPTS: &[u8] = br#"{"id": "a", "category": "facts", "prompt": "The lake is Mundanra. The song is Xanormi. What is the lake?"}
{"id": "b", "category": "facts", "prompt": "The mouse lives in Osirnia. Where does the mouse live?", "span": "The mouse lives in Osirnia."}
{"id": "c", "prompt": "One two three", "answer": " four five"}
{"id": "d", "prompt": "Anna has a red box. Who has the red box?"}
{"id": "e", "prompt": "Carl has a red box. Who has the red box?"}"#;
const NEW_TOKENS: usize = 4;

/// Files of a run folder by name, manifest first.
static FILES: LazyLock<Vec<(String, Vec<u8>)>> =
    LazyLock::new(|| record().expect("a run of the embedded model"));

/// The files of the run; a number stands for the same file in every process.
pub(crate) fn files() -> &'static [(String, Vec<u8>)] {
    &FILES
}

/// A file of the run.
pub(crate) fn file(name: &str) -> &'static [u8] {
    let file = FILES.iter().find(|(known, _)| known == name);
    file.map(|(_, bytes)| bytes.as_slice()).unwrap_or_else(|| panic!("the run has a {name}"))
}

/// A folder of the run with other files in the places of some.
pub(crate) fn with<'a>(changed: &[(&'a str, &'a [u8])]) -> TempDir {
    let unchanged = FILES.iter().filter(|(name, _)| changed.iter().all(|(other, _)| other != name));
    let unchanged = unchanged.map(|(name, bytes)| (name.as_str(), bytes.as_slice()));
    scratch::folder(unchanged.chain(changed.iter().copied()))
}

fn record() -> Result<Vec<(String, Vec<u8>)>> {
    let scratch = tempfile::tempdir().expect("a folder for temporary files");
    let folder = scratch.path().join("run");
    let interrupt = Interrupt::new(false);
    let model = model()?;
    let prompts = PromptFile {
        name: "prompts.jsonl".to_owned(),
        sha256: prompts_sha256(PROMPTS),
        prompts: parse_prompts("prompts.jsonl", PROMPTS)?,
    };
    layerscope_recording::record(
        &model,
        &prompts,
        Recorded::steps(NEW_TOKENS),
        &folder,
        &[],
        &interrupt,
        &mut |_| {},
    )?;
    let run = Run::open(&folder)?;
    for cutoff in [1, 2] {
        let point = FrontierPoint { cutoff, anchor: Anchor::Bos };
        continue_failure_cases(&run, &model, point, 2, &interrupt, &mut |_| {})?;
    }
    let request = SpanRequest { prompt_id: "b", tokens: SpanTokens::At(1..5), answer: None, layers: None };
    remove_span(&run, &model, &request, &interrupt, &mut |_| {})?;
    let policies = ["speed:1+bos", "lazyllm"].map(|name| Policy::parse_for(name, model.config()));
    let policies: Vec<Policy> = policies.into_iter().collect::<Result<_>>()?;
    record_policies(&run, &model, &policies, &interrupt, &mut |_| {})?;
    let options = SearchOptions {
        heads: true,
        order: SearchOrder::Joint,
        ends: Ends { first: 1, last: 0 },
        cutoff: None,
        worst_kl: 0.5,
        at_once: 4,
    };
    search_sets(&run, &model, &options, Some(2), &interrupt, &mut |_| {})?;
    let request = |site| PatchRequest {
        site,
        direction: PatchDirection::Denoising,
        metric: None,
        answer: None,
        wrong: None,
        layers: None,
        positions: None,
    };
    for site in [PatchSite::ResidPre, PatchSite::Head] {
        patch_prompts(&run, &model, ["d", "e"], &request(site), &interrupt, &mut |_| {})?;
    }
    let bench = serde_json::to_vec(&bench(&model, &interrupt)?).expect("JSON");
    let mut files = read(&folder);
    files.push((layerscope_bench::FILE_NAME.to_owned(), bench));
    files.sort();
    Ok(files)
}

fn model() -> Result<Model> {
    let source = ModelSource::embedded("layerscope-tiny", MODEL);
    Model::load(&source, WeightsPrecision::Native, &Device::Cpu, &mut |_, _| Ok(()))
}

fn bench(model: &Model, interrupt: &Interrupt) -> Result<BenchReport> {
    let layers = model.config().layers;
    let policies = ["full", "speed:2", "lazyllm", "sliminfer"].map(|name| Policy::parse(name, layers));
    let plan = BenchPlan {
        policies: policies.into_iter().collect::<Result<_>>()?,
        lengths: vec![24],
        new_tokens: 2,
        repeats: 2,
        statistics: false,
    };
    let prompt = PromptTokens::of_text(&model.tokenizer, "The lake of Belelland is Mundanra.")?;
    let measured = layerscope_bench::measure(&model.decoder, &plan, &prompt, interrupt, &mut |_| {})?;
    Ok(BenchReport {
        results: measured.results,
        model: model.name.clone(),
        weights: WeightsPrecision::Native,
        weight_bytes: model.decoder.weight_bytes() as u64,
        layers,
        machine: Machine::with(model.decoder.device()),
        layerscope: "0.1.0".to_owned(),
        interrupted: false,
        notes: vec![],
    })
}

/// The files of a folder, without locks.
fn read(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = std::fs::read_dir(folder).expect("the run folder").flatten();
    let files = files.filter(|entry| entry.path().is_file()).map(|entry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        (name, std::fs::read(entry.path()).expect("a file of the run"))
    });
    files.filter(|(_, bytes)| !bytes.is_empty()).collect()
}
