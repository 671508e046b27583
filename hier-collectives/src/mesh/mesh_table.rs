//! The connections of one gateway and the reports of all others, from which the graph follows.
//!
//! The gateway's engine tells it which connections come up and go down, hands it reports and sends
//! those that it makes. A report goes to every neighbour, and each passes it on to neighbours that
//! do not get it from its gateway itself. A connection is up if both ends report it up. It is down
//! if an end found its path silent, or waited too long for it, while another way leads to the peer.

use super::mesh_graph::{MeshConnectionState, MeshGraph};
use super::mesh_report::{MeshReport, REPORT_NUMBERS_BOUND};
use super::routes::Routes;
use crate::ids::{GatewayId, RegionId};
use crate::topology::Fabric;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use units::{Span, TimeNs};

/// 100 ms: the least time between two reports of a gateway about its connections, unless a
/// connection is lost. Sooner changes wait for the next report. The time is chosen, so that one
/// report tells of several connections while gateways start.
const REPORT_INTERVAL: Span = Span::from_ms(100);

/// A report about connections that the fabric does not have; always an error of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a report about connections of gateway {0} that the fabric does not have")]
pub struct InvalidReport(pub GatewayId);

/// The connections of all gateways, as one of them knows them.
#[derive(Debug)]
pub struct MeshTable {
    fabric: Arc<Fabric>,
    me: GatewayId,
    own: BTreeMap<GatewayId, MeshTableConnection>,
    /// The newest report of each gateway, this one's included.
    reports: BTreeMap<GatewayId, MeshReport>,
    graph: Arc<MeshGraph>,
    routes: Routes,
    /// Reports to be sent, each to a neighbour.
    outgoing: VecDeque<(GatewayId, MeshReport)>,
    /// The number of this gateway's last report, and the time when it was made.
    number: u64,
    reported_at: Option<TimeNs>,
    /// Whether this gateway's next report is due.
    unreported: bool,
    /// Whether the graph, or any report, has changed since it was taken.
    changed: bool,
}

/// This gateway's end of a connection.
#[derive(Debug)]
struct MeshTableConnection {
    state: MeshConnectionState,
    /// The time since which it is awaited while another way leads to the peer.
    awaited_since: Option<TimeNs>,
}

impl MeshTableConnection {
    /// Makes the end of a connection that is not up, to a peer that is not reached.
    const fn awaited() -> Self {
        Self { state: MeshConnectionState::Awaited, awaited_since: None }
    }
}

impl MeshTable {
    /// Makes the table of gateway `me`, with no connection up.
    pub fn new(fabric: Arc<Fabric>, me: GatewayId) -> Self {
        let peers = fabric.gateway_ids().filter(|id| *id != me && fabric.connects(me, *id));
        let own = peers.map(|id| (id, MeshTableConnection::awaited())).collect();
        let graph = MeshGraph::uniform(&fabric, MeshConnectionState::Awaited);
        let routes = Routes::from_gateway(&graph, me);
        Self {
            fabric,
            me,
            own,
            reports: BTreeMap::new(),
            graph: Arc::new(graph),
            routes,
            outgoing: VecDeque::new(),
            number: 0,
            reported_at: None,
            unreported: false,
            changed: false,
        }
    }

    /// Returns the graph of all connections.
    pub fn graph(&self) -> &Arc<MeshGraph> {
        &self.graph
    }

    /// Returns the routes from this gateway.
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Returns the regions whose link to this gateway's region could be gone round.
    pub fn regions_with_way_round(&self) -> BTreeSet<RegionId> {
        self.graph.regions_with_way_round(&self.fabric, self.fabric.gateway(self.me).region)
    }

    /// Removes and returns the next report to send, and the neighbour to send it to; `None` when
    /// all are sent.
    pub fn poll_report(&mut self) -> Option<(GatewayId, MeshReport)> {
        self.outgoing.pop_front()
    }

    /// Returns the graph if it, or any report, has changed since the last call, else `None`.
    /// Messages through other gateways may then be lost, and are to be repeated.
    pub fn take_change(&mut self) -> Option<Arc<MeshGraph>> {
        std::mem::take(&mut self.changed).then(|| Arc::clone(&self.graph))
    }

    /// Records that this gateway's end of a connection is up, and sends the peer all reports. Other
    /// neighbours get this gateway's report when one is due.
    pub fn handle_up(&mut self, peer: GatewayId, now: TimeNs) {
        let Some(own) = self.own.get_mut(&peer) else { return };
        *own = MeshTableConnection { state: MeshConnectionState::Up, awaited_since: None };
        // The peer learns at once that the connection is up, and others in the next report.
        self.renew_report(now);
        self.send_all_to(peer);
        self.unreported = true;
        self.report_if_due(now);
    }

    /// Records and reports that a connection is lost; `silent` says whether its path just fell
    /// silent. It is then gone round if another way leads to the peer, and awaited otherwise.
    pub fn handle_down(&mut self, peer: GatewayId, silent: bool, now: TimeNs) {
        let Some(own) = self.own.get_mut(&peer) else { return };
        *own = MeshTableConnection::awaited();
        self.update_graph(now);
        if silent && self.routes.reaches(peer) {
            self.own.insert(
                peer,
                MeshTableConnection { state: MeshConnectionState::Down, awaited_since: None },
            );
        }
        self.report(now);
    }

    /// Sends a neighbour all reports, since earlier ones may be lost.
    pub fn send_all_to(&mut self, peer: GatewayId) {
        self.outgoing.extend(self.reports.values().map(|report| (peer, report.clone())));
    }

    /// Records that messages which this gateway forwards may be lost. The next report says so; none
    /// is made where all gateways are connected directly.
    pub fn handle_messages_lost(&mut self, now: TimeNs) {
        if !self.graph.is_complete() {
            self.unreported = true;
            self.report_if_due(now);
        }
    }

    /// Adds a report that a neighbour made or passed on to the graph. Passes it on to neighbours
    /// that do not get it from its gateway itself. A report that is no newer than the known one
    /// changes nothing. One of an earlier start of this gateway makes its own reports count on from
    /// there.
    ///
    /// # Errors
    /// [`InvalidReport`]: the neighbour breaks the protocol.
    pub fn handle_report(
        &mut self,
        neighbour: GatewayId,
        report: MeshReport,
        now: TimeNs,
    ) -> Result<(), InvalidReport> {
        let gateway = report.gateway;
        if !self.is_valid(&report) {
            return Err(InvalidReport(gateway));
        }
        let known = self.reports.get(&gateway);
        if gateway == self.me {
            let same = report.number == self.number && known == Some(&report);
            if report.number >= self.number && !same {
                // A predecessor's: this gateway was started again, and counts on from there.
                self.number = report.number.min(REPORT_NUMBERS_BOUND - 2);
                self.report(now);
            }
            return Ok(());
        }
        if known.is_some_and(|known| known.number >= report.number) {
            return Ok(());
        }
        let from_itself = |to: &GatewayId| report.up.binary_search(to).is_ok();
        let open = self.own.iter().filter(|(_, own)| own.state == MeshConnectionState::Up);
        let others = open.map(|(to, _)| *to).filter(|to| *to != neighbour && *to != gateway);
        let lacking = others.filter(|to| !from_itself(to));
        self.outgoing.extend(lacking.map(|to| (to, report.clone())));
        self.reports.insert(gateway, report);
        self.changed = true;
        self.update_graph(now);
        Ok(())
    }

    /// Returns the time at which [`MeshTable::handle_time`] has something to do; `None` while
    /// only events change anything.
    pub fn poll_timeout(&self) -> Option<TimeNs> {
        let reported = self.reported_at.map_or(TimeNs::default(), |at| at + REPORT_INTERVAL);
        let report = self.unreported.then_some(reported);
        let awaited = self.own.iter().filter(|(_, own)| own.state == MeshConnectionState::Awaited);
        let late =
            awaited.filter_map(|(peer, own)| Some(own.awaited_since? + self.awaited_for(*peer)));
        late.chain(report).min()
    }

    /// Goes round connections that were awaited for too long, and makes the report that is due.
    /// Called at the time of [`MeshTable::poll_timeout`], or more often.
    pub fn handle_time(&mut self, now: TimeNs) {
        let is_late = |(peer, own): (&GatewayId, &MeshTableConnection)| {
            let since = own.awaited_since.filter(|_| own.state == MeshConnectionState::Awaited)?;
            (now >= since + self.awaited_for(*peer)).then_some(*peer)
        };
        let late: Vec<GatewayId> = self.own.iter().filter_map(is_late).collect();
        for peer in &late {
            self.own.insert(
                *peer,
                MeshTableConnection { state: MeshConnectionState::Down, awaited_since: None },
            );
        }
        if late.is_empty() {
            self.report_if_due(now);
        } else {
            self.report(now);
        }
    }

    /// Replaces the fabric by one with other rates, round trips or losses of links.
    pub fn replace_fabric(&mut self, fabric: Arc<Fabric>) {
        self.fabric = fabric;
    }

    /// Returns the time for which the connection to a peer is awaited before it is gone round, while other
    /// routes reach the peer. A gateway that was just started is connected sooner, so that its links are
    /// not left for a moment (`a_connection_is_awaited_before_it_is_gone_round`).
    fn awaited_for(&self, peer: GatewayId) -> Span {
        let [here, there] = [self.me, peer].map(|id| self.fabric.gateway(id).region);
        let rtt = self.fabric.link(here, there).map_or(Span::ZERO, |link| link.rtt);
        self.fabric.patience().awaited_for(rtt)
    }

    /// Whether a report is about connections of the fabric.
    fn is_valid(&self, report: &MeshReport) -> bool {
        let known = |id: GatewayId| usize::from(id.0) < self.fabric.gateways().len();
        let mut ends = report.up.iter().chain(&report.down);
        known(report.gateway)
            && ends.all(|end| known(*end) && self.fabric.connects(report.gateway, *end))
    }

    /// Makes this gateway's report if it is due and the last one is old enough.
    fn report_if_due(&mut self, now: TimeNs) {
        let recent = self.reported_at.is_some_and(|at| now < at + REPORT_INTERVAL);
        if self.unreported && !recent {
            self.report(now);
        }
    }

    /// Makes this gateway's report, and sends it to all neighbours.
    fn report(&mut self, now: TimeNs) {
        (self.unreported, self.reported_at) = (false, Some(now));
        self.renew_report(now);
        let Some(report) = self.reports.get(&self.me) else { return };
        self.outgoing.extend(report.up.iter().map(|to| (*to, report.clone())));
    }

    /// Replaces this gateway's report by one of its present connections, with the next number, and
    /// updates the graph.
    fn renew_report(&mut self, now: TimeNs) {
        self.number += 1;
        let of_state = |state: MeshConnectionState| {
            let own = self.own.iter().filter(move |(_, own)| own.state == state);
            own.map(|(peer, _)| *peer).collect::<Vec<_>>()
        };
        let (up, down) = (of_state(MeshConnectionState::Up), of_state(MeshConnectionState::Down));
        let report = MeshReport { gateway: self.me, number: self.number, up, down };
        self.reports.insert(self.me, report);
        self.changed = true;
        self.update_graph(now);
    }

    /// Makes the graph anew from this gateway's connections and all reports.
    fn update_graph(&mut self, now: TimeNs) {
        self.rebuild_graph();
        if self.follow_reachability(now) {
            self.rebuild_graph();
        }
    }

    /// Makes graph and routes anew. A connection is up if both ends say so, down if one end does,
    /// and awaited otherwise.
    fn rebuild_graph(&mut self) {
        let graph = MeshGraph::new(&self.fabric, |one, other| {
            use MeshConnectionState::{Awaited, Down, Up};
            match (self.state_at(one, other), self.state_at(other, one)) {
                (Up, Up) => Up,
                (Down, _) | (_, Down) => Down,
                _ => Awaited,
            }
        });
        if graph != *self.graph {
            self.routes = Routes::from_gateway(&graph, self.me);
            self.graph = Arc::new(graph);
            self.changed = true;
        }
    }

    /// Returns the state of a connection at one of its ends.
    fn state_at(&self, end: GatewayId, peer: GatewayId) -> MeshConnectionState {
        let state = if end == self.me {
            self.own.get(&peer).map(|own| own.state)
        } else {
            self.reports.get(&end).map(|report| report.state_of(peer))
        };
        state.unwrap_or(MeshConnectionState::Awaited)
    }

    /// Begins to wait for a missing connection once another route reaches its peer. A connection
    /// whose peer no route reaches is awaited without a limit, also if it was gone round. Returns
    /// whether a connection was, and is awaited again.
    fn follow_reachability(&mut self, now: TimeNs) -> bool {
        let mut again = false;
        let missing = self.own.iter_mut().filter(|(_, own)| own.state != MeshConnectionState::Up);
        for (peer, own) in missing {
            if !self.routes.reaches(*peer) {
                again |= own.state == MeshConnectionState::Down;
                *own = MeshTableConnection::awaited();
            } else if own.state == MeshConnectionState::Awaited {
                own.awaited_since.get_or_insert(now);
            }
        }
        self.unreported |= again;
        again
    }
}
