//! `landbridge trace`: what a trace of congestion control says, as tables, JSON and a picture.
//!
//! `landbridge run --trace` writes traces (`cli/run/trace_file.rs`). [`summary`] condenses one,
//! [`drawing`] draws it.

mod drawing;
mod summary;

pub(crate) use drawing::draw_trace;
pub(crate) use summary::{LaneSummary, TraceSummary};

use gateway::wan::link_trace::TraceRecord;
use std::path::Path;
use stdio::read_input_text_up_to;

/// 1 GiB: the longest file that `landbridge trace` reads, the trace of a lane for about four days.
/// A longer one is refused.
const TRACE_BYTES_MAX: u64 = 1 << 30;

/// Why a trace cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TraceError {
    /// The file cannot be read.
    #[error("{path}: {source}")]
    Unreadable {
        /// The file.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A line is not a record.
    #[error(
        "{path}, line {line}: not a record of a trace ({source}); name a file that `landbridge run \
         --trace` has written"
    )]
    Line {
        /// The file.
        path: String,
        /// The number of the line, from 1.
        line: usize,
        /// The reason.
        source: serde_json::Error,
    },
    /// The picture cannot be written.
    #[error("{path}: {why}")]
    Picture {
        /// The file of the picture.
        path: String,
        /// The reason.
        why: String,
    },
}

/// Reads the records of a trace. A last line without a newline is left out, since the gateway may
/// still be writing that line.
pub(crate) fn read_trace(path: &Path) -> Result<Vec<TraceRecord>, TraceError> {
    let name = || path.display().to_string();
    let text = read_input_text_up_to(path, TRACE_BYTES_MAX)
        .map_err(|source| TraceError::Unreadable { path: name(), source })?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let parse = |(index, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|source| TraceError::Line {
            path: name(),
            line: index + 1,
            source,
        })
    };
    whole.lines().enumerate().map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOST: &str = "{\"event\":\"lost\",\"records\":3}\n";

    fn read(text: &str) -> Result<Vec<TraceRecord>, TraceError> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("written");
        read_trace(file.path())
    }

    #[test]
    fn a_trace_is_read_up_to_its_last_whole_line() {
        let records = read(&format!("{LOST}{LOST}{{\"event\":")).expect("a trace");
        assert_eq!(records, vec![TraceRecord::Lost { records: 3 }; 2]);
        assert!(read("").expect("empty").is_empty());
    }

    #[test]
    fn a_line_of_another_file_is_named() {
        let error = read(&format!("{LOST}hello\n")).expect_err("no trace").to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
