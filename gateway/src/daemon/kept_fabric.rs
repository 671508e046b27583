//! The signed fabric that was in force last, kept beside the fabric file for the next start.
//!
//! `FILE.applied` has the two lines of a signature, then the text. A gateway writes it whenever a signed fabric
//! comes into force, and reads it when it starts, as it does `FILE.sig`, which an operator may have put beside
//! the file. The newest of both fabrics counts. A signature lets the gateway give its fabric to others.

use crate::wan::connect::tls::FabricSignature;
use hier_collectives::membership::{FabricVersion, SignedFabric};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// The lines of a signature, which stand before the text of a kept fabric.
const SIGNATURE_LINES: usize = 2;

/// The files beside a fabric file, as one gateway reads and writes them.
#[derive(Debug)]
pub struct KeptFabric {
    /// The fabric file.
    pub(super) file: PathBuf,
    /// The gateway, since several may keep a fabric beside one file.
    gateway: String,
    /// The version that was kept last.
    last: Mutex<FabricVersion>,
}

impl KeptFabric {
    /// Makes the place of the files beside a fabric file of this version.
    pub fn beside(file: &Path, gateway: &str, version: FabricVersion) -> Self {
        let (file, gateway) = (file.to_owned(), gateway.to_owned());
        Self { file, gateway, last: Mutex::new(version) }
    }

    /// Keeps a fabric that has come into force, unless a newer one is kept already.
    ///
    /// # Errors
    /// The file cannot be written. What was kept before is still there.
    pub fn keep(&self, signed: &SignedFabric) -> io::Result<()> {
        let mut last = self.last.lock().unwrap_or_else(|broken| broken.into_inner());
        if signed.version <= *last {
            return Ok(());
        }
        let Some((signature, text)) = signed.bytes.split_first_chunk() else { return Ok(()) };
        let content = [FabricSignature(*signature).to_string().as_bytes(), text].concat();
        let unfinished = self.path_with(&format!(".applied.{}", self.gateway));
        let written = write_durably(&unfinished, &content)
            .and_then(|()| fs::rename(&unfinished, self.applied_path()))
            .and_then(|()| sync_folder_of(&unfinished));
        if written.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        *last = if written.is_ok() { signed.version } else { *last };
        written
    }

    /// Returns the path of the kept fabric.
    pub fn applied_path(&self) -> PathBuf {
        self.path_with(".applied")
    }

    /// Returns the text and the signature of the kept fabric; `None` if there is none.
    pub(super) fn read_applied(&self) -> io::Result<Option<(String, String)>> {
        let Some(content) = read_if_there(&self.applied_path())? else { return Ok(None) };
        let mut lines = content.split_inclusive('\n');
        let signature: String = lines.by_ref().take(SIGNATURE_LINES).collect();
        Ok(Some((lines.collect(), signature)))
    }

    /// Returns the text and the signature of the fabric file; `None` if it has no signature.
    pub(super) fn read_signed_file(&self) -> io::Result<Option<(String, String)>> {
        let Some(signature) = read_if_there(&self.path_with(".sig"))? else { return Ok(None) };
        Ok(Some((fs::read_to_string(&self.file)?, signature)))
    }

    /// Returns the path of the fabric file with `end` behind it.
    pub(super) fn path_with(&self, end: &str) -> PathBuf {
        let mut path = self.file.clone().into_os_string();
        path.push(OsStr::new(end));
        path.into()
    }
}

/// Reads a text file; `None` if there is none.
fn read_if_there(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some),
    }
}

/// Writes a file in the place of one that may be there, and waits until the disk has it.
fn write_durably(path: &Path, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Waits until the disk has the names of a file's folder.
fn sync_folder_of(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}
