//! Variants that are broken on purpose, one at a time, to show that the simulations find them:
//! `cargo xtask simulate --mutant NAME`. Without the feature `mutants` nothing of them is built.

/// A way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mutant {
    /// A retry adds into the result instead of to the operand.
    Accumulate = 1,
    /// A region confirms a commit once it has the results itself.
    ConfirmAlone = 2,
    /// What belongs to another epoch counts.
    IgnoreEpochs = 3,
    /// Slots are the rank's again before all receipts are in.
    ReuseSlot = 4,
    /// Landings of one length share their memory.
    ShareLanding = 5,
    /// Whoever waits for a failed collective's streams to stop is not told that they have.
    WakeNobody = 6,
}

impl Mutant {
    /// Every mutant.
    pub const ALL: [Self; 6] = [
        Self::Accumulate,
        Self::ConfirmAlone,
        Self::IgnoreEpochs,
        Self::ReuseSlot,
        Self::ShareLanding,
        Self::WakeNobody,
    ];

    /// The name in flags and output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accumulate => "accumulate",
            Self::ConfirmAlone => "confirm_alone",
            Self::IgnoreEpochs => "ignore_epochs",
            Self::ReuseSlot => "reuse_slot",
            Self::ShareLanding => "share_landing",
            Self::WakeNobody => "wake_nobody",
        }
    }
}

#[cfg(feature = "mutants")]
static CHOSEN: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

/// Makes this process that mutant, before it does anything else.
#[cfg(feature = "mutants")]
pub fn choose(mutant: Mutant) {
    CHOSEN.store(mutant as u8, std::sync::atomic::Ordering::Relaxed);
}

/// Whether this is that mutant.
#[cfg(feature = "mutants")]
pub fn is(mutant: Mutant) -> bool {
    CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == mutant as u8
}

/// Whether this is that mutant: it is none.
#[cfg(not(feature = "mutants"))]
pub const fn is(_: Mutant) -> bool {
    false
}
