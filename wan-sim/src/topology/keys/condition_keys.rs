//! The recorded capacity, the parallel paths and the cross traffic of a link in a file.

use super::raw_link::{LinkError, RawLink};
use crate::netem::Netem;
use crate::{Conditions, CrossTraffic, LinkSpec};
use std::path::Path;
use std::sync::Arc;

/// Builds the conditions of one direction from its keys. The mean of a recorded capacity becomes
/// the `rate` of `keys`, which then decides the size of the queue. Files are found from `folder`.
pub(in crate::topology) fn build_condition_keys(
    keys: &mut RawLink,
    folder: &Path,
    seed: u64,
) -> Result<Conditions, String> {
    let mut conditions = Conditions::default();
    if let Some(source) = &keys.capacity {
        let recording = source.load(folder, seed).map_err(|error| error.to_string())?;
        if !keys.is_in_netem_words() {
            keys.rate = Some(recording.mean_rate());
        }
        conditions.capacity = Some(Arc::new(recording));
    }
    let parallel =
        keys.parallel.iter().flatten().map(|words| parallel_path_of_condition_keys(words));
    conditions.parallel = parallel.collect::<Result<_, _>>()?;
    let cross = keys.cross.iter().flatten().map(|words| words.parse::<CrossTraffic>());
    conditions.cross = cross.collect::<Result<_, _>>().map_err(condition_keys_error_text)?;
    check_changes_of_condition_keys(keys, &conditions).map_err(condition_keys_error_text)?;
    Ok(conditions)
}

/// Builds a parallel path from netem's words.
fn parallel_path_of_condition_keys(words: &str) -> Result<LinkSpec, String> {
    let parsed = words.parse::<Netem>();
    let Netem { link, seed } = parsed.map_err(|error| format!("parallel: {error}"))?;
    if seed.is_some() {
        return Err(LinkError::Seed.to_string());
    }
    Ok(link)
}

/// Checks that no change of the link needs a property that its conditions fix.
fn check_changes_of_condition_keys(
    keys: &RawLink,
    conditions: &Conditions,
) -> Result<(), LinkError> {
    for change in keys.changes.iter().flatten() {
        if change.rate.is_some() && conditions.capacity.is_some() {
            return Err(LinkError::Fixed { key: "rate", by: "capacity" });
        }
        let others = change.rate.is_some() || change.delay.is_some() || change.loss.is_some();
        if others && !conditions.parallel.is_empty() {
            return Err(LinkError::Fixed { key: "rate, delay, loss", by: "parallel" });
        }
    }
    Ok(())
}

/// Returns the text of an error, for `map_err`.
fn condition_keys_error_text(error: impl ToString) -> String {
    error.to_string()
}
