//! The HTTP server of `/metrics`, `/status`, `/healthz` and `/readyz`, one task per connection.

use super::metrics::Metrics;
use super::status_request::StatusHandle;
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
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tracing::debug;

/// The sources of the server's answers.
#[derive(Debug, Clone)]
pub struct Observed {
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Requests the status from the engine.
    pub status: StatusHandle,
}

/// Serves HTTP requests at `listener` forever. Each connection is closed after one request, or
/// after `HTTP_REQUEST_TIMEOUT`, so that slow or idle clients do not block others.
pub async fn serve_http(listener: TcpListener, observed: Observed) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(get_metrics))
        .route("/status", get(get_status))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(get_readiness))
        .with_state(observed);
    let admission = AdmissionControl::new(HTTP_CONNECTIONS_MAX);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let slot = admission.take_slot(from.ip());
        let service = TowerToHyperService::new(router.clone());
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

/// Answers `/metrics` with all metrics in the OpenMetrics format.
async fn get_metrics(State(observed): State<Observed>) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS_CONTENT_TYPE)], observed.metrics.render()).into_response()
}

/// Answers `/status` with the engine's status as JSON, or 503 when the engine does not answer.
async fn get_status(State(observed): State<Observed>) -> Response {
    match observed.status.request().await {
        Ok(status) => Json(status).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Answers `/readyz`: 200 from the first epoch until the gateway drains, when collectives can run;
/// otherwise 503.
async fn get_readiness(State(observed): State<Observed>) -> (StatusCode, String) {
    match observed.status.request().await {
        Ok(status) if status.jobs.iter().any(|job| job.draining.is_some()) => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned())
        }
        Ok(status) if status.jobs.iter().all(|job| job.epoch.is_some()) => {
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

/// 128: most HTTP connections at once, as scrapers are few. One more closes the oldest connection
/// of the address with the most. Tested by `idle_connections_and_long_headers_block_no_scraper`.
const HTTP_CONNECTIONS_MAX: usize = 128;

/// 10 s: time limit of an HTTP connection, from connecting to the last byte of the answer.
const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// 64: most header fields of a request.
const HTTP_HEADERS_MAX: usize = 64;

/// 16 KiB: most of a request's first line and header, and size of the buffer of an answer.
const HTTP_HEAD_BYTES_MAX: usize = 16 << 10;
