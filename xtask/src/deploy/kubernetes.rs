//! The Kubernetes manifests: rendered by kubectl, then judged by the schemas of the API, and by
//! rules that a schema does not know.

use super::deploy_check::{deploy_check_failure, deploy_check_scratch_folder, skip_deploy_check};
use crate::child_command::{CommandFailure, CommandLine};
use crate::installed_programs::is_program_installed;
use crate::python;
use crate::tally::Tally;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

/// The overlays of Kustomize that people apply, each with the kinds of Kubernetes objects that it
/// must contain.
const OVERLAYS: [(&str, &[&str]); 3] = [
    ("east", &["ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy", "Service"]),
    ("west", &["ConfigMap", "DaemonSet", "Namespace", "NetworkPolicy", "Service"]),
    ("sidecar", &["ConfigMap", "Job"]),
];

/// The Python package with the schemas of many versions of the Kubernetes API, which checks
/// manifests by them. Where it cannot be installed, that check is skipped.
const SCHEMAS_PACKAGE: &str = "kubernetes-validate==1.37.0";

/// Versions of the Kubernetes API whose schemas manifests must fit: the first with sidecars, and
/// the newest in [`SCHEMAS_PACKAGE`].
const API_VERSIONS: [&str; 2] = ["1.29", "1.37"];

/// The lines that the manifests of each overlay must have for the pods of gateways: probes, limits,
/// and no privilege. A missing line fails the check.
const POD_LINES: [&str; 9] = [
    "startupProbe:",
    "livenessProbe:",
    "readinessProbe:",
    "requests:",
    "limits:",
    "runAsNonRoot: true",
    "readOnlyRootFilesystem: true",
    "allowPrivilegeEscalation: false",
    "terminationGracePeriodSeconds: 35",
];

/// Renders all overlays and checks each.
pub fn check_kubernetes(workspace: &Workspace, tally: &mut Tally) -> Result<(), CommandFailure> {
    if !is_program_installed("kubectl") {
        skip_deploy_check(
            tally,
            "kubernetes: kubectl, which renders the manifests, is not installed",
        );
        return Ok(());
    }
    let scratch = deploy_check_scratch_folder(workspace, "kubernetes")?;
    let mut rendered = Vec::new();
    for (overlay, kinds) in OVERLAYS {
        let folder = format!("configs/deploy/kubernetes/{overlay}");
        let line = CommandLine::in_path(&["kubectl", "kustomize", &folder]);
        let (status, manifests) = line.capture(&workspace.root)?;
        if !status.success() {
            return Err(line.failure(&status));
        }
        let missing = missing_kubernetes_parts(&manifests, kinds);
        if !missing.is_empty() {
            return Err(deploy_check_failure(&folder, &format!("lacks {}", missing.join(", "))));
        }
        let file = scratch.join(format!("{overlay}.yaml"));
        std::fs::write(&file, manifests)
            .map_err(|why| deploy_check_failure(&file.display(), &why))?;
        rendered.push(file);
        tally.passed += 1;
    }
    match python::install_python_tool(&workspace.root, SCHEMAS_PACKAGE, "kubernetes-validate") {
        Ok(validate) => validate_kubernetes_schemas(&workspace.root, &validate, &rendered, tally),
        Err(failure) => {
            skip_deploy_check(
                tally,
                &format!("kubernetes: no schemas of the API: {}", failure.why),
            );
            Ok(())
        }
    }
}

/// Checks manifests against the schemas of the API; a field that these do not know is a failure.
fn validate_kubernetes_schemas(
    root: &Path,
    validate: &Path,
    rendered: &[PathBuf],
    tally: &mut Tally,
) -> Result<(), CommandFailure> {
    for version in API_VERSIONS {
        for file in rendered {
            let file = file.display().to_string();
            let words = ["--strict", "--kubernetes-version", version, &file];
            CommandLine::program(validate, &words).run_to_success(root)?;
            tally.passed += 1;
        }
    }
    Ok(())
}

/// Returns the kinds and lines that rendered manifests lack.
fn missing_kubernetes_parts(manifests: &str, kinds: &[&str]) -> Vec<String> {
    let has = |wanted: &str| manifests.lines().any(|line| line.trim() == wanted);
    let kinds = kinds.iter().map(|kind| format!("kind: {kind}"));
    let lines = POD_LINES.iter().map(|line| (*line).to_owned());
    kinds.chain(lines).filter(|wanted| !has(wanted)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_without_limits_is_found() {
        let lines: Vec<&str> =
            POD_LINES.iter().copied().filter(|line| *line != "limits:").collect();
        let manifests = format!("kind: Job\n  {}\n", lines.join("\n  "));
        assert_eq!(
            missing_kubernetes_parts(&manifests, &["Job", "Service"]),
            ["kind: Service", "limits:"]
        );
    }
}
