//! The client for programs in C: `include/landbridge.h`, whose comments are its manual.
//!
//! `ffi` has the functions that C calls: it checks arguments and catches panics. `raw` copies the
//! program's memory. They alone have `unsafe` code. Between them, `attached_rank` is one attached rank,
//! and `group` its job or a group that it made. They post on the thread of their caller, through
//! `rank_poster` and the client of `gateway`. `worker` is the thread of a rank, which talks to the
//! gateway. `operation` is what threads wait for, and `store_values` what the store answers.
//!
//! | thread | does | waits for |
//! |---|---|---|
//! | the program's | places buffers, posts, copies results, waits | room to post; the end of an operation |
//! | `landbridge`, one for each rank | reads and writes the socket, ends operations, makes groups | the gateway |

mod attached_rank;
mod call_error;
mod ffi;
mod group;
mod memory_in_use;
mod operation;
mod rank_memory;
mod rank_poster;
mod raw;
mod settings;
mod status;
mod store_values;
mod worker;
