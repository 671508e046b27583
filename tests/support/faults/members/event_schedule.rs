//! The deployment and the events of a run, drawn from its seed.

use super::members_shape::draw_members_shape;
use crate::collectives::data::SplitMix64;
use crate::lab::mesh::Mesh;
use hier_collectives::ids::GatewayId;
use std::collections::BTreeSet;
use units::Span;

/// 8 events: the most in a run, but for a last one in which the leader is stranded.
const EVENTS_MAX: u64 = 8;
/// 10 ms to 20 s: the least times for which a killed gateway is away. The drawn time is up to
/// twice as long. Short ones are below the silence after which a gateway counts as lost, long ones
/// above.
const AWAY_MS: [u64; 5] = [10, 400, 2_000, 8_000, 20_000];

/// 1.2 s, the time of a step: a gateway falls silent within it, once the others have gone on without the
/// leader.
const STRANDED_MS_MAX: u64 = 1_200;

/// 1 in 3 seeds has changes of the fabric.
const SEEDS_BETWEEN: u64 = 3;

/// A drawn run.
#[derive(Debug)]
pub(super) struct EventSchedule {
    pub mesh: Mesh,
    /// The number of gateways with ranks.
    pub ranked: u64,
    pub weather: Weather,
    /// Whether a rank now and then posts another length than the others, so that a step fails and is
    /// begun again in the same epoch.
    pub slips: bool,
    /// The events, each with the time since the one before.
    pub events: Vec<(Span, MembersEvent)>,
}

/// The faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weather {
    /// None.
    Calm,
    /// Gateways and links are cut, and operators ask where nothing is.
    Cuts,
    /// All that a network does, and gateways are killed; operators ask anywhere.
    Storm,
}

/// Something that happens in a run. Gateways have numbers.
#[derive(Debug, Clone, Copy)]
pub(super) enum MembersEvent {
    /// An operator asks at a gateway for a change.
    Ask { at: u64, region: u64, leaves: bool, within: Span },
    /// All earlier cuts are mended, and a gateway is cut off from all others.
    CutOff(u64),
    /// A link is cut.
    CutLink(u64, u64),
    /// Nothing passes from one gateway to another; all passes the other way.
    CutOneWay(u64, u64),
    /// Nothing that a gateway sends arrives anywhere.
    Mute(u64),
    /// Nothing arrives at a gateway.
    Deafen(u64),
    /// Gateways are parted, into as many as four parts; each two bits are the part of one.
    Part(u64),
    /// Gateways are parted in two, but for the last one, which reaches all: the witness, if there is one.
    /// Each bit is the part of a gateway.
    PartButLast(u64),
    /// A link goes and comes several times, each time for so long.
    Flap { one: u64, other: u64, times: u64, pause: Span },
    /// A gateway is killed, and starts again later.
    Kill { gateway: u64, away: Span },
    /// The first gateway that runs is killed, which leads the others.
    KillLeader { away: Span },
    /// A gateway is killed, and so long after the others have heard of it, as they agree on who goes on,
    /// the one that leads them.
    KillAsTermForms { gateway: u64, after: Span, away: Span },
    /// The leader enters an epoch alone, and is back as another gateway falls silent.
    StrandLeader(Stranding),
    /// An operator applies a fabric.
    ChangeFabric(FabricEvent),
    /// Everything is whole again, but gateways that are killed stay away.
    Mend,
}

/// The gateways of a stranding, and its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stranding {
    /// The gateway without which the leader begins its term.
    pub away: GatewayId,
    /// The gateway that falls silent as the leader is back.
    pub silent: GatewayId,
    /// How long the others have gone on then, beyond their steps.
    pub after: Span,
}

/// A change of the fabric. Gateways and links have numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct FabricEvent {
    /// The gateway whose operator applies it.
    pub at: GatewayId,
    /// The link that changes, and its new rate in percent of that in the beginning: no more, as windows
    /// might not fit the memory.
    pub link: usize,
    pub percent: u64,
    pub number: FabricNumber,
    /// The time for which a boundary is awaited.
    pub within: Span,
}

/// The number of a version, beside the last one that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FabricNumber {
    /// The next one.
    Next,
    /// The same: operators in two places know nothing of each other.
    Same,
    /// The one before.
    Old,
}

impl EventSchedule {
    /// Draws the run of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut dice = SplitMix64(seed);
        let mut pick = |choices: u64| dice.roll() % choices;
        let mesh = draw_members_shape(&mut pick);
        let weather = [Weather::Calm, Weather::Cuts, Weather::Storm, Weather::Storm];
        let weather = weather[pick(4) as usize];
        let slips = pick(2) == 0;
        let count = 2 + pick(EVENTS_MAX - 1);
        let fabric = mesh.fabric();
        let (gateways, regions) = (fabric.gateway_ids().count(), fabric.ranked_region_count());
        let ranked = gateways as u64 - u64::from(fabric.witness().is_some());
        let mut drawn = DrawnEvents {
            pick,
            gateways: gateways as u64,
            regions: regions as u64,
            left: [].into(),
        };
        let mut events: Vec<_> = (0..count).map(|_| drawn.next_event(weather)).collect();
        if weather == Weather::Storm && (drawn.pick)(2) == 0 {
            events.push((Span::ZERO, drawn.stranding(ranked)));
        }
        let links = mesh.links.len() as u64;
        add_fabric_changes(seed, (weather, ranked, links), &mut events);
        Self { mesh, ranked, weather, slips, events }
    }
}

/// Events that are being drawn.
struct DrawnEvents<P> {
    /// Draws below a number.
    pick: P,
    gateways: u64,
    /// The regions with ranks.
    regions: u64,
    /// The regions that are to leave, if all requests are granted.
    left: BTreeSet<u64>,
}

impl<P: FnMut(u64) -> u64> DrawnEvents<P> {
    /// Draws an event, and the time before it.
    fn next_event(&mut self, weather: Weather) -> (Span, MembersEvent) {
        let (gap, event) = match weather {
            // A change is known everywhere, and a step has been committed since, before the next one.
            Weather::Calm => (6_000 + (self.pick)(4_000), self.request(600)),
            Weather::Cuts => (2_000 + (self.pick)(20_000), self.cut()),
            Weather::Storm => {
                let gap = [200, 2_000, 10_000][(self.pick)(3) as usize];
                (gap / 2 + (self.pick)(gap), self.storm())
            }
        };
        (Span::from_ms(gap), event)
    }

    /// Draws a request, mostly the opposite of the last one for the region.
    fn request(&mut self, within_s: u64) -> MembersEvent {
        let (at, region) = (self.gateway(), (self.pick)(self.regions));
        let leaves = self.left.contains(&region) == ((self.pick)(5) == 0);
        let _ = if leaves { self.left.insert(region) } else { self.left.remove(&region) };
        MembersEvent::Ask { at, region, leaves, within: Span::from_secs(within_s) }
    }

    /// Draws a request or a cut.
    fn cut(&mut self) -> MembersEvent {
        match (self.pick)(6) {
            0 | 1 => MembersEvent::CutOff(self.gateway()),
            2 => MembersEvent::CutLink(self.gateway(), self.gateway()),
            3 => MembersEvent::Mend,
            _ => {
                let within_s = 2 + (self.pick)(30);
                self.request(within_s)
            }
        }
    }

    /// Draws anything that may happen.
    fn storm(&mut self) -> MembersEvent {
        match (self.pick)(18) {
            0 | 1 => self.cut(),
            2 | 3 => MembersEvent::Kill { gateway: self.gateway(), away: self.away() },
            4 => MembersEvent::KillLeader { away: self.away() },
            5 | 6 => {
                let after = Span::from_ms((self.pick)(400));
                MembersEvent::KillAsTermForms { gateway: self.gateway(), after, away: self.away() }
            }
            7 => MembersEvent::CutOneWay(self.gateway(), self.gateway()),
            8 => MembersEvent::Mute(self.gateway()),
            9 => MembersEvent::Deafen(self.gateway()),
            10 | 11 => MembersEvent::Part((self.pick)(1 << 24)),
            12 => MembersEvent::Flap {
                one: self.gateway(),
                other: self.gateway(),
                times: 2 + (self.pick)(4),
                pause: Span::from_ms([300, 1_500, 6_000][(self.pick)(3) as usize]),
            },
            13 => MembersEvent::Mend,
            14 | 15 => MembersEvent::PartButLast((self.pick)(1 << 12)),
            _ => {
                let within_s = 2 + (self.pick)(30);
                self.request(within_s)
            }
        }
    }

    /// Draws how the leader is stranded, and which of the gateways with ranks are away and silent.
    fn stranding(&mut self, ranked: u64) -> MembersEvent {
        let [away, silent] = [(); 2].map(|()| GatewayId(1 + (self.pick)(ranked - 1) as u16));
        let after = Span::from_ms((self.pick)(STRANDED_MS_MAX));
        MembersEvent::StrandLeader(Stranding { away, silent, after })
    }

    fn gateway(&mut self) -> u64 {
        (self.pick)(self.gateways)
    }

    /// Draws a time for which a killed gateway is away.
    fn away(&mut self) -> Span {
        let away = AWAY_MS[(self.pick)(AWAY_MS.len() as u64) as usize];
        Span::from_ms(away + (self.pick)(away))
    }
}

/// Adds the changes of a seed to its events. Their dice are others than those of all other events, which a
/// seed draws as if there were none.
fn add_fabric_changes(
    seed: u64,
    (weather, gateways, links): (Weather, u64, u64),
    events: &mut Vec<(Span, MembersEvent)>,
) {
    let mut dice = SplitMix64(seed ^ 0xfab_0000);
    let mut pick = |choices: u64| dice.roll() % choices;
    if pick(SEEDS_BETWEEN) != 0 {
        return;
    }
    for _ in 0..1 + pick(3) {
        let change = FabricEvent {
            at: GatewayId(pick(gateways) as u16),
            link: pick(links) as usize,
            percent: 30 + pick(71),
            number: match pick(8) {
                0 => FabricNumber::Old,
                1..=3 => FabricNumber::Same,
                _ => FabricNumber::Next,
            },
            within: Span::from_secs(if weather == Weather::Calm { 600 } else { 2 + pick(30) }),
        };
        let gap = match weather {
            // It is known everywhere, and in force, before the next event.
            Weather::Calm => 6_000 + pick(4_000),
            Weather::Cuts | Weather::Storm => pick(4_000),
        };
        let place = pick(events.len() as u64 + 1) as usize;
        events.insert(place, (Span::from_ms(gap), MembersEvent::ChangeFabric(change)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_draw_every_kind_of_event() {
        let mut kinds = BTreeSet::new();
        for seed in 0..200 {
            for (_, event) in EventSchedule::draw(seed).events {
                kinds.insert(match event {
                    MembersEvent::Ask { leaves: true, .. } => "leave",
                    MembersEvent::Ask { leaves: false, .. } => "join",
                    MembersEvent::CutOff(_) => "cut off",
                    MembersEvent::CutLink(..) => "cut link",
                    MembersEvent::CutOneWay(..) => "cut one way",
                    MembersEvent::Mute(_) => "mute",
                    MembersEvent::Deafen(_) => "deafen",
                    MembersEvent::Part(_) => "part",
                    MembersEvent::PartButLast(_) => "part but last",
                    MembersEvent::Flap { .. } => "flap",
                    MembersEvent::Kill { .. } => "kill",
                    MembersEvent::KillLeader { .. } => "kill leader",
                    MembersEvent::KillAsTermForms { .. } => "kill as a term forms",
                    MembersEvent::StrandLeader(_) => "strand the leader",
                    MembersEvent::ChangeFabric(_) => "change of the fabric",
                    MembersEvent::Mend => "mend",
                });
            }
        }
        assert_eq!(kinds.len(), 16, "{kinds:?}");
    }
}
