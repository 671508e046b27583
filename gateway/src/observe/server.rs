//! The HTTP server of `/metrics`, `/status`, `/healthz` and `/readyz`, one task per connection.

use super::metrics::MetricsRegistry;
use super::readiness::{is_ready, judge_problems};
use super::status::GatewayReport;
use super::status_request::{StatusError, StatusHandle};
use crate::accept_errors::{ACCEPT_RETRY_PAUSE, AcceptErrors};
use crate::admission::AdmissionControl;
use crate::host::{Host, RealHost};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::warn;

/// The sources of the server's answers.
#[derive(Debug, Clone)]
pub struct Observed {
    /// All metrics.
    pub metrics: Arc<MetricsRegistry>,
    /// Requests the status from the engine.
    pub status: StatusHandle,
    /// The reason why trainers cannot attach at the gateway's socket, while there is one.
    pub socket_problem: watch::Receiver<Option<String>>,
}

/// Serves HTTP requests at `listener` forever. Each connection is closed after one request, or
/// after `HTTP_REQUEST_TIMEOUT`, so that slow or idle clients do not block others.
pub async fn serve_http(listener: TcpListener, observed: Observed) -> Infallible {
    let admission = AdmissionControl::new(HTTP_CONNECTIONS_MAX);
    let errors = AcceptErrors::default();
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(line) = errors.line("an HTTP connection", &error, RealHost.now()) {
                    warn!("{line}");
                }
                tokio::time::sleep(ACCEPT_RETRY_PAUSE.duration()).await;
                continue;
            }
        };
        let slot = admission.take_slot(from.ip());
        let observed = observed.clone();
        let service = service_fn(move |request| respond_to_http_request(request, observed.clone()));
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_headers(HTTP_HEADERS_MAX)
            .max_buf_size(HTTP_HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // A client's error closes its connection and has no other effect.
                _ = tokio::time::timeout(HTTP_REQUEST_TIMEOUT, connection) => {}
                () = slot.wait_for_revocation() => {}
            }
        });
    }
}

/// Answers a request by its path. Only GET and HEAD are allowed; hyper sends no body after HEAD.
async fn respond_to_http_request(
    request: Request<Incoming>,
    observed: Observed,
) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
    let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
    let path = request.uri().path();
    if !is_read && matches!(path, "/metrics" | "/status" | "/healthz" | "/readyz") {
        let response = Response::builder().status(StatusCode::METHOD_NOT_ALLOWED);
        return response.header(ALLOW, "GET,HEAD").body(Full::default());
    }
    let (status, content_type, body) = match path {
        "/metrics" => (StatusCode::OK, OPEN_METRICS_CONTENT_TYPE, render_metrics(&observed)),
        "/status" => get_status(&observed).await,
        "/healthz" => (StatusCode::OK, TEXT_CONTENT_TYPE, "ok\n".to_owned()),
        "/readyz" => {
            let (status, text) = get_readiness(&observed).await;
            (status, TEXT_CONTENT_TYPE, text)
        }
        _ => (StatusCode::NOT_FOUND, TEXT_CONTENT_TYPE, String::new()),
    };
    Response::builder().status(status).header(CONTENT_TYPE, content_type).body(body.into())
}

/// Returns all metrics as text, with the problem of the socket, of which the engine does not know.
fn render_metrics(observed: &Observed) -> String {
    observed.metrics.set_socket_problem(observed.socket_problem.borrow().is_some());
    observed.metrics.render()
}

/// Requests the status from the engine, adds the problem of the socket, and judges both.
async fn request_status(observed: &Observed) -> Result<GatewayReport, StatusError> {
    let mut status = observed.status.request().await?;
    status.socket_problem = observed.socket_problem.borrow().clone();
    status.problems = judge_problems(&status);
    Ok(status)
}

/// Returns the status of engine and socket as JSON, or 503 when the engine does not answer.
async fn get_status(observed: &Observed) -> (StatusCode, &'static str, String) {
    let status = request_status(observed).await.map_err(|error| error.to_string());
    match status.and_then(|status| serde_json::to_string(&status).map_err(|e| e.to_string())) {
        Ok(json) => (StatusCode::OK, "application/json", json),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, TEXT_CONTENT_TYPE, format!("{error}\n")),
    }
}

/// Returns 200 while the gateway is ready, as [`judge_problems`] says; otherwise 503 with a line
/// for each reason. The text is for people.
async fn get_readiness(observed: &Observed) -> (StatusCode, String) {
    match request_status(observed).await {
        Ok(status) if is_ready(&status.problems) => (StatusCode::OK, "ready\n".to_owned()),
        Ok(status) => {
            let reasons = status.problems.iter().filter(|problem| problem.blocks);
            let lines = reasons.map(|problem| format!("{problem}\n")).collect();
            (StatusCode::SERVICE_UNAVAILABLE, lines)
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// The media type of the OpenMetrics format.
const OPEN_METRICS_CONTENT_TYPE: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of plain text.
const TEXT_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// 128 HTTP connections: the most at once, as few scrapers read a gateway's metrics and status. One
/// more closes the oldest connection of the address with the most.
/// Tested by `idle_connections_and_long_headers_block_no_scraper`.
const HTTP_CONNECTIONS_MAX: usize = 128;

/// 10 s: time limit of an HTTP connection to a gateway, from connecting to the last byte of the
/// answer.
const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// 64 header fields: the most of an HTTP request to a gateway.
const HTTP_HEADERS_MAX: usize = 64;

/// 16 KiB: the most bytes of the first line and header fields of an HTTP request. The buffer of an
/// answer has the same size.
const HTTP_HEAD_BYTES_MAX: usize = 16 << 10;
