//! The schedule of a link's changes, from the keys of a file to a script.

use super::change::RawChange;
use super::raw::{LinkError, RawLink};
use crate::{Change, Script};
use units::TimeNs;

/// The script of a link in one direction that is like `link` at first.
pub(super) fn script(link: &RawLink) -> Result<Script, LinkError> {
    let mut keys = link.clone();
    let mut changes = link.changes.clone().unwrap_or_default();
    changes.sort_by_key(|change| change.at);
    let mut script = Vec::new();
    for RawChange { at, rate, delay, loss, cut } in changes {
        let time = TimeNs::from_ns(at.ns());
        if (rate, delay, loss) != (None, None, None) {
            if keys.is_words() {
                return Err(LinkError::Both { one: "changes", other: "netem" });
            }
            // Memory does not change with the link.
            let before = keys.changed()?;
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
            script.push((time, Change::Spec(keys.changed()?)));
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
