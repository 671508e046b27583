//! The links and ports of a topology, each at the site or port that packets meet it at.

use super::site_pump::{PumpedSite, SitePumpLink, SitePumpPort};
use crate::recording::Recorder;
use crate::topology::{PathPlace, Topology};
use std::sync::{Arc, Mutex};

/// The links and ports of a lab, and the recorder that knows them.
pub(super) struct LabLinks {
    pub(super) states: Vec<Arc<Mutex<PumpedSite>>>,
    pub(super) ingress: Vec<Option<Mutex<SitePumpPort>>>,
    pub(super) recorder: Option<Recorder>,
}

/// Makes every link and port of `topology`, and writes them with their scripts to the recording.
pub(super) fn build_lab_links(topology: &Topology, mut recorder: Option<Recorder>) -> LabLinks {
    let sites = topology.sites.len();
    let mut states: Vec<_> = (0..sites).map(|_| PumpedSite::new(sites)).collect();
    let mut ingress: Vec<_> = (0..sites).map(|_| None).collect();
    for (number, path) in topology.paths().into_iter().enumerate() {
        if let Some(recorder) = &mut recorder {
            recorder.write_link(number, &path.name, path.seed, path.spec);
            recorder.write_conditions(number, &path.conditions);
            recorder.write_script(number, &path.script);
        }
        let numbered = SitePumpLink { number, link: path.build_link() };
        match path.place {
            PathPlace::Link { from, to } => states[from].links[to] = Some(numbered),
            PathPlace::Egress(site) => states[site].egress = Some(numbered),
            PathPlace::Ingress(site) => {
                ingress[site] = Some(Mutex::new(SitePumpPort::new(numbered)))
            }
        }
    }
    let states = states.into_iter().map(|state| Arc::new(Mutex::new(state))).collect();
    LabLinks { states, ingress, recorder }
}
