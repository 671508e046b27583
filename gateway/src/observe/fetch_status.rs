//! The client of `/status`, for the commands.

use super::status::GatewayReport;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;
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

/// Fetches the status of the gateway whose HTTP server listens at `address`. Blocks: connecting,
/// and each read and write, takes 5 s at most.
///
/// # Errors
/// Nothing answers there, or not with a status.
pub fn fetch_status(address: SocketAddr) -> Result<GatewayReport, FetchError> {
    let answer = fetch_status_text(address);
    parse_fetched_answer(
        address,
        &answer.map_err(|source| FetchError::Unreachable { address, source })?,
    )
}

/// Fetches a status as [`fetch_status`] does, within 5 s. Call it within a runtime.
///
/// # Errors
/// Nothing answers there in time, or not with a status.
pub async fn fetch_status_async(address: SocketAddr) -> Result<GatewayReport, FetchError> {
    let answer = timeout(FETCH_TIMEOUT, fetch_status_text_async(address)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    parse_fetched_answer(
        address,
        &answer.map_err(|source| FetchError::Unreachable { address, source })?,
    )
}

/// Parses an HTTP answer of the server at `address`.
fn parse_fetched_answer(address: SocketAddr, answer: &str) -> Result<GatewayReport, FetchError> {
    let bad_answer = |problem: &str| FetchError::BadAnswer { address, problem: problem.to_owned() };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| bad_answer("not HTTP"))?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        return Err(bad_answer(&format!("{first}: {}", body.trim_end())));
    }
    serde_json::from_str(body).map_err(|error| bad_answer(&error.to_string()))
}

/// Sends one HTTP/1.0 request for `/status`; returns the answer with its header.
fn fetch_status_text(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&fetchable_status_address(address), FETCH_TIMEOUT)?;
    stream.set_read_timeout(Some(FETCH_TIMEOUT))?;
    stream.set_write_timeout(Some(FETCH_TIMEOUT))?;
    let mut answer = String::new();
    let exchange = stream
        .write_all(status_fetch_request(address).as_bytes())
        .and_then(|()| stream.take(STATUS_MAX_BYTES).read_to_string(&mut answer));
    match exchange {
        // The system's name for a time limit that has passed.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::ErrorKind::TimedOut.into())
        }
        exchange => exchange.map(|_| answer),
    }
}

/// Sends one HTTP/1.0 request for `/status`; returns the answer with its header.
async fn fetch_status_text_async(address: SocketAddr) -> io::Result<String> {
    let mut stream = tokio::net::TcpStream::connect(fetchable_status_address(address)).await?;
    stream.write_all(status_fetch_request(address).as_bytes()).await?;
    let mut answer = String::new();
    stream.take(STATUS_MAX_BYTES).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Returns the HTTP request for the status.
fn status_fetch_request(address: SocketAddr) -> String {
    format!("GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n")
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

/// 5 s: time limit for connecting to a gateway's status address, for each read and for each write.
/// The gateway itself waits less long for its engine.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// 16 MiB: the most that is read of a gateway's status, far above the status of the largest fabric.
const STATUS_MAX_BYTES: u64 = 16 << 20;
