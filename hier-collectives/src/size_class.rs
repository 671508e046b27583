//! Classes of buffers by size.

/// Of a buffer, by its size: a class waits neither on lanes nor for memory that larger ones can fill.
/// What does not fit the room kept for it waits its turn among large ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SizeClass {
    /// At most [`SMALL_BYTES`]: what is under way on a lane lets it pass too.
    Small,
    /// At most [`MEDIUM_BYTES`].
    Medium,
    /// Any other.
    #[default]
    Large,
}

/// The largest small buffer. Buffers of the session's own tests are short.
pub const SMALL_BYTES: u64 = if cfg!(test) { 256 } else { 64 << 10 };
/// The largest medium buffer.
pub const MEDIUM_BYTES: u64 = if cfg!(test) { 1024 } else { 1 << 20 };

impl SizeClass {
    /// In their order.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// That of a buffer of so many bytes.
    pub const fn of(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES {
            Self::Small
        } else if bytes <= MEDIUM_BYTES {
            Self::Medium
        } else {
            Self::Large
        }
    }

    /// Room kept for a class at relays and with peers, where there is much: partials and segments
    /// wait there for a round trip, and several small buffers may follow each other.
    pub const fn reserve(self) -> u64 {
        match self {
            Self::Small => 4 * SMALL_BYTES,
            Self::Medium => MEDIUM_BYTES,
            Self::Large => 0,
        }
    }

    /// What of a place with so many bytes is for this class: not what is kept for smaller ones, a
    /// quarter for each of them where there is little.
    pub fn room(self, bytes: u64) -> u64 {
        let smaller = Self::ALL.into_iter().filter(|other| *other < self);
        bytes - smaller.map(|other| other.reserve().min(bytes / 4)).sum::<u64>()
    }

    /// What of the memory for partials is for this class alone: none can hold what another waits for.
    pub const fn partials(self, bytes: u64) -> u64 {
        match self {
            Self::Small => bytes / 4,
            Self::Medium => bytes / 8,
            Self::Large => bytes - bytes / 4 - bytes / 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_leaves_room_for_smaller_ones() {
        let rooms = |bytes| SizeClass::ALL.map(|class| class.room(bytes));
        assert_eq!(rooms(1 << 20), [1 << 20, (1 << 20) - 1024, (1 << 20) - 2048]);
        assert_eq!(rooms(1024), [1024, 768, 512]);
        assert_eq!(rooms(0), [0, 0, 0]);
        let sizes = [0, 256, 257, 1024, 1025, u64::MAX];
        let [small, medium, large] = SizeClass::ALL;
        assert_eq!(sizes.map(SizeClass::of), [small, small, medium, medium, large, large]);
        for bytes in [0, 7, 64 << 20, u64::MAX] {
            assert_eq!(
                SizeClass::ALL.map(|class| class.partials(bytes)).iter().sum::<u64>(),
                bytes
            );
        }
    }
}
