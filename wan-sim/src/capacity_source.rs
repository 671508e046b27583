//! The source of a recorded capacity, as files and flags spell it.

use crate::{CapacityError, CapacityRecording, SyntheticCapacity};
use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Where a recorded capacity comes from: a kind of the generator, or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacitySource {
    /// A recording of the generator.
    Synthetic(SyntheticCapacity),
    /// A file in mahimahi's format.
    File(PathBuf),
}

/// A file that holds no recording of a capacity. The caller's fault.
#[derive(Debug, thiserror::Error)]
pub enum CapacitySourceError {
    /// The file cannot be read.
    #[error(
        "capacity {path}: {source}; give a file, or one of cellular, satellite, cloud",
        path = .path.display()
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The text is no recording.
    #[error("capacity {path}: {source}", path = .path.display())]
    Wrong {
        /// The file.
        path: PathBuf,
        /// The fault.
        source: CapacityError,
    },
}

impl CapacitySource {
    /// Reads the file, relative to `folder`, or generates the recording from `seed`.
    ///
    /// # Errors
    /// [`CapacitySourceError`].
    pub fn load(&self, folder: &Path, seed: u64) -> Result<CapacityRecording, CapacitySourceError> {
        let path = match self {
            Self::Synthetic(kind) => return Ok(kind.generate(seed)),
            Self::File(path) => folder.join(path),
        };
        match stdio::read_input_text_up_to(&path, FILE_BYTES_MAX) {
            Err(source) => Err(CapacitySourceError::Unreadable { path, source }),
            Ok(text) => text.parse().map_err(|source| CapacitySourceError::Wrong { path, source }),
        }
    }
}

impl FromStr for CapacitySource {
    type Err = Infallible;
    /// Reads the word of a generated kind as such, and all else as a path.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let kind = text.trim().parse().map(Self::Synthetic);
        Ok(kind.unwrap_or_else(|()| Self::File(PathBuf::from(text))))
    }
}

/// 64 MiB: the longest file of a capacity recording, some ten million deliveries; a longer file is
/// refused. The limit of memory is chosen.
const FILE_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capacity_comes_from_a_word_or_a_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("cell.trace"), "4\n8\n").unwrap();
        std::fs::write(folder.path().join("wrong.trace"), "4\nfive\n").unwrap();
        let load = |text: &str| text.parse::<CapacitySource>().unwrap().load(folder.path(), 5);
        assert_eq!(load("cell.trace").unwrap().times_ms(), [4, 8]);
        assert_eq!(load("satellite").unwrap(), SyntheticCapacity::Satellite.generate(5));
        for (text, part) in
            [("missing", "cellular, satellite, cloud"), ("wrong.trace", "wrong.trace: line 2")]
        {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
        let endless = CapacitySource::File("/dev/zero".into()).load(Path::new(""), 1).unwrap_err();
        assert!(endless.to_string().contains("longer than"), "{endless}");
    }
}
