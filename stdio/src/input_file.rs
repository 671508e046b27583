//! Reading files that a user names: none is so long that it fills the memory, as `/dev/zero` would,
//! and nobody waits for a pipe that has no writer.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use units::ByteCount;

/// 5 s: the longest wait for the first byte of a pipe; then the pipe cannot be read, and its user
/// gets an error. A program in `<(...)` writes sooner. A pipe without a writer would be waited for
/// without end.
const PIPE_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads a file of at most `bytes_max` bytes. A pipe is read to its end.
///
/// # Errors
/// The file cannot be read, or is longer; or it is a pipe through which nothing comes.
pub fn read_input_file_up_to(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_input_file(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let limit = ByteCount::new(bytes_max).rounded();
        let why = format!("longer than {limit}, which no such file is");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Reads a text of at most `bytes_max` bytes, as [`read_input_file_up_to`].
///
/// # Errors
/// As of [`read_input_file_up_to`], or the file is no text in UTF-8.
pub fn read_input_text_up_to(path: &Path, bytes_max: u64) -> io::Result<String> {
    let bytes = read_input_file_up_to(path, bytes_max)?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + good.iter().filter(|byte| **byte == b'\n').count();
        io::Error::new(io::ErrorKind::InvalidData, format!("line {line} is not a text in UTF-8"))
    })
}

/// Opens a file for reading.
///
/// # Errors
/// The file cannot be opened; or it is a pipe through which nothing comes within five seconds.
pub fn open_input_file(path: &Path) -> io::Result<File> {
    // A pipe without a writer would block in `open`.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let is_pipe = FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::Fifo;
    if is_pipe && !has_input_before(&file, Instant::now() + PIPE_TIMEOUT)? {
        let why = "a pipe into which nobody writes; name a file, or start its writer first";
        return Err(io::Error::new(io::ErrorKind::TimedOut, why));
    }
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// Waits until a file has input, but not beyond `deadline`; returns whether it has input. Signals
/// do not make the wait longer.
fn has_input_before(file: &File, deadline: Instant) -> io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&left)) {
            Err(Errno::INTR) => {}
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn files_that_are_too_long_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).expect("ours");
        assert_eq!(read_input_file_up_to(&file, 100).expect("short enough"), [7; 100]);
        assert!(read_input_file_up_to(&file, 99).is_err());
        let endless = read_input_file_up_to(Path::new("/dev/zero"), 1 << 16).expect_err("endless");
        assert!(endless.to_string().contains("longer than 64 KiB"), "{endless}");
        assert!(read_input_text_up_to(&file, 100).is_ok());
        std::fs::write(&file, b"one\ntwo\xe9").expect("ours");
        let error = read_input_text_up_to(&file, 100).expect_err("no text");
        assert!(error.to_string().contains("line 2 is not a text in UTF-8"), "{error}");
    }

    #[test]
    fn a_pipe_is_read_if_anybody_writes_into_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RWXU).expect("a pipe");
        let error = read_input_file_up_to(&pipe, 100).expect_err("nobody writes");
        assert!(error.to_string().contains("nobody writes"), "{error}");
        let written = pipe.clone();
        let writer = std::thread::spawn(move || std::fs::write(written, "name = 1\n"));
        assert_eq!(read_input_text_up_to(&pipe, 100).expect("written"), "name = 1\n");
        writer.join().expect("no panic").expect("read");
    }
}
