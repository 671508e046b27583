//! The local plane: the trainers of this site, their arenas and their requests.
//!
//! [`local_server`] accepts connections from a [`trainer_listener`], checks the attach request, and
//! runs one task for each trainer (`trainer`). That task knows the trainer's groups
//! (`trainer_groups`), and validates each request before it sends the engine an event. [`socket`]
//! is the Unix socket of a real gateway, [`remote`] its TLS for trainers on other hosts,
//! [`protocol`] the wire format, [`refusal`] the reasons to refuse a trainer, [`operator`] the
//! requests of `landbridge rate`. Everything runs on the executors that called
//! [`local_server::LocalServer::serve`].

mod attachments;
mod event_writer;
pub mod job_spec;
pub mod local_server;
pub mod operator;
pub mod protocol;
pub mod refusal;
pub mod remote;
mod slots_in_use;
pub mod socket;
pub mod token_file;
mod trainer;
mod trainer_groups;
pub mod trainer_listener;
