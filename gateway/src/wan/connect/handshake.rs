//! The handshake above TLS: both ends send a hello and check the other's.
//!
//! It runs in the connection's task, before the engine knows the lane. A hello is the first frame of the
//! control stream.

use super::control_stream::{
    frame_control_stream_message, prioritize_control_stream, read_control_stream_frame,
};
use super::peer_addresses::PeerLocation;
use super::tls;
use crate::wan::lane_handle::LanePeerSeen;
use crate::wan::lane_spec::LaneSpec;
use hier_collectives::ids::GatewayId;
use hier_collectives::plan;
use hier_collectives::wire::{Hello, HelloError, NoCommonWireVersion};
use quinn::{Connection, RecvStream, SendStream};
use rustls::pki_types::CertificateDer;
use units::Span;

/// 10 s: the least time limit of each step of a handshake between gateways (dial, TLS, hello), so
/// that a busy host answers in time. handshake timeout = max(10 RTT of the fabric, 10 s). A step
/// that takes longer fails.
const HANDSHAKE_TIMEOUT_MIN: Span = Span::from_secs(10);
/// 10 round trips: the time limit of each step of a handshake between gateways where that is more
/// than 10 s; a step that takes longer fails. QUIC sends lost packets of a handshake again after 3
/// and 9 round trips.
/// Tested by `gateways_meet_over_a_round_trip_of_a_minute`.
const HANDSHAKE_ROUND_TRIPS: u64 = 10;

/// Returns how long a gateway waits for each step of a handshake over a path of this round trip.
pub(super) fn handshake_timeout(rtt: Span) -> Span {
    Span::from_ns(rtt.ns().saturating_mul(HANDSHAKE_ROUND_TRIPS)).max(HANDSHAKE_TIMEOUT_MIN)
}

/// A peer that has proved its identity, with the control streams.
pub(super) struct MetPeer {
    /// The peer.
    pub seen: LanePeerSeen,
    /// Its control messages.
    pub control_in: RecvStream,
    /// Our control messages.
    pub control_out: SendStream,
}

/// The reason why a peer was refused.
#[derive(Debug, thiserror::Error)]
pub(super) enum HelloRefusal {
    #[error("no hello: {0}")]
    NoHello(String),
    #[error("{0}")]
    Versions(String),
    #[error(
        "its fabric differs from ours; the fabric files must agree on names, ranks, quorum, MTU, WAN \
         ports and links: `landbridge check` prints their `identity` at each gateway"
    )]
    Fabric,
    #[error("gateway `{0}` is not one of the fabric's peers")]
    Unknown(String),
    #[error("it claims to be `{0}`, which is not the gateway that we dialled")]
    NotDialled(String),
    #[error(
        "its lane {theirs} met our lane {ours}: the addresses in the fabric files do not match, or one \
         has fewer lanes"
    )]
    Lane { theirs: u16, ours: u16 },
    #[error(transparent)]
    Identity(#[from] tls::IdentityError),
    #[error("too many connections have not sent a hello yet; try again")]
    Evicted,
}

/// Sends a hello, and checks the peer's; refuses a peer whose hello is not there within
/// [`handshake_timeout`]. `dialled` is the peer that we dialled; `None` on an accepted connection.
pub(super) async fn exchange_handshake_hellos(
    spec: &LaneSpec,
    lane: u16,
    connection: &Connection,
    dialled: Option<GatewayId>,
) -> Result<MetPeer, HelloRefusal> {
    // An accepted connection may be of any peer.
    let rtt = dialled.and_then(|peer| spec.peers.get(&peer)).map(|peer| peer.link().rtt);
    let patience = handshake_timeout(rtt.unwrap_or(spec.longest_rtt()));
    tokio::select! {
        biased;
        met = exchange_handshake_hellos_unlimited(spec, lane, connection, dialled) => met,
        () = spec.host.sleep_until(spec.host.now() + patience) => {
            Err(HelloRefusal::NoHello(format!("timed out after {patience}")))
        }
    }
}

/// Opens the control streams, sends a hello, and checks the peer's hello and certificate. It waits
/// without a limit.
async fn exchange_handshake_hellos_unlimited(
    spec: &LaneSpec,
    lane: u16,
    connection: &Connection,
    dialled: Option<GatewayId>,
) -> Result<MetPeer, HelloRefusal> {
    let no_hello = |error: String| HelloRefusal::NoHello(error);
    let opened = connection.open_uni().await;
    let mut control_out =
        opened.map_err(|error| no_hello(tls::explain_connection_alert(&error)))?;
    prioritize_control_stream(&control_out);
    let hello = Hello {
        versions: spec.versions,
        fabric: spec.identity,
        gateway: spec.fabric.gateway(spec.me).name.clone(),
        boot: spec.boot,
        lane,
    };
    let framed = frame_control_stream_message(&hello.encode());
    control_out.write_all(&framed).await.map_err(|error| no_hello(error.to_string()))?;
    let accepted = connection.accept_uni().await;
    let mut control_in =
        accepted.map_err(|error| no_hello(tls::explain_connection_alert(&error)))?;
    let frame = read_control_stream_frame(&mut control_in, Hello::BYTES_MAX).await;
    let frame = frame.map_err(|error| no_hello(error.to_string()))?;
    let bytes = frame.ok_or_else(|| no_hello("the stream ended".to_owned()))?;
    let (hello, version) = Hello::decode(&bytes, spec.versions).map_err(|error| match error {
        HelloError::Malformed(error) => no_hello(error.to_string()),
        HelloError::Versions(apart) => {
            let peer = dialled.or_else(|| identify_peer_of_refused_handshake(spec, connection));
            HelloRefusal::Versions(describe_handshake_versions_apart(spec, peer, apart))
        }
    })?;
    let (peer, lane) = check_handshake_hello(spec, lane, &hello, dialled)?;
    let chain = peer_handshake_certificates(connection);
    tls::check_gateway_identity(&chain, &hello.gateway, spec.fabric.name())?;
    let seen = LanePeerSeen { peer, boot: hello.boot, lane, version };
    Ok(MetPeer { seen, control_in, control_out })
}

/// Returns the peer of a connection that was refused, by the name in its certificate or by its
/// address; `None` for an unknown one.
pub(super) fn identify_peer_of_refused_handshake(
    spec: &LaneSpec,
    connection: &Connection,
) -> Option<GatewayId> {
    let chain = peer_handshake_certificates(connection);
    let has_name = |id: &GatewayId| {
        let name = &spec.fabric.gateway(*id).name;
        tls::check_gateway_identity(&chain, name, spec.fabric.name()).is_ok()
    };
    let named = spec.peers.keys().copied().find(has_name);
    named.or_else(|| spec.peer_at(connection.remote_address().ip()))
}

/// Returns the certificates that the peer of a connection has presented, its own first.
fn peer_handshake_certificates(connection: &Connection) -> Vec<CertificateDer<'static>> {
    let chain = connection.peer_identity();
    let chain = chain.and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
    chain.map(|chain| *chain).unwrap_or_default()
}

/// Says which versions two gateways speak that have none in common, the older program first. Both ends
/// say the same.
fn describe_handshake_versions_apart(
    spec: &LaneSpec,
    peer: Option<GatewayId>,
    apart: NoCommonWireVersion,
) -> String {
    let name = |id: GatewayId| format!("gateway {}", spec.fabric.gateway(id).name);
    let own = (name(spec.me), apart.own);
    let peer = (peer.map_or_else(|| "its peer".to_owned(), name), apart.theirs);
    let ((older, old), (newer, new)) =
        if apart.is_peer_older() { (peer, own) } else { (own, peer) };
    format!("{older} speaks wire version {old}, {newer} {new}: upgrade {older} first")
}

/// Checks a peer's hello: fabric, name and lane. Returns the peer's id, and the number of the
/// lane. The dialler names it; where the system does not choose sockets by connection ids, the
/// connection may have come to the socket of another lane of that address.
fn check_handshake_hello(
    spec: &LaneSpec,
    lane: u16,
    hello: &Hello,
    dialled: Option<GatewayId>,
) -> Result<(GatewayId, u16), HelloRefusal> {
    if hello.fabric != spec.identity {
        return Err(HelloRefusal::Fabric);
    }
    let known = spec.fabric.gateway_named(&hello.gateway).filter(|id| spec.peers.contains_key(id));
    let peer = known.ok_or_else(|| HelloRefusal::Unknown(hello.gateway.clone()))?;
    if dialled.is_some_and(|dialled| dialled != peer) {
        return Err(HelloRefusal::NotDialled(hello.gateway.clone()));
    }
    let location = dialled.and(spec.peers[&peer].addresses.as_ref());
    let addresses = location.map_or(spec.listen.count(), PeerLocation::count);
    let is_known = dialled.is_some() || hello.lane < plan::plan_lanes_limit(&spec.fabric);
    if hello.lane % addresses != lane % addresses || !is_known {
        return Err(HelloRefusal::Lane { theirs: hello.lane, ours: lane });
    }
    Ok((peer, dialled.map_or(hello.lane, |_| lane)))
}
