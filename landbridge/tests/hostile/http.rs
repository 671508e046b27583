//! Open status pages and hostile HTTP clients beside an honest job.

use super::{Deployment, attack_beside};
use gateway::config::RegionFile;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Pages that are open at once.
const PAGES: usize = 20;
/// Requests of each page: some seconds of polling.
const POLLS: usize = 5;
/// 100 ms between the requests of a page, twenty times as often as a page asks.
const POLL_PAUSE: Duration = Duration::from_millis(100);

/// Returns the status address of east's gateway.
fn east_status(deployment: &Deployment) -> SocketAddr {
    let file = RegionFile::load(&deployment.path("east.toml")).expect("valid");
    file.gateway(None).expect("one").status
}

/// Sends bytes and returns the first line of the answer; empty if the connection was closed.
async fn say(address: SocketAddr, request: &[u8]) -> String {
    let Ok(mut stream) = TcpStream::connect(address).await else { return String::new() };
    // The server may close before it has read all.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer.lines().next().unwrap_or_default().to_owned()
}

/// Requests what a page requests.
async fn poll_as_page(address: SocketAddr) {
    for _ in 0..POLLS {
        for path in ["/", "/status", "/dump", "/fabric", "/history"] {
            let head =
                format!("GET {path} HTTP/1.1\r\nHost: east\r\nCache-Control: max-age=1\r\n\r\n");
            let first = say(address, head.as_bytes()).await;
            assert!(first.contains(" 200 "), "{path}: {first}");
        }
        tokio::time::sleep(POLL_PAUSE).await;
    }
}

#[test]
fn twenty_open_pages_harm_no_job() {
    attack_beside("20 open status pages", async |deployment| {
        let address = east_status(deployment);
        let pages: Vec<_> = (0..PAGES).map(|_| tokio::spawn(poll_as_page(address))).collect();
        for page in pages {
            page.await.expect("each request was answered");
        }
    });
}

#[test]
fn malformed_requests_harm_no_job() {
    attack_beside("malformed HTTP requests", async |deployment| {
        let address = east_status(deployment);
        let long = [b"GET /".as_slice(), &b"%00".repeat(100_000), b" HTTP/1.1\r\n\r\n"].concat();
        let fields: String = (0..5000).map(|n| format!("a{n}: b\r\n")).collect();
        let many = format!("GET /status HTTP/1.1\r\n{fields}\r\n");
        let head = b"POST /status HTTP/1.1\r\nContent-Length: 9999999\r\n\r\n";
        let unfinished = [head.as_slice(), &[0; 4096]].concat();
        let requests: [&[u8]; 6] = [
            &[0xff; 5000],
            b"GET http://[::1 HTTP/1.1\r\n\r\n",
            b"GET /status HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n\xff",
            &long,
            many.as_bytes(),
            &unfinished,
        ];
        for _ in 0..50 {
            for request in requests {
                // A POST without its body and a request with an odd body are answered, not obeyed.
                say(address, request).await;
            }
        }
        // Connections that say nothing stay open beside the job.
        let mut silent = Vec::new();
        for _ in 0..300 {
            silent.extend(TcpStream::connect(address).await);
        }
        let first = say(address, b"GET /status HTTP/1.0\r\n\r\n").await;
        assert!(first.contains(" 200 "), "{first}");
        silent
    });
}
