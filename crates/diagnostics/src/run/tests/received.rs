//! The long table, written by us and by other programs.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Int32Array, RecordBatch, StringArray, UInt32Array};
use arrow_schema::Schema;
use ndarray::Array2;
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{ParquetMetaDataBuilder, ParquetMetaDataWriter};
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use proptest::prelude::*;

use super::super::received::received;
use super::super::table_file::TableFile;
use super::super::*;
use super::sample::*;
use crate::record::ReceivedFigures;

/// Ids longer than truncated statistics, with the same prefix.
const IDS: [&str; 2] = [
    "a prompt whose name takes more than the 64 bytes to which statistics are cut: the first",
    "a prompt whose name takes more than the 64 bytes to which statistics are cut: the second",
];

#[derive(Debug, Clone)]
struct Row {
    id: Option<&'static str>,
    layer: i32,
    position: i32,
    mean: Option<f32>,
}

impl Row {
    fn max(&self) -> Option<f32> {
        self.mean.map(|mean| mean + 0.5)
    }
}

/// The rows of a prompt, layer by layer; every seventh figure is undefined.
fn rows(id: &'static str, layers: usize, positions: usize) -> Vec<Row> {
    let row = |at: usize| Row {
        id: Some(id),
        layer: (at / positions) as i32,
        position: (at % positions) as i32,
        mean: (at % 7 != 3).then_some(at as f32 + id.len() as f32 / 128.0),
    };
    (0..layers * positions).map(row).collect()
}

fn write(path: &Path, rows: &[Row], properties: WriterProperties) -> TableFile {
    let fields = Table::Tokens.schema();
    let fields = fields.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let mut writer =
        ArrowWriter::try_new(File::create(path).expect("file"), schema.clone(), Some(properties))
            .expect("writer");
    let arrays: [ArrayRef; 7] = [
        Arc::new(StringArray::from_iter(rows.iter().map(|row| row.id))),
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.layer))),
        Arc::new(Int32Array::from_iter_values(rows.iter().map(|row| row.position))),
        Arc::new(UInt32Array::from(vec![0; rows.len()])),
        Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "t"))),
        Arc::new(Float32Array::from_iter(rows.iter().map(|row| row.mean))),
        Arc::new(Float32Array::from_iter(rows.iter().map(Row::max))),
    ];
    writer.write(&RecordBatch::try_new(schema, arrays.to_vec()).expect("batch")).expect("write");
    writer.close().expect("close");
    TableFile::open(path.to_owned(), &Table::Tokens.columns()).expect("table").expect("a file")
}

/// Row groups of this many rows, with the statistics of most programs.
fn grouped(rows: usize) -> WriterProperties {
    WriterProperties::builder().set_max_row_group_row_count(Some(rows)).build()
}

/// Compares every figure read with the rows written.
fn check(file: &TableFile, id: &str, rows: &[Row], layers: usize) {
    let read = received(file, id, layers).expect("figures");
    let own: Vec<&Row> = rows.iter().filter(|row| row.id == Some(id)).collect();
    assert_eq!(read.mean.dim(), (layers, own.len() / layers));
    assert_eq!(read.max.dim(), read.mean.dim());
    let defined = |figure: f32| (!figure.is_nan()).then_some(figure);
    for row in own {
        let at = (row.layer as usize, row.position as usize);
        assert_eq!((defined(read.mean[at]), defined(read.max[at])), (row.mean, row.max()), "{row:?}");
    }
}

/// The input error of rows.
fn refusal(rows: &[Row], properties: WriterProperties) -> String {
    let folder = tempfile::tempdir().expect("folder");
    let file = write(&folder.path().join("tokens.parquet"), rows, properties);
    let error = received(&file, IDS[0], 3).expect_err("damaged");
    assert_eq!(error.exit_code(), 2, "{error}");
    error.to_string()
}

/// Shuffled rows of both prompts and of neither, and the number of layers.
fn shuffled() -> impl Strategy<Value = (usize, Vec<Row>)> {
    (1_usize..4, 1_usize..20, 0_usize..20, 0_usize..6).prop_flat_map(|(layers, p, other_p, strangers)| {
        let mut all = [rows(IDS[0], layers, p), rows(IDS[1], layers, other_p)].concat();
        let stranger = Row { id: None, ..all[0].clone() };
        all.extend(vec![stranger; strangers]);
        (Just(layers), Just(all).prop_shuffle())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn rows_are_read_in_any_order_and_grouping(
        (layers, rows) in shuffled(),
        group_rows in 1_usize..80,
        // Truncated, full and no statistics.
        statistics in prop_oneof![Just(Some(Some(64))), Just(Some(None)), Just(None)],
    ) {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(group_rows));
        let properties = match statistics {
            Some(length) => properties.set_statistics_truncate_length(length),
            None => properties.set_statistics_enabled(EnabledStatistics::None),
        };
        let folder = tempfile::tempdir().expect("folder");
        let file = write(&folder.path().join("tokens.parquet"), &rows, properties.build());
        for id in IDS {
            check(&file, id, &rows, layers);
        }
    }

    #[test]
    fn lost_doubled_and_strayed_rows_are_refused(at in 0_usize..30, group_rows in 1_usize..80) {
        let (whole, properties) = (rows(IDS[0], 3, 10), || grouped(group_rows));
        let mut lost = whole.clone();
        lost.remove(at);
        prop_assert!(refusal(&lost, properties()).contains("29 rows instead of 27"));
        let mut twice = whole.clone();
        twice[at] = twice[(at + 1) % 30].clone();
        prop_assert!(refusal(&twice, properties()).contains("out of range or twice"));
        for (layer, position) in [(3, 0), (-1, 0), (0, 10), (0, -1), (i32::MAX, i32::MAX), (i32::MIN, i32::MIN)] {
            let mut strayed = whole.clone();
            (strayed[at].layer, strayed[at].position) = (layer, position);
            prop_assert!(refusal(&strayed, properties()).contains("out of range or twice"));
        }
    }
}

#[test]
fn a_prompt_may_take_several_row_groups_of_ours() {
    let folder = tempfile::tempdir().expect("folder");
    finished(folder.path(), 2);
    let path = folder.path().join(Table::Tokens.file_name());
    let rows = [rows("q0", LAYERS, 40), rows("q1", LAYERS, 40)].concat();
    // Three groups per prompt.
    let file = write(&path, &rows, grouped(LAYERS * 40 / 3));
    assert_eq!(file.metadata().num_row_groups(), 6);
    let run = Run::open(folder.path()).expect("open");
    for id in ["q0", "q1"] {
        check(&file, id, &rows, LAYERS);
        assert_eq!(run.tokens(id).expect("tokens").mean.dim(), (LAYERS, 40));
    }
}

/// The bytes of the `prompt_id` column of the only row group.
fn id_bytes(file: &TableFile) -> std::ops::Range<usize> {
    let (start, length) = file.metadata().row_group(0).column(0).byte_range();
    start as usize..(start + length) as usize
}

#[test]
fn ids_are_read_only_where_statistics_do_not_tell_them() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("tokens.parquet");
    let whole = rows("q0", 3, 10);
    let damage = |rows: &[Row]| {
        let ids = id_bytes(&write(&path, rows, grouped(1000)));
        let mut bytes = fs::read(&path).expect("file");
        bytes[ids].fill(0xff);
        fs::write(&path, bytes).expect("damage");
        TableFile::open(path.clone(), &Table::Tokens.columns()).expect("table").expect("a file")
    };
    let told = damage(&whole);
    check(&told, "q0", &whole, 3);
    assert_eq!(told.prompt_ids().expect("ids"), ["q0"]);
    let mut strangers = whole.clone();
    strangers.push(Row { id: None, ..whole[0].clone() });
    for rows in [strangers, [whole, rows("q1", 3, 10)].concat()] {
        let untold = damage(&rows);
        received(&untold, "q0", 3).expect_err("damaged ids");
        untold.prompt_ids().expect_err("damaged ids");
    }
}

#[test]
fn room_is_made_for_the_rows_there_are_and_not_for_those_the_file_claims() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("tokens.parquet");
    let whole = rows("q0", 3, 10);
    let honest = write(&path, &whole, grouped(1000));
    let claimed = 1 << 60;
    let group = honest.metadata().row_group(0).clone().into_builder().set_num_rows(claimed);
    let claiming = ParquetMetaDataBuilder::new_from_metadata(honest.metadata().clone())
        .set_row_groups(vec![group.build().expect("group")])
        .build();
    let mut bytes = fs::read(&path).expect("file");
    ParquetMetaDataWriter::new(&mut bytes, &claiming).finish().expect("metadata");
    fs::write(&path, bytes).expect("file");
    let file = TableFile::open(path, &Table::Tokens.columns()).expect("table").expect("a file");
    assert_eq!(file.metadata().row_group(0).num_rows(), claimed);
    check(&file, "q0", &whole, 3);
}

#[test]
fn what_a_window_has_passed_is_undefined() {
    let all = || Array2::from_elem((3, 6), 0.25);
    let seen = |window| {
        let model = ModelInfo { windowed_layers: vec![0, 2], window, ..manifest(1).model };
        ReceivedFigures { mean: all(), max: all() }.undefined_beyond_windows(&model)
    };
    let narrow = seen(Some(4));
    for figures in [&narrow.mean, &narrow.max] {
        for ((layer, position), value) in figures.indexed_iter() {
            assert_eq!(value.is_nan(), layer != 1 && position < 2, "layer {layer}, position {position}");
        }
    }
    // A window wider than the prompt, or none.
    for window in [Some(6), Some(9), None] {
        assert!(seen(window).mean.iter().all(|value| *value == 0.25), "{window:?}");
    }
}
