//! Numbers of ranks, regions, gateways, epochs and collectives, each a type of its own.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            /// Prints the number alone, such as `3`.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// Number of a trainer process in the fabric, through the regions in name order.
    RankId(u32)
);
number!(
    /// Index of a region in name order.
    RegionId(u16)
);
number!(
    /// Index of a gateway in (region name, gateway name) order.
    GatewayId(u16)
);
number!(
    /// Number of an epoch: a period in which all gateways of a job agree on the plan. 0 is no
    /// epoch.
    Epoch(u64)
);
number!(
    /// Mark of a send, which a receive with the same tag gets; chosen by the trainers.
    Tag(u16)
);
number!(
    /// Number of a training step, chosen by the trainers.
    Step(u64)
);
number!(
    /// Index of a tree in the plan.
    TreeIndex(u16)
);
number!(
    /// Index of a segment within its tree.
    SegmentIndex(u32)
);
number!(
    /// Random number drawn at each start of a gateway, so that peers notice a restart.
    BootId(u64)
);
number!(
    /// A job on the wire: the digest of its name, the same in every region.
    GroupId(u64)
);

/// Number of a collective in its job or group. Sends have numbers of their own: see
/// [`crate::sequence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(pub u64);
