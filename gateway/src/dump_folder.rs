//! A folder of dumps that processes write by themselves after failures, bounded for each writer.
//!
//! Gateways and clients write into it, each on a thread of its own. It may be full, slow or gone.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use units::ByteCount;

/// 60 s: the least time between two dumps that a gateway or a client writes by itself. Failures in between
/// share the dump at its end. The time is chosen: trainers that fail again and again fill no disk.
pub const DUMP_INTERVAL: Duration = Duration::from_secs(60);

/// 32 files: the most dumps of one gateway or rank in its folder. One more replaces the oldest. The number
/// is chosen. Tested by `old_dumps_make_room_for_new_ones`.
const DUMP_FILES_MAX: usize = 32;

/// 64 MiB: the most bytes of the dumps of one gateway or rank in its folder. The oldest are removed, and a
/// longer dump is not written. The number is chosen, far above a dump of 1,000 groups.
/// Tested by `old_dumps_make_room_for_new_ones`.
const DUMP_BYTES_MAX: u64 = 64 << 20;

/// The folder of the dumps of one writer, in which others may have theirs.
#[derive(Debug)]
pub struct DumpFolder {
    /// Path of the folder, which is made if it is missing.
    pub folder: PathBuf,
    /// Name of the writer, with which its files begin.
    pub writer: String,
}

impl DumpFolder {
    /// Writes a dump of this second since 1970, which only the user of this process can read. Removes the
    /// oldest dumps of the writer before, and makes the folder if it is missing.
    ///
    /// # Errors
    /// The folder or the file cannot be written, or the dump is too long.
    pub fn write(&self, text: &str, unix_second: u64) -> io::Result<PathBuf> {
        let (bytes, size) = (text.len() as u64, |bytes| ByteCount::new(bytes).rounded());
        if bytes > DUMP_BYTES_MAX {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                format!("it has {}, and {} are the most", size(bytes), size(DUMP_BYTES_MAX)),
            ));
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.make_room(bytes)?;
        let unfinished = self.folder.join(format!(".{}.unfinished", self.writer));
        let path = self.folder.join(format!("{}-{unix_second}.json", self.writer));
        replace_private_file(&path, &unfinished, text).map(|()| path)
    }

    /// Removes the oldest dumps of the writer until one more of `bytes` bytes fits.
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

    /// Returns the second in the name of a dump of this writer; `None` for any other file.
    fn second_of(&self, name: &str) -> Option<u64> {
        let rest = name.strip_prefix(&*self.writer)?.strip_prefix('-')?.strip_suffix(".json")?;
        rest.bytes().all(|byte| byte.is_ascii_digit()).then(|| rest.parse().ok()).flatten()
    }
}

/// Writes a file that only the user of this process can read, under the name `unfinished` beside it at
/// first. Replaces a file at `path`, and follows no link at either name.
///
/// # Errors
/// The file cannot be written. None is left then but the one that was there.
pub fn replace_private_file(path: &Path, unfinished: &Path, text: &str) -> io::Result<()> {
    // Readers see whole files alone.
    let written = write_private_file(unfinished, text).and_then(|()| fs::rename(unfinished, path));
    if written.is_err() {
        let _ = fs::remove_file(unfinished);
    }
    written
}

/// Writes a new file in the place of one that may be there.
fn write_private_file(path: &Path, text: &str) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())
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

    /// Returns a folder of dumps of writer `east-0` that is not made yet, and the one around it.
    fn dumps() -> (DumpFolder, tempfile::TempDir) {
        let around = tempfile::tempdir().expect("a folder");
        let folder = around.path().join("new/dumps");
        (DumpFolder { folder, writer: "east-0".to_owned() }, around)
    }

    #[test]
    fn a_dump_is_for_its_writers_user_alone() {
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
