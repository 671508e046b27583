//! The client for programs in C: `include/landbridge.h`, whose comments are its manual.
//!
//! `ffi` has the functions that C calls: it checks arguments and catches panics. `raw` copies the
//! program's memory. They alone have `unsafe` code. Between them, `group` is one attached rank. It
//! posts on the thread of its caller, by the client of `gateway`. `worker` is the thread of a group,
//! which talks to the gateway. `operation` is what threads wait for.
//!
//! | thread | does | waits for |
//! |---|---|---|
//! | the program's | places buffers, posts, copies results, waits | room to post; the end of an operation |
//! | `landbridge`, one for each group | reads and writes the socket, ends operations | the gateway |

mod call_error;
mod ffi;
mod group;
mod memory_in_use;
mod operation;
mod raw;
mod settings;
mod status;
mod worker;
