//! Files that change while a gateway runs: what it takes up at once, and what it names instead.
//!
//! `run` follows them: on SIGHUP the region file with its jobs and tokens, and the certificates;
//! without a signal the certificates alone, every 30 s. Nothing is taken up of a file with faults.

use super::run_secrets;
use super::run_secrets::{CredentialFiles, load_job_spec, read_run_secret_files};
use crate::cli::output::command_error::CommandError;
use crate::cli::output::logging::LOG_TARGET;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::daemon::Gateway;
use gateway::events::{ChangesNotReloaded, ReloadedFiles};
use gateway::host::{Host, RealHost};
use gateway::local::job_spec::JobSpec;
use gateway::warn_if_due;
use gateway::warnings::{WarningCause, Warnings};
use std::convert::Infallible;
use std::time::Duration;
use tokio::signal::unix::Signal;
use tracing::info;

/// 30 s: the interval between two reads of a gateway's certificate, key and CA files. Renewed files
/// take effect after this time at most, without a signal. The time is chosen.
const CERTIFICATE_POLL_INTERVAL: Duration = Duration::from_secs(30);

/// 16 faults: the status lists at most so many of one reading of the region file, so that it stays
/// short. The log has all of them.
const REPORTED_FAULTS_MAX: usize = 16;

/// 16 keys: the most that a gateway names, in log and status, of a fabric file that has changed. Of
/// the other changed keys it says only how many there are.
const FABRIC_KEYS_MAX: usize = 16;

/// The files of a running gateway, as it has taken them up.
pub(super) struct FilesToReload<'a> {
    /// The region file of the start.
    pub region: &'a RegionFile,
    /// The gateway's own table in it.
    pub config: &'a GatewayConfig,
    /// The credential files, to notice when one changes.
    pub credentials: CredentialFiles,
    /// The jobs that are served now.
    pub jobs: Vec<JobSpec>,
    /// Decides which log lines are warnings.
    pub warnings: Warnings,
}

impl FilesToReload<'_> {
    /// Counts a line about the files, and returns whether it is a warning.
    fn is_warning_due(&self, cause: WarningCause, subject: &str) -> bool {
        self.warnings.is_due(cause, subject, RealHost.now())
    }
}

/// Reads jobs and certificates again on SIGHUP, and certificates also every
/// [`CERTIFICATE_POLL_INTERVAL`], to load those whose files have changed. Reports certificates that
/// cannot be used, such as one that has expired meanwhile.
pub(super) async fn reload_changed_files(
    gateway: &Gateway,
    mut files: FilesToReload<'_>,
    mut hangup: Signal,
) -> Infallible {
    let mut refusal = None;
    loop {
        let signalled = tokio::select! {
            biased;
            Some(()) = hangup.recv() => true,
            () = tokio::time::sleep(CERTIFICATE_POLL_INTERVAL) => false,
        };
        if signalled {
            reload_jobs(gateway, &mut files).await;
        }
        let found = read_run_secret_files(files.config);
        let has_changed = found != files.credentials || signalled;
        files.credentials = found;
        // Files that have not changed are judged too: a certificate ends, or begins to be valid.
        let is_renewal = has_changed || refusal.is_some();
        let refused = reload_certificates(gateway, &files, is_renewal).await.err();
        let faults = refused.iter().map(|text| format!("certificates: {text}")).collect();
        gateway.report_file_faults(ReloadedFiles::Certificates, faults).await;
        if let Some(text) = refused.as_ref().filter(|_| has_changed || refused != refusal) {
            warn_if_due!(
                files.is_warning_due(WarningCause::Certificate, text),
                target: LOG_TARGET,
                "certificates cannot be used, and those read before stay: {text}"
            );
        }
        refusal = refused;
    }
}

/// Judges the certificate files, and loads them into the gateway where `is_renewal` says so.
///
/// # Errors
/// The reason why the files cannot be used. Then the gateway keeps the certificates that it has.
async fn reload_certificates(
    gateway: &Gateway,
    files: &FilesToReload<'_>,
    is_renewal: bool,
) -> Result<(), String> {
    let fabric = files.region.fabric().fabric().name();
    let credentials = run_secrets::load_run_secret_credentials(files.config, fabric)
        .map_err(|error| error.to_string())?;
    if is_renewal {
        gateway.renew_credentials(credentials).await;
        info!(target: LOG_TARGET, "certificates read again: new connections use them; open connections continue");
    }
    Ok(())
}

/// Reads the region file again, gives the gateway its jobs, and names what needs a restart. A file
/// with faults changes nothing: the faults are logged.
async fn reload_jobs(gateway: &Gateway, files: &mut FilesToReload<'_>) {
    let path = files.region.path();
    let read = RegionFile::load(path).map_err(CommandError::from).and_then(|region| {
        run_secrets::check_run_secret_tokens(&region, files.config)?;
        let jobs = region.jobs().map(load_job_spec).collect::<Result<Vec<_>, _>>()?;
        Ok((region, jobs))
    });
    let (region, jobs) = match read {
        Ok(read) => read,
        Err(error) => {
            // Each fault is a line; control characters would be escaped in one line of the log.
            let faults: Vec<String> = error.to_string().lines().map(str::to_owned).collect();
            let reported = faults.iter().take(REPORTED_FAULTS_MAX).cloned().collect();
            gateway.report_file_faults(ReloadedFiles::Region, reported).await;
            for fault in &faults {
                warn_if_due!(
                    files.is_warning_due(WarningCause::Files, fault),
                    target: LOG_TARGET,
                    "jobs were not read again: {fault}"
                );
            }
            return;
        }
    };
    gateway.report_file_faults(ReloadedFiles::Region, Vec::new()).await;
    let changes_needed = changes_not_reloaded(files.region, files.config, &region);
    let changes = describe_reloaded_jobs(&files.jobs, &jobs);
    let restart_needed = gateway.update_jobs(jobs.clone(), changes_needed).await;
    files.jobs = jobs;
    info!(target: LOG_TARGET, "jobs read again from {}: {changes}", path.display());
    if !restart_needed.is_empty() {
        let keys = restart_needed.join(", ");
        warn_if_due!(
            files.is_warning_due(WarningCause::Files, &keys),
            target: LOG_TARGET,
            "changed in the files, and taken up by a restart only: {keys}"
        );
    }
}

/// Returns the keys of gateway and fabric whose values differ from those of the start. Of the
/// fabric it returns at most [`FABRIC_KEYS_MAX`], and behind them the number of the others.
fn changes_not_reloaded(
    old: &RegionFile,
    config: &GatewayConfig,
    new: &RegionFile,
) -> ChangesNotReloaded {
    let mut changes = Vec::new();
    if new.fabric().path() != old.fabric().path() {
        changes.push(format!("fabric ({})", new.fabric().path().display()));
    }
    let mut of_fabric = old.fabric().changed_keys(new.fabric());
    let more = of_fabric.len().saturating_sub(FABRIC_KEYS_MAX);
    of_fabric.truncate(FABRIC_KEYS_MAX);
    if more > 0 {
        of_fabric.push(format!("{more} more keys of {}", new.fabric().path().display()));
    }
    let table = format!("gateway.{}", config.name);
    let version = new.fabric().version();
    let Ok(now) = new.gateway(Some(&config.name)) else {
        changes.push(table);
        return ChangesNotReloaded { keys: changes, of_fabric, version };
    };
    let keys = [
        ("socket", now.socket != config.socket),
        ("user", now.user != config.user),
        ("group", now.group != config.group),
        ("mode", now.mode != config.mode),
        ("attach", now.attach != config.attach),
        ("trainers_ca", now.trainers_ca != config.trainers_ca),
        ("status", now.status != config.status),
        ("otlp", now.otlp != config.otlp),
        ("dumps", now.dumps != config.dumps),
        ("certificate", now.certificate != config.certificate),
        ("key", now.key != config.key),
        ("ca", now.ca != config.ca),
        ("memory", now.memory != config.memory),
        ("listen", now.listen != config.listen),
        ("segmentation_offload", now.segmentation_offload != config.segmentation_offload),
    ];
    let changed = keys.into_iter().filter(|(_, differs)| *differs);
    changes.extend(changed.map(|(key, _)| format!("{table}.{key}")));
    ChangesNotReloaded { keys: changes, of_fabric, version }
}

/// Returns which jobs were added, changed or removed, such as `added a; changed b (token)`, or `no
/// change`.
fn describe_reloaded_jobs(old: &[JobSpec], new: &[JobSpec]) -> String {
    let find = |jobs: &[JobSpec], name: &str| jobs.iter().find(|job| job.name == name).cloned();
    let mut changes = Vec::new();
    for job in new {
        let Some(before) = find(old, &job.name) else {
            changes.push(format!("added {}", job.name));
            continue;
        };
        let keys = [
            ("token", before.token != job.token),
            ("memory", before.memory != job.memory),
            ("weight", before.weight != job.weight),
        ];
        let changed: Vec<&str> =
            keys.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect();
        if !changed.is_empty() {
            changes.push(format!("changed {} ({})", job.name, changed.join(", ")));
        }
    }
    let removed = old.iter().filter(|job| find(new, &job.name).is_none());
    changes.extend(removed.map(|job| format!("removed {}", job.name)));
    if changes.is_empty() { "no change".to_owned() } else { changes.join("; ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU32;
    use units::ByteCount;

    fn job(name: &str, token: u8, weight: u32) -> JobSpec {
        JobSpec {
            name: name.to_owned(),
            token: [token; 32].into(),
            memory: ByteCount::new(1 << 20),
            weight: NonZeroU32::new(weight).expect("a weight"),
        }
    }

    #[test]
    fn every_change_of_a_job_is_named() {
        let old = [job("kept", 1, 1), job("gone", 1, 1), job("other", 1, 1)];
        let new = [job("kept", 1, 1), job("new", 1, 1), job("other", 2, 3)];
        let text = describe_reloaded_jobs(&old, &new);
        assert_eq!(text, "added new; changed other (token, weight); removed gone");
        assert_eq!(describe_reloaded_jobs(&old, &old), "no change");
    }
}
