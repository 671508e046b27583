//! The limits of the system: of the host, of cgroups (versions 1 and 2), and of the process.
//!
//! Commands check them before they take what a limit would refuse later. The kernel kills a process
//! that meets some of them; others end a program that did not expect a refusal. A limit that cannot
//! be read, as in a container without `/proc`, is not checked.
//!
//! | module | subject |
//! |---|---|
//! | [`descriptor_limit`] | file descriptors, before a gateway opens them |
//! | [`memory`] | memory of a gateway and of arenas |
//! | [`process`] | stack and file sizes, at the start of a command |
//! | [`threads`] | threads, each started by [`threads::spawn_thread`] |
//! | `cgroup` | the cgroups of this process, which the others read |

mod cgroup;
pub mod descriptor_limit;
pub mod memory;
pub mod process;
pub mod threads;

use std::path::Path;

/// Returns the text of a file of the system; empty if it cannot be read.
fn read_limit_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}
