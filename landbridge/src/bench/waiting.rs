//! The reason why a benchmark does not go on, from the status of its gateway.

use gateway::observe::status::{GatewayReport, PeerState};
use units::Span;

/// Describes what the ranks of `job` wait for, as their gateway reports it; `None` when they wait
/// for nothing but the network.
pub(crate) fn describe_wait(status: &GatewayReport, job: &str) -> Option<String> {
    let report = status.jobs.iter().find(|report| report.job == job)?;
    if report.epoch.is_none() {
        let missing = status.peers.iter().filter(|peer| peer.state != PeerState::Up);
        let missing: Vec<String> = missing
            .map(|peer| match &peer.problem {
                Some(problem) => format!("{} ({problem})", peer.gateway),
                None => peer.gateway.clone(),
            })
            .collect();
        return Some(match missing.is_empty() {
            true => "waiting for the gateways to agree on an epoch".to_owned(),
            false => format!("waiting for gateways: {}", missing.join(", ")),
        });
    }
    let waiting = report.collectives.iter().find(|collective| !collective.awaited.is_empty())?;
    let ranks: Vec<String> = waiting.awaited.iter().map(u32::to_string).collect();
    let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
    Some(format!(
        "waiting for {plural} {} of job {job}, for {}: start `landbridge bench` for each rank",
        ranks.join(", "),
        Span::from_secs_f64(waiting.seconds).rounded()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gateway::observe::status::{CollectiveReport, CollectiveState, JobReport, PeerReport};

    fn status(epoch: Option<u64>, awaited: Vec<u32>) -> GatewayReport {
        GatewayReport {
            gateway: "east-0".to_owned(),
            fabric: "two-region".to_owned(),
            peers: vec![PeerReport {
                gateway: "west-0".to_owned(),
                state: PeerState::Connecting,
                lanes_up: 0,
                lanes: 4,
                rtt_ms: None,
                sent_bytes: 0,
                received_bytes: 0,
                lost_packets: 0,
                loss: 0.0,
                loss_alarm: false,
                problem: Some("timed out".to_owned()),
            }],
            links: vec![],
            jobs: vec![JobReport {
                job: "train".to_owned(),
                epoch,
                plan: None,
                ranks: vec![],
                straggler: None,
                collectives: vec![CollectiveReport {
                    sequence: 1,
                    op: "max".to_owned(),
                    dtype: "u8".to_owned(),
                    bytes: 1,
                    state: CollectiveState::Awaiting,
                    awaited,
                    seconds: 12.34,
                }],
                completed_seconds_ago: None,
                commits: vec![],
                removed: false,
                draining: None,
            }],
            lost_log_lines: 0,
            socket_problem: None,
            restart_needed: vec![],
        }
    }

    #[test]
    fn missing_ranks_and_gateways_are_named() {
        let ranks = describe_wait(&status(Some(1), vec![1, 3]), "train").expect("waits");
        assert!(ranks.starts_with("waiting for ranks 1, 3 of job train, for 12.3 s"), "{ranks}");
        let gateways = describe_wait(&status(None, vec![]), "train").expect("waits");
        assert_eq!(gateways, "waiting for gateways: west-0 (timed out)");
        assert_eq!(describe_wait(&status(Some(1), vec![]), "train"), None);
        assert_eq!(describe_wait(&status(None, vec![]), "other"), None);
    }
}
