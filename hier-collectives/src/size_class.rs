//! Size classes of buffers, so that small operations do not wait for large ones.

/// Size class of a buffer.
///
/// A class waits neither on lanes nor for memory that larger classes can fill. An operation that
/// does not fit the reserve of its class waits in the order of large ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SizeClass {
    /// At most [`SMALL_BYTES`]; it also overtakes segments that are being sent on a lane.
    Small,
    /// At most [`MEDIUM_BYTES`].
    Medium,
    /// More than [`MEDIUM_BYTES`].
    #[default]
    Large,
}

/// 64 KiB: the largest buffer of size class small, whose segments leave before those of larger
/// buffers. The limit is chosen. In unit tests, whose buffers are short, it is 256 bytes.
pub const SMALL_BYTES: u64 = if cfg!(test) { 256 } else { 64 << 10 };
/// 1 MiB: the largest buffer of size class medium, whose segments leave after small and before
/// large ones. A longer buffer is large. The limit is chosen. In unit tests, whose buffers are
/// short, it is 1,024 bytes.
pub const MEDIUM_BYTES: u64 = if cfg!(test) { 1024 } else { 1 << 20 };

impl SizeClass {
    /// All size classes, in ascending order of size.
    pub const ALL: [Self; 3] = [Self::Small, Self::Medium, Self::Large];

    /// Returns the size class of a buffer of `bytes` bytes.
    pub const fn for_buffer(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES {
            Self::Small
        } else if bytes <= MEDIUM_BYTES {
            Self::Medium
        } else {
            Self::Large
        }
    }

    /// Returns the bytes that relays and peers reserve for operations of this size class, where
    /// their windows are large.
    ///
    /// Partials and segments wait there for a round trip, and several small buffers may follow each
    /// other.
    pub const fn reserved_bytes(self) -> u64 {
        match self {
            Self::Small => 4 * SMALL_BYTES,
            Self::Medium => MEDIUM_BYTES,
            Self::Large => 0,
        }
    }

    /// Returns the bytes of a window of `bytes` bytes that operations of this size class may use.
    ///
    /// The reserves of smaller classes are left out: at most a quarter of the window for each.
    pub fn usable_window(self, bytes: u64) -> u64 {
        let smaller = Self::ALL.into_iter().filter(|other| *other < self);
        bytes - smaller.map(|other| other.reserved_bytes().min(bytes / 4)).sum::<u64>()
    }

    /// Returns the bytes for partials that only this size class uses, of `bytes` bytes for all
    /// classes. So no class blocks another.
    pub const fn partials_bytes(self, bytes: u64) -> u64 {
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
    fn each_class_leaves_window_for_smaller_classes() {
        let windows = |bytes| SizeClass::ALL.map(|class| class.usable_window(bytes));
        assert_eq!(windows(1 << 20), [1 << 20, (1 << 20) - 1024, (1 << 20) - 2048]);
        assert_eq!(windows(1024), [1024, 768, 512]);
        assert_eq!(windows(0), [0, 0, 0]);
        let sizes = [0, 256, 257, 1024, 1025, u64::MAX];
        let [small, medium, large] = SizeClass::ALL;
        assert_eq!(sizes.map(SizeClass::for_buffer), [small, small, medium, medium, large, large]);
        for bytes in [0, 7, 64 << 20, u64::MAX] {
            assert_eq!(
                SizeClass::ALL.map(|class| class.partials_bytes(bytes)).iter().sum::<u64>(),
                bytes
            );
        }
    }
}
