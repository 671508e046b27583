//! Sites as network namespaces on this machine, with links between them.
//!
//! Each site has one device, `wan0`, through which it reaches every other site. Any
//! program runs there unmodified; TCP and UDP segmentation offload stay on, and every
//! segment meets its link by itself. Needs the privilege to make namespaces and devices.

#![expect(clippy::disallowed_methods, reason = "a front end reads the clock")]

mod pump;
mod site;
mod tun;
mod vnet;

use crate::recording::Recorder;
use crate::topology::Topology;
use crate::{Counters, Fidelity, FidelityReport, Link, LinkSpec};
use pump::{LIMITS, Pump, SiteState, lock};
use site::Namespace;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;
use units::{ByteCount, TimeNs};

/// A lab at work. Dropping it removes everything it made.
#[derive(Debug)]
pub struct Lab {
    sites: Vec<String>,
    origin: Instant,
    states: Vec<Arc<Mutex<SiteState>>>,
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
    /// Something else failed.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// One direction of a link of a lab, as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkStatus {
    /// The sending site.
    pub from: String,
    /// The receiving site.
    pub to: String,
    /// What it has seen.
    pub counters: Counters,
    /// Bytes that wait.
    pub queue: ByteCount,
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
        let (states, recorder) = states(topology, recorder);
        let mut lab = Self {
            sites: topology.sites.clone(),
            origin: Instant::now(),
            states,
            recorder: recorder.map(|recorder| Arc::new(Mutex::new(recorder))),
            threads: Vec::new(),
            life: Vec::new(),
            namespaces,
        };
        let tuns = Arc::new(tuns);
        for (site, state) in lab.states.iter().enumerate() {
            let (mut life, pump_life) = UnixStream::pair()?;
            let pump = Pump {
                site,
                origin: lab.origin,
                tuns: Arc::clone(&tuns),
                state: Arc::clone(state),
                recorder: lab.recorder.clone(),
                life: pump_life,
                under_way: BTreeMap::new(),
                sent: 0,
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

    /// Every direction of every link.
    pub fn status(&self) -> Vec<LinkStatus> {
        let now = self.origin.elapsed().as_nanos();
        let now = TimeNs::from_ns(u64::try_from(now).unwrap_or(u64::MAX));
        let mut status = Vec::new();
        for (from, state) in self.states.iter().enumerate() {
            for (to, link) in lock(state).links.iter_mut().enumerate() {
                let Some((_, link)) = link else { continue };
                status.push(LinkStatus {
                    from: self.sites[from].clone(),
                    to: self.sites[to].clone(),
                    counters: link.counters(),
                    queue: link.queue_bytes(now),
                });
            }
        }
        status
    }

    /// How true the lab is to its links so far.
    pub fn fidelity(&self) -> FidelityReport {
        let mut all = Fidelity::default();
        self.states.iter().for_each(|state| all.merge(&lock(state).fidelity));
        all.report(&LIMITS)
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

/// The network namespace of a site.
pub fn namespace_name(prefix: &str, site: &str) -> String {
    format!("{prefix}{site}")
}

/// Removes what a lab with this prefix left behind when it was killed. Returns the names of
/// the namespaces removed.
pub fn remove_orphans(prefix: &str) -> Vec<String> {
    let names = site::namespaces(prefix);
    names.iter().for_each(|name| drop(Namespace::found(name.clone())));
    names
}

/// Network namespaces that a lab with this prefix has or left behind.
pub fn namespaces(prefix: &str) -> Vec<String> {
    site::namespaces(prefix)
}

type States = Vec<Arc<Mutex<SiteState>>>;

fn states(topology: &Topology, mut recorder: Option<Recorder>) -> (States, Option<Recorder>) {
    let count = topology.sites.len();
    let mut links: Vec<Vec<Option<(usize, Link)>>> =
        (0..count).map(|_| (0..count).map(|_| None).collect()).collect();
    let mut number = 0;
    let mut add = |from: usize, to: usize, spec: LinkSpec| {
        // Every direction draws for itself.
        let seed = topology.seed.wrapping_mul(0x1_0001).wrapping_add(number as u64);
        if let Some(recorder) = &mut recorder {
            let name = format!("{}_{}", topology.sites[from], topology.sites[to]);
            recorder.link(number, &name, seed, spec);
        }
        links[from][to] = Some((number, Link::new(spec, seed)));
        number += 1;
    };
    for link in &topology.links {
        add(link.a, link.b, link.a_to_b);
        add(link.b, link.a, link.b_to_a);
    }
    let state = |links| SiteState { links, fidelity: Fidelity::default(), unreachable: 0 };
    let states = links.into_iter().map(|links| Arc::new(Mutex::new(state(links)))).collect();
    (states, recorder)
}

fn hosts(sites: &[String]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (site, name) in sites.iter().enumerate() {
        let (v4, v6) = site::addresses(site);
        text.push_str(&format!("{v4} {name}\n{v6} {name}\n"));
    }
    text
}

/// Most sites: each has one byte pair of address, none of them all ones.
pub const SITES_MAX: usize = 1000;
