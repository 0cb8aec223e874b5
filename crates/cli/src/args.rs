//! The command-line arguments.

mod sweep;

pub(crate) use sweep::SweepArguments;

use clap::{Args, Parser, Subcommand, ValueEnum};
use layerscope_cutoff::budget::KvBudget;
use layerscope_cutoff::recommend::{Criterion, Options};
use layerscope_cutoff::{DEFAULT_FAILURE_CASES, DEFAULT_KEPT, DEFAULT_TOLERANCE};
use layerscope_diagnostics::patching::{PatchMetric, PatchSite};
use layerscope_diagnostics::record::Anchor;
use layerscope_diagnostics::run::SearchOrder;
use layerscope_engine::{DeviceChoice, KvPrecision, WeightsPrecision};
use layerscope_recording::Shard;
use std::ops::Range;
use std::path::PathBuf;

const EXAMPLES: &str = "Examples:
  layerscope demo
  layerscope record model.gguf --prompts prompts.jsonl --out run
  layerscope recommend run
  layerscope view run
  layerscope report run -o report.html
  layerscope generate model.gguf --policy speed:24+bos --prompt 'Why is the sky blue?'
  layerscope bench model.gguf --policies full,speed:24+bos --lengths 1k,8k --quality";

/// How deep does a language model need its prompt to go?
///
/// Records layer by layer how generated tokens read the prompt, computes the exact cost of every cutoff, and recommends one.
#[derive(Debug, Parser)]
#[command(name = "layerscope", version, after_help = EXAMPLES, max_term_width = 110)]
pub(crate) struct Arguments {
    /// Threads that compute; one per physical core where none are given
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "For every command")]
    pub(crate) threads: Option<u16>,
    /// Keep each of them on a physical core of its own, on a Linux machine that does nothing else
    #[arg(long, global = true, help_heading = "For every command")]
    pub(crate) pin: bool,
    /// Show no progress; warnings and errors are told
    #[arg(long, short, global = true, help_heading = "For every command")]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record the embedded model on bundled prompts: the whole tool in one command, no download
    #[command(after_help = "Example:\n  layerscope demo --out demo-run")]
    Demo(DemoArguments),
    /// Record a model on a prompt file into a run folder; an interrupted run resumes
    #[command(
        after_help = "Example:\n  layerscope record model.gguf --prompts prompts.jsonl --max-new-tokens 32 --out run\n\nExample: attention under a policy beside the full model's, in the same folder:\n  layerscope record model.gguf --prompts prompts.jsonl --max-new-tokens 32 --out run --policy speed:24+bos\n\nA line of the prompt file:\n  {\"id\": \"a1\", \"category\": \"retrieval\", \"prompt\": \"…\"}\nInstead of \"prompt\" a line may have \"messages\": [{\"role\", \"content\"}], and an \"answer\" to be followed\ninstead of the model's own continuation. \"expected\" is what a right answer contains: whether each cutoff keeps it is\nrecorded, too. A \"span\", a part of the prompt's text, is what `layerscope span-ablation` asks about."
    )]
    Record(RecordArguments),
    /// Merge runs of one model and prompt file, such as the shards of several machines
    #[command(
        after_help = "Example: four machines record a share each, and one merges them:\n  layerscope record model.gguf --prompts prompts.jsonl --shard 2/4 --out shards\n  layerscope merge-runs shards --out run\n\nExample: an array of Slurm:\n  sbatch --array=1-4 --wrap 'layerscope record model.gguf --prompts prompts.jsonl --shard auto --out shards'\n\nMerging again adds what has been recorded since."
    )]
    MergeRuns(MergeRunsArguments),
    /// Record models, with adapters, on prompt sets under policies, and rank them: which model, at which cutoff
    #[command(after_help = sweep::EXAMPLES)]
    Sweep(SweepArguments),
    /// Print a run's figures by layer
    #[command(after_help = "Example:\n  layerscope show run --by-category")]
    Show(ShowArguments),
    /// Recommend a cutoff from a run, with reasons
    #[command(
        after_help = "Example:\n  layerscope recommend run --tolerance 0.05\n\nExample: no answer may be lost:\n  layerscope recommend run --answers 1\n\nExample: what an adapter has changed:\n  layerscope recommend adapted-run --before run\n\nExample: the best policy that keeps half of the KV, after layerscope search run:\n  layerscope recommend run --kv-budget 50%"
    )]
    Recommend(RecommendArguments),
    /// Ask from which layer on a part of a recorded prompt may vanish
    #[command(
        name = "span-ablation",
        visible_alias = "diffusion",
        after_help = "Examples:\n  layerscope span-ablation run --prompt a1 --span 'The key is under the mat.'\n  layerscope span-ablation run --prompt a1 --tokens 120-139 --answer mat\n\nExample: every prompt that names a span, as needle prompts do:\n  layerscope needle model.gguf --lengths 1k --write-prompts needles.jsonl\n  layerscope record model.gguf --prompts needles.jsonl --out run\n  layerscope span-ablation run\n\nWhat is found is kept in the run folder's spans.parquet, which `show --json`, `report` and `view` read."
    )]
    Diffusion(DiffusionArguments),
    /// Patch activations of one prompt's run into another's: which layers, positions and heads carry the answer
    #[command(
        after_help = "Examples:\n  layerscope patch model.gguf --raw --clean 'The Eiffel Tower is in the city of' --corrupted 'The Space Needle is in the city of' --answer ' Paris' --wrong ' Seattle'\n  layerscope patch model.gguf --raw --clean 'A: 2+3=' --corrupted 'A: 2+4=' --what head --positions last --out heads.svg\n\nExample: two recorded prompts:\n  layerscope patch run --clean a1 --corrupted a2\n\nBoth prompts must have as many tokens. An effect of 0 is the corrupted run, 1 the clean one. Of recorded prompts the map is kept in the run folder's patches.parquet, which `show`, `report` and `view` read."
    )]
    Patch(PatchArguments),
    /// Search the layers or KV heads that may forget the prompt: a set for every budget of KV
    #[command(
        after_help = "Examples:\n  layerscope search run\n  layerscope search run --units layers\n  layerscope search run --cutoff 26 --last 32\n\nWhat is found is kept in the run folder's sets.json, and any set is a policy:\n  layerscope generate model.gguf --policy keep:0-9+12.0-1+bos --prompt 'Hello'"
    )]
    Search(SearchArguments),
    /// Write a report that others can check: HTML, PDF, Markdown or JSON
    #[command(
        after_help = "Examples:\n  layerscope report run -o report.html\n  layerscope report run -o report.pdf -o report.json\n\nExample: two models, two precisions or two prompt sets side by side:\n  layerscope report before after -o comparison.html\n\nFigures measured by `layerscope bench MODEL --out run` are shown where the run folder has them."
    )]
    Report(ReportArguments),
    /// Generate text, with the full prompt or with a shallow prefill
    #[command(
        after_help = "Example:\n  layerscope generate model.gguf --policy speed:24+bos --prompt 'Why is the sky blue?'"
    )]
    Generate(GenerateArguments),
    /// Chat with a model under any policy: each answer says what it took in TTFT, TPOT and KV
    #[command(
        after_help = "Example:\n  layerscope chat model.gguf --policy speed:24+bos\n\nIn the chat, /policy NAME changes the policy and /again asks the last question anew, so that policies can be compared on it; /help\nlists all commands. Ctrl-C ends an answer, Ctrl-D the chat."
    )]
    Chat(ChatArguments),
    /// Measure time, memory, KV and quality of policies at prompt lengths, beside the cost model's predictions
    #[command(
        after_help = "Examples:\n  layerscope bench model.gguf --policies full,speed:24,speed:24+bos --lengths 1k,2k,4k,8k\n  layerscope bench model.gguf --policies full,speed:20,speed:24+bos --lengths 1k,4k --quality 8 --out run\n  layerscope bench --shape llama-3.1-8b --layers 4 --lengths 1k --out bench.parquet\n\nExample: with one repeat, to see how long it takes:\n  layerscope bench model.gguf --repeats 1 --lengths 1k"
    )]
    Bench(BenchArguments),
    /// Hide a number in long prompts and see which policies still find it
    #[command(
        after_help = "Example:\n  layerscope needle model.gguf --policies full,speed:20,speed:20+bos --lengths 512,1k,2k\n\nExample: only the prompts, for `layerscope record`:\n  layerscope needle model.gguf --lengths 1k --write-prompts needles.jsonl"
    )]
    Needle(NeedleArguments),
    /// Judge policies by tasks: choices by their likelihood, generated texts by their answers
    #[command(
        after_help = "Examples:\n  layerscope eval model.gguf --tasks tasks.jsonl --policies full,speed:24+bos\n  layerscope eval model.gguf --tasks fixtures/prompts/answers-held-out.jsonl --policies full,speed:24+bos --out run\n\nLines of the task file; a prompt file with answers is one, too:\n  {\"id\": \"q1\", \"category\": \"qa\", \"prompt\": \"…\", \"expected\": \"Paris\"}\n  {\"id\": \"m1\", \"prompt\": \"…\", \"choices\": [\" A\", \" B\"], \"answer\": 1}\n  {\"id\": \"s1\", \"prompt\": \"…\", \"answers\": [\"…\"], \"metric\": \"rouge_l\", \"stop\": [\"\\n\"], \"max_new_tokens\": 40}\nMetrics: contains (where none is given), exact_match, f1, rouge_l. \"few_shot\" is put before the prompt."
    )]
    Eval(EvalArguments),
    /// Compare policies by result files of lm-evaluation-harness
    #[command(
        after_help = "Examples:\n  layerscope lm-eval results\n  layerscope lm-eval results/full results/speed --out run\n\nlm_eval writes such files with --output_path; with --log_samples, policies are compared item by item. How to run it under a policy is in docs/serving.md."
    )]
    LmEval(LmEvalArguments),
    /// Serve a model to OpenAI's clients; every request names its policy: MODEL@speed:24+bos
    #[command(
        after_help = "Examples:\n  layerscope serve model.gguf\n  layerscope serve model.gguf --policy full --policy speed:24+bos --port 8000\n\nThen, where the model is called model:\n  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"model\": \"model@speed:24+bos\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'\n  curl http://127.0.0.1:8080/v1/score -d '{\"context\": \"The capital of France is\", \"continuations\": [\" Paris\", \" Rome\"], \"policy\": \"speed:24+bos\"}'\nEvery path and field is in docs/serving.md.\n\nExample: a viewer on another machine, over a tunnel of ssh:\n  LAYERSCOPE_API_KEY=key layerscope serve model.gguf --viewer\n  ssh -L 8080:127.0.0.1:8080 gpu-box\n  LAYERSCOPE_API_KEY=key layerscope view ws://127.0.0.1:8080/data/run"
    )]
    Serve(ServeArguments),
    /// Teach a model a cutoff or a set of KV heads: train an adapter towards what the full model says
    #[command(
        after_help = "Example:\n  layerscope adapt model.gguf --policy speed:22+bos --prompts prompts.jsonl --out adapter\n  layerscope generate model.gguf --prompt 'Hello' --policy speed:22+bos --adapter adapter"
    )]
    Adapt(AdaptArguments),
    /// Write a checkpoint with an adapter in its weights: a folder with safetensors, of the same types
    #[command(after_help = "Example:\n  layerscope merge checkpoint --adapter adapter --out merged")]
    Merge(MergeArguments),
    /// Search for each head the pattern that the policy `minference` reads in the prefill, and write them to a file
    #[command(
        after_help = "Example:\n  layerscope patterns model.gguf --tokens 512 --out heads.json\n  layerscope generate model.gguf --prompt-file long.txt --policy minference:heads=heads.json"
    )]
    Patterns(PatternsArguments),
    /// Open the viewer: on a run, on a model, or on the embedded model's run
    #[command(
        after_help = "Examples:\n  layerscope view\n  layerscope view run\n  layerscope view run --screenshot map.png --size 1600x1000 --view map\n  layerscope view ssh://gpu-box/data/run\n  LAYERSCOPE_API_KEY=key layerscope view ws://gpu-box:8080/data/run"
    )]
    View(ViewArguments),
    /// Run an engine for the viewer of another machine, which starts this by ssh
    Engine(EngineArguments),
    /// Write chosen activations to a safetensors file
    #[command(
        after_help = "Example:\n  layerscope capture model.gguf --prompt 'Hello' --hook 'blocks.*.hook_resid_post' --out activations.safetensors"
    )]
    Capture(CaptureArguments),
    /// List the models that can be loaded, and where they were found
    #[command(after_help = "Example:\n  layerscope models --json")]
    Models(ModelsArguments),
    /// Print what a model is: architecture, layers, windows, heads, bytes, memory for a context, chat template, BoS; one of the
    /// Hugging Face Hub is fetched first
    #[command(
        after_help = "Examples:\n  layerscope inspect model.gguf --context 32k\n  layerscope inspect google/gemma-3-270m-it --json"
    )]
    Inspect(InspectArguments),
    /// Print a completion script for a shell
    #[command(
        after_help = "Example:\n  layerscope completions bash > ~/.local/share/bash-completion/completions/layerscope"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages: one of the program and one of each command
    #[command(after_help = "Example:\n  layerscope man ~/.local/share/man/man1\n  man layerscope-record")]
    Man {
        /// Folder; made where there is none
        folder: PathBuf,
    },
}

/// A model and how it is loaded.
#[derive(Debug, Args)]
pub(crate) struct ModelArguments {
    /// GGUF file, folder with config.json, tokenizer.json and safetensors, name that `layerscope models` lists, or Hugging
    /// Face id: owner/name, owner/name@revision, owner/name:Q4_K_M, owner/name/file.gguf
    pub(crate) model: String,
    /// Precision of the weights: as the file has them, or dequantised to f32 for figures to be compared with others
    #[arg(long, value_enum, default_value_t = Weights::Native)]
    pub(crate) weights: Weights,
    /// Run the model as one of this family, whatever its file says: for a new model that is a known one but for its name
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<String>,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
}

/// Where a model runs.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct DeviceArguments {
    /// Where to run: auto (an NVIDIA GPU where there is one, else the CPU), cpu, cuda or cuda:1
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = device)]
    pub(crate) device: DeviceChoice,
}

fn device(name: &str) -> Result<DeviceChoice, String> {
    name.parse().map_err(|error: layerscope_engine::Error| error.to_string())
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Weights {
    Native,
    F32,
}

impl From<Weights> for WeightsPrecision {
    fn from(weights: Weights) -> Self {
        match weights {
            Weights::Native => Self::Native,
            Weights::F32 => Self::F32,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Run folder to write
    #[arg(long, default_value = "layerscope-demo")]
    pub(crate) out: PathBuf,
    /// Then teach the model a lower cutoff, two minutes, and show what that has changed
    #[arg(long, conflicts_with = "json")]
    pub(crate) adapt: bool,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Print one JSON object: the run as `show` and the recommendation as `recommend` print them
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    /// Prompt file, JSON Lines
    #[arg(long)]
    pub(crate) prompts: PathBuf,
    /// Decode steps per prompt
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_new_tokens: u32,
    /// Whether to measure what each KV head's reading of the prompt is worth: auto (where it costs less than the rest), on or off
    #[arg(long, value_enum, default_value_t = HeadsArgument::Auto)]
    pub(crate) heads: HeadsArgument,
    /// At the end, generate under the recommended cutoff from this many prompts that it changes most; 0 for none
    #[arg(long, default_value_t = DEFAULT_FAILURE_CASES)]
    pub(crate) failure_cases: usize,
    /// Record attention under this policy, too, along the same text; may be given several times. A folder that has the prompts
    /// gets the policy alone
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Vec<String>,
    /// Run folder to write or resume
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Record only a share of the prompts, such as 2/4, into a folder of its own within --out; auto takes the share of a task of Slurm,
    /// SkyPilot, MPI or torchrun. `layerscope merge-runs` puts shares together
    #[arg(long, value_name = "NUMBER/OF", value_parser = shard, conflicts_with = "json")]
    pub(crate) shard: Option<Shard>,
    /// Print one JSON object: the run as `show` and the recommendation as `recommend` print them
    #[arg(long)]
    pub(crate) json: bool,
}

fn shard(text: &str) -> Result<Shard, String> {
    if text != "auto" {
        return text.parse();
    }
    Shard::of_task(&|name| std::env::var(name).ok()).ok_or_else(|| {
        "no scheduler's task is known here (SLURM_ARRAY_TASK_ID and _COUNT, SKYPILOT_NODE_RANK, RANK and WORLD_SIZE …); give NUMBER/OF, e.g. \
         2/4"
            .to_owned()
    })
}

/// Whether attention knockout goes by KV head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum HeadsArgument {
    Auto,
    On,
    Off,
}

impl HeadsArgument {
    pub(crate) fn wanted(self) -> Option<bool> {
        match self {
            Self::Auto => None,
            Self::On => Some(true),
            Self::Off => Some(false),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct MergeRunsArguments {
    /// Run folders, or folders that hold run folders
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// Run folder to write, or to add to
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ShowArguments {
    /// Run folder
    pub(crate) run: PathBuf,
    /// Only this prompt
    #[arg(long)]
    pub(crate) prompt_id: Option<String>,
    /// A table for each category
    #[arg(long, conflicts_with = "prompt_id")]
    pub(crate) by_category: bool,
    /// Print one JSON object with every prompt
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one JSON object with means, quantiles and bootstrap intervals over prompts and per category
    #[arg(long, conflicts_with_all = ["json", "prompt_id", "by_category"])]
    pub(crate) summary_json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RecommendArguments {
    /// Run folder
    pub(crate) run: PathBuf,
    /// Another run of the same model, such as the one without an adapter, to compare with
    #[arg(long, value_name = "RUN")]
    pub(crate) before: Option<PathBuf>,
    /// The best policy whose KV fits: a share of the full model's such as 50%, or bytes of a sequence such as 800MiB or 24GB
    #[arg(long, value_name = "BUDGET", conflicts_with = "before")]
    pub(crate) kv_budget: Option<KvBudget>,
    /// Write the KV heads of the best policy to this file, which keep:heads=FILE reads
    #[arg(long, value_name = "FILE", requires = "kv_budget")]
    pub(crate) write_heads: Option<PathBuf>,
    /// Prompt tokens that the budget is for, e.g. 32k; the run's mean where none are given
    #[arg(long, value_name = "TOKENS", requires = "kv_budget", value_parser = length)]
    pub(crate) context: Option<usize>,
    #[command(flatten)]
    pub(crate) judged: JudgeArguments,
    /// Also say why, in sentences, and which blocks of the prompt could be pruned instead
    #[arg(long, conflicts_with_all = ["json", "kv_budget"])]
    pub(crate) why: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a recommended cutoff must hold to.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct JudgeArguments {
    /// Mean KL divergence from the full model that is acceptable, nats per token
    #[arg(long, default_value_t = DEFAULT_TOLERANCE)]
    pub(crate) tolerance: f64,
    /// What must hold besides: the full model's answers are kept, nothing (kl), or its texts stay the same (text)
    #[arg(long, value_parser = criterion(), default_value = Criterion::Answers.name())]
    pub(crate) criterion: Criterion,
    /// Least share of the full model's answers, or texts, that must be kept, 0 to 1
    #[arg(long, value_name = "SHARE", default_value_t = DEFAULT_KEPT)]
    pub(crate) answers: f64,
    /// Prompt tokens that keep KV at every layer
    #[arg(long, value_parser = anchor(), default_value = "bos")]
    pub(crate) anchor: Anchor,
}

impl JudgeArguments {
    pub(crate) fn options(self) -> Options {
        let Self { tolerance, criterion, answers, anchor } = self;
        Options { tolerance, anchor, criterion, kept: answers }
    }
}

/// A criterion by its name.
fn criterion() -> impl clap::builder::TypedValueParser<Value = Criterion> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Criterion::ALL.map(Criterion::name))
        .try_map(|name| Criterion::from_name(&name).ok_or("no criterion"))
}

/// An anchor by its name in files.
fn anchor() -> impl clap::builder::TypedValueParser<Value = Anchor> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(Anchor::ALL.map(Anchor::name))
        .try_map(|name| Anchor::from_name(&name).ok_or("no anchor"))
}

#[derive(Debug, Args)]
pub(crate) struct DiffusionArguments {
    /// Run folder
    pub(crate) run: PathBuf,
    /// Id of the prompt; every prompt that names a span where none is given
    #[arg(long, value_name = "ID")]
    pub(crate) prompt: Option<String>,
    /// Text of the span, which stands in the prompt once; the one that the prompt names where none is given
    #[arg(long, value_name = "TEXT", requires = "prompt", conflicts_with = "tokens")]
    pub(crate) span: Option<String>,
    /// Positions of the span in the prompt, from 0, e.g. 120-139
    #[arg(long, value_name = "FIRST-LAST", requires = "prompt", value_parser = positions)]
    pub(crate) tokens: Option<Range<usize>>,
    /// Say at each layer whether the greedy text still contains this; an answer that was recorded is looked for anyway
    #[arg(long, value_name = "TEXT", requires = "prompt")]
    pub(crate) answer: Option<String>,
    /// The run's model, where it is not found by its name: a path, a name or a Hugging Face id
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Layers from which the span is removed, e.g. 0,5,10-20; all where none are given
    #[arg(long)]
    pub(crate) layers: Option<String>,
    /// Mean KL divergence from the full model that is acceptable, nats per token
    #[arg(long, default_value_t = DEFAULT_TOLERANCE)]
    pub(crate) tolerance: f64,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PatchArguments {
    /// Model as `layerscope generate` takes it (a file, a folder, a name or a Hugging Face id), or a run folder
    #[arg(value_name = "MODEL|RUN")]
    pub(crate) model: String,
    /// Clean prompt; a model with a chat template sees it as the user's message. Of a run folder: a prompt's id
    #[arg(long, value_name = "TEXT|ID")]
    pub(crate) clean: String,
    /// Corrupted prompt, of as many tokens; of a run folder: a prompt's id
    #[arg(long, value_name = "TEXT|ID")]
    pub(crate) corrupted: String,
    /// Give the texts to the model as they are, without chat template
    #[arg(long)]
    pub(crate) raw: bool,
    /// Answer, one token with its leading space; the clean run's most likely next token where none is given
    #[arg(long, value_name = "TOKEN")]
    pub(crate) answer: Option<String>,
    /// Wrong answer, one token; the corrupted run's most likely next token where none is given
    #[arg(long, value_name = "TOKEN")]
    pub(crate) wrong: Option<String>,
    /// What is patched: the residual stream before a layer, what attention or MLP adds to it (each at one position), or the output of
    /// one head at all --positions
    #[arg(long, value_parser = patch_site(), default_value = PatchSite::ResidPre.name())]
    pub(crate) what: PatchSite,
    /// Patch the corrupted run's activations into the clean run, instead of the clean run's into the corrupted one
    #[arg(long)]
    pub(crate) noising: bool,
    /// What the effect is measured by: logit-diff (answer less wrong answer), or kl (from the clean run); logit-diff where a token
    /// is given
    #[arg(long, value_enum)]
    pub(crate) metric: Option<MetricArgument>,
    /// Layers, e.g. 0,5,10-20; all where none are given
    #[arg(long)]
    pub(crate) layers: Option<String>,
    /// Positions, from 0, e.g. 0,5,10-20 or last; all where none are given
    #[arg(long)]
    pub(crate) positions: Option<String>,
    /// Precision of the weights: as the file has them (native, where none is given), or dequantised to f32 for figures to be compared with
    /// others. Of a run folder it is the run's
    #[arg(long, value_enum)]
    pub(crate) weights: Option<Weights>,
    /// Of a run folder: its model, where it is not found by its name: a path, a name or a Hugging Face id
    #[arg(long = "model", value_name = "MODEL")]
    pub(crate) run_model: Option<String>,
    /// Run the model as one of this family, whatever its file says
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<String>,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// File to write as well: .json, .parquet or .svg, a figure
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A site by its name in files.
fn patch_site() -> impl clap::builder::TypedValueParser<Value = PatchSite> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    PossibleValuesParser::new(PatchSite::ALL.map(PatchSite::name))
        .try_map(|name| PatchSite::from_name(&name).ok_or("no activation"))
}

/// What the effect of a patch is measured by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum MetricArgument {
    LogitDiff,
    Kl,
}

impl From<MetricArgument> for PatchMetric {
    fn from(metric: MetricArgument) -> Self {
        match metric {
            MetricArgument::LogitDiff => Self::LogitDiff,
            MetricArgument::Kl => Self::Kl,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SearchArguments {
    /// Run folder
    pub(crate) run: PathBuf,
    /// What is dropped one after the other
    #[arg(long, value_enum, default_value_t = UnitsArgument::Heads)]
    pub(crate) units: UnitsArgument,
    /// In which order: by the exact joint KL, by what each costs alone, or by its attention mass on the prompt
    #[arg(long, value_enum, default_value_t = OrderArgument::Joint)]
    pub(crate) order: OrderArgument,
    /// First prompt tokens that a dropped unit still shows
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    pub(crate) first: usize,
    /// Last prompt tokens that a dropped unit still shows
    #[arg(long, value_name = "TOKENS", default_value_t = 16)]
    pub(crate) last: usize,
    /// End the prompt at this layer, too, as speed:CUTOFF+bos does; units are then those below it
    #[arg(long)]
    pub(crate) cutoff: Option<usize>,
    /// Prompts of the run to search on, spread over its categories; sets are judged on the others. Two thirds of them, at most 24,
    /// where none is given
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) search_prompts: Option<u32>,
    /// Units that are tried at each step, at least
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) at_once: u32,
    /// End the search beyond this mean KL divergence, nats per token
    #[arg(long, value_name = "NATS", default_value_t = 0.5)]
    pub(crate) worst_kl: f64,
    /// Mean KL divergence from the full model that is acceptable, nats per token
    #[arg(long, value_name = "NATS", default_value_t = DEFAULT_TOLERANCE)]
    pub(crate) tolerance: f64,
    /// The run's model, where it is not found by its name: a path, a name or a Hugging Face id
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The run's adapter, where it was recorded with one
    #[arg(long)]
    pub(crate) adapter: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a search drops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum UnitsArgument {
    Heads,
    Layers,
}

/// In which order a search drops.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum OrderArgument {
    Joint,
    Knockout,
    Mass,
}

impl From<OrderArgument> for SearchOrder {
    fn from(order: OrderArgument) -> Self {
        match order {
            OrderArgument::Joint => Self::Joint,
            OrderArgument::Knockout => Self::Knockout,
            OrderArgument::Mass => Self::Mass,
        }
    }
}

/// `120-139` or `120`, the last one included, as a range without it.
pub(crate) fn positions(text: &str) -> Result<Range<usize>, String> {
    let (first, last) = text.split_once(['-', '–']).unwrap_or((text, text));
    match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
        (Ok(first), Ok(last)) if first <= last && last < usize::MAX => Ok(first..last + 1),
        _ => Err("give FIRST-LAST, e.g. 120-139".into()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct ReportArguments {
    /// Run folders; every further one is compared with the first
    #[arg(required = true)]
    pub(crate) runs: Vec<PathBuf>,
    /// File to write, .html, .pdf, .md or .json; may be given several times
    #[arg(short, long, default_value = "report.html")]
    pub(crate) out: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) judged: JudgeArguments,
    /// Model of a run: generates the failure cases' texts under the recommended cutoff where the run lacks them; may be
    /// given several times
    #[arg(long)]
    pub(crate) model: Vec<String>,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
}

#[derive(Debug, Args)]
pub(crate) struct PromptArguments {
    /// Prompt text; a model with a chat template sees it as the user's message
    #[arg(long, conflicts_with = "prompt_file", required_unless_present = "prompt_file")]
    pub(crate) prompt: Option<String>,
    /// File with the prompt text; `-` reads standard input
    #[arg(long)]
    pub(crate) prompt_file: Option<PathBuf>,
    /// Give the text to the model as it is, without chat template
    #[arg(long)]
    pub(crate) raw: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    /// Which prompt tokens exist at which layers, e.g. `full`, `speed:24+bos` or `pop:24`; `--help` lists all
    #[arg(long, default_value = "full", long_help = policy_help())]
    pub(crate) policy: String,
    /// At most this many tokens
    #[arg(long, default_value_t = 128)]
    pub(crate) max_new_tokens: usize,
    /// Multiply as exactly as `record` does: without it, on a CPU, the activations of generated tokens are rounded to eight bits
    /// where weights are quantised, which is faster, and those of the prompt, too, where the processor does not multiply bf16
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) kv: KvArguments,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
    /// End the text before this one; again for more
    #[arg(long = "stop", value_name = "TEXT")]
    pub(crate) stops: Vec<String>,
    /// Go on after an end-of-sequence token
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// Print one JSON object instead of streaming, with each token's text and log-probability; its text is exact, while streamed
    /// text shows control characters (`␛`)
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: so many most likely tokens at each step, with their log-probabilities
    #[arg(long, value_name = "COUNT", requires = "json")]
    pub(crate) top_logprobs: Option<usize>,
}

/// How tokens are chosen.
#[derive(Debug, Args)]
pub(crate) struct SamplingArguments {
    /// Sample at this temperature; 0, as where no option of sampling is given, takes the most likely token
    #[arg(long)]
    pub(crate) temperature: Option<f64>,
    /// Sample among the most likely tokens that together have this probability
    #[arg(long)]
    pub(crate) top_p: Option<f64>,
    /// Sample among this many most likely tokens
    #[arg(long)]
    pub(crate) top_k: Option<usize>,
    /// Sample among tokens that are at least this share as likely as the most likely one, 0 to 1
    #[arg(long, value_name = "SHARE")]
    pub(crate) min_p: Option<f64>,
    /// Divide the logits of tokens that prompt or text already has by this where they are above 0, and multiply them where they
    /// are below; 1 changes nothing
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) repetition_penalty: f32,
    /// Seed of the sampler
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// The type of keys and values.
#[derive(Debug, Args)]
pub(crate) struct KvArguments {
    /// Keep keys and values in this type. q8_0 has eight bits an element in blocks of 32, about half the memory of f16, on a CPU; where
    /// none is given, f16, f32 with f32 weights, bf16 on a GPU
    #[arg(long, value_name = "TYPE", value_enum)]
    pub(crate) kv: Option<KvType>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvType {
    F32,
    F16,
    Bf16,
    #[value(name = "q8_0")]
    Q8,
}

impl From<KvType> for KvPrecision {
    fn from(kv: KvType) -> Self {
        match kv {
            KvType::F32 => Self::F32,
            KvType::F16 => Self::F16,
            KvType::Bf16 => Self::Bf16,
            KvType::Q8 => Self::Q8,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ChatArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    /// Which prompt tokens exist at which layers, e.g. `full`, `speed:24+bos` or `pop:24`; `--help` lists all
    #[arg(long, default_value = "full", long_help = policy_help())]
    pub(crate) policy: String,
    /// What the model is told before the first turn
    #[arg(long, value_name = "TEXT")]
    pub(crate) system: Option<String>,
    /// At most this many tokens an answer
    #[arg(long, default_value_t = 512)]
    pub(crate) max_new_tokens: usize,
    /// Multiply as exactly as `record` does, as in `layerscope generate`
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) kv: KvArguments,
    #[command(flatten)]
    pub(crate) sampling: SamplingArguments,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// GGUF file, folder with config.json, tokenizer.json and safetensors, name that `layerscope models` lists, or Hugging
    /// Face id: owner/name, owner/name@revision, owner/name:Q4_K_M, owner/name/file.gguf
    #[arg(required_unless_present = "shape", conflicts_with = "shape")]
    pub(crate) model: Option<String>,
    /// Precision of the weights: as the file has them, or dequantised to f32
    #[arg(long, value_enum, default_value_t = Weights::Native)]
    pub(crate) weights: Weights,
    /// Run the model as one of this family, whatever its file says: for a new model that is a known one but for its name
    #[arg(long, value_name = "NAME", conflicts_with = "shape")]
    pub(crate) architecture: Option<String>,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Instead of a model, random weights of this shape, for speed alone, e.g. llama-3.1-8b
    #[arg(long)]
    pub(crate) shape: Option<String>,
    /// Type of the random weights: q4_0, q4_1, q8_0, q4_k_m, f16, bf16 or f32
    #[arg(long, default_value = "q4_k_m", requires = "shape")]
    pub(crate) shape_weights: String,
    /// Only so many layers of the shape, so that it fits this machine
    #[arg(long, requires = "shape")]
    pub(crate) layers: Option<usize>,
    /// Policies between commas, as `layerscope generate --help` lists them; the full model and SPEED at three quarters of the layers where none is given
    #[arg(long)]
    pub(crate) policies: Option<String>,
    /// Prompt lengths between commas, tokens; 1k is 1,024
    #[arg(long, default_value = "1k,2k,4k,8k")]
    pub(crate) lengths: String,
    /// Tokens generated each time; generation never stops earlier
    #[arg(long, default_value_t = layerscope_bench::DEFAULT_NEW_TOKENS)]
    pub(crate) new_tokens: usize,
    /// Counted repeats, after one warm-up at each length
    #[arg(long, default_value_t = layerscope_bench::DEFAULT_REPEATS)]
    pub(crate) repeats: usize,
    #[command(flatten)]
    pub(crate) kv: KvArguments,
    /// Also compute the attention statistics of every decode step, to see what they cost
    #[arg(long)]
    pub(crate) statistics: bool,
    /// Also measure what each policy costs in quality, on so many prompts of each length that hide a number at evenly spread
    /// depths; 4 where no number is given
    #[arg(long, value_name = "PROMPTS", num_args = 0..=1, default_missing_value = "4", value_parser = quality_prompts)]
    pub(crate) quality: Option<usize>,
    /// File to write as well: FILE.parquet, FILE.json, FILE.svg (the figure of quality against costs), or a run folder, which
    /// gets a bench.json
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

fn quality_prompts(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "give a number of prompts, or --quality alone, behind the model".to_owned())
}

#[derive(Debug, Args)]
pub(crate) struct EvalArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    /// Task file, JSON Lines
    #[arg(long)]
    pub(crate) tasks: PathBuf,
    /// Policies between commas, as `layerscope generate --help` lists them; all are compared with the first
    #[arg(long, default_value = "full")]
    pub(crate) policies: String,
    /// Only the first so many items
    #[arg(long, value_name = "ITEMS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Do not put prompts into the chat template, as lm-evaluation-harness does unless told otherwise
    #[arg(long)]
    pub(crate) raw: bool,
    /// Most tokens of a generated text, where the item says nothing
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_new_tokens: u32,
    /// Folder for an eval.json with every item's scores, such as a run's; one that has items of the same tasks, model and settings
    /// goes on
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LmEvalArguments {
    /// Result files, or folders that have some; the first policy is what others are compared with, of a folder's that is full
    #[arg(required = true)]
    pub(crate) results: Vec<PathBuf>,
    /// Run folder for an lm-eval.json, which the report and the viewer show
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    /// A policy to list, as `layerscope generate --help` has them; again for more. The first is that of requests that name none: full,
    /// or the one that an adapter was made for, where none is given
    #[arg(long = "policy", value_name = "POLICY")]
    pub(crate) policies: Vec<String>,
    /// Interface to listen on; one that other machines reach needs --api-key
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Key that clients must send as bearer token; LAYERSCOPE_API_KEY is read where it is not given
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// The model's name in requests; that of its file where none is given
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Web page whose scripts may send requests, as https://host:port; again for more
    #[arg(long = "allow-origin", value_name = "ORIGIN")]
    pub(crate) allow_origins: Vec<String>,
    /// Multiply as exactly for texts as for scores, for evaluations: without it, on a CPU, the activations of generated tokens are
    /// rounded to eight bits where weights are quantised, which is faster, and those of their prompts, too, where the processor does
    /// not multiply bf16
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) kv: KvArguments,
    /// Answer /metrics, for Prometheus
    #[arg(long)]
    pub(crate) metrics: bool,
    /// Most sequences that run at once
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_sequences: u32,
    /// Most sequences that wait; more are refused with status 429
    #[arg(long, default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) queue: u32,
    /// Memory for keys and values, of running sequences and of prompts kept for those that begin alike, such as 800MiB or 4GB; half
    /// of what is free where none is given
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    pub(crate) kv_memory: Option<u64>,
    /// New tokens of a chat whose request does not say how many
    #[arg(long, value_name = "TOKENS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) default_max_tokens: u32,
    /// Longest time from a request's arrival to its end, seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) timeout: u32,
    /// Let viewers in: `layerscope view ws://HOST:PORT/RUN` on another machine. Whoever has the key can then do here what your
    /// account can: read run folders and models, run models, write run folders; so it needs --api-key
    #[arg(long)]
    pub(crate) viewer: bool,
}

fn bytes(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(KvBudget::Bytes(bytes)) => Ok(bytes as u64),
        _ => Err("give bytes such as 800MiB or 4GB".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct NeedleArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    /// Policies between commas, as `layerscope generate --help` lists them
    #[arg(long, default_value = "full")]
    pub(crate) policies: String,
    /// Prompt lengths between commas, tokens with chat template; 1k is 1,024
    #[arg(long, default_value = "512,1k,2k")]
    pub(crate) lengths: String,
    /// Where the number stands: percent of the text before it, between commas
    #[arg(long, default_value = "0,25,50,75,100")]
    pub(crate) depths: String,
    /// Prompts at each length and depth
    #[arg(long, default_value_t = 3)]
    pub(crate) samples: usize,
    /// Seed of the texts: the same gives the same prompts
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// What it is hidden in: varied sentences, or the same few over and over
    #[arg(long, value_enum, default_value_t = HaystackName::Sentences)]
    pub(crate) haystack: HaystackName,
    /// At most this many tokens
    #[arg(long, default_value_t = 64)]
    pub(crate) max_new_tokens: usize,
    /// Write the prompts into this prompt file, for `record`, and stop
    #[arg(long)]
    pub(crate) write_prompts: Option<PathBuf>,
    /// File to write as well: one JSON object for each generation
    #[arg(long)]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum HaystackName {
    Sentences,
    Noise,
}

/// An adapter beside a model's weights.
#[derive(Debug, Args)]
pub(crate) struct AdapterArguments {
    /// Adapter to run beside the weights: a folder that `layerscope adapt` or PEFT wrote, or a GGUF file of llama.cpp's
    #[arg(long, value_name = "PATH")]
    pub(crate) adapter: Option<PathBuf>,
    /// Add the adapter to the weights instead, which are then kept in bf16, or f32; only one of all rows
    #[arg(long, requires = "adapter")]
    pub(crate) merge: bool,
}

#[derive(Debug, Args)]
pub(crate) struct MergeArguments {
    /// Folder with config.json, tokenizer.json and safetensors, or Hugging Face id
    pub(crate) model: String,
    /// Adapter of all rows: a folder that `layerscope adapt --rows all` or PEFT wrote, or a GGUF file of llama.cpp's
    #[arg(long, value_name = "PATH")]
    pub(crate) adapter: PathBuf,
    /// Folder for the checkpoint
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct AdaptArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// The policy to train for: one with a cutoff, e.g. speed:22+bos or selfonly:22+bos, or one that evicts a part of the prompt
    /// before decode, e.g. keep:0-9+bos+window=16
    #[arg(long)]
    pub(crate) policy: String,
    /// Prompt file, JSON Lines; continuations are the prompts' answers or, without one, what the full model says
    #[arg(long)]
    pub(crate) prompts: PathBuf,
    /// Folder for the adapter, in PEFT's format; one with an unfinished training of the same settings goes on
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Rows that the adapter acts on: decode (the prompt's KV stays the base model's) or all
    #[arg(long, value_enum, default_value_t = RowsName::Decode)]
    pub(crate) rows: RowsName,
    /// Rank of the adapter, or full to train every element of the matrices, which takes 16 bytes of memory an element
    #[arg(long, default_value = "16", value_parser = rank)]
    pub(crate) rank: Rank,
    /// The adapter's factor is alpha/rank; twice the rank where none is given
    #[arg(long)]
    pub(crate) alpha: Option<f64>,
    /// Make the factor alpha/√rank
    #[arg(long)]
    pub(crate) rank_stabilised: bool,
    /// Matrices that are adapted, between commas
    #[arg(long, default_value = "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj")]
    pub(crate) targets: String,
    /// Steps of training; 400 where no --minutes are given
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: Option<u32>,
    /// Minutes of training, at most, without preparing the prompts
    #[arg(long)]
    pub(crate) minutes: Option<f64>,
    /// Prompts in a step
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) batch: u32,
    /// Decode rows of each prompt
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) max_new_tokens: u32,
    /// Highest learning rate; it rises over 20 steps and falls as half a cosine. 0.001 where none is given, 0.00002 with --rank full
    #[arg(long)]
    pub(crate) learning_rate: Option<f64>,
    /// Share of steps at a cutoff above the policy's, drawn evenly up to full depth, so that the adapted model stays near the full one
    /// there, too
    #[arg(long, value_name = "SHARE", default_value_t = 0.25)]
    pub(crate) other_cutoffs: f64,
    /// Dropout of the adapter's inputs
    #[arg(long, value_name = "RATE", default_value_t = 0.0)]
    pub(crate) dropout: f64,
    /// What prompts with an answer are continued by: the answer, or the full model's own text
    #[arg(long, value_enum, default_value_t = ContinuedName::Answers)]
    pub(crate) continued: ContinuedName,
    /// Most memory of prompts' keys and values, MiB; the rest goes to a file in --out. Half of what is free where none is given
    #[arg(long, value_name = "MIB")]
    pub(crate) prompt_memory: Option<u64>,
    /// Share of the prompts that are held out
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub(crate) held_out: f64,
    /// Steps between measurements on held-out prompts
    #[arg(long, value_name = "STEPS", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) evaluate_every: u32,
    /// Stop once the held-out KL is no larger, nats
    #[arg(long, value_name = "NATS")]
    pub(crate) target_kl: Option<f64>,
    /// Weight of the cross-entropy of the continuations, 0 to 1; the rest is that of the KL divergence from the full model
    #[arg(long, value_name = "WEIGHT", default_value_t = 0.0)]
    pub(crate) sft: f64,
    /// Seed of the adapter, of the order and of what is held out
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// A rank; `None` for full.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rank(pub(crate) Option<u32>);

fn rank(text: &str) -> Result<Rank, String> {
    const MOST: u32 = 1_024;
    match text {
        "full" => Ok(Rank(None)),
        _ => match text.parse() {
            Ok(rank @ 1..=MOST) => Ok(Rank(Some(rank))),
            _ => Err(format!("a number from 1 to {MOST}, or full")),
        },
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ContinuedName {
    Answers,
    Own,
}

impl From<ContinuedName> for layerscope_adapt::Continued {
    fn from(name: ContinuedName) -> Self {
        match name {
            ContinuedName::Answers => Self::Answers,
            ContinuedName::Own => Self::Own,
        }
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum RowsName {
    Decode,
    All,
}

impl From<RowsName> for layerscope_engine::AdapterRows {
    fn from(name: RowsName) -> Self {
        match name {
            RowsName::Decode => Self::Decode,
            RowsName::All => Self::All,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct PatternsArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    /// Keys that a head reads for each prompt token, about: patterns multiply no more pairs than the first and the last keys of this
    /// number would
    #[arg(long, default_value = "512", value_parser = length)]
    pub(crate) tokens: usize,
    /// Length of the prompts to search on, which hide a number; 1k is 1,024
    #[arg(long, default_value = "2k", value_parser = length, conflicts_with = "prompts")]
    pub(crate) length: usize,
    /// Seed of their texts
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Search on the prompts of this prompt file instead, those of at least twice as many tokens as --tokens
    #[arg(long)]
    pub(crate) prompts: Option<PathBuf>,
    /// File to write: JSON, in the format of the configurations that MInference publishes
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ViewArguments {
    /// Run folder, model or prompt file, or a model by its name or Hugging Face id; the embedded model recorded on the spot
    /// where none is given; ssh://[user@]host[:port]/path for one on another machine, whose layerscope then reads, records and
    /// generates, or ws://host[:port]/path where `layerscope serve --viewer` runs there
    pub(crate) path: Option<PathBuf>,
    /// The model of the run, to generate and record with: a path, a name or a Hugging Face id; where none is given, the one of its
    /// name, or the file that it was loaded from before
    #[arg(long, value_name = "MODEL", requires = "path")]
    pub(crate) model: Option<String>,
    /// Run the model as one of this family, whatever its file says
    #[arg(long, value_name = "NAME", requires = "path")]
    pub(crate) architecture: Option<String>,
    /// Adapter to run beside the model's weights: a folder that `layerscope adapt` or PEFT wrote, or a GGUF file of llama.cpp's
    #[arg(long, value_name = "PATH", requires = "path")]
    pub(crate) adapter: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// The ssh program with its first arguments, for a path on another machine; what LAYERSCOPE_SSH names, or ssh, where none is
    /// given
    #[arg(long, value_name = "COMMAND", requires = "path")]
    pub(crate) ssh: Option<String>,
    /// The layerscope program on the other machine, where it is not found by its name
    #[arg(long, value_name = "PATH", requires = "path")]
    pub(crate) remote_layerscope: Option<String>,
    /// Key of the server, for ws://; LAYERSCOPE_API_KEY is read where it is not given
    #[arg(long, value_name = "KEY", requires = "path")]
    pub(crate) api_key: Option<String>,
    /// Draw the window into this PNG file instead of showing it; needs no display
    #[arg(long)]
    pub(crate) screenshot: Option<PathBuf>,
    /// Size of the picture, WIDTHxHEIGHT in points
    #[arg(long, default_value = "1600x1000", value_parser = size, requires = "screenshot")]
    pub(crate) size: (u32, u32),
    /// Pixels per point of the picture
    #[arg(long, default_value_t = 1.0, value_parser = pixels_per_point, requires = "screenshot")]
    pub(crate) pixels_per_point: f32,
    /// The view in front
    #[arg(long, value_enum, ignore_case = true)]
    pub(crate) view: Option<ViewName>,
    /// Light or dark
    #[arg(long, value_enum)]
    pub(crate) theme: Option<ThemeName>,
}

#[derive(Debug, Args)]
pub(crate) struct EngineArguments {
    /// Take messages on standard input and give them on standard output
    #[arg(long)]
    pub(crate) stdio: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub(crate) enum ViewName {
    Map,
    Pattern,
    // Its former name.
    #[value(alias = "Text")]
    Reading,
    Curves,
    Heads,
    Frontier,
    Patching,
    Generate,
    Record,
    Compare,
    Adapt,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ThemeName {
    Light,
    Dark,
}

fn policy_help() -> String {
    format!("Which prompt tokens exist at which layers:\n{}", layerscope_engine::policies_help())
}

fn length(text: &str) -> Result<usize, String> {
    layerscope_bench::parse_length(text).map_err(|error| error.to_string())
}

/// Most pixels per side that graphics drivers support.
const MOST_PIXELS: u32 = 8_192;

fn size(text: &str) -> Result<(u32, u32), String> {
    let parsed = text
        .split_once(['x', '×'])
        .and_then(|(width, height)| Some((width.trim().parse().ok()?, height.trim().parse().ok()?)));
    match parsed {
        Some((width, height))
            if (320..=MOST_PIXELS).contains(&width) && (240..=MOST_PIXELS).contains(&height) =>
        {
            Ok((width, height))
        }
        _ => Err(format!("give WIDTHxHEIGHT from 320x240 to {MOST_PIXELS}x{MOST_PIXELS}, e.g. 1600x1000")),
    }
}

fn pixels_per_point(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|value| (0.5..=4.0).contains(value)).ok_or("give a number from 0.5 to 4".into())
}

#[derive(Debug, Args)]
pub(crate) struct CaptureArguments {
    #[command(flatten)]
    pub(crate) model: ModelArguments,
    #[command(flatten)]
    pub(crate) adapter: AdapterArguments,
    #[command(flatten)]
    pub(crate) prompt: PromptArguments,
    /// Hook point by its TransformerLens name; `blocks.*.…` means every layer; may be given several times
    #[arg(long = "hook", required = true)]
    pub(crate) hooks: Vec<String>,
    /// Also generate this many tokens, greedily, and capture them
    #[arg(long, default_value_t = 0)]
    pub(crate) max_new_tokens: usize,
    /// Which prompt tokens exist at which layers, e.g. `full`, `speed:24+bos` or `pop:24`; `--help` lists all
    #[arg(long, default_value = "full", long_help = policy_help())]
    pub(crate) policy: String,
    /// safetensors file to write
    #[arg(long)]
    pub(crate) out: PathBuf,
    /// Print one JSON object that lists what was written
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    /// GGUF file, folder with config.json, tokenizer.json and safetensors, name that `layerscope models` lists, or Hugging
    /// Face id: owner/name, owner/name@revision, owner/name:Q4_K_M, owner/name/file.gguf
    pub(crate) model: String,
    /// Run the model as one of this family, whatever its file says: for a new model that is a known one but for its name
    #[arg(long, value_name = "NAME")]
    pub(crate) architecture: Option<String>,
    /// Tokens to say the memory of, e.g. 8192 or 8k; the model's own context where none is given
    #[arg(long, value_parser = length)]
    pub(crate) context: Option<usize>,
    #[command(flatten)]
    pub(crate) device: DeviceArguments,
    /// Also print the chat template
    #[arg(long)]
    pub(crate) template: bool,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ModelsArguments {
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}
