//! The secret files of a gateway, which it loads only where nobody else can read them and its peers
//! accept them.
//!
//! `run` checks them at the start, and [`super::reload`] whenever it reads them again. The doctor
//! judges by the same rules.

use crate::cli::output::command_error::CommandError;
use gateway::access::check_secret_file;
use gateway::access::read_credential_bytes;
use gateway::config::JobConfig;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::local::job_spec::JobSpec;
use gateway::local::token_file;
use gateway::wan::connect::tls::Credentials;

/// Loads certificate, key and CA of a gateway of `fabric`. Only its user can read the key, and peers
/// accept the certificate.
///
/// # Errors
/// Others may read the key, peers refuse the certificate, or a file cannot be used.
pub(super) fn load_run_secret_credentials(
    config: &GatewayConfig,
    fabric: &str,
) -> Result<Credentials, CommandError> {
    check_secret_file(&config.key, None)?;
    let credentials = Credentials::load(&config.certificate, &config.key, &config.ca)?;
    credentials.check_own_certificate_as_gateway(&config.name, fabric)?;
    Ok(credentials)
}

/// Checks that only those who may can read the tokens of all jobs. `config` is the gateway's table,
/// whose `group` may read them too.
///
/// # Errors
/// Others may read a token, or this host has no such group.
pub(super) fn check_run_secret_tokens(
    region: &RegionFile,
    config: &GatewayConfig,
) -> Result<(), CommandError> {
    let group = config.group_id()?;
    for job in region.jobs() {
        check_secret_file(&job.token, group)?;
    }
    Ok(())
}

/// Contents of the certificate, key and CA files; `None` for a file that cannot be read.
pub(super) type CredentialFiles = [Option<Vec<u8>>; 3];

/// Reads certificate, key and CA, to notice when a file changes.
pub(super) fn read_run_secret_files(config: &GatewayConfig) -> CredentialFiles {
    [&config.certificate, &config.key, &config.ca].map(|path| read_credential_bytes(path).ok())
}

/// Returns the specification of a job, with its token loaded.
pub(super) fn load_job_spec(config: &JobConfig) -> Result<JobSpec, CommandError> {
    let token = token_file::load_token_file(&config.token)?;
    Ok(JobSpec { name: config.name.clone(), token, memory: config.memory, weight: config.weight })
}
