//! The emulator's report on the link: its longest queue, and whether it calls the run void.

use serde_json::Value;

/// The state of the link during a run.
#[derive(Debug, PartialEq)]
pub struct LinkState {
    pub queue_bytes_peak: Option<u64>,
    pub void: Option<String>,
}

impl LinkState {
    /// From what `wan-sim lab status` printed: void as well where it does not say that it is not.
    pub(super) fn of(status: &[u8]) -> Self {
        let status: Value = serde_json::from_slice(status).unwrap_or_default();
        let links = status["links"].as_array().map(Vec::as_slice).unwrap_or_default();
        let peaks = links.iter().filter_map(|link| link["queue_bytes_peak"].as_u64());
        let void = match status["fidelity"]["void"].as_array() {
            Some(reasons) if reasons.is_empty() => None,
            Some(reasons) => Some(Value::from(reasons.clone()).to_string()),
            None => Some("the emulator does not answer".to_owned()),
        };
        Self { queue_bytes_peak: peaks.max(), void }
    }
}

#[cfg(test)]
mod tests {
    use super::LinkState;

    #[test]
    fn a_run_without_the_emulators_approval_is_void() {
        let good = r#"{"links": [{"queue_bytes_peak": 7}], "fidelity": {"void": []}}"#;
        assert_eq!(
            LinkState::of(good.as_bytes()),
            LinkState { queue_bytes_peak: Some(7), void: None }
        );
        for bad in ["", "{", "{}", r#"{"fidelity": {}}"#, r#"{"fidelity": {"void": ["late"]}}"#] {
            assert!(LinkState::of(bad.as_bytes()).void.is_some(), "{bad}");
        }
    }
}
