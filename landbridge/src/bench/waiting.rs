//! The reason why a benchmark does not go on, from the status of its gateway.

use super::{BenchError, Measurement, RankBench};
use gateway::observe::fetch_status::fetch_status_async;
use gateway::observe::readiness::describe_unready_epoch;
use gateway::observe::status::GatewayReport;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;
use units::Span;

/// Runs one rank of a benchmark to its end. While the rank waits for other ranks or gateways,
/// prints on stderr for which. The first message comes after [`WAIT_TOLD_AFTER`], and each pause
/// between two messages is twice the one before.
pub(crate) async fn run_bench_telling_waiting(
    bench: RankBench,
    status: SocketAddr,
) -> Result<Measurement, BenchError> {
    let job = bench.job.clone();
    let mut run = pin!(bench.run());
    let mut pause = WAIT_TOLD_AFTER;
    loop {
        tokio::select! {
            biased;
            measured = &mut run => return measured,
            () = tokio::time::sleep(pause) => {}
        }
        pause *= 2;
        // The gateway may have stopped answering; the benchmark itself then says so.
        if let Ok(report) = fetch_status_async(status).await
            && let Some(wait) = describe_bench_waiting(&report, &job)
        {
            stdio::print_stderr_message(&wait);
        }
    }
}

/// 5 s: a rank of a benchmark that has had no result for so long prints on stderr what it waits
/// for. The time is chosen, since people start ranks by hand.
const WAIT_TOLD_AFTER: Duration = Duration::from_secs(5);

/// Describes what the ranks of `job` wait for, as their gateway reports it: an epoch, or ranks that
/// have not posted. Returns `None` when they wait for neither, or the gateway has no such job.
fn describe_bench_waiting(status: &GatewayReport, job: &str) -> Option<String> {
    let report = status.jobs.iter().find(|report| report.job == job)?;
    if let Some(why) = describe_unready_epoch(status, job) {
        return Some(format!("waiting for an epoch: {why}"));
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

    /// Returns the status of a gateway whose peer is away, with one collective under way.
    fn status(epoch: Option<u64>, awaited: Vec<u32>) -> GatewayReport {
        let report = serde_json::json!({
            "gateway": "east-0",
            "fabric": "two-region",
            "peers": [{
                "gateway": "west-0",
                "state": "connecting",
                "lanes_up": 0,
                "lanes": 4,
                "rtt_ms": null,
                "sent_bytes": 0,
                "received_bytes": 0,
                "lost_packets": 0,
                "loss": 0.0,
                "loss_alarm": false,
                "problem": "timed out",
            }],
            "links": [],
            "jobs": [{
                "job": "train",
                "epoch": epoch,
                "plan": null,
                "ranks": [],
                "collectives": [{
                    "sequence": 1,
                    "op": "max",
                    "dtype": "u8",
                    "bytes": 1,
                    "state": "awaiting",
                    "awaited": awaited,
                    "seconds": 12.34,
                }],
            }],
        });
        serde_json::from_value(report).expect("a report")
    }

    #[test]
    fn missing_ranks_and_gateways_are_named() {
        let ranks = describe_bench_waiting(&status(Some(1), vec![1, 3]), "train").expect("waits");
        assert!(ranks.starts_with("waiting for ranks 1, 3 of job train, for 12.3 s"), "{ranks}");
        let gateways = describe_bench_waiting(&status(None, vec![]), "train").expect("waits");
        let missing = "gateway west-0: no lane is connected: timed out";
        assert_eq!(gateways, format!("waiting for an epoch: {missing}"));
        assert_eq!(describe_bench_waiting(&status(Some(1), vec![]), "train"), None);
        assert_eq!(describe_bench_waiting(&status(None, vec![]), "other"), None);
    }
}
