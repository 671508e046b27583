//! The fabric with which a gateway starts: that of its file, or a newer signed one that is kept beside it.

use super::fabric_judge::RunningFabricJudge;
use super::spec::GatewaySpec;
use crate::events::{CheckedFabric, FabricJudge};
use crate::observe::fabric_report::fabric_version_text;
use crate::warn_if_due;
use crate::warnings::{WarningCause, Warnings};
use std::io;
use std::path::{Path, PathBuf};
use tracing::info;
use units::TimeNs;

impl GatewaySpec {
    /// Lets a gateway start with the newest of its fabric file and the fabric that is kept beside it, and with
    /// the signature of that. Warns of a kept fabric that cannot be used.
    pub fn take_up_kept_fabric(&mut self, warnings: &Warnings, now: TimeNs) {
        let Some(kept) = self.kept.clone() else { return };
        let judge = RunningFabricJudge::of_start(self);
        let judged = |read: io::Result<Option<(String, String)>>, path: PathBuf| {
            let judged = match read {
                Ok(None) => return None,
                Ok(Some((text, signature))) => judge
                    .judge_file(&text, &signature, self.jobs.len())
                    .map_err(|refusal| refusal.to_string()),
                Err(error) => Err(error.to_string()),
            };
            judged.map_err(|why| warn_of_unused(&path, &why, (warnings, now))).ok()
        };
        let applied = judged(kept.read_applied(), kept.applied_path());
        let newest = match applied {
            Some(applied) if applied.signed.version.number >= self.version.number => Some(applied),
            _ if self.version.number > 0 => judged(kept.read_signed_file(), kept.path_with(".sig")),
            _ => None,
        };
        let Some(CheckedFabric { signed, fabric, plan, policies }) = newest else { return };
        if signed.version != self.version {
            let [new, old] = [signed.version, self.version].map(fabric_version_text);
            let (path, file) = (kept.applied_path(), kept.file.display());
            let text = format!(
                "{new} of the fabric, which was in force before, is used from {}: {file} has {old}",
                path.display()
            );
            if signed.version.number > self.version.number {
                info!("{text}");
            } else {
                // The operator may have changed the file and left its number.
                let is_due = warnings.is_due(WarningCause::Files, "kept fabric", now);
                warn_if_due!(is_due, "{text}; raise its `version`, sign it and apply it");
            }
        }
        (self.version, self.signed) = (signed.version, Some(signed));
        (self.fabric, self.plan, self.policies) = (fabric, plan, policies);
    }
}

/// Warns of a signed fabric that cannot be used.
fn warn_of_unused(path: &Path, why: &str, (warnings, now): (&Warnings, TimeNs)) {
    let is_due = warnings.is_due(WarningCause::Files, "kept fabric", now);
    warn_if_due!(is_due, "{} is not used: {why}", path.display());
}
