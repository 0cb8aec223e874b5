//! A WebSocket of `layerscope serve --viewer` as the way to an engine. What crosses is the stream of bytes that crosses ssh.

use super::address::Address;
use super::link::Pipes;
use layerscope_engine::{Error, Result};
use layerscope_figures::visible_line;
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tungstenite::error::ProtocolError;
use tungstenite::handshake::HandshakeError;
use tungstenite::handshake::client::Response;
use tungstenite::http::{HeaderValue, StatusCode, Uri};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Bytes, ClientRequestBuilder, Error as SocketError, Message, client::client_with_config};

/// Where a server has the engines of viewers.
const PATH: &str = "/viewer/engine";
/// Time for a connection, and for the answer to what is asked first.
const PATIENCE: Duration = Duration::from_secs(10);
/// Silence after which a way counts as broken: the other side gives a sign of life much more often.
const SILENCE: Duration = Duration::from_secs(40);
/// Most bytes of a message either way; the stream of bytes goes on in the next.
const MOST_MESSAGE: usize = 1 << 20;

/// How to reach an engine of a server.
#[derive(Debug, Clone)]
pub struct WebSocket {
    address: Address,
    key: Option<String>,
}

impl WebSocket {
    /// The way to a server that has this key.
    ///
    /// # Errors
    /// [`Error::Input`] if the key has characters that no request can carry.
    pub fn new(address: Address, key: Option<String>) -> Result<Self> {
        if key.as_ref().is_some_and(|key| HeaderValue::from_str(key).is_err()) {
            return Err(Error::input(
                "the key of --api-key or LAYERSCOPE_API_KEY has control characters; give it as the server has it",
            ));
        }
        Ok(Self { address, key })
    }

    /// Connects.
    ///
    /// # Errors
    /// [`Error::Failure`] if there is no server that lets this viewer in, in a sentence that says what is there instead.
    pub fn connect(&self) -> Result<Pipes> {
        let host = self.address.to_string();
        let failed = |error: io::Error| {
            Error::failure(format!("the connection to {host} fails ({})", layerscope_files::reason(&error)))
        };
        let stream = self.stream()?;
        stream.set_nodelay(true).map_err(failed)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
        stream.set_write_timeout(Some(SILENCE)).map_err(failed)?;
        let turn = Arc::new(Mutex::new(()));
        let half = || Ok(Half { stream: stream.try_clone()?, turn: Arc::clone(&turn), pending: vec![] });
        let (reading, writing) = (half().map_err(failed)?, half().map_err(failed)?);
        let uri = format!("ws://{host}{PATH}").parse::<Uri>();
        let uri = uri.map_err(|error| Error::input(format!("{host} is no name of a server ({error})")))?;
        let mut request = ClientRequestBuilder::new(uri);
        if let Some(key) = &self.key {
            request = request.with_header("Authorization", format!("Bearer {key}"));
        }
        let config = WebSocketConfig::default()
            .max_message_size(Some(MOST_MESSAGE))
            .max_frame_size(Some(MOST_MESSAGE));
        let (socket, _) = client_with_config(request, reading, Some(config)).map_err(|error| {
            Error::failure(match error {
                HandshakeError::Failure(SocketError::Http(response)) => self.refused(&response),
                HandshakeError::Failure(SocketError::Io(error)) => {
                    format!("{host} gives no answer ({})", layerscope_files::reason(&error))
                }
                HandshakeError::Failure(error) => format!(
                    "{host} does not answer as `layerscope serve` does ({})",
                    visible_line(&error.to_string())
                ),
                HandshakeError::Interrupted(_) => {
                    format!("{host} gives no answer within {} seconds", PATIENCE.as_secs())
                }
            })
        })?;
        stream.set_read_timeout(Some(SILENCE)).map_err(failed)?;
        let input = Input { socket, rest: Bytes::new() };
        let socket = tungstenite::WebSocket::from_raw_socket(writing, Role::Client, Some(config));
        let output = BufWriter::with_capacity(MOST_MESSAGE, Output { socket });
        Ok(Pipes { input: Box::new(input), output: Box::new(output), program: None })
    }

    /// Connects to the first address of the host that answers.
    fn stream(&self) -> Result<TcpStream> {
        let (address, port) = (&self.address, self.address.server_port());
        let resolved = (address.host.as_str(), port).to_socket_addrs().map_err(|error| {
            Error::failure(format!("the name {} is not known here ({error}); check it", address.host))
        })?;
        let mut last = ErrorKind::NotFound.into();
        for resolved in resolved {
            match TcpStream::connect_timeout(&resolved, PATIENCE) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(Error::failure(format!(
            "cannot connect to {address} ({}); start `layerscope serve MODEL --viewer` there, or name its port",
            layerscope_files::reason(&last)
        )))
    }

    /// Why a server lets this viewer not in.
    fn refused(&self, response: &Response) -> String {
        let host = &self.address;
        match (response.status(), &self.key) {
            (StatusCode::UNAUTHORIZED, None) => {
                format!("{host} wants its key: give it by --api-key or LAYERSCOPE_API_KEY")
            }
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                format!("{host} has another key than the one given by --api-key or LAYERSCOPE_API_KEY")
            }
            (StatusCode::NOT_FOUND, _) => {
                format!("{host} lets no viewers in; start its server with `layerscope serve MODEL --viewer`")
            }
            (status, _) => match response.body().as_deref().and_then(message) {
                Some(message) => format!("{host} refuses: {message}"),
                None => {
                    format!("{host} answers with status {status}, as no `layerscope serve --viewer` does")
                }
            },
        }
    }
}

/// The sentence of a server's error.
fn message(body: &[u8]) -> Option<String> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    let message = body["error"]["message"].as_str()?;
    Some(visible_line(message).chars().take(300).collect())
}

/// A connection that is read and written at once, by two. Whole messages are written, so that the answer to a ping of one does not
/// come between the bytes of the other.
struct Half {
    stream: TcpStream,
    turn: Arc<Mutex<()>>,
    /// Written since the last flush.
    pending: Vec<u8>,
}

impl Read for Half {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buffer)
    }
}

impl Write for Half {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.write_all(&std::mem::take(&mut self.pending))
    }
}

fn io_error(error: SocketError) -> io::Error {
    match error {
        SocketError::Io(error) => error,
        SocketError::ConnectionClosed
        | SocketError::AlreadyClosed
        | SocketError::Protocol(ProtocolError::ResetWithoutClosingHandshake) => ErrorKind::BrokenPipe.into(),
        error => io::Error::new(ErrorKind::InvalidData, visible_line(&error.to_string())),
    }
}

/// The stream of bytes from the engine.
struct Input {
    socket: tungstenite::WebSocket<Half>,
    rest: Bytes,
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            match self.socket.read().map_err(io_error)? {
                Message::Binary(bytes) => self.rest = bytes,
                Message::Close(_) => return Ok(0),
                Message::Text(_) => {
                    return Err(io::Error::new(ErrorKind::InvalidData, "text came where bytes should"));
                }
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
        let part = self.rest.split_to(self.rest.len().min(buffer.len()));
        buffer[..part.len()].copy_from_slice(&part);
        Ok(part.len())
    }
}

/// The stream of bytes to the engine: each write is a message. Both ways end with it.
struct Output {
    socket: tungstenite::WebSocket<Half>,
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let message = &bytes[..bytes.len().min(MOST_MESSAGE)];
        let sent = self.socket.send(Message::Binary(message.to_vec().into()));
        sent.map(|()| message.len()).map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let _ = self.socket.close(None).and_then(|()| self.socket.flush());
        let _ = self.socket.get_ref().stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::{JoinHandle, spawn};
    use tungstenite::WebSocket as Served;

    /// A server of one viewer.
    fn server(serve: impl FnOnce(Served<TcpStream>) + Send + 'static) -> (Pipes, JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = format!("ws://{}", listener.local_addr().expect("an address"));
        let served = spawn(move || {
            let (stream, _) = listener.accept().expect("a viewer");
            serve(tungstenite::accept(stream).expect("a handshake"));
        });
        let address = Address::parse(&address).expect("an address");
        (WebSocket::new(address, None).expect("a way").connect().expect("a connection"), served)
    }

    #[test]
    fn bytes_cross_whole_beside_pings() {
        let long: Vec<u8> = (0..3 * MOST_MESSAGE + 5).map(|at| (at % 251) as u8).collect();
        let back = long.clone();
        let (pipes, served) = server(move |mut socket| {
            socket.send(Message::Ping(Bytes::from_static(b"there?"))).expect("a ping");
            socket.send(Message::Binary(Bytes::new())).expect("nothing");
            for part in back.chunks(MOST_MESSAGE) {
                socket.send(Message::Binary(part.to_vec().into())).expect("a part");
                socket.send(Message::Ping(Bytes::new())).expect("a ping");
            }
            let (mut come, mut answers) = (vec![], 0);
            while let Ok(message) = socket.read() {
                match message {
                    Message::Binary(bytes) => come.push(bytes),
                    Message::Pong(_) => answers += 1,
                    _ => {}
                }
            }
            assert_eq!(come.concat(), back);
            assert_eq!(come.len(), 4);
            assert!(answers > 0);
        });
        let Pipes { mut input, mut output, .. } = pipes;
        let expected = long.clone();
        let reads = spawn(move || {
            let mut come = vec![0; expected.len()];
            input.read_exact(&mut come).expect("bytes");
            assert_eq!(come, expected);
            input
        });
        output.write_all(&long).expect("bytes");
        output.flush().expect("a message");
        let mut input = reads.join().expect("a reader");
        // One way's end is the other's.
        drop(output);
        assert!(matches!(input.read(&mut [0]), Ok(0) | Err(_)));
        served.join().expect("a server");
    }

    #[test]
    fn text_and_what_is_too_long_are_refused() {
        for message in [Message::text("Hello"), Message::Binary(vec![0; MOST_MESSAGE + 1].into())] {
            let (mut pipes, served) = server(move |mut socket| {
                let _ = socket.send(message);
                while socket.read().is_ok() {}
            });
            let error = pipes.input.read(&mut [0; 8]).expect_err("no bytes");
            assert_eq!(error.kind(), ErrorKind::InvalidData);
            drop(pipes);
            served.join().expect("a server");
        }
    }
}
