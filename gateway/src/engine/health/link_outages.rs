//! The links between regions that are down and gone round: since when, why, and by way of whom.
//!
//! All gateways know of all links, so each one logs and shows them: at the ends, and on the way
//! round.

use crate::observe::status::LinkOutageReport;
use crate::warnings::{WarningCause, Warnings};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::mesh::{GatewayPair, MeshGraph};
use hier_collectives::topology::Fabric;
use std::collections::BTreeMap;
use units::TimeNs;

/// The two regions of a link, the lower number first.
type OutageEnds = (RegionId, RegionId);

/// The links that are down.
#[derive(Debug)]
pub(crate) struct LinkOutages {
    down: BTreeMap<OutageEnds, LinkOutage>,
    warnings: Warnings,
}

/// A link that is down.
#[derive(Debug)]
struct LinkOutage {
    since: TimeNs,
    why: String,
}

/// A line of the log about a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkOutageLine {
    /// A link is down; a warning unless one was given for it less than ten minutes ago.
    Down { link: String, text: String, is_warning: bool },
    /// A link is up again.
    Up { link: String, text: String },
}

impl LinkOutageLine {
    /// Returns the name of the link that the line is about.
    pub fn link(&self) -> &str {
        match self {
            Self::Down { link, .. } | Self::Up { link, .. } => link,
        }
    }
}

impl LinkOutages {
    /// Makes the record of links that are down, without any.
    pub fn new(warnings: Warnings) -> Self {
        Self { down: BTreeMap::new(), warnings }
    }

    /// Updates the outages by the connections between gateways at `now`; returns the lines to log.
    /// `why` is the reason for which connections are lost.
    pub fn follow(
        &mut self,
        fabric: &Fabric,
        graph: &MeshGraph,
        why: &str,
        now: TimeNs,
    ) -> Vec<LinkOutageLine> {
        let found = links_with_outage(fabric, graph);
        // A link that is awaited again, since a gateway on the way round it was lost, is not up.
        let awaited = outage_links_of_pairs(fabric, graph.pairs_awaited());
        let is_up = |ends: &OutageEnds| !found.contains_key(ends) && !awaited.contains_key(ends);
        let mut lines = Vec::new();
        for (ends, outage) in self.down.extract_if(.., |ends, _| is_up(ends)) {
            let (link, lasted) =
                (link_outage_name(fabric, ends), now.since(outage.since).rounded());
            let text = format!("link {link} is up again after {lasted}; plans use it again");
            lines.push(LinkOutageLine::Up { link, text });
        }
        for (ends, pair) in found {
            if self.down.contains_key(&ends) {
                continue;
            }
            let link = link_outage_name(fabric, ends);
            let is_warning = self.warnings.is_due(WarningCause::Link, &link, now);
            let way =
                match (way_round_link_outage(fabric, graph, pair), graph.fabric_in_use(fabric)) {
                    (_, None) => "data cannot go round it, and no epoch begins".to_owned(),
                    (Some(relay), _) => format!("data and control go round it by way of {relay}"),
                    (None, _) => {
                        "data and control go round it by way of several gateways".to_owned()
                    }
                };
            let text = format!("link {link} is down ({why}): {way}");
            lines.push(LinkOutageLine::Down { link, text, is_warning });
            self.down.insert(ends, LinkOutage { since: now, why: why.to_owned() });
        }
        lines
    }

    /// Returns the links that are down at `now`, each with how long and by which way data goes
    /// round it, for the status.
    pub fn reports(
        &self,
        fabric: &Fabric,
        graph: &MeshGraph,
        now: TimeNs,
    ) -> Vec<LinkOutageReport> {
        let found = links_with_outage(fabric, graph);
        let report = |(ends, outage): (&OutageEnds, &LinkOutage)| LinkOutageReport {
            between: [ends.0, ends.1].map(|region| fabric.region(region).name.clone()),
            seconds: now.since(outage.since).as_secs_f64(),
            why: outage.why.clone(),
            way_round: found.get(ends).and_then(|pair| way_round_link_outage(fabric, graph, *pair)),
        };
        self.down.iter().map(report).collect()
    }
}

/// Returns the links with a connection that is down, each with the first such connection.
fn links_with_outage(fabric: &Fabric, graph: &MeshGraph) -> BTreeMap<OutageEnds, GatewayPair> {
    outage_links_of_pairs(fabric, graph.pairs_down())
}

/// Returns the links between regions to which one of these pairs of gateways belongs, each with its
/// first pair.
fn outage_links_of_pairs(
    fabric: &Fabric,
    pairs: impl Iterator<Item = GatewayPair>,
) -> BTreeMap<OutageEnds, GatewayPair> {
    let mut found = BTreeMap::new();
    for (one, other) in pairs {
        let [a, b] = [one, other].map(|id| fabric.gateway(id).region);
        if a != b {
            found.entry((a.min(b), a.max(b))).or_insert((one, other));
        }
    }
    found
}

/// Returns the name of a link, such as `east-west`.
fn link_outage_name(fabric: &Fabric, (a, b): OutageEnds) -> String {
    [a, b].map(|region| fabric.region(region).name.clone()).join("-")
}

/// Returns the name of the first gateway with connections to both of two others, by way of which
/// they reach each other; `None` if there is none.
fn way_round_link_outage(
    fabric: &Fabric,
    graph: &MeshGraph,
    (one, other): GatewayPair,
) -> Option<String> {
    let relay: GatewayId = graph.relay_between(one, other)?;
    if fabric.witness() == Some(relay) {
        // It carries no data, and is the last gateway: there is no other.
        return None;
    }
    Some(format!("gateway {}", fabric.gateway(relay).name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::mesh::MeshConnectionState;
    use hier_collectives::topology::{
        FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
    };
    use units::{BitRate, Fraction, Span};

    /// Returns three regions of one gateway, all pairs linked.
    fn mesh() -> Fabric {
        let rate = BitRate::from_bits_per_second(1_000_000);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let names = ["east", "south", "west"];
        let region = |name: &str| FabricRegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0],
            gateways: vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)],
        };
        let link = |(one, other): (usize, usize)| FabricLinkSpec {
            between: (names[one].to_owned(), names[other].to_owned()),
            rate,
            rtt: Span::from_ms(2),
            loss: Fraction::default(),
        };
        let links = [(0, 1), (0, 2), (1, 2)].map(link).to_vec();
        Fabric::new("mesh", 1500, names.map(region).to_vec(), links).expect("valid")
    }

    /// Returns the graph of the mesh in which these connections are down.
    fn without(fabric: &Fabric, down: &[(u16, u16)]) -> MeshGraph {
        MeshGraph::new(fabric, |one, other| match down.contains(&(one.0, other.0)) {
            true => MeshConnectionState::Down,
            false => MeshConnectionState::Up,
        })
    }

    /// Returns the time of a second.
    fn second(number: u64) -> TimeNs {
        TimeNs::from_ns(7) + Span::from_secs(number)
    }

    #[test]
    fn a_link_that_is_down_is_named_once() {
        let (fabric, mut outages) = (mesh(), LinkOutages::new(Warnings::default()));
        let (whole, cut) = (without(&fabric, &[]), without(&fabric, &[(0, 2)]));
        assert_eq!(outages.follow(&fabric, &whole, "", second(0)), []);
        let down = |is_warning| LinkOutageLine::Down {
            link: "east-west".to_owned(),
            text:
                "link east-west is down (silent for 8 s): data and control go round it by way of \
                   gateway south-0"
                    .to_owned(),
            is_warning,
        };
        assert_eq!(outages.follow(&fabric, &cut, "silent for 8 s", second(9)), [down(true)]);
        assert_eq!(outages.follow(&fabric, &cut, "as others report", second(10)), []);
        let reports = outages.reports(&fabric, &cut, second(12));
        let expected = LinkOutageReport {
            between: ["east".to_owned(), "west".to_owned()],
            seconds: 3.0,
            why: "silent for 8 s".to_owned(),
            way_round: Some("gateway south-0".to_owned()),
        };
        assert_eq!(reports, [expected]);
        let up = "link east-west is up again after 20 s; plans use it again".to_owned();
        let up = LinkOutageLine::Up { link: "east-west".to_owned(), text: up };
        assert_eq!(outages.follow(&fabric, &whole, "", second(29)), [up]);
        assert_eq!(outages.reports(&fabric, &whole, second(30)), []);
        // Within ten minutes of the first warning, and after them.
        assert_eq!(outages.follow(&fabric, &cut, "silent for 8 s", second(300)), [down(false)]);
        outages.follow(&fabric, &whole, "", second(310));
        assert_eq!(outages.follow(&fabric, &cut, "silent for 8 s", second(700)), [down(true)]);
    }

    /// The gateway on the way round is started again, so the cut pair is awaited for a while.
    #[test]
    fn a_cut_link_that_is_awaited_again_is_not_up() {
        let (fabric, mut outages) = (mesh(), LinkOutages::new(Warnings::default()));
        let cut = without(&fabric, &[(0, 2)]);
        assert_eq!(outages.follow(&fabric, &cut, "silent", second(0)).len(), 1);
        let awaited = MeshGraph::new(&fabric, |one, other| match (one.0, other.0) {
            (0, 2) => MeshConnectionState::Awaited,
            _ => MeshConnectionState::Up,
        });
        assert_eq!(outages.follow(&fabric, &awaited, "", second(5)), []);
        assert_eq!(outages.reports(&fabric, &awaited, second(6))[0].seconds, 6.0);
        assert_eq!(outages.follow(&fabric, &cut, "", second(15)), [], "no second warning");
    }

    #[test]
    fn a_second_cut_leaves_no_way_for_data() {
        let (fabric, mut outages) = (mesh(), LinkOutages::new(Warnings::default()));
        let cut = without(&fabric, &[(0, 2), (1, 2)]);
        let lines = outages.follow(&fabric, &cut, "silent", second(0));
        assert_eq!(lines.len(), 2);
        for line in lines {
            let LinkOutageLine::Down { text, is_warning, .. } = line else { panic!("{line:?}") };
            assert!(is_warning && text.contains("data cannot go round it"), "{text}");
        }
    }
}
