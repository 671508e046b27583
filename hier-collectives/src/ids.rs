//! Names and numbers of the fabric, each a type of its own.

use crate::codec::fnv1a;
use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(
    /// A trainer process: its number in the fabric, regions taken in name order.
    RankId(u32)
);
number!(
    /// A region: its index in name order.
    RegionId(u16)
);
number!(
    /// A gateway: its index in (region name, gateway name) order.
    GatewayId(u16)
);
number!(
    /// One agreed life of a group. Zero means none yet.
    Epoch(u64)
);
number!(
    /// A collective's number in its group.
    Sequence(u64)
);
number!(
    /// A training step, numbered by the trainers.
    Step(u64)
);
number!(
    /// A tree of the plan.
    TreeIndex(u16)
);
number!(
    /// A segment's number within its tree.
    SegmentIndex(u32)
);
number!(
    /// Drawn anew at each start of a gateway, so that a restart cannot pass unseen.
    BootId(u64)
);
number!(
    /// A group of ranks on the wire: the digest of its job's name, the same in every region.
    GroupId(u64)
);

impl GroupId {
    /// Bytes that stand ahead of every control message and segment header.
    pub const BYTES: usize = 8;

    /// The group of a job.
    pub fn of(job: &str) -> Self {
        Self(fnv1a(job.as_bytes()))
    }
}
