//! The last incidents of a job: collectives that failed, and epochs that ended.
//!
//! `report` records each on the engine's task. The status shows them, and `landbridge explain`
//! finds the cause of a failure by them after the log has gone on.

use crate::observe::status::{IncidentKind, IncidentReport};
use hier_collectives::post::Failure;
use std::collections::VecDeque;
use units::TimeNs;

/// 16 incidents, each a failed collective or an ended epoch: the most that a job keeps for its
/// status. At one more the oldest is dropped; equal incidents in a row are kept as one. Each is
/// about 1 KiB at most, so a status of many jobs stays small.
/// Tested by `the_last_incidents_are_kept_and_equal_ones_counted`.
const INCIDENTS_MAX: usize = 16;

/// The last incidents of one job, the oldest first.
#[derive(Debug, Default)]
pub(in crate::engine) struct Incidents {
    last: VecDeque<Incident>,
}

/// One incident, or several equal ones in a row.
#[derive(Debug)]
struct Incident {
    kind: IncidentKind,
    /// The ranks of the group in words; `None` for the job itself.
    group: Option<String>,
    /// The number of the first collective or epoch.
    number: u64,
    failure: Failure,
    count: u64,
    last_at: TimeNs,
}

impl Incidents {
    /// Records that collective or epoch `number` of the job, or of a `group` of it, failed or ended
    /// at `now`. If all but the number and the time equals the last incident, that one is counted
    /// once more.
    pub fn record_incident(
        &mut self,
        kind: IncidentKind,
        group: Option<&str>,
        number: u64,
        failure: &Failure,
        now: TimeNs,
    ) {
        let equal = |known: &&mut Incident| {
            known.kind == kind && known.group.as_deref() == group && known.failure == *failure
        };
        if let Some(known) = self.last.back_mut().filter(equal) {
            known.count += 1;
            known.last_at = now;
            return;
        }
        if self.last.len() == INCIDENTS_MAX {
            self.last.pop_front();
        }
        let (group, failure) = (group.map(str::to_owned), failure.clone());
        self.last.push_back(Incident { kind, group, number, failure, count: 1, last_at: now });
    }

    /// Returns the incidents in the form of the status, the oldest first.
    pub fn report(&self, now: TimeNs) -> Vec<IncidentReport> {
        let report = |incident: &Incident| IncidentReport {
            kind: incident.kind,
            group: incident.group.clone(),
            number: incident.number,
            code: incident.failure.code as u8,
            text: incident.failure.text.clone(),
            count: incident.count,
            seconds_ago: now.since(incident.last_at).as_secs_f64(),
        };
        self.last.iter().map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::post::FailureCode;

    #[test]
    fn the_last_incidents_are_kept_and_equal_ones_counted() {
        let mut incidents = Incidents::default();
        let lost = |text: &str| Failure::new(FailureCode::RankLost, text);
        for number in 0..20 {
            let failure = lost(&format!("rank {number}"));
            let at = TimeNs::from_ns(number * 1_000_000_000);
            let kind = IncidentKind::CollectiveFailed;
            incidents.record_incident(kind, None, number, &failure, at);
            incidents.record_incident(kind, None, number + 1, &failure, at);
        }
        incidents.record_incident(
            IncidentKind::EpochEnded,
            Some("ranks 0, 1"),
            4,
            &lost("rank 19"),
            TimeNs::from_ns(20_000_000_000),
        );
        let report = incidents.report(TimeNs::from_ns(30_000_000_000));
        assert_eq!(report.len(), INCIDENTS_MAX);
        let [.., before, last] = &report[..] else { panic!("sixteen") };
        assert_eq!((before.number, before.count, before.seconds_ago), (19, 2, 11.0));
        assert_eq!((last.kind, last.number, last.count), (IncidentKind::EpochEnded, 4, 1));
        assert_eq!(report[0].text, "rank 5");
    }
}
