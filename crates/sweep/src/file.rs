//! `sweep.toml`.

use crate::jobs::Cell;
use crate::names::Names;
use layerscope_cutoff::recommend::{Criterion, Options};
use layerscope_diagnostics::record::Anchor;
use layerscope_engine::{DeviceChoice, Error, POLICIES, PolicyKind, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// What `sweep.toml` says. Paths in it are relative to its folder, and absolute here.
#[derive(Debug, Clone, PartialEq)]
pub struct Sweep {
    /// The file.
    pub file: PathBuf,
    /// Models, each with its adapters, on each prompt set.
    pub cells: Vec<Cell>,
    /// How each is recorded.
    pub settings: Settings,
    /// Shares of the prompts of a cell, each a job.
    pub shards: usize,
    /// What a cutoff must hold to.
    pub judge: Judge,
    /// Folder for everything that is written.
    pub out: Option<PathBuf>,
    /// Who runs the jobs.
    pub runner: Option<Runner>,
    /// Processes on this machine.
    pub local: Local,
    /// A Slurm array.
    pub slurm: Slurm,
    /// Tasks of Ray.
    pub ray: Ray,
}

/// How every cell is recorded: options of `layerscope record`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Settings {
    /// Policies besides the cutoffs.
    pub policies: Vec<String>,
    /// Decode steps per prompt.
    pub max_new_tokens: u32,
    /// `native` or `f32`.
    pub weights: &'static str,
    /// `auto`, `on` or `off`.
    pub heads: &'static str,
    /// Where to run, as `--device` takes it.
    #[serde(skip)]
    pub device: Option<String>,
}

/// What a recommended cutoff must hold to, as `layerscope recommend` takes it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Judge {
    /// Largest mean KL accepted, nats.
    pub tolerance: f64,
    /// What must hold besides.
    pub criterion: Criterion,
    /// Least share of answers, or texts, that must be kept.
    pub answers: f64,
    /// Which prompt tokens keep KV at every layer.
    pub anchor: Anchor,
}

impl Default for Judge {
    fn default() -> Self {
        let Options { tolerance, anchor, criterion, kept } = Options::default();
        Self { tolerance, criterion, answers: kept, anchor }
    }
}

impl Judge {
    /// As the recommendation takes it.
    pub fn options(self) -> Options {
        let Self { tolerance, criterion, answers, anchor } = self;
        Options { tolerance, anchor, criterion, kept: answers }
    }
}

/// Who runs the jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runner {
    /// Processes on this machine.
    Local,
    /// A Slurm array.
    Slurm,
    /// Tasks of Ray.
    Ray,
}

/// Processes on this machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Local {
    /// Processes at once.
    pub jobs: Option<u16>,
    /// Threads of each; the cores divided by the processes where nothing is said.
    pub threads: Option<u16>,
    /// Devices that the processes take in turn, such as `cuda:0` and `cuda:1`.
    pub devices: Vec<String>,
}

/// A Slurm array.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slurm {
    /// Options of `sbatch` for every job, such as `--partition=gpu`.
    pub options: Vec<String>,
    /// Lines before a job's command, such as `module load cuda`.
    pub setup: Vec<String>,
    /// Jobs at once.
    pub jobs: Option<u16>,
}

/// Tasks of Ray.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ray {
    /// Address of the cluster; one on this machine where nothing is said.
    pub address: Option<String>,
    /// Jobs at once; one per GPU, or else one per node, where nothing is said.
    pub workers: Option<u16>,
    /// Cores of each.
    pub cpus: Option<f64>,
    /// GPUs of each.
    pub gpus: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Written {
    models: Spanned<Vec<Spanned<String>>>,
    prompts: Spanned<Vec<Spanned<String>>>,
    #[serde(default)]
    policies: Vec<Spanned<String>>,
    #[serde(default)]
    adapters: Vec<WrittenAdapter>,
    max_new_tokens: Option<Spanned<u32>>,
    #[serde(default)]
    weights: Weights,
    #[serde(default)]
    heads: Heads,
    device: Option<Spanned<String>>,
    shards: Option<Spanned<usize>>,
    out: Option<PathBuf>,
    runner: Option<Runner>,
    judge: Option<Spanned<Judge>>,
    local: Option<Spanned<Local>>,
    slurm: Option<Spanned<Slurm>>,
    ray: Option<Spanned<Ray>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenAdapter {
    path: Spanned<String>,
    model: Option<Spanned<String>>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Weights {
    #[default]
    Native,
    F32,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Heads {
    #[default]
    Auto,
    On,
    Off,
}

/// Most shares of a cell's prompts.
const MOST_SHARDS: usize = 10_000;

impl Sweep {
    /// Reads the file.
    ///
    /// # Errors
    /// [`Error::Input`] with the line and the mend where a key or value is wrong, or where a file that it names is not there.
    pub fn read(file: &Path) -> Result<Self> {
        let text = layerscope_files::read_text(file).map_err(|error| Error::io("read", file, &error))?;
        let absolute = std::path::absolute(file).map_err(|error| Error::io("find", file, &error))?;
        Self::parse(&absolute, file, &text)
    }

    /// The sweep of a text, of a file at this path; sentences call it `shown`.
    fn parse(file: &Path, shown: &Path, text: &str) -> Result<Self> {
        let at = At { shown, text };
        let written: Written = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(String::new(), |span| format!(", line {}", at.line(&span)));
            let message = error.message().replace('\n', " ");
            Error::input(format!(
                "{}{line}: {message}; `layerscope sweep --help` shows such a file",
                shown.display()
            ))
        })?;
        let folder = file.parent().unwrap_or(Path::new(""));
        let steps = written.max_new_tokens.map_or((0..0, 32), |steps| (steps.span(), *steps.get_ref()));
        if steps.1 == 0 {
            return Err(at.wrong(&steps.0, "max-new-tokens is 0; give a number from 1 on, e.g. 32"));
        }
        let shards = written.shards.map_or((0..0, 1), |shards| (shards.span(), *shards.get_ref()));
        if !(1..=MOST_SHARDS).contains(&shards.1) {
            return Err(at.wrong(
                &shards.0,
                &format!("shards is {}; give a number from 1 to {MOST_SHARDS}", shards.1),
            ));
        }
        let cells = at.cells(folder, &written.models, &written.prompts, &written.adapters)?;
        let judge = written.judge.map_or_else(|| Ok(Judge::default()), |judge| at.judge(judge))?;
        let settings = Settings {
            policies: at.policies(&written.policies)?,
            max_new_tokens: steps.1,
            weights: match written.weights {
                Weights::Native => "native",
                Weights::F32 => "f32",
            },
            heads: match written.heads {
                Heads::Auto => "auto",
                Heads::On => "on",
                Heads::Off => "off",
            },
            device: written.device.map(|device| at.device(device)).transpose()?,
        };
        Ok(Self {
            file: file.to_owned(),
            cells,
            settings,
            shards: shards.1,
            judge,
            out: written.out.map(|out| folder.join(out)),
            runner: written.runner,
            local: written.local.map_or_else(|| Ok(Local::default()), |local| at.local(local))?,
            slurm: written.slurm.map_or_else(|| Ok(Slurm::default()), |slurm| at.slurm(slurm))?,
            ray: written.ray.map_or_else(|| Ok(Ray::default()), |ray| at.ray(ray))?,
        })
    }
}

/// A text, for sentences about its lines.
struct At<'a> {
    shown: &'a Path,
    text: &'a str,
}

impl At<'_> {
    /// The line of a place, from 1 on.
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.bytes().take(span.start).filter(|&byte| byte == b'\n').count() + 1
    }

    fn wrong(&self, span: &Range<usize>, sentence: &str) -> Error {
        Error::input(format!("{}, line {}: {sentence}", self.shown.display(), self.line(span)))
    }

    /// Every model, with each of its adapters and without, on every prompt set.
    fn cells(
        &self,
        folder: &Path,
        models: &Spanned<Vec<Spanned<String>>>,
        prompts: &Spanned<Vec<Spanned<String>>>,
        adapters: &[WrittenAdapter],
    ) -> Result<Vec<Cell>> {
        self.distinct(
            models,
            "models",
            "a path, a name that `layerscope models` lists or a Hugging Face id",
        )?;
        self.distinct(prompts, "prompts", "a prompt file")?;
        let models = models.get_ref();
        for prompts in prompts.get_ref().iter() {
            self.file(folder, prompts, "a prompt file")?;
        }
        for adapter in adapters {
            self.exists(folder, &adapter.path, "an adapter")?;
            let of = adapter.model.as_ref();
            match of {
                Some(of) if !models.iter().any(|model| model.get_ref() == of.get_ref()) => {
                    let sentence =
                        format!("{:?} is none of the models; name one as `models` has it", of.get_ref());
                    return Err(self.wrong(&of.span(), &sentence));
                }
                None if models.len() > 1 => {
                    let sentence = "an adapter is of one of the models; add `model = \"…\"` to it";
                    return Err(self.wrong(&adapter.path.span(), sentence));
                }
                _ => {}
            }
        }
        let mut names = Names::default();
        let model_names: Vec<String> =
            models.iter().map(|model| names.of(model.get_ref(), &[".gguf"])).collect();
        let mut names = Names::default();
        let adapter_names: Vec<String> =
            adapters.iter().map(|adapter| names.of(adapter.path.get_ref(), &[".gguf"])).collect();
        let mut names = Names::default();
        let prompt_names: Vec<String> = prompts
            .get_ref()
            .iter()
            .map(|prompts| names.of(prompts.get_ref(), &[".jsonl", ".json"]))
            .collect();
        let mut cells = vec![];
        for (model, model_name) in models.iter().zip(&model_names) {
            let here = folder.join(model.get_ref());
            let found = if here.exists() { here.display().to_string() } else { model.get_ref().clone() };
            let with = adapters.iter().zip(&adapter_names).filter(|(adapter, _)| {
                adapter.model.as_ref().is_none_or(|of| of.get_ref() == model.get_ref())
            });
            for adapter in std::iter::once(None).chain(with.map(Some)) {
                for (prompts, prompt_name) in prompts.get_ref().iter().zip(&prompt_names) {
                    let with = adapter.map_or(String::new(), |(_, name)| format!("+{name}"));
                    cells.push(Cell {
                        name: format!("{model_name}{with}@{prompt_name}"),
                        model: found.clone(),
                        model_name: model_name.clone(),
                        model_as_written: model.get_ref().clone(),
                        adapter: adapter.map(|(adapter, _)| folder.join(adapter.path.get_ref())),
                        adapter_name: adapter.map(|(_, name)| name.clone()),
                        prompts: folder.join(prompts.get_ref()),
                        prompts_name: prompt_name.clone(),
                    });
                }
            }
        }
        Ok(cells)
    }

    /// At least one, and none twice.
    fn distinct(&self, list: &Spanned<Vec<Spanned<String>>>, key: &str, what: &str) -> Result<()> {
        let entries = list.get_ref();
        if entries.is_empty() {
            return Err(self.wrong(&list.span(), &format!("{key} is empty; name {what}")));
        }
        for (index, entry) in entries.iter().enumerate() {
            let text = entry.get_ref();
            if text.trim().is_empty() || text.starts_with('-') {
                return Err(self.wrong(&entry.span(), &format!("{text:?} is no entry of {key}; name {what}")));
            }
            if entries[..index].iter().any(|earlier| earlier.get_ref() == text) {
                return Err(self.wrong(&entry.span(), &format!("{text:?} is in {key} twice; remove one")));
            }
        }
        Ok(())
    }

    fn file(&self, folder: &Path, path: &Spanned<String>, what: &str) -> Result<()> {
        match folder.join(path.get_ref()).is_dir() {
            true => Err(self.wrong(&path.span(), &format!("{} is a folder; name {what}", path.get_ref()))),
            false => self.exists(folder, path, what),
        }
    }

    fn exists(&self, folder: &Path, path: &Spanned<String>, what: &str) -> Result<()> {
        let found = folder.join(path.get_ref());
        match found.exists() {
            true => Ok(()),
            false => {
                let sentence = format!(
                    "there is no {}; name {what}, relative to the folder of this file",
                    found.display()
                );
                Err(self.wrong(&path.span(), &sentence))
            }
        }
    }

    /// The policies. Whether a cutoff fits a model is known once that is loaded, so only their kinds are looked at.
    fn policies(&self, policies: &[Spanned<String>]) -> Result<Vec<String>> {
        for (index, policy) in policies.iter().enumerate() {
            let name = policy.get_ref();
            let kind = name.split(':').next().unwrap_or_default();
            if PolicyKind::named(kind).is_none() {
                let known: Vec<&str> = POLICIES.iter().map(|kind| kind.name).collect();
                let sentence = format!("{name:?} is no policy; known are {}", known.join(", "));
                return Err(self.wrong(&policy.span(), &sentence));
            }
            if policies[..index].iter().any(|earlier| earlier.get_ref() == name) {
                return Err(
                    self.wrong(&policy.span(), &format!("policy {name:?} is named twice; remove one"))
                );
            }
        }
        Ok(policies.iter().map(|policy| policy.get_ref().clone()).collect())
    }

    fn judge(&self, judge: Spanned<Judge>) -> Result<Judge> {
        let Judge { tolerance, answers, .. } = *judge.get_ref();
        if !tolerance.is_finite() || tolerance < 0.0 {
            let sentence = format!("judge.tolerance is {tolerance}; give nats from 0 on, e.g. 0.1");
            return Err(self.wrong(&judge.span(), &sentence));
        }
        if !(0.0..=1.0).contains(&answers) {
            let sentence = format!("judge.answers is {answers}; give a share from 0 to 1, e.g. 0.95");
            return Err(self.wrong(&judge.span(), &sentence));
        }
        Ok(judge.into_inner())
    }

    fn device(&self, device: Spanned<String>) -> Result<String> {
        let parsed: Result<DeviceChoice> = device.get_ref().parse();
        parsed.map_err(|error| self.wrong(&device.span(), &error.to_string()))?;
        Ok(device.into_inner())
    }

    fn local(&self, local: Spanned<Local>) -> Result<Local> {
        for device in &local.get_ref().devices {
            let parsed: Result<DeviceChoice> = device.parse();
            parsed.map_err(|error| self.wrong(&local.span(), &error.to_string()))?;
        }
        if local.get_ref().jobs == Some(0) || local.get_ref().threads == Some(0) {
            return Err(self.wrong(&local.span(), "jobs and threads of [local] are at least 1"));
        }
        Ok(local.into_inner())
    }

    fn slurm(&self, slurm: Spanned<Slurm>) -> Result<Slurm> {
        let Slurm { options, setup, jobs } = slurm.get_ref();
        if *jobs == Some(0) {
            return Err(self.wrong(&slurm.span(), "jobs of [slurm] is at least 1"));
        }
        if let Some(option) = options.iter().find(|option| !option.starts_with('-') || option.contains('\n'))
        {
            let sentence = format!(
                "{option:?} is no option of sbatch; options begin with a dash, e.g. \"--partition=gpu\""
            );
            return Err(self.wrong(&slurm.span(), &sentence));
        }
        if let Some(option) =
            options.iter().find(|option| option.starts_with("--array") || option.starts_with("-a"))
        {
            let sentence = format!(
                "{option:?}: the array is the sweep's jobs; remove it, or say `jobs = N` for at most N at once"
            );
            return Err(self.wrong(&slurm.span(), &sentence));
        }
        if let Some(line) = setup.iter().find(|line| line.contains('\n')) {
            return Err(
                self.wrong(&slurm.span(), &format!("{line:?} is more than a line; give each its own entry"))
            );
        }
        Ok(slurm.into_inner())
    }

    fn ray(&self, ray: Spanned<Ray>) -> Result<Ray> {
        let Ray { workers, cpus, gpus, .. } = ray.get_ref();
        let negative = [cpus, gpus].into_iter().flatten().any(|number| !number.is_finite() || *number < 0.0);
        if *workers == Some(0) || negative {
            return Err(
                self.wrong(&ray.span(), "workers of [ray] is at least 1, cpus and gpus are at least 0")
            );
        }
        Ok(ray.into_inner())
    }
}

#[cfg(test)]
mod tests;
