//! Sites as network namespaces on this machine, with links between them.
//!
//! Each site has one device, `wan0`, through which it reaches every other site. Any
//! program runs there unmodified; TCP and UDP segmentation offload stay on, and every
//! segment meets its link by itself. Needs the privilege to make namespaces and devices.

mod hosts;
mod pump;
mod site;
mod tun;
mod vnet;

use crate::clock::RunClock;
use crate::recording::Recorder;
use crate::topology::{Place, SITES_MAX, Topology, addresses};
use crate::{Counters, Fidelity, FidelityLimits, FidelityReport};
use hosts::Hosts;
use pump::{Ingress, Numbered, Pump, SiteState, lock};
use site::Namespace;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use tun::Tun;
use units::{ByteCount, Span};

/// A lab at work. Dropping it removes everything it made.
#[derive(Debug)]
pub struct Lab {
    sites: Vec<String>,
    shortest_round_trip: Span,
    clock: RunClock,
    states: Vec<Arc<Mutex<SiteState>>>,
    ingress: Arc<Vec<Option<Mutex<Ingress>>>>,
    tuns: Arc<Vec<Tun>>,
    recorder: Option<Arc<Mutex<Recorder>>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Readable when a thread has ended; closing it ends all.
    life: Vec<UnixStream>,
    namespaces: Vec<Namespace>,
}

/// Why there is no lab.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// This process may not, or this machine cannot.
    #[error("{what}: {source}; run as root on a machine with /dev/net/tun and iproute2")]
    Unprivileged {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// More sites than addresses. The caller's fault.
    #[error("{0} sites are more than the {SITES_MAX} that a lab can have")]
    TooManySites(usize),
    /// What a killed lab left behind does not go.
    #[error("cannot remove the network namespaces {0}: run as root, with `ip` of iproute2")]
    Left(String),
    /// Something else failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// One direction of a link of a lab, or of a site's port, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The sending site; `None` where this is the port of the receiving one.
    pub from: Option<String>,
    /// The receiving site; `None` where this is the port of the sending one.
    pub to: Option<String>,
    /// What it has seen.
    pub counters: Counters,
    /// Bytes that wait.
    pub queue: ByteCount,
    /// The most that ever waited.
    pub queue_peak: ByteCount,
}

impl Lab {
    /// Makes the namespaces, named `prefix` and the site, and starts the links.
    ///
    /// # Errors
    /// [`LabError`]; nothing is left behind then.
    pub fn start(
        topology: &Topology,
        prefix: &str,
        recorder: Option<Recorder>,
    ) -> Result<Self, LabError> {
        let count = topology.sites.len();
        if count > SITES_MAX {
            return Err(LabError::TooManySites(count));
        }
        let hosts = hosts(&topology.sites);
        let mut namespaces = Vec::new();
        let mut tuns = Vec::new();
        for (site, name) in topology.sites.iter().enumerate() {
            let namespace = Namespace::create(namespace_name(prefix, name), &hosts)?;
            tuns.push(namespace.device(site, topology.mtu)?);
            namespaces.push(namespace);
        }
        let Parts { states, ingress, recorder } = parts(topology, recorder);
        let mut lab = Self {
            sites: topology.sites.clone(),
            shortest_round_trip: topology.shortest_round_trip(),
            clock: RunClock::start(),
            states,
            ingress: Arc::new(ingress),
            tuns: Arc::new(tuns),
            recorder: recorder.map(|recorder| Arc::new(Mutex::new(recorder))),
            threads: Vec::new(),
            life: Vec::new(),
            namespaces,
        };
        for (site, state) in lab.states.iter().enumerate() {
            let (mut life, pump_life) = UnixStream::pair()?;
            let pump = Pump {
                site,
                clock: lab.clock.clone(),
                tuns: Arc::clone(&lab.tuns),
                state: Arc::clone(state),
                ingress: Arc::clone(&lab.ingress),
                recorder: lab.recorder.clone(),
                life: pump_life,
                under_way: BTreeMap::new(),
                hosts: Hosts::new(topology.sites.len()),
                sent: 0,
                step: pump::step(lab.shortest_round_trip),
                spare: Vec::new(),
            };
            let name = format!("wan-sim {}", topology.sites[site]);
            let thread = std::thread::Builder::new().name(name).spawn(move || pump.run())?;
            lab.threads.push(thread);
            // Until its thread runs.
            life.read_exact(&mut [0])?;
            lab.life.push(life);
        }
        Ok(lab)
    }

    /// Every direction of every link, and every port.
    pub fn status(&self) -> Vec<LinkStatus> {
        let now = self.clock.now();
        let site = |site: usize| Some(self.sites[site].clone());
        let mut status = Vec::new();
        for (from, state) in self.states.iter().enumerate() {
            let mut state = lock(state);
            for (to, link) in state.links.iter_mut().enumerate() {
                status.extend(link.as_mut().map(|link| link.status(now, site(from), site(to))));
            }
            status.extend(state.egress.as_mut().map(|port| port.status(now, site(from), None)));
        }
        for (to, port) in self.ingress.iter().enumerate() {
            status.extend(port.as_ref().map(|port| lock(port).port.status(now, None, site(to))));
        }
        status
    }

    /// How true the lab is to its links so far.
    pub fn fidelity(&self) -> FidelityReport {
        let mut all = Fidelity::default();
        self.states.iter().for_each(|state| all.merge(&lock(state).fidelity));
        all.dropped(self.tuns.iter().map(|tun| tun.overflowed(site::DEVICE)).sum());
        let limits = FidelityLimits::for_round_trip(self.shortest_round_trip);
        all.report(&limits, &self.clock.elapsed())
    }

    /// Packets that were sent to where no link leads.
    pub fn unreachable(&self) -> u64 {
        self.states.iter().map(|state| lock(state).unreachable).sum()
    }

    /// One for each site: readable once that site's thread has ended by itself.
    pub fn ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.life.iter().map(AsFd::as_fd)
    }

    /// Stops the links and removes the namespaces.
    ///
    /// # Errors
    /// What ended a thread before its time, or left the recording unfinished.
    pub fn stop(mut self) -> io::Result<()> {
        self.end()?;
        let recorder = self.recorder.take().and_then(Arc::into_inner);
        match recorder.and_then(|recorder| recorder.into_inner().ok()) {
            Some(recorder) => recorder.finish(),
            None => Ok(()),
        }
    }

    fn end(&mut self) -> io::Result<()> {
        self.life.clear();
        let mut result = Ok(());
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err(io::Error::other("a site's thread panicked")));
            result = result.and(ended);
        }
        self.namespaces.clear();
        result
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// What was tried where there is no iproute2.
pub const NO_IP: &str = "cannot run `ip` of iproute2";

/// The network namespace of a site.
pub fn namespace_name(prefix: &str, site: &str) -> String {
    format!("{prefix}{site}")
}

/// Whether this process may run programs at a site.
///
/// # Errors
/// [`LabError::Unprivileged`]; [`LabError::System`] where this process does not see it.
pub fn may_enter(namespace: &str) -> Result<(), LabError> {
    site::may_enter(namespace).map_err(|source| match source.kind() {
        // What is bound there is not seen from here.
        io::ErrorKind::InvalidInput => io::Error::other(format!(
            "{namespace} was made by a program at another site: enter it from that program"
        ))
        .into(),
        _ => LabError::Unprivileged { what: "cannot enter a network namespace", source },
    })
}

/// Removes what a lab with this prefix left behind when it was killed. Returns the names of
/// the namespaces removed.
///
/// # Errors
/// [`LabError::Left`], where any is still there.
pub fn remove_orphans(prefix: &str) -> Result<Vec<String>, LabError> {
    let names = site::namespaces(prefix);
    names.iter().for_each(|name| drop(Namespace::found(name.clone())));
    let left = site::namespaces(prefix);
    if left.is_empty() { Ok(names) } else { Err(LabError::Left(left.join(", "))) }
}

/// Network namespaces that a lab with this prefix has or left behind.
pub fn namespaces(prefix: &str) -> Vec<String> {
    site::namespaces(prefix)
}

struct Parts {
    states: Vec<Arc<Mutex<SiteState>>>,
    ingress: Vec<Option<Mutex<Ingress>>>,
    recorder: Option<Recorder>,
}

fn parts(topology: &Topology, mut recorder: Option<Recorder>) -> Parts {
    let sites = topology.sites.len();
    let mut states: Vec<_> = (0..sites).map(|_| SiteState::new(sites)).collect();
    let mut ingress: Vec<_> = (0..sites).map(|_| None).collect();
    for (number, path) in topology.paths().into_iter().enumerate() {
        if let Some(recorder) = &mut recorder {
            recorder.link(number, &path.name, path.seed, path.spec);
            recorder.script(number, &path.script);
        }
        let numbered = Numbered { number, link: path.link() };
        match path.place {
            Place::Link { from, to } => states[from].links[to] = Some(numbered),
            Place::Egress(site) => states[site].egress = Some(numbered),
            Place::Ingress(site) => ingress[site] = Some(Mutex::new(Ingress::new(numbered))),
        }
    }
    let states = states.into_iter().map(|state| Arc::new(Mutex::new(state))).collect();
    Parts { states, ingress, recorder }
}

fn hosts(sites: &[String]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (site, name) in sites.iter().enumerate() {
        let (v4, v6) = addresses(site);
        text.push_str(&format!("{v4} {name}\n{v6} {name}\n"));
    }
    text
}
