//! Measurements as a Parquet table; every column carries `unit` and `description`.

use crate::{BenchReport, Measurement, Quality};
use layerscope_diagnostics::table::{self, Column};
use layerscope_engine::Result;

/// Encodes a Parquet file in memory, one row per policy and length. Undefined numbers are null.
///
/// # Errors
/// [`layerscope_engine::Error::Failure`] if it cannot be encoded.
pub fn to_parquet(report: &BenchReport) -> Result<Vec<u8>> {
    table::to_parquet("measurements", columns(report))
}

fn columns(report: &BenchReport) -> Vec<Column> {
    let rows = &report.results;
    let text = |name, description, value: &dyn Fn(&Measurement) -> String| {
        Column::text(name, description, rows.iter().map(|row| Some(value(row))))
    };
    let count = |name, unit, description, value: &dyn Fn(&Measurement) -> Option<u64>| {
        Column::count(name, unit, description, rows.iter().map(value))
    };
    let number = |name, unit, description, value: &dyn Fn(&Measurement) -> f64| {
        Column::number(name, unit, description, rows.iter().map(value))
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
