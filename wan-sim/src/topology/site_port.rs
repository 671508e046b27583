//! The port of a site: the limit on all that it sends and receives, over all its links.

use crate::{LinkSpec, QueueSize, SpecError};
use units::{BitRate, Span};

/// A site's own limits, each shared by all its links. `None` without a limit, or where the limit
/// is not below the rates of all links together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SitePort {
    /// On what it sends, before each link.
    pub egress: Option<LinkSpec>,
    /// On what it receives, after each link.
    pub ingress: Option<LinkSpec>,
}

/// A port as files spell it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RawSitePort {
    pub(super) egress: Option<BitRate>,
    pub(super) ingress: Option<BitRate>,
    pub(super) queue: Option<QueueSize>,
}

impl RawSitePort {
    /// Builds the port of a site whose links lead `out` of it and `into` it.
    pub(super) fn build(&self, out: &[LinkSpec], into: &[LinkSpec]) -> Result<SitePort, String> {
        if self.queue.is_some() && self.egress.is_none() && self.ingress.is_none() {
            return Err("`port_queue` has no effect without `egress` or `ingress`".to_owned());
        }
        let limit = |rate: Option<BitRate>, links: &[LinkSpec]| {
            let limit = rate.map_or(Ok(None), |rate| self.limit_rate(rate, links));
            limit.map_err(|error| error.to_string())
        };
        Ok(SitePort { egress: limit(self.egress, out)?, ingress: limit(self.ingress, into)? })
    }

    /// Builds the link that limits one direction of the port to `rate`; `None` where `rate` is not
    /// below the rates of all `links` together.
    fn limit_rate(&self, rate: BitRate, links: &[LinkSpec]) -> Result<Option<LinkSpec>, SpecError> {
        let longest = links.iter().map(LinkSpec::delay).max().unwrap_or_default();
        // One BDP of the longest round trip, as a link has by default.
        let queue = self.queue.unwrap_or(QueueSize::ThousandthsOfBdp(1000));
        let room = LinkSpec::new(rate, longest)?.with_queue(queue).queue();
        let port = LinkSpec::new(rate, Span::ZERO)?.with_queue(room);
        let mut rates = links.iter().map(LinkSpec::rate);
        let most =
            rates.try_fold(0u64, |sum, rate| Some(sum.saturating_add(rate?.bits_per_second())));
        Ok(Some(port).filter(|_| most.is_none_or(|most| most > rate.bits_per_second())))
    }
}
