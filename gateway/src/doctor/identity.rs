//! The gateway's certificate: signed by its CA, in its time, for its name.

use super::Finding;
use crate::config::GatewayConfig;
use crate::wan::connect::tls::{Credentials, dns_name, proves};
use time::{Duration, OffsetDateTime};

/// The credentials, if they can be loaded, and what was found about them.
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
    match credentials.believes_itself() {
        Ok(()) => finding(&format!("signed by {}, fits its key", gateway.ca.display())),
        Err(error) => finding(&format!("not believed by {}: {error}", gateway.ca.display()))
            .failed("make it again with `landbridge certs`, and give all gateways the same CA"),
    }
}

fn name(gateway: &GatewayConfig, credentials: &Credentials, fabric: &str) -> Finding {
    let finding = |found: &str| Finding::ok("name", gateway.certificate.display(), found);
    match proves(credentials.chain(), &gateway.name, fabric) {
        Ok(()) => finding(&dns_name(&gateway.name, fabric)),
        Err(error) => finding(&error.to_string())
            .failed(format!("put the certificate of `{}` here", gateway.name)),
    }
}

fn expiry(gateway: &GatewayConfig, credentials: &Credentials) -> Finding {
    let finding = |found: &str| Finding::ok("expiry", gateway.certificate.display(), found);
    let renew = "make it again: delete the file and run `landbridge certs`";
    let parsed = credentials.chain().first();
    let parsed = parsed.and_then(|own| x509_parser::parse_x509_certificate(own).ok());
    let Some((_, certificate)) = parsed else {
        return finding("its dates cannot be read").failed(renew);
    };
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.to_datetime(), validity.not_after.to_datetime());
    let now = OffsetDateTime::now_utc();
    let found = format!("believed from {} to {}", from.date(), until.date());
    if now < from {
        finding(&found).failed("set this host's clock, or wait")
    } else if now > until {
        finding(&format!("{found}: over")).failed(renew)
    } else if until - now < EXPIRES_SOON {
        finding(&format!("{found}: {} days left", (until - now).whole_days())).warning(renew)
    } else {
        finding(&found)
    }
}

/// Two weeks: time enough to bring new files to every host.
const EXPIRES_SOON: Duration = Duration::days(14);
