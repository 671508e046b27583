//! Where a lab in the background keeps its lock, status and report.

use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// The lab's folder below /run; known by its file's full path.
pub(super) struct Home {
    folder: PathBuf,
    prefix: String,
}

/// Held while a lab is up; the system lets go of it however the lab ends.
pub(super) struct UpLock(#[expect(dead_code, reason = "held, never read")] File);

impl Home {
    pub(super) fn of(file: &Path) -> io::Result<Self> {
        let path = file.canonicalize()?;
        let hash = path
            .as_os_str()
            .as_encoded_bytes()
            .iter()
            .fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(FNV_PRIME));
        Ok(Self {
            folder: PathBuf::from(format!("/run/wan-sim/{hash:08x}")),
            prefix: format!("wansim-{hash:08x}-"),
        })
    }

    /// What the lab's namespaces are called before their site's name.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes the folder and holds the lock; `None` when the lab is up.
    pub(super) fn lock(&self) -> io::Result<Option<UpLock>> {
        fs::create_dir_all(&self.folder)?;
        let options = File::options().create(true).write(true).truncate(false).to_owned();
        let file = options.open(self.folder.join("lock"))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        fs::write(self.folder.join("pid"), std::process::id().to_string())?;
        Ok(Some(UpLock(file)))
    }

    pub(super) fn is_up(&self) -> bool {
        let Ok(file) = File::open(self.folder.join("lock")) else {
            return false;
        };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Ends the lab and waits until it has.
    pub(super) fn end(&self) -> io::Result<()> {
        let pid = fs::read_to_string(self.folder.join("pid"))?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the lab's pid file holds no number"))?;
        kill_process(pid, Signal::TERM)?;
        let file = File::open(self.folder.join("lock"))?;
        flock(&file, FlockOperation::LockShared)?;
        Ok(())
    }

    pub(super) fn status(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join("status.json"))
    }

    /// Replaces the status in one step, for whoever reads meanwhile.
    pub(super) fn write_status(&self, status: &str) -> io::Result<()> {
        let new = self.folder.join("status.new");
        fs::write(&new, status)?;
        fs::rename(new, self.folder.join("status.json"))
    }

    /// What the lab said at its end, and what went wrong; empty when it was killed.
    pub(super) fn report(&self) -> String {
        fs::read_to_string(self.report_path()).unwrap_or_default()
    }

    pub(super) fn report_path(&self) -> PathBuf {
        self.folder.join("report")
    }

    pub(super) fn remove(&self) {
        // What is not there need not go.
        let _ = fs::remove_dir_all(&self.folder);
        // Goes only when no other lab is there.
        let _ = fs::remove_dir("/run/wan-sim");
    }
}

const FNV_OFFSET: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;
