//! Spans of the collectives that ended here, for the exporter.

use super::group_text;
use crate::engine::job::Job;
use crate::engine::job::engine_shared::EngineShared;
use crate::observe::spans::{CollectiveSpan, SpanOutcome, SpanTrace};
use hier_collectives::ids::GroupId;
use hier_collectives::session::SessionNote;
use units::TimeNs;

impl Job {
    /// Hands the span of a collective to the exporter, if there is one, once the session of a group has
    /// noted its end.
    pub(in crate::engine::job) fn offer_span(
        &mut self,
        id: GroupId,
        note: &SessionNote,
        shared: &EngineShared,
        now: TimeNs,
    ) {
        let (sequence, descriptor, begun, awaited, outcome) = match note {
            SessionNote::EpochBegan { epoch, boots_hash, .. } => {
                if let Some(group) = self.untouched_group(id) {
                    group.last_epoch = (*epoch, *boots_hash);
                }
                return;
            }
            SessionNote::Completed { sequence, descriptor, begun, timing, awaited } => {
                (sequence, Some(*descriptor), *begun, awaited, Ok(*timing))
            }
            SessionNote::Failed { sequence, descriptor, begun, failure, awaited } => {
                (sequence, *descriptor, begun.unwrap_or(now), awaited, Err(failure))
            }
            SessionNote::EpochEnded { .. } | SessionNote::PlanChanged { .. } => return,
        };
        let Some(group) = self.known_group(id) else { return };
        let (epoch, boots) = group.last_epoch;
        shared.spans.offer(|| {
            let fabric = group.session.fabric();
            CollectiveSpan {
                trace: SpanTrace { group: id, boots, epoch, sequence: *sequence },
                ranks: group.membership.as_ref().map(|membership| group_text(&membership.facts)),
                job: self.name.clone(),
                descriptor,
                awaited: awaited.iter().map(|peer| fabric.gateway(*peer).name.clone()).collect(),
                begun,
                end: outcome.map_or(now, |timing| timing.ready),
                outcome: match outcome {
                    Ok(timing) => SpanOutcome::Completed(timing),
                    Err(failure) => SpanOutcome::Failed(failure.clone()),
                },
            }
        });
    }
}
