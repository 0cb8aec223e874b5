//! Request errors as one sentence that names the model and the remedy.

use super::client::{RequestError, Status};
use crate::Error;
use crate::places::HubPlaces;
use crate::reference::HubReference;

/// The error for a failed request of the listing, or of `file`.
pub(crate) fn sentence(
    error: &RequestError,
    hub: &HubPlaces,
    reference: &HubReference,
    file: Option<&str>,
) -> Error {
    let host = hub.host();
    let what = file.map_or_else(|| reference.to_string(), |file| format!("{file} of {}", reference.id));
    let unreachable = |sentence| Error::Unreachable { host: host.to_owned(), sentence };
    match error {
        RequestError::Interrupted => Error::Interrupted,
        RequestError::Unreachable(why) => unreachable(format!(
            "cannot reach {host} for {what} ({why}); check the network and HTTPS_PROXY, or fetch it elsewhere and copy it here"
        )),
        RequestError::Insecure(why) => Error::failure(format!(
            "the connection to {host} for {what} is not safe ({why}); where the network has certificates of its own, \
             name their file in SSL_CERT_FILE"
        )),
        RequestError::Broken(why) => unreachable(format!(
            "the connection to {host} broke while fetching {what} ({why}); fetch it again, it goes on from there"
        )),
        RequestError::InvalidResponse(problem) => Error::InvalidResponse {
            host: host.to_owned(),
            sentence: format!(
                "{host} gave an answer for {what} that is not a Hugging Face Hub's ({problem}); \
                 does the network ask for a login, or is HF_ENDPOINT wrong?"
            ),
        },
        RequestError::Status(status) => refusal(status, hub, reference, file, &what),
    }
}

fn refusal(
    status: &Status,
    hub: &HubPlaces,
    reference: &HubReference,
    file: Option<&str>,
    what: &str,
) -> Error {
    let (id, host, endpoint) = (&reference.id, hub.host(), &hub.endpoint);
    let token = token_source(hub);
    let bad_token = status.message.as_deref().is_some_and(|m| m.contains("Invalid credentials"));
    let gated = |sentence| Error::Gated { id: id.clone(), sentence };
    match (status.reason.as_deref(), status.code) {
        (_, 401) if bad_token => Error::input(format!(
            "{host} does not accept the token in {token}; make one at {endpoint}/settings/tokens and put it there"
        )),
        (Some("GatedRepo"), _) if hub.token.is_some() => gated(format!(
            "{id} is gated and the token in {token} has no access; ask for it at {endpoint}/{id}, \
             and let the token read gated repositories"
        )),
        (Some("GatedRepo"), _) => gated(format!(
            "{id} is gated: ask for access at {endpoint}/{id}, make a token at {endpoint}/settings/tokens, \
             and put it in HF_TOKEN or {}",
            token_file(hub)
        )),
        (Some("RevisionNotFound"), _) => Error::input(format!(
            "{id} has no revision {}; give a branch, tag or commit that {endpoint}/{id}/tree/main shows",
            reference.revision
        )),
        (Some("EntryNotFound"), _) => Error::input(format!("{what} is not there any more; fetch it again")),
        (Some("DisabledRepo"), _) => Error::input(format!("{id} was disabled by {host}; use another model")),
        (_, 401 | 403 | 404) if file.is_none() => Error::input(format!(
            "{host} has no model {id}, or it is private, which looks alike; check the name, or put a token \
             with access in HF_TOKEN or {}",
            token_file(hub)
        )),
        (_, code) => {
            let why = status.message.as_deref().map_or_else(String::new, |message| format!(", {message}"));
            let later =
                if code == 429 || code >= 500 { "try again later" } else { "see whether a browser can" };
            Error::failure(format!("{host} refuses {what} (status {code}{why}); {later}"))
        }
    }
}

/// Where the token came from, for messages.
pub(crate) fn token_source(hub: &HubPlaces) -> String {
    format!("HF_TOKEN or {}", token_file(hub))
}

fn token_file(hub: &HubPlaces) -> String {
    hub.token_path.as_ref().map_or_else(|| "HF_TOKEN_PATH".to_owned(), |path| path.display().to_string())
}
