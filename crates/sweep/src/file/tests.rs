//! Tests of reading `sweep.toml`.

use super::*;
use crate::jobs::Layout;
use proptest::prelude::*;

/// A folder with two models, two prompt sets and an adapter.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a.gguf", "b.gguf", "questions.jsonl", "chats.jsonl", "adapter"] {
        std::fs::write(folder.path().join(name), "").expect("written");
    }
    folder
}

fn read(text: &str) -> std::result::Result<Sweep, String> {
    let folder = folder();
    let file = folder.path().join("sweep.toml");
    std::fs::write(&file, text).expect("written");
    Sweep::read(&file).map_err(|error| {
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    })
}

const SMALL: &str = "models = [\"a.gguf\"]\nprompts = [\"questions.jsonl\"]\n";

#[test]
fn a_file_with_everything() {
    let sweep = read(
        r#"
models = ["a.gguf", "owner/name:Q4_K_M"]
prompts = ["questions.jsonl", "chats.jsonl"]
policies = ["streaming:64", "speed:4+bos+keep:0-1"]
max-new-tokens = 16
weights = "f32"
heads = "off"
device = "cpu"
shards = 3
out = "results"
runner = "slurm"
[[adapters]]
path = "adapter"
model = "a.gguf"
[judge]
tolerance = 0.2
criterion = "kl"
answers = 0.9
anchor = "none"
[local]
jobs = 2
threads = 1
devices = ["cuda:0", "cuda:1"]
[slurm]
options = ["--partition=gpu"]
setup = ["module load cuda"]
jobs = 8
[ray]
address = "auto"
workers = 2
cpus = 4
gpus = 0.5
"#,
    )
    .expect("a sweep");
    let names: Vec<&str> = sweep.cells.iter().map(|cell| cell.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "a@questions",
            "a@chats",
            "a+adapter@questions",
            "a+adapter@chats",
            "name-Q4_K_M@questions",
            "name-Q4_K_M@chats"
        ]
    );
    assert!(sweep.cells[0].model.ends_with("a.gguf") && Path::new(&sweep.cells[0].model).is_absolute());
    assert_eq!(sweep.cells[4].model, "owner/name:Q4_K_M");
    let jobs = sweep.jobs();
    assert_eq!(jobs.len(), 18);
    assert_eq!((jobs[4].number, jobs[4].name.as_str()), (5, "a@chats.shard-2-of-3"));
    let layout = Layout::new(Path::new("/out")).expect("a layout");
    let arguments = sweep.arguments(&jobs[7], &layout).join(" ");
    for part in [
        "record /",
        "--max-new-tokens 16 --weights f32 --heads off --failure-cases 0",
        "--policy streaming:64 --policy speed:4+bos+keep:0-1 --adapter /",
        "--device cpu --shard 2/3 --out /out/shards/a+adapter@questions",
    ] {
        assert!(arguments.contains(part), "{part:?} is not in {arguments}");
    }
    let Options { tolerance, anchor, criterion, kept } = sweep.judge.options();
    assert_eq!((tolerance, anchor, criterion, kept), (0.2, Anchor::None, Criterion::Kl, 0.9));
    assert_eq!(sweep.runner, Some(Runner::Slurm));
}

#[test]
fn a_small_file_has_the_defaults_of_record() {
    let sweep = read(SMALL).expect("a sweep");
    assert_eq!((sweep.settings.max_new_tokens, sweep.settings.weights, sweep.shards), (32, "native", 1));
    assert_eq!(sweep.judge.options(), Options::default());
    let jobs = sweep.jobs();
    assert_eq!(jobs.iter().map(|job| job.name.as_str()).collect::<Vec<_>>(), ["a@questions"]);
    let arguments = sweep.arguments(&jobs[0], &Layout::new(Path::new("/out")).expect("a layout")).join(" ");
    assert!(
        arguments.ends_with("--out /out/runs/a@questions") && !arguments.contains("--shard"),
        "{arguments}"
    );
}

#[test]
fn what_is_wrong_is_said_with_line_and_mend() {
    let cases = [
        ("modles = []\n", "line 1: unknown field `modles`, expected one of `models`"),
        ("models = [\"a.gguf\"]\n", "missing field `prompts`"),
        ("models = []\nprompts = [\"questions.jsonl\"]", "line 1: models is empty; name a path"),
        ("models = [\"a.gguf\"]\nprompts = [\n  \"nowhere.jsonl\"]", "line 3: there is no"),
        ("models = [\"a.gguf\", \"a.gguf\"]\nprompts = [\"questions.jsonl\"]", "in models twice; remove one"),
        ("models = [\"-a\"]\nprompts = [\"questions.jsonl\"]", "\"-a\" is no entry of models"),
        ("models = 3\nprompts = []", "line 1: invalid type: integer `3`"),
        ("models = [\"a.gguf\"\n", "line"),
    ];
    for (text, said) in cases {
        let sentence = read(text).expect_err(text);
        assert!(
            sentence.contains("sweep.toml, line ") && sentence.contains(said),
            "{said:?} is not in {sentence}"
        );
        assert!(!sentence.contains('\n'), "{sentence}");
    }
    let added = [
        ("policies = [\"sped:4\"]", "line 3: \"sped:4\" is no policy; known are full, speed"),
        ("policies = [\"full\", \"full\"]", "named twice"),
        ("max-new-tokens = 0", "line 3: max-new-tokens is 0; give a number from 1 on"),
        ("max-new-tokens = -1", "line 3: invalid value: integer `-1`"),
        ("weights = \"q4\"", "line 3: unknown variant `q4`, expected `native` or `f32`"),
        ("shards = 0", "line 3: shards is 0"),
        ("shards = 100000", "from 1 to 10000"),
        ("runner = \"kubernetes\"", "expected one of `local`, `slurm`, `ray`"),
        ("[judge]\ntolerance = -1.0", "judge.tolerance is -1; give nats from 0 on"),
        ("[judge]\nanswers = 2.0", "judge.answers is 2; give a share from 0 to 1"),
        ("[judge]\nanswer = 2.0", "line 4: unknown field `answer`"),
        ("[judge]\ncriterion = \"taste\"", "unknown variant `taste`"),
        ("[[adapters]]\npath = \"nowhere\"", "line 4: there is no"),
        ("[[adapters]]\npath = \"adapter\"\nmodel = \"b.gguf\"", "line 5: \"b.gguf\" is none of the models"),
        ("device = \"gpu\"", "line 3: device `gpu` is none of auto, cpu, cuda"),
        ("[local]\njobs = 0", "at least 1"),
        ("[local]\ndevices = [\"gpu\"]", "device `gpu` is none of"),
        ("[slurm]\noptions = [\"partition\"]", "no option of sbatch"),
        ("[slurm]\noptions = [\"--array=1-3\"]", "the array is the sweep's jobs"),
        ("[ray]\nworkers = 0", "at least 1"),
    ];
    for (text, said) in added {
        let sentence = read(&format!("{SMALL}{text}\n")).expect_err(text);
        assert!(sentence.contains(said), "{said:?} is not in {sentence}");
    }
    let several = "models = [\"a.gguf\", \"b.gguf\"]\nprompts = [\"questions.jsonl\"]\n[[adapters]]\npath = \"adapter\"\n";
    let sentence = read(several).expect_err("which model?");
    assert!(sentence.contains("line 4: an adapter is of one of the models; add `model ="), "{sentence}");
}

#[test]
fn a_done_job_is_done_until_something_changes() {
    let folder = folder();
    let file = folder.path().join("sweep.toml");
    let read = |text: &str| {
        std::fs::write(&file, text).expect("written");
        Sweep::read(&file).expect("a sweep")
    };
    let sweep = read(SMALL);
    let job = &sweep.jobs()[0];
    let layout = Layout::new(&folder.path().join("out")).expect("a layout");
    layout.create().expect("folders");
    assert!(!sweep.is_done(job, &layout).expect("known"));
    sweep.note_done(job, &layout, sweep.recorded(job).expect("known")).expect("noted");
    // Its run folder is missing.
    assert!(!sweep.is_done(job, &layout).expect("known"));
    std::fs::create_dir(layout.recording(&sweep, job)).expect("a folder");
    assert!(sweep.is_done(job, &layout).expect("known"));
    // Where it runs changes nothing; what it records does.
    assert!(read(&format!("{SMALL}device = \"cpu\"\n")).is_done(job, &layout).expect("known"));
    assert!(!read(&format!("{SMALL}max-new-tokens = 4\n")).is_done(job, &layout).expect("known"));
    assert!(!read(&format!("{SMALL}policies = [\"streaming:8\"]\n")).is_done(job, &layout).expect("known"));
    std::fs::write(folder.path().join("questions.jsonl"), "more").expect("written");
    assert!(!sweep.is_done(job, &layout).expect("known"));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".*", models in proptest::collection::vec(".{0,12}", 0..4)) {
        let _ = Sweep::parse(Path::new("/folder/sweep.toml"), Path::new("sweep.toml"), &text);
        let written = format!("models = {models:?}\nprompts = [\"/dev/null\"]\n{text}");
        let _ = Sweep::parse(Path::new("/folder/sweep.toml"), Path::new("sweep.toml"), &written);
    }
}
