//! The files of a deployment of two regions on one machine, each with one gateway.

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

/// A deployment of the regions `east` and `west`. Gateways are called `east-0` and `west-0`.
pub struct TwoRegions<'a> {
    /// Name of the fabric.
    pub fabric: &'a str,
    /// The region `east`.
    pub east: Region,
    /// The region `west`.
    pub west: Region,
    /// Rate of each gateway's WAN port, each way.
    pub port_rate: &'a dyn Display,
    /// Rate of the link, each way.
    pub link_rate: &'a dyn Display,
    /// Round-trip time of the link.
    pub rtt: &'a dyn Display,
    /// Random loss of the link; `None` for no loss.
    pub loss: Option<&'a dyn Display>,
    /// Memory of each gateway.
    pub memory: &'a str,
    /// Names of the jobs.
    pub jobs: &'a [&'a str],
    /// Memory of each job in each region.
    pub job_memory: &'a str,
}

/// One region of the deployment.
pub struct Region {
    /// Relative speed of each rank. Their number is the number of ranks.
    pub speeds: Vec<f64>,
    /// Address at which the other gateway connects: the first of the ports for lanes.
    pub wan: SocketAddr,
    /// Address at which the gateway listens, which differs from `wan` behind a relay.
    pub listen: SocketAddr,
    /// Address of the status server.
    pub status: SocketAddr,
}

impl TwoRegions<'_> {
    /// Writes `fabric.toml`, `east.toml` and `west.toml` to a folder. The files name sockets
    /// (`east.sock`) in that folder, and certificates and tokens in its subfolder `keys`, which
    /// the caller makes.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn write_files(&self, folder: &Path) -> io::Result<()> {
        std::fs::write(folder.join("fabric.toml"), self.fabric_file())?;
        for (name, region) in [("east", &self.east), ("west", &self.west)] {
            std::fs::write(folder.join(format!("{name}.toml")), self.region_file(name, region))?;
        }
        Ok(())
    }

    /// Returns the text of `fabric.toml`, which describes both regions and their link.
    fn fabric_file(&self) -> String {
        let Self { fabric, port_rate, link_rate, rtt, .. } = self;
        let region = |name: &str, region: &Region| {
            let Region { speeds, wan, .. } = region;
            format!(
                "[region.{name}]\nranks = {}\nspeeds = {speeds:?}\n\
                 [region.{name}.gateway.{name}-0]\nwan = \"{wan}\"\n\
                 egress = \"{port_rate}\"\ningress = \"{port_rate}\"\n\n",
                speeds.len()
            )
        };
        let loss = self.loss.map(|loss| format!("loss = \"{loss}\"\n"));
        format!(
            "name = \"{fabric}\"\nmtu = 1500\n\n{}{}[link.east-west]\nrate = \"{link_rate}\"\n\
             rtt = \"{rtt}\"\n{}",
            region("east", &self.east),
            region("west", &self.west),
            loss.unwrap_or_default()
        )
    }

    /// Returns the text of the region file of the region `name`.
    fn region_file(&self, name: &str, region: &Region) -> String {
        let Self { memory, job_memory, .. } = self;
        let Region { wan, listen, status, .. } = region;
        let listen = (listen != wan).then(|| format!("listen = \"{listen}\"\n"));
        let job = |job: &&str| {
            format!("[job.{job}]\ntoken = \"keys/{job}.token\"\nmemory = \"{job_memory}\"\n")
        };
        let jobs: String = self.jobs.iter().map(job).collect();
        format!(
            "fabric = \"fabric.toml\"\n\n[gateway.{name}-0]\nsocket = \"{name}.sock\"\n\
             {}status = \"{status}\"\ncertificate = \"keys/{name}-0.pem\"\n\
             key = \"keys/{name}-0.key\"\nca = \"keys/ca.pem\"\nmemory = \"{memory}\"\n\n{jobs}",
            listen.unwrap_or_default()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RegionFile;

    #[test]
    fn the_written_files_are_a_valid_deployment() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
        let region = |ranks: usize, first: u16| Region {
            speeds: vec![1.0; ranks],
            wan: at(first),
            listen: at(first + 100),
            status: at(first + 200),
        };
        let deployment = TwoRegions {
            fabric: "two",
            east: region(3, 7000),
            west: region(1, 8000),
            port_rate: &"1 Gbit/s",
            link_rate: &"500 Mbit/s",
            rtt: &"80 ms",
            loss: Some(&"0.1 %"),
            memory: "256 MiB",
            jobs: &["train", "other"],
            job_memory: "1 GiB",
        };
        deployment.write_files(folder.path()).expect("written");
        let file = RegionFile::load(&folder.path().join("east.toml")).expect("valid");
        assert_eq!(file.fabric().fabric().world_size(), 4);
        assert_eq!(file.jobs().count(), 2);
        assert_eq!(file.gateway(None).expect("one").status, at(7200));
    }
}
