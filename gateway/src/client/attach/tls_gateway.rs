//! The way to the gateway of another host: `tls://HOST:PORT`.

use super::AttachError;
use crate::local::remote::attach_listener::prepare_attach_listener_stream;
use crate::local::remote::tls_stream::TlsClientStream;
use crate::local::trainer_listener::{ConnectError, TrainerStream};
use crate::wan::connect::tls::{CredentialsError, gateway_verifier_client_config};
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// 10 s: the time limit of one attempt to connect to a gateway on another host by TCP and TLS.
/// After that time the attempt fails, and an attach tries again. A gateway waits as long for a
/// connection to attach.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// 60,000 ms: how long a gateway on another host may leave sent bytes unacknowledged, or take no
/// further byte. After that the kernel ends the trainer's connection. A gateway reads as long as
/// its engine runs.
const UNACKNOWLEDGED_MS_MAX: u32 = 60_000;

/// The host and the port of a gateway's `attach` address, written `tls://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsAddress {
    host: String,
    port: u16,
}

/// A text that is no address of a gateway on another host. The caller's fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}`: accepted: tls://HOST:PORT, such as tls://gateway-0.example:7480 or tls://[::1]:7480"
)]
pub struct NoTlsAddress(String);

impl FromStr for TlsAddress {
    type Err = NoTlsAddress;

    /// Parses the address of a gateway on another host, `tls://HOST:PORT`; an IPv6 address stands
    /// in brackets.
    fn from_str(text: &str) -> Result<Self, NoTlsAddress> {
        let parse = || {
            let (host, port) = text.strip_prefix("tls://")?.rsplit_once(':')?;
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = match inner {
                Some(inner) => inner,
                None if host.contains(':') => return None,
                None => host,
            };
            ServerName::try_from(host).ok()?;
            let digits = port.bytes().all(|digit| digit.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port != 0)?;
            Some(Self { host: host.to_owned(), port })
        };
        parse().ok_or_else(|| NoTlsAddress(text.to_owned()))
    }
}

impl fmt::Display for TlsAddress {
    /// Prints the address in the form `tls://HOST:PORT`, in which it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "tls://[{host}]:{port}")
        } else {
            write!(f, "tls://{host}:{port}")
        }
    }
}

/// A gateway on another host, and the files by which both ends prove who they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachTlsGateway {
    /// Its address.
    pub address: TlsAddress,
    /// The certificate of the deployment's CA, PEM.
    pub ca: PathBuf,
    /// The name of the one gateway that is accepted; without it, any gateway of the CA.
    pub gateway: Option<String>,
    /// Certificate and key of this trainer, PEM, for a gateway with `trainers_ca`.
    pub identity: Option<(PathBuf, PathBuf)>,
}

impl AttachTlsGateway {
    /// Makes the way to the gateway at an address, which must prove its name by a certificate of
    /// the CA in the file `ca`. The trainer shows no certificate.
    pub fn new(address: TlsAddress, ca: impl Into<PathBuf>) -> Self {
        Self { address, ca: ca.into(), gateway: None, identity: None }
    }

    /// Loads the TLS settings of connections to the gateway from the files of CA, certificate and
    /// key.
    ///
    /// # Errors
    /// A file is missing or cannot be used.
    pub(super) fn load(&self) -> Result<Arc<ClientConfig>, CredentialsError> {
        let identity = self.identity.as_ref();
        let identity = identity.map(|(chain, key)| (Path::new(chain), Path::new(key)));
        gateway_verifier_client_config(&self.ca, self.gateway.as_deref(), identity)
    }

    /// Connects to the gateway once, and makes sure that it proves its name.
    ///
    /// # Errors
    /// Nothing answers in time, or the gateway proves no name.
    pub(super) async fn connect(
        &self,
        config: &Arc<ClientConfig>,
    ) -> Result<TlsClientStream<TcpStream>, ConnectError> {
        let connecting = async {
            let TlsAddress { host, port } = &self.address;
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            prepare_attach_listener_stream(&stream)?;
            sockopt::set_tcp_user_timeout(stream.as_fd(), UNACKNOWLEDGED_MS_MAX)?;
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            TlsClientStream::connect(stream, Arc::clone(config), name).await
        };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(|error| {
            match tls_gateway_mismatch(&error) {
                Some(why) => ConnectError::Untrusted(format!("{}: {why}", self.address)),
                None => ConnectError::NoAnswer(error),
            }
        })
    }

    /// Connects to the gateway, which proves its name, and attaches no rank: for checks of a
    /// deployment.
    ///
    /// # Errors
    /// Nothing answers, the gateway proves no name, or a file cannot be used.
    pub async fn connect_unattached(&self) -> Result<Box<dyn TrainerStream>, AttachError> {
        match self.connect(&self.load()?).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(AttachError::of_connect(error, || self.address.to_string())),
        }
    }
}

/// Returns the reason why TLS with a gateway cannot succeed, with advice; `None` for an error that
/// another attempt may cure.
pub(super) fn tls_gateway_mismatch(error: &io::Error) -> Option<String> {
    let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
    let advice = match tls {
        rustls::Error::InvalidCertificate(
            rustls::CertificateError::UnknownIssuer | rustls::CertificateError::BadSignature,
        ) => "; is `ca` the CA of this gateway's deployment?",
        rustls::Error::InvalidCertificate(_) => "",
        rustls::Error::AlertReceived(_) => {
            "; the gateway refuses this trainer's certificate, or wants one (`trainers_ca`)"
        }
        rustls::Error::InvalidMessage(_) | rustls::Error::PeerIncompatible(_) => {
            "; is it the `attach` address of a gateway?"
        }
        _ => return None,
    };
    Some(format!("{tls}{advice}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_scheme_host_and_port() {
        for good in ["tls://gateway-0.example:7480", "tls://192.0.2.1:1", "tls://[::1]:65535"] {
            let parsed: TlsAddress = good.parse().expect("valid");
            assert_eq!(parsed.to_string(), good);
        }
        let bad = [
            "",
            "tls://",
            "tls://host",
            "tls://:7480",
            "tls://host:0",
            "tls://host:+1",
            "tls://host:65536",
            "tls://::1:7480",
            "tls://[::1:7480",
            "tcp://host:7480",
            "/run/landbridge/east-0.sock",
            "tls://a b:7480",
        ];
        for text in bad {
            let error = text.parse::<TlsAddress>().expect_err(text);
            assert!(error.to_string().contains("accepted: tls://HOST:PORT"), "{error}");
        }
    }
}
