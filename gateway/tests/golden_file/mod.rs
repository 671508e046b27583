//! Golden files, which tests of the Python client read as well.

use serde_json::Value;
use std::path::PathBuf;

/// Returns the path of a golden file.
fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../python/tests/golden").join(name)
}

/// Fails unless the file has these lines. Writes it first if the environment asks for that.
pub fn compare(name: &str, lines: &[Value]) {
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("LANDBRIDGE_WRITE_GOLDEN").is_some() {
        std::fs::write(path(name), &text).expect("writable");
    }
    let written = std::fs::read_to_string(path(name)).expect("the file is there");
    for (number, (is, should)) in (1..).zip(written.lines().zip(text.lines())) {
        assert_eq!(is, should, "line {number}");
    }
    assert_eq!(written.len(), text.len(), "lines are missing or left over");
}
