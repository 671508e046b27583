//! Limits of a process on its stack, on its processor time, and on the size and number of its files.

use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fmt;
use std::io;
use units::ByteCount;

/// 8 MiB, Linux's default: a command raises its limit on the first thread's stack to this size, or
/// to a lower hard limit.
const MAIN_STACK_BYTES: u64 = 8 << 20;
/// 1 MiB: with a lower limit on the stack of its first thread a command ends with an error.
/// Commands were measured to need up to 128 KiB.
const STACK_BYTES_MIN: u64 = 1 << 20;

/// The hard limit on the stack is too low for a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit on the stack is {}, and {} are needed: raise the hard limit (ulimit -Hs, or \
     LimitSTACK= of a service)",
    ByteCount::new(*limit).rounded_beside(ByteCount::new(STACK_BYTES_MIN)),
    ByteCount::new(STACK_BYTES_MIN).rounded_beside(ByteCount::new(*limit))
)]
pub struct StackTooSmall {
    /// The hard limit in bytes.
    pub limit: u64,
}

/// Raises the soft limit on the stack of the first thread to 8 MiB, or to the hard limit if that is
/// lower. Linux heeds the new limit without a restart of the process.
///
/// # Errors
/// [`StackTooSmall`]: a command would overflow its stack, and the process be killed.
pub fn raise_process_stack_limit() -> Result<(), StackTooSmall> {
    let Rlimit { current, maximum } = getrlimit(Resource::Stack);
    if current.is_some_and(|current| current < MAIN_STACK_BYTES) {
        let raised = maximum.map_or(MAIN_STACK_BYTES, |hard| hard.min(MAIN_STACK_BYTES));
        // A system that refuses leaves the limit as it was.
        let _ = setrlimit(Resource::Stack, Rlimit { current: Some(raised), maximum });
    }
    match getrlimit(Resource::Stack).current {
        Some(limit) if limit < STACK_BYTES_MIN => Err(StackTooSmall { limit }),
        _ => Ok(()),
    }
}

/// 5 s of processor time: what a gateway has left before the hard limit of `ulimit -t` when it ends
/// cleanly. At that limit the kernel kills it. To end cleanly takes less. The time is chosen.
/// Tested by `a_gateway_without_processor_time_ends_cleanly`.
const PROCESSOR_SECONDS_TO_END: u64 = 5;

/// 2 s of processor time: a gateway does not start if its soft limit, or its hard limit less
/// [`PROCESSOR_SECONDS_TO_END`], is lower. It would end before its first collective does.
const PROCESSOR_SECONDS_LEAST: u64 = 2;

/// A limit on the processor time of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessTimeLimit {
    /// Seconds of processor time after which the gateway ends cleanly.
    pub seconds: u64,
}

impl ProcessTimeLimit {
    /// Returns the soft limit of this process, or the hard limit less 5 s if that is lower; `None`
    /// where it has neither.
    pub fn of_process() -> Option<Self> {
        let Rlimit { current, maximum } = getrlimit(Resource::Cpu);
        let latest = maximum.map(|hard| hard.saturating_sub(PROCESSOR_SECONDS_TO_END));
        current.into_iter().chain(latest).min().map(|seconds| Self { seconds })
    }

    /// Lowers the soft limit of this process to this one. There it gets SIGXCPU, some seconds before
    /// the kernel kills it at the hard limit.
    pub fn reserve_process_time_limit(self) {
        let maximum = getrlimit(Resource::Cpu).maximum;
        // A system that refuses leaves the limit as it was.
        let _ = setrlimit(Resource::Cpu, Rlimit { current: Some(self.seconds), maximum });
    }

    /// Returns whether a gateway cannot work in the time.
    pub const fn is_too_low(self) -> bool {
        self.seconds < PROCESSOR_SECONDS_LEAST
    }
}

impl fmt::Display for ProcessTimeLimit {
    /// Prints the consequence of the limit, and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.seconds;
        if self.is_too_low() {
            return write!(
                f,
                "the limit on processor time (ulimit -t, or LimitCPU= of a service) leaves {seconds} \
                 s, in which a gateway cannot work: remove it"
            );
        }
        write!(
            f,
            "this gateway ends after {seconds} s of processor time: remove the limit (ulimit -t, or \
             LimitCPU= of its service)"
        )
    }
}

/// Returns the limit of this process on the size of a file in bytes; `None` where it has none. An
/// arena in memory counts as a file.
pub fn process_file_limit() -> Option<ByteCount> {
    getrlimit(Resource::Fsize).current.map(ByteCount::new)
}

/// The limit that an operation has met, and the remedy, as far as its error does not say them. Prints
/// nothing for errors of other kinds, whose texts suffice.
#[derive(Debug)]
pub struct ProcessLimitRemedy<'a>(pub &'a io::Error);

impl fmt::Display for ProcessLimitRemedy<'_> {
    /// Prints the limit and the setting that raises it, behind the text of the error.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let current = |resource| getrlimit(resource).current;
        let (limit, setting) = match Errno::from_io_error(self.0) {
            Some(Errno::FBIG) => {
                let limit = current(Resource::Fsize).map(|limit| ByteCount::new(limit).rounded());
                (limit, "ulimit -f, or LimitFSIZE=")
            }
            Some(Errno::MFILE) => {
                let limit = current(Resource::Nofile).map(|limit| format!("{limit} descriptors"));
                (limit, "ulimit -n, or LimitNOFILE=")
            }
            _ => return Ok(()),
        };
        match limit {
            Some(limit) => write!(f, ": the limit is {limit} ({setting} of a service); raise it"),
            None => Ok(()),
        }
    }
}
