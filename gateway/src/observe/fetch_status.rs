//! The client of `/status` and `/dump`, for the commands.

use super::status::{DumpReport, GatewayReport};
use serde::de::DeserializeOwned;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Why the status of a running gateway could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No server answers at the address.
    #[error(
        "nothing answers at {address}: {source}; is the gateway running? `landbridge run` starts it"
    )]
    Unreachable {
        /// The gateway's status address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A server answers, but not with a status.
    #[error("{address} answers without a status: {problem}")]
    BadAnswer {
        /// The gateway's status address.
        address: SocketAddr,
        /// Its answer.
        problem: String,
    },
}

/// Fetches the status of the gateway whose HTTP server listens at `address`. Blocks for 5 s at most
/// while it connects, and then for 5 s at most until the whole answer is there.
///
/// # Errors
/// Nothing answers there, or not with a status.
pub fn fetch_status(address: SocketAddr) -> Result<GatewayReport, FetchError> {
    let (status, _) = fetch_status_at(address, "/status")?;
    Ok(status)
}

/// Fetches status and flight recorders of a gateway, as [`fetch_status`] does. Also returns the time
/// of the gateway's clock, in whole seconds, if the answer has one.
///
/// # Errors
/// Nothing answers there, or not with a dump.
pub fn fetch_status_with_flights(
    address: SocketAddr,
) -> Result<(DumpReport, Option<SystemTime>), FetchError> {
    fetch_status_at(address, "/dump")
}

/// Fetches the report at a path of the HTTP server at `address`, and the time in its `Date` header.
fn fetch_status_at<T: DeserializeOwned>(
    address: SocketAddr,
    path: &str,
) -> Result<(T, Option<SystemTime>), FetchError> {
    let stream = TcpStream::connect_timeout(&fetchable_status_address(address), FETCH_TIMEOUT)
        .map_err(|source| FetchError::Unreachable { address, source })?;
    let answer = fetch_status_text(&stream, (address, path), FETCH_TIMEOUT);
    parse_fetched_status(address, answer.map_err(|error| unfinished_status_fetch(address, &error))?)
}

/// Fetches a status as [`fetch_status`] does, within 10 s. Call it within a runtime.
///
/// # Errors
/// Nothing answers there in time, or not with a status.
pub async fn fetch_status_async(address: SocketAddr) -> Result<GatewayReport, FetchError> {
    let timed_out = || io::Error::from(io::ErrorKind::TimedOut);
    let connecting = tokio::net::TcpStream::connect(fetchable_status_address(address));
    let stream = timeout(FETCH_TIMEOUT, connecting).await.unwrap_or_else(|_| Err(timed_out()));
    let stream = stream.map_err(|source| FetchError::Unreachable { address, source })?;
    let answer = timeout(FETCH_TIMEOUT, fetch_status_text_async(stream, address)).await;
    let answer = answer.unwrap_or_else(|_| Err(timed_out()));
    let answer = answer.map_err(|error| unfinished_status_fetch(address, &error))?;
    let (status, _) = parse_fetched_status(address, answer)?;
    Ok(status)
}

/// Makes the error of a server that accepted the connection and gave no whole answer.
fn unfinished_status_fetch(address: SocketAddr, error: &io::Error) -> FetchError {
    let problem = match error.kind() {
        io::ErrorKind::TimedOut => {
            "no whole answer came within 5 s; is the process stopped, or its host overloaded?"
                .to_owned()
        }
        _ => format!("{error}; {BAD_STATUS_HINT}"),
    };
    FetchError::BadAnswer { address, problem }
}

/// The end of the error text of a command that asked for a gateway's status and got an answer
/// without one: where to look.
const BAD_STATUS_HINT: &str =
    "another program may listen there, or a gateway of another version than this command";

/// Parses the HTTP answer of the server at `address` to a report, and the time in its `Date` header,
/// if that is one.
fn parse_fetched_status<T: DeserializeOwned>(
    address: SocketAddr,
    answer: Vec<u8>,
) -> Result<(T, Option<SystemTime>), FetchError> {
    let bad_answer = |problem: &str| FetchError::BadAnswer {
        address,
        problem: format!("{problem}; {BAD_STATUS_HINT}"),
    };
    let answer = String::from_utf8(answer).map_err(|_| bad_answer("its answer is no text"))?;
    let (head, body) =
        answer.split_once("\r\n\r\n").ok_or_else(|| bad_answer("its answer is not HTTP"))?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        return Err(bad_answer(&format!("{first}: {}", body.trim_end())));
    }
    let report = serde_json::from_str(body);
    let report = report.map_err(|_| bad_answer("its answer has other fields"))?;
    let date = head.lines().filter_map(|line| line.split_once(':'));
    let mut date = date.filter(|(name, _)| name.eq_ignore_ascii_case("date"));
    let date = date.find_map(|(_, value)| httpdate::parse_http_date(value.trim()).ok());
    Ok((report, date))
}

/// Sends one HTTP/1.0 request for a path; returns the answer with its header, if it is there whole
/// within `limit`.
fn fetch_status_text(
    mut stream: &TcpStream,
    (address, path): (SocketAddr, &str),
    limit: Duration,
) -> io::Result<Vec<u8>> {
    let until = Instant::now() + limit;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(status_fetch_request(address, path).as_bytes())?;
    let (mut answer, mut piece) = (Vec::new(), vec![0; FETCH_PIECE_BYTES]);
    while answer.len() < STATUS_MAX_BYTES {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(bytes) => answer.extend_from_slice(&piece[..bytes]),
            // The system's name for a time limit that has passed.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answer)
}

/// Sends one HTTP/1.0 request for `/status`; returns the answer with its header.
async fn fetch_status_text_async(
    mut stream: tokio::net::TcpStream,
    address: SocketAddr,
) -> io::Result<Vec<u8>> {
    stream.write_all(status_fetch_request(address, "/status").as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(STATUS_MAX_BYTES as u64).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Returns the HTTP request for a path.
fn status_fetch_request(address: SocketAddr, path: &str) -> String {
    format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")
}

/// Returns the address to connect to: loopback in place of the unspecified address.
fn fetchable_status_address(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

/// 5 s: the time limit of a command for connecting to a gateway's status address, and again for the
/// whole answer. After it the command fails. The gateway itself waits less long for its engine.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// 16 MiB: the longest answer with a gateway's status that a command reads, far above that of the
/// largest fabric. A longer answer is cut there, and fails as one without a status.
const STATUS_MAX_BYTES: usize = 16 << 20;

/// 64 KiB: the most bytes of an answer that one read call takes; longer answers take several calls.
/// The size is chosen.
const FETCH_PIECE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::{self, JoinHandle};

    /// Starts a server that writes `piece` until its peer is gone, at most `pieces` times.
    fn start_server(piece: &'static [u8], pieces: usize) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut request = [0; 64];
            let _ = stream.read(&mut request);
            let mut left = pieces;
            while left > 0 && stream.write_all(piece).is_ok() {
                left -= 1;
                thread::sleep(Duration::from_millis(1));
            }
        });
        (address, server)
    }

    #[test]
    fn a_server_that_never_ends_its_answer_is_left() {
        let (address, server) = start_server(b"x", usize::MAX);
        let stream = TcpStream::connect(address).expect("listens");
        let error = fetch_status_text(&stream, (address, "/status"), Duration::from_millis(50));
        let error = error.expect_err("no end came");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(
            unfinished_status_fetch(address, &error).to_string().contains("no whole answer came")
        );
        drop(stream);
        server.join().expect("ends with its client");
    }

    #[test]
    fn answers_of_other_programs_are_named_as_such() {
        for (answer, problem) in [
            (&b"\xff\xfe"[..], "its answer is no text"),
            (b"hello", "its answer is not HTTP"),
            (b"HTTP/1.0 200 OK\r\n\r\n{}", "its answer has other fields"),
            (b"HTTP/1.0 426 Upgrade\r\n\r\nno", "HTTP/1.0 426 Upgrade: no"),
        ] {
            let (address, server) = start_server(answer, 1);
            let error = fetch_status(address).expect_err("no gateway").to_string();
            assert!(error.contains(problem) && error.contains("another program may"), "{error}");
            server.join().expect("ends");
        }
    }
}
