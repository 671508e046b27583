use super::common::*;
use crate::config::{ConfigFile, RewrittenConfigFile};
use std::path::Path;

/// Replaces the former values of a file, and returns its new text.
fn fixed(path: &Path) -> Option<String> {
    RewrittenConfigFile::load(path).expect("readable").map(|rewritten| rewritten.after)
}

#[test]
fn an_earlier_name_of_a_controller_is_replaced() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("fabric.toml");
    let text =
        FABRIC.replace("rtt = \"80 ms\"", "controller='link-share'\t# ours\r\nrtt = \"80 ms\"");
    std::fs::write(&path, &text).expect("a temporary file");
    let faults = ConfigFile::load(&path).expect_err("an earlier name");
    let all: Vec<_> = faults.iter().map(|fault| (&*fault.key, fault.value.as_deref())).collect();
    assert_eq!(all, [("link.east-west.controller", Some("'link-share'"))]);
    assert!(faults.to_string().contains("`landbridge check --fix` writes \"dedicated\""));
    let after = fixed(&path).expect("an earlier name");
    assert_eq!(after, text.replace("'link-share'", "\"dedicated\""));
    std::fs::write(&path, after).expect("a temporary file");
    ConfigFile::load(&path).expect("valid");
    assert_eq!(fixed(&path), None);
}

#[test]
fn other_faults_of_a_file_stay() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("fabric.toml");
    let text = FABRIC
        .replace("rtt = \"80 ms\"", "rtt = \"80 m\"\ncontroller = \"link-share\"")
        .replace("mtu", "mtus");
    std::fs::write(&path, &text).expect("a temporary file");
    let before = ConfigFile::load(&path).expect_err("faults").iter().count();
    let after = fixed(&path).expect("an earlier name");
    std::fs::write(&path, after).expect("a temporary file");
    let left = ConfigFile::load(&path).expect_err("the others");
    assert_eq!(left.iter().count(), before - 1, "{left}");
    assert!(left.iter().all(|fault| fault.replacement.is_none()), "{left}");
}

#[test]
fn a_port_that_was_ignored_becomes_zero() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let fabric = FABRIC.replace("wan = \"127.0.0.1:7400\"\n", "");
    std::fs::write(directory.path().join("fabric.toml"), fabric).expect("a temporary file");
    let path = directory.path().join("east.toml");
    for (listen, now) in [
        ("\"0.0.0.0:7400\" # any", "\"0.0.0.0:0\" # any"),
        (
            "[\n  \"127.0.0.1:7400\", # one\n  \"127.0.0.2:0\",\n]",
            "[\n  \"127.0.0.1:0\", # one\n  \"127.0.0.2:0\",\n]",
        ),
    ] {
        let of = |listen| {
            EAST.replace("memory = \"1 GiB\"", &format!("memory = \"1 GiB\"\nlisten = {listen}"))
        };
        std::fs::write(&path, of(listen)).expect("a temporary file");
        let after = fixed(&path).expect("a port");
        assert_eq!(after, of(now));
        std::fs::write(&path, after).expect("a temporary file");
        ConfigFile::load(&path).expect("valid");
    }
}
