//! What an operator says to a running gateway, over the trainers' socket; docs/protocol.md
//! section 5.

use crate::engine::RateChange;
use crate::observe::status::LinkStatus;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use units::BitRate;

/// An operator's first byte, where a trainer has `L`.
pub const FIRST_BYTE: u8 = b'O';

/// A wish.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wish {
    /// Hold a link to a rate, or to what its schedule says.
    Hold {
        /// The link: two regions joined by a hyphen.
        link: String,
        /// The rate; `None` for the schedule's.
        bits_per_second: Option<u64>,
    },
}

/// What became of a wish.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// What holds the link now.
    Held(LinkStatus),
    /// Nothing has changed, because of what was asked.
    Refused(String),
}

/// A wish that was not met.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// Nothing answers.
    #[error("nothing answers at {}: {source}; is the gateway running?", socket.display())]
    NothingAnswers {
        /// The gateway's socket.
        socket: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The caller's fault.
    #[error("{0}")]
    Refused(String),
}

impl From<&Wish> for RateChange {
    fn from(wish: &Wish) -> Self {
        let Wish::Hold { link, bits_per_second } = wish;
        Self { link: link.clone(), rate: bits_per_second.map(BitRate::from_bits_per_second) }
    }
}

/// Asks the gateway that listens at `socket`. Blocks for a few seconds at most.
///
/// # Errors
/// Nothing answers there, or the gateway refuses.
pub fn ask(socket: &Path, wish: &Wish) -> Result<LinkStatus, OperatorError> {
    let nothing = |source| OperatorError::NothingAnswers { socket: socket.to_owned(), source };
    match exchange(socket, wish).map_err(nothing)? {
        Answer::Held(link) => Ok(link),
        Answer::Refused(why) => Err(OperatorError::Refused(why)),
    }
}

fn exchange(socket: &Path, wish: &Wish) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    let wish = serde_json::to_vec(wish)?;
    let length = u32::try_from(wish.len()).unwrap_or(u32::MAX).to_be_bytes();
    // By itself: a gateway reads the first byte with what may travel beside it.
    stream.write_all(&[FIRST_BYTE])?;
    stream.write_all(&[&length[..], &wish].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = Vec::new();
    let length = u64::from(u32::from_be_bytes(length)).min(super::protocol::MAX_BYTES as u64);
    stream.take(length).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

/// Longer than an engine under load takes to come by.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
