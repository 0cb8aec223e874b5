//! Synthetic runs of any size, the same on every machine, only for tests of the viewer.

use layerscope_diagnostics::reads::{LEAST_OF_HEAD, OF_HEAD, OF_MEAN, Read, RowReads};
use layerscope_diagnostics::record::{
    Anchor, AttentionFigures, Divergence, FrontierRow, KnockoutRow, LensFigures, ProbedFigures, PromptRecord,
    PromptSummary, ReceivedFigures, TextUnderCutoff, Timings,
};
use layerscope_diagnostics::run::{BosToken, Manifest, ModelInfo, RunWriter, Settings};
use ndarray::{Array2, Array3};
use std::collections::BTreeMap;
use std::path::Path;

/// Sizes of a synthetic run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    /// Layers L.
    pub(crate) layers: usize,
    /// Heads H.
    pub(crate) heads: usize,
    /// Decode steps N.
    pub(crate) steps: usize,
    /// Prompt tokens p.
    pub(crate) positions: usize,
    /// Prompts.
    pub(crate) prompts: usize,
}

/// The token that receives most attention in the deeper half of the layers.
pub(crate) fn hot_token(sizes: Sizes) -> usize {
    sizes.positions * 5 / 8
}

const WORDS: [&str; 16] = [
    "The", " quick", " brown", " fox", " jumps", " over", " the", " lazy", " dog", ",", " and", " then",
    " it", " sleeps", ".", "\n",
];
/// Scripts and bytes that must be displayed correctly.
const SCRIPTS: [&str; 10] =
    ["<s>", "世", "界", " مرحبا", " بك", " <0xF0><0x9F>", "<0x98><0x80>", " naïve", "\n", "<0xE4>"];
const CATEGORIES: [&str; 3] = ["code", "knowledge", "retrieval"];

/// A number in \[0, 1) determined by the arguments.
fn noise(a: usize, b: usize, c: usize) -> f32 {
    let mut x = (a as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (b as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ (c as u64).wrapping_mul(0x1656_67b1_9e37_79f9);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^= x >> 32;
    (x >> 40) as f32 / (1_u64 << 24) as f32
}

/// Writes a run; `scripts` begins every prompt with tokens of many scripts.
pub(crate) fn write(folder: &Path, sizes: Sizes, scripts: bool) {
    let ids = (0..sizes.prompts).map(|index| format!("prompt-{}", index + 1)).collect();
    let mut writer = RunWriter::create_or_resume(folder, manifest(sizes, ids)).expect("a run folder");
    for index in 0..sizes.prompts {
        writer.append(&record(sizes, index, scripts)).expect("a prompt");
    }
    writer.finish().expect("a finished run");
}

fn manifest(sizes: Sizes, ids: Vec<String>) -> Manifest {
    let model = ModelInfo {
        name: "made-up".into(),
        sha256: "00".into(),
        architecture: "llama".into(),
        layers: sizes.layers,
        heads: sizes.heads,
        kv_heads: if sizes.heads.is_multiple_of(2) { 2 } else { 1 },
        head_dim: 64,
        hidden: 64 * sizes.heads,
        feed_forward: 256 * sizes.heads,
        vocab: 32_000,
        context: 1 << 20,
        windowed_layers: vec![1],
        window: Some(512),
        bos: Some(BosToken { id: 1, text: "<s>".into() }),
        weight_bytes: Some(1 << 28),
        row_weights: None,
        adapter: None,
    };
    let settings = Settings {
        max_new_tokens: sizes.steps,
        anchors: Anchor::ALL.to_vec(),
        prompts_file: "made-up.jsonl".into(),
        prompts_sha256: "00".into(),
        other: BTreeMap::new(),
    };
    Manifest::new(model, "f32", "cpu", 4, settings, ids)
}

/// What a step reads: a head follows the text from step to step, or finds the hot token and what is beside it.
fn row_reads(sizes: Sizes, layer: usize, step: usize, prompt_mass: &Array3<f32>) -> RowReads {
    let Sizes { heads, positions, .. } = sizes;
    let mut row = RowReads::default();
    let mut sums: BTreeMap<u32, f32> = BTreeMap::new();
    for head in 0..heads {
        let mass = prompt_mass[(layer, head, step)];
        let place = match (layer + head) % 3 {
            0 => hot_token(sizes) + step % 4,
            1 => step * 5 + head,
            _ => (noise(layer, head, step / 3) * positions as f32) as usize,
        };
        let mut taken = std::collections::BTreeSet::new();
        for rank in 0..OF_HEAD {
            let beside = place + if rank < 4 { rank } else { rank * (7 + head) };
            let position = (1 + beside % (positions - 2)) as u32;
            let attention = mass * 0.6_f32.powi(rank as i32 + 2);
            if attention >= LEAST_OF_HEAD && taken.insert(position) {
                row.heads.push(Read { position, attention });
                *sums.entry(position).or_default() += attention / heads as f32;
            }
        }
        row.ends.push(row.heads.len());
    }
    row.mean = sums.into_iter().map(|(position, attention)| Read { position, attention }).collect();
    row.mean.sort_by(|a, b| b.attention.total_cmp(&a.attention));
    row.mean.truncate(OF_MEAN);
    row
}

fn record(sizes: Sizes, index: usize, scripts: bool) -> PromptRecord {
    let Sizes { layers, heads, steps, positions, .. } = sizes;
    let depth = |layer: usize| layer as f32 / layers as f32;
    let shape = (layers, heads, steps);
    let bos_mass = Array3::from_shape_fn(shape, |(l, h, s)| 0.6 * depth(l) * noise(l, h, s + index));
    let prompt_mass = Array3::from_shape_fn(shape, |(l, h, s)| {
        let left = 1.0 - bos_mass[(l, h, s)];
        left * (1.0 - depth(l)).powi(2) * (0.5 + 0.5 * noise(h, l + 99, index))
    });
    let decode_mass = 1.0 - &bos_mass - &prompt_mass;
    let prompt_entropy = Array3::from_shape_fn(shape, |(l, h, s)| {
        // The deepest layer does not attend to the prompt.
        if l + 1 == layers { f32::NAN } else { 0.3 + 0.6 * noise(l, h + 7, s) }
    });
    let hot = hot_token(sizes);
    let mean = Array2::from_shape_fn((layers, positions), |(l, t)| match t {
        0 => 0.3 + 0.6 * depth(l),
        _ if t == hot && l >= layers / 2 => 0.2,
        _ => (0.2 + noise(l, t, index)) * (1.0 - depth(l)).powi(3) / positions as f32,
    });
    let max = mean.mapv(|mean| (mean * 6.0).min(1.0));
    let curve =
        |turn: f32| (0..=layers).map(|l| f64::from(95.0 - turn * depth(l) + noise(l, index, 3))).collect();
    let knee = layers as f64 * 0.6 + (index % CATEGORIES.len()) as f64 * 0.6;
    let kl = |cutoff: usize, scale: f64| {
        if cutoff == layers { 0.0 } else { scale * 3.0 / (1.0 + ((cutoff as f64 - knee) * 2.0).exp()) + 1e-4 }
    };
    // A text departs early where the distribution moves much, and a text that departs early loses the answer.
    let text = |kl: f64, full: bool| {
        let departs = ((1.0 - kl * 8.0).max(0.0) * steps as f64) as usize;
        let departs = Some(departs).filter(|step| !full && *step + 2 + index % 3 < steps);
        TextUnderCutoff {
            answered: Some(departs.is_none_or(|step| step > steps / 4)),
            ..TextUnderCutoff::departing(departs)
        }
    };
    let divergence = |kl: f64| Divergence { kl, top1: (1.0 - kl / 4.0).max(0.0), dnll: kl * 0.8 };
    let frontier = Anchor::ALL.into_iter().flat_map(|anchor| {
        let scale = if anchor == Anchor::Bos { 1.0 } else { 2.5 };
        (1..=layers).map(move |cutoff| (anchor, cutoff, scale))
    });
    let token = |at: usize| match at {
        _ if scripts && at < SCRIPTS.len() => SCRIPTS[at],
        0 => "<s>",
        _ => WORDS[(at * 7 + index) % WORDS.len()],
    };
    let prompt_token_text: Vec<String> = (0..positions).map(|at| token(at).to_owned()).collect();
    let generated_token_text: Vec<String> = (0..steps).map(|at| WORDS[at % WORDS.len()].to_owned()).collect();
    let reads = Array2::from_shape_fn((layers, steps), |(l, s)| row_reads(sizes, l, s, &prompt_mass));
    let figures = ProbedFigures {
        attention: AttentionFigures {
            bos_mass,
            prompt_mass,
            decode_mass,
            prompt_entropy_nats: prompt_entropy.mapv(|entropy| entropy * (positions as f32 - 2.0).ln()),
            prompt_entropy,
        },
        received: ReceivedFigures { mean, max },
        reads: Some(reads),
        curvature_prompt_deg: curve(12.0),
        curvature_decode_deg: curve(8.0),
        lens: LensFigures {
            kl: Array2::from_shape_fn((layers, steps), |(l, s)| {
                if l + 1 == layers { 0.0 } else { 12.0 * (1.0 - depth(l)) * (0.8 + 0.2 * noise(l, s, index)) }
            }),
            top1: Array2::zeros((layers, steps)),
        },
    };
    let summary = PromptSummary {
        id: format!("prompt-{}", index + 1),
        category: CATEGORIES[index % CATEGORIES.len()].into(),
        text: prompt_token_text.concat(),
        p: positions,
        steps,
        prompt_tokens: (0..positions as u32).map(|at| at + index as u32).collect(),
        prompt_token_text,
        generated: (0..steps as u32).collect(),
        generated_text: generated_token_text.concat(),
        generated_token_text,
        answer_given: false,
        expected: Some("a number".into()),
        native_kl: None,
        timings: Timings { prefill_s: 1.0, decode_s: 1.0, probe_s: 1.0, frontier_s: 1.0 },
        layers: figures.by_layer(),
        heads: figures.by_head(),
        frontier: frontier
            .map(|(anchor, cutoff, scale)| FrontierRow {
                anchor,
                cutoff,
                divergence: divergence(kl(cutoff, scale)),
                text: text(kl(cutoff, scale), cutoff == layers),
            })
            .collect(),
        knockout: (0..layers)
            .map(|layer| KnockoutRow {
                layer,
                divergence: divergence(0.4 * f64::from(noise(layer, index, 5)).powi(3)),
                by_kv_head: vec![],
            })
            .collect(),
    };
    let steps = figures.by_step(positions, &summary.generated);
    PromptRecord { summary, steps, received: figures.received, reads: figures.reads }
}
