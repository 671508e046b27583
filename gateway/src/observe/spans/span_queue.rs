//! The queue of spans: from the engine's task to the thread that exports them.

use super::CollectiveSpan;
use prometheus_client::metrics::counter::Counter;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// 4,096 collectives, about 2 MB, or 5 MB if all failed with long reasons: the most that wait for the exporter. One that finds the queue full is
/// dropped, and counted. Tested by `a_full_span_queue_drops_and_counts`.
const SPAN_QUEUE_MAX: usize = 4096;

/// The writing end of the queue, or none.
#[derive(Debug, Clone, Default)]
pub struct SpanSink(Option<SpanSinkEnd>);

#[derive(Debug, Clone)]
struct SpanSinkEnd {
    queue: SyncSender<CollectiveSpan>,
    dropped: Counter,
}

/// The reading end of the queue.
#[derive(Debug)]
pub struct SpanReader(Receiver<CollectiveSpan>);

impl SpanSink {
    /// Makes the two ends of a queue. `dropped` counts the spans of what finds it full.
    pub fn with_reader(dropped: Counter) -> (Self, SpanReader) {
        let (queue, spans) = sync_channel(SPAN_QUEUE_MAX);
        (Self(Some(SpanSinkEnd { queue, dropped })), SpanReader(spans))
    }

    /// Hands a collective to the exporter, or counts its spans as dropped. Calls `make` only if there is
    /// an exporter.
    pub(crate) fn offer(&self, make: impl FnOnce() -> CollectiveSpan) {
        let Some(end) = &self.0 else { return };
        let one = make();
        let count = one.count();
        if end.queue.try_send(one).is_err() {
            end.dropped.inc_by(count);
        }
    }
}

impl SpanReader {
    /// Waits for a collective, and then up to `gather` for more, until there are `most`. Returns `None`
    /// once the queue is empty and nobody writes to it any more.
    pub fn next_batch(&self, most: usize, gather: Duration) -> Option<Vec<CollectiveSpan>> {
        let mut batch = vec![self.0.recv().ok()?];
        let until = Instant::now() + gather;
        while batch.len() < most {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(next) = self.0.recv_timeout(left) else { break };
            batch.push(next);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::super::otlp::tests::completed;
    use super::*;

    #[test]
    fn a_full_span_queue_drops_and_counts() {
        let dropped = Counter::default();
        let (sink, reader) = SpanSink::with_reader(dropped.clone());
        for sequence in 0..SPAN_QUEUE_MAX as u64 + 5 {
            sink.offer(|| completed(sequence));
        }
        assert_eq!(dropped.get(), 5 * completed(0).count());
        let batch = || reader.next_batch(3000, Duration::ZERO);
        assert_eq!(batch().expect("a queue").len(), 3000);
        let rest = batch().expect("a queue");
        assert_eq!((rest.len(), rest[0].trace.sequence.0), (SPAN_QUEUE_MAX - 3000, 3000));
        drop(sink);
        assert_eq!(batch(), None);
    }

    #[test]
    fn no_exporter_costs_no_record() {
        SpanSink::default().offer(|| unreachable!("no exporter"));
    }
}
