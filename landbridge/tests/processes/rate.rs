//! `landbridge rate` against a running gateway.

use super::deployment::{BINARY, Deployment};
use super::{deployment, outcome};
use std::process::{Command, Output};

/// Runs `landbridge rate` at the gateway of east.
fn rate(deployment: &Deployment, link: &str, rate: &str) -> Output {
    let config = deployment.path("east.toml");
    let arguments = ["rate", link, rate, "--json", "--config"];
    Command::new(BINARY).args(arguments).arg(config).output().expect("runs")
}

#[test]
fn an_operator_limits_a_link_at_both_ends() {
    let mut deployment = deployment(1, 1);
    assert_eq!(rate(&deployment, "east-west", "10 Mbit/s").status.code(), Some(69));
    deployment.run_gateways();
    let west = std::sync::Arc::clone(&deployment.gateways[1].log);
    let held = outcome(&rate(&deployment, "east-west", "10 Mbit/s"));
    assert_eq!(held["rate_bits_per_second"], 1_000_000_000, "{held}");
    assert_eq!(held["effective_bits_per_second"], 10_000_000, "{held}");
    assert_eq!(held["operator_gateway"], "east-0", "{held}");
    west.line_with("link east-west: limited to 10 Mbit/s by an operator at east-0");
    for (link, wrong) in [("east-west", "2 Gbit/s"), ("east-south", "1 Mbit/s"), ("east-west", "7")]
    {
        let refused = rate(&deployment, link, wrong);
        assert_eq!(refused.status.code(), Some(64), "{link} {wrong}: {refused:?}");
        assert!(refused.stdout.is_empty(), "{refused:?}");
    }
    let lifted = outcome(&rate(&deployment, "west-east", "scheduled"));
    assert_eq!(lifted["effective_bits_per_second"], 1_000_000_000, "{lifted}");
    assert!(lifted["operator_gateway"].is_null(), "{lifted}");
    west.line_with("link east-west: no longer limited by an operator at east-0");
}
