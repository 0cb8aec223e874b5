//! The system's own ssh as the way to an engine: configuration, agent and jump hosts are the user's.

use super::address::Address;
use super::link::{Pipes, Program};
use layerscope_engine::{Error, Result};
use std::io::{ErrorKind, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes kept of what ssh and the engine say on standard error.
const SAID: usize = 8 << 10;

/// How to reach an engine by ssh.
#[derive(Debug, Clone)]
pub struct Ssh {
    address: Address,
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
    pub fn new(address: Address, command: &str, layerscope: Option<String>) -> Result<Self> {
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
        Ok(Self { address, words, layerscope })
    }

    /// The program and its arguments.
    fn arguments(&self) -> (&str, Vec<String>) {
        let mut arguments = self.words[1..].to_vec();
        // No terminal is asked for: bytes must pass as they are.
        arguments.push("-T".into());
        if let Some(port) = self.address.port {
            arguments.extend(["-p".into(), port.to_string()]);
        }
        arguments.extend(["--".into(), self.address.destination(), self.remote_command()]);
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
        let (host, there) = (self.address.to_string(), self.layerscope.clone());
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

    fn address(text: &str) -> Address {
        Address::parse(text).expect("an address")
    }

    #[test]
    fn the_command_is_one_word_for_the_other_shell() {
        let ssh = |layerscope: Option<&str>| {
            Ssh::new(address("ssh://me@gpu:2222/r"), "ssh -F 'my config' -v", layerscope.map(str::to_owned))
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
        assert!(Ssh::new(address("ssh://gpu"), " ", None).is_err());
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
