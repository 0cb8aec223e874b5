//! Requests to the Hub: addresses, authentication, timeouts and retries.

use super::listing::Listing;
use super::request::Response;
use super::{redirect, refusal};
use crate::places::HubPlaces;
use crate::reference::HubReference;
use crate::{Error, Result};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

/// A client for one fetch.
pub(crate) struct Client {
    agent: Agent,
    pub(crate) hub: HubPlaces,
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum RequestError {
    /// The user stopped it.
    Interrupted,
    /// The connection could not be established.
    Unreachable(String),
    /// The connection cannot be trusted.
    Insecure(String),
    /// The connection broke or timed out.
    Broken(String),
    /// The server refused.
    Status(Status),
    /// The response is not a Hub's.
    InvalidResponse(String),
}

/// An error status, with the Hub's explanation from its headers.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) code: u16,
    pub(crate) reason: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) wait: Option<Duration>,
}

/// Attempts per request, and the pause before the second, which doubles each time.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
/// Longest pause, whatever `Retry-After` asks for.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Timeout for the name lookup, and for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// Size limit of a listing; those of the Hub's largest repositories have tens of megabytes.
const LARGEST_LISTING: usize = 256 << 20;

const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

impl Client {
    pub(crate) fn new(hub: &HubPlaces) -> Result<Self> {
        let endpoint = &hub.endpoint;
        let is_web = endpoint.starts_with("https://") || endpoint.starts_with("http://");
        if !is_web || endpoint.parse::<Uri>().is_err() {
            return Err(Error::input(format!(
                "HF_ENDPOINT is {endpoint}, which is no address; it begins with https://"
            )));
        }
        if let Some(token) = &hub.token
            && !token.secret().bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(Error::input(format!(
                "the Hub's token ({}) has blanks or other characters that tokens do not have; copy it again",
                refusal::token_source(hub)
            )));
        }
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_resolve(Some(CONNECT))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(hub.timeout))
            .timeout_per_read(Some(hub.timeout))
            .timeout_per_write(Some(hub.timeout))
            .user_agent(concat!("layerscope/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .tls_config(TlsConfig::builder().root_certs(certificates(hub)?).build());
        // No proxy for loopback addresses.
        let local = ["localhost", "127.", "[::1]"].iter().any(|local| hub.host().starts_with(local));
        let config = if local { config.proxy(None) } else { config };
        Ok(Self { agent: config.build().new_agent(), hub: hub.clone() })
    }

    /// The files of a repository at a revision.
    pub(crate) fn listing(&self, reference: &HubReference, interrupted: &AtomicBool) -> Result<Listing> {
        let (endpoint, id) = (&self.hub.endpoint, &reference.id);
        let revision = utf8_percent_encode(&reference.revision, IN_PATH);
        let url = format!("{endpoint}/api/models/{id}/revision/{revision}?blobs=true");
        let mut tries = Tries::default();
        loop {
            let error = match self.read_whole(&url, interrupted) {
                Ok(json) => match Listing::parse(id, &json) {
                    Ok(listing) => return Ok(listing),
                    Err(problem) => RequestError::InvalidResponse(problem),
                },
                Err(error) => error,
            };
            let again = !matches!(error, RequestError::Unreachable(_));
            if !again || !tries.wait(&error, interrupted)? {
                return Err(refusal::sentence(&error, &self.hub, reference, None));
            }
        }
    }

    /// Requests a file of a commit, starting at a byte.
    pub(crate) fn file(
        &self,
        id: &str,
        commit: &str,
        file: &str,
        from: u64,
        interrupted: &AtomicBool,
    ) -> std::result::Result<Response, RequestError> {
        let parts: Vec<String> =
            file.split('/').map(|part| utf8_percent_encode(part, IN_PATH).to_string()).collect();
        self.get(
            &format!("{}/{id}/resolve/{commit}/{}", self.hub.endpoint, parts.join("/")),
            from,
            interrupted,
        )
    }

    fn read_whole(&self, url: &str, interrupted: &AtomicBool) -> std::result::Result<Vec<u8>, RequestError> {
        let response = self.get(url, 0, interrupted)?;
        let mut whole = vec![];
        while let Some(piece) = response.next(interrupted)? {
            whole.extend(piece);
            if whole.len() > LARGEST_LISTING {
                return Err(RequestError::invalid_response("it does not end"));
            }
        }
        Ok(whole)
    }

    /// Follows redirects, so that the token goes to the Hub's own scheme, host and port alone.
    fn get(
        &self,
        url: &str,
        from: u64,
        interrupted: &AtomicBool,
    ) -> std::result::Result<Response, RequestError> {
        let hub: Uri = url.parse().map_err(|_| RequestError::invalid_response("it has no such address"))?;
        let mut at = hub.clone();
        for _ in 0..=redirect::MOST {
            let mut request = self.agent.get(at.clone());
            if let Some(token) = self.hub.token.as_ref().filter(|_| redirect::same_origin(&hub, &at)) {
                request = request.header("Authorization", format!("Bearer {}", token.secret()));
            }
            if from > 0 {
                request = request.header("Range", format!("bytes={from}-"));
            }
            let response = Response::of(request, |request| request.call(), interrupted)?;
            match (response.head.status.as_u16(), response.header("location")) {
                (200..=299, _) => return Ok(response),
                (301 | 302 | 303 | 307 | 308, Some(location)) => at = redirect::target(&at, location)?,
                (code, _) => return Err(RequestError::Status(Status::of(code, &response))),
            }
        }
        Err(RequestError::invalid_response("it redirects without end"))
    }
}

impl Status {
    fn of(code: u16, response: &Response) -> Self {
        Self {
            code,
            reason: response.header("x-error-code").map(str::to_owned),
            message: response.header("x-error-message").map(str::to_owned),
            wait: response.header("retry-after").and_then(|s| s.parse().ok()).map(Duration::from_secs),
        }
    }
}

impl Drop for Client {
    /// Closes unfinished connections.
    fn drop(&mut self) {
        self.agent.clone().shutdown();
    }
}

fn certificates(hub: &HubPlaces) -> Result<RootCerts> {
    let Some(path) = &hub.certificates else { return Ok(RootCerts::WebPki) };
    let pem = layerscope_files::read(path)
        .map_err(|e| Error::input(format!("SSL_CERT_FILE: cannot read {}: {e}", path.display())))?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        return Err(Error::input(format!(
            "SSL_CERT_FILE: {} has no certificate in PEM form",
            path.display()
        )));
    }
    Ok(RootCerts::new_with_certs(&certificates))
}

impl RequestError {
    pub(crate) fn invalid_response(what: &str) -> Self {
        Self::InvalidResponse(what.to_owned())
    }

    /// Whether a later attempt may succeed.
    fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Broken(_) => true,
            Self::Status(status) => matches!(status.code, 408 | 429 | 500..=599),
            Self::Interrupted | Self::Insecure(_) | Self::InvalidResponse(_) => false,
        }
    }
}

impl RequestError {
    /// Converts an error before the response's headers.
    pub(crate) fn before_answer(error: ureq::Error) -> Self {
        use std::io::ErrorKind as Kind;
        use ureq::{Error as E, Timeout};
        match error {
            E::HostNotFound => Self::Unreachable("its name is not known".to_owned()),
            E::Timeout(Timeout::Resolve | Timeout::Connect) => Self::Unreachable("no answer".to_owned()),
            E::Timeout(_) => Self::silent(),
            E::Io(e) => match e.kind() {
                // Errors of rustls: certificates, and servers without TLS.
                Kind::InvalidData => Self::Insecure(e.to_string()),
                Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof => {
                    Self::Broken(e.to_string())
                }
                // Name lookup errors have no `ErrorKind`.
                _ => Self::Unreachable(e.to_string()),
            },
            E::Tls(_) | E::Rustls(_) => Self::Insecure(error.to_string()),
            E::ConnectionFailed | E::InvalidProxyUrl | E::ConnectProxyFailed(_) => {
                Self::Unreachable(error.to_string())
            }
            other => Self::InvalidResponse(other.to_string()),
        }
    }

    /// Converts an error within the response's body.
    pub(crate) fn within_answer(error: std::io::Error) -> Self {
        match ureq::Error::from(error) {
            ureq::Error::Timeout(_) => Self::silent(),
            other => Self::Broken(other.to_string()),
        }
    }

    fn silent() -> Self {
        Self::Broken("it fell silent".to_owned())
    }
}

/// Failed attempts of a request.
#[derive(Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// Pauses before the next attempt; false if there is none.
    pub(crate) fn wait(&mut self, error: &RequestError, interrupted: &AtomicBool) -> Result<bool> {
        self.0 += 1;
        if !error.is_transient() || self.0 >= TRIES {
            return Ok(false);
        }
        let asked = match error {
            RequestError::Status(status) => status.wait,
            _ => None,
        };
        let end = Instant::now() + asked.unwrap_or(PAUSE * 2u32.pow(self.0 - 1)).min(LONGEST_PAUSE);
        while Instant::now() < end {
            if interrupted.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(true)
    }

    /// Resets the count after a success.
    pub(crate) fn forget(&mut self) {
        self.0 = 0;
    }
}
