//! Trainers on other hosts: TLS 1.3 over TCP, and bytes in pieces in place of shared memory.
//!
//! [`attach_listener`] accepts their connections at the address `attach` of the region file, and
//! `read_ahead` has few system calls read them, at both ends.
//! [`pieces`] cuts contributions and results, for both ends; `streamed_post` says how much of a
//! contribution has come. Above the transport these trainers are
//! served like those of this host, by [`super::local_server`] and `super::trainer`.

pub mod attach_listener;
pub mod pieces;
pub(crate) mod read_ahead;
mod renewed_acceptor;
pub(super) mod streamed_post;
