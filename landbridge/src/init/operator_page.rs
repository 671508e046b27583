//! The page for the operator of one region: what the folder holds, and the commands in their order.

use super::deployment_spec::{DeployedRegion, DeploymentSpec, FABRIC_FILE, SocketPlace};
use hier_collectives::topology::Fabric;
use std::fmt::Write as _;

/// Returns the text of `README.md` in the folder of a region.
pub(super) fn operator_page(
    spec: &DeploymentSpec,
    region: &DeployedRegion,
    fabric: &Fabric,
) -> String {
    let name = &region.name;
    let mut page = format!(
        "# Region {name} of fabric {}\n\nThis folder is for the operator of region {name} alone: it \
         has the keys of its gateways.\n\n| gateway | address, UDP port | ranks | of its own, \
         secret |\n|---|---|---|---|\n",
        spec.fabric
    );
    for gateway in &region.gateways {
        let id = fabric.gateway_named(&gateway.name);
        let ranks = id.map_or(0..0, |id| fabric.gateway(id).ranks.clone());
        let _ = writeln!(
            page,
            "| {0} | {1} | {2} to {3} | keys/{0}.key |",
            gateway.name,
            gateway.wan,
            ranks.start,
            ranks.end.saturating_sub(1)
        );
    }
    let tokens: Vec<String> = spec.jobs.iter().map(|job| format!("keys/{job}.token")).collect();
    let _ = write!(
        page,
        "\nSecret on every host: {}. All other files may be read by anybody.\n\n## On the host of \
         each gateway\n\n1. Install the program `landbridge`.\n",
        tokens.join(", ")
    );
    page += &match spec.sockets {
        SocketPlace::BesideRegionFile => operator_page_by_hand_steps(region),
        SocketPlace::SystemService => operator_page_service_steps(region, spec),
    };
    let job = spec.jobs.first().map_or("train", String::as_str);
    let _ = write!(
        page,
        "\n## In a trainer\n\nA trainer runs on the host of its gateway. It names its region and its \
         number in it, from 0:\n\n```python\nimport landbridge\n\ngroup = \
         landbridge.connect(config=\"{name}.toml\", job=\"{job}\", region=\"{name}\", \
         local_rank=0)\n```\n\nFor PyTorch see docs/pytorch.md; for ports, users, certificates and \
         upgrades docs/deployment.md, both of the project.\n"
    );
    page
}

/// Returns the steps for gateways that somebody starts in this folder.
fn operator_page_by_hand_steps(region: &DeployedRegion) -> String {
    let name = &region.name;
    let choice = if region.gateways.len() == 1 { "" } else { " --gateway GATEWAY" };
    format!(
        "2. Copy this folder there, without the keys of other gateways. Keep the modes of files: \
         `cp -a`, `scp -p` or `rsync -a`.\n3. Open the port: `nft -f firewall-GATEWAY.nft`, or \
         what `landbridge ports --config {name}.toml{choice}` lists.\n4. Check: `landbridge check \
         {FABRIC_FILE} {name}.toml{choice}`.\n5. Start: `landbridge run --config {name}.toml{choice}`.\n6. \
         When the other regions run, too: `landbridge doctor --config {name}.toml{choice}`. It \
         tries every port, and says what to do.\n"
    )
}

/// Returns the steps for gateways that systemd starts by the unit of the Debian package.
fn operator_page_service_steps(region: &DeployedRegion, spec: &DeploymentSpec) -> String {
    let name = &region.name;
    let secrets = spec.jobs.iter().map(|job| format!(" keys/{job}.token")).collect::<String>();
    let (gateway, arguments) = match region.gateways.as_slice() {
        [only] => (only.name.as_str(), String::new()),
        _ => (
            "GATEWAY",
            format!("echo 'LANDBRIDGE_ARGS=--gateway GATEWAY' > /etc/landbridge/{name}.env\n"),
        ),
    };
    format!(
        "2. Copy the files, as root, and start the service:\n\n```console\ninstall -d \
         /etc/landbridge/keys\ncp {FABRIC_FILE} {name}.toml /etc/landbridge\ninstall -m 0644 \
         keys/ca.pem keys/{gateway}.pem /etc/landbridge/keys\ninstall -m 0640 -g landbridge \
         keys/{gateway}.key{secrets} /etc/landbridge/keys\n{arguments}nft -f \
         firewall-{gateway}.nft\nsystemctl enable --now landbridge@{name}\n```\n\n3. When the other \
         regions run, too: `landbridge doctor --config /etc/landbridge/{name}.toml`. It tries every \
         port, and says what to do.\n"
    )
}
