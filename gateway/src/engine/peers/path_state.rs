//! When the path to a peer is checked, and the results of the last check.
//!
//! A check costs a few dozen datagrams, so it is made only while lanes are missing.

use crate::wan::connect::path_probe::path_check::{PathCheckFault, PathCheckFindings};
use std::collections::BTreeSet;
use units::{Span, TimeNs};

/// 10 s: the path to a peer is checked once lanes have been missing for both 10 s and 10 round
/// trips of the link. A peer that starts or restarts is back sooner.
const PATH_CHECK_DELAY_MIN: Span = Span::from_secs(10);
/// 10 round trips of the link: the path to a peer is checked once lanes have been missing for this
/// time and for 10 s. A lane connects within 10 round trips even if packets are lost.
const PATH_CHECK_DELAY_ROUNDS: u64 = 10;
/// 60 s: time from the start of one check of the path to a peer to the start of the next, while
/// lanes are missing. A correction of the network shows in the status within this time.
const PATH_CHECK_INTERVAL: Span = Span::from_secs(60);

/// The checks of the path to one peer.
#[derive(Debug)]
pub(super) struct PathState {
    /// How long lanes are missing before the first check.
    delay: Span,
    /// When the first of the missing lanes was missed; `None` while all are up.
    missing_since: Option<TimeNs>,
    /// When the next check is due; `None` before the first one.
    due: Option<TimeNs>,
    /// Whether a check is under way.
    is_checking: bool,
    findings: Option<PathCheckFindings>,
}

impl PathState {
    /// Makes the state of the path over a link with this round trip, on which no lane is missing.
    pub fn new(rtt: Span) -> Self {
        let rounds = Span::from_ns(rtt.ns().saturating_mul(PATH_CHECK_DELAY_ROUNDS));
        let delay = rounds.max(PATH_CHECK_DELAY_MIN);
        Self { delay, missing_since: None, due: None, is_checking: false, findings: None }
    }

    /// Records at `now` whether lanes are missing; while none is, no findings are kept. Returns
    /// whether a check of the path has to begin. That is so after the delay, and each 60 s from
    /// then on, unless a check is under way.
    pub fn note_lanes(&mut self, missing: bool, now: TimeNs) -> bool {
        if !missing {
            (self.missing_since, self.due, self.findings) = (None, None, None);
            return false;
        }
        let since = *self.missing_since.get_or_insert(now);
        if self.is_checking || now < self.due.unwrap_or(since + self.delay) {
            return false;
        }
        self.is_checking = true;
        self.due = Some(now + PATH_CHECK_INTERVAL);
        true
    }

    /// Stores the findings of the check that just ended, if lanes are still missing; `None` says
    /// that the check was not possible.
    pub fn note_findings(&mut self, findings: Option<PathCheckFindings>) {
        self.is_checking = false;
        if self.missing_since.is_some() {
            self.findings = findings;
        }
    }

    /// Returns why lanes cannot connect over the path, as last checked; `lanes_up` is the number of
    /// lanes that are up. While it is not 0, silent ports are no fault.
    pub fn faults(&self, lanes_up: usize, pinned_mtu: Option<u16>) -> Vec<PathCheckFault> {
        let Some(findings) = &self.findings else { return Vec::new() };
        let mut faults = findings.faults(pinned_mtu);
        // A peer behind NAT answers only where it has connected from.
        faults.retain(|fault| lanes_up == 0 || !matches!(fault, PathCheckFault::Silent { .. }));
        faults
    }

    /// Returns the longest IP packet that got to the peer in the last check, in bytes.
    pub fn mtu(&self) -> Option<u16> {
        self.findings.as_ref()?.mtu
    }

    /// Returns the UDP ports of the peer that did not answer in the last check, ascending.
    pub fn silent_ports(&self) -> Vec<u16> {
        let silent = self.findings.iter().flat_map(|findings| &findings.silent);
        let ports: BTreeSet<u16> = silent.map(|port| port.port()).collect();
        ports.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// Returns the time of a second.
    fn second(number: u64) -> TimeNs {
        TimeNs::from_ns(5) + Span::from_secs(number)
    }

    /// Returns the result of a check in which one port of four answered.
    fn one_of_four() -> PathCheckFindings {
        let port = |number: u16| SocketAddr::from(([10, 0, 0, 2], 7400 + number));
        PathCheckFindings {
            answering: vec![port(0)],
            silent: vec![port(1), port(2), port(3)],
            rtt: Some(Span::from_ms(80)),
            mtu: Some(1400),
        }
    }

    #[test]
    fn a_path_is_checked_while_lanes_are_missing() {
        let mut path = PathState::new(Span::from_ms(80));
        let due: Vec<u64> = (0..200)
            .filter(|number| {
                let due = path.note_lanes(*number >= 5, second(*number));
                // Each check takes three seconds.
                if *number % 3 == 0 && path.is_checking {
                    path.note_findings(Some(one_of_four()));
                }
                due
            })
            .collect();
        assert_eq!(due, [15, 75, 135, 195]);
        assert_eq!(path.faults(1, Some(1500)).len(), 2);
        assert_eq!((path.mtu(), path.silent_ports()), (Some(1400), vec![7401, 7402, 7403]));
        assert!(!path.note_lanes(false, second(200)));
        assert!(path.faults(4, Some(1500)).is_empty(), "of a time when lanes were missing");
        path.note_lanes(false, second(201));
        path.note_findings(Some(one_of_four()));
        assert_eq!(path.mtu(), None, "a check that began before");
    }

    #[test]
    fn silence_of_a_peer_with_lanes_is_no_fault() {
        let mut path = PathState::new(Span::from_secs(12));
        let due: Vec<u64> =
            (0..200).filter(|number| path.note_lanes(true, second(*number))).collect();
        assert_eq!(due, [120], "ten round trips");
        let tried = one_of_four().silent;
        path.note_findings(Some(PathCheckFindings { silent: tried.clone(), ..Default::default() }));
        assert_eq!(path.faults(0, None), [PathCheckFault::Silent { tried }]);
        assert!(path.faults(1, None).is_empty());
    }
}
