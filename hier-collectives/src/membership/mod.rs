//! Agreement on who goes on, without I/O: time, connections and messages in, terms out.
//!
//! A *term* is a number and the regions that every job goes on with; its ranks are theirs. Gateways
//! agree on the next term when a member is lost, and when a region comes that was away. A fabric whose
//! quorum is all regions needs none of this: an epoch needs everybody, and nobody goes on alone.
//!
//! ```text
//! first gateway of those that meet          every gateway of the proposed regions
//! Ask           ----------------------->
//!               <-----------------------    Standing: its start, what it knows, whether it remembers
//! Propose(term) ----------------------->    leaves its term, and every collective under way fails
//!               <-----------------------    Vote
//! Begin(term)   ----------------------->    enters: the session of the term's ranks begins its epoch
//! ```
//!
//! **The leader is whoever is there**: the first gateway by name among the regions that reach each
//! other. Two that lead at once do no harm, since the greater number wins.
//!
//! **At most one part goes on.** Every gateway of a term's regions votes for it, and the regions are a
//! quorum. Any two quorums share a region, and a gateway is in one term at a time. A collective needs
//! all gateways of its term. So once a term begins, no other one that has a quorum can do anything.
//!
//! **Gateways keep nothing on disk.** A gateway that was started again knows no term. It votes, but its
//! vote does not count towards the quorum until an epoch has begun there, which tells it what the
//! others know. So the votes of gateways that remember are a quorum, or all gateways of the fabric
//! vote. Either way somebody votes who knows the epoch, the collectives and the committed step of the
//! last term that did anything. A proposal names the start of each voter that the leader knows of. So
//! all votes for a term are later than the start of each voter, and nobody enters a term that is older
//! than what it forgot. Viewstamped replication recovers a replica by the same rule.
//!
//! **A healthy term stays.** A gateway that reaches all members of its term votes only for a term that
//! has them all. So a gateway that sees less than others interrupts nobody.
//!
//! **A witness** counts in the quorum and is in no term: nothing waits for it while a term lasts, and
//! its loss ends none. Regions that are a quorum with it alone ask it for its vote. It refuses those
//! that may not know what others went on with (`term_witness`). Data never pass it, so regions that
//! reach each other over it alone are apart.
//!
//! **Regions leave and join** at an operator's request (`region_intents`). The gateways of a term come to
//! a boundary first, where no step is under way; then the first of them proposes a term without the
//! region, or with it (`term_boundary`). A region that has left is in no term until it joins, however
//! often it is started again, while those that remember that may go on without it. A leave that cannot be
//! made in time is called off (`overdue_leaves`).
//!
//! **A signed fabric** is put in force by a term that names it, at a boundary too. Regions with another
//! fabric take no part (`offered_fabric`).
//!
//! The property tests in `hier-collectives/tests/membership` run this in virtual time.

mod fabric_version;
mod offered_fabric;
mod overdue_leaves;
mod region_intents;
mod term;
mod term_agreement;
mod term_boundary;
mod term_message;
mod term_proposal;
mod term_witness;
mod witness_notice;

pub use fabric_version::{FabricVersion, OldFabricError, SignedFabric};
pub use region_intents::{RegionIntent, RegionIntentError};
pub use term::{Term, TermId};
pub use term_agreement::{TermAction, TermAgreement};
pub use term_message::{TermMessage, TermStanding};
pub use term_witness::TermWitness;
