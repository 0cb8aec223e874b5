//! Spans of recorded prompts: locates a span in the tokens, removes it with the run's model and writes its cost to the run
//! folder.

use crate::recorded_with;
use layerscope_cutoff::Answer;
use layerscope_cutoff::diffusion::{DiffusionEvent, Question, diffusion};
use layerscope_diagnostics::record::{PromptSummary, SpanRecord};
use layerscope_diagnostics::run::{Run, SpansWriter};
use layerscope_engine::{Error, Interrupt, Model, Result, Tokenizer};
use std::ops::Range;

/// A selection of a prompt's tokens.
#[derive(Debug, Clone)]
pub enum SpanTokens {
    /// The tokens at these positions.
    At(Range<usize>),
    /// The tokens of a text that occurs once in the prompt.
    OfText(String),
}

/// A request to remove a span of a recorded prompt.
#[derive(Debug, Clone)]
pub struct SpanRequest<'a> {
    /// The prompt.
    pub prompt_id: &'a str,
    /// The span.
    pub tokens: SpanTokens,
    /// The answer to search in the generated texts; by default the answer in the prompt file.
    pub answer: Option<&'a str>,
    /// Layers from which the span is removed; all if empty.
    pub layers: Option<&'a [usize]>,
}

/// Removes a span of a recorded prompt, measures the divergence along the recorded continuation, and writes
/// it to the run folder. Replaces an earlier entry of the same span.
///
/// # Errors
/// [`Error::Input`] if the model or its precision is not the run's, there is no such prompt or span, or
/// memory does not suffice; [`Error::Interrupted`]; [`Error::Failure`] if the folder cannot be written.
pub fn remove_span(
    run: &Run,
    model: &Model,
    request: &SpanRequest<'_>,
    interrupt: &Interrupt,
    observe: &mut dyn FnMut(DiffusionEvent),
) -> Result<SpanRecord> {
    recorded_with::check(run, model)?;
    let prompt = run.prompt(request.prompt_id)?;
    let span = match &request.tokens {
        SpanTokens::At(span) => span.clone(),
        SpanTokens::OfText(text) => span_of_text(&model.tokenizer, &prompt, text)?,
    };
    let all: Vec<usize> = (0..model.config().layers).collect();
    // Texts of the run's length, if the context is long enough.
    let room = (model.config().context + 1).saturating_sub(prompt.p);
    let max_new_tokens = run.manifest().settings.max_new_tokens.max(prompt.steps).min(room);
    let text = request.answer.or(prompt.expected.as_deref()).map(str::trim).filter(|text| !text.is_empty());
    let question = Question {
        prompt: &prompt.prompt_tokens,
        continuation: &prompt.generated,
        span: span.clone(),
        layers: request.layers.unwrap_or(&all),
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

/// The tokens that cover a text in a prompt.
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

/// Every occurrence of a text in a list of tokens.
fn spans_of_text(tokenizer: &Tokenizer, tokens: &[u32], text: &str) -> Result<Vec<Range<usize>>> {
    if text.is_empty() {
        return Ok(vec![]);
    }
    let mut stream = tokenizer.stream(false);
    // The length of the decoded text after each token; a token that ends within a character adds nothing.
    let (mut decoded, mut ends) = (String::new(), vec![]);
    for &token in tokens {
        decoded.push_str(stream.push(token)?.as_deref().unwrap_or_default());
        ends.push(decoded.len());
    }
    let span = |(start, text): (usize, &str)| {
        let mut first = ends.partition_point(|&end| end <= start);
        // Tokens that contain only the start of the first character.
        while first > 0 && ends[first - 1] == first.checked_sub(2).map_or(0, |before| ends[before]) {
            first -= 1;
        }
        first..ends.partition_point(|&end| end < start + text.len()) + 1
    };
    Ok(decoded.match_indices(text).map(span).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use layerscope_engine::{ModelSource, OpenedModel};
    use proptest::prelude::*;
    use std::path::Path;
    use std::sync::LazyLock;

    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny/layerscope-tiny.gguf");
        OpenedModel::open(&ModelSource::path(path)).unwrap().tokenizer
    });

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
                // The span has no further token.
                let shorter = [span.start + 1..span.end, span.start..span.end - 1];
                for span in shorter {
                    let held = TOKENIZER.decode(&tokens[span.clone()]).unwrap();
                    prop_assert!(!held.contains(&text), "{:?} in {:?}", text, held);
                }
            }
        }
    }
}
