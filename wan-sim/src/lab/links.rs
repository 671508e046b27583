//! The links and ports of a topology, each at the site or port that packets meet it at.

use super::pump::{Ingress, Numbered, SiteState};
use crate::recording::Recorder;
use crate::topology::{Place, Topology};
use std::sync::{Arc, Mutex};

pub(super) struct Parts {
    pub(super) states: Vec<Arc<Mutex<SiteState>>>,
    pub(super) ingress: Vec<Option<Mutex<Ingress>>>,
    pub(super) recorder: Option<Recorder>,
}

pub(super) fn parts(topology: &Topology, mut recorder: Option<Recorder>) -> Parts {
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
