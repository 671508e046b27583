//! The folder in which a lab in the background keeps its lock, status and report.

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The lab's folder below /run; known by its file's full path.
pub(super) struct Home {
    folder: PathBuf,
    prefix: String,
}

/// The lock of a lab that is up or comes up. The system releases it however the lab ends.
pub(super) struct UpLock {
    file: File,
    /// Whether the parent process waits for this one and reads its files.
    pub(super) inherited: bool,
}

impl UpLock {
    /// For a process that is to hold it, too, as its standard input.
    pub(super) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Passes the lock to every command that this process starts. A command that outlives the lab
    /// holds it.
    pub(super) fn become_stdin(&self) -> io::Result<()> {
        Ok(rustix::stdio::dup2_stdin(&self.file)?)
    }
}

/// Signals a lab, which may have been killed while a command that it started still runs.
fn signal(pid: Pid, signal: Signal) -> io::Result<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl Home {
    pub(super) fn of(file: &Path) -> io::Result<Self> {
        // A lab outlives its file, and its file's folder.
        let path = file.canonicalize().or_else(|error| {
            let name = file.file_name().ok_or(error)?;
            let folder = file.parent().filter(|folder| *folder != Path::new(""));
            let folder = folder.unwrap_or(Path::new("."));
            let folder = folder.canonicalize().or_else(|_| std::path::absolute(folder))?;
            io::Result::Ok(folder.join(name))
        })?;
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

    /// The prefix of the lab's namespaces, which the site's name follows.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes the folder and holds the lock; `None` when the lab is up.
    pub(super) fn lock(&self) -> io::Result<Option<UpLock>> {
        loop {
            fs::create_dir_all(&self.folder)?;
            let options = File::options().create(true).write(true).truncate(false).to_owned();
            let inherited = self.inherited();
            let by_another = inherited.is_some();
            let file = match inherited {
                Some(file) => file,
                None => match options.open(self.lock_path()) {
                    Ok(file) => file,
                    // Somebody who held the lock removed the folder.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // A lock on a file that was removed meanwhile keeps nobody out.
            if self.is_lock(&file) {
                fs::write(self.folder.join("pid"), std::process::id().to_string())?;
                return Ok(Some(UpLock { file, inherited: by_another }));
            }
        }
    }

    /// The lock of the parent process, handed over as standard input.
    fn inherited(&self) -> Option<File> {
        let file = File::from(rustix::stdio::stdin().try_clone_to_owned().ok()?);
        self.is_lock(&file).then_some(file)
    }

    fn is_lock(&self, file: &File) -> bool {
        let identity = |file: Metadata| (file.dev(), file.ino());
        let there = fs::metadata(self.lock_path()).map(identity).ok();
        there.is_some() && file.metadata().map(identity).ok() == there
    }

    fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    pub(super) fn is_up(&self) -> bool {
        let Ok(file) = File::open(self.lock_path()) else {
            return false;
        };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Ends the lab and waits for its end. A lab that does not end by itself is killed.
    pub(super) fn end(&self) -> io::Result<()> {
        let pid = fs::read_to_string(self.folder.join("pid"))?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the lab's pid file holds no number"))?;
        signal(pid, Signal::TERM)?;
        for _ in 0..END_CHECKS_MAX {
            if !self.is_up() {
                return Ok(());
            }
            rustix::event::poll(&mut [], Some(&END_CHECKED_EVERY))?;
        }
        signal(pid, Signal::KILL)?;
        let file = File::open(self.lock_path())?;
        flock(&file, FlockOperation::LockShared)?;
        Ok(())
    }

    pub(super) fn status(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join("status.json"))
    }

    pub(super) fn status_if_any(&self) -> io::Result<Option<String>> {
        match self.status() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            status => status.map(Some),
        }
    }

    /// Replaces the status in one step, so that readers never see half of it.
    pub(super) fn write_status(&self, status: &str) -> io::Result<()> {
        let new = self.folder.join("status.new");
        fs::write(&new, status)?;
        fs::rename(new, self.folder.join("status.json"))
    }

    /// The lab's last report and errors; empty when it was killed.
    pub(super) fn report(&self) -> String {
        fs::read_to_string(self.report_path()).unwrap_or_default()
    }

    fn report_path(&self) -> PathBuf {
        self.folder.join("report")
    }

    /// Files for the output of a lab that this process starts, until it is up.
    pub(super) fn starting(&self) -> io::Result<Starting> {
        let path = self.folder.join(format!("starting-{}", std::process::id()));
        Ok(Starting { file: File::create(&path)?, path, report: self.report_path() })
    }

    /// Only for who holds the lock.
    pub(super) fn remove(&self) {
        // What is not there need not go.
        let _ = fs::remove_dir_all(&self.folder);
        // Goes only when no other lab is there.
        let _ = fs::remove_dir("/run/wan-sim");
    }
}

/// The output of a lab while it comes up.
pub(super) struct Starting {
    pub(super) file: File,
    path: PathBuf,
    report: PathBuf,
}

impl Starting {
    /// Notes that the lab is up: further output is its report.
    pub(super) fn succeeded(self) -> io::Result<()> {
        fs::rename(self.path, self.report)
    }

    /// The error text that the lab wrote.
    pub(super) fn failed(self) -> String {
        let said = fs::read_to_string(&self.path).unwrap_or_default();
        // What is not there need not go.
        let _ = fs::remove_file(self.path);
        said
    }
}

/// 10 ms between checks for the lab's end.
const END_CHECKED_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// 1000 checks, hence ten seconds, before the lab is killed.
const END_CHECKS_MAX: u32 = 1000;
/// The offset basis of 32-bit FNV-1a.
const FNV_OFFSET: u32 = 0x811c_9dc5;
/// The prime of 32-bit FNV-1a.
const FNV_PRIME: u32 = 0x0100_0193;
