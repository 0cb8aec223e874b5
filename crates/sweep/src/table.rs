//! The results as a Parquet table; every column carries `unit` and `description`.

use crate::results::{Results, Row};
use layerscope_diagnostics::table::{self, Column};
use layerscope_engine::Result;

/// Encodes a Parquet file in memory, one row per cell, category and policy. Undefined numbers are null.
///
/// # Errors
/// [`layerscope_engine::Error::Failure`] if it cannot be encoded.
pub fn to_parquet(results: &Results) -> Result<Vec<u8>> {
    table::to_parquet("results", columns(&results.rows))
}

fn columns(rows: &[Row]) -> Vec<Column> {
    let text = |name, description, value: &dyn Fn(&Row) -> Option<String>| {
        Column::text(name, description, rows.iter().map(value))
    };
    let count = |name, unit, description, value: &dyn Fn(&Row) -> Option<u64>| {
        Column::count(name, unit, description, rows.iter().map(value))
    };
    let number = |name, unit, description, value: &dyn Fn(&Row) -> f64| {
        Column::number(name, unit, description, rows.iter().map(value))
    };
    let truth = |name, description, value: &dyn Fn(&Row) -> Option<bool>| {
        Column::truth(name, description, rows.iter().map(value))
    };
    let of = |count: usize| Some(count as u64);
    vec![
        text("run", "Run folder within runs", &|row| Some(row.run.clone())),
        text("model", "Short name of the model", &|row| Some(row.model.clone())),
        text("model_sha256", "SHA-256 of its weights", &|row| Some(row.model_sha256.clone())),
        count("layers", "layers", "Layers L of the model", &|row| of(row.layers)),
        text("adapter", "Short name of the adapter; null without", &|row| row.adapter.clone()),
        text("weights", "How the weights were kept: native or f32", &|row| Some(row.weights.clone())),
        text("device", "What the run was computed on", &|row| Some(row.device.clone())),
        text("prompt_set", "Short name of the prompt set", &|row| Some(row.prompt_set.clone())),
        text("prompts_sha256", "SHA-256 of its file", &|row| Some(row.prompts_sha256.clone())),
        text("category", "Category of the prompts; null for all", &|row| row.category.clone()),
        text("kind", "cutoff: of the exact frontier; policy: recorded besides", &|row| {
            Some(row.kind.name().to_owned())
        }),
        text("policy", "Policy", &|row| Some(row.policy.clone())),
        count(
            "cutoff",
            "layers",
            "Cutoff, 1 to L, where L is the full model; null for other policies",
            &|row| row.cutoff.and_then(of),
        ),
        text("anchor", "Prompt tokens that keep KV at every layer; null for other policies", &|row| {
            row.anchor.map(|anchor| anchor.name().to_owned())
        }),
        count("prompts", "prompts", "Prompts", &|row| of(row.prompts)),
        count("prompts_failed", "prompts", "Prompts of the run that could not be recorded", &|row| {
            of(row.prompts_failed)
        }),
        number("prompt_tokens", "tokens", "Prompt tokens, mean", &|row| row.prompt_tokens),
        count("max_new_tokens", "tokens", "Decode steps, at most", &|row| of(row.max_new_tokens)),
        number("kl", "nats", "Mean KL(full, policy) of next-token distributions", &|row| row.kl),
        number("kl_upper95", "nats", "One-sided 95 % bootstrap upper bound of kl over prompts", &|row| {
            row.kl_upper95
        }),
        number("top1", "share", "Share of steps with the full model's most likely token", &|row| row.top1),
        number("dnll", "nats", "Mean NLL of the continuation, less the full model's", &|row| row.dnll),
        number(
            "text_unchanged",
            "share",
            "Share of prompts whose greedy text is the full model's; null where unknown",
            &|row| row.text_unchanged,
        ),
        count(
            "expected",
            "prompts",
            "Prompts with an expected answer, also those that could not be recorded",
            &|row| of(row.expected),
        ),
        count(
            "right",
            "prompts",
            "Of these, prompts whose text has the answer; below full depth those that the full model answers are judged; null for other policies",
            &|row| row.right.and_then(of),
        ),
        count(
            "answers",
            "prompts",
            "Prompts whose expected answer the full model gives; null for other policies",
            &|row| row.answers.and_then(of),
        ),
        number("answers_kept", "share", "Share of answers that are kept; null where there is none", &|row| {
            row.answers_kept
        }),
        truth(
            "passes",
            "Whether tolerance and criterion hold; null where answers or texts under the policy are unknown",
            &|row| row.passes,
        ),
        truth("recommended", "Whether it is the cutoff that the run recommends", &|row| {
            Some(row.recommended)
        }),
        number("kv_bytes", "bytes", "KV after the last decode token, mean per prompt", &|row| row.kv_bytes),
        number("kv_bytes_full", "bytes", "The same of the full model", &|row| row.kv_bytes_full),
        number("kv_saved", "share", "Share of the KV bytes saved", &|row| row.kv_saved),
        number(
            "predicted_ttft_saved",
            "share",
            "Prediction: share of the time to first token saved",
            &|row| row.predicted_ttft_saved,
        ),
        number(
            "predicted_tpot_saved",
            "share",
            "Prediction: share of the time per output token saved",
            &|row| row.predicted_tpot_saved,
        ),
        count("weight_bytes", "bytes", "Weights that a decode step reads; null where unknown", &|row| {
            row.weight_bytes
        }),
        number(
            "full_ttft_s",
            "seconds",
            "Time to first token of the full model while it was recorded, mean",
            &|row| row.full_ttft_s,
        ),
        number("record_s", "seconds", "Time that recording the prompts took, without policies", &|row| {
            row.record_s
        }),
        text("layerscope", "Version of layerscope that recorded", &|row| Some(row.layerscope.clone())),
    ]
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ranking::tests::{results, row};
    use arrow_array::Array;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    #[test]
    fn every_column_has_a_unit_and_unknown_values_are_null() {
        let unknown = Row {
            text_unchanged: f64::NAN,
            passes: None,
            cutoff: None,
            anchor: None,
            ..row("b", None, f64::NAN)
        };
        let bytes = to_parquet(&results(vec![row("a", Some(3), 7.0), unknown])).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes)).unwrap();
        for field in reader.schema().fields() {
            for key in ["unit", "description"] {
                assert!(
                    field.metadata().get(key).is_some_and(|text| !text.is_empty()),
                    "{}: {key}",
                    field.name()
                );
            }
        }
        let batch = reader.build().unwrap().next().unwrap().unwrap();
        assert_eq!(batch.num_rows(), 2);
        for name in ["text_unchanged", "passes", "cutoff", "anchor", "right", "kv_bytes"] {
            let column = batch.column_by_name(name).unwrap();
            assert!(column.is_valid(0) && column.is_null(1), "{name}");
        }
    }

    #[test]
    fn a_table_without_rows_has_its_columns() {
        let bytes = to_parquet(&results(vec![])).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes)).unwrap();
        assert!(reader.schema().field_with_name("recommended").is_ok());
    }
}
