//! Signals by which a terminal stops or ends the programs that run in it.
//!
//! `main` calls [`unblock_terminal_signals`] and [`allow_terminal_background_writes`] before it starts a thread, since
//! each thread inherits the signals that are blocked. Commands that clean nothing up keep [`ExitOnTerminalSignal`].

#![expect(unsafe_code, reason = "signal masks, and a handler that ends the process")]

use libc::{SIG_BLOCK, SIG_IGN, SIG_UNBLOCK, SIGHUP, SIGTTOU, c_int};
use signal_hook::SigId;
use signal_hook::consts::{SIGALRM, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ};
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Lets this thread, and those that it starts, write to a terminal whose foreground another program
/// has. After `stty tostop` the terminal would stop the whole process by SIGTTOU.
///
/// # Errors
/// The system refuses.
pub fn allow_terminal_background_writes() -> io::Result<()> {
    change_terminal_signal_mask(SIG_BLOCK, &[SIGTTOU])
}

/// Unblocks the signals that commands handle, for this thread and those that it starts. A launcher may
/// have blocked them for itself, and a program inherits that; then no SIGTERM would end it.
///
/// # Errors
/// The system refuses.
pub fn unblock_terminal_signals() -> io::Result<()> {
    let handled = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU, SIGXFSZ];
    change_terminal_signal_mask(SIG_UNBLOCK, &handled)
}

/// Takes [`allow_terminal_background_writes`] back for this thread, before it becomes a program of the user's,
/// which would inherit it.
///
/// # Errors
/// The system refuses.
pub fn forbid_terminal_background_writes() -> io::Result<()> {
    change_terminal_signal_mask(SIG_UNBLOCK, &[SIGTTOU])
}

/// Blocks or unblocks signals for this thread. A thread that has blocked SIGTTOU writes all the same.
fn change_terminal_signal_mask(how: c_int, changed: &[c_int]) -> io::Result<()> {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the first call initialises the set, which the others change or read.
    let error = unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        for signal in changed {
            libc::sigaddset(signals.as_mut_ptr(), *signal);
        }
        libc::pthread_sigmask(how, signals.as_ptr(), ptr::null_mut())
    };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Handlers that end the process on a signal, until they are removed.
#[derive(Debug, Default)]
pub struct ExitOnTerminalSignal(Vec<SigId>);

impl ExitOnTerminalSignal {
    /// Ends the process with an exit code on SIGINT and SIGTERM, and on SIGHUP unless its caller lets it
    /// outlive its terminal. Its files stay as they are.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn begin(exit_code: u8) -> io::Result<Self> {
        let hangup = (!is_terminal_hangup_ignored()).then_some(SIGHUP);
        let mut handlers = Self::default();
        for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
            // SAFETY: the handler allocates nothing and takes no lock: it makes one system call.
            let handler = unsafe {
                signal_hook::low_level::register(signal, move || {
                    signal_hook::low_level::exit(exit_code.into());
                })?
            };
            handlers.0.push(handler);
        }
        Ok(handlers)
    }

    /// Removes the handlers, for a command that has its own by now.
    pub fn end(self) {
        for handler in self.0 {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// Returns whether the caller of this program, such as `nohup`, lets it outlive its terminal.
/// Whoever handles SIGHUP as an interrupt asks first.
pub fn is_terminal_hangup_ignored() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call changes nothing, and writes the action of the signal; zeros are one, too.
    let action = unsafe {
        libc::sigaction(SIGHUP, ptr::null(), action.as_mut_ptr());
        action.assume_init()
    };
    action.sa_sigaction == SIG_IGN
}
