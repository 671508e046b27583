//! A gateway's table of a fabric file, before the fabric is checked.

use crate::wan::connect::peer_addresses::PeerAddresses;
use hier_collectives::topology::WanPort;

/// Addresses at which one gateway's lanes are reached.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct GatewayAddresses {
    /// From other regions.
    pub wan: Option<PeerAddresses>,
    /// From its own region.
    pub lan: Option<PeerAddresses>,
}

/// A gateway's table. Values at fault are replaced by ones that cause no second fault.
pub(super) struct GatewayEntry {
    /// The gateway's name.
    pub name: String,
    /// Path of the table.
    pub key: String,
    /// Ranks that it serves; `None` when they are not given, or at fault.
    pub ranks: Option<u32>,
    /// Whether the ranks are at fault.
    pub ranks_at_fault: bool,
    /// The WAN port, if it has one.
    pub wan: Option<WanPort>,
    /// Its addresses.
    pub addresses: GatewayAddresses,
}
