//! The HTTP server of the status page, `/status`, `/metrics` and the probes: one task per
//! connection. `answers` says what each path gets.

pub use super::answers::AnswerSources;
use super::answers::Answers;
use super::history::SAMPLE_INTERVAL;
use crate::accept_errors::{ACCEPT_RETRY_PAUSE, AcceptErrors};
use crate::admission::AdmissionControl;
use crate::host::{Host, RealHost};
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::time::MissedTickBehavior;

/// Serves HTTP requests at `listener` forever, and samples the status for the history. Each
/// connection is closed after one request, or after `HTTP_REQUEST_TIMEOUT`, so that slow or idle
/// clients do not block others.
pub async fn run_http_server(listener: TcpListener, observed: AnswerSources) -> Infallible {
    let answers = Arc::new(Answers::new(observed));
    tokio::select! {
        never = accept_http_server_connections(listener, &answers) => never,
        never = sample_http_server_status(&answers) => never,
    }
}

/// Accepts HTTP connections for ever, and serves each in a task of its own.
async fn accept_http_server_connections(
    listener: TcpListener,
    answers: &Arc<Answers>,
) -> Infallible {
    let admission = AdmissionControl::new(HTTP_CONNECTIONS_MAX);
    let errors = AcceptErrors::new("an HTTP connection", answers.warnings());
    loop {
        let (stream, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                errors.log(&error, RealHost.now());
                tokio::time::sleep(ACCEPT_RETRY_PAUSE.duration()).await;
                continue;
            }
        };
        let slot = admission.take_slot(from.ip());
        let answers = Arc::clone(answers);
        let service = service_fn(move |request: Request<Incoming>| {
            let answers = Arc::clone(&answers);
            async move { answers.answer(request).await }
        });
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

/// Samples the status every [`SAMPLE_INTERVAL`] for ever; the first sample is one interval from
/// now.
async fn sample_http_server_status(answers: &Answers) -> Infallible {
    let begin = tokio::time::Instant::now() + SAMPLE_INTERVAL;
    let mut ticks = tokio::time::interval_at(begin, SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        answers.sample().await;
    }
}

/// 128 HTTP connections: the most that are open at the same time, as few scrapers read a gateway's
/// metrics and status. One more closes the oldest connection of the address that has the most.
/// Tested by `idle_connections_and_long_headers_block_no_scraper`.
const HTTP_CONNECTIONS_MAX: usize = 128;

/// 10 s: the time limit of an HTTP connection to a gateway, from its acceptance to the last byte of
/// the answer. After it the connection is closed, so that no slow client holds one for longer.
const HTTP_REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// 64 header fields: an HTTP request to a gateway may have so many; one with more is refused.
/// Browsers and scrapers send fewer.
const HTTP_HEADERS_MAX: usize = 64;

/// 16 KiB: the most bytes of the first line and header fields of an HTTP request; a request with
/// more is refused. The buffer of an answer has the same size.
const HTTP_HEAD_BYTES_MAX: usize = 16 << 10;
