//! Secrets must appear neither in the gateways' logs nor in packets between the regions.

use super::deployment::{BINARY, Deployment, Layout, Team};
use gateway::client::{AttachError, AttachOptions, Client, GatewayAddress};
use gateway::loopback::port_block;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::post::FailureCode;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Bytes of all packets on the wire, in order of capture.
type Capture = Arc<Mutex<Vec<u8>>>;

/// Forwards all lanes between the regions and copies every packet to the capture.
fn tap(at: u16, west: SocketAddr, capture: Capture) {
    let outside = UdpSocket::bind((Ipv4Addr::LOCALHOST, at)).expect("the tap's port");
    std::thread::spawn(move || {
        let mut sides = BTreeMap::new();
        let mut packet = [0; 65_536];
        loop {
            let (bytes, from) = outside.recv_from(&mut packet).expect("open");
            capture.lock().expect("no panic inside").extend_from_slice(&packet[..bytes]);
            let inside = sides.entry(from).or_insert_with(|| {
                let inside = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
                inside.connect(west).expect("west");
                forward_back(&inside, &outside, from, &capture);
                inside
            });
            // West may not be there yet.
            let _ = inside.send(&packet[..bytes]);
        }
    });
}

/// Forwards the packets of the way back.
fn forward_back(inside: &UdpSocket, outside: &UdpSocket, to: SocketAddr, capture: &Capture) {
    let inside = inside.try_clone().expect("a socket");
    let outside = outside.try_clone().expect("a socket");
    let capture = Arc::clone(capture);
    std::thread::spawn(move || {
        let mut packet = [0; 65_536];
        loop {
            // Port unreachable while west starts: continue.
            let Ok(bytes) = inside.recv(&mut packet) else { continue };
            capture.lock().expect("no panic inside").extend_from_slice(&packet[..bytes]);
            outside.send_to(&packet[..bytes], to).expect("open");
        }
    });
}

/// Returns true if `needle` is in `haystack`.
fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Returns bytes in hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Elements of the buffer: 1 MiB of i64.
const ELEMENTS: usize = 1 << 17;

/// Values whose bytes appear nowhere else.
const VALUES: [i64; 2] = [0x1d7a_93c5_0e64_b8f2, 0x2c59_e016_a7d3_487b];

/// The deployment: west is reached through the tap.
const LAYOUT: Layout<'static> = Layout { jobs: &["unspoken"], relayed: true, ..Layout::of(1, 1) };

/// Attaches a rank with a token.
async fn attach(
    deployment: &Deployment,
    rank: u32,
    token: [u8; 32],
) -> Result<Client, AttachError> {
    let way = GatewayAddress::Socket(deployment.path(["east.sock", "west.sock"][rank as usize]));
    let options = AttachOptions::new("unspoken", token, rank, 16 << 20);
    let dumps = Some(deployment.path("dumps"));
    Client::attach(&way, AttachOptions { dumps, ..options }).await
}

/// Causes two failures: a disagreement, and a rank that detaches while another waits for it. Returns the
/// client of the latter.
async fn cause_failures(deployment: &Deployment, token: [u8; 32]) -> Client {
    let east = attach(deployment, 0, token).await.expect("attaches");
    let west = attach(deployment, 1, token).await.expect("attaches");
    let post = async |client: &Client, value: i64, elements: usize| {
        let mut tensor = client.allocate(Dtype::I64, elements as u64).expect("room");
        tensor.write(&value.to_le_bytes().repeat(elements));
        client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted")
    };
    let mut ours = post(&east, VALUES[0], ELEMENTS).await;
    let mut theirs = post(&west, VALUES[1], ELEMENTS / 2).await;
    for operation in [&mut ours, &mut theirs] {
        assert_eq!(
            operation.ready().await.expect_err("they disagree").code,
            FailureCode::Disagreement
        );
    }
    let mut alone = post(&east, VALUES[0], ELEMENTS).await;
    drop(west);
    assert_eq!(alone.ready().await.expect_err("nobody else").code, FailureCode::RankLost);
    east
}

/// Returns all files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("read").path();
        if path.is_dir() {
            files.extend(files_below(&path));
        } else {
            files.push(path);
        }
    }
    files
}

/// Returns the texts by which a token and values would be seen, in lower case.
fn texts_of_secrets(token: &[u8], values: &[i64]) -> Vec<String> {
    let listed = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(",");
    let mut secrets = vec![hex(token), listed(&token[..4])];
    for value in values {
        let bytes = value.to_le_bytes();
        secrets.extend([hex(&bytes), format!("{value:x}"), format!("{value}"), listed(&bytes)]);
    }
    secrets
}

#[test]
fn no_dump_of_a_job_holds_its_secrets() {
    let mut deployment = Deployment::new(&Layout { jobs: &["unspoken"], ..Layout::of(1, 1) });
    let dumps = deployment.path("dumps");
    let regions = ["east.toml", "west.toml"].map(|name| deployment.path(name));
    for path in &regions {
        let text = std::fs::read_to_string(path).expect("a region file");
        let text = text.replacen("status =", "dumps = \"dumps\"\nstatus =", 1);
        std::fs::write(path, text).expect("written");
    }
    deployment.run_gateways();
    let token = deployment.token("unspoken").0;
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let east = cause_failures(&deployment, token).await;
        east.dump(&dumps.join("asked.json")).expect("written");
    });
    let mut dump = Command::new(BINARY);
    dump.arg("dump").arg("--config").arg(&regions[0]).arg("--config").arg(&regions[1]);
    dump.arg("--out").arg(dumps.join("all.json")).arg("--torch").arg(dumps.join("torch"));
    assert!(dump.status().expect("runs").success());
    let is_by_itself = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        ["east-0-", "west-0-", "unspoken-rank-0-", "unspoken-rank-1-"]
            .iter()
            .any(|writer| name.starts_with(writer) && name.ends_with(".json"))
    };
    // The gateways' threads may still write.
    while files_below(&dumps).iter().filter(|path| is_by_itself(path)).count() < 4 {
        std::thread::yield_now();
    }
    let files = files_below(&dumps);
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        let bytes = std::fs::read(&file).expect("readable");
        assert!(holds(&bytes, b"all_reduce") || holds(&bytes, b"all-reduce"), "{}", file.display());
        assert!(!holds(&bytes, &token), "the token in {}", file.display());
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        for secret in texts_of_secrets(&token, &VALUES) {
            assert!(!text.contains(&secret), "{secret} in {}", file.display());
        }
        let is_held = |value: &i64| holds(&bytes, &value.to_le_bytes());
        assert!(!VALUES.iter().any(is_held), "a value in {}", file.display());
    }
}

#[test]
fn packets_and_debug_logs_contain_no_secrets() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.debug = true;
    let capture = Capture::default();
    tap(deployment.west_wan.port(), deployment.west, Arc::clone(&capture));
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let token = deployment.token("unspoken").0;
    let mut guessed = token;
    guessed[31] ^= 1;
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "unspoken").await;
        team.sum(&VALUES, ELEMENTS).await.expect("a sum");
        drop(team);
        let refused = attach(&deployment, 0, guessed).await.expect_err("a wrong token");
        assert!(!refused.to_string().contains(&hex(&guessed)), "{refused}");
        drop(cause_failures(&deployment, token).await);
    });
    let texts = ["unspoken", "east-0", "west-0", "two.landbridge", "landbridge/1"];
    let sum = VALUES.iter().sum::<i64>();
    let values = [VALUES[0], VALUES[1], sum];
    let packets = capture.lock().expect("no panic inside").clone();
    assert!(packets.len() > 2 * 8 * ELEMENTS, "only {} bytes passed the tap", packets.len());
    let in_clear = |needle: &[u8]| holds(&packets, needle);
    assert!(!in_clear(&token) && !in_clear(hex(&token).as_bytes()), "the token");
    for value in values {
        // Two elements: eight bytes may also come about by chance.
        assert!(!in_clear(&value.to_le_bytes().repeat(2)), "{value:x}");
    }
    for text in texts {
        assert!(!in_clear(text.as_bytes()), "{text}");
    }
    for gateway in &deployment.gateways {
        let log = gateway.log.text();
        for text in ["DEBUG", "completed", "ranks disagree", "went away"] {
            assert!(log.contains(text), "no `{text}` in {log}");
        }
        let listed = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        let mut secrets = vec![hex(&token), hex(&guessed), listed(&token[..4])];
        for value in values {
            let bytes = value.to_le_bytes();
            secrets.extend([hex(&bytes), format!("{value:x}"), format!("{value}")]);
            secrets.extend([listed(&bytes), String::from_utf8_lossy(&bytes).into_owned()]);
        }
        for secret in secrets {
            assert!(!log.to_lowercase().contains(&secret.to_lowercase()), "{secret} in {log}");
        }
    }
}

#[test]
fn a_capture_of_clear_text_would_show_the_secret() {
    let tapped = port_block::free_port_block().expect("free ports").port();
    let west = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let capture = Capture::default();
    tap(tapped, west.local_addr().expect("bound"), Arc::clone(&capture));
    let east = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let secret = VALUES[0].to_le_bytes().repeat(2);
    east.send_to(&[b"..".as_slice(), &secret].concat(), (Ipv4Addr::LOCALHOST, tapped))
        .expect("sent");
    let mut packet = [0; 64];
    west.recv(&mut packet).expect("forwarded");
    assert!(holds(&capture.lock().expect("no panic inside"), &secret));
}
