//! The fabric file of a mesh, and its signature by the CA of all simulations.

use super::credentials::keys;
use super::mesh::Mesh;
use crate::{simulated_address, simulated_lan_address};
use gateway::certs::CertificateAuthority;
use gateway::events::FabricChange;
use hier_collectives::ids::GatewayId;
use hier_collectives::topology::QuorumSpec;
use std::fmt::Write as _;
use units::Span;

impl Mesh {
    /// Returns the text of the fabric file of this mesh, with the number of a version.
    pub fn fabric_text(&self, version: u64) -> String {
        let fabric = self.fabric();
        let mut text = format!(
            "name = \"{}\"\nmtu = {}\nlanes = {}\nversion = {version}\n",
            fabric.name(),
            fabric.mtu(),
            fabric.lanes_min()
        );
        let quorum = match &self.quorum {
            QuorumSpec::All => "\"all\"".to_owned(),
            QuorumSpec::Majority => "\"majority\"".to_owned(),
            QuorumSpec::Count(count) => count.to_string(),
            QuorumSpec::Named(names) => format!("{names:?}"),
        };
        let _ = writeln!(text, "quorum = {quorum}\npatience = \"{}\"", self.patience.span());
        if let Some(silence) = self.silence {
            let _ = writeln!(text, "silence = \"{silence}\"");
        }
        for (index, region) in fabric.regions().iter().enumerate() {
            let _ = writeln!(text, "[region.{}]", region.name);
            if region.ranks.is_empty() {
                text.push_str("witness = true\n");
            } else {
                let _ = writeln!(text, "ranks = {}", region.ranks.len());
            }
            if let Some(votes) = self.votes.get(index) {
                let _ = writeln!(text, "votes = {votes}");
            }
            for id in region.gateways.clone().map(GatewayId) {
                let gateway = fabric.gateway(id);
                let _ = writeln!(text, "[region.{}.gateway.{}]", region.name, gateway.name);
                if !gateway.ranks.is_empty() {
                    let _ = writeln!(text, "ranks = {}", gateway.ranks.len());
                }
                let _ = writeln!(text, "lan = \"{}\"", simulated_lan_address(id));
                if let Some(wan) = gateway.wan {
                    let (egress, ingress) = (wan.egress, wan.ingress);
                    let _ = writeln!(text, "wan = \"{}\"", simulated_address(id));
                    let _ = writeln!(text, "egress = \"{egress}\"\ningress = \"{ingress}\"");
                }
            }
        }
        for link in fabric.links() {
            let ends = [link.a, link.b].map(|end| &*fabric.region(end).name).join("-");
            let (rate, rtt, loss) = (link.rate, link.rtt, link.loss);
            let _ = writeln!(
                text,
                "[link.{ends}]\nrate = \"{rate}\"\nrtt = \"{rtt}\"\nloss = \"{loss}\""
            );
        }
        text
    }

    /// Returns an operator's request to put this mesh in force as a version, within ten minutes.
    ///
    /// # Panics
    /// The keys of the simulations are gone.
    pub fn fabric_change(&self, version: u64) -> FabricChange {
        let text = self.fabric_text(version);
        let signature = sign_as_deployment(&text);
        FabricChange { text, signature, within: Span::from_secs(600), dry_run: false }
    }
}

/// Returns the signature of a text by the CA of all simulations, as a file has it.
///
/// # Panics
/// The keys of the simulations are gone.
pub fn sign_as_deployment(text: &str) -> String {
    let (ca, key) = (keys().join("ca.pem"), keys().join("ca.key"));
    let authority = CertificateAuthority::load(&ca, &key).expect("a CA");
    authority.sign_fabric(text).expect("a key of Ed25519").to_string()
}
