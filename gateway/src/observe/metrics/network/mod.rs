//! The metrics of the network: peers, links, and lanes with their UDP sockets.

mod lane;
mod link;
mod peer;

pub use lane::LaneMetrics;
pub use peer::{PeerMetrics, PeerPlace, RealGauge};

pub(super) use lane::LaneFamilies;
pub(super) use link::LinkFamilies;
pub(super) use peer::{PeerFamilies, RealCounter};
