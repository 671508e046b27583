//! The model of a lane on a link whose rate is not known, or shared with others.
//!
//! It is sans-IO: the caller hands in sent, acknowledged and lost packets with their times, and reads
//! the congestion window and the pacing rate. It owns no clock, socket or randomness. The gateway runs
//! one [`LaneModel`] for each lane of a `shared` link, inside QUIC's controller, on the lane's thread.
//!
//! The model has three numbers: the **delivery rate** (greatest of the last rounds), the **min RTT**
//! (least of the last seconds) and the **bytes in flight**. Rate times min RTT is the BDP. A round is
//! the time until the acknowledgement of a packet that left after the round began.
//!
//! ```text
//!            capacity measured
//!  PACKET TRAINS --------------------------------------------------------> CRUISE
//!     ^     | no answers
//!     |     v   queue, or no growth in three rounds       in flight <= BDP, after a round
//!  STARTUP ------------------------------------> DRAIN --------------------------------+
//!     ^                                                                                |
//!     | 8 % more arrives,                                                              v
//!     | and no queue            6 to 10 rounds                in flight <= 0.95 BDP  CRUISE
//!  PROBE UP <------------------------------------ CRUISE <------ PROBE DOWN <-----------+
//!     |                                                             ^   a queue stands
//!     +-------------------------------------------------------------+
//!       a queue, or two rounds
//!
//!  CRUISE, PROBE DOWN -- min RTT not seen for 10 s --> PROBE RTT -- three rounds --> PROBE DOWN
//! ```
//!
//! | phase | pacing rate | congestion window |
//! |---|---|---|
//! | packet trains | as in startup, for small segments alone | as in startup |
//! | startup | 2 x window / min RTT | grows by each acknowledged byte |
//! | drain | delivery rate | 1 BDP |
//! | probe down | 0.75 x delivery rate | 1.25 BDP |
//! | cruise | delivery rate | 1.5 BDP and 2 ms (2.5 BDP and 2 ms beside rivals) |
//! | probe up | 1.15 x delivery rate | 1.5 BDP and 2 ms (2.5 BDP and 2 ms beside rivals) |
//! | probe RTT | delivery rate | 0.5 BDP |
//!
//! A *queue* stands when the RTT is above the min RTT by an eighth and 1 ms, or with an ECN mark. Two
//! rules follow from it:
//!
//! * **Rounds in which a queue stood all the time measure the capacity.** The better of two replaces what
//!   was known, and one of less than 0.6 of it at once. So a capacity that falls is answered in a few
//!   round trips. In any other round the rate can only rise: more may have been possible.
//! * **A queue that stands while the lane has drained its own is another's** ([`Rivals`]). A lane that
//!   went on yielding to it would starve. So beside rivals it keeps its place: no rate is replaced, and
//!   no queue ends a phase.
//!
//! A caller may measure the capacity of a new path by **packet trains** before there is data: several
//! packets back to back, whose arrivals the receiver times. The model then begins with that rate.
//!
//! Data goes both ways, and acknowledgements wait in the queue that the other direction leaves. So no rate
//! counts that is above the one at which its packets left, probes are small, and the pauses between them
//! differ at both ends. The acknowledgements of one round may also come in the next. So above the known
//! rate a round counts only as far as it and the round before delivered together.
//!
//! Loss never lowers the rate. A lost packet is judged by the RTT of its time ([`LossKind`]): with a
//! queue it was dropped by it, without it was random, and most bytes in flight at once are an outage.

mod lane_model;
mod loss_counts;
mod min_rtt;
mod phase;
mod rate_filter;
mod round;

pub use lane_model::{FoundPath, LaneModel, LaneTerms, RoundReport, Transition};
pub use loss_counts::{LossCounts, LossKind};
pub use phase::{Phase, PhaseReason, Rivals};
