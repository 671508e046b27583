//! Congestion control: four nested control loops over a `dedicated` link, whose rate is known, and a
//! model of each lane over a `shared` one.
//!
//! A pacer keeps each pair of gateways below its share of the link, so random loss does not count as
//! congestion. On top of it a lane's congestion window follows what the lane delivers, and the pair's
//! rate limit follows what the link delivers.
//!
//! ```text
//! every ACK and loss (inside quinn, lane thread)                                       LOOP 4: loss debt
//!   quinn -> LaneController (lane_controller.rs) -> LinkShareController (link_share_controller.rs)
//!              | counts ACKs, min RTT                | loss beyond the configured loss
//!              v                                     v
//!            LaneTelemetry (lane_telemetry.rs)          InFlight::note_excess_loss (in_flight.rs)
//!                                                 -> tuner -> Pacer::charge_debt (pacing/pacer.rs)
//!
//! every write (sender task, stream/segment_sender.rs)                                          TWO GATES
//!   segment -> Pacer::take_tokens (pacing/pacer.rs)     gate 1: rate limit, in order of the pulls
//!           -> InFlight::wait_for_space (in_flight.rs)  gate 2: congestion window, above QUIC
//!           -> LaneTelemetry::wait_for_pace (lane_telemetry.rs)      after congestion: the lane's pace
//!           -> quinn stream
//!
//! every round trip with traffic (tuner task of a lane, lane_tuner.rs)
//!   LaneCounters -> DeliveryRate::end_round (delivery_rate.rs)                         LOOP 1: lane rate
//!                     -> rate, gain, pace, ECN fraction, loss
//!   min RTT      -> MinRttFilter::end_round (min_rtt_filter.rs)                        LOOP 2: min RTT
//!                     -> min RTT, draining
//!   LanePath::windows (lane_path.rs)
//!     congestion window = max(rate x (gain x min RTT + slack), 256 KiB)
//!                         x ECN fraction x (0.75 while draining)
//!
//! every 100 ms with traffic (engine task, engine/engine_links.rs)                      LOOP 3: link
//!   LinkTraffic of all lanes, min RTT -> LinkCapacity::observe (link/capacity/)
//!                     -> limit, reduced capacity, min RTT, inflated RTT, random loss
//!   LinkLimits::effective_limit (link/link_limits.rs): operator, schedule, fabric
//!     the lower of both -> PairPacer::set_link_limit (pacing/pair_pacer.rs) -> Pacer::set_rate
//!                       -> tuner: DeliveryRate::set_assumed_rate
//!   LinkLimits::report_change: significant changes -> first gateway -> new plan
//!   inflated RTT -> straggler detection
//!
//! every second (engine task, engine/peers/traffic.rs)
//!   LossAlarm::add_sample (link/loss_alarm.rs) -> log and metrics only
//! ```
//!
//! The loops meet in eight places:
//!
//! 1. ECN fraction and draining multiply the same congestion window.
//! 2. `DeliveryRate::is_window_limited` decides whether `MinRttFilter` may drain.
//! 3. A new link limit changes each lane's assumed rate, and `DeliveryRate` ignores two rounds.
//! 4. Excess loss delays the pacer, which lowers the delivery rates that `LinkCapacity` measures.
//! 5. Losing most of the bytes in flight at once means an outage for `DeliveryRate`, and the
//!    retransmission window for `LinkShareController`.
//! 6. A capacity probe raises the limit of all lanes to the peer.
//! 7. `CONGESTION_LOSS_FRACTION` is shared by `DeliveryRate` and `LinkCapacity`.
//! 8. The pace of a congested lane limits the delivery rates that `LinkCapacity` measures.
//!
//! On a `shared` link the crate `congestion-model` takes the place of loops 1 and 2. It runs in the
//! controller, and sets the same two gates. Loop 3 only adds up the rates that lanes have found:
//!
//! ```text
//!   quinn -> LaneController -> SharedLane (shared_lane.rs) -> LaneModel
//!                                -> InFlight::set_window, LaneTelemetry::set_pace
//!                                -> PathMemory: what new lanes begin with
//!                                -> LinkCapacity::set_found (by way of the lane's handle)
//! ```
//!
//! An RTT counts as longer at four thresholds: 5 % (`MinRttFilter`), 20 % and 1 ms (a queue for
//! `LinkCapacity`), 50 % and 10 ms (inflated), 20 % and 2 ms (a report of `LinkLimits`).

pub(crate) mod delivery_rate;
pub(crate) mod in_flight;
pub(crate) mod lane_controller;
pub(crate) mod lane_path;
pub(crate) mod lane_telemetry;
pub(crate) mod lane_tuner;
pub(crate) mod lane_windows;
pub(crate) mod link_share_controller;
pub(crate) mod min_rtt_filter;
mod path_memory;
mod shared_lane;

pub use path_memory::PathMemory;
pub use shared_lane::SharedLaneView;
