//! What the links of this gateway are held to: the fabric's rate, the schedule of the day, and
//! the word of an operator at either end; and what the first gateway was told of them.

use crate::wan::link::message::LinkWord;
use crate::wan::link::policy::{Policies, Schedule};
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::topology::{Fabric, Link, LinkState};
use std::collections::BTreeMap;
use std::sync::Arc;
use units::{BitRate, Span};

/// An operator's wish: a link, and what it is held to; `None` for what its schedule says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RateChange {
    /// The link, as two regions joined by a hyphen, in any order.
    pub link: String,
    /// The rate, up to the fabric's.
    pub rate: Option<BitRate>,
}

/// A wish that cannot be met. The caller's fault; nothing has changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RateError {
    /// Not a link of this gateway.
    #[error("this gateway has no link `{link}`; it has: {known}")]
    NoLink {
        /// The name given.
        link: String,
        /// Those there are.
        known: String,
    },
    /// More than the link has.
    #[error(
        "link `{link}` has {whole} in the fabric, {wanted} is more; a link that became faster \
         needs its new rate in fabric.toml, on all gateways"
    )]
    TooFast {
        /// The link.
        link: String,
        /// What it has.
        whole: BitRate,
        /// What was asked for.
        wanted: BitRate,
    },
    /// Less than any link may have.
    #[error("{0} is less than 8 kbit/s, the least rate of a link")]
    TooSlow(BitRate),
}

/// What holds a link, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub scheduled: Option<BitRate>,
    /// The lowest word of an operator, and at which gateway it was said.
    pub operator: Option<(BitRate, GatewayId)>,
    pub effective: BitRate,
}

/// See the module.
pub(crate) struct Links {
    fabric: Arc<Fabric>,
    me: GatewayId,
    links: BTreeMap<(RegionId, RegionId), State>,
}

struct State {
    schedule: Option<Schedule>,
    /// What operators hold it to, by the gateway that they spoke to.
    words: BTreeMap<GatewayId, LinkWord>,
    /// What was last told of it.
    told: LinkState,
    /// Its round trip, while that is far longer than the fabric says.
    stretched: Option<Span>,
}

impl Links {
    pub fn new(fabric: Arc<Fabric>, me: GatewayId, policies: &Policies) -> Self {
        let region = fabric.gateway(me).region;
        let ours = fabric.links().iter().filter(|link| link.a == region || link.b == region);
        let state = |link: &Link| {
            let ends = (link.a, link.b);
            let schedule = policies.get(&ends).and_then(|policy| policy.schedule.clone());
            let Link { rate, rtt, loss, .. } = *link;
            let told = LinkState { rate, rtt, loss };
            (ends, State { schedule, words: BTreeMap::new(), told, stretched: None })
        };
        let links = ours.map(state).collect();
        Self { fabric, me, links }
    }

    /// An operator here has spoken; returns the regions of the link.
    ///
    /// # Errors
    /// [`RateError`]: nothing has changed.
    pub fn change(&mut self, change: &RateChange) -> Result<(RegionId, RegionId), RateError> {
        let named = |link: &&Link| {
            let (a, b) = (&self.fabric.region(link.a).name, &self.fabric.region(link.b).name);
            change.link == format!("{a}-{b}") || change.link == format!("{b}-{a}")
        };
        let ours = || self.fabric.links().iter().filter(|l| self.links.contains_key(&(l.a, l.b)));
        let link = ours().find(named).ok_or_else(|| RateError::NoLink {
            link: change.link.clone(),
            known: ours().map(|link| self.name(link)).collect::<Vec<_>>().join(", "),
        })?;
        if let Some(wanted) = change.rate {
            if wanted > link.rate {
                let link_name = self.name(link);
                return Err(RateError::TooFast { link: link_name, whole: link.rate, wanted });
            }
            if wanted.bits_per_second() < crate::wan::RATE_MIN_BITS {
                return Err(RateError::TooSlow(wanted));
            }
        }
        let ends = (link.a, link.b);
        let words = &mut self.links.get_mut(&ends).expect("found above").words;
        let number = words.get(&self.me).map_or(0, |before| before.number) + 1;
        words.insert(self.me, LinkWord { ends, number, rate: change.rate });
        Ok(ends)
    }

    /// A peer has said what its operator holds a link of ours and its own to; the link's name
    /// when that is news.
    pub fn hear(&mut self, from: GatewayId, word: LinkWord) -> Option<String> {
        let region = self.fabric.gateway(from).region;
        let state = self.links.get_mut(&word.ends)?;
        if ![word.ends.0, word.ends.1].contains(&region) {
            return None;
        }
        let before = state.words.get(&from).copied();
        if before.is_some_and(|before| before.number > word.number) {
            return None;
        }
        state.words.insert(from, word);
        let news = before.and_then(|before| before.rate) != word.rate;
        self.fabric.link(word.ends.0, word.ends.1).filter(|_| news).map(|link| self.name(link))
    }

    /// A peer may have been started anew: its words count from the beginning.
    pub fn forget(&mut self, peer: GatewayId) {
        for state in self.links.values_mut() {
            state.words.remove(&peer);
        }
    }

    /// What an operator here has said of links that a peer's region has too. All gateways of both
    /// regions need to hear it: they share the link.
    pub fn words_to(&self, peer: GatewayId) -> impl Iterator<Item = LinkWord> {
        let region = self.fabric.gateway(peer).region;
        let shared = self.links.iter().filter(move |((a, b), _)| *a == region || *b == region);
        shared.filter_map(|(_, state)| state.words.get(&self.me).copied())
    }

    /// What holds the link between two regions.
    pub fn held(&self, ends: (RegionId, RegionId), unix_seconds: u64) -> Option<Held> {
        let (state, link) = (self.links.get(&ends)?, self.fabric.link(ends.0, ends.1)?);
        let scheduled = state.schedule.as_ref().map(|schedule| schedule.at(unix_seconds));
        let words = state.words.iter().filter_map(|(from, word)| Some((word.rate?, *from)));
        let operator = words.min();
        let effective = operator.map(|(rate, _)| rate).or(scheduled).unwrap_or(link.rate);
        Some(Held { scheduled, operator, effective: effective.min(link.rate) })
    }

    /// Our links, by the region at the other end.
    pub fn others(&self) -> Vec<RegionId> {
        let here = self.fabric.gateway(self.me).region;
        self.links.keys().map(|(a, b)| if *a == here { *b } else { *a }).collect()
    }

    /// A link is found to be like this; returns that, and its name, when it is worth telling.
    pub fn find(&mut self, to: RegionId, found: LinkState) -> Option<(LinkState, String)> {
        let here = self.fabric.gateway(self.me).region;
        let ends = (here.min(to), here.max(to));
        let link = self.fabric.link(ends.0, ends.1)?;
        let name = self.name(link);
        let told = &mut self.links.get_mut(&ends)?.told;
        let loss = (found.loss.as_f64() - told.loss.as_f64()).abs();
        let whole = found.rate == link.rate && told.rate != link.rate;
        let news = whole
            || apart(found.rate.bits_per_second(), told.rate.bits_per_second(), RATE_NEWS)
            || is_other_rtt(found.rtt, told.rtt)
            || loss > LOSS_NEWS;
        if !news || !found.is_valid() {
            return None;
        }
        *told = found;
        Some((found, name))
    }

    /// How long a link is: as last told, or as it is found to be stretched just now. An estimate
    /// that breathes is no news here either.
    pub fn rtt(&mut self, ends: (RegionId, RegionId), stretched: Option<Span>) -> Option<Span> {
        let state = self.links.get_mut(&ends)?;
        let before = state.stretched;
        let breathes = |before: &Span| stretched.is_some_and(|now| !is_other_rtt(*before, now));
        state.stretched = before.filter(breathes).or(stretched);
        state.stretched.max(Some(state.told.rtt))
    }

    /// The regions of the link to a peer.
    pub fn ends_to(&self, peer: GatewayId) -> Option<(RegionId, RegionId)> {
        let (one, other) = (self.fabric.gateway(self.me).region, self.fabric.gateway(peer).region);
        let ends = (one.min(other), one.max(other));
        self.links.contains_key(&ends).then_some(ends)
    }

    fn name(&self, link: &Link) -> String {
        format!("{}-{}", self.fabric.region(link.a).name, self.fabric.region(link.b).name)
    }
}

fn apart(one: u64, other: u64, part: f64) -> bool {
    one.abs_diff(other) as f64 > part * one.max(other) as f64
}

fn is_other_rtt(one: Span, other: Span) -> bool {
    let (one, other) = (one.ns(), other.ns());
    apart(one, other, RTT_NEWS) && one.abs_diff(other) > RTT_NEWS_MIN.ns()
}

/// A rate that has changed by less than this part is not told anew,
const RATE_NEWS: f64 = 0.05;
/// nor is a round trip that has changed by less than this part
const RTT_NEWS: f64 = 0.2;
/// or by less than this,
const RTT_NEWS_MIN: Span = Span::from_ms(2);
/// nor is loss that has changed by less than this part of all packets.
const LOSS_NEWS: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wan::link::policy::LinkPolicy;
    use hier_collectives::topology::{LinkSpec, RegionSpec, WanPort};
    use units::{Fraction, Span};

    const EAST: GatewayId = GatewayId(0);
    const EAST_TOO: GatewayId = GatewayId(1);
    const WEST: GatewayId = GatewayId(2);
    const ENDS: (RegionId, RegionId) = (RegionId(0), RegionId(1));

    fn mbit(rate: u64) -> BitRate {
        BitRate::from_bits_per_second(rate * 1_000_000)
    }

    fn links() -> Links {
        let wan = Some(WanPort { egress: mbit(1000), ingress: mbit(1000) });
        let region = |name: &str| RegionSpec {
            name: name.to_owned(),
            speeds: vec![1.0; 2],
            gateways: (0..2).map(|seat| (format!("{name}-{seat}"), 1, wan)).collect(),
        };
        let between = ("east".to_owned(), "west".to_owned());
        let (rate, rtt, loss) = (mbit(1000), Span::from_ms(80), Fraction::default());
        let link = LinkSpec { between, rate, rtt, loss };
        let regions = vec![region("east"), region("west")];
        let fabric = Fabric::new("two", 1500, regions, vec![link]).expect("valid");
        let schedule = Schedule::new(vec![(100, mbit(400)), (200, mbit(900))]);
        let policy = LinkPolicy { schedule, ..LinkPolicy::default() };
        Links::new(Arc::new(fabric), EAST, &Policies::from([(ENDS, policy)]))
    }

    fn effective(links: &Links, at: u64) -> BitRate {
        links.held(ENDS, at).expect("a link").effective
    }

    fn say(links: &mut Links, link: &str, rate: Option<BitRate>) -> Result<(), RateError> {
        links.change(&RateChange { link: link.to_owned(), rate }).map(drop)
    }

    fn word(number: u64, rate: Option<BitRate>) -> LinkWord {
        LinkWord { ends: ENDS, number, rate }
    }

    #[test]
    fn an_operators_word_goes_before_the_schedule_and_the_lowest_word_holds() {
        let mut links = links();
        assert_eq!([effective(&links, 150), effective(&links, 250)], [mbit(400), mbit(900)]);
        say(&mut links, "west-east", Some(mbit(600))).expect("a link, whatever the order");
        assert_eq!([effective(&links, 150), effective(&links, 250)], [mbit(600), mbit(600)]);
        assert_eq!(links.hear(WEST, word(3, Some(mbit(300)))).as_deref(), Some("east-west"));
        assert_eq!(links.held(ENDS, 150).expect("a link").operator, Some((mbit(300), WEST)));
        assert_eq!(links.hear(WEST, word(2, None)), None);
        assert_eq!(effective(&links, 150), mbit(300), "a word that came late");
        links.hear(WEST, word(4, None));
        assert_eq!(effective(&links, 150), mbit(600));
        say(&mut links, "east-west", None).expect("a link");
        assert_eq!(effective(&links, 150), mbit(400));
        assert_eq!(links.words_to(WEST).collect::<Vec<_>>(), [word(2, None)]);
    }

    #[test]
    fn gateways_of_one_region_hear_of_each_others_operators() {
        let mut links = links();
        assert_eq!(links.words_to(EAST_TOO).next(), None, "nothing is said yet");
        links.hear(EAST_TOO, word(1, Some(mbit(500))));
        assert_eq!(effective(&links, 0), mbit(500));
        say(&mut links, "east-west", Some(mbit(200))).expect("a link");
        assert_eq!(links.words_to(EAST_TOO).collect::<Vec<_>>(), [word(1, Some(mbit(200)))]);
        let strange = LinkWord { ends: (RegionId(0), RegionId(7)), ..word(9, Some(mbit(1))) };
        assert_eq!((links.hear(WEST, strange), effective(&links, 0)), (None, mbit(200)));
        links.forget(EAST_TOO);
        say(&mut links, "east-west", None).expect("a link");
        assert_eq!(effective(&links, 0), mbit(900), "only the schedule is left");
    }

    #[test]
    fn what_a_link_cannot_have_is_refused() {
        let mut links = links();
        let too_fast = say(&mut links, "east-west", Some(mbit(1001)));
        assert!(matches!(too_fast, Err(RateError::TooFast { .. })), "{too_fast:?}");
        let slow = BitRate::from_bits_per_second(7_999);
        assert_eq!(say(&mut links, "east-west", Some(slow)), Err(RateError::TooSlow(slow)));
        let unknown = say(&mut links, "east-south", None).expect_err("no such link");
        assert!(unknown.to_string().contains("it has: east-west"), "{unknown}");
        links.hear(WEST, word(1, Some(mbit(5000))));
        assert_eq!(effective(&links, 0), mbit(1000), "a peer cannot raise it");
    }
}
