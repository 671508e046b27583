//! `/metrics`, `/status`, `/healthz` and `/readyz` over HTTP, and the client of `/status`.

use super::metrics::Metrics;
use super::status::{Status, StatusDoor};
use crate::admission::AdmissionControl;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tracing::debug;

/// What the server shows.
#[derive(Debug, Clone)]
pub struct Observed {
    /// The counters.
    pub metrics: Arc<Metrics>,
    /// The way to the engine.
    pub door: StatusDoor,
}

/// Serves for ever. A connection is good for one short request: whoever
/// holds many, sends slowly or reads slowly holds up nobody.
pub async fn serve(listener: TcpListener, observed: Observed) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(observed);
    let seats = AdmissionControl::new(CONNECTIONS_MAX);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("a status request could not be let in: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let seat = seats.take(from.ip());
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_MAX_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // What a client does wrong is nothing to us.
                _ = tokio::time::timeout(REQUEST_WITHIN, connection) => {}
                () = seat.revoked() => {}
            }
        });
    }
}

async fn metrics(State(observed): State<Observed>) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], observed.metrics.render()).into_response()
}

async fn status(State(observed): State<Observed>) -> Response {
    match observed.door.ask().await {
        Ok(status) => Json(status).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Ready once the members have met, until the gateway shuts down: else no collective can run.
async fn ready(State(observed): State<Observed>) -> (StatusCode, String) {
    match observed.door.ask().await {
        Ok(status) if status.jobs.iter().any(|job| job.draining.is_some()) => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned())
        }
        Ok(status) if status.jobs.iter().all(|job| job.epoch.is_some()) => {
            (StatusCode::OK, "ready\n".to_owned())
        }
        Ok(_) => {
            let why = "no epoch: not all members have met\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// Why a running gateway's status could not be had.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nothing answers at the address.
    #[error("nothing answers at {address}: {source}; is the gateway running?")]
    NothingAnswers {
        /// Where the gateway's status should be.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// Something answers, but with no status.
    #[error("{address} answers without a status: {problem}")]
    NoStatus {
        /// Where the gateway's status should be.
        address: SocketAddr,
        /// What it answers instead.
        problem: String,
    },
}

/// The status of the gateway whose status address this is. Blocks for a few seconds at most.
///
/// # Errors
/// Nothing answers there, or something else does.
pub fn fetch_status(address: SocketAddr) -> Result<Status, FetchError> {
    let answer =
        get_status(address).map_err(|source| FetchError::NothingAnswers { address, source })?;
    let no_status = |problem: &str| FetchError::NoStatus { address, problem: problem.to_owned() };
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| no_status("no HTTP"))?;
    let first = head.lines().next().unwrap_or_default();
    if first.split(' ').nth(1) != Some("200") {
        return Err(no_status(&format!("{first}: {}", body.trim_end())));
    }
    serde_json::from_str(body).map_err(|error| no_status(&error.to_string()))
}

/// One exchange in HTTP/1.0, where the body ends with the connection.
fn get_status(address: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&reachable(address), FETCH_TIMEOUT)?;
    stream.set_read_timeout(Some(FETCH_TIMEOUT))?;
    stream.set_write_timeout(Some(FETCH_TIMEOUT))?;
    write!(stream, "GET /status HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.take(STATUS_MAX_BYTES).read_to_string(&mut answer)?;
    Ok(answer)
}

/// Who listens on every address of this host is reached over loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Requests at once. One more, and the oldest of the address with the most gives way.
const CONNECTIONS_MAX: usize = 128;

/// From connecting to the last byte of the answer.
const REQUEST_WITHIN: Duration = Duration::from_secs(10);

/// Header fields of a request.
const HEADERS_MAX: usize = 64;

/// A request's first line and header, and what is buffered of an answer.
const HEAD_MAX_BYTES: usize = 16 << 10;

/// Longer than the server waits for its engine.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Far above the status of the widest fabric.
const STATUS_MAX_BYTES: u64 = 16 << 20;
