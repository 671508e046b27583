//! The judge of files that hold a secret: a gateway's key, a job's token.

use super::account::{own_user_account, user_account_label};
use super::credential_bytes::check_credential_bytes_regular;
use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// 0o077, `rwx` of the group and of others: the permission bits that a secret file must not have. A
/// file with one of these bits is refused, except that its group may read it in two cases.
const FOREIGN_ACCESS_BITS: u32 = 0o077;
/// 0o040, `r--` of the group: the permission bit that a secret file may have in two cases. Its
/// group is the group of the gateway's socket, or the file is root's and this process is not
/// root's.
const GROUP_READ_BIT: u32 = 0o040;

/// Mode and owner of a secret file that only those who may can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SecretFile {
    /// Its permission bits.
    pub mode: u32,
    /// The number of its owner.
    pub owner: u32,
}

impl fmt::Display for SecretFile {
    /// Prints mode and owner, such as `mode 600, owner 1000`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode {:03o}, owner {}", self.mode, self.owner)
    }
}

/// Why a secret file is not used. The operator's fault; nothing was read from it.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// The file cannot be opened.
    #[error("{}: {source}; {}", path.display(), unreadable_secret_file_advice(path, source))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Others than its owner may read or write it.
    #[error(
        "{}: {found}: others may read it; run `chmod {advised:03o} {}`",
        path.display(),
        path.display()
    )]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its mode and owner.
        found: SecretFile,
        /// The mode that it should have.
        advised: u32,
    },
}

/// Checks that a secret file can be opened, and that its mode gives its group and others no access.
///
/// Its group may read it in two cases. Either it is the group `shared`, which the gateway's socket
/// is for. Or the file is root's and this process is not, so that it reads the file by its group
/// alone.
///
/// # Errors
/// [`SecretFileError`] says what to do.
pub fn check_secret_file(path: &Path, shared: Option<u32>) -> Result<SecretFile, SecretFileError> {
    let opened = check_credential_bytes_regular(path)
        .and_then(|()| std::fs::File::open(path))
        .and_then(|file| file.metadata());
    let metadata =
        opened.map_err(|source| SecretFileError::Unreadable { path: path.to_owned(), source })?;
    let found = SecretFile { mode: metadata.mode() & 0o777, owner: metadata.uid() };
    let is_shared = shared == Some(metadata.gid());
    let is_lent_by_root = found.owner == 0 && own_user_account() != 0;
    let granted = if is_shared || is_lent_by_root { GROUP_READ_BIT } else { 0 };
    if found.mode & FOREIGN_ACCESS_BITS & !granted == 0 {
        return Ok(found);
    }
    let advised = 0o600 | (found.mode & granted);
    Err(SecretFileError::Exposed { path: path.to_owned(), found, advised })
}

impl SecretFileError {
    /// Returns what was found wrong with the file as text, without the advice.
    pub fn found(&self) -> String {
        match self {
            Self::Unreadable { source, .. } => source.to_string(),
            Self::Exposed { found, .. } => {
                let SecretFile { mode, owner } = found;
                format!("mode {mode:03o}, owner {}: others may read it", user_account_label(*owner))
            }
        }
    }

    /// Returns the advice that mends the fault: a `chmod` command, or a sentence where the file
    /// cannot be read.
    pub fn advice(&self) -> String {
        match self {
            Self::Unreadable { path, source } => unreadable_secret_file_advice(path, source),
            Self::Exposed { path, advised, .. } => {
                format!("chmod {advised:03o} {}", path.display())
            }
        }
    }
}

/// Returns the advice on a secret file that cannot be opened. Names its owner where this user may
/// look for it.
pub fn unreadable_secret_file_advice(path: &Path, source: &io::Error) -> String {
    if source.kind() != io::ErrorKind::PermissionDenied {
        return "make it with `landbridge certs`, or copy it from the host that did".to_owned();
    }
    match std::fs::metadata(path) {
        Ok(found) => {
            let owner = user_account_label(found.uid());
            format!("run as its owner, {owner}, or let a group read it")
        }
        Err(_) => "run as its owner, or let a group read it".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_owner_and_the_shared_group_may_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "x").expect("written");
        let group = std::fs::metadata(&path).expect("there").gid();
        let is_good = |mode: u32, shared: Option<u32>| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).expect("ours");
            check_secret_file(&path, shared).is_ok()
        };
        assert!(is_good(0o600, None) && is_good(0o400, None) && is_good(0o640, Some(group)));
        for mode in [0o644, 0o640, 0o604, 0o620, 0o660] {
            assert!(!is_good(mode, None), "{mode:o}");
        }
        for mode in [0o644, 0o660, 0o641] {
            assert!(!is_good(mode, Some(group)), "{mode:o}");
        }
        assert!(!is_good(0o640, Some(group + 1)));
    }

    #[test]
    fn a_faulty_secret_file_says_how_to_mend_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("own.key");
        let missing = check_secret_file(&path, None).expect_err("not there");
        assert!(missing.to_string().contains("landbridge certs"), "{missing}");
        std::fs::write(&path, "x").expect("written");
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("ours");
        let exposed = check_secret_file(&path, None).expect_err("readable by all").to_string();
        assert!(exposed.contains("own.key: mode 644"), "{exposed}");
        assert!(exposed.contains("run `chmod 600 "), "{exposed}");
    }
}
