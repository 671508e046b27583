//! The Slurm job over two partitions, on a cluster of this host's own: a real controller, and two
//! nodes that are both this host.

use super::deploy_check::{deploy_check_failure, is_deploy_check_root, skip_deploy_check};
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// The programs that the check needs: those of Slurm, and that of MUNGE, by which Slurm's daemons
/// know each other. Where one is missing, the check is skipped.
const PROGRAMS: [&str; 8] =
    ["munged", "scancel", "sbatch", "sinfo", "slurmctld", "slurmd", "squeue", "srun"];

/// 120 s: the longest time of the example job; then the job is ended, and the check fails. The time
/// is twice the 60 s for which the job's ranks wait for their gateways.
const JOB_SECONDS_MAX: &str = "120";

/// 30 s: the longest wait until both nodes of the cluster are idle; then the check fails. The time
/// is chosen.
const START_SECONDS_MAX: u32 = 30;

/// A cluster of two nodes, in a folder that is removed with it.
struct SlurmCluster {
    folder: PathBuf,
    daemons: Vec<Child>,
}

impl Drop for SlurmCluster {
    /// Ends the daemons, the last first, and removes the folder.
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts a Slurm cluster and runs the example job on it, whose ranks check their sums. Counts a
/// skip instead where Slurm is not installed or this process is not root.
pub fn check_slurm(workspace: &Workspace, tally: &mut Tally) -> Result<(), CommandFailure> {
    let missing: Vec<&str> =
        PROGRAMS.into_iter().filter(|program| !is_program_installed(program)).collect();
    if !missing.is_empty() {
        skip_deploy_check(tally, &format!("slurm: not installed: {}", missing.join(", ")));
        return Ok(());
    }
    if !is_deploy_check_root(workspace) {
        skip_deploy_check(tally, "slurm: daemons of a cluster take root");
        return Ok(());
    }
    // The path of MUNGE's socket must be short, and its folder root's alone.
    let folder = std::env::temp_dir().join(format!("landbridge-slurm-{}", std::process::id()));
    let mut cluster = SlurmCluster { folder, daemons: Vec::new() };
    cluster.write_files(workspace)?;
    cluster.start(workspace)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let programs = workspace.landbridge.parent().unwrap_or(Path::new("")).display();
    let job = workspace.root.join("configs/deploy/slurm/two-sites.sbatch").display().to_string();
    let line = cluster
        .command(&["timeout", JOB_SECONDS_MAX, "sbatch", "--wait", "--output=job.log", &job])
        .with_variable("PATH", &format!("{programs}:{path}"))
        .with_variable("LANDBRIDGE_CONFIGS", &cluster.folder.display().to_string());
    let outcome = line.run_to_success(&workspace.root);
    let log = std::fs::read_to_string(cluster.folder.join("job.log")).unwrap_or_default();
    println!("{log}");
    outcome?;
    let passed = log.lines().filter(|line| line.ends_with("allowed: pass")).count();
    if passed != 2 {
        return Err(line.failure(&format!("{passed} of 2 ranks say that their sum is right")));
    }
    tally.passed += 1;
    Ok(())
}

impl SlurmCluster {
    /// Writes the files of the cluster, and those of two regions of one rank each.
    fn write_files(&self, workspace: &Workspace) -> Result<(), CommandFailure> {
        let name = CommandLine::in_path(&["hostname", "-s"]).capture(&workspace.root)?.1;
        for folder in ["state", "spool-east-node", "spool-west-node"] {
            let folder = self.folder.join(folder);
            std::fs::create_dir_all(&folder)
                .map_err(|why| deploy_check_failure(&folder.display(), &why))?;
        }
        let ports = free_slurm_ports().map_err(|why| deploy_check_failure(&"free ports", &why))?;
        self.write("slurm.conf", &describe_slurm_cluster(&self.folder, name.trim(), ports))?;
        let examples = workspace.root.join("configs/two-region");
        for file in ["fabric.toml", "east.toml", "west.toml"] {
            let text = std::fs::read_to_string(examples.join(file))
                .map_err(|why| deploy_check_failure(&file, &why))?;
            self.write(file, &text.replace("ranks = 3", "ranks = 1"))?;
        }
        let fabric = self.folder.join("fabric.toml").display().to_string();
        let keys = self.folder.join("keys").display().to_string();
        let words = ["certs", "--fabric", &fabric, "--out", &keys];
        CommandLine::program(&workspace.landbridge, &words).run_to_success(&workspace.root)?;
        let random = ["dd", "if=/dev/urandom", "of=munge.key", "bs=1024", "count=1", "status=none"];
        self.command(&random).run_to_success(&workspace.root)?;
        self.command(&["chmod", "0400", "munge.key"]).run_to_success(&workspace.root)
    }

    /// Starts the daemons, and waits until both nodes are idle.
    fn start(&mut self, workspace: &Workspace) -> Result<(), CommandFailure> {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let munge = [
            format!("--key-file={}", file("munge.key")),
            format!("--socket={}", file("munge.socket")),
            format!("--pid-file={}", file("munged.pid")),
            format!("--seed-file={}", file("munge.seed")),
        ];
        let munge: Vec<&str> = munge.iter().map(String::as_str).collect();
        let lines = [
            [&["munged", "--foreground", "--force"][..], &munge].concat(),
            vec!["slurmctld", "-D"],
            vec!["slurmd", "-D", "-N", "east-node"],
            vec!["slurmd", "-D", "-N", "west-node"],
        ];
        for (number, words) in lines.iter().enumerate() {
            let log = self.folder.join(format!("daemon-{number}.log"));
            let daemon = self.command(words).start_into_file(&workspace.root, &log)?;
            self.daemons.push(daemon);
            // A daemon of Slurm ends if MUNGE does not listen yet, and asks the controller once.
            std::thread::sleep(Duration::from_secs(2));
        }
        let line = self.command(&["sinfo", "--noheader", "--format=%T"]);
        for _ in 0..START_SECONDS_MAX {
            let (_, states) = line.capture(&workspace.root)?;
            if states.lines().filter(|state| *state == "idle").count() == 2 {
                return Ok(());
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        for number in 0..lines.len() {
            let log = self.folder.join(format!("daemon-{number}.log"));
            println!("{}", std::fs::read_to_string(log).unwrap_or_default());
        }
        Err(line.failure(&"the two nodes are not idle; their logs are above"))
    }

    /// Returns a command line in the folder of the cluster, with its configuration for programs of
    /// Slurm.
    fn command(&self, words: &[&str]) -> CommandLine {
        let config = self.folder.join("slurm.conf").display().to_string();
        let line = CommandLine::in_path(words).in_folder(&self.folder);
        line.with_variable("SLURM_CONF", &config).repeated_by("cargo xtask deploy".to_owned())
    }

    /// Writes a file of the cluster.
    fn write(&self, name: &str, text: &str) -> Result<(), CommandFailure> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|why| deploy_check_failure(&path.display(), &why))
    }
}

/// Returns the configuration of a cluster on host `name` with partitions `east` and `west` of one
/// node each.
fn describe_slurm_cluster(folder: &Path, name: &str, ports: [u16; 3]) -> String {
    let (folder, [controller, east, west]) = (folder.display(), ports);
    format!(
        "ClusterName=landbridge\nSlurmctldHost={name}(127.0.0.1)\nSlurmctldPort={controller}\n\
         SlurmUser=root\nAuthType=auth/munge\nCredType=cred/munge\n\
         AuthInfo=socket={folder}/munge.socket\n\
         StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/spool-%n\n\
         SlurmctldPidFile={folder}/slurmctld.pid\nSlurmdPidFile={folder}/slurmd-%n.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\n\
         SchedulerParameters=bf_interval=1\nMpiDefault=none\nReturnToService=2\n\
         SlurmdParameters=config_overrides\n\
         NodeName=east-node NodeHostname={name} NodeAddr=127.0.0.1 Port={east} CPUs=8\n\
         NodeName=west-node NodeHostname={name} NodeAddr=127.0.0.1 Port={west} CPUs=8\n\
         PartitionName=east Nodes=east-node Default=YES\nPartitionName=west Nodes=west-node\n"
    )
}

/// Returns ports at which nothing listens now.
fn free_slurm_ports() -> std::io::Result<[u16; 3]> {
    let [a, b, c] = [(); 3].map(|()| TcpListener::bind(("127.0.0.1", 0)));
    let listeners = [a?, b?, c?];
    let mut ports = [0; 3];
    for (port, listener) in ports.iter_mut().zip(&listeners) {
        *port = listener.local_addr()?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_is_a_partition_of_its_name() {
        let text = describe_slurm_cluster(Path::new("/f"), "here", [1, 2, 3]);
        for line in ["PartitionName=east Nodes=east-node", "SlurmctldPort=1", "Port=3 CPUs=8"] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
