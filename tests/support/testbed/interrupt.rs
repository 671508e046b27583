//! Ctrl-C: changes of this machine are undone before the bench ends.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// 130: the exit code after an interrupt.
pub const INTERRUPTED: u8 = 130;

/// True once a signal has come.
static INTERRUPT_CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// True while nothing on this machine is changed, so that a signal may end the process at once.
static END_AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// Ends the process on a signal from now on, or sets a flag while a [`Deferred`] exists.
///
/// # Errors
/// The system refuses a handler.
pub fn listen() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&END_AT_ONCE))?;
        flag::register(signal, Arc::clone(&INTERRUPT_CAME))?;
    }
    Ok(())
}

/// Returns true if a signal has come; the caller unwinds then.
pub fn has_come() -> bool {
    INTERRUPT_CAME.load(Ordering::Relaxed)
}

/// Guard that defers signals: while it exists, they only set a flag.
pub struct Deferred;

impl Deferred {
    /// Defers the end of the process, since a change of this machine must be undone.
    pub fn begin() -> Self {
        END_AT_ONCE.store(false, Ordering::Relaxed);
        Self
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        END_AT_ONCE.store(true, Ordering::Relaxed);
    }
}
