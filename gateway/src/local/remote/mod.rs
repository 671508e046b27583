//! Trainers on other hosts: TLS 1.3 over TCP, and bytes in pieces in place of shared memory.
//!
//! [`attach_listener`] accepts their connections at the address `attach` of the region file, and
//! `tls_stream` is TLS for both ends.
//! [`pieces`] cuts contributions and results, for both ends; `streamed_post` says how much of a
//! contribution has come. Above the transport these trainers are
//! served like those of this host, by [`super::local_server`] and `super::trainer`.

pub mod attach_listener;
pub mod pieces;
mod renewed_settings;
pub(super) mod streamed_post;
pub(crate) mod tls_stream;
