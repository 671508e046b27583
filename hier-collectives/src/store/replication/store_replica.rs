//! The state of a store at one gateway, and what that gateway has promised.
//!
//! A gateway takes states and entries from the leader of the greatest ballot that it knows, and says
//! which state it holds. A query is answered from its own state, once all gateways hold that state.

use super::ballot::{StoreBallot, StoreBallotVersion};
use super::snapshot_receiver::SnapshotReceiver;
use super::store_message::{StoreMessage, StoreViolation};
use crate::ids::BootId;
use crate::store::limits::PIECE_BYTES;
use crate::store::state::{StoreEntry, StoreState};
use std::collections::BTreeMap;

/// 64 entries of the store's log beyond those that a gateway holds: the gateway keeps such entries
/// while an earlier one is missing. Later entries are dropped, and the leader repeats them. The
/// limit of memory is chosen.
const EARLY_ENTRIES_MAX: u64 = 64;

/// The state of a store at one gateway.
#[derive(Debug)]
pub struct StoreReplica {
    boot: BootId,
    promised: StoreBallot,
    held: Option<HeldState>,
    receiver: Option<SnapshotReceiver>,
    /// Entries that came before earlier ones, by number.
    early: BTreeMap<u64, StoreEntry>,
    /// The snapshot of a version that another gateway fetches.
    snapshot: Option<(StoreBallotVersion, Vec<u8>)>,
}

/// A state, and how much of it all gateways hold.
#[derive(Debug)]
pub(super) struct HeldState {
    pub state: StoreState,
    pub version: StoreBallotVersion,
    /// The number of entries that all gateways are known to hold, under the ballot of `version`.
    pub commit: u64,
}

impl StoreReplica {
    /// Makes the replica of a gateway that was just started, without a state.
    pub fn new(boot: BootId) -> Self {
        let (promised, early) = (StoreBallot::default(), BTreeMap::new());
        Self { boot, promised, held: None, receiver: None, early, snapshot: None }
    }

    /// Returns the state, if this gateway holds one.
    pub fn state(&self) -> Option<&StoreState> {
        self.held.as_ref().map(|held| &held.state)
    }

    /// Returns the version of the state; `None` without a state.
    pub fn version(&self) -> Option<StoreBallotVersion> {
        self.held.as_ref().map(|held| held.version)
    }

    /// Returns the version that all gateways are known to hold; `None` without a state.
    pub fn committed(&self) -> Option<StoreBallotVersion> {
        let held = self.held.as_ref()?;
        Some(StoreBallotVersion { ballot: held.version.ballot, index: held.commit })
    }

    /// Returns the greatest ballot that this gateway knows.
    pub(super) fn promised(&self) -> StoreBallot {
        self.promised
    }

    /// Replaces the state by one of which nothing is known to be held by all gateways.
    pub(super) fn install(&mut self, state: StoreState, version: StoreBallotVersion) {
        self.held = Some(HeldState { state, version, commit: 0 });
        self.forget_transfers();
    }

    /// Gives the held state the version `version` of another ballot, of which nothing is committed
    /// yet.
    pub(super) fn relabel(&mut self, version: StoreBallotVersion) {
        if let Some(held) = &mut self.held {
            (held.version, held.commit) = (version, 0);
        }
        self.forget_transfers();
    }

    /// Drops the snapshot that is arriving, the one that was encoded to send, and entries that came
    /// early.
    fn forget_transfers(&mut self) {
        (self.receiver, self.snapshot) = (None, None);
        self.early.clear();
    }

    /// Records that all gateways hold the first `index` entries of the current ballot, as far as
    /// this gateway holds them. A smaller number than before has no effect.
    pub(super) fn advance_commit(&mut self, index: u64) {
        if let Some(held) = &mut self.held {
            held.commit = held.commit.max(index.min(held.version.index));
        }
    }

    /// Promises to take no state of a ballot below `ballot`, and begins anew if it is greater.
    pub(super) fn promise(&mut self, ballot: StoreBallot) {
        if ballot > self.promised {
            self.promised = ballot;
            self.receiver = None;
        }
    }

    /// Appends an entry to the state. Returns the version with it; `None` without a state.
    pub(super) fn append(&mut self, entry: &StoreEntry) -> Option<StoreBallotVersion> {
        let held = self.held.as_mut()?;
        held.state.apply(entry);
        held.version.index += 1;
        Some(held.version)
    }

    /// Promises a leader's ballot, unless a greater one is known. Returns the answer: the greatest
    /// ballot known, and the version of the state that this gateway holds.
    pub fn handle_prepare(&mut self, ballot: StoreBallot, probe: u64) -> StoreMessage {
        self.promise(ballot);
        let (boot, promised, held) = (self.boot, self.promised, self.version());
        StoreMessage::Promise { asked: ballot, probe, boot, promised, held }
    }

    /// Begins to receive the state that the leader offers, or relabels the held one if its content
    /// is equal. Returns requests for pieces, or the message that says which state this gateway
    /// holds. An offer of an earlier ballot has no effect.
    pub fn handle_offer(
        &mut self,
        version: StoreBallotVersion,
        content: Option<StoreBallotVersion>,
    ) -> Vec<StoreMessage> {
        if version.ballot < self.promised {
            return Vec::new();
        }
        self.promise(version.ballot);
        match self.version() {
            Some(held) if held.ballot == version.ballot => {}
            Some(held) if Some(held) == content => self.relabel(version),
            _ => {
                let fetched = self.receiver.as_ref().map(|receiver| receiver.version);
                if fetched.is_none_or(|fetched| fetched < version) {
                    self.receiver = Some(SnapshotReceiver::new(version));
                } else if let Some(receiver) = &mut self.receiver {
                    receiver.forget_asked();
                }
                return self.fetch_requests(version.ballot.boot);
            }
        }
        self.report_held().into_iter().collect()
    }

    /// Adds a piece to the snapshot that the leader offered. Returns the next messages.
    ///
    /// # Errors
    /// [`StoreViolation`]: the piece fits no snapshot.
    pub fn handle_piece(
        &mut self,
        version: StoreBallotVersion,
        (offset, total): (u32, u32),
        bytes: &[u8],
    ) -> Result<Vec<StoreMessage>, StoreViolation> {
        let Some(snapshot) = self.take_piece(version, (offset, total), bytes)? else {
            return Ok(self.fetch_requests(version.ballot.boot));
        };
        self.install(snapshot, version);
        Ok(self.report_held().into_iter().collect())
    }

    /// Adds a piece to the snapshot that is arriving. Returns the state once it is whole. A piece
    /// of another version has no effect.
    ///
    /// # Errors
    /// [`StoreViolation`]: the piece fits no snapshot, or the whole bytes are none.
    pub(super) fn take_piece(
        &mut self,
        version: StoreBallotVersion,
        (offset, total): (u32, u32),
        bytes: &[u8],
    ) -> Result<Option<StoreState>, StoreViolation> {
        let receiver = self.receiver.as_mut().filter(|receiver| receiver.version == version);
        let Some(receiver) = receiver else { return Ok(None) };
        let Some(snapshot) = receiver.take_piece(offset, total, bytes)? else { return Ok(None) };
        let decoded = StoreState::decode_snapshot(&snapshot);
        decoded.map(Some).map_err(|_| StoreViolation("bytes that decode to no snapshot"))
    }

    /// Begins to fetch the snapshot of a version, unless that is under way.
    pub(super) fn begin_fetch(&mut self, version: StoreBallotVersion) {
        if self.receiver.as_ref().is_none_or(|receiver| receiver.version != version) {
            self.receiver = Some(SnapshotReceiver::new(version));
        }
    }

    /// Treats requested pieces of the arriving snapshot as lost, so that they are requested again.
    pub(super) fn forget_asked_pieces(&mut self) {
        self.receiver.iter_mut().for_each(SnapshotReceiver::forget_asked);
    }

    /// Returns requests for pieces of the snapshot under way.
    pub(super) fn fetch_requests(&mut self, to: BootId) -> Vec<StoreMessage> {
        let Some(receiver) = &mut self.receiver else { return Vec::new() };
        let version = receiver.version;
        let offsets = receiver.offsets_to_ask().into_iter();
        offsets.map(|offset| StoreMessage::Fetch { to, version, offset }).collect()
    }

    /// Answers a request of the leader for a piece of the state that this gateway holds. `None` if
    /// it does not hold that version, or the snapshot ends before `offset`.
    pub fn handle_fetch(
        &mut self,
        version: StoreBallotVersion,
        offset: u32,
    ) -> Option<StoreMessage> {
        let to = self.promised.boot;
        let held = self.held.as_ref().filter(|held| held.version == version)?;
        if self.snapshot.as_ref().is_none_or(|(of, _)| *of != version) {
            self.snapshot = Some((version, held.state.encode_snapshot()));
        }
        let (_, snapshot) = self.snapshot.as_ref()?;
        store_replica_snapshot_piece(snapshot, to, version, offset)
    }

    /// Takes the entry `version` of the leader's log, and adds all entries to the state that follow
    /// it without a gap. An entry over `EARLY_ENTRIES_MAX` ahead is dropped. Notes that all
    /// gateways hold the first `commit` entries. Returns the message with the version that this
    /// gateway holds now. `None` where it follows another leader, or has no state to which the
    /// entry could be added.
    pub fn handle_append(
        &mut self,
        version: StoreBallotVersion,
        commit: u64,
        entry: StoreEntry,
    ) -> Option<StoreMessage> {
        let held = self.held.as_ref()?.version;
        if version.ballot != self.promised || version.ballot != held.ballot {
            return None;
        }
        let reach = held.index + 1..=held.index + EARLY_ENTRIES_MAX;
        if reach.contains(&version.index) {
            self.early.insert(version.index, entry);
        }
        let mut next = held.index + 1;
        while let Some(entry) = self.early.remove(&next) {
            self.append(&entry);
            next += 1;
        }
        self.advance_commit(commit);
        self.report_held()
    }

    /// Records that all gateways hold `version`, if it is of the ballot of the held state.
    pub fn handle_commit(&mut self, version: StoreBallotVersion) {
        if self.version().is_some_and(|held| held.ballot == version.ballot) {
            self.advance_commit(version.index);
        }
    }

    /// Makes the message that says which state this gateway holds; `None` without one.
    fn report_held(&self) -> Option<StoreMessage> {
        Some(StoreMessage::Held { boot: self.boot, version: self.version()? })
    }
}

/// Makes the message with the piece of a snapshot that begins at `offset`; `None` where the snapshot
/// ends before.
pub(super) fn store_replica_snapshot_piece(
    snapshot: &[u8],
    to: BootId,
    version: StoreBallotVersion,
    offset: u32,
) -> Option<StoreMessage> {
    let rest = snapshot.get(offset as usize..)?;
    let bytes = rest[..rest.len().min(PIECE_BYTES)].to_vec();
    let total = u32::try_from(snapshot.len()).ok()?;
    Some(StoreMessage::Piece { to, version, offset, total, bytes })
}
