//! Requests and answers.

mod answer;
mod body;
mod chat;
mod completions;
mod connections;
mod error;
mod guard;
mod models;
mod page;
mod score;
mod stream;
mod tokens;
mod viewers;

use crate::Options;
use crate::metrics::Metrics;
use crate::served::Served;
use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{DefaultBodyLimit, State as Extracted};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
pub(crate) use connections::serve;
use error::Refused;
use std::sync::{Arc, OnceLock};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowMethods, CorsLayer};
use viewers::Viewers;

/// What the viewer's page has is below this.
const PAGE: &str = "/viewer/";
/// The WebSocket of viewers.
const VIEWER: &str = "/viewer/engine";

/// A request's body has at most so many bytes.
const MOST_BODY_BYTES: usize = 32 << 20;

/// What every handler sees.
#[derive(Clone)]
pub(crate) struct State {
    pub(crate) options: Arc<Options>,
    /// Empty while the model loads.
    pub(crate) served: Arc<OnceLock<Served>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) viewers: Arc<Viewers>,
}

impl State {
    /// The model, once it is loaded.
    fn served(&self) -> Result<&Served, Refused> {
        self.served.get().ok_or_else(Refused::loading)
    }
}

fn router(state: State) -> Router {
    let origins: Vec<HeaderValue> =
        state.options.allow_origins.iter().filter_map(|origin| origin.parse().ok()).collect();
    let cors = CorsLayer::new()
        .allow_origin(origins)
        .allow_methods(AllowMethods::mirror_request())
        .allow_headers(AllowHeaders::mirror_request());
    let mut router = Router::new()
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/v1/score", post(score::score))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::one))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::info));
    if state.options.metrics {
        router = router.route("/metrics", get(metrics));
    }
    if let Some(viewer) = state.options.viewer {
        let connect =
            async move |Extracted(state): Extracted<State>,
                        upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| {
                state.viewers.connect(viewer, upgrade)
            };
        router = router.route(VIEWER, get(connect));
    }
    let mut router = router
        .layer(from_fn_with_state(state.clone(), guard::key))
        // Says nothing that a key should keep.
        .route("/health", get(health));
    if state.options.viewer.is_some() {
        // Nor does the page: what it shows, it asks for with the key.
        router = router
            .route("/viewer", get(page::redirect))
            .route(PAGE, get(page::index))
            .route("/viewer/{name}", get(page::file));
    }
    router
        .fallback(async || Refused::not_found("there is no such path; see docs/serving.md"))
        .method_not_allowed_fallback(async || Refused::method())
        .layer(from_fn_with_state(state.clone(), guard::place))
        .layer(cors)
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .layer(CatchPanicLayer::custom(|_| {
            Refused::engine("the server failed; please report this").into_response()
        }))
        .with_state(state)
}

async fn health(Extracted(state): Extracted<State>) -> Response {
    match state.served.get() {
        Some(_) => (StatusCode::OK, axum::Json(serde_json::json!({"status": "ok"}))).into_response(),
        None => Refused::loading().into_response(),
    }
}

async fn metrics(Extracted(state): Extracted<State>) -> Response {
    match state.metrics.text() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(_) => Refused::engine("the figures cannot be written").into_response(),
    }
}
