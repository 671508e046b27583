//! The segments of a buffer, joined again where they arrive together.

use super::frame::FrameDamage;
use crate::{Delivery, PacketFates};
use units::{Span, TimeNs};

/// A buffer's segments, joined again where they arrive together.
pub(super) struct SegmentRuns {
    pub(super) done: Vec<SegmentRun>,
    pub(super) last: Option<SegmentRun>,
    /// A port follows, which each segment meets at its own time.
    pub(super) before_port: bool,
}

impl SegmentRuns {
    /// Makes an empty list of runs; `before_port` says that the segments meet an ingress port next.
    pub(super) fn new(before_port: bool) -> Self {
        Self { done: Vec::new(), last: None, before_port }
    }

    /// Removes and returns the only run, if it holds all `segments` of the buffer, undamaged.
    pub(super) fn take_whole(&mut self, segments: usize) -> Option<SegmentRun> {
        let whole = |run: &mut SegmentRun| {
            run.start == 0 && run.end == segments && run.damage == FrameDamage::default()
        };
        if self.done.is_empty() { self.last.take_if(whole) } else { None }
    }

    /// Adds the arrivals of a segment and of its copy: to the last run where they fit, else as runs
    /// of their own.
    pub(super) fn add_segment(&mut self, segment: usize, offered: PacketFates) {
        for (name, Delivery { at, marked, corrupt_bit }) in offered.deliveries() {
            let damage = FrameDamage { marked: marked.is_some(), corrupt_bit };
            let at_port = if self.before_port { vec![at] } else { Vec::new() };
            match &mut self.last {
                Some(run) if !name.copy && run.can_append(segment, damage, at) => {
                    run.end = segment + 1;
                    run.due = at;
                    run.at_port.extend(at_port);
                }
                _ => {
                    let (start, end, first_due, due) = (segment, segment + 1, at, at);
                    let run = SegmentRun { start, end, damage, first_due, due, at_port };
                    if name.copy {
                        self.done.push(run);
                    } else {
                        self.done.extend(self.last.replace(run));
                    }
                }
            }
        }
    }
}

/// Neighbouring segments of a buffer that met the same and arrive close together.
pub(super) struct SegmentRun {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) damage: FrameDamage,
    pub(super) first_due: TimeNs,
    pub(super) due: TimeNs,
    pub(super) at_port: Vec<TimeNs>,
}

impl SegmentRun {
    /// Returns whether a segment with this damage that arrives at `at` fits at the end of the run.
    /// It must follow the last segment with equal damage, without a flipped bit, and within 100 us
    /// of the first.
    pub(super) fn can_append(&self, segment: usize, damage: FrameDamage, at: TimeNs) -> bool {
        self.end == segment
            && self.damage == damage
            && damage.corrupt_bit.is_none()
            && at >= self.due
            && at.since(self.first_due) <= SEGMENT_RUN_SPAN_MAX
    }
}

/// 100 us: segments of one TUN buffer leave in one write if the last is due at most this long after
/// the first. The write is made when the last is due. The time is chosen: a write for each would
/// cost too much.
pub(super) const SEGMENT_RUN_SPAN_MAX: Span = Span::from_ns(100_000);
