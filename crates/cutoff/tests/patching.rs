//! Maps of patches against plain whole reruns with a hook that replaces the activation.

#![allow(clippy::unwrap_used)]

mod support;

use layerscope_cutoff::patching::{PatchEvent, PatchQuestion, patch};
use layerscope_diagnostics::patching::{PatchDirection, PatchFigures, PatchMap, PatchMetric, PatchSite};
use layerscope_engine::{
    Adapter, AdapterRows, Decoder, Device, Error, HookPoint, Hooks, Interrupt, LowRank, Result, Site, Target,
};
use layerscope_kernels::reference;
use ndarray::{ArrayD, s};
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use support::{MODEL, family, family_on, logits_with_hooks};

fn hooked(site: PatchSite) -> Site {
    match site {
        PatchSite::ResidPre => Site::ResidPre,
        PatchSite::AttnOut => Site::AttentionOutput,
        PatchSite::MlpOut => Site::MlpOutput,
        PatchSite::Head => Site::WeightedValues,
    }
}

fn text(id: u32) -> String {
    format!("<{id}>")
}

fn patched(decoder: &Arc<Decoder>, question: &PatchQuestion<'_>) -> Result<PatchMap> {
    patch(decoder, question, &text, &Interrupt::new(false), &mut |_| {})
}

/// An activation of a whole run.
fn activation(decoder: &Arc<Decoder>, prompt: &[u32], point: HookPoint) -> ArrayD<f32> {
    let kept = RefCell::new(None);
    let mut hooks = Hooks::none();
    hooks.add(point, |_, x| {
        *kept.borrow_mut() = Some(x.to_owned());
        Ok(None)
    });
    logits_with_hooks(decoder, prompt, &mut hooks);
    drop(hooks);
    kept.into_inner().unwrap()
}

/// Logits of a whole run of the base in which a cell's activation is the source's.
fn rerun(decoder: &Arc<Decoder>, question: &PatchQuestion<'_>, layer: usize, column: usize) -> Vec<f32> {
    let (base, source) = match question.direction {
        PatchDirection::Denoising => (question.corrupted, question.clean),
        PatchDirection::Noising => (question.clean, question.corrupted),
    };
    let point = HookPoint { layer, site: hooked(question.site) };
    let of_source = activation(decoder, source, point);
    let all: Vec<usize> = (0..base.len()).collect();
    let mut hooks = Hooks::none();
    hooks.add(point, |_, x| {
        let mut x = x.to_owned();
        match question.site {
            PatchSite::Head => {
                for &position in question.positions.unwrap_or(&all) {
                    let of_source = of_source.slice(s![position, column, ..]);
                    x.slice_mut(s![position, column, ..]).assign(&of_source);
                }
            }
            _ => x.slice_mut(s![column, ..]).assign(&of_source.slice(s![column, ..])),
        }
        Ok(Some(x))
    });
    logits_with_hooks(decoder, base, &mut hooks)
}

fn assert_figures(found: PatchFigures, logits: &[f32], clean: &[f32], map: &PatchMap, what: &str) {
    let logit = |token: u32| f64::from(logits[token as usize]);
    let logit_diff = logit(map.answer.id) - logit(map.wrong.id);
    let kl = reference::kl_divergence(clean, logits);
    assert!((found.logit_diff - logit_diff).abs() < 1e-4, "{what}: {} {logit_diff}", found.logit_diff);
    assert!((found.kl - kl).abs() < 1e-4, "{what}: KL {} {kl}", found.kl);
}

/// Every cell, or every `every`th, is that of a whole rerun.
fn assert_exact(decoder: &Arc<Decoder>, question: &PatchQuestion<'_>, every: usize) {
    let map = patched(decoder, question).unwrap();
    let [clean, corrupted] = [question.clean, question.corrupted]
        .map(|prompt| logits_with_hooks(decoder, prompt, &mut Hooks::none()));
    assert_figures(map.clean.figures, &clean, &clean, &map, "clean");
    assert_figures(map.corrupted.figures, &corrupted, &clean, &map, "corrupted");
    assert!(map.is_complete());
    let places = map.layers.iter().enumerate().flat_map(|(row, &layer)| {
        map.columns.iter().enumerate().map(move |(at, &column)| (row, at, layer, column))
    });
    for (row, at, layer, column) in places.step_by(every) {
        let logits = rerun(decoder, question, layer, column);
        let what = format!("{:?} {:?}, layer {layer}, column {column}", question.site, question.direction);
        assert_figures(map.cell(row, at).unwrap(), &logits, &clean, &map, &what);
    }
}

fn question<'a>(clean: &'a [u32], corrupted: &'a [u32], site: PatchSite) -> PatchQuestion<'a> {
    PatchQuestion {
        clean,
        corrupted,
        site,
        direction: PatchDirection::Denoising,
        metric: Some(PatchMetric::Kl),
        answer: Some(7),
        wrong: Some(9),
        layers: None,
        positions: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn every_cell_equals_a_whole_rerun(
        clean in proptest::collection::vec(3u32..900, 1..40),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), 3u32..900), 1..4),
        noising in any::<bool>(),
        site in 0usize..4,
        layers in proptest::option::of(proptest::collection::vec(0usize..8, 1..4)),
        positions in proptest::option::of(proptest::collection::vec(any::<prop::sample::Index>(), 1..5)),
    ) {
        let mut corrupted = clean.clone();
        for (at, token) in &changes {
            let at = at.index(clean.len());
            corrupted[at] = if clean[at] == *token { token + 1 } else { *token };
        }
        let positions: Option<Vec<usize>> =
            positions.map(|chosen| chosen.iter().map(|at| at.index(clean.len())).collect());
        let question = PatchQuestion {
            direction: if noising { PatchDirection::Noising } else { PatchDirection::Denoising },
            layers: layers.as_deref(),
            positions: positions.as_deref(),
            ..question(&clean, &corrupted, PatchSite::ALL[site])
        };
        assert_exact(&MODEL.decoder, &question, 7);
    }
}

fn tokens(count: usize, seed: usize, vocab: usize) -> Vec<u32> {
    (0..count).map(|index| (3 + (index * 37 + index * index * seed) % (vocab - 10)) as u32).collect()
}

/// Windows, norms behind attention and MLP, parallel halves, experts, scaled residual streams, learned positions.
#[test]
fn every_family_is_patched_as_it_is_run() {
    for name in ["gemma2", "gemma3", "gpt_neox", "olmoe", "granite", "gpt2", "qwen3"] {
        let decoder = family(name);
        let vocab = decoder.config().vocab;
        let clean = tokens(19, 5, vocab);
        let mut corrupted = clean.clone();
        (corrupted[2], corrupted[11]) = ((clean[2] + 1) % vocab as u32, (clean[11] + 3) % vocab as u32);
        for site in PatchSite::ALL {
            assert_exact(&decoder, &question(&clean, &corrupted, site), 5);
        }
    }
}

/// A random adapter of every matrix of the embedded model.
fn adapter(rows: AdapterRows) -> Adapter {
    let config = MODEL.decoder.config();
    let mut state = 7u32;
    let mut numbers = |len: usize| -> Vec<f32> {
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            0.1 * ((state >> 8) as f32 / (1u32 << 23) as f32 - 1.0)
        };
        (0..len).map(number).collect()
    };
    let mut matrices = BTreeMap::new();
    for layer in 0..config.layers {
        for target in Target::ALL {
            let [out, columns] = target.shape(config).unwrap();
            let (a, b) = (numbers(4 * columns), numbers(4 * out));
            matrices.insert((layer, target), LowRank { a, b, rank: 4, scale: 2.0 });
        }
    }
    Adapter::new(rows, matrices, config).unwrap()
}

/// One of all rows, and one of decode rows, which acts on the prompt's last token alone.
#[test]
fn adapted_models_are_patched_as_they_run() {
    let clean = tokens(24, 7, 900);
    let mut corrupted = clean.clone();
    (corrupted[6], corrupted[23]) = (55, 77);
    let plain = patched(&MODEL.decoder, &question(&clean, &corrupted, PatchSite::Head)).unwrap();
    let mut told = vec![plain.corrupted.figures];
    for rows in [AdapterRows::All, AdapterRows::Decode] {
        let decoder = Arc::new(MODEL.decoder.with_adapter(&adapter(rows)).unwrap());
        for site in PatchSite::ALL {
            for direction in PatchDirection::ALL {
                assert_exact(&decoder, &PatchQuestion { direction, ..question(&clean, &corrupted, site) }, 5);
            }
        }
        let map = patched(&decoder, &question(&clean, &corrupted, PatchSite::ResidPre)).unwrap();
        assert!(told.iter().all(|other| (other.kl - map.corrupted.figures.kl).abs() > 1e-3), "{told:?}");
        told.push(map.corrupted.figures);
    }
}

/// On a GPU, or where there is none on the emulated one.
#[cfg(target_os = "linux")]
#[test]
fn a_gpu_gives_the_same_map() {
    let device = Device::Cuda(layerscope_kernels::cuda::Device::for_tests());
    let [on_host, on_device] = [&Device::Cpu, &device].map(|device| family_on("gemma3", device));
    let clean = tokens(9, 5, on_host.config().vocab);
    let mut corrupted = clean.clone();
    corrupted[5] += 1;
    for site in PatchSite::ALL {
        let question = PatchQuestion { layers: Some(&[0, 1]), ..question(&clean, &corrupted, site) };
        let [host, device] = [&on_host, &on_device].map(|decoder| patched(decoder, &question).unwrap());
        for (host, device) in host.cells.iter().flatten().zip(device.cells.iter().flatten()) {
            let differences = [host.logit_diff - device.logit_diff, host.kl - device.kl];
            assert!(differences.iter().all(|x| x.abs() < 1e-3), "{site:?}: {host:?} {device:?}");
        }
        assert!(device.is_complete());
    }
}

/// 512 rows go through the layers at once.
#[test]
fn prompts_may_be_longer_than_a_chunk() {
    let clean = tokens(530, 11, 900);
    let mut corrupted = clean.clone();
    corrupted[3] = 77;
    for site in [PatchSite::ResidPre, PatchSite::MlpOut] {
        let question = PatchQuestion {
            layers: Some(&[0, 6, 7]),
            positions: Some(&[0, 3, 4, 300, 511, 512, 529]),
            ..question(&clean, &corrupted, site)
        };
        assert_exact(&MODEL.decoder, &question, 5);
    }
    let question = PatchQuestion { layers: Some(&[2, 7]), ..question(&clean, &corrupted, PatchSite::Head) };
    assert_exact(&MODEL.decoder, &question, 7);
}

#[test]
fn what_is_shared_has_the_bits_of_the_unpatched_run() {
    let clean = tokens(24, 7, 900);
    let mut corrupted = clean.clone();
    corrupted[9] = 55;
    let map = patched(&MODEL.decoder, &question(&clean, &corrupted, PatchSite::ResidPre)).unwrap();
    let base = Some(map.corrupted.figures);
    for row in 0..map.layers.len() {
        assert!((0..9).all(|column| map.cell(row, column) == base), "before the first difference");
    }
    // Tokens behind it are the same, too, until a layer has run.
    assert!((10..24).all(|column| map.cell(0, column) == base) && map.cell(0, 9) != base);
    // The whole difference goes through the one token that differs, and at last is in the last row.
    let clean_again = map.effect(map.cell(0, 9).unwrap());
    assert!((clean_again - 1.0).abs() < 1e-4, "{clean_again}");
    let noising = PatchQuestion {
        direction: PatchDirection::Noising,
        ..question(&clean, &corrupted, PatchSite::ResidPre)
    };
    let map = patched(&MODEL.decoder, &noising).unwrap();
    assert_eq!(map.cell(0, 3), Some(map.clean.figures));
    assert!(map.effect(map.cell(0, 9).unwrap()).abs() < 1e-4);
}

#[test]
fn answers_are_what_the_runs_say_where_none_are_given() {
    let clean = tokens(24, 7, 900);
    let mut corrupted = clean.clone();
    corrupted[22] = 55;
    let open = PatchQuestion {
        metric: None,
        answer: None,
        wrong: None,
        ..question(&clean, &corrupted, PatchSite::Head)
    };
    let map = patched(&MODEL.decoder, &open).unwrap();
    let said = |prompt: &[u32]| {
        let logits = logits_with_hooks(&MODEL.decoder, prompt, &mut Hooks::none());
        (0..logits.len()).fold(0, |best, at| if logits[at] > logits[best] { at } else { best }) as u32
    };
    assert_eq!((map.answer.id, map.wrong.id), (said(&clean), said(&corrupted)));
    assert_eq!((map.clean.next.id, map.clean.next.text.as_str()), (said(&clean), &*text(said(&clean))));
    assert_eq!(map.metric, PatchMetric::Kl);
    let given = PatchQuestion { answer: Some(5), wrong: Some(6), ..open };
    assert_eq!(patched(&MODEL.decoder, &given).unwrap().metric, PatchMetric::LogitDiff);
}

#[test]
fn an_interrupted_map_keeps_what_is_done() {
    let clean = tokens(60, 7, 900);
    let mut corrupted = clean.clone();
    corrupted[1] = 55;
    let interrupt = Interrupt::new(false);
    let mut stop = |event: PatchEvent| {
        if let PatchEvent::Rows { done, all } = event {
            interrupt.store(2 * done > all, Ordering::Relaxed);
        }
    };
    let whole = question(&clean, &corrupted, PatchSite::AttnOut);
    let map = patch(&MODEL.decoder, &whole, &text, &interrupt, &mut stop).unwrap();
    assert!(!map.is_complete() && map.done() > 0);
    let complete = patched(&MODEL.decoder, &whole).unwrap();
    for row in 0..map.layers.len() {
        assert!(map.cell(row, 59).is_some() && map.cell(row, 1).is_none());
        for column in 0..60 {
            assert!(map.cell(row, column).is_none() || map.cell(row, column) == complete.cell(row, column));
        }
    }
    let stopped = patch(&MODEL.decoder, &whole, &text, &Interrupt::new(true), &mut |_| {}).unwrap_err();
    assert_eq!(stopped.exit_code(), 130);
}

#[test]
fn all_rows_that_are_announced_run() {
    let clean = tokens(30, 7, 900);
    let mut corrupted = clean.clone();
    corrupted[4] = 55;
    for site in PatchSite::ALL {
        let mut last = None;
        let whole = question(&clean, &corrupted, site);
        patch(&MODEL.decoder, &whole, &text, &Interrupt::new(false), &mut |event| last = Some(event))
            .unwrap();
        assert!(matches!(last, Some(PatchEvent::Rows { done, all }) if done == all), "{site:?} {last:?}");
    }
}

#[test]
fn what_is_not_there_is_refused() {
    let (clean, mut corrupted) = (tokens(20, 7, 900), tokens(20, 7, 900));
    corrupted[4] = 55;
    let refused = |question: &PatchQuestion<'_>, part: &str| {
        let error: Error = patched(&MODEL.decoder, question).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(part), "{error}");
    };
    let asked = question(&clean, &corrupted, PatchSite::ResidPre);
    refused(&PatchQuestion { clean: &clean[..19], ..asked.clone() }, "19 tokens and the corrupted one 20");
    refused(&PatchQuestion { clean: &[], corrupted: &[], ..asked.clone() }, "prompt");
    refused(&PatchQuestion { corrupted: &clean, ..asked.clone() }, "the same tokens");
    refused(&PatchQuestion { layers: Some(&[2, 8]), ..asked.clone() }, "no layer 8");
    refused(&PatchQuestion { positions: Some(&[20]), ..asked.clone() }, "positions from 0 to 19");
    refused(&PatchQuestion { positions: Some(&[]), ..asked.clone() }, "no position is chosen");
    refused(&PatchQuestion { answer: Some(99_999), ..asked.clone() }, "no token 99999");
    let same = PatchQuestion { answer: Some(5), wrong: Some(5), metric: None, ..asked };
    refused(&same, "--metric kl");
}
