//! The answers of the status server to requests, by path.
//!
//! The server hands over each request, in the task of its connection.

use super::engine_status_request::{EngineStatusHandle, StatusError};
use super::history::History;
use super::metrics::MetricsRegistry;
use super::readiness::{is_ready, judge_readiness};
use super::status::{DumpReport, GatewayReport};
use super::status_page::status_page;
use super::versioned::Versioned;
use crate::lock::lock_ignoring_poison;
use crate::warnings::Warnings;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The sources of the server's answers.
#[derive(Debug, Clone)]
pub struct AnswerSources {
    /// All metrics.
    pub metrics: Arc<MetricsRegistry>,
    /// Requests the status from the engine.
    pub status: EngineStatusHandle,
    /// The reason why trainers cannot attach at the gateway's socket, while there is one.
    pub socket_problem: watch::Receiver<Option<String>>,
    /// The limit on processors that holds the gateway back, while one does.
    pub processor_problem: watch::Receiver<Option<String>>,
    /// The address at which trainers of other hosts attach, if the gateway serves them.
    pub attach: Option<String>,
}

impl AnswerSources {
    /// Requests status and flight recorders from the engine, adds what the local plane knows, and judges
    /// both.
    ///
    /// # Errors
    /// The engine does not answer.
    pub async fn request_dump(&self) -> Result<DumpReport, StatusError> {
        let mut dump = self.status.request_dump().await?;
        self.complete_status(&mut dump.status);
        Ok(dump)
    }

    /// Adds what the local plane knows to a status of the engine, and judges both.
    fn complete_status(&self, status: &mut GatewayReport) {
        status.socket_problem = self.socket_problem.borrow().clone();
        status.processor_problem = self.processor_problem.borrow().clone();
        status.attach.clone_from(&self.attach);
        status.problems = judge_readiness(status);
    }
}

/// Answers requests. All connections share it.
#[derive(Debug)]
pub(super) struct Answers {
    observed: AnswerSources,
    history: Mutex<History>,
    /// The status that requests with a maximum age share.
    shared_status: SharedReport,
    /// The dump that requests with a maximum age share.
    shared_dump: SharedReport,
}

/// The last report of one kind as JSON, and the time at which it was made. Requests that come at
/// the same time then cost the engine one report.
#[derive(Debug, Default)]
struct SharedReport(tokio::sync::Mutex<Option<(Instant, Bytes)>>);

impl SharedReport {
    /// Returns the last report if it is younger than `max_age`, and otherwise a new one by `make`.
    /// A `max_age` of zero always makes a new one.
    async fn get(
        &self,
        max_age: Duration,
        make: impl Future<Output = Result<Bytes, StatusError>>,
    ) -> Result<Bytes, StatusError> {
        if max_age == Duration::ZERO {
            return make.await;
        }
        let mut last = self.0.lock().await;
        if let Some((_, json)) = last.as_ref().filter(|(made, _)| made.elapsed() < max_age) {
            return Ok(json.clone());
        }
        let json = make.await?;
        *last = Some((Instant::now(), json.clone()));
        Ok(json)
    }
}

/// Status code, media type and body of an answer.
type Answer = (StatusCode, &'static str, Bytes);

impl Answers {
    /// Returns the record of warnings, which decides which log lines of the gateway are warnings.
    pub fn warnings(&self) -> Warnings {
        self.observed.metrics.warnings.clone()
    }

    /// Makes the answers to HTTP requests of a gateway, from the sources of its state.
    pub fn new(observed: AnswerSources) -> Self {
        Self {
            observed,
            history: Mutex::default(),
            shared_status: SharedReport::default(),
            shared_dump: SharedReport::default(),
        }
    }

    /// Adds the status of this moment to the history. Adds nothing when the engine does not answer.
    pub async fn sample(&self) {
        if let Ok(report) = self.request_status().await {
            lock_ignoring_poison(&self.history).add_report(&report);
        }
    }

    /// Answers a request by its path. Only GET and HEAD are allowed; hyper sends no body after
    /// HEAD.
    pub async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, hyper::http::Error> {
        let path = request.uri().path();
        let is_read = request.method() == Method::GET || request.method() == Method::HEAD;
        if !is_read && ANSWERED_PATHS.contains(&path) {
            let response = Response::builder().status(StatusCode::METHOD_NOT_ALLOWED);
            return response.header(ALLOW, "GET,HEAD").body(Full::default());
        }
        let (status, content_type, body) = match path {
            "/" => (StatusCode::OK, "text/html; charset=utf-8", status_page().html.clone()),
            "/metrics" => (StatusCode::OK, OPEN_METRICS_CONTENT_TYPE, self.render_metrics()),
            "/status" => self.get_status(answer_max_age(request.headers())).await,
            "/dump" => self.get_dump(answer_max_age(request.headers())).await,
            "/history" => {
                let report = lock_ignoring_poison(&self.history).report();
                (StatusCode::OK, JSON_CONTENT_TYPE, Versioned::new(report).to_json().into())
            }
            "/fabric" => self.get_fabric().await,
            "/healthz" => text_answer(StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => self.get_readiness().await,
            _ => text_answer(StatusCode::NOT_FOUND, String::new()),
        };
        let mut response = Response::builder().status(status).header(CONTENT_TYPE, content_type);
        if path == "/" {
            let policy = status_page().security_policy.as_str();
            response = response.header(CONTENT_SECURITY_POLICY, policy);
        }
        for (name, value) in COMMON_HEADERS {
            response = response.header(name, value);
        }
        response.body(body.into())
    }

    /// Returns all metrics as text, with the problems of the socket and of the processor, of which
    /// the engine does not know.
    fn render_metrics(&self) -> Bytes {
        let metrics = &self.observed.metrics;
        metrics.set_socket_problem(self.observed.socket_problem.borrow().is_some());
        metrics.set_processor_problem(self.observed.processor_problem.borrow().is_some());
        metrics.render().into()
    }

    /// Requests the status from the engine, adds what the local plane knows, and judges both.
    async fn request_status(&self) -> Result<GatewayReport, StatusError> {
        let mut status = self.observed.status.request().await?;
        self.observed.complete_status(&mut status);
        Ok(status)
    }

    /// Returns status and flight recorders as JSON, or 503 when the engine does not answer. With
    /// `max_age`, the answer may be one that another request got within that time.
    async fn get_dump(&self, max_age: Duration) -> Answer {
        let make =
            async { Ok(Versioned::new(&self.observed.request_dump().await?).to_json().into()) };
        json_answer(self.shared_dump.get(max_age, make).await)
    }

    /// Returns the status of engine and socket as JSON, or 503 when the engine does not answer.
    /// With `max_age`, the status may be one that another request got within that time.
    async fn get_status(&self, max_age: Duration) -> Answer {
        let make = async { Ok(Versioned::new(&self.request_status().await?).to_json().into()) };
        json_answer(self.shared_status.get(max_age, make).await)
    }

    /// Returns the fabric in force as JSON, or 503 when the engine does not answer.
    async fn get_fabric(&self) -> Answer {
        let fabric = self.observed.status.request_fabric().await;
        json_answer(fabric.map(|fabric| Versioned::new(&fabric).to_json().into()))
    }

    /// Returns 200 while the gateway is ready, as [`judge_readiness`] says; otherwise 503. A line for
    /// each problem follows; with 503 for those alone that keep it from being ready. The text is for
    /// people.
    async fn get_readiness(&self) -> Answer {
        match self.request_status().await {
            Ok(status) if is_ready(&status.problems) => {
                let lines = status.problems.iter().map(|problem| format!("{problem}\n"));
                text_answer(StatusCode::OK, "ready\n".to_owned() + &lines.collect::<String>())
            }
            Ok(status) => {
                let reasons = status.problems.iter().filter(|problem| problem.blocks);
                let lines = reasons.map(|problem| format!("{problem}\n")).collect();
                text_answer(StatusCode::SERVICE_UNAVAILABLE, lines)
            }
            Err(error) => unavailable_answer(&error),
        }
    }
}

/// Makes the answer with this report as JSON, or 503 when the engine does not answer.
fn json_answer(report: Result<Bytes, StatusError>) -> Answer {
    match report {
        Ok(json) => (StatusCode::OK, JSON_CONTENT_TYPE, json),
        Err(error) => unavailable_answer(&error),
    }
}

/// Makes an answer of plain text with this HTTP status code.
fn text_answer(status: StatusCode, text: String) -> Answer {
    (status, TEXT_CONTENT_TYPE, text.into())
}

/// Makes the answer 503 of a gateway whose engine does not answer.
fn unavailable_answer(error: &StatusError) -> Answer {
    text_answer(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"))
}

/// Returns the age of a report that a request accepts by `Cache-Control: max-age=SECONDS`; zero
/// without that word, and at most [`STATUS_AGE_MAX`].
fn answer_max_age(headers: &HeaderMap) -> Duration {
    let text = headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let seconds = text.split(',').find_map(|word| word.trim().strip_prefix("max-age="));
    let seconds = seconds.and_then(|seconds| seconds.parse().ok()).unwrap_or(0);
    Duration::from_secs(seconds).min(STATUS_AGE_MAX)
}

/// The paths that the status server answers; another path gets 404. A request by another method
/// than GET and HEAD to one of these paths gets 405.
const ANSWERED_PATHS: [&str; 8] =
    ["/", "/metrics", "/status", "/dump", "/history", "/fabric", "/healthz", "/readyz"];

/// Headers of all answers of the status server. Answers stay in no cache, and no page of another
/// origin gets them. Links in them do not tell where the reader came from, and browsers guess no
/// media type.
const COMMON_HEADERS: [(&str, &str); 4] = [
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
];

/// The media type of the OpenMetrics format, which the answer to `/metrics` has.
const OPEN_METRICS_CONTENT_TYPE: &str =
    "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The media type of JSON, which the answers to `/status`, `/dump`, `/history` and `/fabric` have.
const JSON_CONTENT_TYPE: &str = "application/json";

/// The media type of plain text, which answers to `/healthz` and `/readyz` and those of errors
/// have.
const TEXT_CONTENT_TYPE: &str = "text/plain; charset=utf-8";

/// 10 s: the oldest report that an answer may show, as the time between two samples of the history.
/// A request that accepts an older one by `max-age` gets one of at most this age.
const STATUS_AGE_MAX: Duration = Duration::from_secs(10);
