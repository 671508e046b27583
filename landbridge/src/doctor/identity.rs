//! Checks of the gateway's certificate: signed by its CA, valid today, issued for its name.

use super::finding::Finding;
use gateway::config::GatewayConfig;
use gateway::wan::connect::tls::{Credentials, gateway_identity_dns_name};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use time::{Duration, OffsetDateTime};

/// Loads the credentials of a gateway and checks its certificate. The error is the finding that the
/// credentials cannot be loaded.
pub(super) fn diagnose_identity(
    gateway: &GatewayConfig,
    fabric: &str,
) -> Result<(Credentials, Vec<Finding>), Finding> {
    let loaded = Credentials::load(&gateway.certificate, &gateway.key, &gateway.ca);
    let credentials = loaded.map_err(|error| {
        if let Some(file) = identity_file_of_another_user(gateway) {
            let finding = Finding::ok("certificate", file.display(), error);
            return finding.into_failure("run this command as the gateway's user");
        }
        let finding = Finding::ok("certificate", gateway.certificate.display(), error);
        finding.into_failure("make certificates with `landbridge certs` and copy them here")
    })?;
    let findings = vec![
        diagnose_identity_trust(gateway, &credentials),
        diagnose_identity_name(gateway, &credentials, fabric),
        diagnose_identity_expiry(gateway, &credentials),
    ];
    Ok((credentials, findings))
}

/// Returns the file of the certificate, key or CA that exists, but that this user may not read.
fn identity_file_of_another_user(gateway: &GatewayConfig) -> Option<&Path> {
    let mut files = [&gateway.certificate, &gateway.key, &gateway.ca].into_iter();
    let is_denied = |file: &&PathBuf| {
        File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
    };
    files.find(is_denied).map(PathBuf::as_path)
}

/// Checks that the CA has signed the certificate for the use of a gateway. Its time is judged by
/// itself. That the key fits was checked when `credentials` were read.
fn diagnose_identity_trust(gateway: &GatewayConfig, credentials: &Credentials) -> Finding {
    let finding = |found: &str| Finding::ok("certificate", gateway.certificate.display(), found);
    match credentials.check_own_certificate_issue() {
        Ok(()) => finding(&format!("signed by {}, fits its key", gateway.ca.display())),
        Err(fault) => finding(&fault.to_string()).into_failure(fault.remedy()),
    }
}

/// Checks that the certificate is issued for the name of the gateway and the fabric.
fn diagnose_identity_name(
    gateway: &GatewayConfig,
    credentials: &Credentials,
    fabric: &str,
) -> Finding {
    let finding = |found: &str| Finding::ok("name", gateway.certificate.display(), found);
    match credentials.check_own_certificate_name(&gateway.name, fabric) {
        Ok(()) => finding(&gateway_identity_dns_name(&gateway.name, fabric)),
        Err(fault) => finding(&fault.to_string()).into_failure(fault.remedy()),
    }
}

/// Checks that the certificate is valid now and for the next 14 days. A certificate that is not
/// valid now is a failure, and one that expires within 14 days a warning.
fn diagnose_identity_expiry(gateway: &GatewayConfig, credentials: &Credentials) -> Finding {
    let finding = |found: &str| Finding::ok("expiry", gateway.certificate.display(), found);
    let renew = "renew it with `landbridge certs --renew 30`, and copy both files here";
    let parsed = credentials.certificate_chain().first();
    let parsed = parsed.and_then(|own| x509_parser::parse_x509_certificate(own).ok());
    let Some((_, certificate)) = parsed else {
        return finding("its validity cannot be read").into_failure(renew);
    };
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
    let now = OffsetDateTime::now_utc();
    let found = format!("valid from {} to {}", from.date(), until.date());
    if now < from {
        finding(&found).into_failure("correct this host's clock, or wait")
    } else if now > until {
        finding(&format!("{found}: expired")).into_failure(renew)
    } else if until - now < EXPIRY_WARNING_PERIOD {
        finding(&format!("{found}: {} days left", (until - now).whole_days())).into_warning(renew)
    } else {
        finding(&found)
    }
}

/// 14 days: `landbridge doctor` warns of a certificate that expires sooner than in this time, which
/// leaves time to copy new files to every host.
const EXPIRY_WARNING_PERIOD: Duration = Duration::days(14);
