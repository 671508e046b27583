//! The phases of a lane, their gains, and the transitions between them.

/// A phase of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The rate doubles each round trip, until a queue stands or no more arrives.
    Startup,
    /// Trains of packets measure the capacity before there is data.
    PacketTrains,
    /// The queue that the start left empties.
    Drain,
    /// The lane's own queue empties.
    ProbeDown,
    /// The lane sends at its delivery rate.
    Cruise,
    /// The lane sends more, to see whether more arrives.
    ProbeUp,
    /// The lane sends half, to see the RTT without a queue.
    ProbeRtt,
}

/// Whether others seem to fill the queue of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rivals {
    /// No queue stands while the lane has drained its own.
    Absent,
    /// A queue stood while the lane had drained its own, in one of the last 24 rounds.
    Present,
}

/// The reason for a transition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhaseReason {
    /// A queue stands before the link.
    Queue,
    /// The delivery rate grew no more.
    NoGrowth,
    /// The path is new, and packets may leave before there is data.
    NewPath,
    /// Packet trains have measured the capacity.
    CapacityMeasured,
    /// Too few packet trains were answered to measure the capacity.
    TrainsUnanswered,
    /// The delivery rate grew, and no queue stands.
    Growth,
    /// No more is in flight than the phase is to leave.
    Drained,
    /// The rounds of the phase have passed.
    RoundsPassed,
    /// The min RTT was not seen for a while.
    RttUnseen,
}

impl Phase {
    /// Returns the name of the phase in logs, status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Startup => "startup",
            Self::PacketTrains => "packet-trains",
            Self::Drain => "drain",
            Self::ProbeDown => "probe-down",
            Self::Cruise => "cruise",
            Self::ProbeUp => "probe-up",
            Self::ProbeRtt => "probe-rtt",
        }
    }

    /// Returns whether a lane may go from this phase to `next`.
    pub const fn may_lead_to(self, next: Self) -> bool {
        match self {
            Self::Startup => matches!(next, Self::Drain | Self::PacketTrains),
            Self::PacketTrains => matches!(next, Self::Cruise | Self::Startup),
            Self::Drain => matches!(next, Self::Cruise),
            Self::Cruise => matches!(next, Self::ProbeUp | Self::ProbeDown | Self::ProbeRtt),
            Self::ProbeUp => matches!(next, Self::ProbeDown | Self::Startup),
            Self::ProbeDown => matches!(next, Self::Cruise | Self::ProbeRtt),
            Self::ProbeRtt => matches!(next, Self::ProbeDown),
        }
    }

    /// Returns the factor on the delivery rate at which the lane sends. Startup and packet trains
    /// have a rate of their own.
    pub(crate) const fn pacing_gain(self) -> f64 {
        match self {
            Self::ProbeUp => PROBE_UP_GAIN,
            Self::ProbeDown => PROBE_DOWN_GAIN,
            _ => 1.0,
        }
    }

    /// Returns the bytes in flight, as a part of the BDP, at which a lane in a draining phase has
    /// drained its queue.
    pub(crate) const fn drained_gain(self) -> f64 {
        match self {
            Self::Drain => 1.0,
            _ => DRAINED_BDP_FRACTION,
        }
    }

    /// Returns the factor on the BDP in the congestion window. Startup and
    /// packet trains have a window of their own.
    pub(crate) const fn window_gain(self, rivals: Rivals) -> f64 {
        match (self, rivals) {
            (Self::Drain, _) => 1.0,
            (Self::ProbeDown, _) => PROBE_DOWN_WINDOW_GAIN,
            (Self::ProbeRtt, _) => PROBE_RTT_WINDOW_GAIN,
            (_, Rivals::Absent) => WINDOW_GAIN,
            (_, Rivals::Present) => RIVALS_WINDOW_GAIN,
        }
    }
}

impl PhaseReason {
    /// Returns the reason in words, for logs.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Queue => "a queue stands before the link",
            Self::NoGrowth => "no more arrives",
            Self::NewPath => "the path is new",
            Self::CapacityMeasured => "packet trains have measured the capacity",
            Self::TrainsUnanswered => "too few packet trains were answered",
            Self::Growth => "more arrives, and no queue stands",
            Self::Drained => "the queue is drained",
            Self::RoundsPassed => "its round trips have passed",
            Self::RttUnseen => "the least RTT was not seen for a while",
        }
    }
}

/// 1.15 times its delivery rate: the pace of a lane that probes whether more arrives. A higher pace
/// would delay the acknowledgements of the other direction: with 1.25, both ways together carried
/// 2 % less.
/// Tested by `data_both_ways_costs_little`.
const PROBE_UP_GAIN: f64 = 1.15;
/// 0.75 times its delivery rate: the pace of a lane that drains a queue. The queue of a probe is
/// gone in less than the two round trips that made it.
const PROBE_DOWN_GAIN: f64 = 0.75;
/// 1.25 BDP: the congestion window of a lane that drains a queue. A queue of more than a quarter of
/// a BDP stops the lane. The queue of a peer's probe, in which acknowledgements wait, does not.
const PROBE_DOWN_WINDOW_GAIN: f64 = 1.25;
/// 0.95 BDP: once no more bytes are in flight, a lane that drains a queue has drained it, and
/// cruises. The fraction is chosen, since the lane's rate may be a little too high.
const DRAINED_BDP_FRACTION: f64 = 0.95;
/// 0.5 BDP: the congestion window of a lane that measures the RTT without a queue. Rivals of the
/// same kind drain as well, and the measurement costs half a round trip in 10 s.
const PROBE_RTT_WINDOW_GAIN: f64 = 0.5;
/// 1.5 BDP: the congestion window of a lane without rivals that cruises or probes for more rate.
/// Half a BDP is for the probe's queue, and for acknowledgements that come late.
const WINDOW_GAIN: f64 = 1.5;
/// 2.5 BDP: the congestion window of a lane that cruises or probes beside rivals, other flows that
/// fill the queue. A sender leaves a part of the window unused, since it waits until a whole write
/// fits. With less, a lane loses its share to BBR.
/// Tested by `a_lane_holds_its_own_beside_cubic_and_bbr`.
const RIVALS_WINDOW_GAIN: f64 = 2.5;
