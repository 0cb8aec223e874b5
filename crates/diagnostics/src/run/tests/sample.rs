//! Small synthetic records, determined by a seed.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use ndarray::{Array2, Array3};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::super::{BosToken, Manifest, ModelInfo, RunWriter, Settings, Table};
use crate::reads::{Read, RowReads};
use crate::record::*;

pub(super) const LAYERS: usize = 3;
pub(super) const HEADS: usize = 2;

/// A manifest for prompts `q0` … `q{prompts−1}`.
pub(super) fn manifest(prompts: usize) -> Manifest {
    let model = ModelInfo {
        name: "tiny".into(),
        sha256: "0123456789abcdef".into(),
        architecture: "llama".into(),
        layers: LAYERS,
        heads: HEADS,
        kv_heads: 1,
        head_dim: 4,
        hidden: 8,
        feed_forward: 16,
        vocab: 32,
        context: 128,
        windowed_layers: vec![1],
        window: Some(16),
        bos: Some(BosToken { id: 1, text: "<s>".into() }),
        weight_bytes: None,
        row_weights: None,
        adapter: None,
    };
    let settings = Settings {
        max_new_tokens: 8,
        anchors: Anchor::ALL.to_vec(),
        prompts_file: "prompts.jsonl".into(),
        prompts_sha256: "feedbeef00".into(),
        other: BTreeMap::new(),
    };
    let ids = (0..prompts).map(|index| format!("q{index}")).collect();
    Manifest::new(model, "native", "cpu", 4, settings, ids)
}

/// The record of prompt `q{index}`.
pub(super) fn record(index: usize) -> PromptRecord {
    sized_record(index, LAYERS, HEADS, 5 + index % 3, 6 + index)
}

pub(super) fn sized_record(
    index: usize,
    layers: usize,
    heads: usize,
    steps: usize,
    p: usize,
) -> PromptRecord {
    let figures = sized_figures(index, layers, heads, steps, p);
    let divergence = |scale: f64| Divergence { kl: scale, top1: 1.0 - scale / 10.0, dnll: scale / 2.0 };
    let tokens = |count: usize| (0..count as u32).map(|token| 7 * token + index as u32);
    let generated: Vec<u32> = tokens(steps).collect();
    let summary = PromptSummary {
        id: format!("q{index}"),
        category: if index.is_multiple_of(2) { "even" } else { "odd" }.into(),
        text: format!("What is {index}? ☃\nLine two"),
        p,
        steps,
        prompt_tokens: tokens(p).collect(),
        prompt_token_text: tokens(p).map(|token| format!("t{token}")).collect(),
        generated_token_text: tokens(steps).map(|token| format!("g{token}")).collect(),
        generated_text: format!("It is {index}."),
        answer_given: index == 1,
        expected: (index == 1).then(|| "mat".to_owned()),
        native_kl: (index != 2).then_some(0.5 + index as f64),
        timings: Timings { prefill_s: 0.5, decode_s: 0.25, probe_s: 1.0, frontier_s: 2.0 },
        layers: figures.by_layer(),
        heads: figures.by_head(),
        frontier: Anchor::ALL
            .into_iter()
            .flat_map(|anchor| {
                (1..=layers).map(move |cutoff| FrontierRow {
                    anchor,
                    cutoff,
                    divergence: divergence((layers - cutoff) as f64 / 10.0),
                    text: TextUnderCutoff {
                        unchanged: (index != 2).then_some(cutoff == layers),
                        departs: (index != 2 && cutoff != layers).then_some(cutoff % steps.max(1)),
                        answered: (index == 1).then_some(cutoff > 1),
                    },
                })
            })
            .collect(),
        knockout: (0..layers)
            .map(|layer| KnockoutRow {
                layer,
                divergence: divergence(if layer == 0 { f64::NAN } else { 0.25 }),
                // Measured of one prompt alone.
                by_kv_head: if index == 1 { vec![divergence(0.125); 1] } else { vec![] },
            })
            .collect(),
        generated,
    };
    let steps = figures.by_step(p, &summary.generated);
    PromptRecord { summary, steps, received: figures.received, reads: figures.reads }
}

/// The probes' measurements of prompt `q{index}`.
pub(super) fn figures(index: usize) -> ProbedFigures {
    sized_figures(index, LAYERS, HEADS, 5 + index % 3, 6 + index)
}

fn sized_figures(index: usize, layers: usize, heads: usize, steps: usize, p: usize) -> ProbedFigures {
    let mut rng = ChaCha8Rng::seed_from_u64(index as u64);
    let mut unit = || rng.random::<f32>();
    let shape = (layers, heads, steps);
    let bos_mass = Array3::from_shape_simple_fn(shape, || 0.5 * unit());
    let prompt_mass = bos_mass.mapv(|bos| (1.0 - bos) * unit());
    let decode_mass = 1.0 - &bos_mass - &prompt_mass;
    let mut prompt_entropy = Array3::from_shape_simple_fn(shape, &mut unit);
    prompt_entropy[(1, 0, 0)] = f32::NAN;
    let prompt_entropy_nats = &prompt_entropy * ((p - 2) as f32).ln();
    let received = Array2::from_shape_simple_fn((layers, p), &mut unit);
    let mut curve: Vec<f64> = (0..=layers).map(|_| 90.0 * f64::from(unit())).collect();
    curve[layers] = f64::NAN;
    ProbedFigures {
        attention: AttentionFigures {
            bos_mass,
            prompt_mass,
            decode_mass,
            prompt_entropy,
            prompt_entropy_nats,
        },
        received: ReceivedFigures { max: received.mapv(|mean| mean * 2.0), mean: received },
        reads: (index != 2).then(|| reads(index, layers, heads, steps, p)),
        curvature_prompt_deg: curve.clone(),
        curvature_decode_deg: curve.iter().map(|degrees| degrees + 1.0).collect(),
        lens: LensFigures {
            kl: Array2::from_shape_simple_fn((layers, steps), &mut unit),
            top1: Array2::from_shape_fn((layers, steps), |(layer, step)| {
                (if layer + 1 < layers { step % 2 } else { 0 }) as u32
            }),
        },
    }
}

/// Lists of all lengths, empty ones among them.
fn reads(index: usize, layers: usize, heads: usize, steps: usize, p: usize) -> Array2<RowReads> {
    Array2::from_shape_fn((layers, steps), |(layer, step)| {
        let list = |salt: usize, most: usize| {
            let count = (index + layer + step * 3 + salt) % (most + 1);
            (0..count).map(move |at| Read {
                position: (1 + (at + salt) % (p - 2)) as u32,
                attention: 0.5 / (at + salt + 1) as f32,
            })
        };
        let mut row = RowReads { mean: list(0, 5).collect(), ..RowReads::default() };
        for head in 0..heads {
            row.heads.extend(list(head + 1, 3));
            row.ends.push(row.heads.len());
        }
        row
    })
}

/// A finished run of `prompts` prompts.
pub(super) fn finished(folder: &Path, prompts: usize) {
    let mut writer = RunWriter::create_or_resume(folder, manifest(prompts)).expect("create");
    for index in 0..prompts {
        writer.append(&record(index)).expect("append");
    }
    writer.finish().expect("finish");
}

/// The bytes of all tables.
pub(super) fn tables(folder: &Path) -> Vec<Vec<u8>> {
    let read = |table: Table| fs::read(folder.join(table.file_name())).expect("table");
    Table::ALL.into_iter().map(read).collect()
}
