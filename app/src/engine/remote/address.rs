//! Where an engine is: the address that `layerscope view` is given.

use layerscope_engine::{Error, Result};
use std::fmt;
use std::path::PathBuf;

/// The port of `layerscope serve` where an address of a server names none.
const SERVER_PORT: u16 = 8080;

/// A host, and perhaps a path on it: `ssh://[user@]host[:port][/path]` or `ws://host[:port][/path]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The way there.
    pub scheme: Scheme,
    user: Option<String>,
    pub(super) host: String,
    pub(super) port: Option<u16>,
    /// The path: absolute, or from the user's home where it began with `~/`; `None` where none is given.
    pub path: Option<PathBuf>,
}

/// A way to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    /// By the system's ssh, which starts it.
    Ssh,
    /// To `layerscope serve --viewer`.
    WebSocket,
}

impl Scheme {
    /// What an address begins with, and the form of all of it.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Self::Ssh => ("ssh://", "ssh://[user@]host[:port]/path/of/a/run"),
            Self::WebSocket => ("ws://", "ws://host[:port]/path/of/a/run"),
        }
    }
}

/// The rest of an address that begins with this.
fn behind<'a>(text: &'a str, start: &str) -> Option<&'a str> {
    let begins = text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start));
    begins.then(|| &text[start.len()..])
}

impl Address {
    /// Whether a text is meant as a remote address.
    pub fn is_meant(text: &str) -> bool {
        ["ssh://", "ws://", "wss://"].iter().any(|start| behind(text, start).is_some())
    }

    /// Reads an address; `%20` in the path is a space, and `/~/runs` begins at the user's home, by ssh.
    ///
    /// # Errors
    /// [`Error::Input`] if it is none, or if user or host could be taken for options or for parts of a command.
    pub fn parse(text: &str) -> Result<Self> {
        let mut found = [Scheme::Ssh, Scheme::WebSocket].into_iter();
        let found = found.find_map(|scheme| Some((scheme, behind(text, scheme.texts().0)?)));
        let Some((scheme, rest)) = found else {
            return Err(Error::input(match behind(text, "wss://") {
                Some(_) => format!(
                    "{text} asks for TLS, which this program does not speak to a server: open ws:// through a tunnel such as \
                     `ssh -L 8080:127.0.0.1:8080 HOST`, or ssh://HOST/PATH"
                ),
                None => format!("{text} is no remote address; give {}", Scheme::Ssh.texts().1),
            }));
        };
        let refuse = |problem: &str| Error::input(format!("{text} {problem}; give {}", scheme.texts().1));
        let (authority, path) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let (user, address) = match authority.rsplit_once('@') {
            Some((user, address)) => (Some(user), address),
            None => (None, authority),
        };
        let (host, port) = match address.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').unwrap_or("none"))),
            None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
        };
        let is_plain = |name: &str, others: &str| {
            !name.is_empty()
                && !name.starts_with('-')
                && name.chars().all(|c| c.is_alphanumeric() || others.contains(c))
        };
        if !is_plain(host, ".-_:%") {
            return Err(refuse("names no host that can be connected to"));
        }
        if scheme == Scheme::WebSocket && user.is_some() {
            return Err(refuse("names a user, and a server knows a key alone (--api-key)"));
        }
        if user.is_some_and(|user| !is_plain(user, ".-_+")) {
            return Err(refuse("names no user that ssh can be given"));
        }
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
        let port = match port {
            Some(None) => return Err(refuse("has a port that is no number from 1 to 65535")),
            port => port.flatten(),
        };
        let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
        let decoded = decoded.map_err(|_| refuse("has a path that is no UTF-8"))?;
        if decoded.chars().any(char::is_control) {
            return Err(refuse("has control characters in its path"));
        }
        let is_from_home = decoded == "/~" || decoded.starts_with("/~/");
        if scheme == Scheme::WebSocket && is_from_home {
            return Err(refuse("begins at a home, which a server does not know"));
        }
        let path = match decoded.as_ref() {
            "" | "/" => None,
            "/~" | "/~/" => Some(PathBuf::from(".")),
            path => Some(PathBuf::from(path.strip_prefix("/~/").unwrap_or(path))),
        };
        Ok(Self { scheme, user: user.map(str::to_owned), host: host.to_owned(), port, path })
    }

    /// What ssh is given as its destination.
    pub(super) fn destination(&self) -> String {
        self.user.as_ref().map_or(self.host.clone(), |user| format!("{user}@{}", self.host))
    }

    /// The port of a server.
    pub(super) fn server_port(&self) -> u16 {
        self.port.unwrap_or(SERVER_PORT)
    }
}

impl fmt::Display for Address {
    /// The host for sentences and the status line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scheme {
            Scheme::Ssh => {
                f.write_str(&self.destination())?;
                self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            Scheme::WebSocket if self.host.contains(':') => {
                write!(f, "[{}]:{}", self.host, self.server_port())
            }
            Scheme::WebSocket => write!(f, "{}:{}", self.host, self.server_port()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).expect("an address")
    }

    #[test]
    fn addresses_name_user_host_port_and_path() {
        let parts = |text: &str| {
            let Address { user, host, port, path, .. } = address(text);
            (
                user.unwrap_or_default(),
                host,
                port.unwrap_or(0),
                path.unwrap_or_default().display().to_string(),
            )
        };
        let expected =
            |user: &str, host: &str, port, path: &str| (user.into(), host.into(), port, path.into());
        assert_eq!(parts("ssh://gpu/data/run"), expected("", "gpu", 0, "/data/run"));
        assert_eq!(
            parts("SSH://me@gpu.lab:2222/data/my%20run"),
            expected("me", "gpu.lab", 2222, "/data/my run")
        );
        assert_eq!(parts("ssh://gpu/~/runs/a"), expected("", "gpu", 0, "runs/a"));
        assert_eq!(parts("ssh://gpu/~"), expected("", "gpu", 0, "."));
        assert_eq!(parts("ssh://gpu"), expected("", "gpu", 0, ""));
        assert_eq!(parts("ssh://[::1]:22/r"), expected("", "::1", 22, "/r"));
        assert_eq!(address("ssh://me@gpu:22/x").to_string(), "me@gpu:22");
        assert_eq!(parts("ws://gpu:9000/data/run"), expected("", "gpu", 9000, "/data/run"));
        assert_eq!(address("WS://gpu.lab/x").to_string(), "gpu.lab:8080");
        assert_eq!(address("ws://[::1]:1/x").to_string(), "[::1]:1");
        assert_eq!(address("ws://gpu").scheme, Scheme::WebSocket);
        assert!(
            Address::is_meant("wss://gpu/run") && !Address::is_meant("ws:/gpu") && !Address::is_meant("é")
        );
    }

    #[test]
    fn what_could_be_an_option_or_a_command_is_refused() {
        let by_ssh = [
            "http://gpu/run",
            "ssh://",
            "ssh:///run",
            "ssh://-oProxyCommand=touch%20x/run",
            "ssh://-l@gpu/run",
            "ssh://me:secret@gpu/run",
            "ssh://gpu;reboot/run",
            "ssh://$(reboot)/run",
            "ssh://a b/run",
            "ssh://gpu:0/run",
            "ssh://gpu:99999/run",
            "ssh://gpu:/run",
            "ssh://[::1]x/run",
            "ssh://gpu/%ff",
            "ssh://gpu/a%0Ab",
        ];
        let to_a_server = [
            "ws://",
            "ws://me@gpu/run",
            "ws://gpu\r\nX: y/run",
            "ws://gpu:0/run",
            "ws://gpu/~/run",
            "ws://gpu/%ff",
        ];
        let with = |mend| move |text: &'static str| (text, mend);
        for (text, mend) in
            by_ssh.map(with("give ssh://")).into_iter().chain(to_a_server.map(with("give ws://")))
        {
            let error = Address::parse(text).expect_err(text);
            assert!(error.to_string().contains(mend), "{error}");
        }
        let error = Address::parse("wss://gpu/run").expect_err("TLS").to_string();
        assert!(error.contains("ssh -L"), "{error}");
    }
}
