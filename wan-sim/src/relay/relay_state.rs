//! The state that the relay's thread and its handle share, and the counters read from it.

use crate::recording::Recorder;
use crate::run_clock::RunClock;
use crate::{Change, Decided, EmulatedLink, FateCounters, Fidelity, Moved, Packet, PacketFates};
use units::{Span, TimeNs};

/// The counters of both links and of the relay itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayCounters {
    /// From the clients to the targets.
    pub forward: FateCounters,
    /// From the targets to the clients.
    pub backward: FateCounters,
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
    pub(super) links: [EmulatedLink; 2],
    /// The least round trip that the links ever had.
    pub(super) shortest_round_trip: Span,
    pub(super) own: OwnDrops,
    pub(super) fidelity: Fidelity,
    pub(super) recorder: Option<Recorder>,
    /// Packets in either direction's pipe that a change of the link moved.
    pub(super) moved: [Vec<Moved>; 2],
    /// Packets in either direction whose fate was decided before such a change.
    pub(super) decided: [Vec<Decided>; 2],
    pub(super) clock: RunClock,
}

impl RelayState {
    /// Offers a packet at `now` to the link with index `direction`, and records the fate.
    pub(super) fn offer(&mut self, direction: usize, now: TimeNs, packet: Packet) -> PacketFates {
        let offered = self.links[direction].offer(now, packet);
        if let Some(recorder) = &mut self.recorder {
            recorder.write_packet(direction, now, packet, &offered);
        }
        offered
    }

    /// Returns the fates that the link with index `direction` has decided by `now`, and records
    /// them. Those kept at a change of the link come first.
    pub(super) fn take_decided(&mut self, direction: usize, now: TimeNs) -> Vec<Decided> {
        let decided = self.links[direction].take_decided(now);
        if let Some(recorder) = &mut self.recorder {
            recorder.write_decided(direction, &decided);
        }
        let mut earlier = std::mem::take(&mut self.decided[direction]);
        earlier.extend(decided);
        earlier
    }

    /// Changes the link with index `link` now and records the change. Keeps, for the relay thread,
    /// the packets whose arrival time changed.
    pub(super) fn change_link(&mut self, link: usize, change: Change) {
        let now = self.clock.now();
        // The change moves some of them.
        self.decided[link] = self.take_decided(link, now);
        let emulated = &mut self.links[link];
        let moved = match change {
            Change::Spec(spec) => emulated.set_spec(now, spec),
            Change::Cut => {
                emulated.set_blackhole(true);
                Vec::new()
            }
            Change::Join => {
                emulated.set_blackhole(false);
                Vec::new()
            }
        };
        if let Some(recorder) = &mut self.recorder {
            recorder.write_change(link, now, change, &moved);
        }
        self.moved[link].extend(moved);
    }
}

/// 0: the index of the link from the clients to the targets, in arrays of both directions.
pub(super) const FORWARD_LINK: usize = 0;

/// 1: the index of the link from the targets to the clients, in arrays of both directions.
pub(super) const BACKWARD_LINK: usize = 1;

/// 4,096 flows (client addresses): the most that a relay has at a time, over all its forwards.
/// Packets of further clients are dropped and counted. The limit is chosen, since each flow has a
/// socket.
pub const FLOWS_MAX: usize = 4096;
