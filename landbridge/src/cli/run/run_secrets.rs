//! The secret files of a gateway, which it loads only where nobody else can read them and its peers
//! accept them.
//!
//! `run` checks them at the start, and [`super::reload`] whenever it reads them again. `check` and the
//! doctor judge by the same rules.

use crate::cli::output::command_error::CommandError;
use gateway::access::check_secret_file;
use gateway::access::read_credential_bytes;
use gateway::config::JobConfig;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::local::job_spec::JobSpec;
use gateway::local::token_file;
use gateway::wan::connect::tls::{Credentials, TrustAnchors};

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

/// A secret file that `run` refuses.
pub(in crate::cli) struct RefusedRunSecret {
    /// The key path of the region file that names the file.
    pub key: String,
    /// The words of `run`.
    pub error: CommandError,
}

/// Returns all secrets of a gateway for which `run` would not start it: certificate, key, CA, the CA of
/// trainers, and the tokens of all jobs.
pub(in crate::cli) fn refused_run_secrets(
    region: &RegionFile,
    config: &GatewayConfig,
) -> Vec<RefusedRunSecret> {
    let of_gateway = |key: &str| format!("gateway.{}.{key}", config.name);
    let fabric = region.fabric().fabric().name();
    let mut refused = Vec::new();
    let mut refuse =
        |key: String, error: CommandError| refused.push(RefusedRunSecret { key, error });
    match load_run_secret_credentials(config, fabric) {
        Ok(credentials) => {
            if let Some(ca) = &config.trainers_ca
                && let Err(error) = TrustAnchors::load(ca)
                    .and_then(|trainers| credentials.attach_acceptor_config(Some(&trainers)))
            {
                refuse(of_gateway("trainers_ca"), error.into());
            }
        }
        Err(error @ CommandError::SecretFile(_)) => refuse(of_gateway("key"), error),
        Err(error) => refuse(of_gateway("certificate"), error),
    }
    let group = config.group_id().unwrap_or_else(|error| {
        refuse(of_gateway("group"), error.into());
        None
    });
    for job in region.jobs() {
        let checked = check_secret_file(&job.token, group).map_err(CommandError::from);
        if let Err(error) = checked.and_then(|_| load_job_spec(job)) {
            refuse(format!("job.{}.token", job.name), error);
        }
    }
    refused
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
