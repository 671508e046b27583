//! The trainer's side of the local plane in Rust: attach a rank, allocate tensors, exchange them.
//!
//! Trainers call it, as do the benchmark and the simulations. It sends requests to a gateway over
//! a Unix socket, and shares an arena with it; to a gateway on another host it sends requests and bytes
//! over TLS. Each client has two tasks on the caller's runtime: one writes requests, the other reads
//! events.
//!
//! The job itself is a group of ranks; [`Client::new_group`] and [`Client::split`] make others of some
//! of its ranks, with a [`Client`] each. All groups of a rank share its connection and arena.
//! [`Client::send`] and [`Client::receive`] pass data between two ranks.
//!
//! Each rank has a flight recorder of its last collectives (`recorder`), which [`Client::dump`] writes into a
//! file. With [`AttachOptions::dumps`] it is written when a collective fails.
//!
//! A rank that attaches again, by [`Client::attach_again`], keeps its arena and what lies in it.
//!
//! A tensor has two slots in the arena. The gateway reads the contribution slot and writes the
//! result slot. After a failure the contribution is intact, and the result slot holds no
//! meaningful value. [`Operation::reclaim`] gives both slots back.
//!
//! ```no_run
//! # async fn example(token: [u8; 32]) -> Result<(), Box<dyn std::error::Error>> {
//! use gateway::client::{AttachOptions, Client, GatewayAddress};
//! use hier_collectives::descriptor::{Dtype, ReduceOp};
//! let gateway = GatewayAddress::Socket("/run/landbridge/east-0.sock".into());
//! let client = Client::attach(&gateway, AttachOptions::new("train", token, 0, 64 << 20)).await?;
//! let mut tensor = client.allocate(Dtype::F32, 1024)?;
//! tensor.write_f32(&[1.0; 1024]);
//! let mut operation = client.all_reduce(tensor, ReduceOp::Sum).await?;
//! operation.ready().await?;
//! let sums: Vec<f32> = operation.result_f32();
//! # Ok(()) }
//! ```

mod arena_buffer;
mod attach;
mod batch_share;
mod client_handle;
mod collective;
mod collective_spec;
mod commit;
mod connection;
mod group;
mod operation;
mod recorder;
mod send_receive;
mod store;
mod tensor;

pub use arena_buffer::{ArenaBuffer, ArenaFull};
pub use attach::{
    AttachEpochTimeout, AttachError, AttachOptions, AttachTlsGateway, DUMPS_VARIABLE,
    GATEWAY_TIMEOUT, GatewayAddress, NoTlsAddress, TlsAddress,
};
pub use batch_share::{BatchShare, StepError};
pub use client_handle::Client;
pub use collective_spec::{CollectiveSpec, DEFAULT_TIMEOUT, PostError, PostErrorKind};
pub use commit::StartedCommit;
pub use group::GroupError;
pub use operation::Operation;
pub use recorder::client_dump::{ClientDump, DumpedCollective};
pub use send_receive::SendSpec;
pub use store::{STORE_TIMEOUT, Store, StoreError};
pub use tensor::Tensor;
