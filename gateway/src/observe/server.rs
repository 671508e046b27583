//! The HTTP server of `/metrics`, `/status`, `/healthz` and `/readyz`, one task per connection.

use super::metrics::MetricsRegistry;
use super::status_request::StatusHandle;
use crate::admission::AdmissionControl;
use crate::log_throttle::LogThrottle;
use crate::memory::arena::describe_descriptor_error;
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
use tracing::warn;
use units::TimeNs;

/// The sources of the server's answers.
#[derive(Debug, Clone)]
pub struct Observed {
    /// All metrics.
    pub metrics: Arc<MetricsRegistry>,
    /// Requests the status from the engine.
    pub status: StatusHandle,
}

/// Serves HTTP requests at `listener` forever. Each connection is closed after one request, or
/// after `HTTP_REQUEST_TIMEOUT`, so that slow or idle clients do not block others.
pub async fn serve_http(listener: TcpListener, observed: Observed) -> Infallible {
    let admission = AdmissionControl::new(HTTP_CONNECTIONS_MAX);
    let (accept_errors, began) = (LogThrottle::default(), tokio::time::Instant::now());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                let now = TimeNs::from_ns(began.elapsed().as_nanos() as u64);
                if let Some(suppressed) = accept_errors.permit(now) {
                    let why = describe_descriptor_error(&error);
                    warn!("the status server accepts no connection: {why}{suppressed}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
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
        "/metrics" => (StatusCode::OK, OPEN_METRICS_CONTENT_TYPE, observed.metrics.render()),
        "/status" => get_status(&observed.status).await,
        "/healthz" => (StatusCode::OK, TEXT_CONTENT_TYPE, "ok\n".to_owned()),
        "/readyz" => {
            let (status, text) = get_readiness(&observed.status).await;
            (status, TEXT_CONTENT_TYPE, text)
        }
        _ => (StatusCode::NOT_FOUND, TEXT_CONTENT_TYPE, String::new()),
    };
    Response::builder().status(status).header(CONTENT_TYPE, content_type).body(body.into())
}

/// Returns the engine's status as JSON, or 503 when the engine does not answer.
async fn get_status(engine: &StatusHandle) -> (StatusCode, &'static str, String) {
    let status = engine.request().await.map_err(|error| error.to_string());
    match status.and_then(|status| serde_json::to_string(&status).map_err(|e| e.to_string())) {
        Ok(json) => (StatusCode::OK, "application/json", json),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, TEXT_CONTENT_TYPE, format!("{error}\n")),
    }
}

/// Returns 200 from the first epoch until the gateway drains, when collectives can run; otherwise
/// 503. The text is for people.
async fn get_readiness(engine: &StatusHandle) -> (StatusCode, String) {
    match engine.request().await {
        Ok(status) if status.jobs.iter().any(|job| job.draining.is_some()) => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned())
        }
        Ok(status) if status.jobs.iter().all(|job| job.removed || job.epoch.is_some()) => {
            (StatusCode::OK, "ready\n".to_owned())
        }
        Ok(_) => {
            let why = "no epoch: not all gateways have met\n".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, why)
        }
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// The media type of the OpenMetrics format.
const OPEN_METRICS_CONTENT_TYPE: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of plain text.
const TEXT_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// 128: most HTTP connections at once, as scrapers are few. One more closes the oldest connection
/// of the address with the most. Tested by `idle_connections_and_long_headers_block_no_scraper`.
const HTTP_CONNECTIONS_MAX: usize = 128;

/// 10 s: time limit of an HTTP connection, from connecting to the last byte of the answer.
const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// 64: most header fields of a request.
const HTTP_HEADERS_MAX: usize = 64;

/// 16 KiB: most of a request's first line and header, and size of the buffer of an answer.
const HTTP_HEAD_BYTES_MAX: usize = 16 << 10;
