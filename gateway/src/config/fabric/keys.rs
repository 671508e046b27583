//! Tables and keys of a fabric file.

use crate::config::config_value::{LaneCount, Name, RandomLoss, RankCount, Speeds};
use crate::config::key::KeyNeed::{Optional, Required, RequiredIf};
use crate::config::key::{Key, TableKeys};
use crate::config::membership_value::{FabricNumber, PeerSilence, VoteCount};
use crate::config::reached_address_value::ReachedAddress;
use crate::wan::link::controller_policy::ControllerPolicy;
use crate::wan::link::rate_schedule::RateSchedule;
use hier_collectives::topology::{Patience, QuorumSpec};
use units::{BitRate, Span};

/// Keys and tables of a whole fabric file: the reader accepts these alone, and docs list them.
pub(in crate::config) static FABRIC_FILE_TABLE: TableKeys = TableKeys {
    name: "",
    placeholder: "",
    about: "The keys before the first table.",
    accepted: "a fabric file",
    keys: &[
        FABRIC_NAME.description(),
        FABRIC_MTU.description(),
        FABRIC_LANES.description(),
        FABRIC_QUORUM.description(),
        FABRIC_PATIENCE.description(),
        FABRIC_SILENCE.description(),
        FABRIC_VERSION.description(),
    ],
    tables: &[&REGION_TABLE, &LINK_TABLE],
};

/// Keys of the tables `[region.REGION]`: the reader accepts these alone, and docs list them.
pub(super) static REGION_TABLE: TableKeys = TableKeys {
    name: "region",
    placeholder: "REGION",
    about: "One table for each region: a data centre or an availability zone. At least one. \
            Ranks are numbered from 0, region by region in name order.",
    accepted: "a table such as [region.east]",
    keys: &[
        REGION_RANKS.description(),
        REGION_SPEEDS.description(),
        REGION_VOTES.description(),
        REGION_WITNESS.description(),
    ],
    tables: &[&GATEWAY_TABLE],
};

/// Keys of the tables `[region.REGION.gateway.GATEWAY]`: the reader accepts these alone, and docs
/// list them.
pub(super) static GATEWAY_TABLE: TableKeys = TableKeys {
    name: "gateway",
    placeholder: "GATEWAY",
    about: "One table for each gateway of the region, at least one. The name is unique in the \
            whole fabric, and the gateway's certificate proves it. A gateway without `egress` and \
            `ingress` has no WAN port: it serves its ranks, and exchanges with the gateways of its \
            region alone. Among several regions, each needs a gateway with a WAN port. A gateway \
            with a WAN port and without `wan` is behind a NAT or firewall that lets nobody in: it \
            dials all others, which need `wan`.",
    accepted: "at least one table such as [region.east.gateway.east-0]",
    keys: &[
        GATEWAY_RANKS.description(),
        GATEWAY_LAN.description(),
        GATEWAY_WAN.description(),
        GATEWAY_EGRESS.description(),
        GATEWAY_INGRESS.description(),
    ],
    tables: &[],
};

/// Keys of the tables `[link.A-B]`: the reader accepts these alone, and docs list them.
pub(super) static LINK_TABLE: TableKeys = TableKeys {
    name: "link",
    placeholder: "A-B",
    about: "The WAN path between the regions A and B, one table at most for each pair. Links \
            must join all regions, not each pair of them.",
    accepted: "a table such as [link.east-west]",
    keys: &[
        LINK_RATE.description(),
        LINK_RTT.description(),
        LINK_LOSS.description(),
        LINK_SCHEDULE.description(),
        LINK_CONTROLLER.description(),
    ],
    tables: &[],
};

/// Key `name`: name of the fabric.
pub(super) const FABRIC_NAME: Key<Name> = Key::new(
    "name",
    Required,
    "\"two-region\"",
    "Name of the fabric. Every gateway's certificate contains it.",
);

/// Key `mtu`: the length in bytes of the longest IP packet on the paths between gateways.
pub(super) const FABRIC_MTU: Key<u16> = Key::new(
    "mtu",
    Optional("measured"),
    "1500",
    "IP MTU of the paths between gateways, from 1280 to 65507 bytes. With this key, packets are \
     of this size from the start. Without it, lanes probe for the largest packet that arrives, \
     and plans assume 1500.",
);

/// Key `lanes`: the fewest lanes that two gateways use, a number from 1 to 16.
pub(super) const FABRIC_LANES: Key<LaneCount> = Key::new(
    "lanes",
    Optional("1"),
    "4",
    "Fewest lanes between two gateways. They begin with so many, or with one for each address of \
     `wan` or `lan`. They add a lane when one fills a core, when another network path carries more, \
     or when the only one falls silent, and take it away when it earns nothing. With this key they \
     never use fewer.",
);

/// Key `quorum`: the regions that go on when others are lost.
pub(super) const FABRIC_QUORUM: Key<QuorumSpec> = Key::new(
    "quorum",
    Optional("\"all\""),
    "\"majority\"",
    "Regions that go on when others are lost. `all`: none, until all are back. `majority`: more than \
     half of the regions. A number: so many regions or more, which must be more than half. An array \
     of regions: those that reach all of these. A witness counts as a region. Where regions have \
     other `votes` than 1, votes count in place of regions. Of the parts of a partition at most one goes on. \
     Equal in all fabric files.",
);

/// Key `patience`: the time for which a silence is borne, from which deadlines follow.
pub(super) const FABRIC_PATIENCE: Key<Patience> = Key::new(
    "patience",
    Optional("15 s"),
    "\"30 s\"",
    "Time for which a silence is borne, from 6 s to 15 min, and at least 15 round trips of each link. All \
     [deadlines](#deadlines) that end a silence follow from it. A shorter one finds faults sooner, and \
     outages of more than a third of it fail steps. Equal in all fabric files.",
);

/// Key `silence`: the time without a word after which a gateway counts as lost.
pub(super) const FABRIC_SILENCE: Key<PeerSilence> = Key::new(
    "silence",
    Optional("`patience`, or 8/15 of it where a link can be gone round"),
    "\"5 s\"",
    "Time without a packet after which a gateway counts as lost, from 3 s to 15 s and at most `patience`; \
     on long links at least 1 s and three round trips. A shorter time lets the others go on sooner, and makes an outage of that \
     length fail a step. It may differ between regions.",
);

/// Key `version`: the number by which gateways order the fabrics that an operator applies.
pub(super) const FABRIC_VERSION: Key<FabricNumber> = Key::new(
    "version",
    Optional("none, which is below all"),
    "2",
    "Number of this version of the file, from 1 to 1000000000. `landbridge fabric apply` puts a signed file \
     in force at all gateways while they run, if its number is above that of the one in force. Files with one \
     number must be the same, byte by byte: gateways go on together only with one version.",
);

/// Key `ranks` of a region: number of ranks in the region.
pub(super) const REGION_RANKS: Key<RankCount> = Key::new(
    "ranks",
    RequiredIf("the region is no witness", "no ranks"),
    "3",
    "Number of ranks in the region, which is the sum over its gateways.",
);

/// Key `speeds` of a region: the compute speed of each rank, in any unit, relative to the other
/// ranks.
pub(super) const REGION_SPEEDS: Key<Speeds> = Key::new(
    "speeds",
    Optional("1.0 for each rank"),
    "[1.0, 1.0, 0.5]",
    "Compute speeds of the ranks in relation to each other, one number for each rank in rank \
     order. `landbridge plan batch` splits a global batch by them.",
);

/// Key `votes` of a region: its votes in the quorum.
pub(super) const REGION_VOTES: Key<VoteCount> = Key::new(
    "votes",
    Optional("1"),
    "2",
    "Votes of the region in a `quorum` that is `majority` or a number, from 0 to 100: those with more \
     than half of all votes, or with that number, go on without the others. Equal in all fabric files.",
);

/// Key `witness` of a region: whether it is one gateway without ranks, which counts in the quorum.
pub(super) const REGION_WITNESS: Key<bool> = Key::new(
    "witness",
    Optional("false"),
    "true",
    "With `true` the region is the witness of a `quorum` that is `majority` or a number: one gateway \
     without ranks, with a WAN port and a link to each region. It counts as a region, has a vote \
     where the others are parted, and gets no data. At most one in a fabric.",
);

/// Key `ranks` of a gateway: number of ranks that the gateway serves.
pub(super) const GATEWAY_RANKS: Key<RankCount> = Key::new(
    "ranks",
    RequiredIf("the region has several gateways", "the region's `ranks`"),
    "2",
    "Number of ranks that this gateway serves. Gateways of a region get their ranks in name \
     order.",
);

/// Key `lan` of a gateway: addresses of its lanes for gateways of the same region.
pub(super) const GATEWAY_LAN: Key<ReachedAddress> = Key::new(
    "lan",
    RequiredIf("a gateway of the same region has no `wan`", "`wan`"),
    "\"10.0.0.5:7480\"",
    "Address or host name, and UDP port, at which the other gateways of the region reach this one's lanes over the LAN. Two \
     gateways use it when both have one.",
);

/// Key `wan` of a gateway: addresses of its lanes for gateways of other regions.
pub(super) const GATEWAY_WAN: Key<ReachedAddress> = Key::new(
    "wan",
    Optional("no peer dials this gateway, which dials all"),
    "\"203.0.113.10:7400\"",
    "Address or host name, and UDP port, at which the gateways of other regions reach this one's \
     lanes. A host name is resolved at each dial, so a peer that was lost is found at its new \
     address. Several addresses are for several carriers or network ports.",
);

/// Key `egress` of a gateway: the bit rate at which its WAN port can send out of the region.
pub(super) const GATEWAY_EGRESS: Key<BitRate> = Key::new(
    "egress",
    RequiredIf("`wan` or `ingress` is given", "no WAN port"),
    "\"500 Mbit/s\"",
    "Capacity of the WAN port out of the region, in IP bytes; at least 8 kbit/s.",
);

/// Key `ingress` of a gateway: the bit rate at which its WAN port can receive into the region.
pub(super) const GATEWAY_INGRESS: Key<BitRate> = Key::new(
    "ingress",
    RequiredIf("`wan` or `egress` is given", "no WAN port"),
    "\"500 Mbit/s\"",
    "Capacity of the WAN port into the region, in IP bytes; at least 8 kbit/s.",
);

/// Key `rate` of a link: its capacity in each direction, as a bit rate in which IP headers count.
pub(super) const LINK_RATE: Key<BitRate> = Key::new(
    "rate",
    RequiredIf(
        "`controller` is `dedicated`",
        "not known: gateways find it, up to the ports at both ends",
    ),
    "\"500 Mbit/s\"",
    "Capacity of the link in each direction, in IP bytes; at least 8 kbit/s. Gateways never send \
     faster.",
);

/// Key `rtt` of a link: its round-trip time while no packet waits in a queue, as a time with a
/// unit.
pub(super) const LINK_RTT: Key<Span> = Key::new(
    "rtt",
    Required,
    "\"80 ms\"",
    "Round-trip time of the link without queueing; at most 60 s.",
);

/// Key `loss` of a link: the percentage of packets that it is expected to lose at random, without
/// congestion. A higher loss raises the loss alarm.
pub(super) const LINK_LOSS: Key<RandomLoss> = Key::new(
    "loss",
    Optional("0 %"),
    "\"0.1 %\"",
    "Expected random packet loss, below 50 %. It sizes forward error correction, and more loss \
     than this raises the loss alarm.",
);

/// Key `schedule` of a link: rate limits by time of day in UTC.
pub(super) const LINK_SCHEDULE: Key<RateSchedule> = Key::new(
    "schedule",
    Optional("always `rate`"),
    "[{ at = \"08:00\", rate = \"300 Mbit/s\" }, { at = \"18:00\", rate = \"500 Mbit/s\" }]",
    "Rate limit by time of day in UTC, the same every day. Each rate holds until the next entry, \
     and the last one past midnight. Rates are from 8 kbit/s to the link's `rate`.",
);

/// Key `controller` of a link: its congestion controller.
pub(super) const LINK_CONTROLLER: Key<ControllerPolicy> = Key::new(
    "controller",
    Optional("\"dedicated\" with `rate`, \"shared\" without"),
    "\"dedicated\"",
    "Use of the link. `dedicated`: the rate is ours, and random loss is not congestion. `shared`: \
     the rate is not known or not ours alone; gateways find it and yield to a standing queue. \
     `cubic` (RFC 9438) and `newreno` (RFC 9002) are for comparison.",
);
