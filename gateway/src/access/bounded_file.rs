//! Reading files that an operator names: none is so long that it fills the memory, as `/dev/zero`
//! would, and no secret is awaited from a pipe.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use units::ByteCount;

/// 1 MiB: the longest certificate, key or token file that is read, far above any chain's.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// Reads a file of at most `bytes_max` bytes. A pipe is read to its end.
///
/// # Errors
/// The file cannot be read, or is longer.
pub fn read_file_up_to(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let limit = ByteCount::new(bytes_max).rounded();
        return Err(invalid_file(format!("longer than {limit}, which no such file is")));
    }
    Ok(bytes)
}

/// Reads a certificate, key or token.
///
/// # Errors
/// The file cannot be read, is longer than 1 MiB, or is a folder, a device or a pipe.
pub fn read_credential_file(path: &Path) -> io::Result<Vec<u8>> {
    check_regular_file(path)?;
    read_file_up_to(path, SECRET_BYTES_MAX)
}

/// Checks that a path leads to a regular file, without opening it: a pipe would wait for a writer.
pub(super) fn check_regular_file(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if found.is_file() { Ok(()) } else { Err(invalid_file("not a regular file".to_owned())) }
}

/// Returns the error of a file that is another kind of thing.
fn invalid_file(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn endless_files_end_and_pipes_are_not_awaited() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).expect("ours");
        assert_eq!(read_file_up_to(&file, 100).expect("short enough"), [7; 100]);
        assert!(read_file_up_to(&file, 99).is_err());
        let endless = read_file_up_to(Path::new("/dev/zero"), 1 << 16).expect_err("endless");
        assert!(endless.to_string().contains("longer than 64 KiB"), "{endless}");
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RWXU).expect("a pipe");
        for other in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let error = read_credential_file(other).expect_err("no file");
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
        assert_eq!(read_credential_file(&file).expect("a file"), [7; 100]);
    }
}
