//! The collector of OpenTelemetry to which a gateway posts its spans, over plain HTTP.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// 10 s: the longest that connecting to an address may take, and then posting a batch with its answer. The
/// time is that of other exporters of OTLP. Tested by `a_collector_that_reads_slowly_is_left`.
const OTLP_POST_TIMEOUT: Duration = Duration::from_secs(10);
/// 4 KiB: the most of a collector's answer that is read, for its first line.
const OTLP_ANSWER_BYTES_MAX: usize = 4096;

/// The address of a collector: `http://HOST:PORT`, with a path if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// Host name or address, and port.
    authority: String,
    /// The path to which traces are posted.
    path: String,
}

/// Why a collector did not take a batch.
#[derive(Debug, thiserror::Error)]
pub enum OtlpPostError {
    /// It cannot be reached, or is not ready: posting the batch again may succeed.
    #[error("{0}")]
    Later(String),
    /// It refuses the batch, and would refuse it again.
    #[error("it answers {0}")]
    Refused(String),
}

impl FromStr for OtlpEndpoint {
    type Err = &'static str;

    /// Parses `http://HOST:PORT` or `http://HOST:PORT/PATH`; says what is wrong with any other text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = match text.strip_prefix("http://") {
            Some(rest) => rest,
            None if text.starts_with("https://") => {
                return Err("has TLS, which gateways do not speak to a collector");
            }
            None => return Err("does not begin with http://"),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err("has a user or a password, which would be sent in the clear");
        }
        let (host, port) = authority.rsplit_once(':').ok_or("has no port")?;
        let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#');
        if host.is_empty() || !text.chars().all(is_plain) {
            return Err("is no host and path");
        }
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Err("has no port from 1 to 65535");
        }
        let path = match path.trim_end_matches('/') {
            "" => "/v1/traces".to_owned(),
            path => format!("/{path}/v1/traces"),
        };
        Ok(Self { authority: authority.to_owned(), path })
    }
}

impl fmt::Display for OtlpEndpoint {
    /// Prints the URL to which traces are posted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl OtlpEndpoint {
    /// Posts a request as JSON, and waits for the answer: at most 10 s for each address of the host, and
    /// 10 s more.
    ///
    /// # Errors
    /// The collector did not take it.
    pub fn post(&self, body: &str) -> Result<(), OtlpPostError> {
        let later = |error: io::Error| OtlpPostError::Later(error.to_string());
        let mut stream = self.connect().map_err(later)?;
        let until = Instant::now() + OTLP_POST_TIMEOUT;
        let status = self.exchange(&mut stream, body, until).map_err(later)?;
        match status.split(' ').nth(1).unwrap_or_default() {
            code if code.starts_with('2') => Ok(()),
            // Those that the protocol lets a sender repeat.
            "429" | "502" | "503" | "504" => {
                Err(OtlpPostError::Later(format!("it answers {status}")))
            }
            _ => Err(OtlpPostError::Refused(status)),
        }
    }

    /// Connects to the first address of the host that answers.
    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the host name has no address");
        for address in self.authority.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, OTLP_POST_TIMEOUT) {
                Ok(stream) => return Ok(stream),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Posts a request on a connection and returns the first line of the answer, both until `until`.
    fn exchange(&self, stream: &mut TcpStream, body: &str, until: Instant) -> io::Result<String> {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             User-Agent: landbridge/{}\r\nConnection: close\r\n\r\n",
            self.path,
            self.authority,
            body.len(),
            env!("CARGO_PKG_VERSION")
        );
        let written =
            write_otlp_request(stream, &[head.as_bytes(), body.as_bytes()].concat(), until);
        // A collector may refuse a request before it has read all of it.
        let first =
            read_otlp_status_line(stream, until).map_err(|error| written.err().unwrap_or(error))?;
        if !first.starts_with("HTTP/1.") {
            let problem = "its answer is not HTTP/1";
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        Ok(first)
    }
}

/// Returns the time that is left until `until`, or the error of a timeout.
fn otlp_time_left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Writes a request, however slowly the other end reads, until `until`.
fn write_otlp_request(stream: &mut TcpStream, request: &[u8], until: Instant) -> io::Result<()> {
    let mut rest = request;
    while !rest.is_empty() {
        stream.set_write_timeout(Some(otlp_time_left(until)?))?;
        let written = stream.write(rest)?;
        rest = &rest[written..];
    }
    Ok(())
}

/// Reads the first line of an answer, or what comes of it until `until`.
fn read_otlp_status_line(stream: &mut TcpStream, until: Instant) -> io::Result<String> {
    let mut answer = Vec::new();
    let mut piece = [0; 256];
    while answer.len() < OTLP_ANSWER_BYTES_MAX && !answer.contains(&b'\n') {
        stream.set_read_timeout(Some(otlp_time_left(until)?))?;
        match stream.read(&mut piece)? {
            0 => break,
            read => answer.extend_from_slice(&piece[..read]),
        }
    }
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::BufRead;
    use std::net::TcpListener;

    #[test]
    fn an_endpoint_has_a_host_and_a_port() {
        for (text, url) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://[::1]:4318/", "http://[::1]:4318/v1/traces"),
            ("http://collector.example:80/otlp/", "http://collector.example:80/otlp/v1/traces"),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().map(|one| one.to_string()), Ok(url.to_owned()));
        }
        for text in [
            "",
            "127.0.0.1:4318",
            "https://127.0.0.1:4318",
            "http://127.0.0.1",
            "http://:4318",
            "http://h:0",
            "http://h:65536",
            "http://user:password@h:4318",
            "http://h:4318/a b",
            "http://h:4318/\r\nX: y",
            "http://h:4318/?key=1",
        ] {
            assert!(text.parse::<OtlpEndpoint>().is_err(), "{text:?}");
        }
    }

    /// Posts to a server that reads the head and answers so.
    fn post_answered(answer: &'static str) -> Result<(), OtlpPostError> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a connection");
            let mut lines = io::BufReader::new(&stream).lines();
            while lines.next().is_some_and(|line| !line.expect("text").is_empty()) {}
            (&stream).write_all(answer.as_bytes()).expect("sent");
        });
        let posted = endpoint.parse::<OtlpEndpoint>().expect("valid").post("{}");
        server.join().expect("no panic");
        posted
    }

    #[test]
    fn answers_say_whether_to_post_again() {
        post_answered("HTTP/1.1 200 OK\r\n\r\n").expect("taken");
        post_answered("HTTP/1.0 202 Accepted\n").expect("taken");
        for later in ["HTTP/1.1 503 Busy\r\n\r\n", "HTTP/1.1 429 Many\r\n", "", "SSH-2.0\r\n"] {
            let error = post_answered(later).expect_err("not taken");
            assert!(matches!(error, OtlpPostError::Later(_)), "{later}: {error}");
        }
        for never in ["HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1 404 Not Found\r\n"] {
            let error = post_answered(never).expect_err("not taken");
            assert!(matches!(error, OtlpPostError::Refused(_)), "{never}: {error}");
        }
    }

    #[test]
    fn a_collector_that_reads_slowly_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let endpoint = endpoint.parse::<OtlpEndpoint>().expect("valid");
        let mut stream = endpoint.connect().expect("connects");
        let (_silent, _) = listener.accept().expect("a connection");
        let until = Instant::now() + Duration::from_millis(50);
        // More than the buffers of both sockets take.
        let body = "x".repeat(64 << 20);
        let error = endpoint.exchange(&mut stream, &body, until).expect_err("not taken");
        let kinds = [io::ErrorKind::TimedOut, io::ErrorKind::WouldBlock];
        assert!(kinds.contains(&error.kind()), "{error}");
    }

    #[test]
    fn a_refusal_before_the_end_of_a_request_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a connection");
            stream.write_all(b"HTTP/1.1 413 Content Too Large\r\n\r\n").expect("sent");
        });
        let posted = endpoint.parse::<OtlpEndpoint>().expect("valid").post(&"x".repeat(64 << 20));
        server.join().expect("no panic");
        assert!(matches!(posted, Err(OtlpPostError::Refused(_))), "{posted:?}");
    }
}
