//! Errors in the form that OpenAI's clients expect.

use crate::job::Failure;
use crate::served::{Refusal, Served};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use layerscope_engine::{Error, readable_bytes};
use serde_json::{Value, json};

/// Why a request was not met.
#[derive(Debug, Clone)]
pub(crate) struct Refused {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<&'static str>,
    message: String,
}

impl Refused {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into() }
    }

    /// A request that cannot be met as it is.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The same, naming the field.
    pub(crate) fn field(param: &'static str, message: impl Into<String>) -> Self {
        Self { param: Some(param), ..Self::bad(message) }
    }

    pub(crate) fn status(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    pub(crate) fn model(id: &str, served: &Served) -> Self {
        let known: Vec<&str> = served.models.iter().map(|named| named.name.as_str()).collect();
        let (names, first) = (known.join(" or "), served.name());
        let message = format!(
            "the model {id:?} is not served here; ask for {names}, with a policy as {first}@POLICY, as in GET /v1/models"
        );
        Self { code: Some("model_not_found"), param: Some("model"), ..Self::not_found(message) }
    }

    pub(crate) fn method() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "this path takes another method")
    }

    pub(crate) fn key() -> Self {
        let message = "the key is missing or wrong: send `Authorization: Bearer KEY` with the one that the server was started with";
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message)
        }
    }

    pub(crate) fn place(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "permission_error", message)
    }

    pub(crate) fn loading() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", "the model is loading; try again")
    }

    pub(crate) fn viewers(most: usize) -> Self {
        let message = format!("{most} viewers are connected already; close one, or try again later");
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
    }

    pub(crate) fn engine(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// As it is sent.
    pub(crate) fn body(&self) -> Value {
        let Self { kind, code, param, message, .. } = self;
        json!({"error": {"message": message, "type": kind, "param": param, "code": code}})
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Input(message) => Self::bad(message),
            Failure::Late => Self::new(
                StatusCode::GATEWAY_TIMEOUT,
                "timeout",
                "the request took longer than --timeout of the server allows",
            ),
            Failure::Engine(message) => Self::engine(message),
        }
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Full { waiting } => {
                let message = format!("{waiting} sequences wait already; try again later");
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            }
            Refusal::TooLarge { need, memory } => Self::bad(format!(
                "the sequence takes {} of keys and values, and the server has {} for all: shorten the prompt, ask for fewer tokens or \
                 name a policy that keeps less",
                readable_bytes(need as f64),
                readable_bytes(memory as f64)
            )),
            Refusal::Gone => Self::engine("the engine has ended; start the server again"),
        }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&self.status) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
