//! A gateway that nobody can dial, behind a relay that hides its ports, and behind a real NAT.

mod network;

use super::deployment::{BINARY, Deployment, Layout, Team};
use super::skipping::skip;
use network::{EAST_ADDRESS, NatNetwork};
use std::process::{Child, Command, Stdio};

/// Two ranks, one in each region.
const LAYOUT: Layout<'static> = Layout::of(1, 1);

/// Changes a file of a deployment: each text that is there by another.
fn change(deployment: &Deployment, file: &str, changes: &[(String, String)]) {
    let path = deployment.path(file);
    let mut text = std::fs::read_to_string(&path).expect("readable");
    for (from, to) in changes {
        assert!(text.contains(from), "{file} has no {from}: {text}");
        text = text.replace(from, to);
    }
    std::fs::write(path, text).expect("written");
}

/// Returns the line of an address in a fabric file.
fn wan_line(address: impl std::fmt::Display) -> String {
    format!("wan = \"{address}\"\n")
}

/// Checks that the ranks get the right sum.
fn assert_at_work(deployment: &Deployment) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let team = Team::attach(deployment, &LAYOUT, "train").await;
        team.sum(&[1, 2], 1 << 17).await.expect("a sum");
    });
}

/// Kills a gateway and starts it again by a command that ends in the binary.
fn restart(deployment: &mut Deployment, index: usize, name: &str, binary: Command) {
    let mut killed = deployment.gateways.remove(index);
    killed.process.kill().expect("runs");
    killed.process.wait().expect("ends");
    deployment.run_gateway_by(name, binary);
    let started = deployment.gateways.pop().expect("the one that was started");
    deployment.gateways.insert(index, started);
}

/// A relay that each dialler meets at `seen`, and whose own ports the dialled gateway sees.
fn relay(seen: std::net::SocketAddr, own: std::net::SocketAddr) -> Child {
    Command::new(BINARY)
        .args(["wan-sim", "--exit-with-parent", "relay", "--control"])
        .args(["--rtt", "2 ms", "--rate", "1 Gbit/s", "--queue", "100 ms"])
        .arg(format!("--forward={seen}={own}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("starts")
}

#[test]
fn a_gateway_without_an_address_trains_through_a_relay() {
    for hidden in ["east", "west"] {
        let layout = Layout { relayed: true, ..LAYOUT };
        let mut deployment = Deployment::new(&layout);
        let fabric = std::fs::read_to_string(deployment.path("fabric.toml")).expect("readable");
        let line = fabric.lines().find(|line| line.starts_with("wan = ")).expect("that of east");
        let east: std::net::SocketAddr =
            line.trim_start_matches("wan = ").trim_matches('"').parse().expect("an address");
        let (west, seen) = (deployment.west, deployment.west_wan);
        let listen = |at| format!("listen = \"{at}\"\n");
        let (own, changes) = match hidden {
            "east" => (west, vec![(wan_line(east), String::new())]),
            _ => {
                let status = ("status = ".to_owned(), listen(east) + "status = ");
                change(&deployment, "east.toml", &[status]);
                change(&deployment, "west.toml", &[(listen(west), String::new())]);
                let hide = (wan_line(seen), String::new());
                (east, vec![hide, (wan_line(east), wan_line(seen))])
            }
        };
        change(&deployment, "fabric.toml", &changes);
        let mut relay = relay(seen, own);
        deployment.run_gateways();
        assert_at_work(&deployment);
        for (index, name) in ["east", "west"].into_iter().enumerate() {
            restart(&mut deployment, index, name, Command::new(BINARY));
            assert_at_work(&deployment);
        }
        let _ = relay.kill();
        let _ = relay.wait();
    }
}

/// West is behind a NAT that lets nobody in, and east has a firewall with the rules that
/// `landbridge ports` prints.
#[test]
fn gateways_train_through_a_nat_and_one_open_port() {
    let network = match NatNetwork::set_up() {
        Ok(network) => network,
        Err(why) => return skip(why),
    };
    let mut deployment = Deployment::new(&LAYOUT);
    let fabric = std::fs::read_to_string(deployment.path("fabric.toml")).expect("readable");
    let mut addresses = fabric.lines().filter(|line| line.starts_with("wan = "));
    let [east, west] = [(); 2].map(|()| format!("{}\n", addresses.next().expect("two")));
    change(&deployment, "fabric.toml", &[(east, wan_line(EAST_ADDRESS)), (west, String::new())]);
    for (site, name) in [("e", "east"), ("w", "west")] {
        let config = deployment.path(&format!("{name}.toml"));
        let ports = Command::new(BINARY).args(["ports", "--nft", "--config"]).arg(config).output();
        let rules = String::from_utf8(ports.expect("runs").stdout).expect("text");
        network.shut_out_all_but(site, &rules);
    }
    for (site, name) in [("e", "east"), ("w", "west")] {
        deployment.run_gateway_by(name, network.binary_in(site));
    }
    assert_at_work(&deployment);
    for (index, (site, name)) in [("e", "east"), ("w", "west")].into_iter().enumerate() {
        restart(&mut deployment, index, name, network.binary_in(site));
        assert_at_work(&deployment);
    }
}
