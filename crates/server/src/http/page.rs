//! The viewer as a page of a browser.

use super::State;
use super::error::Refused;
use crate::PageFile;
use axum::extract::{Path, RawQuery, State as Extracted};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Nothing but what this server has, no inline scripts, and no page around it.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; style-src 'unsafe-inline'; \
                      img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// To the page itself, below which its files are.
pub(super) async fn redirect(RawQuery(query): RawQuery) -> Response {
    let query = query.map_or(String::new(), |query| format!("?{query}"));
    let to = HeaderValue::try_from(format!("/viewer/{query}"));
    match to {
        Ok(to) => (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, to)]).into_response(),
        Err(_) => Refused::bad("the address is no address of a page").into_response(),
    }
}

pub(super) async fn index(state: Extracted<State>) -> Result<Response, Refused> {
    file(state, Path("index.html".to_owned())).await
}

pub(super) async fn file(
    Extracted(state): Extracted<State>,
    Path(name): Path<String>,
) -> Result<Response, Refused> {
    let files = state.options.page;
    let Some(PageFile { gzip, name }) = files.iter().find(|file| file.name == name) else {
        return Err(Refused::not_found(match files {
            [] => {
                "this layerscope is built without the viewer for browsers (docs/remote.md says how to build it in); use \
                 `layerscope view ws://HOST:PORT/RUN`"
            }
            _ => "the viewer has no such file",
        }));
    };
    let kind = match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_ENCODING, "gzip"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, "no-cache"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    Ok((headers, *gzip).into_response())
}
