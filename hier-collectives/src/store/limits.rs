//! The limits of a job's store. A request beyond one is refused, and changes nothing.

/// 1,024 bytes: the longest key of a job's store, a chosen limit.
pub const KEY_BYTES_MAX: usize = 1024;
/// 48 KiB: the longest value, and the longest item of a queue, in a job's store. It fits a message
/// of a trainer, of at most 64 KiB.
pub const VALUE_BYTES_MAX: usize = 48 << 10;
/// 56 KiB: the most bytes of keys and values in one request to a store or one answer. It fits a
/// message of a trainer, of at most 64 KiB.
/// Tested by `requests_at_the_limits_fit_a_local_message`.
pub const REQUEST_BYTES_MAX: usize = 56 << 10;
/// 1,024 keys: the most in one request to a store, a chosen limit of the work for it.
pub const REQUEST_KEYS_MAX: usize = 1024;
/// 65,536 keys: the most in one store, a chosen limit of memory.
pub const KEYS_MAX: usize = 1 << 16;
/// 16 MiB: the most bytes of keys and values in one store, with [`ITEM_OVERHEAD_BYTES`] for each.
/// The limit of a gateway's memory is chosen.
pub const STORE_BYTES_MAX: u64 = 16 << 20;
/// 64 bytes: counted in addition for each key and each item of a queue, for the memory that a short
/// one takes. The number is chosen.
pub const ITEM_OVERHEAD_BYTES: u64 = 64;
/// 16,384 requests to a store: the most of one job that wait at one gateway, a chosen limit of
/// memory.
pub const WAITING_REQUESTS_MAX: usize = 1 << 14;
/// 32 MiB: the most bytes of keys and values in requests of one job that wait at one gateway, a
/// chosen limit of memory.
pub const WAITING_BYTES_MAX: usize = 32 << 20;
/// 2^61: a leader of a store ignores a Promise with a ballot or number of entries from here on that is
/// above its own. Messages hold numbers up to twice as great, so that the leader can go on counting.
/// Tested by `numbers_that_no_leader_chose_are_ignored`.
pub const KNOWN_NUMBER_MAX: u64 = 1 << 61;
/// 64 commands to a store: the most of one gateway that are on their way to all gateways at a time.
/// The number is chosen; later commands wait at that gateway.
pub const COMMAND_WINDOW: u64 = 64;
/// 1 MiB: the most bytes of keys and values in commands of one gateway that are on their way to all
/// gateways. The limit of the leader's memory is chosen; later commands wait at that gateway.
pub const COMMAND_WINDOW_BYTES: usize = 1 << 20;
/// 32 MiB: the longest snapshot of a store, twice [`STORE_BYTES_MAX`]: it also has outcomes of
/// commands.
pub const SNAPSHOT_BYTES_MAX: usize = 32 << 20;
/// 64 KiB: the bytes of one piece of a store's snapshot, a chosen size, so that other messages pass
/// between pieces.
pub const PIECE_BYTES: usize = 64 << 10;
/// 16 pieces of a snapshot, 1 MiB in all: the most that a gateway has requested and not received.
/// The number is chosen, so that several are under way on a long link.
pub const PIECES_ASKED_MAX: usize = 16;
