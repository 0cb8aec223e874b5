//! `spans.parquet`: spans are read as written, and other files stay unchanged.

use std::fs;
use std::path::Path;

use arrow_array::RecordBatch;
use layerscope_engine::Result;

use super::super::rows::Columns;
use super::super::schema::{Column, SPANS as COLUMNS, Table, schema_of};
use super::super::*;
use super::hostile::refusal;
use super::sample::*;
use crate::record::{Divergence, SpanMasses, SpanRecord, SpanRow};

fn span(prompt: usize, first: usize, end: usize, kl: f64) -> SpanRecord {
    let row = |layer: usize| SpanRow {
        layer,
        divergence: Divergence { kl: if layer == LAYERS { 0.0 } else { kl }, top1: 0.5, dnll: -kl },
        decode_mass: if layer == LAYERS { f64::NAN } else { 0.25 },
        masses: match layer == LAYERS {
            true => SpanMasses::UNDEFINED,
            false => SpanMasses {
                span_full: 0.25,
                rest_full: 0.5,
                bos_after: 0.125,
                rest_after: 0.625,
                decode_after: 0.0625,
            },
        },
        found: [None, Some(false), Some(true)][layer % 3],
    };
    SpanRecord {
        prompt_id: format!("q{prompt}"),
        first,
        end,
        text: format!("☃ {first}"),
        layers: (0..=LAYERS).map(row).collect(),
    }
}

fn put(folder: &Path, records: &[SpanRecord]) {
    let run = Run::open(folder).expect("open");
    let mut writer = SpansWriter::open(&run).expect("writer");
    for record in records {
        writer.put(record.clone()).expect("put");
    }
}

/// As text, in which NaN equals NaN.
fn read(folder: &Path) -> String {
    format!("{:?}", Run::open(folder).expect("open").spans().expect("sound"))
}

#[test]
fn spans_are_read_back_added_and_replaced() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 3);
    assert_eq!(read(folder.path()), "[]");
    let before = tables(folder.path());
    put(folder.path(), &[span(1, 3, 5, 0.1 + 0.2), span(0, 2, 4, 1.0)]);
    put(folder.path(), &[span(1, 0, 5, 0.5), span(0, 2, 4, 2.0)]);
    let expected = [span(0, 2, 4, 2.0), span(1, 0, 5, 0.5), span(1, 3, 5, 0.1 + 0.2)];
    assert_eq!(read(folder.path()), format!("{expected:?}"));
    assert_eq!(tables(folder.path()), before);

    // Only prompts with spans have the field.
    let shown = serde_json::to_value(Run::open(folder.path()).expect("open").show().expect("show"));
    let shown = shown.expect("json");
    assert_eq!(shown["prompts"][0]["spans"][0]["layers"][0]["kl"], 2.0);
    assert_eq!(shown["prompts"][1]["spans"].as_array().expect("two").len(), 2);
    assert!(shown["prompts"][1]["spans"][0]["layers"][LAYERS]["decode_mass"].is_null());
    assert!(shown["prompts"][2].get("spans").is_none());
}

#[test]
fn one_writes_at_a_time_and_a_run_resumes_beside_the_file() {
    let folder = tempfile::tempdir().expect("folder");
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("create");
    writer.append(&record(0)).expect("append");
    let message = refusal(SpansWriter::open(&Run::open(folder.path()).expect("open")));
    assert!(message.contains("wait until"), "{message}");
    drop(writer);
    // A prompt that is not merged yet can have spans.
    put(folder.path(), &[span(0, 2, 4, 1.0)]);
    let mut writer = RunWriter::create_or_resume(folder.path(), manifest(2)).expect("resume");
    writer.append(&record(1)).expect("append");
    writer.finish().expect("finish");
    assert_eq!(read(folder.path()), format!("{:?}", [span(0, 2, 4, 1.0)]));
}

/// Writes rows one by one, each with the layer that it says.
fn write(folder: &Path, rows: &[(SpanRecord, usize)]) {
    write_as(folder, &COLUMNS, rows);
}

fn write_as(folder: &Path, schema: &[Column], rows: &[(SpanRecord, usize)]) {
    let batch = |(record, layer): &(SpanRecord, usize)| -> Result<RecordBatch> {
        let mut columns = Columns::of_prompt(SPANS, schema_of(schema), &record.prompt_id, 1);
        columns.ints([record.first])?;
        columns.ints([record.end])?;
        columns.texts([&record.text]);
        columns.ints([*layer])?;
        columns.divergences(&[record.layers[0].divergence]);
        columns.figures([0.5]);
        (0..schema.iter().filter(|column| column.later).count()).for_each(|_| columns.figures([0.25]));
        columns.bools([None]);
        columns.finish()
    };
    parquet_file::write(&folder.join(SPANS), schema, |take| {
        rows.iter().try_for_each(|row| take(batch(row)?))
    })
    .expect("write");
}

#[test]
fn files_of_earlier_versions_lack_masses() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 1);
    let earlier: Vec<Column> = COLUMNS.into_iter().filter(|column| !column.later).collect();
    assert_eq!(earlier.len(), COLUMNS.len() - 5);
    let rows: Vec<(SpanRecord, usize)> = (0..=LAYERS).map(|layer| (span(0, 2, 4, 1.0), layer)).collect();
    write_as(folder.path(), &earlier, &rows);
    let read = Run::open(folder.path()).expect("open").spans().expect("sound");
    assert_eq!((read.len(), read[0].layers.len()), (1, LAYERS + 1));
    assert!(read[0].layers.iter().all(|row| row.decode_mass == 0.5 && row.masses.rest_after.is_nan()));
    write(folder.path(), &rows);
    let read = Run::open(folder.path()).expect("open").spans().expect("sound");
    assert!(read[0].layers.iter().all(|row| row.masses.rest_after == 0.25));
}

#[test]
fn files_that_are_not_ours_are_refused_in_a_sentence() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    let path = folder.path().join(SPANS);
    let refused = |part: &str| {
        let run = Run::open(folder.path()).expect("the run itself is sound");
        let message = refusal(run.spans());
        assert!(message.contains(SPANS) && message.contains(part), "{message} lacks {part}");
        assert_eq!(refusal(run.show()), message);
        assert_eq!(refusal(SpansWriter::open(&run)), message);
    };
    for (rows, part) in [
        (vec![(span(7, 1, 2, 0.5), LAYERS)], "no prompt \"q7\""),
        (vec![(span(0, 3, 3, 0.5), LAYERS)], "no span of 6 tokens"),
        (vec![(span(0, 3, 6, 0.5), LAYERS)], "no span of 6 tokens"),
        (vec![(span(0, 1, 3, 0.5), 1)], "does not end at layer 3"),
        (vec![(span(0, 1, 3, 0.5), LAYERS); 2], "a layer twice"),
        (vec![(span(0, 1, 3, 0.5), 9)], "does not end"),
        (
            vec![
                (span(0, 1, 3, 0.5), 0),
                (SpanRecord { text: "other".into(), ..span(0, 1, 3, 0.5) }, LAYERS),
            ],
            "two texts",
        ),
    ] {
        write(folder.path(), &rows);
        refused(part);
    }
    fs::write(&path, b"PAR1").expect("file");
    refused("damaged");
    fs::copy(folder.path().join(Table::Layers.file_name()), &path).expect("file");
    refused("the column");

    // With any byte changed, nothing panics.
    fs::remove_file(&path).expect("remove");
    put(folder.path(), &[span(0, 1, 3, 0.5), span(1, 1, 3, 0.5)]);
    let good = fs::read(&path).expect("file");
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut damaged = 0;
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        fs::write(&path, bad).expect("damage");
        if let Err(error) = Run::open(folder.path()).expect("sound").spans() {
            assert_eq!(error.exit_code(), 2, "{error}");
            damaged += 1;
        }
    }
    std::panic::set_hook(hook);
    assert!(damaged > 100, "{damaged}");
}
