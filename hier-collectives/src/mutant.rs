//! Mutants: variants that are broken on purpose, to show that the simulations find each of them.
//!
//! `cargo xtask simulate --mutant NAME` runs one. They are built under the feature `mutants` only.

/// A variant of the session, of its groups, of the store or of the agreement on terms with one defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// A retry adds to the result instead of to the operand.
    Accumulate = 1,
    /// A fabric is put in force though some gateway does not hold it.
    AdoptHalfHeld = 20,
    /// The store answers commands that some gateway does not hold yet.
    AnswerEarly = 7,
    /// A region leaves or joins while a step is under way.
    ChangeEarly = 11,
    /// A region confirms a commit before the other regions have the results.
    ConfirmAlone = 2,
    /// A gateway that sends on the blocks of another one leaves out the last segment.
    DropRelayed = 23,
    /// A step that failed ends at a boundary, as if its refused commit had been accepted.
    EndRefused = 12,
    /// Steps that all members have prepared are begun again, though a lost gateway may have confirmed them.
    ForgetPrepared = 18,
    /// Epochs of two terms that have one number count as one, though their members differ.
    ForgetTerms = 19,
    /// Messages of another epoch are accepted.
    IgnoreEpochs = 3,
    /// A region joins while a step is under way.
    JoinEarly = 13,
    /// Two signed fabrics of one number count as one, though their texts differ.
    IgnoreFabricDigest = 21,
    /// Trees of blocks keep the branches that lead to nobody who needs the blocks.
    KeepBranches = 8,
    /// A gateway goes on with the committed step that it knew, not with the latest that any member knows:
    /// a region that was away goes on with the state of another step.
    KeepOwnStep = 14,
    /// A gateway that was started again counts as one that remembers, so that a stale one may lead.
    LeadStale = 15,
    /// Groups of the same ranks have one number, whatever their tags.
    MixGroups = 9,
    /// Sends with two neighbouring tags are one series.
    MixTags = 10,
    /// A quorum by number or votes is one less than the fabric says.
    NeedOneLess = 16,
    /// Slots return to the rank before all receipts have arrived.
    ReuseSlot = 4,
    /// Arriving segments of equal length share one buffer.
    ShareLanding = 5,
    /// A gateway takes a signed fabric of an operator though it knows a newer one.
    TakeOldFabric = 22,
    /// The witness votes for two parts, each of which counts it.
    VoteForBoth = 17,
    /// The end of a failed collective's streams does not wake the sessions that wait for it.
    WakeNobody = 6,
}

impl Mutant {
    /// All mutants: variants of session, groups, store and agreement that are broken on purpose, which
    /// the simulations must find.
    pub const ALL: [Self; 23] = [
        Self::Accumulate,
        Self::AdoptHalfHeld,
        Self::AnswerEarly,
        Self::ChangeEarly,
        Self::ConfirmAlone,
        Self::DropRelayed,
        Self::EndRefused,
        Self::ForgetPrepared,
        Self::ForgetTerms,
        Self::IgnoreEpochs,
        Self::IgnoreFabricDigest,
        Self::JoinEarly,
        Self::KeepBranches,
        Self::KeepOwnStep,
        Self::LeadStale,
        Self::MixGroups,
        Self::MixTags,
        Self::NeedOneLess,
        Self::ReuseSlot,
        Self::ShareLanding,
        Self::TakeOldFabric,
        Self::VoteForBoth,
        Self::WakeNobody,
    ];

    /// Returns the mutant's name in flags and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accumulate => "accumulate",
            Self::AdoptHalfHeld => "adopt_half_held",
            Self::AnswerEarly => "answer_early",
            Self::ChangeEarly => "change_early",
            Self::ConfirmAlone => "confirm_alone",
            Self::DropRelayed => "drop_relayed",
            Self::EndRefused => "end_refused",
            Self::ForgetPrepared => "forget_prepared",
            Self::ForgetTerms => "forget_terms",
            Self::IgnoreEpochs => "ignore_epochs",
            Self::IgnoreFabricDigest => "ignore_fabric_digest",
            Self::JoinEarly => "join_early",
            Self::KeepBranches => "keep_branches",
            Self::KeepOwnStep => "keep_own_step",
            Self::LeadStale => "lead_stale",
            Self::MixGroups => "mix_groups",
            Self::MixTags => "mix_tags",
            Self::NeedOneLess => "need_one_less",
            Self::ReuseSlot => "reuse_slot",
            Self::ShareLanding => "share_landing",
            Self::TakeOldFabric => "take_old_fabric",
            Self::VoteForBoth => "vote_for_both",
            Self::WakeNobody => "wake_nobody",
        }
    }
}

/// The number of the mutant that this process runs, as [`Mutant`] numbers them; 0 for none, as at
/// the start. [`activate_mutant`] sets it.
#[cfg(feature = "mutants")]
static ACTIVE_MUTANT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes this process run `mutant`; called once, before the first session begins.
#[cfg(feature = "mutants")]
pub fn activate_mutant(mutant: Mutant) {
    ACTIVE_MUTANT.store(mutant as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this process runs `mutant`.
#[cfg(feature = "mutants")]
pub fn is_mutant_active(mutant: Mutant) -> bool {
    ACTIVE_MUTANT.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Whether this process runs a mutant: never, without the feature `mutants`.
#[cfg(not(feature = "mutants"))]
pub const fn is_mutant_active(_: Mutant) -> bool {
    false
}
