//! The operations of an attempt beside the collectives of its job: a group that some ranks make and
//! leave, and sends from one rank to another.

use crate::collectives::data::SplitMix64;
use units::Span;

/// 15 s: the time that ranks wait for each other in groups and sends of a run. A rank that has given
/// an attempt up is then missed before the job must have recovered.
pub const SIDE_TIMEOUT: Span = Span::from_secs(15);
/// 2 collectives of a group, at most, before its ranks leave it.
pub const GROUP_COLLECTIVES_MAX: u32 = 2;
/// 3 sends in an attempt, at most.
pub const SENDS_MAX: u32 = 3;
/// 300 attempts have tags of their own, so that two ranks use fewer than 1,024 tags in an epoch.
const ATTEMPTS_WITH_OWN_TAGS: u64 = 300;
/// 3 attempts have group tags of their own, so that a tag soon comes again for other ranks.
const ATTEMPTS_WITH_OWN_GROUP_TAGS: u64 = 3;

/// The operations of an attempt beside the collectives of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideLoad {
    /// A group that is made, if there is one.
    pub group: Option<SideGroup>,
    /// The sends, if there are any.
    pub sends: Option<SideSends>,
}

/// The way in which the ranks of a group find each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupOrigin {
    /// By a tag.
    Tag(u32),
    /// By counting, in which all ranks of the job take part.
    Count,
    /// By their colors, which all ranks of the job exchange.
    Split,
}

/// A group that is made for one attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideGroup {
    /// The way in which its ranks find each other.
    pub origin: GroupOrigin,
    /// The ranks, ascending, by their numbers in the job.
    pub ranks: Vec<u32>,
    /// The number of its collectives.
    pub collectives: u32,
}

/// Sends from one rank to another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideSends {
    /// The rank that sends.
    pub from: u32,
    /// The rank that receives.
    pub to: u32,
    /// The tag of each send, in the order in which the sender posts them.
    pub tags: Vec<u16>,
}

impl SideLoad {
    /// Draws the operations of an attempt of a job with so many ranks.
    pub fn draw(mut dice: SplitMix64, attempt: u64, ranks: u32) -> Self {
        let group =
            dice.roll().is_multiple_of(2).then(|| SideGroup::draw(&mut dice, attempt, ranks));
        let has_sends = !dice.roll().is_multiple_of(3);
        Self { group, sends: has_sends.then(|| SideSends::draw(&mut dice, attempt, ranks)) }
    }
}

impl SideGroup {
    fn draw(dice: &mut SplitMix64, attempt: u64, ranks: u32) -> Self {
        let origin = match dice.roll() % 4 {
            0 => GroupOrigin::Count,
            1 => GroupOrigin::Split,
            _ => GroupOrigin::Tag((attempt % ATTEMPTS_WITH_OWN_GROUP_TAGS) as u32),
        };
        let certain = (dice.roll() % u64::from(ranks)) as u32;
        let chosen = dice.roll();
        let ranks = (0..ranks).filter(|rank| *rank == certain || chosen >> rank & 1 == 1).collect();
        let collectives = 1 + (dice.roll() % u64::from(GROUP_COLLECTIVES_MAX)) as u32;
        Self { origin, ranks, collectives }
    }
}

impl SideSends {
    fn draw(dice: &mut SplitMix64, attempt: u64, ranks: u32) -> Self {
        let from = (dice.roll() % u64::from(ranks)) as u32;
        let other = 1 + (dice.roll() % u64::from(ranks - 1)) as u32;
        let first = (attempt % ATTEMPTS_WITH_OWN_TAGS) * 2;
        let count = 1 + dice.roll() % u64::from(SENDS_MAX);
        let tags = (0..count).map(|_| (first + dice.roll() % 2) as u16).collect();
        Self { from, to: (from + other) % ranks, tags }
    }

    /// Returns the sends in the order in which the receiver posts them: those of a later tag first.
    pub fn order_of_receiver(&self) -> Vec<u32> {
        let mut order: Vec<u32> = (0..self.tags.len() as u32).collect();
        order.sort_by_key(|send| u16::MAX - self.tags[*send as usize]);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_draw_every_kind_of_side_operation() {
        let loads =
            || (0..500).map(|seed| SideLoad::draw(SplitMix64(seed), seed, 2 + seed as u32 % 7));
        let origins = |wanted: fn(&GroupOrigin) -> bool| {
            loads().filter_map(|load| load.group).filter(|group| wanted(&group.origin)).count()
        };
        assert!(origins(|origin| matches!(origin, GroupOrigin::Tag(_))) > 50);
        assert!(origins(|origin| *origin == GroupOrigin::Count) > 20);
        assert!(origins(|origin| *origin == GroupOrigin::Split) > 20);
        let sends: Vec<SideSends> = loads().filter_map(|load| load.sends).collect();
        assert!(sends.iter().all(|sends| sends.from != sends.to));
        let crossed = sends.iter().filter(|sends| {
            let order = sends.order_of_receiver();
            !order.is_sorted()
        });
        assert!(crossed.count() > 50, "some are received in another order than sent");
    }
}
