//! Terminals that understand control codes.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// Returns whether a stream is a terminal that can move its cursor and clear its lines. The
/// variable `TERM` is `dumb`, empty or unset where one cannot, as in an editor's shell.
pub fn is_drawing_terminal(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && draws_by_name(std::env::var_os("TERM").as_deref())
}

/// Returns whether a terminal with this value of `TERM` can draw: any name except `dumb`.
fn draws_by_name(name: Option<&OsStr>) -> bool {
    name.is_some_and(|name| !name.is_empty() && name != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dumb_terminals_draw_nothing() {
        assert!(draws_by_name(Some(OsStr::new("xterm-256color"))));
        for name in [None, Some(""), Some("dumb")] {
            assert!(!draws_by_name(name.map(OsStr::new)), "{name:?}");
        }
    }
}
