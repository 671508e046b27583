//! Reading a recording back through the core.

use super::line::{DecidedLine, HEADER_LINE, MovedLine, PacketLine};
use crate::netem::Netem;
use crate::{
    CapacityRecording, Change, Conditions, EmulatedLink, FateCounters, LinkSpec, Packet,
    PacketFlow, Script,
};
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};
use std::sync::Arc;
use units::TimeNs;

/// A recording that replayed to the same fates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The links, by number: name and what they saw.
    pub links: Vec<(String, FateCounters)>,
}

/// A recording that did not replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The recording cannot be read.
    #[error("cannot read the recording: {0}")]
    Unreadable(#[from] io::Error),
    /// The text is no recording, or of another version. The caller's fault.
    #[error("line {line}: `{text}` is not {wanted}")]
    Malformed {
        /// Line number, from 1.
        line: usize,
        /// The text found.
        text: String,
        /// The text that is accepted.
        wanted: &'static str,
    },
    /// The core decides otherwise: another version made the recording, or one is wrong.
    #[error("line {line}: recorded `{recorded}`, replayed `{replayed}`")]
    Different {
        /// Line number, from 1.
        line: usize,
        /// The line as recorded.
        recorded: String,
        /// The line as replayed.
        replayed: String,
    },
}

/// Replays the recording `input`: offers its packets to links with the recorded properties, and
/// compares every fate.
///
/// # Errors
/// [`ReplayError`], at the first line that does not replay.
pub fn replay(input: impl BufRead) -> Result<Replay, ReplayError> {
    let mut links: Vec<ReplayLink> = Vec::new();
    let mut input = input;
    let mut lines = std::iter::from_fn(|| read_line_to_replay(&mut input).transpose()).zip(1..);
    let (first, _) = lines.next().unwrap_or((Ok(String::new()), 1));
    let first = first?;
    if first != HEADER_LINE {
        return Err(ReplayError::Malformed { line: 1, text: first, wanted: "the header" });
    }
    // The lines that must follow next.
    let mut due = VecDeque::new();
    for (text, line) in lines {
        let text = text?;
        let replayed = match due.pop_front() {
            Some(line) => Some(line),
            None => replay_line(&text, &mut links, &mut due)
                .map_err(|wanted| ReplayError::Malformed { line, text: text.clone(), wanted })?,
        };
        if let Some(replayed) = replayed.filter(|replayed| *replayed != text) {
            return Err(ReplayError::Different { line, recorded: text, replayed });
        }
    }
    let counters =
        |link: Option<EmulatedLink>| link.map(|link| link.counters()).unwrap_or_default();
    let links = links.into_iter().map(|known| (known.name, counters(known.link))).collect();
    Ok(Replay { links })
}

/// Reads the next line of a recording, without its end; `None` at the end of `input`.
fn read_line_to_replay(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let taken = input.take(LINE_BYTES_MAX + 1).read_line(&mut line)?;
    if line.len() as u64 > LINE_BYTES_MAX {
        return Err(io::Error::other(format!("a line is longer than {LINE_BYTES_MAX} bytes")));
    }
    if line.ends_with('\n') {
        line.pop();
        line.truncate(line.strip_suffix('\r').unwrap_or(&line).len());
    }
    Ok((taken > 0).then_some(line))
}

/// 4,096 bytes: the longest line of a recording that a replay accepts; a longer one ends the replay
/// with an error. The limit is chosen above the longest line that is written.
const LINE_BYTES_MAX: u64 = 4096;

/// A link of the recording, rebuilt with each line that adds to it.
struct ReplayLink {
    name: String,
    spec: LinkSpec,
    seed: u64,
    script: Script,
    conditions: Conditions,
    /// The deliveries of the capacity so far, in ms.
    times_ms: Vec<u64>,
    /// The link; made anew where lines before its first packet add to it.
    link: Option<EmulatedLink>,
}

impl ReplayLink {
    /// Makes a link as its line of the recording describes it, without a script.
    fn new(name: &str, spec: LinkSpec, seed: u64) -> Self {
        let (name, script, conditions) =
            (name.to_owned(), Script::default(), Conditions::default());
        Self { name, spec, seed, script, conditions, times_ms: Vec::new(), link: None }
    }

    /// Adds a change or a drop to the script, and makes the link anew.
    fn extend_script(&mut self, change: Option<(TimeNs, Change)>, drop: Option<u64>) {
        let script = &self.script;
        self.script = Script::new(script.changes().chain(change), script.dropped().chain(drop));
        self.link = None;
    }

    /// Adds a part of the conditions, and makes the link anew. Returns [`None`] for a line that is
    /// no such part.
    fn extend_conditions(&mut self, rest: &str) -> Option<()> {
        let (word, rest) = rest.split_once(' ')?;
        match word {
            "delivers" => {
                let times = rest.split(' ').map(str::parse::<u64>);
                self.times_ms.extend(times.collect::<Result<Vec<_>, _>>().ok()?);
            }
            "parallel" => self.conditions.parallel.push(rest.parse::<Netem>().ok()?.link),
            "cross" => self.conditions.cross.push(rest.parse().ok()?),
            _ => return None,
        }
        self.link = None;
        Some(())
    }

    /// Returns the link; made first where lines have added to it. `None` where it cannot have its
    /// conditions.
    fn link(&mut self) -> Option<&mut EmulatedLink> {
        if self.link.is_none() {
            if !self.times_ms.is_empty() {
                let recording = CapacityRecording::new(self.times_ms.clone()).ok()?;
                self.conditions.capacity = Some(Arc::new(recording));
            }
            self.conditions.check(&self.spec).ok()?;
            let (script, conditions) = (self.script.clone(), &self.conditions);
            self.link = Some(EmulatedLink::under(self.spec, script, conditions, self.seed));
        }
        self.link.as_mut()
    }
}

/// Carries out one line of a recording. For a packet, returns the line as the link decides it.
///
/// Adds to `due` the lines that must follow. The error is the accepted form of the line.
fn replay_line(
    text: &str,
    links: &mut Vec<ReplayLink>,
    due: &mut VecDeque<String>,
) -> Result<Option<String>, &'static str> {
    if let Some(rest) = text.strip_prefix("link ") {
        /// The accepted form of the line of a recording that begins a link, which the error about a
        /// wrong line shows.
        const LINK_LINE_FORM: &str = "`link NUMBER NAME WORDS seed SEED`, numbered in order";
        let mut parts = rest.splitn(3, ' ');
        let index: Option<usize> = parts.next().and_then(|index| index.parse().ok());
        let (Some(name), Some(words)) = (parts.next(), parts.next()) else {
            return Err(LINK_LINE_FORM);
        };
        let words: Netem = words.parse().map_err(|_| LINK_LINE_FORM)?;
        let seed = words.seed.filter(|_| index == Some(links.len())).ok_or(LINK_LINE_FORM)?;
        links.push(ReplayLink::new(name, words.link, seed));
        return Ok(None);
    }
    let (index, rest) = text.split_once(' ').ok_or("a line of a known link")?;
    let index: usize = index.parse().map_err(|_| "a line of a known link")?;
    let known = links.get_mut(index).ok_or("a line of a known link")?;
    if let Some(rest) = rest.strip_prefix("at ") {
        let change = parse_replay_change(rest).ok_or("`LINK at TIME set WORDS|cut|join`")?;
        known.extend_script(Some(change), None);
        return Ok(None);
    }
    if let Some(number) = rest.strip_prefix("drops ") {
        known.extend_script(None, Some(number.parse().map_err(|_| "`LINK drops NUMBER`")?));
        return Ok(None);
    }
    let word = rest.split(' ').next().unwrap_or_default();
    if CONDITION_WORDS.contains(&word) {
        known.extend_conditions(rest).ok_or("`LINK delivers|parallel|cross VALUES`")?;
        return Ok(None);
    }
    let link = known.link().ok_or("a line of a link that can have its conditions")?;
    if let Some(rest) = rest.strip_prefix("decided ") {
        let time = rest.split(' ').next().and_then(|time| time.parse().ok());
        let now = TimeNs::from_ns(time.ok_or("`LINK decided TIME NUMBER FATE`")?);
        let decided = link.take_decided(now);
        due.extend(decided.iter().map(|decided| DecidedLine { index, decided }.to_string()));
        // Where nothing was decided, any line is right but this one.
        return Ok(Some(due.pop_front().unwrap_or_default()));
    }
    if let Some(rest) = rest.strip_prefix("set ") {
        /// The accepted form of the line of a recording that changes a link, which the error about
        /// a wrong line shows. TIME is in nanoseconds.
        const SET_LINE_FORM: &str = "`LINK set TIME WORDS`";
        let (now, words) = rest.split_once(' ').ok_or(SET_LINE_FORM)?;
        let now = TimeNs::from_ns(now.parse().map_err(|_| SET_LINE_FORM)?);
        let words: Netem = words.parse().map_err(|_| SET_LINE_FORM)?;
        let moved = link.set_spec(now, words.link);
        due.extend(moved.iter().map(|moved| MovedLine { index, moved }.to_string()));
        return Ok(None);
    }
    match rest {
        "cut" => link.set_blackhole(true),
        "join" => link.set_blackhole(false),
        _ => {
            let (now, packet) =
                parse_replay_packet(rest).ok_or("`LINK TIME BYTES ect|not FATE`")?;
            let offered = link.offer(now, packet);
            let line = PacketLine { index, now, packet, offered: &offered };
            return Ok(Some(line.to_string()));
        }
    }
    Ok(None)
}

/// Parses the time and the change of a line of a script.
fn parse_replay_change(rest: &str) -> Option<(TimeNs, Change)> {
    let (at, change) = rest.split_once(' ')?;
    let change = match change {
        "cut" => Change::Cut,
        "join" => Change::Join,
        _ => Change::Spec(change.strip_prefix("set ")?.parse::<Netem>().ok()?.link),
    };
    Some((TimeNs::from_ns(at.parse().ok()?), change))
}

/// Parses the time of a packet's line and the packet: size, ECN capability and flow, which is 0
/// where the line names none.
fn parse_replay_packet(rest: &str) -> Option<(TimeNs, Packet)> {
    let mut parts = rest.split(' ');
    let now = TimeNs::from_ns(parts.next()?.parse().ok()?);
    let ip_bytes = parts.next()?.parse().ok()?;
    let ecn_capable = match parts.next()? {
        "ect" => true,
        "not" => false,
        _ => return None,
    };
    let flow = parts.next().and_then(|part| part.strip_prefix("flow:"));
    let flow = flow.map_or(Some(0), |number| number.parse().ok())?;
    Some((now, Packet { ip_bytes, ecn_capable, flow: PacketFlow::new(flow) }))
}

/// The words behind the link's number in lines of a recording that add a capacity, a parallel path
/// or cross traffic to the link. Such lines come before the link's first packet.
const CONDITION_WORDS: [&str; 3] = ["delivers", "parallel", "cross"];
