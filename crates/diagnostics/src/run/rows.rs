//! From a prompt's record to rows of the tables.

use std::sync::Arc;

use arrow_array::builder::{ListBuilder, StringBuilder, UInt32Builder};
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, RecordBatch, StringArray, UInt32Array,
};
use arrow_schema::{DataType, Field, SchemaRef};
use layerscope_engine::{Error, Result};
use ndarray::{Array3, ArrayView3, Axis, Zip};

use super::manifest::ModelInfo;
use super::schema::Table;
use crate::record::{Divergence, PromptRecord};

/// Gives the rows of `table` for one prompt, batch by batch, so that the large table is never whole in memory.
pub(super) fn batches(
    table: Table,
    record: &PromptRecord,
    model: &ModelInfo,
    mut take: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    match table {
        Table::Prompts => take(prompts(record)?),
        Table::Layers => take(layers(record, model)?),
        Table::Heads => take(heads(record)?),
        Table::Steps => take(steps(record)?),
        Table::Tokens => (0..record.layers()).try_for_each(|layer| take(tokens(record, layer)?)),
        Table::Frontier => take(frontier(record)?),
        Table::Knockout => take(knockout(record)?),
    }
}

/// Refuses a record whose arrays do not fit each other or the model.
pub(super) fn check_shapes(record: &PromptRecord, model: &ModelInfo) -> Result<()> {
    let (layers, heads, steps, p) = (model.layers, model.heads, record.generated.len(), record.prompt_len());
    let attention = &record.attention;
    let fits = [
        &attention.bos_mass,
        &attention.prompt_mass,
        &attention.decode_mass,
        &attention.prompt_entropy,
        &attention.prompt_entropy_nats,
    ]
    .iter()
    .all(|figure| figure.dim() == (layers, heads, steps))
        && record.received.mean.dim() == (layers, p)
        && record.received.max.dim() == (layers, p)
        && record.lens.kl.dim() == (layers, steps)
        && record.lens.top1.dim() == (layers, steps)
        && record.curvature_prompt_deg.len() == layers + 1
        && record.curvature_decode_deg.len() == layers + 1
        && record.prompt_token_text.len() == p
        && record.generated_token_text.len() == steps
        && p > 0;
    if fits {
        Ok(())
    } else {
        Err(Error::failure(format!(
            "internal error (please report it): the record of prompt {:?} does not have {layers} layers, \
             {heads} heads, {steps} steps and {p} prompt tokens throughout",
            record.prompt_id
        )))
    }
}

/// The columns of one batch, pushed in the order of the schema.
pub(super) struct Columns {
    file_name: &'static str,
    schema: SchemaRef,
    arrays: Vec<ArrayRef>,
}

impl Columns {
    /// Begins with the prompt's id, once per row.
    fn new(table: Table, record: &PromptRecord, rows: usize) -> Self {
        Self::of_prompt(table.file_name(), table.schema(), &record.prompt_id, rows)
    }

    /// The same of any file.
    pub(super) fn of_prompt(
        file_name: &'static str,
        schema: SchemaRef,
        prompt_id: &str,
        rows: usize,
    ) -> Self {
        let ids = StringArray::from_iter_values(std::iter::repeat_n(prompt_id, rows));
        Self { file_name, schema, arrays: vec![Arc::new(ids)] }
    }

    pub(super) fn ints(&mut self, values: impl IntoIterator<Item = usize>) -> Result<()> {
        let values: Vec<i32> = values.into_iter().map(int).collect::<Result<_>>()?;
        self.arrays.push(Arc::new(Int32Array::from(values)));
        Ok(())
    }

    fn token_ids(&mut self, values: impl IntoIterator<Item = u32>) {
        self.arrays.push(Arc::new(UInt32Array::from_iter_values(values)));
    }

    pub(super) fn texts<T: AsRef<str>>(&mut self, values: impl IntoIterator<Item = T>) {
        self.arrays.push(Arc::new(StringArray::from_iter_values(values)));
    }

    pub(super) fn bools(&mut self, values: impl IntoIterator<Item = Option<bool>>) {
        self.arrays.push(Arc::new(values.into_iter().collect::<BooleanArray>()));
    }

    /// Figures; NaN becomes null.
    pub(super) fn figures(&mut self, values: impl IntoIterator<Item = f64>) {
        let values = values.into_iter().map(defined);
        self.arrays.push(Arc::new(Float64Array::from_iter(values)));
    }

    fn singles(&mut self, values: impl IntoIterator<Item = f32>) {
        let values = values.into_iter().map(|value| (!value.is_nan()).then_some(value));
        self.arrays.push(Arc::new(Float32Array::from_iter(values)));
    }

    pub(super) fn divergences(&mut self, values: &[Divergence]) {
        self.figures(values.iter().map(|value| value.kl));
        self.figures(values.iter().map(|value| value.top1));
        self.figures(values.iter().map(|value| value.dnll));
    }

    pub(super) fn finish(self) -> Result<RecordBatch> {
        RecordBatch::try_new(self.schema, self.arrays).map_err(|error| {
            Error::failure(format!(
                "internal error (please report it): rows of {} do not fit: {error}",
                self.file_name
            ))
        })
    }
}

fn int(value: usize) -> Result<i32> {
    i32::try_from(value).map_err(|_| Error::failure(format!("{value} is too many for one table")))
}

fn defined(value: f64) -> Option<f64> {
    (!value.is_nan()).then_some(value)
}

/// Mean of the defined values; NaN where there are none.
fn mean<'a>(values: impl IntoIterator<Item = &'a f32>) -> f64 {
    let (mut sum, mut count) = (0.0, 0_usize);
    for value in values.into_iter().filter(|value| !value.is_nan()) {
        sum += f64::from(*value);
        count += 1;
    }
    sum / count as f64
}

/// prompt_mass · (1 − prompt_entropy), `[L, H, N]`; NaN where the entropy is.
fn selectivity(record: &PromptRecord) -> Array3<f32> {
    Zip::from(&record.attention.prompt_mass)
        .and(&record.attention.prompt_entropy)
        .map_collect(|mass, entropy| mass * (1.0 - entropy))
}

/// The attention figures, each `[L, H, N]`, in the order of the columns.
fn attention<'a>(record: &'a PromptRecord, selectivity: &'a Array3<f32>) -> [ArrayView3<'a, f32>; 6] {
    let attention = &record.attention;
    [
        attention.bos_mass.view(),
        attention.prompt_mass.view(),
        attention.decode_mass.view(),
        attention.prompt_entropy.view(),
        attention.prompt_entropy_nats.view(),
        selectivity.view(),
    ]
}

fn layers(record: &PromptRecord, model: &ModelInfo) -> Result<RecordBatch> {
    let layers = record.layers();
    let mut columns = Columns::new(Table::Layers, record, layers + 1);
    let indices: Vec<i32> = std::iter::once(Ok(-1)).chain((0..layers).map(int)).collect::<Result<_>>()?;
    columns.arrays.push(Arc::new(Int32Array::from(indices)));
    let windowed = (0..layers).map(|layer| Some(model.windowed_layers.contains(&layer)));
    columns.bools(std::iter::once(None).chain(windowed));
    // The embedding output, the first row, attends to nothing.
    let after_embedding = |values: Vec<f64>| std::iter::once(f64::NAN).chain(values);

    let selectivity = selectivity(record);
    for figure in attention(record, &selectivity) {
        let means = figure.outer_iter().map(mean).collect();
        columns.figures(after_embedding(means));
    }
    for curve in [&record.curvature_prompt_deg, &record.curvature_decode_deg] {
        let after_first = curve.get(1).copied().unwrap_or(f64::NAN);
        columns.figures(curve.iter().copied());
        columns.figures(curve.iter().map(|degrees| degrees - after_first));
    }
    let lens = &record.lens;
    columns.figures(after_embedding(lens.kl.outer_iter().map(mean).collect()));
    // The lens after the last layer is the model's own output.
    let last = lens.top1.index_axis(Axis(0), layers - 1);
    let agreement = lens.top1.outer_iter().map(|layer| {
        let same = layer.iter().zip(last).filter(|(a, b)| a == b).count();
        same as f64 / layer.len() as f64
    });
    columns.figures(after_embedding(agreement.collect()));
    columns.finish()
}

fn heads(record: &PromptRecord) -> Result<RecordBatch> {
    let (layers, heads) = (record.layers(), record.heads());
    let mut columns = Columns::new(Table::Heads, record, layers * heads);
    columns.ints((0..layers * heads).map(|row| row / heads))?;
    columns.ints((0..layers * heads).map(|row| row % heads))?;
    let selectivity = selectivity(record);
    for figure in attention(record, &selectivity) {
        columns.figures(figure.lanes(Axis(2)).into_iter().map(mean));
    }
    columns.finish()
}

fn steps(record: &PromptRecord) -> Result<RecordBatch> {
    let (layers, steps, p) = (record.layers(), record.steps(), record.prompt_len());
    let mut columns = Columns::new(Table::Steps, record, layers * steps);
    columns.ints((0..layers * steps).map(|row| row / steps))?;
    columns.ints((0..layers * steps).map(|row| row % steps))?;
    columns.ints((0..layers * steps).map(|row| p - 1 + row % steps))?;
    columns.token_ids((0..layers).flat_map(|_| record.generated.iter().copied()));
    let selectivity = selectivity(record);
    for figure in attention(record, &selectivity) {
        columns.figures(figure.lanes(Axis(1)).into_iter().map(mean));
    }
    columns.figures(record.lens.kl.iter().map(|kl| f64::from(*kl)));
    columns.token_ids(record.lens.top1.iter().copied());
    columns.finish()
}

fn tokens(record: &PromptRecord, layer: usize) -> Result<RecordBatch> {
    let p = record.prompt_len();
    let mut columns = Columns::new(Table::Tokens, record, p);
    columns.ints(std::iter::repeat_n(layer, p))?;
    columns.ints(0..p)?;
    columns.token_ids(record.prompt_tokens.iter().copied());
    columns.texts(&record.prompt_token_text);
    let received = &record.received;
    columns.singles(received.mean.row(layer).iter().copied());
    columns.singles(received.max.row(layer).iter().copied());
    columns.finish()
}

fn frontier(record: &PromptRecord) -> Result<RecordBatch> {
    let rows = &record.frontier;
    let mut columns = Columns::new(Table::Frontier, record, rows.len());
    columns.texts(rows.iter().map(|row| row.anchor.name()));
    columns.ints(rows.iter().map(|row| row.cutoff))?;
    let divergences: Vec<_> = rows.iter().map(|row| row.divergence).collect();
    columns.divergences(&divergences);
    columns.finish()
}

fn knockout(record: &PromptRecord) -> Result<RecordBatch> {
    let rows = &record.knockout;
    let mut columns = Columns::new(Table::Knockout, record, rows.len());
    columns.ints(rows.iter().map(|row| row.layer))?;
    let divergences: Vec<_> = rows.iter().map(|row| row.divergence).collect();
    columns.divergences(&divergences);
    columns.finish()
}

fn prompts(record: &PromptRecord) -> Result<RecordBatch> {
    let mut columns = Columns::new(Table::Prompts, record, 1);
    columns.texts([&record.category]);
    columns.texts([&record.text]);
    columns.ints([record.prompt_len()])?;
    columns.ints([record.steps()])?;
    columns.arrays.push(token_id_list(&record.prompt_tokens));
    columns.arrays.push(text_list(&record.prompt_token_text));
    columns.arrays.push(token_id_list(&record.generated));
    columns.arrays.push(text_list(&record.generated_token_text));
    columns.texts([&record.generated_text]);
    columns.bools([Some(record.answer_given)]);
    columns.figures([record.native_kl.unwrap_or(f64::NAN)]);
    let timings = record.timings;
    columns.figures([timings.prefill_s]);
    columns.figures([timings.decode_s]);
    columns.figures([timings.probe_s]);
    columns.figures([timings.frontier_s]);
    columns.finish()
}

fn token_id_list(values: &[u32]) -> ArrayRef {
    let item = Field::new_list_field(DataType::UInt32, false);
    let mut list = ListBuilder::new(UInt32Builder::new()).with_field(item);
    list.values().append_slice(values);
    list.append(true);
    Arc::new(list.finish())
}

fn text_list(values: &[String]) -> ArrayRef {
    let item = Field::new_list_field(DataType::Utf8, false);
    let mut list = ListBuilder::new(StringBuilder::new()).with_field(item);
    for value in values {
        list.values().append_value(value);
    }
    list.append(true);
    Arc::new(list.finish())
}
