//! The socket file of a gateway: made atomically, looked after, and removed if it is still its own.

use super::error::ListenError;
use super::socket_lock::{SocketLock, SocketLockFileId};
use crate::access::{
    SOCKET_PATH_BYTES_MAX, TrustedSocketUsers, check_trusted_socket_folder, own_user_account,
    trusted_socket_folder, user_account_label,
};
use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// 1,024 connections: the most that wait in the kernel until the gateway accepts them, as for
/// tokio's own listeners. A client beyond them has to try again.
const BACKLOG: i32 = 1024;

/// The users whose processes may connect to a gateway's socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GatewaySocketMode {
    /// The gateway's user and root.
    User,
    /// Members of the socket's group as well.
    Group,
    /// Every user of the host.
    All,
}

impl GatewaySocketMode {
    /// Returns the permission bits of the socket.
    fn of_socket(self) -> u32 {
        match self {
            Self::User => 0o600,
            Self::Group => 0o660,
            Self::All => 0o666,
        }
    }

    /// Returns the permission bits of a folder that is made for the socket.
    fn of_folder(self) -> u32 {
        match self {
            Self::User => 0o700,
            Self::Group => 0o750,
            Self::All => 0o755,
        }
    }
}

/// The settings of a gateway's socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySocketSpec {
    /// Its path.
    pub path: PathBuf,
    /// The group to which the socket belongs; without it, that of the process.
    pub group: Option<u32>,
    /// The users who may connect.
    pub mode: GatewaySocketMode,
}

impl GatewaySocketSpec {
    /// Makes the settings of a socket. Without `mode`, members of `group` may connect if there is
    /// one, else the gateway's user and root alone.
    pub fn new(path: PathBuf, group: Option<u32>, mode: Option<GatewaySocketMode>) -> Self {
        let default =
            if group.is_some() { GatewaySocketMode::Group } else { GatewaySocketMode::User };
        Self { path, group, mode: mode.unwrap_or(default) }
    }
}

/// Outcome of [`GatewaySocket::restore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketFile {
    /// The socket file is where it was made.
    InPlace,
    /// The socket file was gone, and is there again.
    MadeAgain,
}

/// A listening socket, its file and the lock on both.
pub(super) struct GatewaySocket {
    spec: GatewaySocketSpec,
    lock: SocketLock,
    file: SocketLockFileId,
    pub listener: UnixListener,
}

impl GatewaySocket {
    /// Listens at the path. A socket file that a gateway has left is replaced; whatever else is
    /// there is left alone. Call it within a runtime.
    ///
    /// # Errors
    /// [`ListenError`]: nothing was changed, but for the folder and the lock file.
    pub fn open(spec: GatewaySocketSpec) -> Result<Self, ListenError> {
        make_gateway_socket_folder(&spec)?;
        check_trusted_socket_folder(&spec.path, TrustedSocketUsers::new(None))?;
        let lock = SocketLock::acquire(&spec.path)?;
        let (file, listener) = make_gateway_socket(&spec, &lock)?;
        Ok(Self { spec, lock, file, listener })
    }

    /// Makes socket file and lock file again where they were deleted. Attached trainers do not
    /// notice it. Call it within a runtime.
    ///
    /// # Errors
    /// [`ListenError`]: trainers cannot attach meanwhile.
    pub fn restore(&mut self) -> Result<SocketFile, ListenError> {
        let is_there = SocketLockFileId::at(&self.spec.path) == Some(self.file);
        if is_there && self.lock.is_in_place() {
            return Ok(SocketFile::InPlace);
        }
        make_gateway_socket_folder(&self.spec)?;
        check_trusted_socket_folder(&self.spec.path, TrustedSocketUsers::new(None))?;
        if !self.lock.is_in_place() {
            let lock = SocketLock::acquire(&self.spec.path)?;
            lock.record(self.file.inode)?;
            self.lock = lock;
        }
        if is_there {
            return Ok(SocketFile::InPlace);
        }
        (self.file, self.listener) = make_gateway_socket(&self.spec, &self.lock)?;
        Ok(SocketFile::MadeAgain)
    }

    /// Returns the path at which the socket listens.
    pub fn path(&self) -> &Path {
        &self.spec.path
    }
}

impl Drop for GatewaySocket {
    /// Removes socket file and lock file where they are still this gateway's own. The socket file
    /// proves that by itself, so a lock file that somebody removed leaves no socket behind.
    fn drop(&mut self) {
        if SocketLockFileId::at(&self.spec.path) == Some(self.file) {
            // A file that stays is one that a gateway has left: the next one replaces it.
            let _ = std::fs::remove_file(&self.spec.path);
        }
        self.lock.remove_file();
    }
}

/// Makes the folder of a socket if it is not there: for the gateway's user alone, or for its group
/// or everybody to enter.
fn make_gateway_socket_folder(spec: &GatewaySocketSpec) -> Result<(), ListenError> {
    let folder = trusted_socket_folder(&spec.path);
    if folder.is_dir() {
        return check_gateway_socket_folder_mode(spec);
    }
    let at_fault = |source| ListenError::File { path: folder.to_owned(), source };
    let is_there = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    if let Some(above) = folder.parent().filter(|above| !above.as_os_str().is_empty()) {
        match DirBuilder::new().recursive(true).mode(0o755).create(above) {
            Err(error) if is_there(&error) => check_gateway_socket_folder(above)?,
            made => made.map_err(at_fault)?,
        }
    }
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if is_there(&error) => return check_gateway_socket_folder(folder),
        made => made.map_err(at_fault)?,
    }
    if let Some(group) = spec.group {
        give_gateway_socket_to_group(folder, group)?;
    }
    let mode = Permissions::from_mode(spec.mode.of_folder());
    std::fs::set_permissions(folder, mode).map_err(at_fault)
}

/// Checks that the folder of a socket, if there is one, lets in the users whom the socket lets in.
///
/// # Errors
/// [`ListenError::ShutFolder`]: its permission bits let nobody else enter. Those of the group also
/// stand for users whom an access control list names.
pub fn check_gateway_socket_folder_mode(spec: &GatewaySocketSpec) -> Result<(), ListenError> {
    let folder = trusted_socket_folder(&spec.path);
    let needed = match spec.mode {
        GatewaySocketMode::User => return Ok(()),
        GatewaySocketMode::Group => 0o011,
        GatewaySocketMode::All => 0o001,
    };
    let Ok(found) = std::fs::metadata(folder) else { return Ok(()) };
    let mode = found.permissions().mode() & 0o7777;
    if mode & needed != 0 {
        return Ok(());
    }
    Err(ListenError::ShutFolder { folder: folder.to_owned(), mode })
}

/// Checks that the folder of a socket exists, and that it is a folder or a link to one.
///
/// # Errors
/// [`ListenError::File`], with the folder as its path.
fn check_gateway_socket_folder(folder: &Path) -> Result<(), ListenError> {
    let refused = match std::fs::metadata(folder) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => Errno::NOTDIR.into(),
        Err(source) => source,
    };
    Err(ListenError::File { path: folder.to_owned(), source: refused })
}

/// Makes `group` the group of a file or folder of this user, so that its members may use it.
fn give_gateway_socket_to_group(path: &Path, group: u32) -> Result<(), ListenError> {
    chown(path, None, Some(group)).map_err(|source| ListenError::Group {
        path: path.to_owned(),
        group,
        source,
    })
}

/// Makes a listening socket and its file, and records the file in the lock.
fn make_gateway_socket(
    spec: &GatewaySocketSpec,
    lock: &SocketLock,
) -> Result<(SocketLockFileId, UnixListener), ListenError> {
    remove_stale_gateway_socket(&spec.path, lock)?;
    let temporary = temporary_gateway_socket_path(&spec.path);
    // The holder of the lock may remove the socket that an earlier one left half made.
    let remove_temporary = || {
        let found = std::fs::symlink_metadata(&temporary);
        let is_own = found
            .is_ok_and(|found| found.file_type().is_socket() && found.uid() == own_user_account());
        if temporary != spec.path && is_own {
            let _ = std::fs::remove_file(&temporary);
        }
    };
    remove_temporary();
    let made = bind_gateway_socket(spec, lock, &temporary);
    if made.is_err() {
        remove_temporary();
    }
    let (file, socket) = made?;
    let listener = std::os::unix::net::UnixListener::from(socket);
    let listener = UnixListener::from_std(listener)
        .map_err(|source| ListenError::File { path: spec.path.clone(), source })?;
    Ok((file, listener))
}

/// Returns the name under which a socket is made before it gets its own; its own where the other
/// would be too long.
fn temporary_gateway_socket_path(socket: &Path) -> PathBuf {
    let name = socket.file_name().unwrap_or_default().to_string_lossy();
    let temporary = socket.with_file_name(format!(".{name}.new"));
    let fits = temporary.as_os_str().len() <= SOCKET_PATH_BYTES_MAX;
    if fits { temporary } else { socket.to_owned() }
}

/// Binds a socket at `temporary` with the mode and group that it shall have, makes it listen, and
/// only then gives the file its name. So a program that finds the file can connect, unless mode and
/// group forbid it.
fn bind_gateway_socket(
    spec: &GatewaySocketSpec,
    lock: &SocketLock,
    temporary: &Path,
) -> Result<(SocketLockFileId, OwnedFd), ListenError> {
    let refused = |error: Errno| match error {
        Errno::EXIST | Errno::ADDRINUSE => ListenError::Taken {
            socket: spec.path.clone(),
            by: format!("a file appeared there just now, or is at {}", temporary.display()),
        },
        error => ListenError::File { path: spec.path.clone(), source: error.into() },
    };
    let socket = new_gateway_stream_socket().map_err(refused)?;
    let address = SocketAddrUnix::new(temporary).map_err(refused)?;
    rustix::net::bind(&socket, &address).map_err(refused)?;
    if let Some(group) = spec.group {
        give_gateway_socket_to_group(temporary, group)?;
    }
    std::fs::set_permissions(temporary, Permissions::from_mode(spec.mode.of_socket()))
        .map_err(|source| ListenError::File { path: temporary.to_owned(), source })?;
    let file = SocketLockFileId::at(temporary).ok_or(Errno::NOENT).map_err(refused)?;
    // Recorded before anybody can see the file: a gateway that is killed leaves none unknown.
    lock.record(file.inode)?;
    rustix::net::listen(&socket, BACKLOG).map_err(refused)?;
    if temporary != spec.path {
        rename_gateway_socket_if_free(temporary, &spec.path).map_err(refused)?;
    }
    Ok((file, socket))
}

/// Renames the file of a socket; fails where the new path is taken.
fn rename_gateway_socket_if_free(from: &Path, to: &Path) -> rustix::io::Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // This file system cannot refuse: the path was free a moment ago.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::renameat(CWD, from, CWD, to),
        renamed => renamed,
    }
}

/// Makes an unbound stream socket that never blocks.
fn new_gateway_stream_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Checks that no file at `path` or beside it keeps a gateway of this user from listening there,
/// and changes nothing.
///
/// # Errors
/// [`ListenError::Held`]: a gateway listens there. Any other: a start would fail with it.
pub fn check_gateway_socket_path(path: &Path) -> Result<(), ListenError> {
    let folder = trusted_socket_folder(path);
    // A start makes a folder that is not there.
    let is_missing = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
    if !std::fs::symlink_metadata(folder).is_err_and(is_missing) {
        check_gateway_socket_folder(folder)?;
    }
    let lock = SocketLock::acquire_existing(path)?;
    let recorded = lock.as_ref().and_then(SocketLock::recorded_inode);
    judge_gateway_socket_file(path, recorded).map(|_| ())
}

/// A path at which a gateway may make its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocketPath {
    /// Nothing is there.
    Free,
    /// A gateway of this user has left its socket there.
    Stale,
}

/// Removes the socket file at `path` if a gateway of this user has left it, which takes three
/// proofs: this process holds the lock, nothing listens, and the lock file names that very file.
///
/// # Errors
/// [`ListenError::Taken`]: another file is there.
fn remove_stale_gateway_socket(path: &Path, lock: &SocketLock) -> Result<(), ListenError> {
    match judge_gateway_socket_file(path, lock.recorded_inode())? {
        SocketPath::Free => Ok(()),
        SocketPath::Stale => std::fs::remove_file(path)
            .map_err(|source| ListenError::File { path: path.to_owned(), source }),
    }
}

/// Judges the file at the path of a socket; `recorded` is the inode in the lock file.
///
/// # Errors
/// [`ListenError::Taken`]: a file is there that no gateway of this user has left.
fn judge_gateway_socket_file(
    path: &Path,
    recorded: Option<u64>,
) -> Result<SocketPath, ListenError> {
    let at_fault = |source| ListenError::File { path: path.to_owned(), source };
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(SocketPath::Free),
        found => found.map_err(at_fault)?,
    };
    let by = if !found.file_type().is_socket() {
        "a file is there that is no socket: remove it, or choose another path".to_owned()
    } else if found.uid() != own_user_account() {
        format!("a socket of user {} is there", user_account_label(found.uid()))
    } else {
        match connect_gateway_socket_without_waiting(path) {
            Err(Errno::CONNREFUSED) if recorded == Some(found.ino()) => {
                return Ok(SocketPath::Stale);
            }
            Err(Errno::CONNREFUSED) => format!(
                "a socket is there at which nothing listens, but no lock file says that a gateway \
                 left it: if no program uses it, run `rm {}`",
                path.display()
            ),
            Err(Errno::NOENT) => return Ok(SocketPath::Free),
            Ok(()) | Err(Errno::AGAIN) => {
                "another program listens there: stop it, or choose another path".to_owned()
            }
            Err(error) => format!("a socket of another program is there ({error})"),
        }
    };
    Err(ListenError::Taken { socket: path.to_owned(), by })
}

/// Connects to a socket and hangs up. A listener whose backlog is full gives `EAGAIN`.
fn connect_gateway_socket_without_waiting(path: &Path) -> rustix::io::Result<()> {
    let socket = new_gateway_stream_socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)
}
