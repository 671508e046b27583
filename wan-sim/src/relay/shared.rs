//! The state that the relay's thread and its handle share, and the counters read from it.

use crate::clock::RunClock;
use crate::recording::Recorder;
use crate::{Change, Counters, Fidelity, FidelityLimits, Link, Moved, Offered, Packet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use units::{Span, TimeNs};

/// The counters of both links and of the relay itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayCounters {
    /// From the clients to the targets.
    pub forward: Counters,
    /// From the targets to the clients.
    pub backward: Counters,
    /// Packets that the relay lost by itself, outside the links.
    pub own: OwnDrops,
}

/// Packets that the relay could not handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OwnDrops {
    /// Packets that came faster than they were read, and did not fit the socket.
    pub overflowed: u64,
    /// Packets of new clients above [`FLOWS_MAX`], or for which no socket could be had.
    pub no_flow: u64,
    /// Packets that the kernel did not take.
    pub send_errors: u64,
    /// Packets from others than the target.
    pub foreign: u64,
}

/// The state that the relay's thread and its handle share.
#[derive(Debug)]
pub(super) struct RelayState {
    pub(super) links: [Link; 2],
    /// The least round trip that the links ever had.
    pub(super) shortest_round_trip: Span,
    pub(super) own: OwnDrops,
    pub(super) fidelity: Fidelity,
    pub(super) recorder: Option<Recorder>,
    /// Packets in either direction's pipe that a change of the link moved.
    pub(super) moved: [Vec<Moved>; 2],
    pub(super) clock: RunClock,
}

impl RelayState {
    pub(super) fn offer(&mut self, direction: usize, now: TimeNs, packet: Packet) -> Offered {
        let offered = self.links[direction].offer(now, packet);
        if let Some(recorder) = &mut self.recorder {
            recorder.offered(direction, now, packet, &offered);
        }
        offered
    }

    pub(super) fn change(&mut self, direction: usize, change: Change) {
        let now = self.clock.now();
        let link = &mut self.links[direction];
        let moved = match change {
            Change::Spec(spec) => link.set_spec(now, spec),
            Change::Cut => {
                link.set_blackhole(true);
                Vec::new()
            }
            Change::Join => {
                link.set_blackhole(false);
                Vec::new()
            }
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.change(direction, now, change, &moved);
        }
        self.moved[direction].extend(moved);
    }
}

pub(super) fn lock(shared: &Mutex<RelayState>) -> MutexGuard<'_, RelayState> {
    // A panic elsewhere leaves no half-made change: each is one step.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The limits that decide whether a read gap counts.
pub(super) const LIMITS: FidelityLimits = FidelityLimits::DEFAULT;

/// Places of the two directions.
pub(super) const FORWARD: usize = 0;

/// Index of the direction from the targets to the clients.
pub(super) const BACKWARD: usize = 1;

/// Most client addresses served at once, over all forwards.
pub const FLOWS_MAX: usize = 4096;
