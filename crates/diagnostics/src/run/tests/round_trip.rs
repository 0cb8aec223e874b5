//! Recorded data is read unchanged.

use layerscope_engine::Error;
use std::fs;

use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;

use super::super::*;
use super::sample::*;
use crate::machine::Machine;
use crate::record::{Anchor, LAYER_FIGURES, PromptRecord, PromptSummary, TextUnderCutoff};

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6 || (a.is_nan() && b.is_nan())
}

/// Checks every figure of `q{index}` against plain loops over its record.
fn check_prompt(run: &Run, index: usize) {
    let PromptRecord { summary: wanted, steps: wanted_steps, received: wanted_received, reads } =
        record(index);
    let prompt = run.prompt(&wanted.id).expect("prompt");
    assert_eq!(prompt.category, wanted.category);
    assert_eq!(prompt.text, wanted.text);
    assert_eq!(prompt.prompt_tokens, wanted.prompt_tokens);
    assert_eq!(prompt.prompt_token_text, wanted.prompt_token_text);
    assert_eq!(prompt.generated, wanted.generated);
    assert_eq!(prompt.generated_text, wanted.generated_text);
    assert_eq!(prompt.answer_given, wanted.answer_given);
    assert_eq!(prompt.native_kl, wanted.native_kl);
    assert_eq!(prompt.expected, wanted.expected);
    let texts = |prompt: &PromptSummary| prompt.frontier.iter().map(|row| row.text).collect::<Vec<_>>();
    assert_eq!(texts(&prompt), texts(&wanted));
    assert_eq!(prompt.timings, wanted.timings);
    assert_eq!(prompt.frontier, wanted.frontier);
    assert_eq!(prompt.knockout.len(), LAYERS);
    assert!(prompt.knockout[0].divergence.kl.is_nan());
    assert_eq!(prompt.knockout[1], wanted.knockout[1]);

    let measured = figures(index);
    let attention = &measured.attention;
    let (_, heads, steps) = attention.bos_mass.dim();
    let by_step = run.steps(&wanted.id).expect("steps");
    assert_eq!(by_step.positions[0], wanted.p - 1);
    assert_eq!(by_step.positions, wanted_steps.positions);
    assert_eq!(by_step.token_ids, wanted.generated);
    assert_eq!(by_step.lens.top1, measured.lens.top1);
    assert_eq!(by_step.lens.kl, measured.lens.kl);
    for layer in 0..LAYERS {
        let (mut mass, mut entropy, mut selectivity, mut defined) = (0.0, 0.0, 0.0, 0.0);
        for head in 0..heads {
            let mut head_mass = 0.0;
            for step in 0..steps {
                let at = (layer, head, step);
                let m = f64::from(attention.prompt_mass[at]);
                let e = f64::from(attention.prompt_entropy[at]);
                (mass, head_mass) = (mass + m, head_mass + m);
                if !e.is_nan() {
                    entropy += e;
                    selectivity += m * (1.0 - e);
                    defined += 1.0;
                }
            }
            let read = prompt.heads.prompt_mass[(layer, head)];
            assert!(close(read, head_mass / steps as f64));
        }
        let cells = (heads * steps) as f64;
        assert!(close(prompt.layers.prompt_mass[layer], mass / cells));
        assert!(close(prompt.layers.prompt_entropy[layer], entropy / defined));
        assert!(close(prompt.layers.selectivity[layer], selectivity / defined));
        let over_steps = by_step.attention.prompt_mass.row(layer).sum() / steps as f64;
        assert!(close(over_steps, mass / cells));
    }
    let agreement = steps.div_ceil(2) as f64 / steps as f64;
    assert!(close(prompt.layers.lens_top1_agreement[0], agreement));
    assert!(close(prompt.layers.lens_top1_agreement[LAYERS - 1], 1.0));
    let curve = &measured.curvature_prompt_deg;
    assert!(curve[LAYERS].is_nan());
    for (at, wanted) in curve.iter().enumerate() {
        assert!(close(prompt.layers.curvature_prompt_deg[at], *wanted));
        let straightening = prompt.layers.straightening_prompt_deg[at];
        assert!(close(straightening, wanted - curve[1]));
    }
    let received = run.tokens(&wanted.id).expect("tokens");
    assert_eq!(received.mean, wanted_received.mean);
    assert_eq!(received.max, wanted_received.max);
    assert_eq!(run.reads(&wanted.id).expect("reads"), reads);
}

#[test]
fn a_run_reads_back_finished_or_not() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(4)).expect("create");
    for index in [0, 1, 3] {
        writer.append(&record(index)).expect("append");
    }
    writer.fail("q2", &Error::input("too long for the model")).expect("fail");
    let unfinished = Run::open(folder.path()).expect("open");
    assert_eq!(unfinished.manifest().status, Status::Running);
    writer.finish().expect("finish");
    let finished = Run::open(folder.path()).expect("open");
    assert_eq!(finished.manifest().status, Status::Complete);
    for run in [&unfinished, &finished] {
        assert_eq!(run.prompt_ids(), ["q0", "q1", "q3"]);
        assert_eq!(run.manifest().prompts.failed[0].id, "q2");
        let native_kl = run.manifest().native_kl.expect("native_kl");
        assert!(close(native_kl, (0.5 + 1.5 + 3.5) / 3.0));
    }
    for index in [0, 1, 3] {
        check_prompt(&finished, index);
    }
    let error = finished.prompt("q2").expect_err("failed prompt");
    assert!(error.to_string().contains("\"q0\", \"q1\", \"q3\""));
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).expect("list").map(|entry| entry.expect("entry").file_name()).collect();
    names.sort();
    let mut wanted = vec![".lock", "manifest.json"];
    wanted.extend(Table::ALL.iter().map(|table| table.file_name()));
    wanted.sort_unstable();
    assert_eq!(names, wanted);
}

#[test]
fn the_parts_of_an_unfinished_run_read_like_its_tables() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("create");
    writer.append(&record(1)).expect("append");
    check_prompt(&Run::open(folder.path()).expect("open"), 1);
    writer.finish().expect("finish");
    writer.append(&record(0)).expect("append");
    let mixed = Run::open(folder.path()).expect("open");
    assert_eq!(mixed.prompt_ids(), ["q0", "q1"]);
    check_prompt(&mixed, 0);
    check_prompt(&mixed, 1);
}

#[test]
fn tables_with_several_prompts_in_one_row_group_read_the_same() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 3);
    for table in Table::ALL {
        let path = folder.path().join(table.file_name());
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).expect("file")).expect("table");
        let batches: Vec<_> = reader.build().expect("reader").collect::<Result<_, _>>().expect("rows");
        let file = fs::File::create(&path).expect("file");
        let mut writer = ArrowWriter::try_new(file, table.schema(), None).expect("writer");
        batches.iter().for_each(|batch| writer.write(batch).expect("write"));
        assert_eq!(writer.close().expect("close").num_row_groups(), 1);
    }
    let run = Run::open(folder.path()).expect("open");
    assert_eq!(run.prompt_ids(), ["q0", "q1", "q2"]);
    (0..3).for_each(|index| check_prompt(&run, index));
}

/// Schema 1 knew nothing of texts and answers.
#[test]
fn runs_of_schema_1_are_read_with_what_they_lack_unknown() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    for table in [Table::Prompts, Table::Frontier, Table::Steps] {
        let path = folder.path().join(table.file_name());
        let reader =
            ParquetRecordBatchReaderBuilder::try_new(fs::File::open(&path).expect("file")).expect("table");
        let later = ["expected", "unchanged", "departs", "answered"];
        let of_schema_1 =
            |name: &str| !later.contains(&name) && !name.contains("read_") && name != "head_reads";
        let known: Vec<usize> = (0..table.schema().fields().len())
            .filter(|&column| of_schema_1(table.schema().field(column).name()))
            .collect();
        assert!(known.len() < table.schema().fields().len());
        let batches: Vec<_> = reader
            .build()
            .expect("reader")
            .map(|batch| batch.expect("rows").project(&known).expect("columns"))
            .collect();
        let file = fs::File::create(&path).expect("file");
        let mut writer = ArrowWriter::try_new(file, batches[0].schema(), None).expect("writer");
        batches.iter().for_each(|batch| writer.write(batch).expect("write"));
        writer.close().expect("close");
    }
    let run = Run::open(folder.path()).expect("open");
    let prompt = run.prompt("q1").expect("prompt");
    assert_eq!(prompt.expected, None);
    assert_eq!(prompt.frontier.len(), record(1).summary.frontier.len());
    assert!(prompt.frontier.iter().all(|row| row.text == TextUnderCutoff::UNKNOWN));
    let wanted = record(1).summary.frontier[0].divergence;
    assert!(close(prompt.frontier[0].divergence.kl, wanted.kl));
    assert_eq!(run.reads("q1").expect("no reads"), None);
    assert_eq!(run.steps("q1").expect("steps").token_ids, record(1).steps.token_ids);
}

#[test]
fn show_prints_the_agreed_object_with_null_for_undefined() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    let run = Run::open(folder.path()).expect("open");
    let json = serde_json::to_value(run.show().expect("show")).expect("json");
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().expect("object").keys().cloned().collect() };
    assert_eq!(keys(&json), ["manifest", "prompts"]);
    let prompt = &json["prompts"][0];
    assert_eq!(
        keys(prompt),
        [
            "id",
            "category",
            "p",
            "prompt_tokens",
            "generated",
            "bos_mass",
            "prompt_mass",
            "decode_mass",
            "prompt_entropy",
            "prompt_mass_by_head",
            "curvature_prompt_deg",
            "frontier",
            "knockout"
        ]
    );
    assert_eq!(
        keys(&prompt["frontier"][0]),
        ["anchor", "cutoff", "kl", "top1", "dnll", "unchanged", "departs", "answered"]
    );
    assert_eq!(prompt["frontier"][0]["anchor"], Anchor::Bos.name());
    assert_eq!(keys(&prompt["knockout"][0]), ["layer", "kl", "top1", "dnll"]);
    assert_eq!(prompt["knockout"][0]["kl"], Value::Null);
    assert_eq!(prompt["curvature_prompt_deg"][LAYERS], Value::Null);
    let length = |value: &Value| value.as_array().expect("list").len();
    assert_eq!(length(&prompt["curvature_prompt_deg"]), LAYERS + 1);
    assert_eq!(length(&prompt["prompt_mass"]), LAYERS);
    assert_eq!(length(&prompt["prompt_mass_by_head"]), LAYERS);
    assert_eq!(length(&prompt["prompt_mass_by_head"][0]), HEADS);
    assert_eq!(json["manifest"]["settings"]["anchors"][1], "none");
}

#[test]
fn equal_records_give_equal_tables_however_they_were_written() {
    let straight = tempfile::tempdir().expect("folder");
    finished(straight.path(), 4);
    let wanted = tables(straight.path());

    let again = tempfile::tempdir().expect("folder");
    finished(again.path(), 4);
    assert!(wanted == tables(again.path()));

    // Out of order, in three sessions, with a failed prompt retried and tables merged twice.
    let patched = tempfile::tempdir().expect("folder");
    let open = || RunWriter::create_or_resume(patched.path(), manifest(4)).expect("resume");
    let mut writer = open();
    writer.append(&record(2)).expect("append");
    drop(writer);
    let mut writer = open();
    assert!(writer.is_done("q2") && !writer.is_done("q0"));
    writer.append(&record(0)).expect("append");
    writer.fail("q3", &Error::input("out of memory")).expect("fail");
    writer.finish().expect("finish");
    drop(writer);
    let mut writer = open();
    assert!(!writer.is_done("q3"), "a failed prompt is tried again");
    assert_eq!(writer.manifest().prompts.failed.len(), 1);
    writer.append(&record(3)).expect("append");
    writer.append(&record(1)).expect("append");
    assert!(writer.manifest().prompts.failed.is_empty());
    writer.finish().expect("finish");
    assert!(wanted == tables(patched.path()));
    let manifest = Run::open(patched.path()).expect("open").manifest().clone();
    assert_eq!(manifest.prompts.done, ["q0", "q1", "q2", "q3"]);
}

#[test]
fn resuming_a_complete_run_changes_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    let path = folder.path().join(MANIFEST);
    let before = (fs::read(&path).expect("manifest"), tables(folder.path()));
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("resume");
    assert!(writer.is_done("q0") && writer.is_done("q1"));
    writer.finish().expect("finish");
    assert!(before == (fs::read(&path).expect("manifest"), tables(folder.path())));
}

#[test]
fn another_device_is_noted() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("create");
    writer.append(&record(0)).expect("append");
    drop(writer);
    let mut other = manifest(2);
    other.device = "cuda:0".into();
    let mut writer = RunWriter::create_or_resume(folder.path(), other).expect("resume");
    writer.append(&record(1)).expect("append");
    assert_eq!(writer.manifest().device, "cpu; cuda:0");
}

#[test]
fn an_empty_run_has_its_tables() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(1)).expect("create");
    writer.fail("q0", &Error::input("too long")).expect("fail");
    writer.finish().expect("finish");
    let run = Run::open(folder.path()).expect("open");
    assert_eq!(run.manifest().status, Status::Complete);
    assert!(run.prompt_ids().is_empty());
    assert!(run.show().expect("show").prompts.is_empty());
}

#[test]
fn summaries_cover_the_run_and_its_categories() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 5);
    let run = Run::open(folder.path()).expect("open");
    let prompts: Vec<_> = run.prompts().collect::<Result<_, _>>().expect("prompts");
    let summary = crate::summary::summarise_run(&prompts);
    assert_eq!(summary.overall.prompts, 5);
    let names: Vec<_> = summary.categories.iter().map(|group| group.category.as_deref()).collect();
    assert_eq!(names, [Some("even"), Some("odd")]);
    for figure in LAYER_FIGURES {
        let layers = summary.overall.figures[figure].len();
        assert!(layers == LAYERS || layers == LAYERS + 1, "{figure}");
    }
    let masses = prompts.iter().map(|prompt| prompt.layers.prompt_mass[1]);
    let wanted = masses.sum::<f64>() / 5.0;
    assert!(close(summary.overall.figures["prompt_mass"][1].mean, wanted));
    assert_eq!(summary.overall.figures["curvature_prompt_deg"][LAYERS].missing, 5);
}

#[test]
fn machine_and_command_are_kept_and_older_manifests_have_none() {
    let folder = tempfile::tempdir().expect("folder");
    let begun = Manifest {
        machine: Some(Machine::this()),
        command: vec!["record".into(), "tiny.gguf".into()],
        ..manifest(1)
    };
    drop(RunWriter::create_or_resume(folder.path(), begun.clone()).expect("create"));
    // A run resumes on another machine and with another command; it keeps its original machine and command.
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(1)).expect("resume");
    writer.append(&record(0)).expect("append");
    writer.finish().expect("finish");
    drop(writer);
    let found = Run::open(folder.path()).expect("open");
    assert_eq!(found.manifest().machine, begun.machine);
    assert_eq!(found.manifest().command, begun.command);

    let path = folder.path().join(MANIFEST);
    let mut older: Value = serde_json::from_slice(&fs::read(&path).expect("manifest")).expect("json");
    for key in ["machine", "command"] {
        assert!(older.as_object_mut().expect("object").remove(key).is_some(), "{key}");
    }
    fs::write(&path, older.to_string()).expect("older");
    let found = Run::open(folder.path()).expect("open");
    assert_eq!((&found.manifest().machine, found.manifest().command.len()), (&None, 0));
    RunWriter::create_or_resume(folder.path(), begun).expect("an older run resumes");
}
