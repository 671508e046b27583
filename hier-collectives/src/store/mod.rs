//! The store of a job: keys, counters and queues that all gateways of the job hold.
//!
//! The gateway's engine owns one [`JobStore`] for each job. Requests of trainers, messages of other
//! gateways and time go in; messages and answers come out.
//!
//! # The rule
//!
//! The first gateway of the fabric is the *leader*: it makes one order of all commands. Every gateway
//! holds the state that follows from the order. **A command is answered once every gateway of the
//! fabric holds it.** So any gateway but the last may be lost, with its memory, and nothing that was
//! answered is lost. Of two halves of a cut fabric neither goes on with changes, and both can read.
//!
//! * **Starts.** A gateway has a number for each start, its boot id. Messages name the start that they
//!   are meant for, and the start that they are from. A gateway that was started again holds nothing,
//!   and has promised nothing. The rule needs that two starts of one gateway never run at once.
//! * **Ballots.** Each start of the leader chooses a ballot above all that any gateway knows, and asks
//!   every gateway for a promise: to take nothing of a lesser ballot. With the promise a gateway says
//!   which state it holds. Of all states at hand the leader takes the one with the greatest version,
//!   (ballot, number of entries). It holds all that was answered: every gateway held that, and those
//!   that are left still do. With no state anywhere the store begins, empty.
//! * **Transfer.** The leader offers its state to each gateway, which fetches it, unless it has the
//!   same state under an earlier ballot. Then entries follow, one after the other. A gateway that was
//!   started again promises, and fetches, in the same ballot. Until it holds the state, no command is
//!   answered.
//! * **Reads** are answered by the trainer's own gateway, once all gateways are known to hold the state
//!   that it read. That state has every command that was answered before the read, since this gateway
//!   held it first. A later read anywhere sees no earlier state, since all gateways hold this one. So
//!   reads cross no link, and go on while other gateways are lost, until a change waits for those.
//! * **Exactly once.** A gateway numbers its commands and repeats those without an outcome. The state
//!   has the outcomes of the last ones of each gateway, so that none is carried out twice, whoever
//!   leads. Another start of a gateway begins to count anew; the leader takes commands of the start
//!   alone that answered its last question.
//! * **Waiting** for a key or an item is a read that is repeated whenever the state changes.
//! * **Lost messages.** Every message may come late, twice or never. Whenever connections change, the
//!   leader asks all gateways which state they hold, and sends what they lack. A timer does the same.
//!
//! `tests/store` of this crate checks histories of random schedules for linearizability.

mod job_store;
pub mod limits;
mod pending_requests;
mod repeat_timer;
mod replication;
mod request;
mod request_encoding;
mod state;

pub use job_store::{JobStore, StoreAction};
pub use pending_requests::StoreCaller;
pub use replication::{
    STORE_LEADER, StoreBallot, StoreBallotVersion, StoreMessage, StoreViolation,
};
pub use request::{
    StoreAnswer, StoreCommand, StoreFailure, StoreFailureCode, StoreKey, StoreOutcome, StoreQuery,
    StoreRefusal, StoreRequest, StoreRequestError,
};
pub use request_encoding::{read_request_answer, write_request_answer};
pub use state::{StoreEntry, StoreState};
