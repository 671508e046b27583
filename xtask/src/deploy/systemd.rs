//! The systemd unit, the user and the folder, judged by systemd's own programs.

use super::deploy_check::{
    deploy_check_failure, deploy_check_scratch_folder, is_deploy_check_root, skip_deploy_check,
};
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::path::Path;

/// 30 tenths: the highest exposure of the unit that `systemd-analyze security` may find; a higher
/// one fails the check. That program rates 3.0 as "OK".
const EXPOSURE_TENTHS_MAX: &str = "30";

/// Verifies the unit, limits its exposure, and makes user and folder below a root of their own.
pub fn check_systemd(workspace: &Workspace, tally: &mut Tally) -> Result<(), CommandFailure> {
    let scratch = deploy_check_scratch_folder(workspace, "systemd")?;
    let source = workspace.root.join("configs/deploy/systemd");
    if is_program_installed("systemd-analyze") {
        let unit = scratch.join("landbridge@east.service");
        // Programs of units are looked for; the package puts this one there.
        copy_systemd_file_with(&source.join("landbridge@.service"), &unit, |text| {
            text.replace("ExecStart=/usr/bin/landbridge ", "ExecStart=/bin/true ")
        })?;
        let unit = unit.display().to_string();
        let words = ["systemd-analyze", "verify", "--man=no", &unit];
        CommandLine::in_path(&words).run_to_success(&workspace.root)?;
        let threshold = format!("--threshold={EXPOSURE_TENTHS_MAX}");
        let words =
            ["systemd-analyze", "security", "--offline=true", "--no-pager", &threshold, &unit];
        CommandLine::in_path(&words).run_to_success(&workspace.root)?;
        tally.passed += 2;
    } else {
        skip_deploy_check(tally, "systemd: systemd-analyze is not installed");
    }
    if is_program_installed("systemd-sysusers")
        && is_program_installed("systemd-tmpfiles")
        && is_deploy_check_root(workspace)
    {
        make_systemd_user_and_folder(workspace, &source, &scratch.join("root"))?;
        tally.passed += 1;
    } else {
        skip_deploy_check(
            tally,
            "systemd: user and folder take root, systemd-sysusers and -tmpfiles",
        );
    }
    skip_deploy_check(tally, "systemd: no system is booted for the unit");
    Ok(())
}

/// Makes user and folder in a root folder, as the package's script does on a host.
fn make_systemd_user_and_folder(
    workspace: &Workspace,
    source: &Path,
    root: &Path,
) -> Result<(), CommandFailure> {
    for (program, flag, kind) in
        [("systemd-sysusers", None, "sysusers"), ("systemd-tmpfiles", Some("--create"), "tmpfiles")]
    {
        let folder = root.join(format!("usr/lib/{kind}.d"));
        for needed in [&folder, &root.join("etc"), &root.join("run")] {
            std::fs::create_dir_all(needed)
                .map_err(|error| deploy_check_failure(&needed.display(), &error))?;
        }
        let installed = folder.join("landbridge.conf");
        copy_systemd_file_with(&source.join(format!("landbridge.{kind}")), &installed, |text| {
            text
        })?;
        let root = format!("--root={}", root.display());
        let words = [Some(program), flag, Some(root.as_str()), Some("landbridge.conf")];
        let words: Vec<&str> = words.into_iter().flatten().collect();
        CommandLine::in_path(&words).run_to_success(&workspace.root)?;
    }
    let users = std::fs::read_to_string(root.join("etc/passwd")).unwrap_or_default();
    if !users.contains("landbridge:x:") {
        return Err(deploy_check_failure(&"landbridge.sysusers", &"makes no user landbridge"));
    }
    if !root.join("run/landbridge").is_dir() {
        return Err(deploy_check_failure(
            &"landbridge.tmpfiles",
            &"makes no folder /run/landbridge",
        ));
    }
    Ok(())
}

/// Copies the text file `from` to `to`, changed by `change`.
fn copy_systemd_file_with(
    from: &Path,
    to: &Path,
    change: impl Fn(String) -> String,
) -> Result<(), CommandFailure> {
    let text =
        std::fs::read_to_string(from).map_err(|why| deploy_check_failure(&from.display(), &why))?;
    std::fs::write(to, change(text)).map_err(|why| deploy_check_failure(&to.display(), &why))
}
