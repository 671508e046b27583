//! Reading a recording back through the core.

use super::{HEADER, PacketLine};
use crate::netem::Netem;
use crate::{Counters, Link, Packet};
use std::io::{self, BufRead};
use units::TimeNs;

/// A recording that replayed to the same fates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replay {
    /// The links, by number: name and what they saw.
    pub links: Vec<(String, Counters)>,
}

/// A recording that did not replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("cannot read the recording: {0}")]
    Unreadable(#[from] io::Error),
    /// It is none, or of another version. The caller's fault.
    #[error("line {line}: `{text}` is not {wanted}")]
    Malformed {
        /// Where, from 1.
        line: usize,
        /// What stands there.
        text: String,
        /// What would be accepted.
        wanted: &'static str,
    },
    /// The core decides otherwise: another version made the recording, or one is wrong.
    #[error("line {line}: recorded `{recorded}`, replayed `{replayed}`")]
    Different {
        /// Where, from 1.
        line: usize,
        /// The line as recorded.
        recorded: String,
        /// The line as replayed.
        replayed: String,
    },
}

/// Offers what `input` records to links like those it names, and compares every fate.
///
/// # Errors
/// [`ReplayError`], at the first line that does not replay.
pub fn replay(input: impl BufRead) -> Result<Replay, ReplayError> {
    let mut links: Vec<(String, Link)> = Vec::new();
    let mut lines = input.lines().zip(1..);
    let (first, _) = lines.next().unwrap_or((Ok(String::new()), 1));
    let first = first?;
    if first != HEADER {
        return Err(ReplayError::Malformed { line: 1, text: first, wanted: "the header" });
    }
    for (text, line) in lines {
        let text = text?;
        let replayed = apply(&text, &mut links).map_err(|wanted| ReplayError::Malformed {
            line,
            text: text.clone(),
            wanted,
        })?;
        if let Some(replayed) = replayed.filter(|replayed| *replayed != text) {
            return Err(ReplayError::Different { line, recorded: text, replayed });
        }
    }
    let links = links.into_iter().map(|(name, link)| (name, link.counters())).collect();
    Ok(Replay { links })
}

/// Carries out one line; returns it as it should be, for a packet.
fn apply(text: &str, links: &mut Vec<(String, Link)>) -> Result<Option<String>, &'static str> {
    if let Some(rest) = text.strip_prefix("link ") {
        const WANTED: &str = "`link NUMBER NAME WORDS seed SEED`, numbered in order";
        let mut parts = rest.splitn(3, ' ');
        let index: Option<usize> = parts.next().and_then(|index| index.parse().ok());
        let (Some(name), Some(words)) = (parts.next(), parts.next()) else {
            return Err(WANTED);
        };
        let words: Netem = words.parse().map_err(|_| WANTED)?;
        let seed = words.seed.filter(|_| index == Some(links.len())).ok_or(WANTED)?;
        links.push((name.to_owned(), Link::new(words.link, seed)));
        return Ok(None);
    }
    let (index, rest) = text.split_once(' ').ok_or("a line of a known link")?;
    let index: usize = index.parse().map_err(|_| "a line of a known link")?;
    let (_, link) = links.get_mut(index).ok_or("a line of a known link")?;
    if let Some(words) = rest.strip_prefix("set ") {
        let words: Netem = words.parse().map_err(|_| "`set WORDS`")?;
        link.set_spec(words.link);
        return Ok(None);
    }
    match rest {
        "cut" => link.set_blackhole(true),
        "join" => link.set_blackhole(false),
        _ => {
            let (now, packet) = packet(rest).ok_or("`LINK TIME BYTES ect|not FATE`")?;
            let offered = link.offer(now, packet);
            let line = PacketLine { index, now, packet, offered: &offered };
            return Ok(Some(line.to_string()));
        }
    }
    Ok(None)
}

fn packet(rest: &str) -> Option<(TimeNs, Packet)> {
    let mut parts = rest.split(' ');
    let now = TimeNs::from_ns(parts.next()?.parse().ok()?);
    let ip_bytes = parts.next()?.parse().ok()?;
    let ecn_capable = match parts.next()? {
        "ect" => true,
        "not" => false,
        _ => return None,
    };
    Some((now, Packet { ip_bytes, ecn_capable }))
}
