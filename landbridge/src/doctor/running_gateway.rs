//! Asks the gateway that runs with a region file, and repeats the problems that it reports.

use super::finding::Finding;
use super::own_addresses::diagnose_own_addresses;
use gateway::config::{GatewayConfig, RegionFile};
use gateway::observe::fetch_status::{FetchError, fetch_status_async};
use gateway::observe::problem_cause::ProblemReport;
use gateway::observe::status::GatewayReport;

/// The name of the check of the gateway that runs, in all findings of this check that `landbridge
/// doctor` prints.
const RUNNING_GATEWAY_CHECK: &str = "running gateway";

/// Asks the running gateway for its status, and returns its problems as findings. Where no status
/// comes, returns the findings on the gateway's own addresses behind one that says so. Call it
/// within a runtime.
pub(super) async fn diagnose_running_gateway(
    region: &RegionFile,
    gateway: &GatewayConfig,
) -> Vec<Finding> {
    match fetch_status_async(gateway.status).await {
        Ok(report) => describe_diagnosed_running_gateway(region, gateway, &report),
        Err(error @ FetchError::Unreachable { .. }) => {
            let finding = Finding::ok(RUNNING_GATEWAY_CHECK, &gateway.name, error).into_skipped();
            let mut findings = diagnose_own_addresses(region, gateway);
            findings.insert(0, finding);
            findings
        }
        Err(error @ FetchError::BadAnswer { .. }) => {
            let advice = "stop what listens there, or set another `status` address; see the log of \
                          the gateway if it is one";
            let mut findings = diagnose_own_addresses(region, gateway);
            findings.insert(
                0,
                Finding::ok(RUNNING_GATEWAY_CHECK, &gateway.name, error).into_failure(advice),
            );
            findings
        }
    }
}

/// Returns the findings on the status of a running gateway. They say whether it is the gateway of
/// the file, whether its fabric has the same identity, and its problems.
fn describe_diagnosed_running_gateway(
    region: &RegionFile,
    gateway: &GatewayConfig,
    report: &GatewayReport,
) -> Vec<Finding> {
    let file = region.fabric();
    let fabric = file.fabric().name();
    if report.gateway != gateway.name || report.fabric != fabric {
        let found = format!(
            "{} answers as gateway {} of {}",
            gateway.status, report.gateway, report.fabric
        );
        let advice = "give each gateway a `status` address of its own";
        return vec![Finding::ok(RUNNING_GATEWAY_CHECK, &gateway.name, found).into_failure(advice)];
    }
    let mut findings = Vec::new();
    let identity: String = file.identity().iter().map(|byte| format!("{byte:02x}")).collect();
    if report.fabric_identity != identity {
        let short = |identity: &str| identity.chars().take(8).collect::<String>();
        let (runs, now) = (short(&report.fabric_identity), short(&identity));
        let found = format!(
            "it runs with a fabric of identity {runs}, and {} has {now}",
            file.path().display()
        );
        let advice = "restart the gateway, or restore the file; `landbridge check` prints the \
                      identity, which must be the same on every host";
        findings
            .push(Finding::ok(RUNNING_GATEWAY_CHECK, &gateway.name, found).into_failure(advice));
    }
    findings.extend(report.problems.iter().map(describe_diagnosed_running_problem));
    if findings.is_empty() {
        findings.push(Finding::ok(RUNNING_GATEWAY_CHECK, &gateway.name, "ready"));
    }
    findings
}

/// Returns a problem of the running gateway as a finding: a failure if it keeps the gateway from
/// being ready. A problem without a remedy of its own may have one at the end of its text.
fn describe_diagnosed_running_problem(problem: &ProblemReport) -> Finding {
    let (found, advice) = match (&problem.remedy, problem.found.rsplit_once("; ")) {
        (Some(remedy), _) => (&*problem.found, &**remedy),
        (None, Some((found, remedy))) => (found, remedy),
        (None, None) => (&*problem.found, "see the log of this gateway, and of the one it names"),
    };
    let finding = Finding::ok(RUNNING_GATEWAY_CHECK, &problem.subject, found);
    if problem.blocks { finding.into_failure(advice) } else { finding.into_warning(advice) }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingVerdict;
    use super::*;
    use gateway::observe::problem_cause::ProblemCause;
    use std::path::Path;

    /// Returns the region file of an example.
    fn east() -> RegionFile {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs/two-region/east.toml");
        RegionFile::load(&path).expect("valid")
    }

    /// Returns a report of the gateway of that file.
    fn report(region: &RegionFile) -> GatewayReport {
        let identity = region.fabric().identity();
        let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        let report = serde_json::json!({
            "gateway": "east-0",
            "fabric": "two-region",
            "fabric_identity": identity,
            "peers": [],
            "links": [],
            "jobs": [],
        });
        serde_json::from_value(report).expect("a report")
    }

    /// Returns verdict and text of each finding on a report.
    fn findings(region: &RegionFile, report: &GatewayReport) -> Vec<(FindingVerdict, String)> {
        let gateway = region.gateway(None).expect("the only one");
        let findings = describe_diagnosed_running_gateway(region, gateway, report).into_iter();
        findings.map(|finding| (finding.verdict, finding.found)).collect()
    }

    #[test]
    fn problems_of_the_gateway_are_repeated() {
        let region = east();
        let mut report = report(&region);
        assert_eq!(findings(&region, &report), [(FindingVerdict::Ok, "ready".to_owned())]);
        let problem = |blocks: bool, found: &str| ProblemReport {
            cause: ProblemCause::Peer,
            blocks,
            subject: "gateway west-0".to_owned(),
            found: found.to_owned(),
            remedy: None,
        };
        report.problems = vec![problem(true, "no lane; renew it"), problem(false, "1 of 4 lanes")];
        let expected = [
            (FindingVerdict::Failed, "no lane".to_owned()),
            (FindingVerdict::Warning, "1 of 4 lanes".to_owned()),
        ];
        assert_eq!(findings(&region, &report), expected);
        let advised = describe_diagnosed_running_problem(&report.problems[0]);
        assert_eq!(advised.advice.as_deref(), Some("renew it"), "the text has the remedy");
    }

    #[test]
    fn another_gateway_or_fabric_is_a_failure() {
        let region = east();
        let mut other = report(&region);
        other.fabric_identity = "00".repeat(32);
        let found = findings(&region, &other);
        assert!(found.len() == 1 && found[0].0 == FindingVerdict::Failed, "{found:?}");
        assert!(found[0].1.contains("identity 00000000"), "{found:?}");
        other.gateway = "west-0".to_owned();
        let found = findings(&region, &other);
        assert!(found[0].1.contains("answers as gateway west-0 of two-region"), "{found:?}");
    }
}
