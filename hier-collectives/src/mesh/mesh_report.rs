//! A gateway's report of its own connections, which all others pass on.

use super::mesh_graph::MeshConnectionState;
use crate::codec::{DecodeError, FieldReader, write_u16, write_u64};
use crate::ids::GatewayId;

/// 2^62: a gateway's report of its connections with a number from 2^62 on is refused as malformed.
/// Nobody counts so far, and the next number still fits 64 bits.
pub(super) const REPORT_NUMBERS_BOUND: u64 = 1 << 62;

/// The connections of one gateway, as it reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshReport {
    /// The gateway that reports.
    pub gateway: GatewayId,
    /// The number of the report. The highest is valid. It grows with each change, and whenever
    /// messages that the gateway forwards may be lost.
    pub number: u64,
    /// The gateways to which it has a connection, ascending.
    pub up: Vec<GatewayId>,
    /// The gateways whose connection it takes for down, ascending.
    pub down: Vec<GatewayId>,
}

impl MeshReport {
    /// Returns the reported state of the connection to a gateway.
    pub fn state_of(&self, peer: GatewayId) -> MeshConnectionState {
        if self.up.binary_search(&peer).is_ok() {
            return MeshConnectionState::Up;
        }
        match self.down.binary_search(&peer) {
            Ok(_) => MeshConnectionState::Down,
            Err(_) => MeshConnectionState::Awaited,
        }
    }

    /// Appends the report to the message `out`: gateway, number, connections up, connections down.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        write_u16(out, self.gateway.0);
        write_u64(out, self.number);
        for list in [&self.up, &self.down] {
            write_u16(out, u16::try_from(list.len()).unwrap_or(u16::MAX));
            list.iter().for_each(|id| write_u16(out, id.0));
        }
    }

    /// Reads a report: gateway, number, connections up, connections down.
    ///
    /// # Errors
    /// [`DecodeError`] when the bytes are no report: a number is too large, a list is not in
    /// ascending order or has the gateway itself, or both lists have a gateway.
    pub fn read_from(reader: &mut FieldReader<'_>) -> Result<Self, DecodeError> {
        let (gateway, number) = (GatewayId(reader.read_u16()?), reader.read_u64()?);
        if number >= REPORT_NUMBERS_BOUND {
            return Err(DecodeError::Invalid("report number"));
        }
        let (up, down) = (read_mesh_report_gateways(reader)?, read_mesh_report_gateways(reader)?);
        if down.iter().chain([&gateway]).any(|id| up.binary_search(id).is_ok())
            || down.binary_search(&gateway).is_ok()
        {
            return Err(DecodeError::Invalid("connections"));
        }
        Ok(Self { gateway, number, up, down })
    }
}

/// Reads the numbers of gateways, ascending: a 16-bit count, then the numbers.
fn read_mesh_report_gateways(reader: &mut FieldReader<'_>) -> Result<Vec<GatewayId>, DecodeError> {
    let count = usize::from(reader.read_u16()?);
    let mut fields = FieldReader(reader.read_bytes(count * 2)?);
    let gateways: Vec<GatewayId> =
        (0..count).map(|_| fields.read_u16().map(GatewayId)).collect::<Result<_, _>>()?;
    if gateways.windows(2).all(|pair| pair[0] < pair[1]) {
        Ok(gateways)
    } else {
        Err(DecodeError::Invalid("order of gateways"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The report of gateway 100 on gateways below it.
    fn report(number: u64, up: &[u16], down: &[u16]) -> MeshReport {
        let ids = |of: &[u16]| of.iter().copied().map(GatewayId).collect();
        MeshReport { gateway: GatewayId(100), number, up: ids(up), down: ids(down) }
    }

    /// Decodes the encoding of a report.
    fn recoded(report: &MeshReport) -> Result<MeshReport, DecodeError> {
        let mut bytes = Vec::new();
        report.write_to(&mut bytes);
        let mut reader = FieldReader(&bytes);
        let read = MeshReport::read_from(&mut reader)?;
        reader.check_end(read)
    }

    proptest! {
        #[test]
        fn reports_survive_the_wire(number in 0..REPORT_NUMBERS_BOUND, states: [u8; 32]) {
            let with = |state: u8| -> Vec<u16> {
                let of_state = (0..).zip(states).filter(|(_, of_one)| of_one % 3 == state);
                of_state.map(|(id, _)| id).collect()
            };
            let report = report(number, &with(0), &with(1));
            prop_assert_eq!(recoded(&report), Ok(report.clone()));
            for (id, state) in (0..).zip(states) {
                let known = [MeshConnectionState::Up, MeshConnectionState::Down, MeshConnectionState::Awaited];
                prop_assert_eq!(report.state_of(GatewayId(id)), known[usize::from(state % 3)]);
            }
        }
    }

    #[test]
    fn malformed_reports_are_refused() {
        assert!(recoded(&report(1, &[1, 2], &[3])).is_ok());
        for (number, up, down) in [
            (REPORT_NUMBERS_BOUND, vec![1], vec![]),
            (1, vec![2, 1], vec![]),
            (1, vec![], vec![4, 4]),
            (1, vec![1, 2], vec![2]),
            (1, vec![100], vec![]),
            (1, vec![], vec![100]),
        ] {
            let report = report(number, &up, &down);
            assert!(recoded(&report).is_err(), "{report:?}");
        }
    }
}
