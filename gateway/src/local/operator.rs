//! What an operator says to a running gateway, over the trainers' socket; docs/protocol.md
//! section 5.

use crate::events::RateChange;
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
pub enum OperatorRequest {
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
pub enum OperatorResponse {
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

impl From<&OperatorRequest> for RateChange {
    fn from(wish: &OperatorRequest) -> Self {
        let OperatorRequest::Hold { link, bits_per_second } = wish;
        Self { link: link.clone(), rate: bits_per_second.map(BitRate::from_bits_per_second) }
    }
}

/// Asks the gateway that listens at `socket`. Blocks for a few seconds at most.
///
/// # Errors
/// Nothing answers there, or the gateway refuses.
pub fn ask(socket: &Path, wish: &OperatorRequest) -> Result<LinkStatus, OperatorError> {
    let nothing = |source| OperatorError::NothingAnswers { socket: socket.to_owned(), source };
    match exchange(socket, wish).map_err(nothing)? {
        OperatorResponse::Held(link) => Ok(link),
        OperatorResponse::Refused(why) => Err(OperatorError::Refused(why)),
    }
}

fn exchange(socket: &Path, wish: &OperatorRequest) -> io::Result<OperatorResponse> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Option<OperatorRequest> {
        serde_json::from_slice(bytes).ok()
    }

    proptest! {
        #[test]
        fn wishes_survive_the_wire_and_nothing_may_be_added(
            link in ".{0,40}",
            bits_per_second: Option<u64>,
            extra in "[a-z_]{1,12}",
        ) {
            let wish = OperatorRequest::Hold { link: link.clone(), bits_per_second };
            let bytes = serde_json::to_vec(&wish).expect("plain");
            prop_assert_eq!(read(&bytes), Some(wish));
            prop_assume!(extra != "link" && extra != "bits_per_second");
            let more = serde_json::json!({ "hold": { "link": link, extra: 1 } });
            prop_assert_eq!(read(more.to_string().as_bytes()), None);
        }

        /// Cut anywhere, or with any byte changed, it is another wish or none.
        #[test]
        fn no_bytes_panic(
            bits_per_second: u64,
            cut in 0usize..60,
            at in 0usize..60,
            byte: u8,
        ) {
            let wish = OperatorRequest::Hold {
                link: "east-west".to_owned(),
                bits_per_second: Some(bits_per_second),
            };
            let mut bytes = serde_json::to_vec(&wish).expect("plain");
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(read(&bytes[..cut]), None);
            let at = at.min(bytes.len() - 1);
            let changed = bytes[at] != byte;
            bytes[at] = byte;
            prop_assert!(!changed || read(&bytes) != Some(wish));
        }
    }
}
