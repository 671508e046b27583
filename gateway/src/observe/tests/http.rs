use super::server::{answer_request, example, server};
use crate::observe::engine_status_request::StatusRequest;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc::Receiver;

/// An answer: its first line, its headers in lower case, and its body.
struct HttpAnswer {
    first: String,
    headers: String,
    body: String,
}

/// Sends bytes and reads the answer until the server closes the connection.
async fn say(address: SocketAddr, request: &[u8]) -> HttpAnswer {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    // The server may close before it has read all.
    let _ = stream.write_all(request).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let (first, headers) = head.split_once("\r\n").unwrap_or((head, ""));
    HttpAnswer {
        first: first.to_owned(),
        headers: headers.to_ascii_lowercase(),
        body: body.to_owned(),
    }
}

/// Requests a path.
async fn ask(address: SocketAddr, method: &str, path: &str, more: &str) -> HttpAnswer {
    let request = format!("{method} {path} HTTP/1.1\r\nHost: east\r\n{more}\r\n");
    say(address, request.as_bytes()).await
}

/// Answers all status requests, and counts them.
fn answer_all(mut requests: Receiver<StatusRequest>) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    tokio::spawn(async move {
        while let Some(request) = requests.recv().await {
            counted.fetch_add(1, Ordering::Relaxed);
            answer_request(request, example());
        }
    });
    count
}

#[tokio::test]
async fn every_path_has_its_type_and_its_headers() {
    let (address, _, requests) = server().await;
    answer_all(requests);
    for (path, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/?theme=dark", "text/html; charset=utf-8"),
        ("/status", "application/json"),
        ("/dump", "application/json"),
        ("/history", "application/json"),
        ("/fabric", "application/json"),
        ("/metrics", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("/healthz", "text/plain; charset=utf-8"),
        ("/readyz", "text/plain; charset=utf-8"),
    ] {
        let got = ask(address, "GET", path, "").await;
        assert!(got.first.contains(" 200 "), "{path}: {}", got.first);
        let lines: Vec<&str> = got.headers.split("\r\n").collect();
        for line in [
            &*format!("content-type: {content_type}"),
            "cache-control: no-store",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
            "cross-origin-resource-policy: same-origin",
        ] {
            assert!(lines.contains(&line), "{path}: no `{line}` in {lines:?}");
        }
        let policy = lines.iter().any(|line| line.starts_with("content-security-policy:"));
        assert_eq!(policy, content_type.starts_with("text/html"), "{path}");
        let head = ask(address, "HEAD", path, "").await;
        assert!(head.first.contains(" 200 ") && head.body.is_empty(), "{path}");
        if content_type == "application/json" {
            let json: serde_json::Value = serde_json::from_str(&got.body).expect("JSON");
            assert_eq!(json["version"], 1, "{path}");
        }
    }
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let (address, _, requests) = server().await;
    let asked = answer_all(requests);
    for path in ["/index.html", "//", "/status/", "/../status", "/%2e%2e/x", "/favicon.ico", "*"] {
        let got = ask(address, "GET", path, "").await;
        let refused = [" 404 ", " 400 "].iter().any(|code| got.first.contains(code));
        assert!(refused && got.body.is_empty(), "{path}: {}", got.first);
    }
    for path in ["/", "/status", "/dump", "/history", "/fabric", "/metrics", "/healthz", "/readyz"]
    {
        let got = ask(address, "POST", path, "Content-Length: 0\r\n").await;
        assert!(got.first.contains(" 405 ") && got.headers.contains("allow: get,head"), "{path}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0, "no refused request reaches the engine");
}

#[tokio::test]
async fn the_policy_names_the_digests_of_the_page() {
    let (address, _, _requests) = server().await;
    let page = ask(address, "GET", "/", "").await;
    // Digests have capitals, so look at what was sent.
    let mut stream = TcpStream::connect(address).await.expect("connected");
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n").await.expect("sent");
    let mut head = String::new();
    stream.read_to_string(&mut head).await.expect("answered");
    let policy = head.lines().find(|line| line.contains("default-src")).expect("a policy");
    for directive in ["default-src 'none'", "connect-src 'self'", "base-uri 'none'"] {
        assert!(policy.contains(directive), "{policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
    assert!(page.body.starts_with("<!DOCTYPE html>") && page.body.ends_with("</html>\n"));
}

#[tokio::test]
async fn pages_that_ask_at_once_share_one_report() {
    let accepts = "Cache-Control: max-age=10\r\n";
    for path in ["/status", "/dump"] {
        let (address, _, requests) = server().await;
        let asked = answer_all(requests);
        let asking = (0..20).map(|_| tokio::spawn(ask(address, "GET", path, accepts)));
        for answer in asking.collect::<Vec<_>>() {
            assert!(answer.await.expect("no panic").first.contains(" 200 "), "{path}");
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{path}");
        // Who accepts no old report gets a new one.
        for more in ["", "Cache-Control: no-cache\r\n", "Cache-Control: max-age=0\r\n"] {
            ask(address, "GET", path, more).await;
        }
        ask(address, "GET", path, "Cache-Control: max-age=-1\r\n").await;
        assert_eq!(asked.load(Ordering::Relaxed), 5, "{path}");
    }
}

#[tokio::test]
async fn malformed_requests_get_no_status() {
    let (address, _, requests) = server().await;
    let asked = answer_all(requests);
    let long = [b"GET /".as_slice(), &b"a".repeat(1 << 20), b" HTTP/1.1\r\n\r\n"].concat();
    let requests: [&[u8]; 8] = [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /status\r\n\r\n",
        b"GET /status HTTP/9.9\r\n\r\n",
        b"GET /status HTTP/1.1\r\nHost: a\r\nHeader\x00: b\r\n\r\n",
        b"GET /status HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: \xff\r\n\r\n",
        &long,
    ];
    for request in requests {
        let got = say(address, request).await;
        let start = String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
        assert!(!got.first.contains(" 200 "), "{start:?}: {}", got.first);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 0);
    assert!(ask(address, "GET", "/status", "").await.first.contains(" 200 "), "it still answers");
}
