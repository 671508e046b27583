//! The lock file beside a gateway's socket: who holds it may make, replace and remove the socket.
//!
//! [`super::gateway_socket`] calls it. The kernel lets go of the lock when the process ends,
//! however it ends. The file also says which socket file its last holder made, so that a socket of
//! another program is never taken for one that a gateway left behind.

use super::error::ListenError;
use crate::access::{own_user_account, user_account_label};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// 10 attempts to lock a socket's lock file, which other processes may remove meanwhile, as
/// gateways do that stop. After the last attempt the gateway fails to listen, and says why.
const LOCK_ATTEMPTS_MAX: usize = 10;
/// 4,096 bytes: the most that is read of a socket's lock file, which has two short lines. Further
/// bytes are ignored.
const LOCK_FILE_BYTES_MAX: u64 = 4096;

/// A held lock on the socket of a path. Dropping it lets go of the lock.
#[derive(Debug)]
pub(super) struct SocketLock {
    file: File,
    path: PathBuf,
}

/// Device and inode of a file: equal for one file, however it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SocketLockFileId {
    device: u64,
    pub inode: u64,
}

impl SocketLockFileId {
    /// Returns the identity of the file at `path` itself, not of one that it links to; `None` if
    /// there is none.
    pub fn at(path: &Path) -> Option<Self> {
        std::fs::symlink_metadata(path).ok().map(|found| Self::of(&found))
    }

    /// Returns the identity of the file with this metadata.
    fn of(found: &std::fs::Metadata) -> Self {
        Self { device: found.dev(), inode: found.ino() }
    }
}

impl SocketLock {
    /// Takes the lock of `socket`. Never waits for another holder.
    ///
    /// # Errors
    /// Another gateway holds it, or the file cannot be made or is not this user's.
    pub fn acquire(socket: &Path) -> Result<Self, ListenError> {
        let made = Self::open(socket, true)?;
        made.ok_or_else(|| ListenError::File {
            path: socket_lock_path(socket),
            source: io::ErrorKind::NotFound.into(),
        })
    }

    /// Takes the lock of `socket` as [`SocketLock::acquire`], if its lock file is there. Makes
    /// none.
    ///
    /// # Errors
    /// The errors of [`SocketLock::acquire`].
    pub fn acquire_existing(socket: &Path) -> Result<Option<Self>, ListenError> {
        Self::open(socket, false)
    }

    /// Opens the lock file of `socket` and locks it; `None` if it is not there and may not be made.
    fn open(socket: &Path, may_make: bool) -> Result<Option<Self>, ListenError> {
        let path = socket_lock_path(socket);
        let at_fault = |source| ListenError::File { path: path.clone(), source };
        for _ in 0..LOCK_ATTEMPTS_MAX {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(may_make).truncate(false).mode(0o600);
            // A pipe without a writer does not block.
            let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed();
            let file = match options.custom_flags(flags).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound && !may_make => {
                    return Ok(None);
                }
                Err(error) if is_no_regular_socket_lock(&error) => {
                    let by = format!("its lock file {} is no regular file", path.display());
                    return Err(ListenError::Taken { socket: socket.to_owned(), by });
                }
                opened => opened.map_err(at_fault)?,
            };
            let found = file.metadata().map_err(at_fault)?;
            let foreign = if !found.is_file() {
                Some("is no regular file".to_owned())
            } else if found.uid() != own_user_account() {
                Some(format!("is one of user {}", user_account_label(found.uid())))
            } else {
                None
            };
            if let Some(what) = foreign {
                let by = format!("its lock file {} {what}", path.display());
                return Err(ListenError::Taken { socket: socket.to_owned(), by });
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let process = read_socket_lock_record(&file, "pid");
                    return Err(ListenError::Held { socket: socket.to_owned(), process });
                }
                Err(TryLockError::Error(source)) => return Err(at_fault(source)),
            }
            if !is_socket_lock_record(&file).map_err(at_fault)? {
                let by = format!(
                    "{}, where its lock file would be, is a file of another program: remove it, or \
                     choose another path",
                    path.display()
                );
                return Err(ListenError::Taken { socket: socket.to_owned(), by });
            }
            let lock = Self { file, path: path.clone() };
            // A holder that stopped may have removed the file after it was opened here.
            if lock.is_in_place() {
                return Ok(Some(lock));
            }
        }
        let source = io::Error::new(io::ErrorKind::Interrupted, "it vanishes again and again");
        Err(at_fault(source))
    }

    /// Returns whether the file that is locked still is the one that others would lock.
    pub fn is_in_place(&self) -> bool {
        let held = self.file.metadata().map(|found| SocketLockFileId::of(&found));
        held.is_ok_and(|held| SocketLockFileId::at(&self.path) == Some(held))
    }

    /// Returns the inode of the socket file that the last holder made; `None` if none is recorded.
    pub fn recorded_inode(&self) -> Option<u64> {
        read_socket_lock_record(&self.file, "inode")
    }

    /// Records this process and the inode of the socket file that it made, for the next holder.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record(&self, inode: u64) -> Result<(), ListenError> {
        let text = format!("pid {}\ninode {inode}\n", std::process::id());
        let write = || {
            let mut file = &self.file;
            file.seek(SeekFrom::Start(0))?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            // The record must outlast the host, as the socket file does.
            file.sync_data()
        };
        write().map_err(|source| ListenError::File { path: self.path.clone(), source })
    }

    /// Removes the lock file if it is still the one that is locked.
    pub fn remove_file(&self) {
        if self.is_in_place() {
            // A file that stays does no harm: nobody holds it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns whether a lock file was not opened because it is a folder, a link or a socket.
fn is_no_regular_socket_lock(error: &io::Error) -> bool {
    let found = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(found, Some(Errno::ISDIR | Errno::LOOP | Errno::NXIO))
}

/// Returns whether a file may be the lock file of a gateway: empty, as a new one is; zeros, as
/// after a power failure; or a record.
///
/// # Errors
/// The file cannot be read.
fn is_socket_lock_record(mut file: &File) -> io::Result<bool> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.take(LOCK_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes.iter().all(|byte| *byte == 0) || bytes.starts_with(b"pid "))
}

/// Returns the path of the lock file of a socket: that of the socket with `.lock` behind it.
pub(super) fn socket_lock_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    path.into()
}

/// Reads the number behind `word` in a lock file; `None` if it has none.
fn read_socket_lock_record<T: std::str::FromStr>(mut file: &File, word: &str) -> Option<T> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.take(LOCK_FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    let numbers = text.lines().filter_map(|line| line.split_once(' '));
    numbers.filter(|(key, _)| *key == word).find_map(|(_, number)| number.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_the_file_tells() {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("east.sock");
        let first = SocketLock::acquire(&socket).expect("free");
        assert_eq!(first.recorded_inode(), None);
        first.record(77).expect("written");
        let error = SocketLock::acquire(&socket).expect_err("held");
        let own = std::process::id();
        assert!(
            matches!(error, ListenError::Held { process: Some(pid), .. } if pid == own),
            "{error}"
        );
        drop(first);
        let second = SocketLock::acquire(&socket).expect("free again");
        assert_eq!(second.recorded_inode(), Some(77));
        std::fs::remove_file(socket_lock_path(&socket)).expect("there");
        assert!(!second.is_in_place());
        let third = SocketLock::acquire(&socket).expect("another file");
        assert!(third.is_in_place());
        second.remove_file();
        assert!(third.is_in_place(), "only one's own file is removed");
    }
}
