//! The limits of a job's store. A request beyond one is refused, and changes nothing.

/// 1,024 bytes: the longest key of a job's store; a request with a longer key is refused. The limit
/// is chosen.
pub const KEY_BYTES_MAX: usize = 1024;
/// 48 KiB: the longest value, and the longest item of a queue, in a job's store; a request for a
/// longer one is refused. So a value fits a message of a trainer, of at most 64 KiB.
pub const VALUE_BYTES_MAX: usize = 48 << 10;
/// 56 KiB of keys and values: the most in one request to a store or one answer. A request with
/// more, or for more, is refused; a list of keys is cut. So each fits a message of a trainer, of at
/// most 64 KiB.
/// Tested by `requests_at_the_limits_fit_a_local_message`.
pub const REQUEST_BYTES_MAX: usize = 56 << 10;
/// 1,024 keys: the most in one request to a store or one answer, a chosen limit of the work for it.
/// A request with more is refused; a list of keys is cut.
pub const REQUEST_KEYS_MAX: usize = 1024;
/// 65,536 keys: the most in one store, a chosen limit of memory. A change that would add one more
/// is refused.
pub const KEYS_MAX: usize = 1 << 16;
/// 16 MiB: the most counted bytes of one store: keys, queue items and outcomes, with 64 bytes more
/// for each, and values. A change beyond is refused. The limit of a gateway's memory is chosen.
pub const STORE_BYTES_MAX: u64 = 16 << 20;
/// 64 bytes: added to the length of each key, queue item and outcome with bytes where a store's
/// bytes are counted. A short one takes so much memory; the number is chosen.
pub const ITEM_OVERHEAD_BYTES: u64 = 64;
/// 16,384 requests of one job to its store may wait at one gateway; one more fails as busy. The limit of memory is chosen.
pub const WAITING_REQUESTS_MAX: usize = 1 << 14;
/// 32 MiB: the most bytes of keys and values in requests of one job to its store that wait at one
/// gateway. A request beyond fails as busy. The limit of memory is chosen.
pub const WAITING_BYTES_MAX: usize = 32 << 20;
/// 2^62: a message between gateways is malformed if a ballot, an index of entries or the number of a
/// command in it is not below this bound. So no addition overflows.
pub(super) const STORE_NUMBERS_BOUND: u64 = 1 << 62;
/// 2^61: the leader of a store ignores a peer's Promise with a ballot or number of entries from
/// 2^61 on, unless its own is as great. Messages hold numbers up to twice as great, so that the
/// leader can go on counting.
/// Tested by `numbers_that_no_leader_chose_are_ignored`.
pub const BELIEVED_NUMBERS_BOUND: u64 = 1 << 61;
/// 64 commands to a store, counted from the oldest without an answer: a gateway gives the leader
/// only these. Later commands wait at that gateway. The number is chosen.
pub const COMMAND_WINDOW: u64 = 64;
/// 1 MiB of keys and values in commands to a store, counted from the oldest without an answer: a
/// gateway gives the leader no more. Later commands wait at that gateway. The limit of the leader's
/// memory is chosen.
pub const COMMAND_WINDOW_BYTES: usize = 1 << 20;
/// 32 MiB: the longest snapshot of a store; a peer's longer one is refused as malformed. It is
/// twice 16 MiB, the most bytes of a store, since a snapshot also has outcomes of commands.
pub const SNAPSHOT_BYTES_MAX: usize = 32 << 20;
/// 64 KiB: a store's snapshot is sent in pieces of this length, of which only the last may be
/// shorter. The size is chosen, so that other messages pass between pieces.
pub const PIECE_BYTES: usize = 64 << 10;
/// 16 pieces of a store's snapshot, 1 MiB in all: the most that a gateway has requested and not
/// received. Further pieces are requested as these arrive. The number is chosen, so that several
/// are under way on a long link.
pub const PIECES_ASKED_MAX: usize = 16;
