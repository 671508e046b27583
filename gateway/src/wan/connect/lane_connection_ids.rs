//! Connection ids of lanes, whose first byte is the place of the lane's socket among those that share
//! the UDP port.
//!
//! The system gives packets to sockets by that byte ([`PortShare`](crate::host::PortShare)). The
//! endpoint that answers issues such ids ([`LaneConnectionIds`]), and the dialler begins with one
//! ([`initial_lane_connection_id`]).

use quinn::{ConnectionId, ConnectionIdGenerator};
use quinn_proto::InvalidCid;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::time::Duration;

/// 8 bytes: the length of the connection ids that lanes issue, as quinn's. Each packet to the lane has
/// one.
const ID_BYTES: usize = 8;
/// 4 bytes of an id are its place and 3 random bytes, enough for 16 million connections. The other 4
/// prove that the gateway has issued it.
const SIGNED_BYTES: usize = 4;

/// 20 bytes: the length of the connection id of a dialler's first packets, the most of QUIC version 1
/// (RFC 9000, section 17.2).
const INITIAL_ID_BYTES: usize = 20;

/// Issues the connection ids of one lane, and recognises those of an earlier start of the gateway.
pub(super) struct LaneConnectionIds {
    /// The place of the lane's socket among those that share its port.
    pub place: u16,
    /// The key, which follows from the gateway's key file.
    pub key: hmac::Key,
}

impl LaneConnectionIds {
    /// Returns the bytes that prove who has issued an id with these first bytes.
    fn sign(&self, signed: &[u8]) -> [u8; ID_BYTES - SIGNED_BYTES] {
        let mut proof = [0; ID_BYTES - SIGNED_BYTES];
        let tag = hmac::sign(&self.key, signed);
        proof.copy_from_slice(&tag.as_ref()[..ID_BYTES - SIGNED_BYTES]);
        proof
    }
}

impl ConnectionIdGenerator for LaneConnectionIds {
    /// Makes a connection id: place, 3 random bytes, 4 bytes of proof.
    fn generate_cid(&mut self) -> ConnectionId {
        let mut id = [0; ID_BYTES];
        SystemRandom::new().fill(&mut id).expect("the system's random source works");
        id[0] = first_byte_of_lane_id(self.place);
        let proof = self.sign(&id[..SIGNED_BYTES]);
        id[SIGNED_BYTES..].copy_from_slice(&proof);
        ConnectionId::new(&id)
    }

    /// Returns whether the gateway may have issued an id. Packets with others get no stateless reset.
    fn validate(&self, id: &ConnectionId) -> Result<(), InvalidCid> {
        match id.split_at_checked(SIGNED_BYTES) {
            Some((signed, proof)) if self.sign(signed) == proof => Ok(()),
            _ => Err(InvalidCid),
        }
    }

    /// Returns the length of all ids in bytes.
    fn cid_len(&self) -> usize {
        ID_BYTES
    }

    /// Returns `None`: ids are used for as long as their connection.
    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

/// Returns the destination connection id of a dialler's first packets: place of the peer's socket, and
/// 19 of these random bytes. The peer answers with an id of its own.
pub(super) fn initial_lane_connection_id(place: u16, random: [u8; 32]) -> ConnectionId {
    let mut id = random;
    id[0] = first_byte_of_lane_id(place);
    ConnectionId::new(&id[..INITIAL_ID_BYTES])
}

/// Returns the first byte of a connection id of the socket with this place. There are at most 16.
fn first_byte_of_lane_id(place: u16) -> u8 {
    u8::try_from(place).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what issues ids of a place, with a key.
    fn ids(place: u16, key: u8) -> LaneConnectionIds {
        LaneConnectionIds { place, key: hmac::Key::new(hmac::HMAC_SHA256, &[key; 32]) }
    }

    #[test]
    fn ids_begin_with_the_place_and_prove_who_issued_them() {
        let (one, two) = (ids(3, 7).generate_cid(), ids(3, 7).generate_cid());
        assert_ne!(one, two, "ids are random");
        assert_eq!((one[0], one.len()), (3, ids(3, 7).cid_len()));
        assert!(ids(3, 7).validate(&one).is_ok(), "also after a restart");
        assert!(ids(3, 8).validate(&one).is_err(), "of another gateway");
        let mut forged = [0; ID_BYTES];
        forged.copy_from_slice(&one);
        forged[0] = 2;
        assert!(ids(2, 7).validate(&ConnectionId::new(&forged)).is_err(), "of another lane");
        assert!(ids(3, 7).validate(&ConnectionId::new(&one[..3])).is_err(), "too short");
    }

    #[test]
    fn a_dialler_begins_with_the_place_of_the_lane() {
        let (one, two) =
            (initial_lane_connection_id(5, [1; 32]), initial_lane_connection_id(5, [2; 32]));
        assert_eq!((one[0], two[0], one.len()), (5, 5, INITIAL_ID_BYTES));
        assert_ne!(one, two);
    }
}
