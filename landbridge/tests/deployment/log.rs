//! The log of a process.

use std::io::{BufRead, BufReader, Read};
use std::sync::{Condvar, Mutex};

/// The log of a process. A thread reads it all the time, so that the process never blocks on it.
#[derive(Default)]
pub struct Log {
    state: Mutex<LogState>,
    grown: Condvar,
}

#[derive(Default)]
struct LogState {
    text: String,
    has_ended: bool,
}

impl Log {
    /// Waits for a line that contains `wanted`, and returns it.
    pub fn line_with(&self, wanted: &str) -> String {
        let line = self.line_or_end(wanted);
        line.unwrap_or_else(|| panic!("the log ended without `{wanted}`:\n{}", self.text()))
    }

    /// Waits for a line that contains `wanted`; `None` if the log ends without it.
    pub fn line_or_end(&self, wanted: &str) -> Option<String> {
        let mut state = self.state.lock().expect("no panic inside");
        loop {
            if let Some(line) = state.text.lines().find(|line| line.contains(wanted)) {
                return Some(line.to_owned());
            }
            if state.has_ended {
                return None;
            }
            state = self.grown.wait(state).expect("no panic inside");
        }
    }

    /// Returns the log so far.
    pub fn text(&self) -> String {
        self.state.lock().expect("no panic inside").text.clone()
    }

    /// Reads a log to its end.
    pub(super) fn read(&self, from: impl Read) {
        let mut from = BufReader::new(from);
        loop {
            let mut line = String::new();
            let has_ended = !matches!(from.read_line(&mut line), Ok(1..));
            let mut state = self.state.lock().expect("no panic inside");
            state.text.push_str(&line);
            state.has_ended = has_ended;
            self.grown.notify_all();
            if has_ended {
                return;
            }
        }
    }
}
