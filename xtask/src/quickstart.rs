//! The quickstart, short, as a user's script would run it.

use crate::command::{CommandLine, Failure};
use crate::tally::Tally;
use std::path::Path;

/// Exit code of what cannot run here.
const SKIPPED: i32 = 77;

/// Runs it; its own checks decide its exit code.
pub fn check(root: &Path, landbridge: &Path, tally: &mut Tally) -> Result<(), Failure> {
    let line = CommandLine::built(
        landbridge,
        &["quickstart", "--json", "--steps", "10", "--size", "16MiB"],
    );
    let (status, stdout) = line.capture(root)?;
    println!("{}", stdout.trim_end());
    if status.code() == Some(SKIPPED) {
        tally.skipped.push("quickstart: cannot run here (exit code 77)".to_owned());
        return Ok(());
    }
    if !status.success() {
        return Err(line.failed(&status));
    }
    if !is_one_object(&stdout) {
        return Err(line.failed(&"stdout is not exactly one JSON object"));
    }
    Ok(())
}

/// Whether the text is one JSON object from its first brace to its last, and nothing else.
/// That what is inside is JSON is the serialiser's business.
fn is_one_object(text: &str) -> bool {
    let text = text.trim();
    let (mut depth, mut in_string, mut escaped) = (0u32, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return text.starts_with('{') && byte == b'}' && at + 1 == text.len();
                }
            }
            _ if depth == 0 => return false,
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::is_one_object;

    #[test]
    fn only_one_object_and_nothing_else_will_do() {
        for good in ["{}", "{\"a\": [1, {\"b\": \"}\\\"{\"}]}\n"] {
            assert!(is_one_object(good), "{good}");
        }
        for bad in ["", "[]", "{", "{} {}", "log\n{}", "{}\nlog", "{\"a\": \"}", "\"{}\""] {
            assert!(!is_one_object(bad), "{bad}");
        }
    }
}
