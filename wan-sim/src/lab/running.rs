//! A lab at work: it makes the namespaces, starts a thread for each site, and removes all again.

use super::error::LabError;
use super::hosts::Hosts;
use super::links::{Parts, parts};
use super::namespace::{DEVICE, Namespace, namespace_name};
use super::pump::{self, Ingress, SitePump, SiteState, lock};
use super::status::LinkStatus;
use super::tun::Tun;
use crate::clock::RunClock;
use crate::recording::Recorder;
use crate::topology::{SITES_MAX, Topology, addresses};
use crate::{Fidelity, FidelityLimits, FidelityReport};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use units::Span;

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
            let pump = SitePump {
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
        all.dropped(self.tuns.iter().map(|tun| tun.overflowed(DEVICE)).sum());
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

fn hosts(sites: &[String]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (site, name) in sites.iter().enumerate() {
        let (v4, v6) = addresses(site);
        text.push_str(&format!("{v4} {name}\n{v6} {name}\n"));
    }
    text
}
