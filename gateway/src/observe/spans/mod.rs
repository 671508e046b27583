//! Spans of collectives for a collector of OpenTelemetry.
//!
//! The engine's task offers a record of each collective that has ended here. [`span_queue`] is bounded, and
//! nobody waits for it: a record that finds it full is dropped, and counted. A thread of `landbridge run`
//! takes records in batches, which [`otlp`] writes as JSON and [`otlp_endpoint`] posts.

pub mod otlp;
pub mod otlp_endpoint;
pub mod span_queue;

use hier_collectives::descriptor::Descriptor;
use hier_collectives::ids::{Epoch, GroupId, Sequence};
use hier_collectives::post::{Failure, Timing};
use ring::digest::{SHA256, digest};
use std::fmt;
use units::TimeNs;

/// A collective that has ended on this gateway.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectiveSpan {
    /// The trace that the gateways of the collective share.
    pub trace: SpanTrace,
    /// The job's name.
    pub job: String,
    /// The ranks of the group in words; `None` for the job itself.
    pub ranks: Option<String>,
    /// Operation, element type and shape as ranks posted them; `None` where none had.
    pub descriptor: Option<Descriptor>,
    /// The names of the gateways not all of whose ranks were known to have posted: when the last local
    /// rank had, or at the failure.
    pub awaited: Vec<String>,
    /// The time of the first post that became known here.
    pub begun: TimeNs,
    /// The time of its end.
    pub end: TimeNs,
    /// Its outcome.
    pub outcome: SpanOutcome,
}

/// The end of a collective on this gateway.
#[derive(Debug, Clone, PartialEq)]
pub enum SpanOutcome {
    /// All local ranks have the result, by these instants.
    Completed(Timing),
    /// It failed.
    Failed(Failure),
}

impl CollectiveSpan {
    /// Returns the number of its spans: the whole, and the phases of one that completed.
    pub fn count(&self) -> u64 {
        match self.outcome {
            SpanOutcome::Completed(_) => 5,
            SpanOutcome::Failed(_) => 1,
        }
    }
}

/// All that tells a collective from every other one, and that its gateways agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanTrace {
    /// The id of the group, which the job's name is part of.
    pub group: GroupId,
    /// Digest of the boot ids of the epoch's gateways: numbers begin anew once all were started again.
    pub boots: u64,
    /// The epoch.
    pub epoch: Epoch,
    /// The number of the collective in the job or group.
    pub sequence: Sequence,
}

impl SpanTrace {
    /// Returns the id of the trace.
    pub fn trace_id(&self) -> SpanTraceId {
        let numbers = [self.group.0, self.boots, self.epoch.0, self.sequence.0];
        SpanTraceId(first_span_digest_bytes(&[&numbers.map(u64::to_be_bytes).concat()]))
    }
}

/// The id of a trace: equal on all gateways of a collective, and of no other one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanTraceId([u8; 16]);

impl SpanTraceId {
    /// Returns the id of a span of the trace: of the gateway `gateway`, and of its part `part`, of which
    /// the whole collective is 0.
    pub fn span_id(self, gateway: &str, part: u8) -> SpanId {
        SpanId(first_span_digest_bytes(&[&self.0, &[part], gateway.as_bytes()]))
    }
}

/// The id of a span in its trace.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

/// Returns the first bytes of the SHA-256 of some texts in a row.
fn first_span_digest_bytes<const N: usize>(texts: &[&[u8]]) -> [u8; N] {
    let whole = digest(&SHA256, &texts.concat());
    std::array::from_fn(|at| whole.as_ref()[at])
}

impl fmt::Display for SpanTraceId {
    /// Prints 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanTraceId {
    /// Prints as [`fmt::Display`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for SpanId {
    /// Prints 16 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    /// Prints as [`fmt::Display`] does.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_differ_by_group_start_epoch_and_number() {
        let of = |group, boots, epoch, sequence| {
            let (group, epoch, sequence) = (GroupId(group), Epoch(epoch), Sequence(sequence));
            SpanTrace { group, boots, epoch, sequence }.trace_id()
        };
        let one = of(1, 2, 3, 4);
        assert_eq!(one, of(1, 2, 3, 4));
        for other in [of(9, 2, 3, 4), of(1, 9, 3, 4), of(1, 2, 9, 4), of(1, 2, 3, 9)] {
            assert_ne!(one, other);
        }
        assert_ne!(one.span_id("east-0", 0), one.span_id("east-0", 1));
        assert_ne!(one.span_id("east-0", 0), one.span_id("west-0", 0));
        assert_eq!((one.to_string().len(), one.span_id("east-0", 0).to_string().len()), (32, 16));
    }
}
