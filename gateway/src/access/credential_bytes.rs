//! Reading certificates, keys and tokens: regular files alone.

use std::io;
use std::path::Path;
use stdio::read_input_file_up_to;

/// 1 MiB: the longest certificate, key or token file that is read, far above the length of any
/// certificate chain. A longer file is refused with an error.
const SECRET_BYTES_MAX: u64 = 1 << 20;

/// Reads the bytes of a file with a certificate, a key or a token.
///
/// # Errors
/// The file cannot be read, is longer than 1 MiB, or is a folder, a device or a pipe.
pub fn read_credential_bytes(path: &Path) -> io::Result<Vec<u8>> {
    check_credential_bytes_regular(path)?;
    read_input_file_up_to(path, SECRET_BYTES_MAX)
}

/// Checks that a path leads to a regular file, without opening it: a pipe would wait for a writer.
pub(super) fn check_credential_bytes_regular(path: &Path) -> io::Result<()> {
    let found = std::fs::metadata(path)?;
    if found.is_file() {
        Ok(())
    } else {
        Err(irregular_credential_bytes("not a regular file".to_owned()))
    }
}

/// Makes the error of a file that is no regular one; `why` is its text.
fn irregular_credential_bytes(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, mkfifoat};

    #[test]
    fn only_regular_files_are_credentials() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        std::fs::write(&file, [7; 100]).expect("ours");
        let pipe = folder.path().join("pipe");
        mkfifoat(CWD, &pipe, Mode::RWXU).expect("a pipe");
        for other in [pipe.as_path(), folder.path(), Path::new("/dev/zero")] {
            let error = read_credential_bytes(other).expect_err("no file");
            assert!(error.to_string().contains("not a regular file"), "{error}");
        }
        assert_eq!(read_credential_bytes(&file).expect("a file"), [7; 100]);
    }
}
