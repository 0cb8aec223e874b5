//! Converts a prompt's record to rows of the tables.

use std::sync::Arc;

use arrow_array::builder::{
    Float32Builder, Float64Builder, Int32Builder, ListBuilder, StringBuilder, UInt32Builder,
};
use arrow_array::{
    ArrayRef, BooleanArray, Float32Array, Float64Array, Int32Array, RecordBatch, StringArray, UInt32Array,
};
use arrow_schema::{DataType, Field, SchemaRef};
use layerscope_engine::{Error, Result};
use ndarray::Array2;

use super::manifest::ModelInfo;
use super::schema::Table;
use crate::reads::{Read, RowReads};
use crate::record::{AttentionMeans, Divergence, PromptRecord};

/// Passes the rows of `table` for one prompt batch by batch, so that the large table is never in memory as a
/// whole.
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
        Table::Tokens => (0..model.layers).try_for_each(|layer| take(tokens(record, layer)?)),
        Table::Frontier => take(frontier(record)?),
        Table::Knockout => take(knockout(record)?),
    }
}

/// Rejects a record whose array sizes do not match each other or the model.
pub(super) fn check_shapes(record: &PromptRecord, model: &ModelInfo) -> Result<()> {
    let PromptRecord { summary, steps: by_step, received, reads } = record;
    let (layers, heads, steps, p) = (model.layers, model.heads, summary.steps, summary.p);
    // Curvatures of the residual stream include the embedding output.
    let layer_figure_fits =
        |(name, values): (&str, &[f64])| values.len() == layers + usize::from(name.ends_with("_deg"));
    let fits = summary.layers.named().into_iter().all(layer_figure_fits)
        && summary.heads.columns().iter().all(|figure| figure.dim() == (layers, heads))
        && by_step.attention.columns().iter().all(|figure| figure.dim() == (layers, steps))
        && [by_step.lens.kl.dim(), by_step.lens.top1.dim()] == [(layers, steps); 2]
        && [received.mean.dim(), received.max.dim()] == [(layers, p); 2]
        && [summary.prompt_tokens.len(), summary.prompt_token_text.len()] == [p; 2]
        && [summary.generated.len(), summary.generated_token_text.len()] == [steps; 2]
        && [by_step.positions.len(), by_step.token_ids.len()] == [steps; 2]
        && reads.as_ref().is_none_or(|reads| {
            reads.dim() == (layers, steps) && reads.iter().all(|row| row.ends.len() == heads)
        })
        && p > 0;
    if fits {
        Ok(())
    } else {
        Err(Error::failure(format!(
            "internal error (please report it): the record of prompt {:?} does not have {layers} layers, \
             {heads} heads, {steps} steps and {p} prompt tokens throughout",
            summary.id
        )))
    }
}

/// The columns of one batch, in schema order.
pub(super) struct Columns {
    file_name: &'static str,
    schema: SchemaRef,
    arrays: Vec<ArrayRef>,
}

impl Columns {
    /// Starts with the prompt's id, once per row.
    fn new(table: Table, record: &PromptRecord, rows: usize) -> Self {
        Self::of_prompt(table.file_name(), table.schema(), &record.summary.id, rows)
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

    pub(super) fn optional_ints(&mut self, values: impl IntoIterator<Item = Option<usize>>) -> Result<()> {
        let values: Vec<Option<i32>> =
            values.into_iter().map(|value| value.map(int).transpose()).collect::<Result<_>>()?;
        self.arrays.push(Arc::new(Int32Array::from(values)));
        Ok(())
    }

    pub(super) fn token_ids(&mut self, values: impl IntoIterator<Item = u32>) {
        self.arrays.push(Arc::new(UInt32Array::from_iter_values(values)));
    }

    pub(super) fn texts<T: AsRef<str>>(&mut self, values: impl IntoIterator<Item = T>) {
        self.arrays.push(Arc::new(StringArray::from_iter_values(values)));
    }

    pub(super) fn optional_texts(&mut self, values: impl IntoIterator<Item = Option<String>>) {
        self.arrays.push(Arc::new(StringArray::from_iter(values)));
    }

    pub(super) fn bools(&mut self, values: impl IntoIterator<Item = Option<bool>>) {
        self.arrays.push(Arc::new(values.into_iter().collect::<BooleanArray>()));
    }

    /// Figures; NaN becomes null.
    pub(super) fn figures(&mut self, values: impl IntoIterator<Item = f64>) {
        let values = values.into_iter().map(defined);
        self.arrays.push(Arc::new(Float64Array::from_iter(values)));
    }

    /// Lists of figures; NaN becomes null, and so does an empty list.
    fn figure_lists(&mut self, lists: impl IntoIterator<Item = Vec<f64>>) {
        let mut builder = ListBuilder::new(Float64Builder::new());
        for list in lists {
            builder.values().extend(list.iter().copied().map(defined));
            builder.append(!list.is_empty());
        }
        self.arrays.push(Arc::new(builder.finish()));
    }

    /// Lists of what rows read; null where there are none. `of_row` gives those of a row.
    fn read_lists<'a>(
        &mut self,
        rows: usize,
        reads: Option<impl Iterator<Item = &'a RowReads> + Clone>,
        of_row: impl Fn(&'a RowReads) -> &'a [Read],
    ) -> Result<()> {
        let item = |data_type| Field::new_list_field(data_type, false);
        let mut positions = ListBuilder::new(Int32Builder::new()).with_field(item(DataType::Int32));
        let mut attention = ListBuilder::new(Float32Builder::new()).with_field(item(DataType::Float32));
        for row in reads.clone().into_iter().flatten() {
            for read in of_row(row) {
                positions.values().append_value(int(read.position as usize)?);
                attention.values().append_value(read.attention);
            }
            positions.append(true);
            attention.append(true);
        }
        if reads.is_none() {
            (0..rows).for_each(|_| positions.append(false));
            (0..rows).for_each(|_| attention.append(false));
        }
        self.arrays.push(Arc::new(positions.finish()));
        self.arrays.push(Arc::new(attention.finish()));
        Ok(())
    }

    /// How many reads each head of a row has; null where there are none.
    fn read_counts(&mut self, rows: usize, reads: Option<&Array2<RowReads>>) -> Result<()> {
        let item = Field::new_list_field(DataType::Int32, false);
        let mut counts = ListBuilder::new(Int32Builder::new()).with_field(item);
        for row in reads.into_iter().flatten() {
            for head in 0..row.ends.len() {
                counts.values().append_value(int(row.of_head(head).len())?);
            }
            counts.append(true);
        }
        if reads.is_none() {
            (0..rows).for_each(|_| counts.append(false));
        }
        self.arrays.push(Arc::new(counts.finish()));
        Ok(())
    }

    fn singles(&mut self, values: impl IntoIterator<Item = f32>) {
        let values = values.into_iter().map(|value| (!value.is_nan()).then_some(value));
        self.arrays.push(Arc::new(Float32Array::from_iter(values)));
    }

    pub(super) fn attention(&mut self, means: &AttentionMeans) {
        for figure in means.columns() {
            self.figures(figure.iter().copied());
        }
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

fn layers(record: &PromptRecord, model: &ModelInfo) -> Result<RecordBatch> {
    let figures = &record.summary.layers;
    let mut columns = Columns::new(Table::Layers, record, model.layers + 1);
    let indices: Vec<i32> =
        std::iter::once(Ok(-1)).chain((0..model.layers).map(int)).collect::<Result<_>>()?;
    columns.arrays.push(Arc::new(Int32Array::from(indices)));
    let windowed = (0..model.layers).map(|layer| Some(model.windowed_layers.contains(&layer)));
    columns.bools(std::iter::once(None).chain(windowed));
    // The first row, the embedding output, has no attention.
    let after_embedding =
        |values: &[f64]| -> Vec<f64> { std::iter::once(f64::NAN).chain(values.iter().copied()).collect() };
    columns.figures(after_embedding(&figures.bos_mass));
    columns.figures(after_embedding(&figures.prompt_mass));
    columns.figures(after_embedding(&figures.decode_mass));
    columns.figures(after_embedding(&figures.prompt_entropy));
    columns.figures(after_embedding(&figures.prompt_entropy_nats));
    columns.figures(after_embedding(&figures.selectivity));
    columns.figures(figures.curvature_prompt_deg.iter().copied());
    columns.figures(figures.straightening_prompt_deg.iter().copied());
    columns.figures(figures.curvature_decode_deg.iter().copied());
    columns.figures(figures.straightening_decode_deg.iter().copied());
    columns.figures(after_embedding(&figures.lens_kl));
    columns.figures(after_embedding(&figures.lens_top1_agreement));
    columns.finish()
}

fn heads(record: &PromptRecord) -> Result<RecordBatch> {
    let (layers, heads) = record.summary.heads.bos_mass.dim();
    let mut columns = Columns::new(Table::Heads, record, layers * heads);
    columns.ints((0..layers * heads).map(|row| row / heads))?;
    columns.ints((0..layers * heads).map(|row| row % heads))?;
    columns.attention(&record.summary.heads);
    columns.finish()
}

fn steps(record: &PromptRecord) -> Result<RecordBatch> {
    let figures = &record.steps;
    let (layers, steps) = figures.attention.bos_mass.dim();
    let mut columns = Columns::new(Table::Steps, record, layers * steps);
    columns.ints((0..layers * steps).map(|row| row / steps))?;
    columns.ints((0..layers * steps).map(|row| row % steps))?;
    columns.ints((0..layers).flat_map(|_| figures.positions.iter().copied()))?;
    columns.token_ids((0..layers).flat_map(|_| figures.token_ids.iter().copied()));
    columns.attention(&figures.attention);
    columns.figures(figures.lens.kl.iter().map(|kl| f64::from(*kl)));
    columns.token_ids(figures.lens.top1.iter().copied());
    let (rows, reads) = (layers * steps, record.reads.as_ref());
    columns.read_lists(rows, reads.map(|reads| reads.iter()), |row| &row.mean)?;
    columns.read_counts(rows, reads)?;
    columns.read_lists(rows, reads.map(|reads| reads.iter()), |row| &row.heads)?;
    columns.finish()
}

fn tokens(record: &PromptRecord, layer: usize) -> Result<RecordBatch> {
    let (prompt, received) = (&record.summary, &record.received);
    let mut columns = Columns::new(Table::Tokens, record, prompt.p);
    columns.ints(std::iter::repeat_n(layer, prompt.p))?;
    columns.ints(0..prompt.p)?;
    columns.token_ids(prompt.prompt_tokens.iter().copied());
    columns.texts(&prompt.prompt_token_text);
    columns.singles(received.mean.row(layer).iter().copied());
    columns.singles(received.max.row(layer).iter().copied());
    columns.finish()
}

fn frontier(record: &PromptRecord) -> Result<RecordBatch> {
    let rows = &record.summary.frontier;
    let mut columns = Columns::new(Table::Frontier, record, rows.len());
    columns.texts(rows.iter().map(|row| row.anchor.name()));
    columns.ints(rows.iter().map(|row| row.cutoff))?;
    let divergences: Vec<_> = rows.iter().map(|row| row.divergence).collect();
    columns.divergences(&divergences);
    columns.bools(rows.iter().map(|row| row.text.unchanged));
    columns.optional_ints(rows.iter().map(|row| row.text.departs))?;
    columns.bools(rows.iter().map(|row| row.text.answered));
    columns.finish()
}

fn knockout(record: &PromptRecord) -> Result<RecordBatch> {
    let rows = &record.summary.knockout;
    let mut columns = Columns::new(Table::Knockout, record, rows.len());
    columns.ints(rows.iter().map(|row| row.layer))?;
    let divergences: Vec<_> = rows.iter().map(|row| row.divergence).collect();
    columns.divergences(&divergences);
    let figures: [fn(&Divergence) -> f64; 3] =
        [|of_head| of_head.kl, |of_head| of_head.top1, |of_head| of_head.dnll];
    for figure in figures {
        columns.figure_lists(rows.iter().map(|row| row.by_kv_head.iter().map(figure).collect()));
    }
    columns.finish()
}

fn prompts(record: &PromptRecord) -> Result<RecordBatch> {
    let prompt = &record.summary;
    let mut columns = Columns::new(Table::Prompts, record, 1);
    columns.texts([&prompt.category]);
    columns.texts([&prompt.text]);
    columns.ints([prompt.p])?;
    columns.ints([prompt.steps])?;
    columns.arrays.push(token_id_list(&prompt.prompt_tokens));
    columns.arrays.push(text_list(&prompt.prompt_token_text));
    columns.arrays.push(token_id_list(&prompt.generated));
    columns.arrays.push(text_list(&prompt.generated_token_text));
    columns.texts([&prompt.generated_text]);
    columns.bools([Some(prompt.answer_given)]);
    columns.arrays.push(Arc::new(StringArray::from_iter([prompt.expected.as_deref()])));
    columns.figures([prompt.native_kl.unwrap_or(f64::NAN)]);
    let timings = prompt.timings;
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
