//! Checks of the gateway's certificate: signed by its CA, valid today, issued for its name.

use super::finding::Finding;
use gateway::config::GatewayConfig;
use gateway::wan::connect::tls::{Credentials, dns_name, proves};
use time::{Duration, OffsetDateTime};

/// Loads the credentials and checks them. The error is the finding that they cannot be loaded.
pub(super) fn examine(
    gateway: &GatewayConfig,
    fabric: &str,
) -> Result<(Credentials, Vec<Finding>), Finding> {
    let loaded = Credentials::load(&gateway.certificate, &gateway.key, &gateway.ca);
    let credentials = loaded.map_err(|error| {
        let finding = Finding::ok("certificate", gateway.certificate.display(), error);
        finding.failed("make certificates with `landbridge certs` and copy them here")
    })?;
    let findings = vec![
        trust(gateway, &credentials),
        name(gateway, &credentials, fabric),
        expiry(gateway, &credentials),
    ];
    Ok((credentials, findings))
}

fn trust(gateway: &GatewayConfig, credentials: &Credentials) -> Finding {
    let finding = |found: &str| Finding::ok("certificate", gateway.certificate.display(), found);
    match credentials.check_own_certificate() {
        Ok(()) => finding(&format!("signed by {}, fits its key", gateway.ca.display())),
        Err(error) => finding(&format!("not trusted by {}: {error}", gateway.ca.display()))
            .failed("make a new one with `landbridge certs`, and give all gateways the same CA"),
    }
}

fn name(gateway: &GatewayConfig, credentials: &Credentials, fabric: &str) -> Finding {
    let finding = |found: &str| Finding::ok("name", gateway.certificate.display(), found);
    match proves(credentials.chain(), &gateway.name, fabric) {
        Ok(()) => finding(&dns_name(&gateway.name, fabric)),
        Err(error) => finding(&error.to_string())
            .failed(format!("install the certificate of `{}` here", gateway.name)),
    }
}

fn expiry(gateway: &GatewayConfig, credentials: &Credentials) -> Finding {
    let finding = |found: &str| Finding::ok("expiry", gateway.certificate.display(), found);
    let renew = "renew it: delete the file and run `landbridge certs`";
    let parsed = credentials.chain().first();
    let parsed = parsed.and_then(|own| x509_parser::parse_x509_certificate(own).ok());
    let Some((_, certificate)) = parsed else {
        return finding("its validity cannot be read").failed(renew);
    };
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
    let now = OffsetDateTime::now_utc();
    let found = format!("valid from {} to {}", from.date(), until.date());
    if now < from {
        finding(&found).failed("correct this host's clock, or wait")
    } else if now > until {
        finding(&format!("{found}: expired")).failed(renew)
    } else if until - now < EXPIRES_SOON {
        finding(&format!("{found}: {} days left", (until - now).whole_days())).warning(renew)
    } else {
        finding(&found)
    }
}

/// 14 days: time to copy new files to every host.
const EXPIRES_SOON: Duration = Duration::days(14);
