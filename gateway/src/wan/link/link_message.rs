//! Messages of gateways about their links and lanes, apart from all jobs; docs/protocol.md section 2.
//!
//! The engine task makes and handles them. They travel in a lane's control stream, beside the
//! messages of jobs (`wan/connect/control_stream.rs`).

use super::controller_policy::LINK_RATE_MIN_BITS_PER_S;
use hier_collectives::codec::{DecodeError, FieldReader, write_u16, write_u64};
use hier_collectives::ids::{GroupId, RegionId};
use hier_collectives::mesh::MeshReport;
use units::BitRate;

/// 0: the group id that marks a control message about links and lanes (a [`LinkMessage`]). Messages
/// of a job have the job's id in that place. No job has the id 0.
pub const LINK_GROUP: GroupId = GroupId(0);

/// A message about a link or a lane, encoded behind [`LINK_GROUP`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkMessage {
    /// An operator's rate limit of a link.
    Rate(LinkRateOverrideMessage),
    /// The sender's control messages use this connection from here on, until another connection has
    /// a higher generation.
    ControlGeneration(u64),
    /// The connections of the sender, or of another gateway whose report it passes on.
    Connections(MeshReport),
    /// The number of lanes that the sender wants to the receiver.
    Lanes(LinkLaneWishMessage),
    /// The rate that the sender's port leaves the receiver for what it sends there.
    PortRate(LinkPortRateMessage),
}

/// An operator's rate limit of a link. The sender repeats it when a lane comes up or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkRateOverrideMessage {
    /// The regions at the link's ends, in number order.
    pub ends: (RegionId, RegionId),
    /// The number of the change. It grows, so that an old change that arrives late has no effect.
    pub number: u64,
    /// The limit; `None` if the operator has withdrawn it.
    pub rate: Option<BitRate>,
}

/// The number of lanes that a gateway wants to a peer. The gateway repeats it when a lane comes up
/// or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLaneWishMessage {
    /// The number of the change. It grows, so that an old wish that arrives late has no effect.
    pub number: u64,
    /// The lanes that the gateway wants, at least 1.
    pub wanted: u16,
    /// The most lanes that the gateway can have, at least `wanted`.
    pub most: u16,
}

/// The rate that a gateway's port leaves a peer. The gateway repeats it when a lane comes up or
/// is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkPortRateMessage {
    /// The number of the change. It grows, so that an old change that arrives late has no effect.
    pub number: u64,
    /// The rate; `None` for the peer's part by the plans of jobs.
    pub rate: Option<BitRate>,
}

impl LinkMessage {
    /// Encodes the message for a control stream, without the group that precedes it.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(21);
        match self {
            Self::Rate(change) => {
                out.push(RATE_TAG);
                write_u16(&mut out, change.ends.0.0);
                write_u16(&mut out, change.ends.1.0);
                write_u64(&mut out, change.number);
                write_u64(&mut out, change.rate.map_or(0, BitRate::bits_per_second));
            }
            Self::ControlGeneration(generation) => {
                out.push(CONTROL_GENERATION_TAG);
                write_u64(&mut out, *generation);
            }
            Self::Connections(report) => {
                out.push(CONNECTIONS_TAG);
                report.write_to(&mut out);
            }
            Self::Lanes(wish) => {
                out.push(LANES_TAG);
                write_u64(&mut out, wish.number);
                write_u16(&mut out, wish.wanted);
                write_u16(&mut out, wish.most);
            }
            Self::PortRate(told) => {
                out.push(PORT_RATE_TAG);
                write_u64(&mut out, told.number);
                write_u64(&mut out, told.rate.map_or(0, BitRate::bits_per_second));
            }
        }
        out
    }

    /// Decodes a message of a control stream, without the group that precedes it.
    ///
    /// # Errors
    /// [`DecodeError`]: always the peer's fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = FieldReader(bytes);
        let message = match reader.read_u8()? {
            RATE_TAG => Self::Rate(LinkRateOverrideMessage::decode_fields(&mut reader)?),
            CONTROL_GENERATION_TAG => Self::ControlGeneration(reader.read_u64()?),
            CONNECTIONS_TAG => Self::Connections(MeshReport::read_from(&mut reader)?),
            LANES_TAG => Self::Lanes(LinkLaneWishMessage::decode_fields(&mut reader)?),
            PORT_RATE_TAG => {
                let (number, bits) = (reader.read_u64()?, reader.read_u64()?);
                let rate = (bits > 0).then(|| BitRate::from_bits_per_second(bits));
                Self::PortRate(LinkPortRateMessage { number, rate })
            }
            _ => return Err(DecodeError::Unknown("link message")),
        };
        reader.check_end(message)
    }
}

impl LinkRateOverrideMessage {
    /// Decodes the ends, number and rate of an operator's limit.
    ///
    /// # Errors
    /// The ends are out of order, or the rate is below 8 kbit/s.
    fn decode_fields(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let ends = (RegionId(reader.read_u16()?), RegionId(reader.read_u16()?));
        if ends.0 >= ends.1 {
            return Err(DecodeError::Invalid("link"));
        }
        let (number, bits) = (reader.read_u64()?, reader.read_u64()?);
        let rate = match bits {
            0 => None,
            bits if bits >= LINK_RATE_MIN_BITS_PER_S => Some(BitRate::from_bits_per_second(bits)),
            _ => return Err(DecodeError::Invalid("rate")),
        };
        Ok(Self { ends, number, rate })
    }
}

impl LinkLaneWishMessage {
    /// Decodes number, wanted and most lanes of a wish.
    ///
    /// # Errors
    /// No lane is wanted, or more than the sender can have.
    fn decode_fields(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (number, wanted, most) = (reader.read_u64()?, reader.read_u16()?, reader.read_u16()?);
        if !(1..=most).contains(&wanted) {
            return Err(DecodeError::Invalid("lanes"));
        }
        Ok(Self { number, wanted, most })
    }
}

/// 1: the first byte of an encoded [`LinkMessage::Rate`], an operator's rate limit. By it the
/// receiver tells the kinds of link messages apart.
const RATE_TAG: u8 = 1;
/// 2: the first byte of an encoded [`LinkMessage::ControlGeneration`], a change of the connection
/// for control messages. By it the receiver tells the kinds of link messages apart.
const CONTROL_GENERATION_TAG: u8 = 2;
/// 3: the first byte of an encoded [`LinkMessage::Connections`], a report of a gateway's
/// connections. By it the receiver tells the kinds of link messages apart.
const CONNECTIONS_TAG: u8 = 3;
/// 4: the first byte of an encoded [`LinkMessage::Lanes`], the number of lanes that a gateway
/// wants. By it the receiver tells the kinds of link messages apart.
const LANES_TAG: u8 = 4;
/// 5: the first byte of an encoded [`LinkMessage::PortRate`], the rate that a gateway's port leaves a
/// peer. By it the receiver tells the kinds of link messages apart.
const PORT_RATE_TAG: u8 = 5;

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::GatewayId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn link_messages_survive_the_wire(
            a in 0u16..100,
            number: u64,
            bits in 8_000u64..,
            some: bool,
        ) {
            let rate = some.then(|| BitRate::from_bits_per_second(bits));
            let change = LinkRateOverrideMessage { ends: (RegionId(a), RegionId(a + 1)), number, rate };
            let gateways = [a, a + 1, a + 2].map(GatewayId);
            let [gateway, up, down] = gateways;
            let (number_below, up, down) = (number >> 2, vec![up], vec![down]);
            let report = MeshReport { gateway, number: number_below, up, down };
            for message in [
                LinkMessage::Rate(change),
                LinkMessage::ControlGeneration(number),
                LinkMessage::Connections(report),
                LinkMessage::Lanes(LinkLaneWishMessage { number, wanted: a + 1, most: a + 7 }),
                LinkMessage::PortRate(LinkPortRateMessage {
                    number,
                    rate: some.then_some(BitRate::from_bits_per_second(bits)),
                }),
            ] {
                prop_assert_eq!(LinkMessage::decode(&message.encode()), Ok(message));
            }
        }

        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(message) = LinkMessage::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
