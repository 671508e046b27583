//! Dumps that a gateway writes by itself when a collective fails, for `landbridge explain` afterwards.
//!
//! A task beside the status server waits for failures and asks the engine for the dump. A thread of its own
//! writes the file, so that a slow or full disk delays nobody. Dumps are at least [`DUMP_INTERVAL`] apart;
//! the queue between both has one dump.

use crate::cli::output::logging::LOG_TARGET;
use crate::explain::dump::Dump;
use gateway::config::GatewayConfig;
use gateway::host::{Host, RealHost};
use gateway::limits::thread_limits::spawn_thread_within_limits;
use gateway::observe::http_server::AnswerSources;
use gateway::observe::versioned::Versioned;
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};
use hier_collectives::topology::Fabric;
use std::convert::Infallible;
use std::fs::{self, DirBuilder, OpenOptions};
use std::future;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;
use tracing::info;
use units::ByteCount;

/// 60 s: the least time between two dumps that a gateway writes by itself. Failures in between share the
/// dump at its end. The time is chosen: trainers that fail again and again fill no disk.
const DUMP_INTERVAL: Duration = Duration::from_secs(60);

/// 32 files: the most dumps of a gateway in its folder. One more replaces the oldest. The number is chosen.
/// Tested by `old_dumps_make_room_for_new_ones`.
const DUMP_FILES_MAX: usize = 32;

/// 64 MiB: the most bytes of a gateway's dumps in its folder. The oldest are removed, and a longer dump is
/// not written. The number is chosen, far above a dump of 1,000 groups.
/// Tested by `old_dumps_make_room_for_new_ones`.
const DUMP_BYTES_MAX: u64 = 64 << 20;

/// Writes a dump into the gateway's folder of dumps when a collective fails. Does nothing where the region
/// file names no folder.
pub(super) async fn write_failure_dumps(
    config: &GatewayConfig,
    fabric: Arc<Fabric>,
    sources: AnswerSources,
) -> Infallible {
    let Some(folder) = config.dumps.clone() else { return future::pending().await };
    let (dumps, written) = mpsc::sync_channel::<Dump>(1);
    let (gateway, warnings) = (config.name.clone(), sources.metrics.warnings.clone());
    let folder = FailureDumpFolder { folder, gateway };
    let body = move || write_dumps_of_failures(&written, &folder, &warnings);
    if let Err(error) = spawn_thread_within_limits("dumps", body) {
        tracing::warn!(target: LOG_TARGET, "failures are not dumped: {error}");
        return future::pending().await;
    }
    loop {
        sources.metrics.failures.wait_for_failure().await;
        if let Ok(report) = sources.request_dump().await {
            // A disk that has not taken the last dump takes no other.
            let _ = dumps.try_send(Dump::of_gateway(&fabric, config.id, report));
        }
        tokio::time::sleep(DUMP_INTERVAL).await;
    }
}

/// Writes dumps as they come, until nobody sends any more.
fn write_dumps_of_failures(
    dumps: &Receiver<Dump>,
    folder: &FailureDumpFolder,
    warnings: &Warnings,
) {
    while let Ok(dump) = dumps.recv() {
        let text = Versioned::new(&dump).to_json() + "\n";
        match folder.write(&text, dump.taken_unix_seconds as u64) {
            Ok(path) => info!(
                target: LOG_TARGET,
                "a collective failed: `landbridge explain {}` names the party at fault",
                path.display()
            ),
            Err(error) => warn_if_due!(
                warnings.is_due(WarningCause::Limit, "dumps", RealHost.now()),
                target: LOG_TARGET,
                "a collective failed, and its dump cannot be written into {}: {error}",
                folder.folder.display()
            ),
        }
    }
}

/// The folder of a gateway's dumps, in which other gateways may have theirs.
struct FailureDumpFolder {
    folder: PathBuf,
    gateway: String,
}

impl FailureDumpFolder {
    /// Writes a dump of this second since 1970, for the gateway's user alone. Removes the oldest dumps of
    /// the gateway before, and makes the folder if it is missing.
    fn write(&self, text: &str, unix_second: u64) -> io::Result<PathBuf> {
        let (bytes, size) = (text.len() as u64, |bytes| ByteCount::new(bytes).rounded());
        if bytes > DUMP_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it has {}, and {} are the most", size(bytes), size(DUMP_BYTES_MAX)),
            ));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.make_room(bytes)?;
        let unfinished = self.folder.join(format!(".{}.unfinished", self.gateway));
        let path = self.folder.join(format!("{}-{unix_second}.json", self.gateway));
        let written = self.write_whole(&unfinished, text).and_then(|()| {
            // Readers see whole files alone.
            fs::rename(&unfinished, &path)
        });
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        written.map(|()| path)
    }

    /// Writes a new file, which follows no link that somebody left there.
    fn write_whole(&self, path: &Path, text: &str) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(text.as_bytes())
    }

    /// Removes the oldest dumps of the gateway until one more of `bytes` bytes fits.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        let mut dumps = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            // An operator may take files away, or leave a folder of that name.
            let file = entry.metadata().ok().filter(|metadata| metadata.is_file());
            if let (Some(second), Some(file)) =
                (name.to_str().and_then(|name| self.second_of(name)), file)
            {
                dumps.push((second, file.len(), entry.path()));
            }
        }
        dumps.sort();
        let mut total = bytes + dumps.iter().map(|(_, bytes, _)| bytes).sum::<u64>();
        for (index, (_, bytes, path)) in dumps.iter().enumerate() {
            if dumps.len() - index < DUMP_FILES_MAX && total <= DUMP_BYTES_MAX {
                break;
            }
            fs::remove_file(path)?;
            total -= bytes;
        }
        Ok(())
    }

    /// Returns the second in the name of a dump of this gateway; `None` for any other file.
    fn second_of(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(&*self.gateway)?.strip_prefix('-')?.strip_suffix(".json")?;
        rest.bytes().all(|byte| byte.is_ascii_digit()).then(|| rest.parse().ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Returns the names in a folder, sorted.
    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).expect("a folder");
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("read").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).into_string().expect("text")).collect();
        names.sort();
        names
    }

    /// Returns a folder of dumps of gateway `east-0` that is not made yet, and the one around it.
    fn dumps() -> (FailureDumpFolder, tempfile::TempDir) {
        let around = tempfile::tempdir().expect("a folder");
        let folder = around.path().join("new/dumps");
        (FailureDumpFolder { folder, gateway: "east-0".to_owned() }, around)
    }

    #[test]
    fn a_dump_is_for_the_gateways_user_alone() {
        let (dumps, _around) = dumps();
        let path = dumps.write("{}\n", 1_700_000_000).expect("written");
        assert_eq!(path, dumps.folder.join("east-0-1700000000.json"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "{}\n");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&dumps.folder)), (0o600, 0o700));
    }

    #[test]
    fn old_dumps_make_room_for_new_ones() {
        let (dumps, _around) = dumps();
        dumps.write("{}", 1).expect("written");
        for other in ["west-0-1.json", "east-0-x.json", "east-0-1.json.gz"] {
            fs::write(dumps.folder.join(other), "of others").expect("written");
        }
        fs::create_dir(dumps.folder.join("east-0-0.json")).expect("made");
        (2..40).for_each(|second| drop(dumps.write("{}", second).expect("written")));
        let left = names(&dumps.folder);
        assert_eq!(left.len(), DUMP_FILES_MAX + 4, "{left:?}");
        assert!(!left.contains(&"east-0-7.json".to_owned()), "{left:?}");
        assert!(left.contains(&"east-0-8.json".to_owned()), "{left:?}");
        // Half of the bytes twice, and a little: the first half goes, with all that are older.
        let half = "x".repeat(DUMP_BYTES_MAX as usize / 2);
        dumps.write(&half, 50).expect("written");
        dumps.write(&half, 51).expect("written");
        dumps.write("{}", 52).expect("written");
        let own: Vec<String> = names(&dumps.folder)
            .into_iter()
            .filter(|name| dumps.second_of(name).is_some())
            .collect();
        assert_eq!(own, ["east-0-0.json", "east-0-51.json", "east-0-52.json"]);
        let error = dumps.write(&(half.clone() + &half + "x"), 53).expect_err("too long");
        assert!(error.to_string().contains("the most"), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error() {
        let (dumps, around) = dumps();
        fs::write(around.path().join("new"), "a file").expect("written");
        dumps.write("{}", 1).expect_err("no folder below a file");
        // A link in the place of the new file is replaced, and not followed.
        fs::remove_file(around.path().join("new")).expect("removed");
        fs::create_dir_all(&dumps.folder).expect("made");
        let target = around.path().join("target");
        std::os::unix::fs::symlink(&target, dumps.folder.join(".east-0.unfinished")).expect("made");
        dumps.write("{}", 1).expect("written");
        assert!(!target.exists());
        assert_eq!(names(&dumps.folder), ["east-0-1.json"]);
    }
}
