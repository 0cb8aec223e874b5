//! The tables' columns: name, type, unit and description, stored as Parquet column metadata.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Metadata, Schema, SchemaRef};

/// A table of the run folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Table {
    /// One row per prompt.
    Prompts,
    /// One row per prompt × layer, with the embedding output as layer −1.
    Layers,
    /// One row per prompt × layer × head.
    Heads,
    /// One row per prompt × layer × decode step.
    Steps,
    /// One row per prompt × layer × prompt position.
    Tokens,
    /// One row per prompt × anchor × cutoff.
    Frontier,
    /// One row per prompt × layer.
    Knockout,
}

impl Table {
    /// All tables.
    pub const ALL: [Self; 7] =
        [Self::Prompts, Self::Layers, Self::Heads, Self::Steps, Self::Tokens, Self::Frontier, Self::Knockout];

    /// Its file in the run folder.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::Prompts => "prompts.parquet",
            Self::Layers => "layers.parquet",
            Self::Heads => "heads.parquet",
            Self::Steps => "steps.parquet",
            Self::Tokens => "tokens.parquet",
            Self::Frontier => "frontier.parquet",
            Self::Knockout => "knockout.parquet",
        }
    }

    /// Its columns; every field carries `unit` and `description`.
    pub fn schema(self) -> SchemaRef {
        schema_of(&self.columns())
    }

    /// Its columns in order.
    pub(super) fn columns(self) -> Vec<Column> {
        match self {
            Self::Prompts => PROMPTS.to_vec(),
            Self::Layers => {
                [&[PROMPT_ID, LAYER_OR_EMBEDDING, WINDOWED][..], &ATTENTION, &TRAJECTORY].concat()
            }
            Self::Heads => [&[PROMPT_ID, LAYER, HEAD][..], &ATTENTION].concat(),
            Self::Steps => {
                let keys = [PROMPT_ID, LAYER, STEP, STEP_POSITION, STEP_TOKEN];
                [&keys[..], &ATTENTION, &[LENS_KL, LENS_TOP1], &READS].concat()
            }
            Self::Tokens => TOKENS.to_vec(),
            Self::Frontier => [&[PROMPT_ID, ANCHOR, CUTOFF][..], &DIVERGENCE, &TEXT].concat(),
            Self::Knockout => [&[PROMPT_ID, LAYER][..], &DIVERGENCE, &BY_KV_HEAD].concat(),
        }
    }
}

/// The columns as Arrow fields.
pub(super) fn schema_of(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()))
}

/// A column's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    TextList,
    Bool,
    Int,
    TokenId,
    TokenIdList,
    Float,
    FloatList,
    /// f32, for the one large table.
    Single,
    IntList,
    SingleList,
}

/// One column of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// Whether null means undefined.
    pub(super) nullable: bool,
    /// Whether files of earlier schemas lack it; it reads as null there.
    pub(super) later: bool,
    pub(super) unit: &'static str,
    pub(super) description: &'static str,
}

impl Column {
    fn field(&self) -> Field {
        let list = |item| DataType::List(Arc::new(Field::new_list_field(item, false)));
        let data_type = match self.kind {
            Kind::Text => DataType::Utf8,
            Kind::TextList => list(DataType::Utf8),
            Kind::Bool => DataType::Boolean,
            Kind::Int => DataType::Int32,
            Kind::TokenId => DataType::UInt32,
            Kind::TokenIdList => list(DataType::UInt32),
            Kind::Float => DataType::Float64,
            Kind::FloatList => DataType::List(Arc::new(Field::new_list_field(DataType::Float64, true))),
            Kind::Single => DataType::Float32,
            Kind::IntList => list(DataType::Int32),
            Kind::SingleList => list(DataType::Float32),
        };
        let metadata: Metadata =
            [("unit", self.unit), ("description", self.description)].into_iter().collect();
        Field::new(self.name, data_type, self.nullable).with_metadata(metadata)
    }
}

const fn column(name: &'static str, kind: Kind, unit: &'static str, description: &'static str) -> Column {
    Column { name, kind, nullable: false, later: false, unit, description }
}

const fn figure(name: &'static str, unit: &'static str, description: &'static str) -> Column {
    Column { nullable: true, ..column(name, Kind::Float, unit, description) }
}

const PROMPT_ID: Column = column("prompt_id", Kind::Text, "none", "Name of the prompt");
const LAYER: Column = column("layer", Kind::Int, "index", "Layer, from 0");
const LAYER_OR_EMBEDDING: Column = column(
    "layer",
    Kind::Int,
    "index",
    "Layer, from 0; -1 is the embedding output, which has only a curvature",
);
const WINDOWED: Column = optional(
    "windowed",
    Kind::Bool,
    "none",
    "Whether the layer attends within a sliding window only; its masses are over the keys it can see",
);
const HEAD: Column = column("head", Kind::Int, "index", "Query head, from 0");
const STEP: Column = column("step", Kind::Int, "index", "Decode step, from 0");
const STEP_POSITION: Column =
    column("position", Kind::Int, "tokens", "Position of the step's query: p - 1 + step");
const STEP_TOKEN: Column =
    column("token_id", Kind::TokenId, "token id", "The token of the continuation that the step yields");
const ANCHOR: Column = column(
    "anchor",
    Kind::Text,
    "none",
    "Prompt tokens that keep KV at every layer: bos (position 0) or none",
);
const CUTOFF: Column =
    column("cutoff", Kind::Int, "layers", "Prompt tokens keep KV in layers 0 to cutoff - 1 only");

const ATTENTION: [Column; 6] = [
    figure("bos_mass", "probability", "Attention mass of the decode queries on position 0"),
    figure(
        "prompt_mass",
        "probability",
        "Attention mass on positions 1 to p - 2 (decode-to-prefill attention mass)",
    ),
    figure("decode_mass", "probability", "Attention mass on positions from p - 1 on"),
    figure(
        "prompt_entropy",
        "share of ln(p - 2)",
        "Entropy of the attention within the prompt, 0 to 1; null where the prompt mass is at most 1e-6 or p < 4",
    ),
    figure("prompt_entropy_nats", "nats", "Entropy of the attention within the prompt"),
    figure(
        "selectivity",
        "probability",
        "prompt_mass * (1 - prompt_entropy), computed per head and step before any mean",
    ),
];

const TRAJECTORY: [Column; 6] = [
    figure(
        "curvature_prompt_deg",
        "degrees",
        "Mean turning angle of the residual stream over prompt positions, after the layer",
    ),
    figure(
        "straightening_prompt_deg",
        "degrees",
        "Curvature less that after layer 0; negative is straighter",
    ),
    figure(
        "curvature_decode_deg",
        "degrees",
        "Mean turning angle of the residual stream over decode positions, after the layer",
    ),
    figure(
        "straightening_decode_deg",
        "degrees",
        "Decode curvature less that after layer 0; negative is straighter",
    ),
    LENS_KL,
    figure(
        "lens_top1_agreement",
        "share of steps",
        "Share of steps whose logit-lens token is that of the last layer",
    ),
];
const LENS_KL: Column =
    figure("lens_kl", "nats", "Logit lens: KL(final || lens) of the next-token distribution");
const LENS_TOP1: Column = column("lens_top1", Kind::TokenId, "token id", "Logit lens: the most likely token");

const DIVERGENCE: [Column; 3] = [
    figure("kl", "nats", "Mean over steps of KL(full || changed) of the next-token distributions"),
    figure("top1", "share of steps", "Steps with the same argmax"),
    figure(
        "dnll",
        "nats",
        "Mean negative log-likelihood of the continuation, less that under the full model",
    ),
];

const fn optional(name: &'static str, kind: Kind, unit: &'static str, description: &'static str) -> Column {
    Column { nullable: true, ..column(name, kind, unit, description) }
}

/// A column that runs of earlier schemas lack.
const fn later(column: Column) -> Column {
    Column { later: true, ..column }
}

const TEXT: [Column; 3] = [
    later(optional(
        "unchanged",
        Kind::Bool,
        "none",
        "Whether the greedy text is the full model's; null where the continuation was given and the full model would write another",
    )),
    later(optional(
        "departs",
        Kind::Int,
        "step",
        "The first decode step whose token differs; null where none does",
    )),
    later(optional(
        "answered",
        Kind::Bool,
        "none",
        "Whether the greedy text contains the expected answer; null where none is expected, and below the last cutoff where the full model does not give it",
    )),
];

/// What each step reads of the prompt most.
pub(super) const READS: [Column; 5] = [
    later(optional(
        "read_positions",
        Kind::IntList,
        "tokens",
        "Prompt positions, of 1 to p - 2, with most attention by the mean over heads, strongest first; at most 32",
    )),
    later(optional(
        "read_mass",
        Kind::SingleList,
        "probability",
        "Attention on each of read_positions, mean over heads",
    )),
    later(optional(
        "head_reads",
        Kind::IntList,
        "positions",
        "How many of head_read_positions are of each head: at most 8, each with at least 0.01 of the attention",
    )),
    later(optional(
        "head_read_positions",
        Kind::IntList,
        "tokens",
        "Prompt positions with most attention of head 0, strongest first, then those of head 1, and so on",
    )),
    later(optional(
        "head_read_attention",
        Kind::SingleList,
        "probability",
        "Attention of the head on each of head_read_positions",
    )),
];

/// Of a prompt that is hidden from one KV head, for each head of the layer.
const BY_KV_HEAD: [Column; 3] = [
    by_kv_head(
        "kl_by_kv_head",
        "nats",
        "KL with the prompt hidden from one KV head of the layer, for each head; null where not measured",
    ),
    by_kv_head("top1_by_kv_head", "share of steps", "Steps with the same argmax then"),
    by_kv_head(
        "dnll_by_kv_head",
        "nats",
        "Mean negative log-likelihood of the continuation then, less that under the full model",
    ),
];

const fn by_kv_head(name: &'static str, unit: &'static str, description: &'static str) -> Column {
    later(optional(name, Kind::FloatList, unit, description))
}

/// `policies.parquet`, which a run may have in addition to its tables: one row per prompt × policy × layer × step.
pub(super) const POLICIES: [Column; 13] = [
    PROMPT_ID,
    column("policy", Kind::Text, "none", "Name of the policy"),
    LAYER,
    STEP,
    figure(
        "kl",
        "nats",
        "Mean over the prompt's steps of KL(full || policy); the same in all rows of prompt and policy",
    ),
    figure("top1", "share of steps", "Steps with the same argmax; the same in all rows of prompt and policy"),
    figure(
        "dnll",
        "nats",
        "Mean negative log-likelihood of the continuation, less that under the full model; the same in all rows of prompt and \
         policy",
    ),
    ATTENTION[0],
    ATTENTION[1],
    ATTENTION[2],
    ATTENTION[3],
    ATTENTION[4],
    ATTENTION[5],
];

/// A share of attention after a removal, which files of earlier versions lack.
const fn span_mass(name: &'static str, description: &'static str) -> Column {
    later(figure(name, "probability", description))
}

/// `patches.parquet`, which a run may have in addition to its tables: one row per map × layer × position, or map × layer × head.
pub(super) const PATCHES: [Column; 28] = [
    column("prompt_id", Kind::Text, "none", "Name of the clean prompt"),
    column("corrupted_id", Kind::Text, "none", "Name of the corrupted prompt"),
    column("map", Kind::Int, "index", "Number of the map within the file, from 0"),
    column(
        "site",
        Kind::Text,
        "none",
        "What is replaced: resid_pre (residual stream before the layer), attn_out, mlp_out or head (output of a head)",
    ),
    column(
        "direction",
        Kind::Text,
        "none",
        "denoising: the corrupted run gets the clean activation; noising: the clean run gets the corrupted one",
    ),
    column("metric", Kind::Text, "none", "What the effect is measured by: logit-diff or kl"),
    column("answer", Kind::Text, "none", "Token of the answer"),
    column("answer_id", Kind::TokenId, "token id", "Token of the answer"),
    column("wrong", Kind::Text, "none", "Token of the wrong answer"),
    column("wrong_id", Kind::TokenId, "token id", "Token of the wrong answer"),
    optional(
        "head_positions",
        Kind::Text,
        "none",
        "Positions at which a head is replaced, all at once, as in 0,5,10-20; null for other sites",
    ),
    LAYER,
    optional("position", Kind::Int, "tokens", "Prompt position, from 0; null for heads"),
    optional("head", Kind::Int, "index", "Query head, from 0; null for other sites"),
    optional("token", Kind::Text, "none", "The clean prompt's token at the position; null for heads"),
    optional(
        "corrupted_token",
        Kind::Text,
        "none",
        "The corrupted prompt's token at the position; null for heads",
    ),
    column("done", Kind::Bool, "none", "Whether the cell was computed before the work was interrupted"),
    figure(
        "logit_diff",
        "logits",
        "Logit of the answer less that of the wrong answer, after the last position of the patched run",
    ),
    figure("kl", "nats", "KL(clean || patched) of the next-token distributions after the last position"),
    figure(
        "effect",
        "none",
        "The metric on the scale on which the corrupted run is 0 and the clean run is 1",
    ),
    column("clean_next", Kind::Text, "none", "Most likely next token of the clean run"),
    column("clean_next_id", Kind::TokenId, "token id", "Most likely next token of the clean run"),
    column("corrupted_next", Kind::Text, "none", "Most likely next token of the corrupted run"),
    column("corrupted_next_id", Kind::TokenId, "token id", "Most likely next token of the corrupted run"),
    figure(
        "clean_logit_diff",
        "logits",
        "Logit of the answer less that of the wrong answer, of the clean run",
    ),
    figure(
        "corrupted_logit_diff",
        "logits",
        "Logit of the answer less that of the wrong answer, of the corrupted run",
    ),
    figure("clean_kl", "nats", "KL(clean || clean): 0"),
    figure("corrupted_kl", "nats", "KL(clean || corrupted) of the next-token distributions"),
];

/// `spans.parquet`, which a run may have in addition to its tables: one row per prompt × span × layer.
pub(super) const SPANS: [Column; 15] = [
    PROMPT_ID,
    column("first", Kind::Int, "tokens", "First prompt position of the span, from 0"),
    column("end", Kind::Int, "tokens", "One more than the last prompt position of the span"),
    column("text", Kind::Text, "none", "Text of the span"),
    column(
        "layer",
        Kind::Int,
        "index",
        "The span is removed from this layer on, from 0; the number of layers removes nothing",
    ),
    DIVERGENCE[0],
    DIVERGENCE[1],
    DIVERGENCE[2],
    figure(
        "decode_mass",
        "probability",
        "Attention mass of the full model's decode queries on the span at this layer, mean over heads and steps",
    ),
    span_mass("span_mass_full", "Mass on the span at the layers from this one on, of the full model"),
    span_mass(
        "rest_mass_full",
        "Mass on the rest of the prompt at the layers from this one on, of the full model",
    ),
    span_mass("bos_mass_after", "Mass on position 0 at the layers from this one on, without the span"),
    span_mass(
        "rest_mass_after",
        "Mass on the rest of the prompt at the layers from this one on, without the span",
    ),
    span_mass(
        "decode_mass_after",
        "Mass on positions from p - 1 on at the layers from this one on, without the span",
    ),
    optional(
        "found",
        Kind::Bool,
        "none",
        "Whether the greedy text without the span contains the answer; null where none was looked for",
    ),
];

const fn tokens_figure(name: &'static str, description: &'static str) -> Column {
    Column { kind: Kind::Single, ..figure(name, "probability", description) }
}

const TOKENS: [Column; 7] = [
    PROMPT_ID,
    LAYER,
    column("position", Kind::Int, "tokens", "Prompt position, from 0"),
    column("token_id", Kind::TokenId, "token id", "The prompt token"),
    column("token_text", Kind::Text, "none", "How the prompt token is shown"),
    tokens_figure("received_mean", "Attention received from the decode queries, mean over heads and steps"),
    tokens_figure("received_max", "Attention received from the decode queries, maximum over heads and steps"),
];

const PROMPTS: [Column; 17] = [
    PROMPT_ID,
    column("category", Kind::Text, "none", "Category of the prompt"),
    column("text", Kind::Text, "none", "The prompt as written"),
    column("p", Kind::Int, "tokens", "Prompt tokens, chat template and BoS included"),
    column("steps", Kind::Int, "tokens", "Decode steps N: tokens of the continuation"),
    column("tokens", Kind::TokenIdList, "token id", "Prompt tokens as the model saw them"),
    column("token_text", Kind::TextList, "none", "How each prompt token is shown"),
    column("generated", Kind::TokenIdList, "token id", "The continuation"),
    column("generated_token_text", Kind::TextList, "none", "How each token of the continuation is shown"),
    column("generated_text", Kind::Text, "none", "The continuation as text"),
    column(
        "answer_given",
        Kind::Bool,
        "none",
        "Whether the continuation was given instead of generated greedily",
    ),
    later(optional(
        "expected",
        Kind::Text,
        "none",
        "What a right text contains; null where nothing is expected",
    )),
    figure(
        "native_kl",
        "nats",
        "Mean over steps of KL(f32 weights || weights as run); null where the run is f32",
    ),
    figure("prefill_s", "seconds", "Prompt to first token (time to first token)"),
    figure("decode_s", "seconds", "All further greedy tokens; 0 where the answer was given"),
    figure("probe_s", "seconds", "The teacher-forced pass with every probe"),
    figure("frontier_s", "seconds", "Frontier and attention knockout"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_unit_and_description() {
        let tables = Table::ALL.map(|table| (table.file_name(), table.schema()));
        for (table, schema) in tables.into_iter().chain([
            ("spans.parquet", schema_of(&SPANS)),
            ("policies.parquet", schema_of(&POLICIES)),
            ("patches.parquet", schema_of(&PATCHES)),
        ]) {
            for field in schema.fields() {
                for key in ["unit", "description"] {
                    let value = field.metadata().get(key).map(String::as_str);
                    assert!(value.is_some_and(|text| !text.is_empty()), "{table} {} {key}", field.name());
                }
            }
            assert_eq!(schema.fields()[0].name(), "prompt_id", "{table}");
        }
    }
}
