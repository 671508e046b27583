//! The IP addresses that the host names of a peer have now.
//!
//! All diallers of a peer share its [`PeerLocation`]. The engine asks it why a peer cannot be found.

use super::{PeerAddress, PeerAddresses, is_reached_from_peer_address};
use crate::host::Host;
use crate::lock::lock_ignoring_poison;
use crate::wan::connect::lane_addresses::LaneAddresses;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use units::{Span, TimeNs};

/// 5 s: a host name that is not resolved within this time counts as unresolved, until it is asked for
/// again. It is how long a resolver waits for the answer of one server by default (resolv.conf).
pub(in crate::wan::connect) const RESOLUTION_TIMEOUT: Span = Span::from_secs(5);
/// 1 s between two questions for the host names of one peer, whichever lanes ask. It is the time
/// between two attempts to dial.
/// Tested by `lanes_share_one_question_for_a_name`.
const RESOLUTION_INTERVAL: Span = Span::from_secs(1);
/// The action for an operator where a host name cannot be resolved, which all reports say alike.
pub const UNRESOLVED_NAME_REMEDY: &str = "correct the name in the fabric file, its entry in the DNS \
     or /etc/hosts, or this host's resolver (/etc/resolv.conf), or state an IP address; a running \
     gateway asks again by itself";

/// The addresses of a peer, and those that its host names had when they were last resolved.
#[derive(Debug)]
pub struct PeerLocation {
    addresses: PeerAddresses,
    resolution: Mutex<Resolution>,
    /// Held by the lane that resolves names.
    question: tokio::sync::Mutex<()>,
}

/// The answers to the last questions.
#[derive(Debug)]
struct Resolution {
    /// The IP addresses of each address, in the order in which they are tried; none of a name that was
    /// never resolved.
    found: Vec<Vec<IpAddr>>,
    /// The place of the IP address that answered last among those of its name.
    turn: usize,
    /// When the last question ended.
    asked: Option<TimeNs>,
    /// Why a name could not be resolved the last time.
    problem: Option<String>,
}

impl PeerLocation {
    /// Makes the location of a peer, whose host names are not resolved yet.
    pub fn new(addresses: PeerAddresses) -> Self {
        let ip = |address: &PeerAddress| address.ip_address().map(|address| address.ip());
        let found = addresses.all().iter().map(|address| ip(address).into_iter().collect());
        let resolution = Resolution { found: found.collect(), turn: 0, asked: None, problem: None };
        Self { addresses, resolution: Mutex::new(resolution), question: Default::default() }
    }

    /// Returns the number of addresses, at least 1.
    pub fn count(&self) -> u16 {
        self.addresses.count()
    }

    /// Returns whether an address is a host name.
    pub fn has_names(&self) -> bool {
        self.addresses.have_names()
    }

    /// Returns the addresses as last resolved, of each name the one that answered last or comes first.
    /// `None` while a name was never resolved, and where two names have one address.
    pub fn now(&self) -> Option<LaneAddresses> {
        let turn = self.turn();
        let all: Option<Vec<SocketAddr>> =
            (0..self.count()).map(|lane| self.of_lane(lane, turn)).collect();
        LaneAddresses::from_addresses(&all?)
    }

    /// Returns all addresses that the peer has, as far as its names are resolved.
    pub fn all(&self) -> Vec<SocketAddr> {
        let resolution = lock_ignoring_poison(&self.resolution);
        let ports = self.addresses.all().iter().map(PeerAddress::port);
        let each = resolution.found.iter().zip(ports);
        each.flat_map(|(found, port)| found.iter().map(move |ip| SocketAddr::new(*ip, port)))
            .collect()
    }

    /// Returns the UDP address of a lane in the attempt number `turn`. Attempts try the addresses of
    /// a name in turn. `None` if its name was never resolved.
    pub(in crate::wan::connect) fn of_lane(&self, lane: u16, turn: usize) -> Option<SocketAddr> {
        let index = usize::from(lane % self.count());
        let resolution = lock_ignoring_poison(&self.resolution);
        let found = &resolution.found[index];
        let ip = found.get(turn.checked_rem(found.len())?)?;
        Some(SocketAddr::new(*ip, self.addresses.all()[index].port()))
    }

    /// Returns the number of the attempt with which dialling begins.
    pub(in crate::wan::connect) fn turn(&self) -> usize {
        lock_ignoring_poison(&self.resolution).turn
    }

    /// Records that the peer has answered the attempt number `turn`.
    pub(in crate::wan::connect) fn note_answer(&self, turn: usize) {
        let mut resolution = lock_ignoring_poison(&self.resolution);
        (resolution.turn, resolution.problem) = (turn, None);
    }

    /// Returns whether the peer has the IP address `ip`, at any port, as far as its names are resolved.
    pub fn has_ip(&self, ip: IpAddr) -> bool {
        let resolution = lock_ignoring_poison(&self.resolution);
        resolution.found.iter().flatten().any(|found| *found == ip.to_canonical())
    }

    /// Returns why a host name could not be resolved the last time; `None` if it could, or if the peer
    /// has answered since. The remedy is [`UNRESOLVED_NAME_REMEDY`].
    pub fn problem(&self) -> Option<String> {
        lock_ignoring_poison(&self.resolution).problem.clone()
    }

    /// Resolves the host names to addresses that `own` reaches, unless another lane does so or did
    /// within the last second. A name that cannot be resolved keeps its addresses. Returns whether the
    /// addresses have changed.
    pub async fn refresh(&self, host: &dyn Host, own: IpAddr) -> bool {
        if !self.has_names() {
            return false;
        }
        let before = lock_ignoring_poison(&self.resolution).found.clone();
        let is_known = before.iter().all(|found| !found.is_empty());
        let _asking = match self.question.try_lock() {
            Ok(asking) => asking,
            Err(_) if is_known => return false,
            Err(_) => self.question.lock().await,
        };
        let asked = lock_ignoring_poison(&self.resolution).asked;
        if asked.is_none_or(|asked| host.now().since(asked) >= RESOLUTION_INTERVAL) {
            let mut problem = None;
            for (index, address) in self.addresses.all().iter().enumerate() {
                let Some(name) = address.host_name() else { continue };
                match resolve_peer_name(host, name, own).await {
                    Ok(found) => self.note_found(index, found),
                    Err(error) => problem = Some(error.to_string()),
                }
            }
            let mut resolution = lock_ignoring_poison(&self.resolution);
            (resolution.asked, resolution.problem) = (Some(host.now()), problem);
        }
        lock_ignoring_poison(&self.resolution).found != before
    }

    /// Stores the IP addresses of the name at `index`. Those that were known stay in their order, since
    /// the DNS gives them in another order each time.
    fn note_found(&self, index: usize, found: Vec<IpAddr>) {
        let mut resolution = lock_ignoring_poison(&self.resolution);
        let old = &mut resolution.found[index];
        let is_same = old.len() == found.len() && found.iter().all(|ip| old.contains(ip));
        if !is_same {
            *old = found;
            resolution.turn = 0;
        }
    }
}

/// The reason why the addresses of a host name are not known.
#[derive(Debug, thiserror::Error)]
enum UnresolvedName {
    /// The system knows no address of it.
    #[error("host name `{name}` cannot be resolved: {source}")]
    Failed {
        /// The name.
        name: String,
        /// The answer of the system.
        source: io::Error,
    },
    /// It has addresses of the other family alone.
    #[error("host name `{name}` has no {family} address, and this gateway sends from {own}")]
    OtherFamily {
        /// The name.
        name: String,
        /// IPv4 or IPv6.
        family: &'static str,
        /// The address from which the gateway sends.
        own: IpAddr,
    },
}

/// Returns the addresses of a host name to which a socket at `own` can send, each once.
async fn resolve_peer_name(
    host: &dyn Host,
    name: &str,
    own: IpAddr,
) -> Result<Vec<IpAddr>, UnresolvedName> {
    let found = tokio::select! {
        biased;
        found = host.resolve_host_name(name) => found,
        () = host.sleep_until(host.now() + RESOLUTION_TIMEOUT) => {
            Err(io::Error::other(format!("the resolver has not answered within {RESOLUTION_TIMEOUT}")))
        }
    };
    let name = name.to_owned();
    let found = match found {
        Ok(found) => found,
        Err(source) => return Err(UnresolvedName::Failed { name, source }),
    };
    let mut reached: Vec<IpAddr> = Vec::new();
    for ip in found.into_iter().filter(|ip| is_reached_from_peer_address(own, *ip)) {
        if !reached.contains(&ip) {
            reached.push(ip);
        }
    }
    let family = if own.is_ipv4() { "IPv4" } else { "IPv6" };
    match reached.is_empty() {
        true => Err(UnresolvedName::OtherFamily { name, family, own }),
        false => Ok(reached),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::VirtualHost;
    use crate::simulate::run_with_simulated_clock;
    use wan_sim::VirtualNet;

    const OWN: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 9));

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Returns the location of a peer with the host name `gw`, and a host that does not know it yet.
    fn named_location() -> (PeerLocation, VirtualHost) {
        let addresses = PeerAddresses::of_host_name("GW", 7400);
        (PeerLocation::new(addresses), VirtualHost::new(VirtualNet::new(), 1))
    }

    /// Waits until names are asked for again, and asks.
    async fn refresh_later(location: &PeerLocation, host: &VirtualHost, own: IpAddr) -> bool {
        host.sleep_until(host.now() + RESOLUTION_INTERVAL).await;
        location.refresh(host, own).await
    }

    #[test]
    fn names_are_resolved_again_and_kept_when_that_fails() {
        let ran = run_with_simulated_clock(async {
            let (location, host) = named_location();
            assert!(!location.refresh(&host, OWN).await);
            let problem = location.problem().expect("unknown");
            assert!(problem.contains("host name `gw` cannot be resolved"), "{problem}");
            assert_eq!(location.now(), None);
            host.set_host_name("gw", vec![ip("fd00::1")]);
            assert!(!refresh_later(&location, &host, OWN).await);
            let problem = location.problem().expect("IPv6");
            assert!(problem.contains("no IPv4 address"), "{problem}");
            assert!(refresh_later(&location, &host, ip("::")).await, "both families");
            let mut found = Vec::new();
            let first = vec![ip("10.0.0.3"), ip("fd00::1"), ip("10.0.0.2")];
            for ips in [first, vec![ip("10.0.0.7")], vec![]] {
                let is_known = !ips.is_empty();
                host.set_host_name("gw", ips);
                assert_eq!(refresh_later(&location, &host, OWN).await, is_known);
                assert_eq!(location.problem().is_none(), is_known);
                found.push(location.now().expect("resolved").of_lane(3).to_string());
            }
            assert_eq!(found, ["10.0.0.3:7400", "10.0.0.7:7400", "10.0.0.7:7400"]);
            location.note_answer(0);
            assert_eq!(location.problem(), None, "it is there");
        });
        ran.expect("a runtime");
    }

    #[test]
    fn addresses_of_a_name_are_tried_in_turn() {
        let ran = run_with_simulated_clock(async {
            let (location, host) = named_location();
            host.set_host_name("gw", vec![ip("10.0.0.3"), ip("10.0.0.2"), ip("10.0.0.3")]);
            assert!(location.refresh(&host, OWN).await);
            let tried = |from: usize| {
                let each = (from..from + 3).map(|turn| location.of_lane(5, turn).expect("known"));
                each.map(|address| address.ip().to_string()).collect::<Vec<_>>()
            };
            assert_eq!(tried(location.turn()), ["10.0.0.3", "10.0.0.2", "10.0.0.3"]);
            location.note_answer(1);
            host.set_host_name("gw", vec![ip("10.0.0.2"), ip("10.0.0.3")]);
            assert!(!refresh_later(&location, &host, OWN).await, "the same in another order");
            assert_eq!(tried(location.turn())[0], "10.0.0.2", "the one that answered");
            assert!(location.has_ip(ip("::ffff:10.0.0.3")) && !location.has_ip(ip("10.0.0.4")));
        });
        ran.expect("a runtime");
    }

    #[test]
    fn lanes_share_one_question_for_a_name() {
        let ran = run_with_simulated_clock(async {
            let (location, host) = named_location();
            host.set_host_name("gw", vec![ip("10.0.0.3")]);
            let both = tokio::join!(location.refresh(&host, OWN), location.refresh(&host, OWN));
            assert_eq!(both, (true, true));
            assert_eq!(host.name_questions(), 1);
            host.set_host_name("gw", vec![ip("10.0.0.4")]);
            assert!(!location.refresh(&host, OWN).await, "asked just now");
            assert!(refresh_later(&location, &host, OWN).await);
            assert_eq!(host.name_questions(), 2);
        });
        ran.expect("a runtime");
    }

    #[test]
    fn a_resolver_that_is_silent_is_given_up() {
        let ran = run_with_simulated_clock(async {
            let (location, host) = named_location();
            host.silence_resolver(true);
            let began = host.now();
            location.refresh(&host, OWN).await;
            assert_eq!(host.now().since(began), RESOLUTION_TIMEOUT);
            let problem = location.problem().expect("no answer");
            assert!(problem.contains("has not answered within 5 s"), "{problem}");
        });
        ran.expect("a runtime");
    }
}
