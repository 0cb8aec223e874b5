//! Where a redirect leads, and whether the token may go with it.

use super::client::RequestError;
use ureq::http::Uri;

/// Most redirects of a request.
pub(crate) const MOST: usize = 10;

/// The address that `location` names in a response from `from`.
///
/// # Errors
/// [`RequestError::InvalidResponse`] where it names no web address, or one without encryption after one with it.
pub(crate) fn target(from: &Uri, location: &str) -> Result<Uri, RequestError> {
    let invalid = |what: &str| RequestError::invalid_response(what);
    let scheme = scheme(from);
    let origin = format!("{scheme}://{}", from.authority().map_or("", |authority| authority.as_str()));
    let to = match location {
        whole if whole.contains("://") && !whole.starts_with(['/', '?']) => whole.to_owned(),
        host if host.starts_with("//") => format!("{scheme}:{host}"),
        path if path.starts_with('/') => format!("{origin}{path}"),
        relative => {
            let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
            format!("{origin}{folder}/{relative}")
        }
    };
    let to: Uri = to.parse().map_err(|_| invalid("it redirects to what is no address"))?;
    match (scheme.as_str(), self::scheme(&to).as_str()) {
        ("https", "http") => Err(invalid("it redirects from https to http")),
        (_, "http" | "https") if to.host().is_some() => Ok(to),
        _ => Err(invalid("it redirects to what is no web address")),
    }
}

/// Whether two addresses have the same scheme, host and port.
pub(crate) fn same_origin(one: &Uri, other: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let scheme = scheme(uri);
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        (scheme, uri.host().unwrap_or_default().to_ascii_lowercase(), port)
    };
    origin(one) == origin(other)
}

fn scheme(uri: &Uri) -> String {
    uri.scheme_str().unwrap_or_default().to_ascii_lowercase()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn redirects_lead_where_they_say() {
        let from = uri("https://hub.example:8443/owner/model/resolve/main/file?x=1");
        for (location, expected) in [
            ("https://cdn.example/a?b=c", "https://cdn.example/a?b=c"),
            ("//cdn.example/a", "https://cdn.example/a"),
            ("/api/a?to=http://x", "https://hub.example:8443/api/a?to=http://x"),
            ("other", "https://hub.example:8443/owner/model/resolve/main/other"),
        ] {
            assert_eq!(target(&from, location).unwrap(), uri(expected), "{location}");
        }
        for refused in [
            "http://hub.example:8443/a",
            "HTTP://hub.example/a",
            "ftp://hub.example/a",
            "file:///etc",
            "https://",
        ] {
            let to = target(&from, refused);
            assert!(to.is_err(), "{to:?}");
        }
        assert!(target(&uri("http://hub.example/"), "https://hub.example/").is_ok());
    }

    #[test]
    fn the_token_stays_with_scheme_host_and_port() {
        let hub = uri("https://hub.example/a");
        for same in ["https://hub.example/b", "https://HUB.example:443/", "HTTPS://hub.example"] {
            assert!(same_origin(&hub, &uri(same)), "{same}");
        }
        for other in [
            "https://hub.example:8443/a",
            "http://hub.example/a",
            "http://hub.example:443/a",
            "https://cdn.hub.example/a",
            "https://hub.example@evil.example/a",
        ] {
            assert!(!same_origin(&hub, &uri(other)), "{other}");
        }
    }
}
