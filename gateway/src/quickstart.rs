//! `landbridge quickstart`: trains a small network data-parallel across two regions.
//!
//! What the trainers compute is here, apart from any network: [`digits`] > [`mlp`] >
//! [`training`], the one-process [`reference`](mod@reference) beside it, and the [`report`]
//! on both. The deployment is made in a folder of its own, run as processes of this
//! binary (two gateways, a relay, the ranks), and taken down again.

pub mod digits;
pub mod mlp;
pub mod ports;
pub mod reference;
pub mod report;
pub mod training;

mod binomial;
mod conductor;
mod deployment;
mod matmul;
mod processes;
mod rank;
mod rng;

pub use conductor::run;
pub use rank::{RankError, RankTask};

use std::num::NonZeroU32;
use units::{BitRate, ByteCount, Fraction, Span};

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Round-trip time between the regions.
    pub rtt: Span,
    /// Rate of the link, each way, in IP bytes.
    pub rate: BitRate,
    /// Random loss, each way.
    pub loss: Fraction,
    /// Ranks of east and west.
    pub ranks: (u32, u32),
    /// The buffer that is all-reduced.
    pub size: ByteCount,
    /// Steps trained.
    pub steps: NonZeroU32,
    /// All-reduces timed.
    pub iterations: NonZeroU32,
}

/// Why a quickstart did not get to its end.
#[derive(Debug, thiserror::Error)]
pub enum QuickstartError {
    /// Stopped by the user.
    #[error("interrupted")]
    Interrupted,
    /// The system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
    /// Certificates could not be made.
    #[error(transparent)]
    Certs(#[from] crate::certs::CertsError),
    /// The options make no fabric.
    #[error("these options make no fabric: {0}")]
    Fabric(#[from] crate::config::Faults),
    /// A process ended, or said something unexpected.
    #[error("{name}: {problem}\n{log}")]
    Process {
        /// Which.
        name: String,
        /// What happened.
        problem: String,
        /// The end of its log.
        log: String,
    },
    /// A rank failed.
    #[error(transparent)]
    Rank(#[from] RankError),
}

impl QuickstartError {
    fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}
