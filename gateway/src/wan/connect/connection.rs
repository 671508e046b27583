//! One connection of a lane: the handshake, then seven tasks in one select until the first of them ends.
//!
//! The dialler or the endpoint starts it on the lane's thread. It reports the lane to the engine
//! (`Event::LaneUp`, `Event::LaneDown`, `Event::DialFailed`).

use super::control_stream::{read_control, write_control};
use super::handshake::{MetPeer, Refusal, exchange_hellos};
use super::{liveness, path_probe};
use crate::admission::AdmissionSlot;
use crate::events::Event;
use crate::log_throttle::LogThrottle;
use crate::wan::congestion::tuner;
use crate::wan::error_code::{CLOSING, REFUSED};
use crate::wan::lane_handle::LaneHandle;
use crate::wan::spec::LaneSpec;
use crate::wan::stream::send_queue::TrafficClass;
use crate::wan::stream::{receiver, sender};
use hier_collectives::ids::GatewayId;
use quinn::Connection;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tracing::{info, warn};

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// A connection whose TLS handshake is done.
pub(super) struct EstablishedConnection {
    pub spec: Arc<LaneSpec>,
    pub lane: u16,
    pub connection: Connection,
    pub origin: Origin,
}

/// The end that has opened a connection.
pub(super) enum Origin {
    /// We dialled this peer, and TLS has proved its name.
    Dialled(GatewayId),
    /// A holder of a certificate of the CA dialled us. It keeps the slot until its hello is checked.
    Accepted(PendingSlot),
}

/// The admission slot of a connection without a checked hello. Each address of a peer counts by itself,
/// all other addresses together.
pub(super) type PendingSlot = AdmissionSlot<Option<IpAddr>>;

/// Serves a connection until it ends; returns whether its hello was accepted. `refusals` limits the log
/// lines about refused connections.
pub(super) async fn serve(established: EstablishedConnection, refusals: &LogThrottle) -> bool {
    let Some(met) = meet(&established).await else { return false };
    let EstablishedConnection { spec, lane, connection, origin } = established;
    match met {
        Ok(met) => {
            // The admission slot is free again.
            drop(origin);
            run(&spec, lane, connection, met).await;
            true
        }
        Err(refusal) => {
            let (why, from) = (refusal.to_string(), connection.remote_address());
            connection.close(REFUSED.into(), why.as_bytes());
            if let Some(suppressed) = refusals.permit(spec.host.now()) {
                warn!("lane {lane}: refused {from}: {why}{suppressed}");
            }
            if let Origin::Dialled(peer) = origin {
                let _ = spec.events.send(Event::DialFailed { peer, lane, why }).await;
            }
            false
        }
    }
}

/// Exchanges hellos; `None` for a path probe, which is answered instead.
async fn meet(established: &EstablishedConnection) -> Option<Result<MetPeer, Refusal>> {
    let EstablishedConnection { spec, lane, connection, origin } = established;
    match origin {
        Origin::Dialled(peer) => Some(exchange_hellos(spec, *lane, connection, Some(*peer)).await),
        Origin::Accepted(slot) => {
            let met = async {
                if path_probe::is_probe(connection) {
                    path_probe::answer(connection.clone()).await;
                    return None;
                }
                Some(exchange_hellos(spec, *lane, connection, None).await)
            };
            tokio::select! {
                biased;
                met = met => met,
                () = slot.revoked() => Some(Err(Refusal::Evicted)),
            }
        }
    }
}

/// Runs the tasks of a connection until one of them ends.
async fn run(spec: &Arc<LaneSpec>, lane: u16, connection: Connection, met: MetPeer) {
    let MetPeer { seen, control_in, control_out } = met;
    let Some(peer) = spec.peers.get(&seen.peer).cloned() else { return };
    let id = NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed);
    let (handle, control_queue) = LaneHandle::new(id, connection.clone());
    let (name, from) = (&spec.fabric.gateway(seen.peer).name, connection.remote_address());
    info!("lane {lane}: gateway {name} is up at {from}");
    if spec.events.send(Event::LaneUp { seen, handle }).await.is_err() {
        return;
    }
    let why = tokio::select! {
        biased;
        why = connection.closed() => why.to_string(),
        why = read_control(&spec.events, seen.peer, id, control_in) => why,
        why = write_control(control_out, control_queue) => why,
        why = liveness::monitor(&*spec.host, &connection, &peer.liveness) => why,
        why = tuner::tune(spec, &peer, &connection) => why,
        why = receiver::receive_all(spec, seen.peer, id, &connection) => why,
        why = sender::send_all(spec, &peer, id, &connection, TrafficClass::Small) => why,
        why = sender::send_all(spec, &peer, id, &connection, TrafficClass::Bulk) => why,
    };
    connection.close(CLOSING.into(), why.as_bytes());
    let _ = spec.events.send(Event::LaneDown { peer: seen.peer, lane, id, why }).await;
}
