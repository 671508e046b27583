//! A lab at work: it makes the namespaces, starts a thread for each site, and removes all again.

use super::error::LabError;
use super::host_receipts::HostReceipts;
use super::lab_links::{LabLinks, build_lab_links};
use super::namespace::{DEVICE_NAME, Namespace, namespace_name};
use super::site_pump::{self, PumpedSite, SitePump, SitePumpPort};
use super::status::LinkStatus;
use super::tun::Tun;
use crate::mutex::lock_mutex;
use crate::recording::Recorder;
use crate::run_clock::RunClock;
use crate::topology::{SITES_MAX, Topology, topology_path_site_addresses};
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
pub struct RunningLab {
    sites: Vec<String>,
    shortest_round_trip: Span,
    clock: RunClock,
    states: Vec<Arc<Mutex<PumpedSite>>>,
    ingress: Arc<Vec<Option<Mutex<SitePumpPort>>>>,
    tuns: Arc<Vec<Tun>>,
    recorder: Option<Arc<Mutex<Recorder>>>,
    threads: Vec<JoinHandle<io::Result<()>>>,
    /// Readable when a thread has ended; closing it ends all.
    life: Vec<UnixStream>,
    namespaces: Vec<Namespace>,
}

impl RunningLab {
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
        let hosts = running_lab_hosts_file(&topology.sites);
        let mut namespaces = Vec::new();
        let mut tuns = Vec::new();
        for (site, name) in topology.sites.iter().enumerate() {
            let namespace = Namespace::create(namespace_name(prefix, name), &hosts)?;
            tuns.push(namespace.create_device(site, topology.mtu)?);
            namespaces.push(namespace);
        }
        let LabLinks { states, ingress, recorder } = build_lab_links(topology, recorder);
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
                queued: BTreeMap::new(),
                hosts: HostReceipts::new(topology.sites.len()),
                sent: 0,
                step: site_pump::site_pump_wake_up(lab.shortest_round_trip),
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

    /// Returns the status of every direction of every link, and of every port.
    pub fn status(&self) -> Vec<LinkStatus> {
        let now = self.clock.now();
        let site = |site: usize| Some(self.sites[site].clone());
        let mut status = Vec::new();
        for (from, state) in self.states.iter().enumerate() {
            let mut state = lock_mutex(state);
            for (to, link) in state.links.iter_mut().enumerate() {
                status.extend(link.as_mut().map(|link| link.status(now, site(from), site(to))));
            }
            status.extend(state.egress.as_mut().map(|port| port.status(now, site(from), None)));
        }
        for (to, port) in self.ingress.iter().enumerate() {
            status.extend(
                port.as_ref().map(|port| lock_mutex(port).port.status(now, None, site(to))),
            );
        }
        status
    }

    /// Returns the fidelity report of the lab so far.
    pub fn fidelity(&self) -> FidelityReport {
        let mut all = Fidelity::default();
        self.states.iter().for_each(|state| all.merge(&lock_mutex(state).fidelity));
        all.record_drops(self.tuns.iter().map(|tun| tun.dropped_buffers(DEVICE_NAME)).sum());
        let limits = FidelityLimits::for_round_trip(self.shortest_round_trip);
        all.report(&limits, &self.clock.elapsed())
    }

    /// Returns the count of packets that were sent to where no link leads.
    pub fn unreachable_packets(&self) -> u64 {
        self.states.iter().map(|state| lock_mutex(state).unreachable).sum()
    }

    /// Returns a descriptor for each site, which is readable once the site's thread has ended by
    /// itself.
    pub fn thread_ends(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.life.iter().map(AsFd::as_fd)
    }

    /// Stops the links and removes the namespaces.
    ///
    /// # Errors
    /// The error that ended a thread before its time, or left the recording unfinished.
    pub fn stop(mut self) -> io::Result<()> {
        self.stop_threads()?;
        let recorder = self.recorder.take().and_then(Arc::into_inner);
        match recorder.and_then(|recorder| recorder.into_inner().ok()) {
            Some(recorder) => recorder.finish(),
            None => Ok(()),
        }
    }

    /// Stops the threads and removes the namespaces. Returns the first error that ended a thread.
    fn stop_threads(&mut self) -> io::Result<()> {
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

impl Drop for RunningLab {
    /// Stops the threads and removes the namespaces; ignores errors.
    fn drop(&mut self) {
        let _ = self.stop_threads();
    }
}

/// Returns the text of a hosts file with localhost and every site.
fn running_lab_hosts_file(sites: &[String]) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for (site, name) in sites.iter().enumerate() {
        let (v4, v6) = topology_path_site_addresses(site);
        text.push_str(&format!("{v4} {name}\n{v6} {name}\n"));
    }
    text
}
