//! Network namespaces: west behind a router that masquerades, and east.

use super::BINARY;
use std::io::Write as _;
use std::process::{Command, Stdio};

/// The address of east, which all can reach.
pub const EAST_ADDRESS: &str = "10.88.2.2:7400";

/// Three network namespaces: `w` and `e` of the gateways, and between them the router `r`.
pub struct NatNetwork(String);

impl NatNetwork {
    /// Makes the namespaces. The router gives packets of `w` its own address, and passes nothing on to
    /// `w` but answers.
    ///
    /// # Errors
    /// The reason why this system cannot have them.
    pub fn set_up() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("network namespaces need root".to_owned());
        }
        for program in ["ip", "nft"] {
            let found = Command::new(program).arg("-V").stdout(Stdio::null()).status();
            found.map_err(|error| format!("no program `{program}` for a NAT: {error}"))?;
        }
        let network = Self(format!("lbnat{}", std::process::id()));
        for site in ["w", "r", "e"] {
            network.ip(&format!("netns add {}", network.name(site)))?;
            network.ip(&format!("-n {} link set lo up", network.name(site)))?;
        }
        for (site, own, router) in
            [("w", "10.88.1.2", "10.88.1.1"), ("e", "10.88.2.2", "10.88.2.1")]
        {
            let (here, there) = (network.name(site), network.name("r"));
            network.ip(&format!(
                "link add uplink netns {here} type veth peer name to-{site} netns {there}"
            ))?;
            for (name, device, address) in
                [(&here, "uplink".to_owned(), own), (&there, format!("to-{site}"), router)]
            {
                network.ip(&format!("-n {name} addr add {address}/24 dev {device}"))?;
                network.ip(&format!("-n {name} link set {device} up"))?;
            }
        }
        network.ip(&format!("-n {} route add default via 10.88.1.1", network.name("w")))?;
        network.nft("r", "add table ip nat\n\
                          add chain ip nat out { type nat hook postrouting priority 100; }\n\
                          add rule ip nat out oifname \"to-e\" masquerade fully-random\n\
                          add chain ip nat pass { type filter hook forward priority 0; policy drop; }\n\
                          add rule ip nat pass iifname \"to-w\" accept\n\
                          add rule ip nat pass ct state established accept\n")?;
        let sysctl = [
            "netns",
            "exec",
            &network.name("r"),
            "sh",
            "-c",
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
        ];
        let forwards = Command::new("ip").args(sysctl).status();
        forwards.map_err(|error| error.to_string())?;
        Ok(network)
    }

    /// Shuts the firewall of a site for all packets but those of these rules.
    pub fn shut_out_all_but(&self, site: &str, rules: &str) {
        let chains = "add table inet filter\n\
                      add chain inet filter input { type filter hook input priority 0; policy drop; }\n\
                      add chain inet filter output { type filter hook output priority 0; policy drop; }\n\
                      add rule inet filter input iifname \"lo\" accept\n\
                      add rule inet filter output oifname \"lo\" accept\n";
        self.nft(site, chains).expect("accepted");
        self.nft(site, rules).expect("accepted");
    }

    /// Returns a command that runs the binary at a site.
    pub fn binary_in(&self, site: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name(site), BINARY]);
        command
    }

    /// Returns the name of a namespace.
    fn name(&self, site: &str) -> String {
        format!("{}{site}", self.0)
    }

    /// Runs a command of iproute2.
    fn ip(&self, arguments: &str) -> Result<(), String> {
        let output = Command::new("ip").args(arguments.split(' ')).output();
        let output = output.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("ip {arguments}: {text}")) }
    }

    /// Has nftables take a script at a site.
    fn nft(&self, site: &str, script: &str) -> Result<(), String> {
        let mut nft = Command::new("ip")
            .args(["netns", "exec", &self.name(site), "nft", "-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| error.to_string())?;
        let mut stdin = nft.stdin.take().expect("piped");
        stdin.write_all(script.as_bytes()).map_err(|error| error.to_string())?;
        drop(stdin);
        let output = nft.wait_with_output().map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(()) } else { Err(format!("nft: {text}\n{script}")) }
    }
}

impl Drop for NatNetwork {
    /// Removes the namespaces.
    fn drop(&mut self) {
        for site in ["w", "r", "e"] {
            let _ = self.ip(&format!("netns del {}", self.name(site)));
        }
    }
}
