//! One run from beginning to end.

use super::event_schedule::{EventSchedule, Weather};
use super::final_world::judge_final_world;
use super::members_run::{HEADWAY, MembersRun};
use crate::faults::judge::outcomes::RunSummary;
use crate::faults::spec::limits::Limits;
use crate::faults::timeline::Timeline;
use units::Span;

/// Plays the run of a seed; returns its summary and its events.
pub async fn play_members(seed: u64, timeline: Timeline, recording: bool) -> (RunSummary, String) {
    let _logs = recording.then(|| timeline.listen());
    let schedule = EventSchedule::draw(seed);
    timeline.say("EVENT", || format!("{:?}, {:?}", schedule.weather, schedule.mesh.quorum));
    let mut run = MembersRun::new(&schedule, seed, timeline);
    run.start(&schedule, seed).await;
    for (gap, event) in &schedule.events {
        run.pass(*gap).await;
        run.happen(*event, schedule.weather).await;
    }
    run.pass(Span::from_secs(2)).await;
    run.mend_all().await;
    let is_calm = schedule.weather == Weather::Calm;
    run.pass(if is_calm { HEADWAY } else { Limits::of_the_page().recovery }).await;
    judge_final_world(&mut run, &schedule).await;
    (run.judge.summary(), run.timeline.text())
}
