//! The limit on file descriptors of this process.

use super::process_limits::ProcessLimitRemedy;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// A gateway may need more descriptors than it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the gateway needs up to {needed} file descriptors, and the hard limit is {limit}: raise it \
     (ulimit -Hn, or LimitNOFILE= of its service)"
)]
pub struct TooFewDescriptors {
    /// The most that it may need.
    pub needed: u64,
    /// The hard limit.
    pub limit: u64,
}

/// Checks that the hard limit on descriptors is at least `needed`.
///
/// # Errors
/// [`TooFewDescriptors`].
pub fn check_descriptor_limit(needed: u64) -> Result<(), TooFewDescriptors> {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < needed => Err(TooFewDescriptors { needed, limit }),
        _ => Ok(()),
    }
}

/// Raises the soft limit on descriptors to `needed`, or to the hard limit if that is lower.
///
/// # Errors
/// [`TooFewDescriptors`]: the hard limit is lower. The gateway works until it has used them up.
pub fn raise_descriptor_limit(needed: u64) -> Result<(), TooFewDescriptors> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_some_and(|current| current < needed) {
        let raised = maximum.map_or(needed, |hard| hard.min(needed));
        // A system that refuses leaves the limit as it was.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum });
    }
    check_descriptor_limit(needed)
}

/// Checks that this process may open `count` more files now.
///
/// # Errors
/// The process may not open as many; the text names the limit and the remedy.
pub fn check_descriptors_within_limit(count: usize) -> io::Result<()> {
    let pipes: io::Result<Vec<_>> = (0..count.div_ceil(2)).map(|_| io::pipe()).collect();
    let refused = |error: io::Error| {
        let text = format!("{error}{}", ProcessLimitRemedy(&error));
        io::Error::new(error.kind(), text)
    };
    pipes.map(drop).map_err(refused)
}
