//! The schedule of a link's changes, from the keys of a file to a script.

use super::change::RawChange;
use super::raw_link::{LinkError, RawLink};
use crate::{Change, Script};
use units::TimeNs;

/// Builds the script of one direction from the keys `changes` and `drops` of `link`, whose other
/// keys hold at first.
pub(in crate::topology) fn build_script_of_schedule_keys(
    link: &RawLink,
) -> Result<Script, LinkError> {
    let mut keys = link.clone();
    let mut changes = link.changes.clone().unwrap_or_default();
    changes.sort_by_key(|change| change.at);
    let mut script = Vec::new();
    for RawChange { at, rate, delay, loss, cut } in changes {
        let time = TimeNs::from_ns(at.ns());
        if (rate, delay, loss) != (None, None, None) {
            if keys.is_in_netem_words() {
                return Err(LinkError::Both { one: "changes", other: "netem" });
            }
            // The queue keeps its bytes when the link changes.
            let before = keys.build_unchecked()?;
            if before.rate().is_some() {
                keys.queue = Some(before.queue().into());
            }
            keys.rate = rate.or(keys.rate);
            if delay.is_some() {
                (keys.delay, keys.rtt) = (delay, None);
            }
            if loss.is_some() {
                (keys.loss, keys.bursts) = (loss, None);
            }
            script.push((time, Change::Spec(keys.build_unchecked()?)));
        } else if cut.is_none() {
            return Err(LinkError::NoChange { at });
        }
        match cut {
            Some(true) => script.push((time, Change::Cut)),
            Some(false) => script.push((time, Change::Join)),
            None => {}
        }
    }
    Ok(Script::new(script, link.drops.iter().flatten().copied()))
}
