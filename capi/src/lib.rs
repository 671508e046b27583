//! The client for programs in C: `include/landbridge.h`, whose comments are its manual.
//!
//! `ffi` has the functions that C calls: it checks arguments and catches panics. `raw` copies the
//! program's memory. They alone have `unsafe` code. Between them, `attached_rank` is one attached rank,
//! and `attached_group` its job or a group that it made. They post on the thread of their caller, through
//! `rank_poster` and the client of `gateway`. `worker` is the thread of a rank, which talks to the
//! gateway. `operation_handle` is what threads wait for, `waits` has their deadlines, and `store_values`
//! is what the store answers.
//!
//! | thread | does | waits for |
//! |---|---|---|
//! | the program's | places buffers, posts, copies results, waits | room to post; the end of an operation |
//! | `landbridge`, one for each rank | reads and writes the socket, ends operations, makes groups | the gateway |

mod attached_group;
mod attached_rank;
mod call_error;
mod call_status;
mod connect_settings;
mod ffi;
mod memory_in_use;
mod operation_handle;
mod rank_memory;
mod rank_poster;
mod raw;
mod store_values;
mod waits;
mod worker;
