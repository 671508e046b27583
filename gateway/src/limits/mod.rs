//! The limits of the system: of the host, of cgroups (versions 1 and 2), and of the process.
//!
//! Commands check them before they take what a limit would refuse later. The kernel kills a process
//! that meets some of them; others end a program that did not expect a refusal. A limit that cannot
//! be read, as in a container without `/proc`, is not checked.
//!
//! | module | subject |
//! |---|---|
//! | [`descriptor_limit`] | file descriptors, before a gateway opens them |
//! | [`memory_limits`] | memory of a gateway and of arenas |
//! | [`process_limits`] | stack and file sizes, at the start of a command |
//! | [`processor_throttle`] | processor time, while a gateway runs |
//! | [`thread_limits`] | threads, each started by [`thread_limits::spawn_thread_within_limits`] |
//! | `cgroup` | the cgroups of this process, which the others read |
//! | `limit_text` | the texts of the system's files |

mod cgroup;
pub mod descriptor_limit;
mod limit_text;
pub mod memory_limits;
pub mod process_limits;
pub mod processor_throttle;
pub mod thread_limits;
