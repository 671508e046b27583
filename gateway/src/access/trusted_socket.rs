//! The judge of a gateway's socket: its folder, and the process that listens there.
//!
//! A trainer hands the socket its job's token and its memory, so it must not meet a third user's
//! process there. The kernel says as whom the other end runs. The folder is judged too, on both
//! sides, so that the operator hears of a wrong one before anybody makes use of it.

use super::account::{group_account_label, own_user_account, user_account_label};
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// 107 bytes: the longest path that Linux allows for a Unix socket, without the terminating zero. A
/// config file with a longer path for a gateway's socket is refused.
pub const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The users whom a process trusts with a gateway's socket: its own, root, and the gateway's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrustedSocketUsers {
    own: u32,
    gateway: Option<u32>,
}

impl TrustedSocketUsers {
    /// Trusts this process's user, root, and the user as whom the region file says that the gateway
    /// runs.
    pub fn new(gateway: Option<u32>) -> Self {
        Self { own: own_user_account(), gateway }
    }

    /// Returns whether the user with this number is trusted.
    pub fn include(&self, user: u32) -> bool {
        user == 0 || user == self.own || Some(user) == self.gateway
    }
}

impl fmt::Display for TrustedSocketUsers {
    /// Lists the users, such as `root (0), alice (1000)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&user_account_label(0))?;
        let own = (self.own != 0).then_some(self.own);
        let gateway = self.gateway.filter(|user| *user != 0 && *user != self.own);
        own.into_iter()
            .chain(gateway)
            .try_for_each(|user| write!(f, ", {}", user_account_label(user)))
    }
}

/// Why a gateway's socket is not used. Nothing was sent to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SocketAccessError {
    /// This user may not connect: the operator grants it.
    #[error(
        "permission denied: {kind} {} belongs to user {}, group {}, mode {mode:03o}, and this \
         process runs as user {}; run it as that user, or let `group` of the gateway in the region \
         file name a group of this user",
        path.display(),
        user_account_label(*owner),
        group_account_label(*group),
        user_account_label(*own)
    )]
    Denied {
        /// `socket` or `folder`.
        kind: &'static str,
        /// The socket, or the folder above it that this user may not enter.
        path: PathBuf,
        /// The number of its owner.
        owner: u32,
        /// The number of its group.
        group: u32,
        /// Its permission bits.
        mode: u32,
        /// The number of the user of this process.
        own: u32,
    },
    /// A third user owns the folder: the operator's fault, or an attack.
    #[error(
        "folder {} of the gateway's socket belongs to user {}, who can put another socket there; \
         trusted are {trusted}: use a folder that only the gateway's user can make, or name that \
         user in `user` of the gateway in the region file",
        path.display(),
        user_account_label(*owner)
    )]
    ForeignFolder {
        /// The folder.
        path: PathBuf,
        /// The number of its owner.
        owner: u32,
        /// The users that are trusted.
        trusted: TrustedSocketUsers,
    },
    /// Any user may replace files of the folder: the operator's fault.
    #[error(
        "others may write to folder {} (mode {mode:04o}, group {}) of the gateway's socket, and so \
         put another socket there: run `chmod go-w {}`, or use another folder",
        path.display(),
        group_account_label(*group),
        path.display()
    )]
    OpenFolder {
        /// The folder.
        path: PathBuf,
        /// The number of its group.
        group: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A third user's process listens: an attack, or a gateway of another user.
    #[error(
        "the process that listens at {} runs as user {}; trusted are {trusted}: no token was sent \
         to it. If it is the gateway, name its user in `user` of the gateway in the region file",
        path.display(),
        user_account_label(*user)
    )]
    ForeignPeer {
        /// The socket.
        path: PathBuf,
        /// The number of the user of the process.
        user: u32,
        /// The users that are trusted.
        trusted: TrustedSocketUsers,
    },
}

/// Returns the folder in which a socket's file lies.
pub fn trusted_socket_folder(socket: &Path) -> &Path {
    match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Checks that nobody but trusted users can replace files in the folder of a socket, and that not all
/// users may rename a folder above it. A folder that cannot be examined passes, since connecting or
/// listening there then fails with the reason.
///
/// # Errors
/// [`SocketAccessError::ForeignFolder`] or [`SocketAccessError::OpenFolder`].
pub fn check_trusted_socket_folder(
    socket: &Path,
    trusted: TrustedSocketUsers,
) -> Result<(), SocketAccessError> {
    let path = trusted_socket_folder(socket);
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    if !trusted.include(found.uid()) {
        let owner = found.uid();
        return Err(SocketAccessError::ForeignFolder { path: path.to_owned(), owner, trusted });
    }
    let open_folder = |path: &Path, found: &Metadata| {
        let (group, mode) = (found.gid(), found.mode() & 0o7777);
        Err(SocketAccessError::OpenFolder { path: path.to_owned(), group, mode })
    };
    if may_others_replace_trusted_socket(&found) {
        return open_folder(path, &found);
    }
    // Whoever may rename a folder on the way can put another one there.
    let ways = [std::path::absolute(path), std::fs::canonicalize(path)];
    for way in ways.iter().flatten() {
        for above in way.ancestors().skip(1) {
            let Ok(found) = std::fs::metadata(above) else { continue };
            if found.mode() & 0o1002 == 0o002 {
                return open_folder(above, &found);
            }
        }
    }
    Ok(())
}

/// Returns whether others than the owner may remove files of other users from a folder. A group of
/// the owner's own number is taken for its private one.
fn may_others_replace_trusted_socket(folder: &Metadata) -> bool {
    let mode = folder.mode();
    let is_sticky = mode & 0o1000 != 0;
    let group_writes = mode & 0o020 != 0 && folder.gid() != folder.uid();
    let all_write = mode & 0o002 != 0;
    !is_sticky && (group_writes || all_write)
}

/// Checks that the process at the other end of a connection to `socket` runs as a trusted user.
///
/// # Errors
/// [`SocketAccessError::ForeignPeer`].
pub fn check_trusted_socket_peer(
    socket: &Path,
    user: u32,
    trusted: TrustedSocketUsers,
) -> Result<(), SocketAccessError> {
    if trusted.include(user) {
        return Ok(());
    }
    Err(SocketAccessError::ForeignPeer { path: socket.to_owned(), user, trusted })
}

/// Returns the error of a refused connection, with owner, group and mode of the socket. Where this
/// user cannot see the socket, they are those of the nearest folder above it that can be seen.
pub fn denied_trusted_socket(socket: &Path) -> SocketAccessError {
    let visible =
        socket.ancestors().find_map(|path| Some((path, examine_trusted_socket_path(path)?)));
    let (path, [owner, group, mode]) = match visible {
        Some((path, found)) => (path, [found.uid(), found.gid(), found.mode() & 0o777]),
        None => (socket, [u32::MAX, u32::MAX, 0]),
    };
    SocketAccessError::Denied {
        kind: if path == socket { "socket" } else { "folder" },
        path: path.to_owned(),
        owner,
        group,
        mode,
        own: own_user_account(),
    }
}

/// Returns the metadata of a file that can be seen; `None` for one in a folder that may not be
/// entered.
fn examine_trusted_socket_path(path: &Path) -> Option<Metadata> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    std::fs::symlink_metadata(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// A user that no test runs as.
    const THIRD: u32 = 3_999_999_999;

    #[test]
    fn a_third_user_is_trusted_only_by_name() {
        let trusted = TrustedSocketUsers::new(None);
        assert!(
            trusted.include(0) && trusted.include(own_user_account()) && !trusted.include(THIRD)
        );
        assert!(TrustedSocketUsers::new(Some(THIRD)).include(THIRD));
        let socket = Path::new("/nowhere/east.sock");
        let error = check_trusted_socket_peer(socket, THIRD, trusted).expect_err("a third user");
        assert!(error.to_string().contains("runs as user 3999999999"), "{error}");
        check_trusted_socket_peer(socket, THIRD, TrustedSocketUsers::new(Some(THIRD)))
            .expect("named");
    }

    #[test]
    fn a_folder_that_others_write_must_be_sticky() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("east.sock");
        let judge = |mode: u32| {
            std::fs::set_permissions(folder.path(), Permissions::from_mode(mode)).expect("ours");
            check_trusted_socket_folder(&socket, TrustedSocketUsers::new(None))
        };
        for good in [0o700, 0o755, 0o1777, 0o1773] {
            judge(good).unwrap_or_else(|error| panic!("{good:o}: {error}"));
        }
        for bad in [0o777, 0o707, 0o703] {
            let error = judge(bad).expect_err("others may write");
            assert!(matches!(error, SocketAccessError::OpenFolder { .. }), "{bad:o}: {error}");
        }
        judge(0o700).expect("mended");
    }

    #[test]
    fn a_folder_above_that_others_write_must_be_sticky() {
        let folder = tempfile::tempdir().expect("a folder");
        let (open, below) = (folder.path().join("open"), folder.path().join("open/own"));
        std::fs::create_dir_all(&below).expect("made");
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&below, &link).expect("made");
        std::fs::set_permissions(&below, Permissions::from_mode(0o700)).expect("ours");
        for (mode, is_good) in [(0o755, true), (0o1777, true), (0o777, false)] {
            std::fs::set_permissions(&open, Permissions::from_mode(mode)).expect("ours");
            for socket in [below.join("east.sock"), link.join("east.sock")] {
                let judged = check_trusted_socket_folder(&socket, TrustedSocketUsers::new(None));
                assert_eq!(judged.is_ok(), is_good, "{mode:o} {}: {judged:?}", socket.display());
            }
        }
    }

    #[test]
    fn a_denied_socket_names_its_user_and_group() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("east.sock");
        std::fs::write(&socket, "").expect("written");
        std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).expect("ours");
        let text = denied_trusted_socket(&socket).to_string();
        let owner = user_account_label(own_user_account());
        let begin = format!("permission denied: socket {}", socket.display());
        assert!(text.starts_with(&begin), "{text}");
        assert!(text.contains(&format!("belongs to user {owner}, group ")), "{text}");
        assert!(text.contains("mode 600"), "{text}");
        // As if the folder could not be entered.
        let text = denied_trusted_socket(&socket.join("below/east.sock")).to_string();
        assert!(text.contains("denied: folder ") && text.contains("east.sock belongs"), "{text}");
    }
}
