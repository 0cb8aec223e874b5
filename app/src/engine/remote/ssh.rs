//! The system's own ssh as the way to an engine: configuration, agent and jump hosts are the user's.

use super::link::{Pipes, Program};
use layerscope_engine::{Error, Result};
use std::fmt;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// What remote addresses begin with.
const SCHEME: &str = "ssh://";
/// Bytes kept of what ssh and the engine say on standard error.
const SAID: usize = 8 << 10;

/// A host, and perhaps a path on it: `ssh://[user@]host[:port][/path]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SshTarget {
    user: Option<String>,
    host: String,
    port: Option<u16>,
    /// The path: absolute, or from the user's home where it began with `~/`; `None` where none is given.
    pub path: Option<PathBuf>,
}

impl SshTarget {
    /// Whether a text is meant as a remote address.
    pub fn is_meant(text: &str) -> bool {
        text.get(..SCHEME.len()).is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
    }

    /// Reads `ssh://[user@]host[:port][/path]`; `%20` in the path is a space, and `/~/runs` begins at the user's home.
    ///
    /// # Errors
    /// [`Error::Input`] if it is none, or if user or host could be taken for options or for parts of a command.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = |problem: &str| {
            Error::input(format!("{text} {problem}; give ssh://[user@]host[:port]/path/of/a/run"))
        };
        let rest = text.get(SCHEME.len()..).filter(|_| Self::is_meant(text));
        let rest = rest.ok_or_else(|| refuse("is no remote address"))?;
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
            return Err(refuse("names no host that ssh can be given"));
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
        let path = match decoded.as_ref() {
            "" | "/" => None,
            "/~" | "/~/" => Some(PathBuf::from(".")),
            path => Some(PathBuf::from(path.strip_prefix("/~/").unwrap_or(path))),
        };
        Ok(Self { user: user.map(str::to_owned), host: host.to_owned(), port, path })
    }

    /// What ssh is given as its destination.
    fn destination(&self) -> String {
        self.user.as_ref().map_or(self.host.clone(), |user| format!("{user}@{}", self.host))
    }
}

impl fmt::Display for SshTarget {
    /// The host for sentences and the status line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.destination())?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// How to reach an engine by ssh.
#[derive(Debug, Clone)]
pub struct Ssh {
    target: SshTarget,
    /// The program with its first arguments.
    words: Vec<String>,
    /// The program on the other machine, where it is not found by its name.
    layerscope: Option<String>,
}

impl Ssh {
    /// A way to a host by a command such as `ssh -F config`; `layerscope` is the program's path on the other machine.
    ///
    /// # Errors
    /// [`Error::Input`] if the command is empty or a quote in it is open, or the path is empty or has control characters.
    pub fn new(target: SshTarget, command: &str, layerscope: Option<String>) -> Result<Self> {
        let words = words(command).filter(|words| !words.is_empty()).ok_or_else(|| {
            Error::input(format!(
                "{command:?} is no command; give a program and its arguments, as in --ssh 'ssh -F config'"
            ))
        })?;
        if layerscope.as_ref().is_some_and(|path| path.is_empty() || path.chars().any(char::is_control)) {
            return Err(Error::input(
                "--remote-layerscope is no path; give that of the program on the other machine",
            ));
        }
        Ok(Self { target, words, layerscope })
    }

    /// The host for sentences and the status line.
    pub fn host(&self) -> String {
        self.target.to_string()
    }

    /// The program and its arguments.
    fn arguments(&self) -> (&str, Vec<String>) {
        let mut arguments = self.words[1..].to_vec();
        // No terminal is asked for: bytes must pass as they are.
        arguments.push("-T".into());
        if let Some(port) = self.target.port {
            arguments.extend(["-p".into(), port.to_string()]);
        }
        arguments.extend(["--".into(), self.target.destination(), self.remote_command()]);
        (&self.words[0], arguments)
    }

    /// What the other machine's shell runs, whichever that is.
    fn remote_command(&self) -> String {
        let command = match &self.layerscope {
            Some(path) => match path.strip_prefix("~/") {
                Some(from_home) => format!("exec \"$HOME\"/{} engine --stdio", quoted(from_home)),
                None => format!("exec {} engine --stdio", quoted(path)),
            },
            // Where cargo, pip and others install for a user is not on the path of every command over ssh.
            None => "PATH=\"$PATH:$HOME/.local/bin:$HOME/.cargo/bin\"; export PATH; exec layerscope engine --stdio".into(),
        };
        format!("exec sh -c {}", quoted(&command))
    }

    /// Starts ssh.
    ///
    /// # Errors
    /// [`Error::Input`] if there is no such program; [`Error::Failure`] if it cannot be started.
    pub fn start(&self) -> Result<Pipes> {
        let (program, arguments) = self.arguments();
        let started = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = started.map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::input(format!(
                "there is no program {program}; install OpenSSH's client, or name another with --ssh or LAYERSCOPE_SSH"
            )),
            _ => Error::failure(format!("cannot start {program} ({})", layerscope_files::reason(&error))),
        })?;
        let (Some(output), Some(input), Some(errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::failure(format!("{program} has no pipes")));
        };
        let said = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&said);
        std::thread::spawn(move || keep(errors, &kept));
        let (host, there) = (self.host(), self.layerscope.clone());
        let explain =
            move |status: Option<ExitStatus>, said: &str| explain(&host, there.as_deref(), status, said);
        let program = Some(Program { child, said, explain: Box::new(explain) });
        Ok(Pipes { input: Box::new(input), output: Box::new(output), program })
    }
}

/// Keeps the end of what is said.
fn keep(mut errors: impl Read, kept: &Mutex<String>) {
    let mut bytes = [0; 1024];
    while let Ok(read @ 1..) = errors.read(&mut bytes) {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(&String::from_utf8_lossy(&bytes[..read]));
        let mut superfluous = kept.len().saturating_sub(SAID);
        while !kept.is_char_boundary(superfluous) {
            superfluous += 1;
        }
        kept.drain(..superfluous);
    }
}

/// Why the way to the engine ended, in a sentence.
fn explain(host: &str, layerscope: Option<&str>, status: Option<ExitStatus>, said: &str) -> String {
    let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // Of a refused command line the last lines say how to get help.
    let told = lines.iter().rev().find(|line| line.starts_with("error:") || line.starts_with("layerscope:"));
    let told = told.or(lines.last()).map(|line| layerscope_figures::visible_line(line));
    let told = told.map_or(String::new(), |line| format!(": {}", line.chars().take(300).collect::<String>()));
    match (status.and_then(|status| status.code()), layerscope) {
        (Some(127), None) => format!(
            "{host} has no program layerscope where it looks for programs; install it there, or say where it is with \
             --remote-layerscope PATH"
        ),
        (Some(126 | 127), path) => format!(
            "{host} cannot run {}; say where layerscope is there with --remote-layerscope PATH",
            path.unwrap_or("layerscope")
        ),
        (Some(255), _) => format!("ssh cannot reach {host}, or has lost it{told}"),
        (Some(0), _) => format!("the engine on {host} has ended{told}"),
        (Some(status), _) => format!("the engine on {host} ended with status {status}{told}"),
        (None, _) => format!("the connection to {host} is gone{told}"),
    }
}

/// A text as one word of a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The words of a command; quotes hold words together. `None` where one is open.
fn words(command: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (vec![], None::<String>, None);
    for c in command.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    quote.is_none().then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> SshTarget {
        SshTarget::parse(text).expect("an address")
    }

    #[test]
    fn addresses_name_user_host_port_and_path() {
        let parts = |text: &str| {
            let SshTarget { user, host, port, path } = target(text);
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
        assert_eq!(target("ssh://me@gpu:22/x").to_string(), "me@gpu:22");
    }

    #[test]
    fn what_could_be_an_option_or_a_command_is_refused() {
        for text in [
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
        ] {
            let error = SshTarget::parse(text).expect_err(text);
            assert!(error.to_string().contains("give ssh://"), "{error}");
        }
    }

    #[test]
    fn the_command_is_one_word_for_the_other_shell() {
        let ssh = |layerscope: Option<&str>| {
            Ssh::new(target("ssh://me@gpu:2222/r"), "ssh -F 'my config' -v", layerscope.map(str::to_owned))
                .expect("ssh")
        };
        let quiet = ssh(Some("/opt/it's/layerscope"));
        let (program, arguments) = quiet.arguments();
        assert_eq!(program, "ssh");
        assert_eq!(arguments[..8], ["-F", "my config", "-v", "-T", "-p", "2222", "--", "me@gpu"]);
        assert_eq!(arguments.len(), 9);
        for (layerscope, said) in [
            (Some("echo"), "engine --stdio\n"),
            (Some("/bin/echo"), "engine --stdio\n"),
            (Some("/no/it's/here"), ""),
            (Some("$(echo no)"), ""),
        ] {
            let command = ssh(layerscope).remote_command();
            let output = Command::new("sh").args(["-c", &command]).output().expect("a shell");
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{command}");
            assert_eq!(output.status.code(), Some(if said.is_empty() { 127 } else { 0 }));
        }
        assert_eq!(words("a 'b c' d\"\"e ''"), Some(["a", "b c", "de", ""].map(String::from).to_vec()));
        assert_eq!(words("a 'b"), None);
        assert!(Ssh::new(target("ssh://gpu"), " ", None).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn ends_are_explained() {
        use std::os::unix::process::ExitStatusExt;
        let status = |code: i32| Some(ExitStatus::from_raw(code << 8));
        let told = explain("gpu", None, status(127), "bash: layerscope: command not found\n");
        assert!(told.contains("--remote-layerscope"), "{told}");
        let told = explain("gpu", None, status(255), "Connection refused\r\n\n");
        assert!(told.ends_with("lost it: Connection refused"), "{told}");
        let told = explain(
            "gpu",
            Some("/x"),
            status(2),
            "error: unrecognized subcommand 'engine'\n\nFor more, try '--help'.",
        );
        assert!(told.ends_with("status 2: error: unrecognized subcommand 'engine'"), "{told}");
        assert!(explain("gpu", Some("/x"), status(127), "").contains("cannot run /x"));
    }
}
