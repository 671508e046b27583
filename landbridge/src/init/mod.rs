//! The files of a new deployment: a fabric, certificates, and one folder for each region.
//!
//! `landbridge init` calls it with options of the command line, or with answers from [`questions`].
//! The same readers as those of `landbridge check` read all files before any of them appears.

mod deployment_spec;
mod error;
pub(crate) mod init_options;
mod operator_page;
pub(crate) mod questions;
mod region_folder;

pub(crate) use deployment_spec::{DeploymentSpec, FABRIC_FILE, SocketPlace};
pub(crate) use error::InitError;
pub(crate) use region_folder::RegionFolder;

use gateway::certs::{CertificateOptions, CertificateValidity, make_certificate_files};
use gateway::config::FabricFile;
use hier_collectives::plan::make_plan;
use region_folder::{RegionFolderWriter, write_region_folder_file};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The name of the folder in which `landbridge init` puts the CA's key and certificate, and
/// certificates, keys and tokens of all regions. No region can have this name, since their names
/// are in lower case.
pub(crate) const AUTHORITY_FOLDER: &str = "CA";

/// Makes the folder `out` with all files of a deployment, whose certificates are valid for `days`
/// days. Returns the folder of each region.
///
/// The files are written beside `out` first, so that an error leaves nothing behind.
///
/// # Errors
/// The folder has files already, the answers make no valid fabric, or the file system refuses.
pub(crate) fn make_init_deployment(
    spec: &DeploymentSpec,
    out: &Path,
    days: u32,
) -> Result<Vec<RegionFolder>, InitError> {
    refuse_used_init_folder(out)?;
    let parent = match out.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    std::fs::create_dir_all(parent).map_err(InitError::path(parent))?;
    let draft = tempfile::Builder::new().prefix(".landbridge-").tempdir_in(parent);
    let draft = draft.map_err(InitError::path(parent))?;
    let folders = write_init_deployment(spec, draft.path(), days)
        .map_err(|error| error.with_folder(draft.path(), out))?;
    std::fs::rename(draft.path(), out).map_err(InitError::path(out))?;
    // The folder has another name now, and the guard of the old one removes nothing.
    let _: PathBuf = draft.keep();
    Ok(folders)
}

/// Refuses a path that is no folder, or a folder with files in it.
fn refuse_used_init_folder(out: &Path) -> Result<(), InitError> {
    match std::fs::read_dir(out) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(InitError::UsedFolder { folder: out.to_owned() }),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(InitError::path(out)(error)),
    }
}

/// Writes all files of a deployment into the folder `draft`.
fn write_init_deployment(
    spec: &DeploymentSpec,
    draft: &Path,
    days: u32,
) -> Result<Vec<RegionFolder>, InitError> {
    let text = spec.fabric_text();
    write_region_folder_file(&draft.join(FABRIC_FILE), &text)?;
    let file = FabricFile::load(&draft.join(FABRIC_FILE))?;
    let plan = make_plan(file.fabric())?;
    let authority = draft.join(AUTHORITY_FOLDER);
    let options = CertificateOptions {
        validity: CertificateValidity::days(days),
        jobs: &spec.jobs,
        force: false,
        renew_days: 0,
    };
    make_certificate_files(file.fabric(), &authority, &options)?;
    let writer =
        RegionFolderWriter { spec, file: &file, plan: &plan, authority: &authority, draft };
    spec.regions.iter().map(|region| writer.write_region_folder(region, &text)).collect()
}

#[cfg(test)]
mod tests;
