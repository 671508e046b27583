//! The place of a group in its parent, by which its ranks find each other.

use hier_collectives::ids::Epoch;

/// 2^63: the highest bit of a group's place. The bit is clear where the place holds an epoch and a
/// count. The bit is set where the place holds a caller's tag or is that for sends of two ranks.
const TAG_BIT: u64 = 1 << 63;
/// 32 bits: the length of the low part of a group's place, which counts the groups that are made in
/// an epoch of the parent. The number of that epoch is in the bits above.
const PLACE_COUNT_BITS: u32 = 32;
/// 2^31 epochs: how many a group's place can tell apart, by the 31 bits between the count and the
/// bit for tags. Epochs above that begin again at 0 in the place.
const PLACE_EPOCHS: u64 = 1 << (63 - PLACE_COUNT_BITS);

/// 2^64 - 1: the place of the group in which two ranks send to each other. No group that ranks make
/// with a tag has this place.
const PAIR_PLACE: u64 = u64::MAX;

/// The place of a group in its parent: a caller's tag, or [`u64::MAX`] for the sends of two ranks.
/// Otherwise it holds the epoch of the parent in which its ranks made the group. With it goes the
/// number of groups that they had made in that epoch by then, this one included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupPlace(pub u64);

impl GroupPlace {
    /// Makes the place of a group that its ranks make with a tag.
    pub fn of_tag(tag: u32) -> Self {
        Self(TAG_BIT | u64::from(tag))
    }

    /// Makes the place of the group that two ranks have for their sends to each other.
    pub fn of_pair() -> Self {
        Self(PAIR_PLACE)
    }

    /// Returns whether the group is one of two ranks for their sends.
    pub fn is_pair(self) -> bool {
        self.0 == PAIR_PLACE
    }

    /// Returns whether the ranks of the group found each other by counting, in one epoch of its
    /// parent.
    pub fn is_counted(self) -> bool {
        self.0 & TAG_BIT == 0
    }

    /// Makes the place of the group that is the `count`th of an epoch of its parent.
    pub fn of_count(epoch: Epoch, count: u32) -> Self {
        Self((epoch.0 << PLACE_COUNT_BITS | u64::from(count)) & !TAG_BIT)
    }

    /// Returns whether ranks made the group in an epoch of its parent before this one, by at most
    /// 2^30 - 1 epochs. A tag is of no epoch.
    pub fn is_before(self, epoch: Epoch) -> bool {
        let ahead = epoch.0.wrapping_sub(self.0 >> PLACE_COUNT_BITS) % PLACE_EPOCHS;
        self.is_counted() && (1..PLACE_EPOCHS / 2).contains(&ahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_of_one_epoch_and_tags_of_none() {
        let ahead = |by: u64| Epoch(7 + by);
        let counted = GroupPlace::of_count(Epoch(7), u32::MAX);
        assert!(!counted.is_before(Epoch(6)) && !counted.is_before(ahead(0)));
        assert!(counted.is_before(ahead(1)) && counted.is_before(ahead(PLACE_EPOCHS / 2 - 1)));
        let wrapped = GroupPlace::of_count(Epoch(PLACE_EPOCHS - 1), 1);
        assert!(
            wrapped.is_before(Epoch(PLACE_EPOCHS)) && !wrapped.is_before(Epoch(PLACE_EPOCHS - 1))
        );
        assert!(!GroupPlace::of_tag(0).is_before(ahead(5)));
        assert_ne!(GroupPlace::of_tag(1), GroupPlace::of_count(Epoch(0), 1));
        let pair = GroupPlace::of_pair();
        assert!(pair.is_pair() && !pair.is_before(ahead(5)));
        assert!(!counted.is_pair() && !GroupPlace::of_tag(u32::MAX).is_pair());
    }
}
