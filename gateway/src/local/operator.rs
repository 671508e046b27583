//! Requests of an operator to a running gateway, over the trainers' socket; docs/protocol.md
//! section 5.
//!
//! `landbridge rate`, `leave` and `join` call [`set_rate_as_operator`] and
//! [`change_membership_as_operator`], `fabric apply` calls [`change_fabric_as_operator`] and
//! [`fabric_version_as_operator`]. All block their thread.
//! [`super::local_server`] answers.

use crate::access::{
    SocketAccessError, TrustedSocketUsers, check_trusted_socket_folder, check_trusted_socket_peer,
    denied_trusted_socket,
};
use crate::events::{FabricChange, FabricChangeReport, MembershipChange};
use crate::host::current_thread_runtime;
use crate::observe::fabric_report::FabricVersionReport;
use crate::observe::membership_report::MembershipReport;
use crate::observe::status::LinkReport;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use units::{BitRate, ByteCount, Span};

/// 5 s: the longest time of each read and write of an operator's command on its connection to a
/// gateway. After that the command fails, and says that nothing answers. An engine under load
/// answers within this time.
pub const OPERATOR_IO_TIMEOUT: Duration = Duration::from_secs(5);

/// `O`: the first byte of an operator's connection to a gateway, by which the gateway expects a
/// request in JSON and no arena. The first byte of a trainer's connection is `L`.
pub const OPERATOR_FIRST_BYTE: u8 = b'O';

/// A request of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum OperatorRequest {
    /// Limit a link to a rate, or return it to its schedule.
    #[serde(rename = "hold")]
    SetRate {
        /// The link: two regions joined by a hyphen.
        link: String,
        /// The limit in bits per second; `None` for the schedule's.
        bits_per_second: Option<u64>,
    },
    /// Let a region leave the world of all jobs at a step's boundary.
    Leave {
        /// The region's name.
        region: String,
        /// The time for which a boundary is awaited.
        within_seconds: u32,
    },
    /// Let a region that has left join again at a step's boundary.
    Join {
        /// The region's name.
        region: String,
        /// The time for which a boundary is awaited.
        within_seconds: u32,
    },
    /// Say who goes on together.
    Membership,
    /// Put a signed fabric in force at all gateways, or only check it.
    Fabric {
        /// The text of the fabric file.
        text: String,
        /// The text of the file with its signature.
        signature: String,
        /// The time for which a boundary is awaited.
        within_seconds: u32,
        /// Whether it is only checked.
        dry_run: bool,
    },
    /// Say which version of the fabric is in force.
    FabricVersion,
}

/// The gateway's response to an operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorResponse {
    /// The state of the link after the change.
    #[serde(rename = "held")]
    RateSet(LinkReport),
    /// The regions that go on together now: a change may take a step.
    Membership(MembershipReport),
    /// The changes of a fabric, which comes into force at a step's boundary.
    Fabric(FabricChangeReport),
    /// The versions of the fabric.
    FabricVersion(FabricVersionReport),
    /// Nothing has changed, for this reason.
    Refused(String),
}

/// Why a request was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// No gateway listens, or it does not answer in time.
    #[error("nothing answers at {}: {source}; is the gateway running? `landbridge run` starts it", socket.display())]
    NothingAnswers {
        /// The gateway's socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// This user may not connect, or a third user may listen there: the operator's fault. Nothing
    /// was asked.
    #[error(transparent)]
    Access(#[from] SocketAccessError),
    /// The gateway refused the request: the caller's fault.
    #[error("{0}")]
    Refused(String),
}

/// Limits a link to a rate, or returns it to its schedule, at the gateway at `socket`; returns the
/// link after the change. Blocks the thread, as [`change_membership_as_operator`] does.
///
/// # Errors
/// Nothing answers there, this user may not ask, or the gateway refuses.
pub fn set_rate_as_operator(
    socket: &Path,
    link: String,
    rate: Option<BitRate>,
    trusted: TrustedSocketUsers,
) -> Result<LinkReport, OperatorError> {
    let bits_per_second = rate.map(BitRate::bits_per_second);
    let request = OperatorRequest::SetRate { link, bits_per_second };
    match send_operator_request(socket, &request, trusted)? {
        OperatorResponse::RateSet(link) => Ok(link),
        _ => Err(other_operator_response(socket)),
    }
}

/// Asks the gateway at `socket` who goes on together, after it has begun a change if one is given.
/// Blocks the thread; each read and write takes at most [`OPERATOR_IO_TIMEOUT`].
///
/// # Errors
/// Nothing answers there, this user may not ask, or the gateway refuses.
pub fn change_membership_as_operator(
    socket: &Path,
    change: Option<&MembershipChange>,
    trusted: TrustedSocketUsers,
) -> Result<MembershipReport, OperatorError> {
    let request = match change {
        None => OperatorRequest::Membership,
        Some(MembershipChange { region, leaves, within }) => {
            let (region, within_seconds) = (region.clone(), whole_seconds(*within));
            match leaves {
                true => OperatorRequest::Leave { region, within_seconds },
                false => OperatorRequest::Join { region, within_seconds },
            }
        }
    };
    match send_operator_request(socket, &request, trusted)? {
        OperatorResponse::Membership(members) => Ok(members),
        _ => Err(other_operator_response(socket)),
    }
}

/// Lets the gateway at `socket` put a signed fabric in force at all gateways, or check it; returns what it
/// changes. Blocks the thread, as [`change_membership_as_operator`] does.
///
/// # Errors
/// Nothing answers there, this user may not ask, or the gateway refuses.
pub fn change_fabric_as_operator(
    socket: &Path,
    change: &FabricChange,
    trusted: TrustedSocketUsers,
) -> Result<FabricChangeReport, OperatorError> {
    let FabricChange { text, signature, within, dry_run } = change.clone();
    let within_seconds = whole_seconds(within);
    let request = OperatorRequest::Fabric { text, signature, within_seconds, dry_run };
    match send_operator_request(socket, &request, trusted)? {
        OperatorResponse::Fabric(changes) => Ok(changes),
        _ => Err(other_operator_response(socket)),
    }
}

/// Asks the gateway at `socket` for the versions of the fabric. Blocks the thread, as
/// [`change_membership_as_operator`] does.
///
/// # Errors
/// Nothing answers there, or this user may not ask.
pub fn fabric_version_as_operator(
    socket: &Path,
    trusted: TrustedSocketUsers,
) -> Result<FabricVersionReport, OperatorError> {
    match send_operator_request(socket, &OperatorRequest::FabricVersion, trusted)? {
        OperatorResponse::FabricVersion(fabric) => Ok(fabric),
        _ => Err(other_operator_response(socket)),
    }
}

/// Returns a time in whole seconds, rounded up.
fn whole_seconds(span: Span) -> u32 {
    span.as_secs_f64().ceil().min(f64::from(u32::MAX)) as u32
}

impl OperatorRequest {
    /// Returns the change of members that the request asks for; `None` for other requests.
    pub fn membership_change(self) -> Option<MembershipChange> {
        let (region, leaves, within_seconds) = match self {
            Self::Leave { region, within_seconds } => (region, true, within_seconds),
            Self::Join { region, within_seconds } => (region, false, within_seconds),
            Self::SetRate { .. } | Self::Membership | Self::Fabric { .. } | Self::FabricVersion => {
                return None;
            }
        };
        let within = Span::from_secs(u64::from(within_seconds));
        Some(MembershipChange { region, leaves, within })
    }
}

/// Makes the error about a gateway that answers something else than was asked.
fn other_operator_response(socket: &Path) -> OperatorError {
    let source = io::Error::new(io::ErrorKind::InvalidData, "it answers something else");
    OperatorError::NothingAnswers { socket: socket.to_owned(), source }
}

/// Sends an operator's request to the gateway at `socket`, where a trusted user must listen; returns
/// the response, which is no refusal.
///
/// # Errors
/// Nothing answers there, this user may not ask, or the gateway refuses.
fn send_operator_request(
    socket: &Path,
    request: &OperatorRequest,
    trusted: TrustedSocketUsers,
) -> Result<OperatorResponse, OperatorError> {
    let no_answer = |source| OperatorError::NothingAnswers { socket: socket.to_owned(), source };
    let stream = UnixStream::connect(socket).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => OperatorError::Access(denied_trusted_socket(socket)),
        _ => no_answer(error),
    })?;
    check_trusted_socket_folder(socket, trusted)?;
    check_trusted_socket_peer(socket, peer_user_of_operator(&stream).map_err(no_answer)?, trusted)?;
    match exchange_operator_request(stream, request).map_err(no_answer)? {
        OperatorResponse::Refused(why) => Err(OperatorError::Refused(why)),
        response => Ok(response),
    }
}

/// Returns the number of the user as whom the process at the other end of the stream runs.
fn peer_user_of_operator(stream: &UnixStream) -> io::Result<u32> {
    // The standard library cannot ask, and tokio does so only inside a runtime.
    let runtime = current_thread_runtime()?;
    let inside = runtime.enter();
    stream.set_nonblocking(true)?;
    let user = tokio::net::UnixStream::from_std(stream.try_clone()?)?.peer_cred()?.uid();
    stream.set_nonblocking(false)?;
    drop(inside);
    runtime.shutdown_background();
    Ok(user)
}

/// Writes a request to a gateway and reads the response.
fn exchange_operator_request(
    mut stream: UnixStream,
    request: &OperatorRequest,
) -> io::Result<OperatorResponse> {
    stream.set_read_timeout(Some(OPERATOR_IO_TIMEOUT))?;
    stream.set_write_timeout(Some(OPERATOR_IO_TIMEOUT))?;
    let request = serde_json::to_vec(request)?;
    if request.len() > super::protocol::MESSAGE_BYTES_MAX {
        let length = ByteCount::new(request.len() as u64);
        let text = format!("the request takes {length}, more than a message may");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let length = u32::try_from(request.len()).unwrap_or(u32::MAX).to_be_bytes();
    // Sent alone: the gateway reads the first byte together with the ancillary data.
    stream.write_all(&[OPERATOR_FIRST_BYTE])?;
    stream.write_all(&[&length[..], &request].concat())?;
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut answer = Vec::new();
    let length =
        u64::from(u32::from_be_bytes(length)).min(super::protocol::MESSAGE_BYTES_MAX as u64);
    stream.take(length).read_to_end(&mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Option<OperatorRequest> {
        serde_json::from_slice(bytes).ok()
    }

    proptest! {
        #[test]
        fn requests_survive_the_wire_and_take_no_unknown_field(
            link in ".{0,40}",
            bits_per_second: Option<u64>,
            extra in "[a-z_]{1,12}",
        ) {
            let request = OperatorRequest::SetRate { link: link.clone(), bits_per_second };
            let bytes = serde_json::to_vec(&request).expect("plain data");
            prop_assert_eq!(read(&bytes), Some(request));
            prop_assume!(extra != "link" && extra != "bits_per_second");
            let more = serde_json::json!({ "hold": { "link": link, extra: 1 } });
            prop_assert_eq!(read(more.to_string().as_bytes()), None);
        }

        /// Truncated bytes are rejected, and a changed byte never gives the same request.
        #[test]
        fn changed_bytes_never_give_the_same_request(
            bits_per_second: u64,
            cut in 0usize..60,
            at in 0usize..60,
            byte: u8,
        ) {
            let request = OperatorRequest::SetRate {
                link: "east-west".to_owned(),
                bits_per_second: Some(bits_per_second),
            };
            let mut bytes = serde_json::to_vec(&request).expect("plain data");
            let cut = cut.min(bytes.len() - 1);
            prop_assert_eq!(read(&bytes[..cut]), None);
            let at = at.min(bytes.len() - 1);
            let changed = bytes[at] != byte;
            bytes[at] = byte;
            prop_assert!(!changed || read(&bytes) != Some(request));
        }
    }
}
