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

/// Serves forever. Each connection is closed after one request, or after `REQUEST_TIMEOUT`, so
/// that slow or idle clients do not block others.
pub async fn serve(listener: TcpListener, observed: Observed) -> Infallible {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(observed);
    let admission = AdmissionControl::new(CONNECTIONS_MAX);
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                debug!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let slot = admission.take(from.ip());
        let service = TowerToHyperService::new(router.clone());
        let connection = http1::Builder::new()
            .keep_alive(false)
            .max_headers(HEADERS_MAX)
            .max_buf_size(HEAD_MAX_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        tokio::spawn(async move {
            tokio::select! {
                biased;
                // A client's error closes its connection and has no other effect.
                _ = tokio::time::timeout(REQUEST_TIMEOUT, connection) => {}
                () = slot.revoked() => {}
            }
        });
    }
}

async fn metrics(State(observed): State<Observed>) -> Response {
    ([(header::CONTENT_TYPE, OPEN_METRICS)], observed.metrics.render()).into_response()
}

async fn status(State(observed): State<Observed>) -> Response {
    match observed.status.request().await {
        Ok(status) => Json(status).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")).into_response(),
    }
}

/// Ready from the first epoch until the gateway shuts down: only then collectives can run.
async fn ready(State(observed): State<Observed>) -> (StatusCode, String) {
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

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// 128 connections at once, as scrapers are few. Beyond that the oldest connection of the address
/// with the most is closed. Tested by `idle_connections_and_long_headers_block_no_scraper`.
const CONNECTIONS_MAX: usize = 128;

/// 10 s from connecting to the last byte of the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// 64 header fields in a request at most.
const HEADERS_MAX: usize = 64;

/// 16 KiB for a request's first line and header, and as buffer of an answer.
const HEAD_MAX_BYTES: usize = 16 << 10;
