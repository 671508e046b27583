//! Certificates renewed while a gateway runs, and a gateway that starts after its trainer.

use super::deployment::{Deployment, Layout, Team};
use rustix::process::{Pid, Signal, kill_process};

const LAYOUT: Layout<'static> = Layout::of(1, 1);

impl Deployment {
    /// Installs the files of a gateway, signals it, and waits for a line of its log.
    fn renew(&self, gateway: usize, from: &str, line: &str) {
        let name = ["east", "west"][gateway];
        for file in [format!("{name}-0.pem"), format!("{name}-0.key"), "ca.pem".to_owned()] {
            let (from, to) = (self.path(from).join(&file), self.path("keys").join(&file));
            std::fs::copy(from, to).expect("copied");
        }
        let pid = Pid::from_child(&self.gateways[gateway].process);
        kill_process(pid, Signal::HUP).expect("signalled");
        self.gateways[gateway].log.line_with(line);
    }
}

#[test]
fn renewed_certificates_count_and_bad_ones_do_not() {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateways();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let team = runtime.block_on(Team::attach(&deployment, &LAYOUT, "train"));
    let epoch = team.epoch();
    runtime.block_on(team.sum(&[1, 2], 1000)).expect("a sum");
    std::fs::create_dir(deployment.path("broken")).expect("made");
    for file in ["east-0.pem", "east-0.key", "ca.pem"] {
        std::fs::write(deployment.path("broken").join(file), "no PEM").expect("written");
    }
    deployment.renew(0, "broken", "certificates cannot be used");
    deployment.certs("new", &["train"]);
    deployment.renew(0, "new", "certificates read again");
    deployment.renew(1, "new", "certificates read again");
    // Existing connections continue.
    runtime.block_on(team.sum(&[3, 4], 1000)).expect("a sum");
    assert_eq!(team.epoch(), epoch);
    drop(team);
    // A restarted west trusts only the new CA, so east must present its new certificate.
    let mut west = deployment.gateways.pop().expect("west");
    west.process.kill().expect("killed");
    west.process.wait().expect("ended");
    deployment.run_gateway("west");
    runtime.block_on(async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        team.sum(&[5, 6], 1000).await.expect("a sum");
    });
}

#[test]
fn the_first_remote_trainer_sees_the_renewed_certificate() {
    use gateway::client::{AttachOptions, Client, GatewayAddress};
    let mut deployment = Deployment::new(&LAYOUT);
    let way = deployment.serve_hosts("east", "");
    deployment.run_gateways();
    deployment.certs("new", &["train"]);
    // The trainer trusts the new CA alone.
    deployment.renew(0, "new", "certificates read again");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let attach = AttachOptions::new("train", deployment.token("train"), 0, 1 << 20);
    let attached = runtime.block_on(Client::attach(&GatewayAddress::Tls(way), attach));
    assert_eq!(attached.expect("attaches").world_size(), 2);
}

#[test]
fn a_trainer_waits_for_a_gateway_that_starts_later() {
    let mut deployment = Deployment::new(&LAYOUT);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (path, token) = (deployment.path("east.sock"), deployment.token("train"));
    let early = runtime.spawn(async move {
        use gateway::client::{AttachOptions, Client, GatewayAddress};
        Client::attach(
            &GatewayAddress::Socket(path),
            AttachOptions::new("train", token, 0, 1 << 20),
        )
        .await
    });
    deployment.run_gateways();
    let client = runtime.block_on(early).expect("no panic").expect("attaches");
    assert_eq!(client.world_size(), 2);
}
