//! Spans of recorded prompts: found in their tokens, asked about with the run's model, kept in the run folder.

use crate::recorded_with;
use layerscope_cutoff::diffusion::{Answer, DiffusionEvent, Question, diffusion};
use layerscope_diagnostics::record::{Divergence, SpanRecord};
use layerscope_diagnostics::run::{PromptSummary, Run, SpansWriter};
use layerscope_diagnostics::summary::mean;
use layerscope_engine::{Error, Interrupt, Model, Result, Tokenizer};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::Range;

/// Which tokens of a prompt.
#[derive(Debug, Clone)]
pub enum Span {
    /// Those at these positions.
    Tokens(Range<usize>),
    /// Those that a text, which stands in the prompt once, has a part in.
    Text(String),
}

/// What is asked of a recorded prompt.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// The prompt.
    pub prompt_id: &'a str,
    /// What is removed.
    pub span: Span,
    /// What is looked for in the texts; the answer that the prompt was recorded with, if there is none.
    pub answer: Option<&'a str>,
    /// Layers from which the span is removed; all, if there are none.
    pub layers: Option<&'a [usize]>,
}

/// Removes a span of a recorded prompt along its recorded continuation, and keeps what comes of it in the run folder, in place
/// of what was there of the same span.
///
/// # Errors
/// [`Error::Input`] where the model or its precision is not the run's, there is no such prompt or span, or memory does not
/// suffice; [`Error::Interrupted`]; [`Error::Failure`] where the folder cannot be written.
pub fn ask(
    run: &Run,
    model: &Model,
    asked: &Asked<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(DiffusionEvent),
) -> Result<SpanRecord> {
    recorded_with::check(run, model)?;
    let prompt = run.prompt(asked.prompt_id)?;
    let span = match &asked.span {
        Span::Tokens(span) => span.clone(),
        Span::Text(text) => span_of_text(&model.tokenizer, &prompt, text)?,
    };
    let all: Vec<usize> = (0..model.config().layers).collect();
    // Texts as long as the run's own, where the context has room for them.
    let room = (model.config().context + 1).saturating_sub(prompt.p);
    let max_new_tokens = run.manifest().settings.max_new_tokens.max(prompt.steps).min(room);
    let recorded = prompt.answer_given.then_some(prompt.generated_text.as_str());
    let text = asked.answer.or(recorded).map(str::trim).filter(|text| !text.is_empty());
    let question = Question {
        prompt: &prompt.prompt_tokens,
        continuation: &prompt.generated,
        span: span.clone(),
        layers: asked.layers.unwrap_or(&all),
        answer: text.map(|text| Answer { text, max_new_tokens }),
    };
    let layers = diffusion(model, &question, interrupt, observe)?;
    let record = SpanRecord {
        prompt_id: prompt.id.clone(),
        first: span.start,
        end: span.end,
        text: model.tokenizer.decode(&prompt.prompt_tokens[span])?,
        layers,
    };
    SpansWriter::open(run)?.put(record.clone())?;
    Ok(record)
}

/// The tokens of a prompt that a text has a part in.
fn span_of_text(tokenizer: &Tokenizer, prompt: &PromptSummary, text: &str) -> Result<Range<usize>> {
    let spans = spans_of_text(tokenizer, &prompt.prompt_tokens, text)?;
    match spans.as_slice() {
        [span] => Ok(span.clone()),
        [] => Err(Error::input(format!(
            "the prompt {:?} does not hold the text {text:?}; give it as it stands there, or the positions of its tokens",
            prompt.id
        ))),
        [first, second, ..] => Err(Error::input(format!(
            "the prompt {:?} holds the text {text:?} {} times, at tokens {}–{}, {}–{} and so on; give the positions of those \
             meant",
            prompt.id,
            spans.len(),
            first.start,
            first.end - 1,
            second.start,
            second.end - 1
        ))),
    }
}

/// Where a text stands among tokens, each time that it does.
fn spans_of_text(tokenizer: &Tokenizer, tokens: &[u32], text: &str) -> Result<Vec<Range<usize>>> {
    if text.is_empty() {
        return Ok(vec![]);
    }
    let mut stream = tokenizer.stream(false);
    // What is decoded after each token; a token that ends within a character adds nothing.
    let (mut decoded, mut ends) = (String::new(), vec![]);
    for &token in tokens {
        decoded.push_str(stream.push(token)?.as_deref().unwrap_or_default());
        ends.push(decoded.len());
    }
    let span = |(start, text): (usize, &str)| {
        let mut first = ends.partition_point(|&end| end <= start);
        // Tokens that only began the first character.
        while first > 0 && ends[first - 1] == first.checked_sub(2).map_or(0, |before| ends[before]) {
            first -= 1;
        }
        first..ends.partition_point(|&end| end < start + text.len()) + 1
    };
    Ok(decoded.match_indices(text).map(span).collect())
}

/// A span with its prompt and the layer from which on it may vanish.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ToldSpan {
    /// The prompt.
    pub prompt_id: String,
    /// The smallest layer from which on the KL is within the tolerance; the number of layers where there is none.
    pub vanishes_from: usize,
    /// What removing it costs.
    #[serde(flatten)]
    pub record: SpanRecord,
}

impl ToldSpan {
    /// Within a tolerance, nats.
    pub fn new(record: SpanRecord, tolerance: f64) -> Self {
        let vanishes_from = record.vanishes_from(tolerance);
        Self { prompt_id: record.prompt_id.clone(), vanishes_from, record }
    }
}

/// Removing spans from a layer on, over several of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct MeanRow {
    /// The first layer without the spans, 0 … L.
    pub layer: usize,
    /// Spans removed there.
    pub spans: usize,
    /// Mean of what it costs.
    #[serde(flatten)]
    pub divergence: Divergence,
    /// Mean share of attention on the span at this layer; NaN at L.
    pub decode_mass: f64,
    /// Share of the spans without which the answer is found, among those with one; NaN where there is none.
    pub found: f64,
}

/// Means by layer, of the spans that were removed there.
pub fn mean_by_layer(records: &[SpanRecord]) -> Vec<MeanRow> {
    let deepest = records.iter().filter_map(|record| record.layers.last()).map(|row| row.layer).max();
    let rows = (0..=deepest.unwrap_or(0)).filter_map(|layer| {
        let rows = || records.iter().flat_map(|record| &record.layers).filter(move |row| row.layer == layer);
        let found = rows().filter_map(|row| row.found).map(|found| f64::from(u8::from(found)));
        let spans = rows().count();
        (spans > 0).then(|| MeanRow {
            layer,
            spans,
            divergence: Divergence {
                kl: mean(rows().map(|row| row.divergence.kl)),
                top1: mean(rows().map(|row| row.divergence.top1)),
                dnll: mean(rows().map(|row| row.divergence.dnll)),
            },
            decode_mass: mean(rows().map(|row| row.decode_mass)),
            found: mean(found),
        })
    });
    rows.collect()
}

/// A span for people: "tokens 120–139 (“The key is …”)".
pub fn name(record: &SpanRecord) -> String {
    const SHOWN: usize = 60;
    let words: Vec<&str> = record.text.split_whitespace().collect();
    let text: String = words.join(" ").chars().filter(|character| !character.is_control()).collect();
    let shown = match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{} …", text[..end].trim_end()),
        None => text,
    };
    match record.end - record.first {
        1 => format!("token {} (“{shown}”)", record.first),
        _ => format!("tokens {}–{} (“{shown}”)", record.first, record.end - 1),
    }
}

/// From which layer on a span may vanish, after its name: "may vanish from layer 12 on (…)".
pub fn verdict(record: &SpanRecord, tolerance: f64, layers: usize) -> String {
    let from = record.vanishes_from(tolerance);
    let looked_at = if record.layers.len() <= layers { " looked at" } else { "" };
    if from >= layers {
        return format!("may vanish from no layer{looked_at} on (KL > {tolerance} nats at the last one)");
    }
    format!("may vanish from layer {from} on (KL ≤ {tolerance} nats at every layer{looked_at} from there up)")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use layerscope_diagnostics::record::SpanRow;
    use layerscope_engine::{ModelSource, OpenedModel};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
        OpenedModel::open(&ModelSource::path(path)).unwrap().tokenizer
    });

    fn row(layer: usize, kl: f64, found: Option<bool>) -> SpanRow {
        let divergence = Divergence { kl, top1: 1.0, dnll: 0.0 };
        SpanRow { layer, divergence, decode_mass: f64::NAN, found }
    }

    fn record(kl: &[f64]) -> SpanRecord {
        let layers = kl.iter().enumerate().map(|(layer, &kl)| row(layer, kl, None)).collect();
        SpanRecord { prompt_id: "a".into(), first: 1, end: 3, text: "x".into(), layers }
    }

    #[test]
    fn a_span_vanishes_where_no_layer_above_needs_it() {
        assert_eq!(record(&[2.0, 0.05, 0.4, 0.1, 0.0]).vanishes_from(0.1), 3);
        assert_eq!(record(&[0.1, 0.05, 0.0]).vanishes_from(0.1), 0);
        assert_eq!(record(&[0.0, f64::NAN, 0.0]).vanishes_from(0.1), 2);
        assert_eq!(record(&[1.0, 1.0, 0.0]).vanishes_from(0.1), 2);
        assert!(verdict(&record(&[1.0, 1.0, 0.0]), 0.1, 2).starts_with("may vanish from no layer on ("));
        assert!(verdict(&record(&[1.0, 0.0, 0.0]), 0.1, 2).starts_with("may vanish from layer 1 on ("));
        assert!(verdict(&record(&[1.0, 0.0, 0.0]), 0.1, 9).contains("looked at"));
    }

    #[test]
    fn names_are_short_and_in_one_line() {
        assert_eq!(name(&record(&[0.0])), "tokens 1–2 (“x”)");
        let long = SpanRecord { end: 2, text: format!(" a\n\u{1b}b {}", "é".repeat(99)), ..record(&[0.0]) };
        let shown = name(&long);
        assert!(shown.starts_with("token 1 (“a b éé") && shown.ends_with(" …”)"), "{shown}");
    }

    #[test]
    fn means_are_over_the_spans_removed_there() {
        let mut other = record(&[4.0, 1.0, 0.0]);
        other.layers.remove(1);
        other.layers[0].found = Some(false);
        let mut one = record(&[2.0, 0.5, 0.0]);
        one.layers[0].found = Some(true);
        let rows = mean_by_layer(&[one, other]);
        let found: Vec<_> = rows.iter().map(|row| (row.layer, row.spans, row.divergence.kl)).collect();
        assert_eq!(found, [(0, 2, 3.0), (1, 1, 0.5), (2, 2, 0.0)]);
        assert_eq!(rows[0].found, 0.5);
        assert!(rows[1].found.is_nan());
        assert_eq!(mean_by_layer(&[]), []);
    }

    proptest! {
        #[test]
        fn a_text_is_found_in_the_tokens_that_hold_it(
            before in "[a-zé世 .]{0,12}", text in "[a-zé世😀 ]{1,10}", after in "[A-Z0-9]{0,6}",
        ) {
            let whole = format!("{before}{text}{after}");
            let tokens = TOKENIZER.encode(&whole).unwrap();
            let decoded = TOKENIZER.decode(&tokens).unwrap();
            let spans = spans_of_text(&TOKENIZER, &tokens, &text).unwrap();
            prop_assert_eq!(spans.len(), decoded.matches(text.as_str()).count());
            for span in spans {
                prop_assert!(span.end <= tokens.len());
                let held = TOKENIZER.decode(&tokens[span.clone()]).unwrap();
                prop_assert!(held.contains(&text), "{:?} in {:?}", text, held);
                // Not one token more.
                let shorter = [span.start + 1..span.end, span.start..span.end - 1];
                for span in shorter {
                    let held = TOKENIZER.decode(&tokens[span.clone()]).unwrap();
                    prop_assert!(!held.contains(&text), "{:?} in {:?}", text, held);
                }
            }
        }
    }
}
