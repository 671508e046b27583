//! The gateways of a world, and what happened in it.

use hier_collectives::ids::{BootId, GatewayId};
use hier_collectives::membership::{FabricVersion, Term, TermAgreement, TermId, TermWitness};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

/// Counts of what happened in runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// Terms that all their gateways entered, and those of them without some region.
    pub terms: u64,
    pub partial_terms: u64,
    /// Terms that the witness voted for.
    pub witnessed_terms: u64,
    pub restarts: u64,
    pub cuts: u64,
    /// Regions that an operator took out or in.
    pub leaves: u64,
    pub joins: u64,
    /// Terms without a region that had left.
    pub terms_after_leave: u64,
    /// Entries of gateways into terms after a leave was called off.
    pub called_off: u64,
    /// Signed fabrics that a gateway was offered, and entries of gateways into terms with another fabric.
    pub offers: u64,
    pub adopted: u64,
    /// Signed fabrics that a gateway refused, and starts with a file of another version.
    pub refusals: u64,
    pub other_files: u64,
    /// Runs in the end of which the others went on without a gateway that had another fabric.
    pub left_out: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.terms += other.terms;
        self.partial_terms += other.partial_terms;
        self.witnessed_terms += other.witnessed_terms;
        self.restarts += other.restarts;
        self.cuts += other.cuts;
        self.leaves += other.leaves;
        self.joins += other.joins;
        self.terms_after_leave += other.terms_after_leave;
        self.called_off += other.called_off;
        self.offers += other.offers;
        self.adopted += other.adopted;
        self.refusals += other.refusals;
        self.other_files += other.other_files;
        self.left_out += other.left_out;
    }
}

/// A gateway that runs, or is down.
pub struct Gateway {
    pub boot: BootId,
    pub agreement: Option<TermAgreement>,
    /// The part of a witness, instead of an agreement.
    pub witness: Option<TermWitness>,
    /// The last term that it has entered and not left.
    pub term: Option<Term>,
    /// The number, in the judge's order, of the last term that went on while it was a member; it
    /// forgets this when it is started again.
    pub history: u64,
    /// Whether the epoch of its term has begun here.
    pub is_in_epoch: bool,
    /// The fabrics that it has checked since its start.
    pub checked: BTreeSet<FabricVersion>,
    /// The version of its file.
    pub of_file: FabricVersion,
    /// The number of terms that it has left.
    pub left: u64,
    /// The history of each gateway that has entered a term of which this is the first.
    pub joined: BTreeMap<(TermId, GatewayId), u64>,
}

impl Gateway {
    /// Makes a gateway that knows nothing.
    pub fn started(
        boot: BootId,
        agreement: Option<TermAgreement>,
        witness: Option<TermWitness>,
    ) -> Self {
        let (history, is_in_epoch, joined) = (0, false, BTreeMap::new());
        let checked = [FabricVersion::default()].into();
        let (of_file, left) = (FabricVersion::default(), 0);
        Self {
            boot,
            agreement,
            witness,
            term: None,
            history,
            is_in_epoch,
            checked,
            of_file,
            left,
            joined,
        }
    }

    pub fn runs(&self) -> bool {
        self.agreement.is_some() || self.witness.is_some()
    }
}
