//! The file of Docker Compose, which Docker Compose must accept.

use super::deploy_check::skip_deploy_check;
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Has Docker Compose read its file.
pub fn check_compose(workspace: &Workspace, tally: &mut Tally) -> Result<(), CommandFailure> {
    let file = "configs/deploy/compose/compose.yaml";
    let version = CommandLine::in_path(&["docker", "compose", "version"]);
    let has_compose = is_program_installed("docker")
        && version.capture(&workspace.root).is_ok_and(|(status, _)| status.success());
    if !has_compose {
        skip_deploy_check(tally, "compose: Docker Compose is not installed");
        return Ok(());
    }
    let words = ["docker", "compose", "--file", file, "--profile", "bench", "config", "--quiet"];
    let line = CommandLine::in_path(&words).with_variable("LANDBRIDGE_USER", "1000:1000");
    line.run_to_success(&workspace.root)?;
    tally.passed += 1;
    Ok(())
}
