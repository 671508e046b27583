//! The leader of a store: the first gateway, which makes the one order of its commands.
//!
//! ```text
//! Asleep --request, or a gateway with one or with a state--> Preparing
//! Preparing --all gateways have promised; the latest state is at hand--> Leading
//! Preparing, Leading --a gateway knows a greater ballot--> Preparing
//! ```

use super::ballot::{StoreBallot, StoreBallotVersion};
use super::follower::{FollowerPhase, StoreFollower};
use super::store_message::{StoreMessage, StoreViolation};
use super::store_replica::{StoreReplica, store_replica_snapshot_piece};
use crate::ids::{BootId, GatewayId};
use crate::mutant::{self, Mutant};
use crate::store::limits::{BELIEVED_NUMBERS_BOUND, COMMAND_WINDOW, COMMAND_WINDOW_BYTES};
use crate::store::state::{StoreEntry, StoreState};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Gateway 0, the first of the fabric by name, which leads every store: it makes the one order of
/// all changes. The choice needs no vote, since all gateways know it.
pub const STORE_LEADER: GatewayId = GatewayId(0);

/// The leader of a store.
#[derive(Debug)]
pub struct StoreLeader {
    ballot: StoreBallot,
    phase: LeaderPhase,
    followers: BTreeMap<GatewayId, StoreFollower>,
    /// The version that the state had before this ballot.
    content: Option<StoreBallotVersion>,
    /// The entries that some gateway may lack, up to the last.
    log: VecDeque<StoreEntry>,
    /// The bytes of the entries in the log.
    log_bytes: usize,
    /// The last snapshot that was offered, and its number of entries.
    snapshot: Option<(u64, Arc<Vec<u8>>)>,
    /// Messages to send.
    messages: Vec<(GatewayId, StoreMessage)>,
}

/// The answer of a gateway to a question of the leader.
#[derive(Debug, Clone, Copy)]
pub struct StorePromise {
    /// The ballot of the question.
    pub asked: StoreBallot,
    /// The number of the question.
    pub probe: u64,
    /// The start of the gateway.
    pub boot: BootId,
    /// The greatest ballot that the gateway knows.
    pub promised: StoreBallot,
    /// The state that the gateway holds.
    pub held: Option<StoreBallotVersion>,
}

/// The work of the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaderPhase {
    /// Nobody uses the store.
    Asleep,
    /// It asks all gateways for promises, and then fetches the latest state from one.
    Preparing {
        /// The gateway from which it fetches.
        source: Option<GatewayId>,
    },
    /// It takes commands.
    Leading,
}

impl StoreLeader {
    /// Makes the leader of a store with these other gateways.
    pub fn new(boot: BootId, others: impl Iterator<Item = GatewayId>) -> Self {
        Self {
            ballot: StoreBallot { number: 1, boot },
            phase: LeaderPhase::Asleep,
            followers: others.map(|id| (id, StoreFollower::new())).collect(),
            content: None,
            log: VecDeque::new(),
            log_bytes: 0,
            snapshot: None,
            messages: Vec::new(),
        }
    }

    /// Removes and returns the messages to send.
    pub fn take_messages(&mut self) -> Vec<(GatewayId, StoreMessage)> {
        std::mem::take(&mut self.messages)
    }

    /// Begins a ballot if the leader is asleep, because a gateway uses the store.
    pub fn wake(&mut self, replica: &mut StoreReplica) {
        if self.phase == LeaderPhase::Asleep {
            self.begin_ballot(replica);
        }
    }

    /// Whether the leader waits for messages of other gateways.
    pub fn is_waiting(&self, replica: &StoreReplica) -> bool {
        self.phase != LeaderPhase::Asleep && !self.lagging(replica).is_empty()
    }

    /// Returns the gateways for which the leader waits. While it prepares, they are those without a
    /// promise, or else the one from which it fetches the state. Later they are those that do not
    /// hold all entries.
    pub fn lagging(&self, replica: &StoreReplica) -> Vec<GatewayId> {
        let last = replica.version().map(|version| version.index);
        let lags = |follower: &StoreFollower| match self.phase {
            LeaderPhase::Preparing { .. } => follower.boot().is_none(),
            _ => follower.held_index() != last,
        };
        let lagging: Vec<_> =
            self.followers.iter().filter(|(_, other)| lags(other)).map(|(id, _)| *id).collect();
        match self.phase {
            LeaderPhase::Preparing { source: Some(source) } if lagging.is_empty() => vec![source],
            _ => lagging,
        }
    }

    /// Asks all gateways how far they are, since messages or starts of gateways may be lost.
    pub fn probe_all(&mut self, replica: &mut StoreReplica) {
        if self.phase == LeaderPhase::Asleep {
            return;
        }
        let all: Vec<GatewayId> = self.followers.keys().copied().collect();
        self.probe(&all, replica);
    }

    /// Asks these gateways how far they are, and asks for missing pieces of a snapshot.
    pub fn probe(&mut self, gateways: &[GatewayId], replica: &mut StoreReplica) {
        for id in gateways {
            let Some(follower) = self.followers.get_mut(id) else { continue };
            follower.probe += 1;
            let (ballot, probe) = (self.ballot, follower.probe);
            self.messages.push((*id, StoreMessage::Prepare { ballot, probe }));
        }
        replica.forget_asked_pieces();
        self.fetch(replica);
    }

    /// Begins a ballot if the leader is asleep; otherwise asks the gateway `from` for its state.
    pub fn handle_present(&mut self, from: GatewayId, replica: &mut StoreReplica) {
        if self.phase == LeaderPhase::Asleep {
            self.wake(replica);
        } else {
            self.probe(&[from], replica);
        }
    }

    /// Appends a command of a gateway's present start, unless it was appended before. Probes a
    /// gateway of another start.
    pub fn handle_command(
        &mut self,
        from: GatewayId,
        entry: StoreEntry,
        replica: &mut StoreReplica,
    ) {
        self.wake(replica);
        let Some(follower) = self.followers.get_mut(&from) else { return };
        if follower.boot() == Some(entry.boot) {
            self.append(entry, replica);
        } else if follower.named != Some(entry.boot) {
            // Asked once: the answers to earlier questions would be void.
            follower.named = Some(entry.boot);
            self.probe(&[from], replica);
        }
    }

    /// Adds a command to the order, and sends it to all gateways. Does nothing for a leader that
    /// does not lead yet, for a known command, or where the log is full.
    pub fn append(&mut self, entry: StoreEntry, replica: &mut StoreReplica) {
        let is_new = replica
            .state()
            .is_some_and(|state| state.is_new(entry.origin, entry.boot, entry.number));
        // There is room for the commands of all gateways that keep to their windows.
        let (bytes, gateways) = (entry.command.bytes(), self.followers.len() + 1);
        let has_room = self.log.len() < gateways * COMMAND_WINDOW as usize
            && self.log_bytes + bytes <= gateways * COMMAND_WINDOW_BYTES;
        if self.phase != LeaderPhase::Leading || !is_new || !has_room {
            return;
        }
        let Some(version) = replica.append(&entry) else { return };
        self.log.push_back(entry);
        self.log_bytes += bytes;
        let following = self.followers.iter().filter(|(_, other)| other.held_index().is_some());
        let following: Vec<GatewayId> = following.map(|(id, _)| *id).collect();
        following.into_iter().for_each(|id| self.send_entries(id, version.index, replica));
        self.advance_commit(replica);
    }

    /// Returns whether a Promise names a ballot or a number of entries that no leader reached by
    /// counting, and that is above this leader's own.
    pub fn is_beyond_count(&self, promise: &StorePromise, replica: &StoreReplica) -> bool {
        let own_index = replica.version().map_or(0, |version| version.index);
        let index = promise.held.map_or(0, |held| held.index);
        let is_beyond = |number: u64, own: u64| number >= BELIEVED_NUMBERS_BOUND && number > own;
        is_beyond(promise.promised.number, self.ballot.number) || is_beyond(index, own_index)
    }

    /// Records a gateway's answer to the last probe, or begins a greater ballot if the gateway has
    /// promised one.
    pub fn handle_promise(
        &mut self,
        from: GatewayId,
        promise: StorePromise,
        replica: &mut StoreReplica,
    ) {
        let StorePromise { asked, probe, boot, promised, held } = promise;
        if promised > self.ballot {
            self.ballot.number = promised.number + 1;
            return self.begin_ballot(replica);
        }
        let Some(follower) = self.followers.get_mut(&from) else { return };
        // The answer to an earlier question may be of an earlier start.
        let is_current = probe == follower.probe && asked == self.ballot && promised == asked;
        if !is_current || self.phase == LeaderPhase::Asleep {
            return;
        }
        if self.phase != LeaderPhase::Leading {
            follower.phase = FollowerPhase::Promised { boot, held };
            return self.choose_state(replica);
        }
        let last = replica.version().map_or(0, |version| version.index);
        match held.filter(|held| held.ballot == self.ballot && held.index <= last) {
            Some(StoreBallotVersion { index, .. }) => {
                self.follow(from, boot, index, replica);
                self.advance_commit(replica);
            }
            None => self.offer(from, boot, held, replica),
        }
    }

    /// Records the version that a gateway holds, and commits the entries that all gateways hold
    /// now.
    pub fn handle_held(
        &mut self,
        from: GatewayId,
        boot: BootId,
        version: StoreBallotVersion,
        replica: &mut StoreReplica,
    ) {
        let last = replica.version().map_or(0, |version| version.index);
        let StoreBallotVersion { ballot, index } = version;
        if self.phase != LeaderPhase::Leading || ballot != self.ballot || index > last {
            return;
        }
        let Some(follower) = self.followers.get_mut(&from) else { return };
        if follower.boot() != Some(boot) {
            return;
        }
        match &mut follower.phase {
            FollowerPhase::Following { held, .. } => *held = index.max(*held),
            FollowerPhase::Offered { index: offered, .. } if index >= *offered => {
                self.follow(from, boot, index, replica);
            }
            _ => return,
        }
        self.advance_commit(replica);
    }

    /// Sends a piece of the snapshot that a gateway was offered; nothing if it asks for another
    /// version, or beyond the end.
    pub fn handle_fetch(&mut self, from: GatewayId, version: StoreBallotVersion, offset: u32) {
        let Some(follower) = self.followers.get(&from) else { return };
        let FollowerPhase::Offered { boot, index, snapshot: Some(snapshot) } = &follower.phase
        else {
            return;
        };
        if version == (StoreBallotVersion { ballot: self.ballot, index: *index })
            && let Some(piece) = store_replica_snapshot_piece(snapshot, *boot, version, offset)
        {
            self.messages.push((from, piece));
        }
    }

    /// Adds a piece to the snapshot that this gateway fetches, and leads with the state once it is
    /// whole. `place` is the piece's offset and the snapshot's length, in bytes. A piece of another
    /// source has no effect.
    ///
    /// # Errors
    /// [`StoreViolation`]: the piece fits no snapshot.
    pub fn handle_piece(
        &mut self,
        from: GatewayId,
        version: StoreBallotVersion,
        place: (u32, u32),
        bytes: &[u8],
        replica: &mut StoreReplica,
    ) -> Result<(), StoreViolation> {
        if self.phase != (LeaderPhase::Preparing { source: Some(from) }) {
            return Ok(());
        }
        match replica.take_piece(version, place, bytes)? {
            Some(state) => {
                replica.install(state, version);
                self.choose_state(replica);
            }
            None => self.fetch(replica),
        }
        Ok(())
    }

    /// Begins a ballot above all that this gateway knows: forgets the log and the phases of all
    /// other gateways, and asks these for promises. Without other gateways it leads then.
    fn begin_ballot(&mut self, replica: &mut StoreReplica) {
        self.ballot.number = self.ballot.number.max(replica.promised().number + 1);
        replica.promise(self.ballot);
        self.phase = LeaderPhase::Preparing { source: None };
        self.followers.values_mut().for_each(|other| other.phase = FollowerPhase::Unknown);
        (self.log, self.log_bytes) = (VecDeque::new(), 0);
        self.snapshot = None;
        self.probe_all(replica);
        self.choose_state(replica);
    }

    /// Leads with the latest state once all gateways have promised; fetches that state first if
    /// another gateway holds it.
    fn choose_state(&mut self, replica: &mut StoreReplica) {
        if self.followers.values().any(|follower| follower.boot().is_none()) {
            return;
        }
        let states = self.followers.iter().map(|(id, other)| (other.promised_state(), *id));
        let latest = states.max_by_key(|(held, _)| *held);
        match latest {
            Some((Some(version), source)) if Some(version) > replica.version() => {
                self.phase = LeaderPhase::Preparing { source: Some(source) };
                replica.begin_fetch(version);
                self.fetch(replica);
            }
            _ => self.lead(replica),
        }
    }

    /// Asks for pieces of the state that this gateway fetches.
    fn fetch(&mut self, replica: &mut StoreReplica) {
        let LeaderPhase::Preparing { source: Some(source) } = self.phase else { return };
        let Some(boot) = self.followers.get(&source).and_then(StoreFollower::boot) else { return };
        let requests = replica.fetch_requests(boot).into_iter();
        self.messages.extend(requests.map(|request| (source, request)));
    }

    /// Leads with the state at hand, which is empty if no gateway holds any.
    fn lead(&mut self, replica: &mut StoreReplica) {
        self.content = replica.version();
        let index = self.content.map_or(0, |content| content.index);
        let version = StoreBallotVersion { ballot: self.ballot, index };
        match self.content {
            Some(_) => replica.relabel(version),
            None => replica.install(StoreState::default(), version),
        }
        self.phase = LeaderPhase::Leading;
        let promised: Vec<_> = self
            .followers
            .iter()
            .filter_map(|(id, other)| Some((*id, other.boot()?, other.promised_state())))
            .collect();
        for (id, boot, held) in promised {
            self.offer(id, boot, held, replica);
        }
        self.advance_commit(replica);
    }

    /// Offers a gateway the present state, or repeats the offer that it has. A gateway that holds
    /// the same state under an earlier ballot needs no snapshot.
    fn offer(
        &mut self,
        to: GatewayId,
        boot: BootId,
        held: Option<StoreBallotVersion>,
        replica: &StoreReplica,
    ) {
        let (Some(version), Some(state)) = (replica.version(), replica.state()) else { return };
        let Some(follower) = self.followers.get_mut(&to) else { return };
        let known = match &follower.phase {
            FollowerPhase::Offered { boot: known, index, .. } if *known == boot => Some(*index),
            _ => None,
        };
        let index = known.unwrap_or(version.index);
        if known.is_none() {
            // Entries were added to the content unless the numbers are equal.
            let is_content =
                |held: StoreBallotVersion| Some(held) == self.content && held.index == index;
            let snapshot = (!held.is_some_and(is_content)).then(|| match &self.snapshot {
                Some((of, snapshot)) if *of == index => Arc::clone(snapshot),
                _ => Arc::new(state.encode_snapshot()),
            });
            if let Some(snapshot) = &snapshot {
                self.snapshot = Some((index, Arc::clone(snapshot)));
            }
            follower.phase = FollowerPhase::Offered { boot, index, snapshot };
        }
        let has_content = matches!(follower.phase, FollowerPhase::Offered { snapshot: None, .. });
        let content = self.content.filter(|_| has_content);
        let version = StoreBallotVersion { index, ..version };
        self.messages.push((to, StoreMessage::Offer { to: boot, version, content }));
    }

    /// Marks a gateway as a follower that holds the first `held` entries, and sends it the rest and
    /// the commit.
    fn follow(&mut self, id: GatewayId, boot: BootId, held: u64, replica: &StoreReplica) {
        let Some(follower) = self.followers.get_mut(&id) else { return };
        follower.phase = FollowerPhase::Following { boot, held };
        self.send_entries(id, held + 1, replica);
        if let Some(version) = replica.committed() {
            self.messages.push((id, StoreMessage::Commit { to: boot, version }));
        }
    }

    /// Sends a gateway those entries of the log that have number `from` or a greater one.
    fn send_entries(&mut self, to: GatewayId, from: u64, replica: &StoreReplica) {
        let (Some(version), Some(committed)) = (replica.version(), replica.committed()) else {
            return;
        };
        let Some(boot) = self.followers.get(&to).and_then(StoreFollower::boot) else { return };
        let first = version.index + 1 - self.log.len() as u64;
        let known = usize::try_from(from.saturating_sub(first)).unwrap_or(usize::MAX);
        for (index, entry) in (first..).zip(&self.log).skip(known) {
            let version = StoreBallotVersion { index, ..version };
            let (commit, entry) = (committed.index, entry.clone());
            self.messages.push((to, StoreMessage::Append { to: boot, version, commit, entry }));
        }
    }

    /// Commits the entries that all gateways hold, tells the gateways, and forgets entries that no
    /// gateway lacks.
    fn advance_commit(&mut self, replica: &mut StoreReplica) {
        let (Some(version), Some(before)) = (replica.version(), replica.committed()) else {
            return;
        };
        let mut held = self.followers.values().map(StoreFollower::held_index);
        let mut all = held.try_fold(version.index, |least, held| Some(least.min(held?)));
        if mutant::is_mutant_active(Mutant::AnswerEarly) {
            all = Some(version.index);
        }
        replica.advance_commit(all.unwrap_or(0));
        let needed = self.followers.values().filter_map(StoreFollower::last_unneeded_index);
        let needed = needed.fold(version.index, u64::min);
        while version.index - (self.log.len() as u64) < needed {
            let Some(entry) = self.log.pop_front() else { break };
            self.log_bytes -= entry.command.bytes();
        }
        if self.followers.values().all(|follower| follower.held_index().is_some()) {
            self.snapshot = None;
        }
        let Some(committed) = replica.committed().filter(|committed| *committed != before) else {
            return;
        };
        for (id, follower) in &self.followers {
            if let FollowerPhase::Following { boot, .. } = follower.phase {
                let commit = StoreMessage::Commit { to: boot, version: committed };
                self.messages.push((*id, commit));
            }
        }
    }
}
