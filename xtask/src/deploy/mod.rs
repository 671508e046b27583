//! `cargo xtask deploy`: the files of `configs/deploy`, judged by the programs that read them.
//!
//! Each stage asks the program of a platform where it is installed, and otherwise counts itself as
//! skipped by name.

mod built_packages;
mod compose;
mod deploy_check;
mod kubernetes;
mod slurm;
mod systemd;

use crate::child_command::{CommandFailure, CommandLine};
use crate::stages::stage_run::{self, Stage, StageWork};
use crate::stages::test_stages::check_example_configs_stage;
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::process::ExitCode;

/// The stage of `cargo xtask deploy` that builds the program, which must accept all config files.
const FILES_STAGE: Stage = Stage {
    name: "files",
    purpose: "`landbridge check` accepts the config files; shells accept the scripts",
    usual_seconds: 60,
    work: StageWork::InTurn(run_deploy_files_stage),
};
/// The stage of `cargo xtask deploy` that checks the systemd unit.
const SYSTEMD_STAGE: Stage = Stage {
    name: "systemd",
    purpose: "unit verified, exposure at most 3.0; user and folder are made",
    usual_seconds: 2,
    work: StageWork::InTurn(systemd::check_systemd),
};
/// The stage of `cargo xtask deploy` that checks the Kubernetes manifests.
const KUBERNETES_STAGE: Stage = Stage {
    name: "kubernetes",
    purpose: "manifests against the schemas of the API",
    usual_seconds: 30,
    work: StageWork::InTurn(kubernetes::check_kubernetes),
};
/// The stage of `cargo xtask deploy` in which Docker Compose reads its file.
const COMPOSE_STAGE: Stage = Stage {
    name: "compose",
    purpose: "Docker Compose reads its file",
    usual_seconds: 2,
    work: StageWork::InTurn(compose::check_compose),
};
/// The stage of `cargo xtask deploy` that runs the example job over two partitions of Slurm.
const SLURM_STAGE: Stage = Stage {
    name: "slurm",
    purpose: "a job over two partitions of a real slurmctld all-reduces",
    usual_seconds: 30,
    work: StageWork::InTurn(slurm::check_slurm),
};
/// The stage of `cargo xtask deploy` that checks the packages of the last `cargo xtask package`.
const PACKAGES_STAGE: Stage = Stage {
    name: "packages",
    purpose: "the last packages unpack, and their programs run",
    usual_seconds: 10,
    work: StageWork::InTurn(built_packages::check_built_packages),
};

/// Runs `cargo xtask deploy`.
pub fn run_deploy() -> ExitCode {
    let stages =
        [FILES_STAGE, SYSTEMD_STAGE, KUBERNETES_STAGE, COMPOSE_STAGE, SLURM_STAGE, PACKAGES_STAGE];
    stage_run::run_stages("cargo xtask deploy", &Workspace::current(false), &stages)
}

/// Builds the program, has it check all TOML files below `configs/` but those of `configs/labs`, and
/// has the shells parse the scripts in `configs/deploy`.
///
/// # Errors
/// A build or a check fails.
fn run_deploy_files_stage(workspace: &Workspace, tally: &mut Tally) -> Result<(), CommandFailure> {
    CommandLine::cargo(&["build", "--package", "landbridge"]).run_to_success(&workspace.root)?;
    check_example_configs_stage(workspace)?;
    tally.passed += 1;
    for (shell, scripts) in [("sh", "debian/*"), ("bash", "slurm/*.s*")] {
        let list =
            format!("for file in configs/deploy/{scripts}; do {shell} -n $file || exit 1; done");
        CommandLine::in_path(&["sh", "-c", &list]).run_to_success(&workspace.root)?;
        tally.passed += 1;
    }
    Ok(())
}
