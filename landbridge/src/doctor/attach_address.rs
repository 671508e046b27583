//! Checks of the address at which trainers of other hosts attach.

use super::finding::Finding;
use gateway::client::{AttachError, AttachTlsGateway, TlsAddress};
use gateway::config::GatewayConfig;
use gateway::wan::connect::tls::TrustAnchors;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// Checks that the gateway listens at its `attach` address and proves its name there, or can listen;
/// `None` for a gateway without one. Call it within a runtime.
pub(super) async fn diagnose_attach_address(gateway: &GatewayConfig) -> Option<Finding> {
    let address = gateway.attach?;
    let finding = |found: String| Finding::ok("attach address", address, found);
    if let Some(Err(error)) = gateway.trainers_ca.as_deref().map(TrustAnchors::load) {
        let advice = "put the certificate of the trainers' CA there, in PEM";
        return Some(finding(error.to_string()).into_failure(advice));
    }
    match TcpListener::bind(address) {
        Ok(_) => return Some(finding("can be bound; no gateway is listening".to_owned())),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {}
        Err(error) => {
            let advice = "use an address of this host and a port above 1023";
            return Some(finding(error.to_string()).into_failure(advice));
        }
    }
    let way = attach_address_to_diagnose(address);
    let mut way = AttachTlsGateway::new(way.parse::<TlsAddress>().ok()?, &gateway.ca);
    way.gateway = Some(gateway.name.clone());
    Some(match way.connect_unattached().await {
        Ok(_) => finding("a gateway is listening, and proves its name".to_owned()),
        // The check of the certificate reports the files.
        Err(AttachError::Credentials(error)) => finding(error.to_string()).into_skipped(),
        Err(error) => {
            let advice = "stop what listens there, or give the gateway another `attach` address";
            finding(error.to_string()).into_failure(advice)
        }
    })
}

/// Returns the way from this host to an address at which a gateway listens.
fn attach_address_to_diagnose(mut address: SocketAddr) -> String {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    format!("tls://{address}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_tried_on_loopback() {
        let way = |text: &str| attach_address_to_diagnose(text.parse().expect("an address"));
        assert_eq!(way("0.0.0.0:7480"), "tls://127.0.0.1:7480");
        assert_eq!(way("[::]:7480"), "tls://[::1]:7480");
        assert_eq!(way("192.0.2.10:7480"), "tls://192.0.2.10:7480");
    }
}
