//! The folder in which a lab in the background keeps its lock, status and report.

use rustix::event::Timespec;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder below /run in which a lab keeps its files; the full path of the lab file names it.
pub(super) struct LabHome {
    folder: PathBuf,
    prefix: String,
}

/// The lock of a lab that is up or comes up. The system releases it however the lab ends.
pub(super) struct LabHomeLock {
    file: File,
    /// Whether the parent process waits for this one and reads its files.
    pub(super) inherited: bool,
}

impl LabHomeLock {
    /// Duplicates the file of the lock, for a process that is to hold the lock as its standard
    /// input.
    pub(super) fn duplicate(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Makes the lock this process's standard input, so that every command it starts holds the lock
    /// too, even one that outlives the lab.
    pub(super) fn become_stdin(&self) -> io::Result<()> {
        Ok(rustix::stdio::dup2_stdin(&self.file)?)
    }
}

/// Sends a signal to the process of a lab; no error when the process is gone.
fn signal_lab_of_home(pid: Pid, signal: Signal) -> io::Result<()> {
    match kill_process(pid, signal) {
        Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

impl LabHome {
    /// Returns folder and namespace prefix of a lab, both named by a hash of the lab file's full
    /// path.
    pub(super) fn of_lab_file(file: &Path) -> io::Result<Self> {
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

    /// Returns the prefix of the names of the lab's namespaces; the name of the site follows.
    pub(super) fn namespace_prefix(&self) -> &str {
        &self.prefix
    }

    /// Makes the folder and takes the lock of the lab; `None` when the lab is up.
    pub(super) fn try_lock(&self) -> io::Result<Option<LabHomeLock>> {
        loop {
            fs::create_dir_all(&self.folder)?;
            let options = File::options().create(true).write(true).truncate(false).to_owned();
            let inherited = self.inherited_lock();
            let by_another = inherited.is_some();
            let file = match inherited {
                Some(file) => file,
                None => match options.open(self.lock_path()) {
                    Ok(file) => file,
                    // The process that held the lock has removed the folder.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(error),
                },
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            // A lock on a file that was removed meanwhile keeps no other process out.
            if self.is_lock_file(&file) {
                fs::write(self.folder.join("pid"), std::process::id().to_string())?;
                return Ok(Some(LabHomeLock { file, inherited: by_another }));
            }
        }
    }

    /// Returns the lock that the parent process handed over as standard input; `None` without one.
    fn inherited_lock(&self) -> Option<File> {
        let file = File::from(rustix::stdio::stdin().try_clone_to_owned().ok()?);
        self.is_lock_file(&file).then_some(file)
    }

    /// Returns whether `file` is the lock file that the folder has now, by device and inode.
    fn is_lock_file(&self, file: &File) -> bool {
        let identity = |file: Metadata| (file.dev(), file.ino());
        let there = fs::metadata(self.lock_path()).map(identity).ok();
        there.is_some() && file.metadata().map(identity).ok() == there
    }

    /// Returns the path of the lock file.
    fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Returns whether a process holds the lock, which means that the lab is up or comes up.
    pub(super) fn is_up(&self) -> bool {
        let Ok(file) = File::open(self.lock_path()) else {
            return false;
        };
        flock(&file, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Ends the lab by SIGTERM and waits for its end. A lab that does not end in ten seconds is
    /// killed.
    pub(super) fn end_lab(&self) -> io::Result<()> {
        let pid = fs::read_to_string(self.folder.join("pid"))?;
        let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the lab's pid file holds no number"))?;
        signal_lab_of_home(pid, Signal::TERM)?;
        for _ in 0..LAB_END_CHECKS_MAX {
            if !self.is_up() {
                return Ok(());
            }
            rustix::event::poll(&mut [], Some(&LAB_END_CHECK_INTERVAL))?;
        }
        signal_lab_of_home(pid, Signal::KILL)?;
        let file = File::open(self.lock_path())?;
        flock(&file, FlockOperation::LockShared)?;
        Ok(())
    }

    /// Reads the last status of the lab, as JSON.
    pub(super) fn read_status(&self) -> io::Result<String> {
        fs::read_to_string(self.folder.join("status.json"))
    }

    /// Reads the last status of the lab, as JSON; `None` when the lab left none.
    pub(super) fn read_status_if_any(&self) -> io::Result<Option<String>> {
        match self.read_status() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            status => status.map(Some),
        }
    }

    /// Replaces the status file in one step, so that readers never see a part of the text.
    pub(super) fn write_status(&self, status: &str) -> io::Result<()> {
        let new = self.folder.join("status.new");
        fs::write(&new, status)?;
        fs::rename(new, self.folder.join("status.json"))
    }

    /// Reads the lab's last report and errors; empty when the lab was killed.
    pub(super) fn read_report(&self) -> String {
        fs::read_to_string(self.report_path()).unwrap_or_default()
    }

    /// Returns the path of the report file.
    fn report_path(&self) -> PathBuf {
        self.folder.join("report")
    }

    /// Makes the file for the errors of a lab that this process starts, until the lab is up.
    pub(super) fn create_startup_output(&self) -> io::Result<LabHomeStartupOutput> {
        let path = self.folder.join(format!("starting-{}", std::process::id()));
        Ok(LabHomeStartupOutput { file: File::create(&path)?, path, report: self.report_path() })
    }

    /// Removes the folder of the lab; the caller holds the lock.
    pub(super) fn remove_folder(&self) {
        // What is not there need not go.
        let _ = fs::remove_dir_all(&self.folder);
        // Goes only when no other lab is there.
        let _ = fs::remove_dir("/run/wan-sim");
    }
}

/// The output of a lab while it comes up.
pub(super) struct LabHomeStartupOutput {
    pub(super) file: File,
    path: PathBuf,
    report: PathBuf,
}

impl LabHomeStartupOutput {
    /// Makes the file the report of the lab, which is up: further output goes there.
    pub(super) fn keep_as_report(self) -> io::Result<()> {
        fs::rename(self.path, self.report)
    }

    /// Removes the file and returns the error text that the lab wrote.
    pub(super) fn into_error_text(self) -> String {
        let said = fs::read_to_string(&self.path).unwrap_or_default();
        // What is not there need not go.
        let _ = fs::remove_file(self.path);
        said
    }
}

/// 10 ms: the interval at which `lab down` checks whether the lab's process has ended after
/// SIGTERM. The time is chosen; nobody notices so short a wait.
const LAB_END_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// 1,000 checks at an interval of 10 ms, hence ten seconds: the longest wait for a lab's process to
/// end after SIGTERM. Then the process is killed. The time is chosen.
const LAB_END_CHECKS_MAX: u32 = 1000;
/// 0x811c9dc5: the start value (offset basis) of the 32-bit FNV-1a hash, as its authors define it.
/// The hash of a lab file's path names the lab's folder.
const FNV_OFFSET: u32 = 0x811c_9dc5;
/// 0x01000193: the factor (prime) of the 32-bit FNV-1a hash, as its authors define it. The hash of
/// a lab file's path names the lab's folder.
const FNV_PRIME: u32 = 0x0100_0193;
