#![allow(clippy::unwrap_used)]

use super::*;
use layerscope_diagnostics::record::{
    AttentionMeans, Divergence, FrontierRow, KnockoutRow, LayerFigures, PromptSummary, TextUnderCutoff,
    Timings,
};
use layerscope_diagnostics::run::{AdapterRecord, BosToken, FailedPrompt, Manifest, ModelInfo, Settings};
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A recorded run.
struct Recorded {
    manifest: Manifest,
    prompts: Vec<PromptSummary>,
}

impl Recorded {
    fn recommend(&self, options: Options) -> Result<Recommendation> {
        recommend(Evidence { manifest: &self.manifest, prompts: &self.prompts }, options)
    }

    fn recommended(&self) -> Recommendation {
        self.recommend(Options::default()).unwrap()
    }
}

/// A prompt with this KL at cutoffs 1 … L for the anchor `bos`, and twice as much without; no row where it is NaN.
fn prompt(id: usize, category: &str, kl: &[f64]) -> PromptSummary {
    let divergence = |kl: f64| Divergence { kl, top1: 1.0 - kl.min(1.0), dnll: kl };
    let rows = |anchor: Anchor, factor: f64| {
        kl.iter().enumerate().filter(|(_, kl)| !kl.is_nan()).map(move |(at, kl)| FrontierRow {
            anchor,
            cutoff: at + 1,
            divergence: divergence(kl * factor),
            text: TextUnderCutoff::UNKNOWN,
        })
    };
    let (undefined, nothing) = (vec![f64::NAN; kl.len()], ndarray::Array2::zeros((kl.len(), 0)));
    let curve = vec![90.0; kl.len() + 1];
    PromptSummary {
        id: id.to_string(),
        category: category.to_owned(),
        text: String::new(),
        p: 1_000,
        steps: 32,
        prompt_tokens: vec![],
        prompt_token_text: vec![],
        generated: vec![],
        generated_token_text: vec![],
        generated_text: String::new(),
        answer_given: false,
        expected: None,
        native_kl: None,
        timings: Timings::default(),
        layers: LayerFigures {
            bos_mass: undefined.clone(),
            prompt_mass: kl.to_vec(),
            decode_mass: undefined.clone(),
            prompt_entropy: undefined.clone(),
            prompt_entropy_nats: undefined.clone(),
            selectivity: kl.to_vec(),
            lens_kl: undefined.clone(),
            lens_top1_agreement: undefined,
            curvature_prompt_deg: curve.clone(),
            straightening_prompt_deg: curve.clone(),
            curvature_decode_deg: curve.clone(),
            straightening_decode_deg: curve,
        },
        heads: AttentionMeans {
            bos_mass: nothing.clone(),
            prompt_mass: nothing.clone(),
            decode_mass: nothing.clone(),
            prompt_entropy: nothing.clone(),
            prompt_entropy_nats: nothing.clone(),
            selectivity: nothing,
        },
        frontier: rows(Anchor::Bos, 1.0).chain(rows(Anchor::None, 2.0)).collect(),
        knockout: (0..kl.len())
            .map(|layer| KnockoutRow { layer, divergence: divergence(layer as f64), by_kv_head: vec![] })
            .collect(),
    }
}

/// A run of a model whose KV takes 1,024 bytes for each layer token.
fn run_of(prompts: Vec<PromptSummary>) -> Recorded {
    let model = ModelInfo {
        name: "made up".into(),
        sha256: String::new(),
        architecture: "llama".into(),
        layers: prompts[0].knockout.len(),
        heads: 4,
        kv_heads: 4,
        head_dim: 32,
        hidden: 128,
        feed_forward: 512,
        vocab: 1_000,
        context: 8_192,
        windowed_layers: vec![],
        window: None,
        bos: Some(BosToken { id: 1, text: "<s>".into() }),
        weight_bytes: Some(1 << 20),
        row_weights: None,
        adapter: None,
    };
    let settings = Settings {
        max_new_tokens: 32,
        anchors: Anchor::ALL.to_vec(),
        prompts_file: "prompts.jsonl".into(),
        prompts_sha256: String::new(),
        other: BTreeMap::new(),
    };
    let ids = prompts.iter().map(|prompt| prompt.id.clone()).collect();
    Recorded { manifest: Manifest::new(model, "f32", "cpu", 4, settings, ids), prompts }
}

fn six(kl: &[f64]) -> Recorded {
    run_of((0..6).map(|id| prompt(id, if id < 3 { "code" } else { "math" }, kl)).collect())
}

#[test]
fn windows_are_told_and_so_is_the_layer_of_the_edge() {
    let mut run = six(&[3.0, 2.9, 2.8, 2.7, 0.2, 0.04, 0.01, 0.0]);
    run.manifest.model.windowed_layers = vec![0, 1, 2, 3, 5, 6];
    run.manifest.model.window = Some(512);
    let text = |run: &Recorded| run.recommended().reasons.join("\n");
    let told = text(&run);
    for part in [
        "Layers 4, 7 see the whole prompt, the other 6 a window of 512 tokens: there",
        "The steepest edge of the frontier is layer 4, one that sees the whole prompt: without the prompt from there on it is \
         2.7000 nats, with that layer kept 0.2000; for the tolerance the cutoff keeps 1 layer more, 1 of them windowed.",
    ] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!told.contains("fit into the window"), "{told}");
    // 1,031 tokens are within this one.
    run.manifest.model.window = Some(1_031);
    assert!(text(&run).contains("6 of 6 prompts fit into the window"));
    run.manifest.model.windowed_layers = vec![3];
    assert!(
        text(&run).contains("Layer 3 sees a window of 1031 tokens only, the others the whole prompt: there")
    );
    run.manifest.model.windowed_layers = vec![0, 1, 2, 3, 4, 5, 6, 7];
    let told = text(&run);
    assert!(told.contains("Every layer sees a window of 1031 tokens only"), "{told}");
    assert!(told.contains("layer 4, a windowed one"), "{told}");
}

#[test]
fn a_sharp_knee_is_found_and_explained() {
    let recommendation = six(&[3.0, 2.0, 1.5, 0.04, 0.02, 0.01, 0.001, 0.0]).recommended();
    assert_eq!((recommendation.l_cut, recommendation.layers, recommendation.verdict), (4, 8, Verdict::Cut));
    assert!((recommendation.kl - 0.04).abs() < 1e-12 && (recommendation.kl_below - 1.5).abs() < 1e-12);
    assert!((recommendation.kv_saved - (1.0 - (998.0 * 4.0 + 33.0 * 8.0) / (1031.0 * 8.0))).abs() < 1e-9);
    let other = recommendation.other_anchor.as_ref().unwrap();
    assert_eq!((other.anchor, other.exact_l_cut), (Anchor::None, 4));
    let text = recommendation.reasons.join(" ");
    for part in ["cutoff 4 of 8", "0.0400", "One layer below", "37.5 times", "KV bytes", "hurts most"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert!(recommendation.reasons.iter().all(|reason| reason.ends_with('.')));
    assert_eq!(recommendation.caveats[0], "based on 6 prompts");
}

#[test]
fn without_a_knee_full_depth_is_kept_and_said() {
    let recommendation = six(&[3.0, 2.0, 1.5, 1.0, 0.8, 0.5, 0.2, 0.0]).recommended();
    assert_eq!(
        (recommendation.l_cut, recommendation.verdict, recommendation.kl, recommendation.kv_saved),
        (8, Verdict::KeepFullDepth, 0.0, 0.0)
    );
    assert!(recommendation.reasons[0].starts_with("Keep full depth"), "{}", recommendation.reasons[0]);
}

#[test]
fn a_dip_below_a_hump_does_not_count() {
    let recommendation = six(&[3.0, 0.01, 1.5, 0.04, 0.02, 0.01, 0.001, 0.0]).recommended();
    assert_eq!(recommendation.l_cut, 4);
}

#[test]
fn an_adapter_is_judged_up_to_its_own_cutoff() {
    let adapted = |made_for: &str, kl: &[f64]| {
        let mut run = six(kl);
        run.manifest.model.adapter = Some(AdapterRecord {
            name: "adapter".into(),
            sha256: String::new(),
            rows: "decode".into(),
            policy: Some(made_for.into()),
            training: None,
        });
        run.recommended()
    };
    // Larger cutoffs than its own do not hold; without the adapter they would rule out all below.
    let kl = [3.0, 2.0, 0.04, 0.04, 0.2, 0.3, 0.02, 0.15];
    let recommendation = adapted("speed:4+bos", &kl);
    assert_eq!((recommendation.l_cut, six(&kl).recommended().l_cut), (3, 7));
    assert!(says(
        &recommendation,
        "The adapter was made for cutoff 4. With it, larger ones do not pass (5, 6); leave it away there."
    ));
    assert!(recommendation.categories.iter().all(|category| category.exact_l_cut == 3));
    // Made for another anchor, for a cutoff that does not hold, or for no cutoff.
    for made_for in ["speed:4", "speed:5+bos", "full"] {
        let recommendation = adapted(made_for, &kl);
        assert_eq!(recommendation.l_cut, 7, "{made_for}");
        assert!(!says(&recommendation, "The adapter was made for"));
    }
    assert!(!says(&adapted("speed:7+bos", &kl), "The adapter was made for"));
}

#[test]
fn one_bad_category_holds_the_cutoff_up() {
    let mut prompts: Vec<_> =
        (0..20).map(|id| prompt(id, "code", &[2.0, 0.01, 0.01, 0.01, 0.01, 0.0])).collect();
    prompts.extend((20..23).map(|id| prompt(id, "math", &[2.0, 0.3, 0.3, 0.02, 0.01, 0.0])));
    let recommendation = run_of(prompts).recommended();
    assert_eq!(recommendation.l_cut, 4);
    let text = recommendation.reasons.join(" ");
    assert!(text.contains("math suffers first") && text.contains("code would allow a cutoff of 2"), "{text}");
}

#[test]
fn all_categories_that_fail_below_are_named() {
    let mut prompts: Vec<_> = (0..60).map(|id| prompt(id, "code", &[2.0, 0.01, 0.01, 0.0])).collect();
    prompts.extend((60..63).map(|id| prompt(id, "math", &[2.0, 0.3, 0.01, 0.0])));
    prompts.extend((63..66).map(|id| prompt(id, "qa", &[2.0, 0.2, 0.01, 0.0])));
    let recommendation = run_of(prompts).recommended();
    assert_eq!(recommendation.l_cut, 3);
    assert!(says(&recommendation, "; above the tolerance: math, qa."));
}

#[test]
fn scatter_over_prompts_counts_through_the_upper_bound() {
    let noisy = |id: usize| prompt(id, "code", &[2.0, if id == 0 { 0.5 } else { 0.01 }, 0.01, 0.0]);
    let recommendation = run_of((0..6).map(noisy).collect()).recommended();
    // The mean at 2 is 0.0917, within the tolerance, but its upper bound is not.
    assert_eq!(recommendation.l_cut, 3);
}

#[test]
fn single_prompts_missing_rows_and_one_layer() {
    let recommendation = run_of(vec![prompt(0, "code", &[1.0, 0.01, 0.0])]).recommended();
    assert_eq!(recommendation.l_cut, 2);
    assert_eq!(recommendation.caveats[0], "based on only 1 prompt");
    let recommendation = six(&[1.0, f64::NAN, 0.01, 0.0]).recommended();
    assert_eq!(recommendation.l_cut, 3);
    assert!(recommendation.kl_below.is_nan());
    assert!(says(&recommendation, "One layer below, at 2, the divergence of at least one prompt is missing"));
    let recommendation = six(&[1.0, f64::NAN, 0.0]).recommended();
    assert_eq!((recommendation.l_cut, recommendation.verdict), (3, Verdict::KeepFullDepth));
    assert!(says(&recommendation, "already at 2 of 3 the divergence of at least one prompt is missing"));
    let recommendation = six(&[0.0]).recommended();
    assert_eq!((recommendation.l_cut, recommendation.verdict), (1, Verdict::KeepFullDepth));
    assert!(recommendation.kl_below.is_nan());
    let nothing = run_of(vec![prompt(0, "code", &[f64::NAN, f64::NAN])]);
    assert_eq!(nothing.recommend(Options::default()).unwrap_err().exit_code(), 2);
    let wish = Options { tolerance: f64::NAN, ..Options::default() };
    assert_eq!(six(&[0.0]).recommend(wish).unwrap_err().exit_code(), 2);
}

proptest! {
    #[test]
    fn what_is_recommended_holds(
        curves in proptest::collection::vec(proptest::collection::vec(0.0f64..0.4, 9), 1..12),
        void in 1usize..10,
        tolerance in 0.0f64..0.3,
    ) {
        // Layers from `void` on are never read: KL there is 0.
        let curve = |values: &Vec<f64>| -> Vec<f64> {
            (1..=10).map(|cutoff| if cutoff >= void { 0.0 } else { values[cutoff - 1] }).collect()
        };
        let prompts = curves.iter().enumerate().map(|(id, values)| prompt(id, ["a", "b"][id % 2], &curve(values)));
        let recommendation = run_of(prompts.collect()).recommend(Options { tolerance, ..Options::default() }).unwrap();
        if recommendation.verdict == Verdict::Cut {
            prop_assert!(recommendation.l_cut <= void);
            prop_assert!(recommendation.kl <= tolerance && recommendation.kl_upper95 <= tolerance);
            prop_assert!(recommendation.categories.iter().all(|category| category.kl <= tolerance));
        } else {
            prop_assert_eq!(recommendation.l_cut, 10);
        }
    }
}

fn says(recommendation: &Recommendation, part: &str) -> bool {
    recommendation.reasons.iter().any(|reason| reason.contains(part))
}

fn warns(recommendation: &Recommendation, part: &str) -> bool {
    recommendation.caveats.iter().any(|caveat| caveat.contains(part))
}

#[test]
fn one_missing_row_rules_a_cutoff_out_and_a_prompt_without_rows_is_left_out() {
    let mut run = six(&[5.0, 0.03, 0.02, 0.01, 0.0]);
    run.prompts[2].frontier.remove(1);
    assert_eq!(run.recommended().l_cut, 3);
    // Without any row, the prompt says nothing about any cutoff.
    run.prompts[2].frontier.clear();
    let recommendation = run.recommended();
    assert_eq!((recommendation.l_cut, recommendation.prompts, recommendation.prompts_left_out), (2, 5, 1));
    assert!(warns(&recommendation, "1 prompt failed or unfinished, and left out"));
}

#[test]
fn a_run_with_undefined_distributions_gets_no_recommendation() {
    let refused = |run: &Recorded| {
        let error = run.recommend(Options::default()).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        error.to_string()
    };
    for undefined in [f64::NAN, f64::INFINITY] {
        let mut run = six(&[5.0, 0.03, 0.02, 0.01, 0.0]);
        run.prompts[2].frontier[1].divergence.kl = undefined;
        let sentence = refused(&run);
        let (model, id) = (&run.manifest.model.name, &run.prompts[2].id);
        for part in [&format!("run of {model}"), &format!("prompt `{id}`"), "from layer 2 on"] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }
    // A prompt that could not be recorded at all.
    let mut run = six(&[5.0, 0.0]);
    let reason = "activations are NaN or infinite from layer 1 on".to_owned();
    run.manifest.prompts.failed = vec![FailedPrompt { id: "lost".into(), reason, undefined: true }];
    let sentence = refused(&run);
    assert!(sentence.contains("prompt `lost`") && sentence.contains("from layer 1 on"), "{sentence}");
    run.manifest.prompts.failed[0].undefined = false;
    run.recommended();
}

#[test]
fn void_upper_layers_and_gaps() {
    let recommendation = six(&[2.0, 1.0, 0.0, 0.0, 0.0, 0.0]).recommended();
    assert_eq!((recommendation.l_cut, recommendation.kl), (3, 0.0));
    let recommendation = six(&[0.0; 6]).recommended();
    assert_eq!(recommendation.l_cut, 1);
    assert!(recommendation.kl_below.is_nan());
    let recommendation = six(&[3.0, 0.05, 0.04, 0.5, 0.02, 0.0]).recommended();
    assert_eq!(recommendation.l_cut, 5);
    assert!(says(&recommendation, "Lower cutoffs pass by themselves (2, 3)"));
}

#[test]
fn a_small_category_is_judged_by_its_mean_and_a_third_prompt_brings_the_bound() {
    let mut prompts: Vec<_> = (0..12).map(|id| prompt(id, "chat", &[1.0, 0.01, 0.0])).collect();
    prompts.push(prompt(12, "math", &[1.0, 0.15, 0.0]));
    prompts.push(prompt(13, "math", &[1.0, 0.01, 0.0]));
    let mut run = run_of(prompts);
    let recommendation = run.recommended();
    assert_eq!(recommendation.l_cut, 2);
    assert!(recommendation.categories[1].kl_upper95.is_nan());
    assert!(warns(&recommendation, "judged by their mean alone"));
    run.prompts.push(prompt(14, "math", &[1.0, 0.01, 0.0]));
    assert_eq!(run.recommended().l_cut, 3);
}

#[test]
fn a_saving_under_five_percent_keeps_full_depth() {
    let mut kl = vec![1.0; 40];
    kl[38] = 0.01;
    kl[39] = 0.0;
    let recommendation = six(&kl).recommended();
    assert_eq!((recommendation.l_cut, recommendation.exact_l_cut), (40, 39));
    assert_eq!(recommendation.verdict, Verdict::KeepFullDepth);
    assert!(says(&recommendation, "would stay within the tolerance of 0.1 but save only 2.4 %"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever the frontier: the cutoff and all above it are within the tolerance, the one below is not.
    #[test]
    fn the_rule_holds_for_any_frontier(
        curves in proptest::collection::vec(
            (0_usize..3, proptest::collection::vec(prop_oneof![
                4 => 0.0..0.2_f64, 1 => 0.0..5.0_f64, 1 => Just(f64::NAN), 1 => Just(0.0)], 6)),
            1..8),
        tolerance in 0.0..0.3_f64,
    ) {
        let prompts = curves.iter().enumerate();
        let prompts = prompts.map(|(id, (category, kl))| prompt(id, ["a", "b", "c"][*category], kl));
        let recommendation = run_of(prompts.collect()).recommend(Options { tolerance, ..Options::default() });
        if let Ok(recommendation) = recommendation {
            prop_assert!((1..=6).contains(&recommendation.l_cut));
            prop_assert!(recommendation.frontier[recommendation.exact_l_cut - 1..].iter().all(|at| at.within));
            prop_assert!(recommendation.exact_l_cut == 1 || !recommendation.frontier[recommendation.exact_l_cut - 2].within);
            prop_assert!(recommendation.l_cut == recommendation.exact_l_cut || recommendation.verdict == Verdict::KeepFullDepth);
            let plain = recommendation.reasons.iter().all(|reason| reason.ends_with('.') && !reason.contains("NaN"));
            prop_assert!(plain, "{:#?}", recommendation.reasons);
        } else {
            prop_assert!(curves.iter().all(|(_, kl)| kl.iter().all(|kl| !kl.is_finite())));
        }
    }
}

#[test]
fn blocks_are_pruned_where_the_prompt_is_read_and_below_the_cutoff() {
    use crate::block_schedule::from_recommendation;
    let mut recommendation = six(&[3.0, 2.9, 2.8, 2.7, 0.2, 0.04, 0.01, 0.0]).recommended();
    assert_eq!(recommendation.l_cut, 6);
    let read_at = |recommendation: &mut Recommendation, layer: usize, value: f64| {
        recommendation.causal_layers =
            vec![RankedLayer { layer, value }, RankedLayer { layer: 0, value: 0.01 }];
        from_recommendation(recommendation)
    };
    let schedule = read_at(&mut recommendation, 3, 1.5).unwrap();
    assert_eq!(schedule.policy, "sliminfer:3=25%+5=6.25%");
    assert_eq!(schedule.last_layer_needed, Some(5));
    assert_eq!(Policy::parse(&schedule.policy, 8).unwrap().to_string(), schedule.policy);
    // Read by the last layer below the cutoff, or above it.
    assert_eq!(read_at(&mut recommendation, 5, 1.5).unwrap().policy, "sliminfer:5=25%");
    assert_eq!(read_at(&mut recommendation, 6, 1.5).unwrap().policy, "sliminfer:6=25%");
    // Too little to stand out, or too late to save anything.
    assert_eq!(read_at(&mut recommendation, 3, 0.1), None);
    assert_eq!(read_at(&mut recommendation, 7, 1.5), None);
    recommendation.verdict = Verdict::KeepFullDepth;
    assert_eq!(read_at(&mut recommendation, 3, 1.5).unwrap().policy, "sliminfer:3=25%");
    recommendation.causal_layers.clear();
    assert_eq!(from_recommendation(&recommendation), None);
}

/// Prompts whose KL stays small, and whose answer is kept from `kept_from` on; `none` where the full model does not give it.
fn answering(kept_from: &[Option<usize>]) -> Recorded {
    let prompts = kept_from.iter().enumerate().map(|(id, kept_from)| {
        let mut prompt = prompt(id, ["a", "b"][id % 2], &[0.02, 0.02, 0.02, 0.02, 0.01, 0.0]);
        prompt.expected = Some("yes".into());
        for row in &mut prompt.frontier {
            row.text.answered = match kept_from {
                Some(first) => Some(row.cutoff >= *first),
                None => (row.cutoff == 6).then_some(false),
            };
            row.text.unchanged = Some(row.cutoff >= 5);
        }
        prompt
    });
    run_of(prompts.collect())
}

#[test]
fn a_lost_answer_holds_the_cutoff_up() {
    let run = answering(&[Some(2), Some(2), None, Some(4), Some(1), Some(2)]);
    let recommendation = run.recommended();
    assert_eq!((recommendation.l_cut, recommendation.answers, recommendation.answers_kept), (4, 5, 1.0));
    assert_eq!(recommendation.answers_kept_below, 0.8);
    assert!((recommendation.answers_kept_ci95[0] - 0.5655).abs() < 1e-4);
    assert!(says(&recommendation, "Of 5 answers that the full model gives, it keeps 5; one layer below, 4."));
    assert!(says(&recommendation, "but only 4 of 5 answers are kept there"));
    let kl = Options { criterion: Criterion::Kl, ..Options::default() };
    assert_eq!(run.recommend(kl).unwrap().l_cut, 1);
    let most = Options { kept: 0.8, ..Options::default() };
    assert_eq!(run.recommend(most).unwrap().l_cut, 2);
    let text = Options { criterion: Criterion::Text, ..Options::default() };
    assert_eq!(run.recommend(text).unwrap().l_cut, 5);
    let refused = run.recommend(Options { kept: 1.5, ..Options::default() }).unwrap_err();
    assert!(refused.to_string().contains("1.5 is no share"), "{refused}");
}

#[test]
fn answers_that_every_cutoff_loses_keep_full_depth() {
    let recommendation = answering(&[Some(6), Some(6), Some(6)]).recommended();
    assert_eq!((recommendation.l_cut, recommendation.verdict), (6, Verdict::KeepFullDepth));
    assert!(says(
        &recommendation,
        "even at 5 of 6 only 0 of 3 answers are kept, less than the 95 % asked for"
    ));
}

#[test]
fn a_category_that_proves_a_loss_holds_the_cutoff_up() {
    let mut kept_from = vec![Some(1); 60];
    (1..6).step_by(2).for_each(|id| kept_from[id] = Some(3));
    let wanted = |kept| Options { kept, ..Options::default() };
    let run = answering(&kept_from);
    // 57 of 60 is 95 %, and 27 of 30 may be.
    assert_eq!(run.recommend(wanted(0.95)).unwrap().l_cut, 1);
    (7..20).step_by(2).for_each(|id| kept_from[id] = Some(3));
    let run = answering(&kept_from);
    // 50 of 60 is 83.3 %. 20 of 30 happen in 2.2 % of cases if 83 % are kept, in 6.1 % if 80 % are.
    assert_eq!(run.recommend(wanted(0.80)).unwrap().l_cut, 1);
    assert_eq!(run.recommend(wanted(0.83)).unwrap().l_cut, 3);
}

#[test]
fn full_depth_is_kept_for_the_category_that_loses() {
    // 217 of 240 answers are kept, enough for 90 %; those of b are 97 of 120.
    let mut kept_from = vec![Some(1); 240];
    (1..47).step_by(2).for_each(|id| kept_from[id] = Some(6));
    let options = Options { kept: 0.9, ..Options::default() };
    let recommendation = answering(&kept_from).recommend(options).unwrap();
    assert_eq!(recommendation.verdict, Verdict::KeepFullDepth);
    assert!(says(
        &recommendation,
        "even at 5 of 6 only 97 of 120 answers of b are kept, less than the 90 % asked for"
    ));
}

#[test]
fn without_an_answer_only_distributions_are_judged_and_that_is_said() {
    let recommendation = six(&[3.0, 2.0, 1.5, 0.04, 0.02, 0.01, 0.001, 0.0]).recommended();
    assert!(recommendation.answers == 0 && recommendation.answers_kept.is_nan());
    assert!(says(
        &recommendation,
        "No prompt of this run expects an answer, so only distributions were judged"
    ));
    let recommendation = answering(&[None, None]).recommended();
    assert!(says(&recommendation, "The full model gives none of the 2 expected answers"));
    assert!(says(&recommendation, "layerscope needle MODEL"));
}
