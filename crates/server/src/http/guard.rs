//! Who may send requests: those with the key, and no web page that was not allowed to.

use super::error::Refused;
use super::{PAGE, State, VIEWER};
use axum::extract::{Request, State as Extracted};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use std::net::IpAddr;

/// Refuses requests without the key, where the server has one.
pub(super) async fn key(Extracted(state): Extracted<State>, request: Request, next: Next) -> Response {
    let Some(key) = &state.options.api_key else { return next.run(request).await };
    let sent = text(request.headers(), header::AUTHORIZATION.as_str());
    let bearer = sent
        .and_then(|sent| sent.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, sent)| sent.trim().as_bytes().to_vec());
    let sent = bearer.or_else(|| key_of_page(request.headers()).filter(|_| request.uri().path() == VIEWER));
    match sent {
        Some(sent) if are_equal(&sent, key.as_bytes()) => next.run(request).await,
        _ => Refused::key().into_response(),
    }
}

/// The key that a page sends with a WebSocket, to which browsers let it add no header: as the name of a protocol, `key.` and the key in
/// base64 for addresses.
fn key_of_page(headers: &HeaderMap) -> Option<Vec<u8>> {
    let offered = text(headers, header::SEC_WEBSOCKET_PROTOCOL.as_str())?.split(',');
    let encoded = offered.map(str::trim).find_map(|name| name.strip_prefix("key."))?;
    BASE64_URL_SAFE_NO_PAD.decode(encoded).ok()
}

/// Refuses what a web page sends from elsewhere, and names under which only such a page would know this server.
pub(super) async fn place(Extracted(state): Extracted<State>, request: Request, next: Next) -> Response {
    let options = &state.options;
    let host =
        text(request.headers(), header::HOST.as_str()).or(request.uri().authority().map(|a| a.as_str()));
    // With a key a page cannot do anything either, and a proxy may give the server any name.
    let is_known = options.api_key.is_some() || host.is_some_and(|host| is_own(name_of(host), &options.host));
    if !is_known {
        return Refused::place(
            "the Host header names another server than this one; use http://127.0.0.1 or http://localhost, or serve with --api-key",
        )
        .into_response();
    }
    let allowed = text(request.headers(), header::ORIGIN.as_str()).is_none_or(|origin| {
        // The page of this server may load its files, and connect to the viewers' WebSocket: there the key is what lets it in.
        let is_page =
            !options.page.is_empty() && request.uri().path().starts_with(PAGE) && is_of(origin, host);
        is_page || options.allow_origins.iter().any(|allowed| allowed == origin)
    });
    if !allowed {
        return Refused::place(
            "a web page sent this from an origin that is not allowed; start the server with --allow-origin",
        )
        .into_response();
    }
    next.run(request).await
}

/// Whether a page is from a host.
fn is_of(origin: &str, host: Option<&str>) -> bool {
    let place = origin.split_once("://").map(|(_, place)| place);
    place.is_some() && place == host
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    }
}

fn is_own(name: &str, own: &str) -> bool {
    let is_loopback = name.parse().is_ok_and(|address: IpAddr| address.is_loopback());
    is_loopback
        || name.eq_ignore_ascii_case("localhost")
        || name.eq_ignore_ascii_case(own.trim_matches(['[', ']']))
}

/// Takes as long whichever bytes differ.
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    let differ = a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b));
    a.len() == b.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_known_with_and_without_port() {
        for host in ["localhost:8080", "LOCALHOST", "127.0.0.1:1", "[::1]:8080", "127.1.2.3", "box:80"] {
            assert!(is_own(name_of(host), "box"), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8080", "10.0.0.1:8080", "", "127.0.0.1.evil:80"]
        {
            assert!(!is_own(name_of(host), "127.0.0.1"), "{host}");
        }
        let headers = |names: &str| {
            HeaderMap::from_iter([(header::SEC_WEBSOCKET_PROTOCOL, names.parse().expect("a header"))])
        };
        assert_eq!(key_of_page(&headers("layerscope, key.YSBrZXkgw6k")), Some("a key é".into()));
        assert_eq!(key_of_page(&headers("layerscope, key.!")), None);
        assert_eq!(key_of_page(&headers("layerscope")), None);
        assert!(is_of("http://box:8080", Some("box:8080")) && is_of("https://box", Some("box")));
        assert!(!is_of("http://box", Some("box:8080")) && !is_of("null", None) && !is_of("box", Some("box")));
        assert!(are_equal(b"key", b"key") && !are_equal(b"key", b"kez") && !are_equal(b"ke", b"key"));
    }
}
