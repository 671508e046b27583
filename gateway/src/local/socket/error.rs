//! Why a gateway cannot listen at its socket.

use crate::access::{SocketAccessError, group_account_label};
use crate::limits::process_limits::ProcessLimitRemedy;
use rustix::io::Errno;
use std::io;
use std::path::PathBuf;

/// Why a gateway does not listen at its socket. Whatever is at the path was left alone.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another gateway runs with this socket. The operator's fault.
    #[error(
        "another gateway{} listens at {}: stop it, or give this one a `socket` of its own",
        process.map(|pid| format!(" (process {pid})")).unwrap_or_default(),
        socket.display()
    )]
    Held {
        /// The socket.
        socket: PathBuf,
        /// The number of the other process, if its lock file says so.
        process: Option<u32>,
    },
    /// A file is in the way that no gateway of this user is known to have left.
    #[error("cannot listen at {}: {by}", socket.display())]
    Taken {
        /// The socket.
        socket: PathBuf,
        /// The owner of the path, and the remedy.
        by: String,
    },
    /// Others than the gateway's user can replace the socket. The operator's fault.
    #[error(transparent)]
    Access(#[from] SocketAccessError),
    /// The socket cannot be given to the `group` of the region file. The operator's fault.
    #[error(
        "cannot give {} to group {}: {source}; make the gateway's user a member of that group",
        path.display(),
        group_account_label(*group)
    )]
    Group {
        /// The socket or its folder.
        path: PathBuf,
        /// The number of the group.
        group: u32,
        /// The reason.
        source: io::Error,
    },
    /// The folder of the socket lets in fewer users than the socket does. The operator's fault.
    #[error(
        "folder {} of the socket has mode {mode:o}, so that other users cannot reach the socket: \
         remove it, and the gateway makes it again for them, or change its mode",
        folder.display()
    )]
    ShutFolder {
        /// The folder.
        folder: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The system refuses a file, a folder or the socket.
    #[error("{}: {source}{}", path.display(), socket_error_remedy(source))]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

/// Returns what to do where the system refuses a file, folder or socket of a gateway's socket.
fn socket_error_remedy(source: &io::Error) -> String {
    match source.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "; let `socket` name a path in a folder in which the gateway's user may make files"
                .to_owned()
        }
        io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists | io::ErrorKind::NotFound => {
            "; let `socket` name a path in a folder, and remove the file or link that is in its place"
                .to_owned()
        }
        // Stable Rust has no kind for a link that leads to itself.
        _ if source.raw_os_error() == Some(Errno::LOOP.raw_os_error()) => {
            "; remove the link that leads to itself, or choose another path for `socket`".to_owned()
        }
        _ => ProcessLimitRemedy(source).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_socket_file_says_what_to_do() {
        for (errno, remedy) in [
            (Errno::ACCESS, "let `socket` name a path in a folder"),
            (Errno::ROFS, "let `socket` name a path in a folder"),
            (Errno::NOTDIR, "remove the file or link that is in its place"),
            (Errno::LOOP, "remove the link that leads to itself"),
            (Errno::MFILE, "descriptors"),
        ] {
            let text = socket_error_remedy(&errno.into());
            assert!(text.contains(remedy), "{errno}: {text}");
        }
        assert_eq!(socket_error_remedy(&Errno::ISDIR.into()), "");
    }
}
