//! One connection of a lane: the handshake, then its tasks in one select until the first of them
//! ends.
//!
//! The dialler or the endpoint starts it on the lane's thread. It reports the lane to the engine
//! (`Event::LaneUp`, `Event::LaneFinished`, `Event::LaneDown`, `Event::DialFailed`).

use super::control_stream::{read_control_stream_messages, write_control_stream_messages};
use super::handshake::{
    HelloRefusal, MetPeer, exchange_handshake_hellos, identify_peer_of_refused_handshake,
};
use super::{liveness, path_probe};
use crate::admission::AdmissionSlot;
use crate::events::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::congestion::lane_tuner;
use crate::wan::error_code::{CONNECTION_CLOSING_CODE, LANE_RETIRED_CODE, PEER_REFUSED_CODE};
use crate::wan::lane_handle::LaneHandle;
use crate::wan::lane_spec::LaneSpec;
use crate::wan::stream::segment_queue::QueuedSegmentClass;
use crate::wan::stream::{packet_train, segment_receiver, segment_sender};
use hier_collectives::ids::GatewayId;
use quinn::{Connection, ConnectionError};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::info;

/// The id that the next QUIC connection of a lane gets, beginning with 1. The engine tells
/// connections apart by these ids, which are unique in a process.
static NEXT_CONNECTION_ID: AtomicU64 = AtomicU64::new(1);
/// The reason that a peer gets, for its log, when this gateway closes a lane that neither end
/// needs.
const LANE_RETIRED_REASON: &[u8] = b"the lane is not needed";

/// A connection whose TLS handshake is done.
pub(super) struct EstablishedConnection {
    pub spec: Arc<LaneSpec>,
    pub lane: u16,
    pub connection: Connection,
    pub origin: ConnectionOrigin,
}

/// The end that has opened a connection.
pub(super) enum ConnectionOrigin {
    /// We dialled this peer, and TLS has proved its name.
    Dialled(GatewayId),
    /// A holder of a certificate of the CA dialled us. It keeps the slot until its hello is
    /// checked.
    Accepted(PendingSlot),
}

/// The admission slot of a connection without a checked hello. Each address of a peer counts by
/// itself, all other addresses together and then each.
pub(super) type PendingSlot = AdmissionSlot<Option<IpAddr>, IpAddr>;

/// Serves a lane's connection until it ends; returns whether its hello was accepted. `refusals`
/// limits the log lines about refused connections.
pub(super) async fn serve_lane_connection(
    established: EstablishedConnection,
    refusals: &LogThrottle,
) -> bool {
    let Some(met) = meet_peer_of_lane_connection(&established).await else { return false };
    let EstablishedConnection { spec, lane, connection, origin } = established;
    match met {
        Ok(met) => {
            let dials = matches!(origin, ConnectionOrigin::Dialled(_));
            // The admission slot is free again.
            drop(origin);
            run_lane_connection_tasks(&spec, connection, met, dials).await;
            true
        }
        Err(refusal) => {
            let (why, from) = (refusal.to_string(), connection.remote_address());
            let known = identify_peer_of_refused_handshake(&spec, &connection);
            connection.close(PEER_REFUSED_CODE.into(), why.as_bytes());
            if let Some(suppressed) = refusals.permit(spec.host.now()) {
                // One of a gateway is a problem of its peer, which is warned of if it lasts.
                info!(
                    lane,
                    address = %from,
                    "lane {lane}: refused {from}: {why}{suppressed}"
                );
            }
            match (origin, known) {
                (ConnectionOrigin::Dialled(peer), _) => {
                    let event = Event::DialFailed { peer, lane, why, is_unanswered: false };
                    let _ = spec.events.send(event).await;
                }
                // Who is refused makes nobody wait for a full queue.
                (ConnectionOrigin::Accepted(_), Some(peer)) => {
                    let _ = spec.events.try_send(Event::LaneRefused { peer, lane, why });
                }
                (ConnectionOrigin::Accepted(_), None) => {}
            }
            false
        }
    }
}

/// Exchanges hellos with the peer. A path probe is answered and gives `None`; a connection that
/// loses its slot meanwhile gives `Evicted`.
async fn meet_peer_of_lane_connection(
    established: &EstablishedConnection,
) -> Option<Result<MetPeer, HelloRefusal>> {
    let EstablishedConnection { spec, lane, connection, origin } = established;
    match origin {
        ConnectionOrigin::Dialled(peer) => {
            Some(exchange_handshake_hellos(spec, *lane, connection, Some(*peer)).await)
        }
        ConnectionOrigin::Accepted(slot) => {
            let met = async {
                if path_probe::is_path_probe(connection) {
                    path_probe::answer_path_probe(connection.clone()).await;
                    return None;
                }
                Some(exchange_handshake_hellos(spec, *lane, connection, None).await)
            };
            tokio::select! {
                biased;
                met = met => met,
                () = slot.wait_for_revocation() => Some(Err(HelloRefusal::Evicted)),
            }
        }
    }
}

/// Reports a lane to the engine, and runs the tasks of its connection until one of them ends. Then
/// closes the connection and reports the lane's end. `dials` says whether this gateway has dialled
/// it, and so sends its keep-alives and closes it when it is not needed.
async fn run_lane_connection_tasks(
    spec: &Arc<LaneSpec>,
    connection: Connection,
    met: MetPeer,
    dials: bool,
) {
    let MetPeer { seen, control_in, control_out } = met;
    let Some(peer) = spec.peers.get(&seen.peer).cloned() else { return };
    let lane = seen.lane;
    let id = NEXT_CONNECTION_ID.fetch_add(1, Ordering::Relaxed);
    let (handle, control_queue) = LaneHandle::new(id, connection.clone());
    let (name, from) = (&spec.fabric.gateway(seen.peer).name, connection.remote_address());
    let region = &spec.fabric.region(spec.fabric.gateway(seen.peer).region).name;
    info!(
        peer = %name,
        region = %region,
        lane,
        address = %from,
        "lane {lane}: gateway {name} is up at {from}"
    );
    if spec.events.send(Event::LaneUp { seen, handle }).await.is_err() {
        return;
    }
    let (host, rtt) = (&*spec.host, peer.link().rtt);
    let mut read = pin!(read_control_stream_messages(&spec.events, seen.peer, id, control_in));
    let mut is_read = false;
    let control = async {
        let read = async {
            let ended = read.as_mut().await;
            is_read = true;
            ended
        };
        let write = write_control_stream_messages(control_out, control_queue);
        let write = spec.control_writers.track_future(write);
        match tokio::try_join!(read, write) {
            // Both ends have sent all. Only the dialler closes, so that one end's word is enough.
            Ok(_) if dials => connection.close(LANE_RETIRED_CODE.into(), LANE_RETIRED_REASON),
            Ok(_) => {}
            Err(error) => {
                let why = error.to_string();
                connection.close(error.close_code().into(), why.as_bytes());
                return why;
            }
        }
        connection.closed().await.to_string()
    };
    let why = tokio::select! {
        biased;
        why = connection.closed() => {
            if why == ConnectionError::TimedOut {
                peer.liveness.note_silent_end(host.now());
            }
            why.to_string()
        }
        why = control => why,
        why = liveness::monitor_liveness(host, &connection, &peer.liveness, rtt, dials) => why,
        why = lane_tuner::tune_lane(spec, (&peer, lane), &connection) => why,
        why = segment_receiver::receive_segments(spec, seen.peer, id, &connection) => why,
        why = segment_sender::send_segments(spec, &peer, id, &connection, QueuedSegmentClass::Small) => why,
        why = async {
            packet_train::measure_capacity_by_trains(spec, &peer, &connection).await;
            segment_sender::send_segments(spec, &peer, id, &connection, QueuedSegmentClass::Bulk).await
        } => why,
    };
    connection.close(CONNECTION_CLOSING_CODE.into(), why.as_bytes());
    if !is_read {
        // The peer's last messages say why it closed the connection. The stream ends with the
        // connection, so this does not wait.
        let _ = read.await;
    }
    let _ = spec.events.send(Event::LaneDown { peer: seen.peer, lane, id, why }).await;
}
