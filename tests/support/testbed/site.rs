//! The sites of a testbed, and the files that describe a deployment over them.

use std::path::{Path, PathBuf};
use std::process::Command;
use units::{BitRate, Fraction, Span};

/// Name of the fabric of every testbed.
pub const FABRIC: &str = "bench";

/// Sites on which programs run, and the folder of everything that belongs to them.
pub trait Testbed {
    /// Returns the folder of configs, sockets and outputs.
    fn folder(&self) -> &Path;

    /// Returns the program `landbridge` that is measured.
    fn landbridge(&self) -> &Path;

    /// Returns the names of the sites, which are also the regions, in alphabetical order.
    fn sites(&self) -> &[&'static str];

    /// Returns the address of each site.
    fn addresses(&self) -> &[&'static str];

    /// Returns a command that runs a program at a site. The process is the program's own.
    fn at(&self, site: &str, program: &Path) -> Command;

    /// Returns whether the path takes several packets in one buffer; netem drops such a buffer
    /// whole.
    fn has_segmentation_offload(&self) -> bool {
        true
    }

    /// Returns the path of a file in the folder.
    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Returns a command that runs `landbridge` at a site.
    fn landbridge_at(&self, site: &str) -> Command {
        self.at(site, self.landbridge())
    }

    /// Returns the config file of a site.
    fn config(&self, site: &str) -> PathBuf {
        self.path(&format!("{site}.toml"))
    }
}

/// A fabric with one gateway and one rank at each site, and a link between each two of them.
#[derive(Debug, Clone, Copy)]
pub struct FabricText<'a> {
    /// Names of the sites, in alphabetical order.
    pub sites: &'a [&'static str],
    /// Address of each site.
    pub addresses: &'a [&'static str],
    /// IP MTU in bytes.
    pub mtu: u16,
    /// Rate of each link and of each port.
    pub rate: BitRate,
    /// Round-trip time of each link.
    pub rtt: Span,
    /// Random loss of each link.
    pub loss: Fraction,
    /// Congestion controller of each link.
    pub controller: &'a str,
}

impl FabricText<'_> {
    /// Returns the text of the fabric file.
    pub fn to_toml(&self) -> String {
        let Self { sites, addresses, mtu, rate, rtt, loss, controller } = *self;
        let mut text = format!("name = \"{FABRIC}\"\nmtu = {mtu}\n");
        for (name, address) in sites.iter().zip(addresses) {
            text += &format!(
                "[region.{name}]\nranks = 1\n[region.{name}.gateway.{name}-0]\n\
                 wan = \"{address}:7400\"\negress = \"{rate}\"\ningress = \"{rate}\"\n"
            );
        }
        for (index, one) in sites.iter().enumerate() {
            for other in &sites[index + 1..] {
                text += &format!(
                    "[link.{one}-{other}]\nrate = \"{rate}\"\nrtt = \"{rtt}\"\n\
                     loss = \"{loss}\"\ncontroller = \"{controller}\"\n"
                );
            }
        }
        text
    }
}

/// Returns the text of the region file of a site, the `index`th from 0.
pub fn region_text(site: &str, index: usize, segmentation_offload: bool) -> String {
    format!(
        "fabric = \"fabric.toml\"\n[gateway.{site}-0]\nsocket = \"{site}.sock\"\n\
         status = \"{}\"\ncertificate = \"keys/{site}-0.pem\"\n\
         key = \"keys/{site}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"1 GiB\"\n\
         segmentation_offload = {segmentation_offload}\n\
         [job.train]\ntoken = \"keys/train.token\"\nmemory = \"8 GiB\"\n",
        status_address(index)
    )
}

/// Returns the status address of the gateway at the `index`th site from 0.
pub fn status_address(index: usize) -> String {
    format!("127.0.0.{}:9400", index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_has_one_link_for_each_pair() {
        let text = FabricText {
            sites: &["a", "b", "c"],
            addresses: &["127.0.0.1", "127.0.0.2", "127.0.0.3"],
            mtu: 1500,
            rate: BitRate::from_bits_per_second(1_000_000_000),
            rtt: Span::from_ms(1),
            loss: Fraction::default(),
            controller: "dedicated",
        };
        let text = text.to_toml();
        let links: Vec<&str> = text.lines().filter(|line| line.starts_with("[link.")).collect();
        assert_eq!(links, ["[link.a-b]", "[link.a-c]", "[link.b-c]"]);
        assert_eq!(text.matches("ranks = 1").count(), 3);
    }
}
