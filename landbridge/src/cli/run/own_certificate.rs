//! Warns of a certificate of this gateway that its peers will refuse.
//!
//! `run` calls this at its start. The gateway serves all the same: certificates can be renewed
//! while it runs.

use crate::cli::output::logging::LOG_TARGET;
use gateway::config::GatewayConfig;
use gateway::wan::connect::tls::{Credentials, check_gateway_name};
use tracing::warn;

/// Logs a warning for each reason why peers will refuse the certificate of a gateway of `fabric`.
pub(super) fn warn_of_own_certificate(
    credentials: &Credentials,
    config: &GatewayConfig,
    fabric: &str,
) {
    for problem in own_certificate_problems(credentials, &config.name, fabric) {
        warn!(
            target: LOG_TARGET,
            "certificate {}: {problem}; peers refuse this gateway until the file is replaced: see \
             `landbridge doctor`",
            config.certificate.display()
        );
    }
}

/// Returns the reasons why peers with the same CA will refuse the certificate now.
fn own_certificate_problems(credentials: &Credentials, gateway: &str, fabric: &str) -> Vec<String> {
    let trust = credentials.check_own_certificate().err().map(|error| error.to_string());
    let name = check_gateway_name(credentials.certificate_chain(), gateway, fabric).err();
    trust.into_iter().chain(name.map(|error| error.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::certs::{CertificateAuthority, Validity};

    /// Returns the problems of a certificate for `name` that is valid in `validity`, at `east-0`.
    fn problems(name: &str, validity: Validity) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let authority = CertificateAuthority::generate("two-region").expect("a CA");
        let issued = authority.issue_certificate(name, "two-region", validity).expect("issued");
        let files = ["own.pem", "own.key", "ca.pem"].map(|name| folder.path().join(name));
        let texts =
            [issued.certificate_pem.as_str(), issued.key_pem.as_str(), authority.certificate_pem()];
        for (file, text) in files.iter().zip(texts) {
            std::fs::write(file, text).expect("ours");
        }
        let credentials = Credentials::load(&files[0], &files[1], &files[2]).expect("loaded");
        own_certificate_problems(&credentials, "east-0", "two-region")
    }

    #[test]
    fn a_certificate_that_peers_refuse_is_told_at_start() {
        assert!(problems("east-0", Validity::days(1)).is_empty());
        let early = problems("east-0", Validity::not_yet());
        assert!(early.len() == 1 && early[0].contains("not valid yet"), "{early:?}");
        let late = problems("east-0", Validity::expired());
        assert!(late.len() == 1 && late[0].contains("expired"), "{late:?}");
        let other = problems("west-0", Validity::days(1));
        assert!(other.len() == 1 && other[0].contains("west-0.two-region"), "{other:?}");
    }
}
