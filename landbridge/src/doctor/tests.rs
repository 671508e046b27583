use super::*;
use gateway::certs::{
    CertificateAuthority, CertificateOptions, CertificateValidity, make_certificate_files,
};
use gateway::loopback::port_block::free_port_block;
use gateway::wan::connect::path_probe;
use gateway::wan::connect::tls::Credentials;
use quinn::{Endpoint, ServerConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tokio::net::UdpSocket;

const FABRIC: &str = include_str!("../../../configs/two-region/fabric.toml");
const EAST: &str = include_str!("../../../configs/two-region/east.toml");

/// The files of `east-0` in a temporary directory, in a fabric whose `west-0` is at `west`.
struct Deployment {
    directory: tempfile::TempDir,
    region: RegionFile,
}

/// Writes the files of the example fabric with `west-0` at `west`.
fn deployment(west: SocketAddr) -> Deployment {
    deployment_of(FABRIC, west)
}

/// Writes the files of a fabric whose `west-0` is moved to `west`.
fn deployment_of(fabric: &str, west: SocketAddr) -> Deployment {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let fabric = fabric
        .replace("127.0.0.1:7500", &west.to_string())
        // Little to send, and the example's 80 ms are no fault on loopback.
        .replace("500 Mbit/s", "8 Mbit/s");
    let socket = directory.path().join("run/east-0.sock");
    let east = EAST.replace("run/east-0.sock", &socket.display().to_string());
    std::fs::write(directory.path().join("fabric.toml"), fabric).expect("a temporary file");
    std::fs::write(directory.path().join("east.toml"), east).expect("a temporary file");
    let region = RegionFile::load(&directory.path().join("east.toml")).expect("valid");
    let jobs = ["train".to_owned()];
    let order = CertificateOptions {
        validity: CertificateValidity::days(60),
        jobs: &jobs,
        force: false,
        renew_days: 0,
    };
    make_certificate_files(region.fabric().fabric(), &directory.path().join("keys"), &order)
        .expect("certificates");
    Deployment { directory, region }
}

impl Deployment {
    /// Returns the path of a file in the folder of keys.
    fn key(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("keys").join(name)
    }

    /// Loads the credentials of `west-0`, which trusts the CA certificate in the file `ca`.
    fn west(&self, ca: &Path) -> Credentials {
        Credentials::load(&self.key("west-0.pem"), &self.key("west-0.key"), ca).expect("loaded")
    }

    /// Lets the doctor examine `east-0`.
    async fn examine(&self) -> Vec<Finding> {
        diagnose_whole_gateway(&self.region, self.region.gateway(None).expect("the only one")).await
    }
}

/// Returns verdict and observation of the first finding of a check.
fn verdict(findings: &[Finding], check: &str) -> (FindingVerdict, String) {
    let finding = findings.iter().find(|finding| finding.check == check);
    let finding = finding.unwrap_or_else(|| panic!("no `{check}` in {findings:?}"));
    (finding.verdict, finding.found.clone())
}

/// Answers probes like a gateway, until dropped.
fn serve(socket: std::net::UdpSocket, credentials: &Credentials) -> Endpoint {
    let config = ServerConfig::with_crypto(credentials.server_config().expect("TLS"));
    let runtime = std::sync::Arc::new(quinn::TokioRuntime);
    let endpoint = Endpoint::new(quinn::EndpointConfig::default(), Some(config), socket, runtime);
    let endpoint = endpoint.expect("a socket");
    let accepting = endpoint.clone();
    tokio::spawn(async move {
        while let Some(incoming) = accepting.accept().await {
            if let Ok(connection) = incoming.await {
                assert!(path_probe::is_path_probe(&connection));
                tokio::spawn(path_probe::answer_path_probe(connection));
            }
        }
    });
    endpoint
}

/// Returns a socket on the first port of a block of its own, and its address. Nothing listens on
/// the others.
fn socket() -> (std::net::UdpSocket, SocketAddr) {
    let address = free_port_block().expect("free ports");
    (std::net::UdpSocket::bind(address).expect("a free port"), address)
}

/// Passes datagrams of at most `bytes_max` bytes on to `to` and back, from the port of `front`.
fn forward_short_datagrams(front: std::net::UdpSocket, to: SocketAddr, bytes_max: usize) {
    let asynchronous = |socket: std::net::UdpSocket| {
        socket.set_nonblocking(true).expect("a socket");
        UdpSocket::from_std(socket).expect("within a runtime")
    };
    let back = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    back.connect(to).expect("an address");
    let (front, back) = (asynchronous(front), asynchronous(back));
    tokio::spawn(async move {
        let (mut there, mut here) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut client = None;
        loop {
            tokio::select! {
                received = front.recv_from(&mut there) => {
                    let Ok((length, from)) = received else { continue };
                    client = Some(from);
                    if length <= bytes_max {
                        let _ = back.send(&there[..length]).await;
                    }
                }
                received = back.recv(&mut here) => {
                    let Ok(length) = received else { continue };
                    if let Some(client) = client.filter(|_| length <= bytes_max) {
                        let _ = front.send_to(&here[..length], client).await;
                    }
                }
            }
        }
    });
}

#[tokio::test]
async fn a_sound_deployment_passes_every_check() {
    let (socket, address) = socket();
    let deployment = deployment(address);
    let _west = serve(socket, &deployment.west(&deployment.key("ca.pem")));
    let findings = deployment.examine().await;
    let failed: Vec<_> = findings.iter().filter(|f| f.verdict == FindingVerdict::Failed).collect();
    assert!(failed.is_empty(), "{failed:?}");
    assert_eq!(verdict(&findings, "UDP both ways").0, FindingVerdict::Ok);
    let (mtu, found) = verdict(&findings, "MTU");
    assert!(mtu == FindingVerdict::Ok && found.starts_with("1500 bytes"), "{found}");
    let (ports, found) = verdict(&findings, "UDP ports");
    assert!(ports == FindingVerdict::Ok && found.starts_with("all answer: "), "{found}");
    let (running, found) = verdict(&findings, "running gateway");
    assert!(running == FindingVerdict::Skipped && found.contains("nothing answers at"), "{found}");
    assert!(verdict(&findings, "rate").1.contains("sent 977 KiB at "), "{findings:?}");
    let left: Vec<_> = std::fs::read_dir(deployment.directory.path()).expect("there").collect();
    assert_eq!(left.len(), 3, "the doctor leaves nothing behind: {left:?}");
}

/// The path carries 1,400 bytes, the fabric states 1,500, and one of two addresses is shut.
#[tokio::test]
async fn a_narrow_path_and_shut_ports_are_named() {
    let (front, address) = socket();
    let several = format!("[\"127.0.0.1:7500\", \"127.0.0.2:{}\"]", address.port());
    let text = FABRIC
        .replace("name = \"two-region\"", "name = \"two-region\"\nmtu = 1500")
        .replace("\"127.0.0.1:7500\"", &several);
    let deployment = deployment_of(&text, address);
    let (back, west) = socket();
    let _west = serve(back, &deployment.west(&deployment.key("ca.pem")));
    forward_short_datagrams(front, west, 1400 - 28);
    let findings = deployment.examine().await;
    let (ports, found) = verdict(&findings, "UDP ports");
    let shut = format!("{} of 127.0.0.2", address.port());
    assert!(ports == FindingVerdict::Warning && found.ends_with(&shut), "{found}");
    assert_eq!(verdict(&findings, "UDP both ways").0, FindingVerdict::Ok, "{findings:?}");
    let (mtu, found) = verdict(&findings, "MTU");
    assert!(mtu == FindingVerdict::Failed && found.contains("more than 1400 bytes"), "{found}");
    let advice = findings.iter().find(|finding| finding.check == "MTU");
    let advice = advice.and_then(|finding| finding.advice.clone()).unwrap_or_default();
    assert!(advice.contains("set `mtu` to 1400"), "{advice}");
}

#[tokio::test]
async fn an_absent_peer_is_distinguished_from_one_that_refuses() {
    // No other test listens at this address of the loopback network.
    let (_socket, address) = socket();
    let absent = deployment(SocketAddr::new(Ipv4Addr::new(127, 9, 8, 7).into(), address.port()));
    let findings = absent.examine().await;
    let (udp, found) = verdict(&findings, "UDP both ways");
    assert_eq!(udp, FindingVerdict::Failed, "{findings:?}");
    assert!(found.contains("nothing listens there"), "{found}");

    let (socket, address) = socket();
    let untrusted = deployment(address);
    let other = CertificateAuthority::generate("two-region").expect("a CA");
    let ca = untrusted.key("other.pem");
    std::fs::write(&ca, other.certificate_pem()).expect("a temporary file");
    let _west = serve(socket, &untrusted.west(&ca));
    let findings = untrusted.examine().await;
    let (udp, found) = verdict(&findings, "UDP both ways");
    assert_eq!(udp, FindingVerdict::Failed, "{findings:?}");
    assert!(found.contains("refused"), "{found}");
}

#[tokio::test]
async fn faults_of_this_host_are_found() {
    let (socket, address) = socket();
    drop(socket);
    let deployment = deployment(address);
    let key = deployment.key("east-0.key");
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).expect("ours");
    std::fs::remove_file(deployment.key("train.token")).expect("there");
    let (ca, ca_key) = (deployment.key("ca.pem"), deployment.key("ca.key"));
    let authority = CertificateAuthority::load(&ca, &ca_key).expect("a CA");
    let issued = authority
        .issue_certificate("west-0", "two-region", CertificateValidity::expired())
        .expect("issued");
    std::fs::write(deployment.key("east-0.pem"), issued.certificate_pem).expect("ours");
    std::fs::write(&key, issued.key_pem).expect("ours");
    let findings = deployment.examine().await;
    // The CA has signed the expired certificate.
    assert_eq!(verdict(&findings, "certificate").0, FindingVerdict::Ok, "{findings:?}");
    for check in ["key permissions", "job token", "name", "expiry"] {
        let (verdict, found) = verdict(&findings, check);
        assert_eq!(verdict, FindingVerdict::Failed, "{check}: {found}");
    }
    let failed = findings.iter().filter(|finding| finding.verdict == FindingVerdict::Failed);
    assert!(failed.clone().all(|finding| finding.advice.is_some()), "{findings:?}");

    std::fs::remove_file(&key).expect("there");
    // Readable by its owner alone, but refused by `landbridge run`.
    let token = deployment.key("train.token");
    std::fs::write(&token, "not hexadecimal\n").expect("ours");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("ours");
    let findings = deployment.examine().await;
    let (bad, found) = verdict(&findings, "job token");
    assert!(bad == FindingVerdict::Failed && found.contains("64 hexadecimal"), "{found}");
    assert!(verdict(&findings, "certificate").1.contains("east-0.key"), "{findings:?}");
    assert_eq!(verdict(&findings, "UDP both ways").0, FindingVerdict::Skipped);
}
