//! Ctrl-C: what was changed on this machine is put back before the bench ends.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// 130: the exit code after an interrupt.
pub const INTERRUPTED: u8 = 130;

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// Whether there is nothing to put back.
static AT_ONCE: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(true)));

/// From here on a signal ends the process, but for where [`Deferred`] is.
///
/// # Errors
/// The system lets nobody listen.
pub fn listen() -> io::Result<()> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&AT_ONCE))?;
        flag::register(signal, Arc::clone(&CAME))?;
    }
    Ok(())
}

/// Whether a signal came; the caller unwinds then.
pub fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// While this exists, signals only set a flag.
pub struct Deferred;

impl Deferred {
    /// There is something to put back from here on.
    pub fn begin() -> Self {
        AT_ONCE.store(false, Ordering::Relaxed);
        Self
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        AT_ONCE.store(true, Ordering::Relaxed);
    }
}
