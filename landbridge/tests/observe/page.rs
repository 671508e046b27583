//! The status page of running gateways.

use super::{east_status, get, running};

#[test]
fn a_running_gateway_serves_its_page() {
    let deployment = running();
    let address = east_status(&deployment);
    let (head, page) = get(address, "/", "");
    assert!(head.lines().next().is_some_and(|first| first.contains(" 200 ")), "{head}");
    assert!(head.to_ascii_lowercase().contains("content-security-policy: default-src 'none'"));
    assert!(page.starts_with("<!DOCTYPE html>") && page.len() <= 100_000, "{}", page.len());
    // The page holds no data of the gateway: it asks for them.
    assert!(!page.contains("east-0"), "{page}");
    let (_, fabric) = get(address, "/fabric", "");
    let fabric: serde_json::Value = serde_json::from_str(&fabric).expect("JSON");
    assert_eq!(fabric["gateway"], "east-0", "{fabric}");
    assert_eq!(fabric["regions"][0]["gateways"][0]["ranks"], 2, "{fabric}");
    assert_eq!(fabric["links"][0]["between"], serde_json::json!(["east", "west"]), "{fabric}");
}

#[test]
fn a_kept_status_is_no_older_than_asked() {
    let deployment = running();
    let address = east_status(&deployment);
    let uptime = |more: &str| {
        let (_, body) = get(address, "/status", more);
        let status: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        status["uptime_seconds"].as_f64().expect("a number")
    };
    let accepts = "Cache-Control: max-age=10\r\n";
    let first = uptime(accepts);
    assert!(uptime("") > first, "a new one");
    let again = uptime(accepts);
    assert!(again >= first && again <= first + 10.0, "{first} {again}");
}
