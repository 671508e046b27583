//! The export of spans: a thread posts what ended on this gateway to the collector that the region file names.
//!
//! The engine hands spans to a bounded queue and never waits. While the collector takes none, the thread
//! keeps one batch and tries again, and the queue fills; what it then drops is counted.

use crate::cli::output::command_error::CommandError;
use crate::cli::output::logging::LOG_TARGET;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::host::{Host, RealHost};
use gateway::limits::thread_limits::spawn_thread_within_limits;
use gateway::observe::metrics::MetricsRegistry;
use gateway::observe::spans::CollectiveSpan;
use gateway::observe::spans::otlp::{SpanSource, otlp_request};
use gateway::observe::spans::otlp_endpoint::{OtlpEndpoint, OtlpPostError};
use gateway::observe::spans::span_queue::{SpanReader, SpanSink};
use gateway::warn_if_due;
use gateway::warnings::WarningCause;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tracing::info;

/// 512 collectives: the most in one request to the collector, about 1 MB of JSON. The number is that of
/// other exporters of OTLP.
const BATCH_MAX: usize = 512;
/// 1 s: a batch that is not full is posted this long after its first collective ended. The time is chosen:
/// an operator sees a step while it is still of interest.
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// 1 s: the first pause before a batch is posted again that the collector did not take. Each further one is
/// twice as long, until it takes a batch.
const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// 30 s: the longest pause before a batch is posted again. The time is chosen.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(30);
/// 1 min: a batch is posted again for this long, and then lost. So no batch that a collector cannot take
/// holds up the next ones for ever.
const RETRIED_FOR: Duration = Duration::from_secs(60);
/// 2 s: how long the end of the gateway waits for the last batch. The rest is lost: supervisors kill soon.
const LAST_BATCH_WITHIN: Duration = Duration::from_secs(2);

/// The thread that exports spans.
pub(super) struct SpanExporter {
    is_ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
    ended: Receiver<()>,
}

/// The parts of the export that the thread uses.
struct SpanExport {
    endpoint: OtlpEndpoint,
    source: SpanSource,
    metrics: Arc<MetricsRegistry>,
    is_ending: Arc<AtomicBool>,
}

impl SpanExporter {
    /// Starts the export of a gateway's spans, where the region file names a collector. Returns the queue
    /// that it reads.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        region: &RegionFile,
        config: &GatewayConfig,
        metrics: &Arc<MetricsRegistry>,
    ) -> Result<Option<(Self, SpanSink)>, CommandError> {
        let Some(endpoint) = config.otlp.clone() else { return Ok(None) };
        let fabric = region.fabric().fabric();
        let of = fabric.gateway(config.id).region;
        let source = SpanSource {
            fabric: fabric.name().to_owned(),
            region: fabric.region(of).name.clone(),
            gateway: config.name.clone(),
        };
        let (sink, reader) = SpanSink::with_reader(metrics.dropped_spans.clone());
        let is_ending = Arc::new(AtomicBool::new(false));
        let (ends, ended) = mpsc::sync_channel(1);
        info!(target: LOG_TARGET, "spans of collectives go to {endpoint}");
        let (metrics, ending) = (Arc::clone(metrics), Arc::clone(&is_ending));
        let export = SpanExport { endpoint, source, metrics, is_ending: ending };
        let thread = spawn_thread_within_limits("spans", move || {
            export.export_all(&reader);
            // Nobody waits any more if the gateway ended without it.
            let _ = ends.send(());
        })?;
        Ok(Some((Self { is_ending, thread, ended }, sink)))
    }

    /// Posts what is left, within 2 s. The gateway offers no more spans then.
    pub fn finish(self) {
        self.is_ending.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        // A collector that does not answer holds no gateway.
        let _ = self.ended.recv_timeout(LAST_BATCH_WITHIN);
    }
}

impl SpanExport {
    /// Posts batches as they come, until the gateway ends.
    fn export_all(&self, reader: &SpanReader) {
        let mut pause = RETRY_PAUSE_MIN;
        while let Some(batch) = reader.next_batch(BATCH_MAX, BATCH_INTERVAL) {
            let count: u64 = batch.iter().map(CollectiveSpan::count).sum();
            if self.export_batch(&batch, &mut pause) {
                pause = RETRY_PAUSE_MIN;
                self.metrics.exported_spans.inc_by(count);
            } else {
                self.metrics.dropped_spans.inc_by(count);
            }
        }
    }

    /// Posts a batch, again after a pause where the collector did not take it. Returns whether it has,
    /// once it has or refuses it, after a minute, or when the gateway ends.
    fn export_batch(&self, batch: &[CollectiveSpan], pause: &mut Duration) -> bool {
        let body = otlp_request(&self.source, batch, unix_clock_offset_ns()).to_string();
        let until = Instant::now() + RETRIED_FOR;
        loop {
            let Err(error) = self.endpoint.post(&body) else { return true };
            let (endpoint, now) = (&self.endpoint, RealHost.now());
            warn_if_due!(
                self.metrics.warnings.is_due(WarningCause::Spans, &endpoint.to_string(), now),
                "spans are not exported to {endpoint}: {error}; start the collector, or correct `otlp` of \
                 the region file"
            );
            let is_final = matches!(error, OtlpPostError::Refused(_)) || Instant::now() >= until;
            if is_final || self.is_ending.load(Ordering::Relaxed) {
                return false;
            }
            thread::park_timeout(*pause);
            *pause = (2 * *pause).min(RETRY_PAUSE_MAX);
        }
    }
}

/// Returns what is added to a time of the gateway's clock to make nanoseconds since 1970. It is asked for
/// each batch, since the system's clock may be set.
fn unix_clock_offset_ns() -> i128 {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::try_from(unix.as_nanos()).unwrap_or(i128::MAX) - i128::from(RealHost.now().ns())
}
