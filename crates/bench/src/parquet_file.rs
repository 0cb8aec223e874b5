//! Measurements as a Parquet table; every column carries `unit` and `description`.

use crate::{BenchReport, Measurement, Quality};
use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{Field, Metadata, Schema};
use layerscope_engine::{Error, Result};
use parquet::arrow::arrow_writer::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use std::sync::Arc;

/// Encodes a Parquet file in memory, one row per policy and length. Undefined numbers are null.
///
/// # Errors
/// [`Error::Failure`] if it cannot be encoded.
pub fn to_parquet(report: &BenchReport) -> Result<Vec<u8>> {
    encode(report)
        .map_err(|error| Error::failure(format!("cannot write the measurements as Parquet: {error}")))
}

fn encode(report: &BenchReport) -> std::result::Result<Vec<u8>, ParquetError> {
    let (fields, columns): (Vec<Field>, Vec<ArrayRef>) = columns(report)
        .into_iter()
        .map(|column| {
            let metadata: Metadata =
                [("unit", column.unit), ("description", column.description)].into_iter().collect();
            let data_type = column.values.data_type().clone();
            (Field::new(column.name, data_type, true).with_metadata(metadata), column.values)
        })
        .unzip();
    let schema = Arc::new(Schema::new(fields));
    let properties =
        WriterProperties::builder().set_created_by("layerscope".into()).set_compression(Compression::SNAPPY);
    let mut file = vec![];
    let mut writer = ArrowWriter::try_new(&mut file, schema.clone(), Some(properties.build()))?;
    writer.write(&RecordBatch::try_new(schema, columns)?)?;
    writer.close()?;
    Ok(file)
}

struct Column {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
    values: ArrayRef,
}

fn columns(report: &BenchReport) -> Vec<Column> {
    let rows = &report.results;
    let text = |name, description, value: &dyn Fn(&Measurement) -> String| {
        let values = Arc::new(StringArray::from_iter_values(rows.iter().map(value)));
        Column { name, unit: "none", description, values }
    };
    let count = |name, unit, description, value: &dyn Fn(&Measurement) -> Option<u64>| {
        let values = rows.iter().map(|row| value(row).and_then(|value| i64::try_from(value).ok()));
        Column { name, unit, description, values: Arc::new(values.collect::<Int64Array>()) }
    };
    let number = |name, unit, description, value: &dyn Fn(&Measurement) -> f64| {
        let values = rows.iter().map(|row| Some(value(row)).filter(|value| value.is_finite()));
        Column { name, unit, description, values: Arc::new(values.collect::<Float64Array>()) }
    };
    let quality = |name, unit, description, value: fn(&Quality) -> f64| {
        number(name, unit, description, &|row| row.quality.as_ref().map_or(f64::NAN, value))
    };
    let cpu = report.machine.cpu.clone().unwrap_or_default();
    vec![
        text("model", "Model, or shape of its random weights", &|_| report.model.clone()),
        text("weights", "How the weights were kept: native or f32", &|_| report.weights.name().to_owned()),
        text("cpu", "Name of the processor; empty where unknown", &|_| cpu.clone()),
        count("threads", "threads", "Threads that computed", &|_| Some(report.machine.threads as u64)),
        text("layerscope", "Version of layerscope", &|_| report.layerscope.clone()),
        text("notes", "What a reader must know beside the figures", &|_| report.notes.join("; ")),
        text("policy", "Policy", &|row| row.policy.clone()),
        count("length", "tokens", "Prompt tokens", &|row| Some(row.length as u64)),
        count("new_tokens", "tokens", "Tokens generated", &|row| Some(row.new_tokens as u64)),
        count("repeats", "repeats", "Repeats counted", &|row| Some(row.repeats as u64)),
        number("ttft_mean_s", "seconds", "Time to first token, mean", &|row| row.ttft_s.mean),
        number("ttft_std_s", "seconds", "Time to first token, sample standard deviation", &|row| {
            row.ttft_s.std
        }),
        number("ttft_median_s", "seconds", "Time to first token, median", &|row| row.ttft_s.median),
        number("tpot_mean_s", "seconds", "Time per output token after the first, mean", &|row| {
            row.tpot_s.mean
        }),
        number("tpot_std_s", "seconds", "Time per output token, sample standard deviation", &|row| {
            row.tpot_s.std
        }),
        number("tpot_median_s", "seconds", "Time per output token, median", &|row| row.tpot_s.median),
        number("e2e_median_s", "seconds", "Prompt to last new token, median", &|row| {
            row.e2e_s.as_ref().map_or(f64::NAN, |seconds| seconds.median)
        }),
        count("kv_bytes", "bytes", "KV allocated", &|row| Some(row.kv_bytes)),
        count("kv_bytes_model", "bytes", "KV by the cost model", &|row| Some(row.kv_bytes_model)),
        count("peak_bytes", "bytes", "Most bytes resident at once; null where unknown", &|row| {
            row.peak_bytes
        }),
        count("kv_bytes_out", "bytes", "KV taken away from the device; null where none is", &|row| {
            row.transfers.map(|moved| moved.bytes_out)
        }),
        count("kv_bytes_in", "bytes", "KV brought back; null where none is taken away", &|row| {
            row.transfers.map(|moved| moved.bytes_in)
        }),
        number("kv_wait_s", "seconds", "Time waited for KV to come back, mean", &|row| {
            row.transfers.map_or(f64::NAN, |moved| moved.wait_s)
        }),
        number("kv_transfer_s", "seconds", "Time that bringing KV back took, mean", &|row| {
            row.transfers.map_or(f64::NAN, |moved| moved.transfer_s)
        }),
        count("layer_tokens", "token-layers", "Token-layers computed, a proxy for FLOPs", &|row| {
            Some(row.layer_tokens)
        }),
        number("ttft_ratio", "ratio", "Median TTFT over that of full", &|row| {
            row.ttft_ratio.unwrap_or(f64::NAN)
        }),
        number("ttft_ratio_model", "ratio", "TTFT over that of full by the cost model", &|row| {
            row.ttft_ratio_model
        }),
        number("tpot_ratio", "ratio", "Median TPOT over that of full", &|row| {
            row.tpot_ratio.unwrap_or(f64::NAN)
        }),
        number("tpot_ratio_model", "ratio", "TPOT over that of full by the cost model", &|row| {
            row.tpot_ratio_model
        }),
        quality(
            "quality_kl",
            "nats",
            "Mean KL(full, policy) of next-token distributions; null where not measured",
            |q| q.kl,
        ),
        quality("quality_top1", "share", "Share of steps with the full model's most likely token", |q| {
            q.top1
        }),
        quality(
            "quality_dnll",
            "nats",
            "Mean NLL of the full model's continuation, less the full model's",
            |q| q.dnll,
        ),
        quality(
            "quality_found",
            "share",
            "Share of prompts whose hidden number is in the generated text",
            |q| q.found,
        ),
        count(
            "quality_prompts",
            "prompts",
            "Prompts that quality was measured on; null where it was not",
            &|row| row.quality.map(|quality| quality.prompts as u64),
        ),
    ]
}
