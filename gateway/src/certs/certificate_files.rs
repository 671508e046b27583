//! The files of a deployment: a CA, a certificate for each gateway, a token for each job.

use super::certificate_authority::CertificateAuthority;
use super::certificate_validity::CertificateValidity;
use super::error::CertsError;
use crate::local::token_file::make_token_file_text;
use crate::wan::connect::tls::credentials_file_expiry;
use hier_collectives::topology::Fabric;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Options of [`make_certificate_files`].
#[derive(Debug, Clone)]
pub struct CertificateOptions<'a> {
    /// The period in which the gateways' certificates are valid.
    pub validity: CertificateValidity,
    /// Names of the jobs that get a token.
    pub jobs: &'a [String],
    /// Whether to replace all files, the CA's too.
    pub force: bool,
    /// Certificates of gateways that expire within so many days are replaced with their keys; 0
    /// keeps all.
    pub renew_days: u32,
}

/// The result of [`make_certificate_files`] for one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileOutcome {
    /// The file was written.
    Made(PathBuf),
    /// The file existed and was kept.
    Kept(PathBuf),
}

/// Makes the certificates and tokens of a deployment in the folder `out`.
///
/// These are `ca.pem` and `ca.key`, `GATEWAY.pem` and `GATEWAY.key` for each gateway, and
/// `JOB.token` for each job. Files that exist are kept, unless `force` is set or a certificate is
/// to be renewed. With a new CA all gateways' files are made anew. The CA signs the certificates.
/// Keys and tokens are readable by their owner alone.
///
/// # Errors
/// The CA's key is missing or another's, a name is not valid, or `out` is no folder. Or another
/// process writes there, or the file system refuses. Files written before the error stay, and the
/// next call keeps them.
pub fn make_certificate_files(
    fabric: &Fabric,
    out: &Path,
    options: &CertificateOptions<'_>,
) -> Result<Vec<FileOutcome>, CertsError> {
    if fabric.gateway_named("ca").is_some() {
        return Err(CertsError::NameTaken);
    }
    if let Some(job) =
        options.jobs.iter().find(|job| !crate::config::is_valid_config_name_value(job))
    {
        return Err(CertsError::JobName(job.clone()));
    }
    if std::fs::metadata(out).is_ok_and(|found| !found.is_dir()) {
        return Err(CertsError::NoFolder { out: out.to_owned() });
    }
    std::fs::create_dir_all(out)
        .map_err(|source| CertsError::Io { file: out.to_owned(), source })?;
    let _lock = lock_certificate_files_folder(out)?;
    let mut writer = CertificateFileWriter { out, force: options.force, outcomes: Vec::new() };
    let (authority, is_new) = load_or_make_ca_files(fabric.name(), &mut writer)?;
    for gateway in fabric.gateways() {
        let (certificate, key) = (format!("{}.pem", gateway.name), format!("{}.key", gateway.name));
        let is_due = certificate_file_expires_within(&out.join(&certificate), options.renew_days);
        if !is_new && !is_due && writer.keep_existing(&[&certificate, &key]) {
            continue;
        }
        let issued = authority.issue_certificate(&gateway.name, fabric.name(), options.validity)?;
        writer.write_file(&certificate, &issued.certificate_pem, FileReaders::Everyone)?;
        writer.write_file(&key, &issued.key_pem, FileReaders::Owner)?;
    }
    // A job that is named twice has one token.
    for job in options.jobs.iter().collect::<BTreeSet<_>>() {
        let file = format!("{job}.token");
        if !writer.keep_existing(&[&file]) {
            writer.write_file(&file, &(make_token_file_text() + "\n"), FileReaders::Owner)?;
        }
    }
    Ok(writer.outcomes)
}

/// The lock of a folder of certificates.
struct CertificateFolderLock(File);

impl Drop for CertificateFolderLock {
    fn drop(&mut self) {
        // A process that is just being started has the file too, and would hold the lock for a moment.
        let _ = self.0.unlock();
    }
}

/// Locks the folder, so that two commands at the same time do not sign with two CAs; fails if
/// another process holds the lock. On a file system without locks it
/// locks nothing.
fn lock_certificate_files_folder(out: &Path) -> Result<CertificateFolderLock, CertsError> {
    let folder =
        File::open(out).map_err(|source| CertsError::Io { file: out.to_owned(), source })?;
    match folder.try_lock() {
        Err(TryLockError::WouldBlock) => Err(CertsError::Busy { folder: out.to_owned() }),
        Ok(()) | Err(TryLockError::Error(_)) => Ok(CertificateFolderLock(folder)),
    }
}

/// Returns whether a certificate expires within so many days, at the last moment included. One that
/// is missing or cannot be read does not; within 0 days none does.
fn certificate_file_expires_within(certificate: &Path, days: u32) -> bool {
    let due = OffsetDateTime::now_utc() + Duration::days(days.into());
    days > 0
        && credentials_file_expiry(certificate).is_some_and(|expiry| expiry <= due.unix_timestamp())
}

/// Returns the CA of the folder, and whether it is new. A new CA makes all older certificates
/// useless.
fn load_or_make_ca_files(
    fabric: &str,
    writer: &mut CertificateFileWriter<'_>,
) -> Result<(CertificateAuthority, bool), CertsError> {
    let (certificate, key) = (writer.out.join("ca.pem"), writer.out.join("ca.key"));
    if writer.keep_existing(&["ca.pem", "ca.key"]) {
        return Ok((CertificateAuthority::load(&certificate, &key)?, false));
    }
    if certificate.exists() && !writer.force {
        return Err(CertsError::CaKeyMissing { certificate, key });
    }
    let authority = CertificateAuthority::generate(fabric)?;
    writer.write_file("ca.pem", authority.certificate_pem(), FileReaders::Everyone)?;
    writer.write_file("ca.key", &authority.key_pem, FileReaders::Owner)?;
    Ok((authority, true))
}

/// The users that can read a file.
enum FileReaders {
    Everyone,
    Owner,
}

/// Writes files into a folder, and collects the outcomes.
struct CertificateFileWriter<'a> {
    out: &'a Path,
    force: bool,
    outcomes: Vec<FileOutcome>,
}

impl CertificateFileWriter<'_> {
    /// Returns whether all the named files exist, and the caller has not asked to replace them. If
    /// so, this records them as kept; otherwise it records nothing.
    fn keep_existing(&mut self, names: &[&str]) -> bool {
        let files: Vec<PathBuf> = names.iter().map(|name| self.out.join(name)).collect();
        let keep = !self.force && files.iter().all(|file| file.exists());
        if keep {
            self.outcomes.extend(files.into_iter().map(FileOutcome::Kept));
        }
        keep
    }

    /// Writes a file under a temporary name and renames it, so that no reader finds half a file or
    /// one that others can read. Records the file as made.
    fn write_file(
        &mut self,
        name: &str,
        text: &str,
        access: FileReaders,
    ) -> Result<(), CertsError> {
        let (file, temporary) = (self.out.join(name), self.out.join(format!(".{name}.new")));
        let at_fault = |source| CertsError::Io { file: file.clone(), source };
        match std::fs::remove_file(&temporary) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(at_fault(error));
            }
            _ => {}
        }
        let mode = match access {
            FileReaders::Everyone => 0o644,
            FileReaders::Owner => 0o600,
        };
        let mut options = std::fs::OpenOptions::new();
        let mut handle =
            options.write(true).create_new(true).mode(mode).open(&temporary).map_err(at_fault)?;
        let written = handle.write_all(text.as_bytes());
        written.and_then(|()| std::fs::rename(&temporary, &file)).map_err(|source| {
            // A full disk leaves an empty file.
            let _ = std::fs::remove_file(&temporary);
            at_fault(source)
        })?;
        self.outcomes.push(FileOutcome::Made(file));
        Ok(())
    }
}
