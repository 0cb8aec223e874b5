//! Bodies of requests, and the fields that several kinds of request have.

use super::answer::random;
use super::error::Refused;
use crate::http::State;
use crate::served::{Served, Under};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use layerscope_engine::{Choice, Sampling};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// Time for the whole body.
const BODY_TIME: Duration = Duration::from_secs(60);
/// Most stop texts, and the bytes of one.
const MOST_STOPS: usize = 16;
const MOST_STOP_BYTES: usize = 256;

/// A body in JSON, whatever the content type says: `curl -d` says another.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<State> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &State) -> Result<Self, Refused> {
        let read = tokio::time::timeout(BODY_TIME, Bytes::from_request(request, state)).await;
        let read =
            read.map_err(|_| Refused::status(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"))?;
        let bytes = read.map_err(|rejection| Refused::status(rejection.status(), rejection.body_text()))?;
        serde_json::from_slice(&bytes)
            .map(Body)
            .map_err(|error| Refused::bad(format!("the body is not the JSON that is expected here: {error}")))
    }
}

/// One text or several.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(untagged)]
pub(super) enum Stop {
    #[default]
    None,
    One(String),
    Several(Vec<String>),
}

impl Stop {
    pub(super) fn texts(self) -> Result<Vec<String>, Refused> {
        let mut texts = match self {
            Self::None => vec![],
            Self::One(text) => vec![text],
            Self::Several(texts) => texts,
        };
        texts.retain(|text| !text.is_empty());
        if texts.len() > MOST_STOPS || texts.iter().any(|text| text.len() > MOST_STOP_BYTES) {
            return Err(Refused::field(
                "stop",
                format!("at most {MOST_STOPS} stop texts of at most {MOST_STOP_BYTES} bytes are taken"),
            ));
        }
        Ok(texts)
    }
}

/// How tokens are chosen, as requests say it.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct SamplingFields {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    min_p: Option<f64>,
    seed: Option<i64>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    repetition_penalty: Option<f32>,
    logit_bias: Option<BTreeMap<String, f32>>,
}

impl SamplingFields {
    /// For the text of that index among those of a prompt.
    pub(super) fn choice(&self, index: usize) -> Result<Choice, Refused> {
        let temperature = self.temperature.unwrap_or(1.0);
        if !(0.0..=100.0).contains(&temperature) {
            return Err(Refused::field("temperature", "temperature is 0 or more, at most 100"));
        }
        let seed = self.seed.map_or_else(random, |seed| seed as u64).wrapping_add(index as u64);
        let top_k = self.top_k.filter(|&top_k| top_k > 0).and_then(|top_k| usize::try_from(top_k).ok());
        let top_p = self.top_p.filter(|&top_p| top_p != 1.0);
        let sampling = Sampling::Random { temperature, top_p, top_k, min_p: self.min_p, seed }.checked()?;
        let [presence_penalty, frequency_penalty] =
            [self.presence_penalty, self.frequency_penalty].map(|penalty| penalty.unwrap_or(0.0));
        if ![presence_penalty, frequency_penalty].iter().all(|penalty| penalty.abs() <= 2.0) {
            return Err(Refused::bad("presence_penalty and frequency_penalty are between -2 and 2"));
        }
        let repetition_penalty = self.repetition_penalty.unwrap_or(1.0);
        if !(repetition_penalty > 0.0 && repetition_penalty <= 2.0) {
            return Err(Refused::field("repetition_penalty", "repetition_penalty is above 0, at most 2"));
        }
        let mut bias = vec![];
        for (token, &by) in self.logit_bias.iter().flatten() {
            match token.parse() {
                Ok(token) if by.abs() <= 100.0 => bias.push((token, by)),
                _ => {
                    return Err(Refused::field(
                        "logit_bias",
                        "logit_bias maps token ids to numbers between -100 and 100",
                    ));
                }
            }
        }
        Ok(Choice { sampling, repetition_penalty, presence_penalty, frequency_penalty, bias })
    }
}

/// The fields that are understood but not served, and those that would change the answer: any value but the one that changes nothing
/// is refused.
pub(super) fn refuse_unserved(fields: &BTreeMap<String, Value>) -> Result<(), Refused> {
    let is_none = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(values) => values.is_empty(),
        Value::String(text) => text.is_empty() || text == "none",
        Value::Number(_) | Value::Bool(true) => false,
    };
    let one = |value: &Value| value.as_f64() == Some(1.0);
    let zero = |value: &Value| value.as_f64() == Some(0.0);
    let text = |value: &Value| value.get("type").and_then(Value::as_str) == Some("text");
    for (name, value) in fields {
        let is_harmless = is_none(value)
            || match name.as_str() {
                "length_penalty" | "best_of" => one(value),
                "min_tokens" => zero(value),
                "response_format" => text(value),
                "tools" | "tool_choice" | "functions" | "function_call" | "suffix" | "audio"
                | "use_beam_search" | "guided_json" | "guided_regex" | "guided_choice" | "guided_grammar"
                | "structured_outputs" | "bad_words" | "stop_token_ids" | "allowed_token_ids"
                | "logits_processors" | "prompt_embeds" => false,
                "modalities" => value.as_array().is_some_and(|all| all.iter().all(|one| one == "text")),
                _ => true,
            };
        if !is_harmless {
            return Err(Refused::bad(format!("{name:?} is not served here; leave it away")));
        }
    }
    Ok(())
}

/// The id that a request asks for, and what it names.
pub(super) fn model_of(
    served: &Served,
    model: Option<&str>,
    policy: Option<&str>,
) -> Result<(String, Under), Refused> {
    let id = model.filter(|model| !model.is_empty()).unwrap_or(served.name());
    let mut under = match served.under(id) {
        None => return Err(Refused::model(id, served)),
        Some(under) => under.map_err(|error| Refused::field("model", error.to_string()))?,
    };
    if let Some(policy) = policy {
        under.policy =
            served.policy_named(policy).map_err(|error| Refused::field("policy", error.to_string()))?;
    }
    Ok((id.to_owned(), under))
}
