//! Profiles by `perf record`: how often each stack of calls was seen.

use super::running::Running;
use super::watcher::Watcher;
use scenarios::testbed::error::LabError;
use scenarios::testbed::programs::is_installed;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};

/// Counts of stacks, each from its outermost function to its innermost.
pub type Stacks = BTreeMap<Vec<String>, u64>;

/// 199 samples in a second of each core: beside the timer's ticks, and few enough to disturb
/// little.
const SAMPLES_PER_SECOND: &str = "199";

/// 8 KiB of stack with each sample, from which `perf` finds the callers: no frame pointers are
/// there.
const CALL_GRAPH: &str = "dwarf,8192";

/// Returns why no profile can be made here, if so.
pub fn missing() -> Option<&'static str> {
    (!is_installed("perf")).then_some("no perf on this machine")
}

/// Records `running` while it moves the bytes of about one run.
///
/// # Errors
/// The run failed, or `perf` recorded nothing.
pub fn record(running: &mut dyn Running) -> Result<Stacks, LabError> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("perf.data");
    let ids: Vec<String> = running.ids().iter().map(u32::to_string).collect();
    let mut command = Command::new("perf");
    command.args(["record", "-q", "-F", SAMPLES_PER_SECOND, "--call-graph", CALL_GRAPH]);
    command.args(["-p", &ids.join(","), "-o"]).arg(&file);
    let watcher = Watcher::start(command)?;
    let carried = running.carry();
    watcher.stop()?;
    carried?;
    let mut script = Command::new("perf");
    // Inlined functions take minutes to find.
    script.args(["script", "--no-inline", "-F", "comm,ip,sym", "-i"]).arg(&file);
    script.stdin(Stdio::null()).stderr(Stdio::null());
    let stacks = parse_script(&String::from_utf8_lossy(&script.output()?.stdout));
    if stacks.is_empty() {
        return Err(LabError::Failed("perf recorded nothing".to_owned()));
    }
    Ok(stacks)
}

/// Reads the output of `perf script`: for each sample a line with the thread's name, then a line
/// for each function, the innermost first, then an empty line.
fn parse_script(text: &str) -> Stacks {
    let mut stacks = Stacks::new();
    let mut stack: Vec<String> = Vec::new();
    let mut thread = None;
    for line in text.lines().chain([""]) {
        if line.trim().is_empty() {
            if let Some(thread) = thread.take() {
                stack.push(thread);
                stack.reverse();
                *stacks.entry(std::mem::take(&mut stack)).or_default() += 1;
            }
        } else if line.starts_with([' ', '\t']) && thread.is_some() {
            let function = line.trim_start().split_once(' ').map_or("[unknown]", |(_, name)| name);
            stack.push(function.trim().to_owned());
        } else {
            // Numbers at the ends of names tell lanes apart, which the picture does not.
            let name = line.trim().trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
            thread = Some(name.to_owned());
        }
    }
    stacks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_begin_with_the_thread_and_are_counted() {
        let text = "lane-0 \n\tffff81 udp_sendmsg\n\t55aa quinn::poll<A, B>\n\n\
                    lane-1 \n\tffff81 udp_sendmsg\n\t55aa quinn::poll<A, B>\n\n\
                    compute \n\t55bb reduce\n";
        let stacks = parse_script(text);
        let of = |names: &[&str]| -> Vec<String> {
            names.iter().map(|name| (*name).to_owned()).collect()
        };
        assert_eq!(stacks[&of(&["lane", "quinn::poll<A, B>", "udp_sendmsg"])], 2);
        assert_eq!(stacks[&of(&["compute", "reduce"])], 1);
        assert_eq!(stacks.len(), 2);
        assert!(parse_script("").is_empty());
    }
}
