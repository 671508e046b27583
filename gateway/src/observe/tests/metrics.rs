use crate::observe::metrics::{CollectiveOutcome, MetricsRegistry};
use crate::observe::status::StragglerReport;
use hier_collectives::ids::RankId;
use hier_collectives::session::Discard;
use std::net::SocketAddr;
use units::Span;

/// Returns a rank that delays its job.
fn straggling_rank() -> StragglerReport {
    StragglerReport {
        kind: "rank".to_owned(),
        name: "7".to_owned(),
        behind_seconds: 0.5,
        collectives: 3,
        since_seconds: 2.0,
    }
}

#[test]
fn metrics_have_the_names_that_dashboards_use() {
    let metrics = MetricsRegistry::new();
    let peer = metrics.peer_metrics("west-0");
    peer.sent_bytes.inc_by(5);
    metrics.peer_metrics("west-0").sent_bytes.inc_by(2);
    peer.received_bytes.inc();
    peer.resent_bytes.inc();
    peer.parity_bytes.inc();
    peer.restored_segments.inc();
    peer.lost_packets.inc();
    peer.loss_ratio.set(0.5);
    peer.loss_alarm.set(1);
    peer.loss_alarms.inc();
    peer.lanes_up.set(1);
    peer.lanes_missing.set(3);
    peer.rtt_seconds.set(0.08);
    let job = metrics.job_metrics("train");
    job.epoch.set(2);
    job.set_awaited_seconds(RankId(3), Some(1.5));
    job.set_awaited_seconds(RankId(4), Some(1.5));
    job.set_awaited_seconds(RankId(4), None);
    let mut straggler = straggling_rank();
    job.set_straggler(Some(&straggler));
    job.add_straggler_loss(&straggler, Span::from_ms(250));
    job.add_straggler_loss(&straggler, Span::from_ms(500));
    (straggler.kind, straggler.name) = ("region".to_owned(), "west".to_owned());
    job.set_straggler(Some(&straggler));
    job.draining.set(1);
    job.waiting_commits.set(2);
    job.commit_awaited_seconds.set(2.5);
    metrics.segments.inc();
    metrics.ready.set(1);
    metrics.job_differences.set(2);
    metrics.lost_log_lines.inc_by(3);
    job.collective_counter("sum", CollectiveOutcome::Completed).inc();
    job.seconds_histogram("sum").observe(0.5);
    metrics.dropped_segments(Discard::Epoch).inc();
    let text = metrics.render();
    for line in [
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"sent\"} 7",
        "landbridge_wan_payload_bytes_total{peer=\"west-0\",direction=\"received\"} 1",
        "landbridge_wan_resent_bytes_total{peer=\"west-0\"} 1",
        "landbridge_wan_parity_bytes_total{peer=\"west-0\"} 1",
        "landbridge_restored_segments_total{peer=\"west-0\"} 1",
        "landbridge_lost_packets_total{peer=\"west-0\"} 1",
        "landbridge_loss_ratio{peer=\"west-0\"} 0.5",
        "landbridge_loss_alarm{peer=\"west-0\"} 1",
        "landbridge_loss_alarms_total{peer=\"west-0\"} 1",
        "landbridge_lanes_up{peer=\"west-0\"} 1",
        "landbridge_lanes_missing{peer=\"west-0\"} 3",
        "landbridge_ready 1",
        "landbridge_job_differences 2",
        "landbridge_peer_rtt_seconds{peer=\"west-0\"} 0.08",
        "landbridge_epoch{job=\"train\"} 2",
        "landbridge_awaited_seconds{job=\"train\",rank=\"3\"} 1.5",
        "landbridge_straggler_behind_seconds{job=\"train\",kind=\"region\",name=\"west\"} 0.5",
        "landbridge_straggler_lost_seconds_total{job=\"train\",kind=\"rank\",name=\"7\"} 0.75",
        "landbridge_draining{job=\"train\"} 1",
        "landbridge_waiting_commits{job=\"train\"} 2",
        "landbridge_commit_awaited_seconds{job=\"train\"} 2.5",
        "landbridge_segments_total 1",
        "landbridge_lost_log_lines_total 3",
        "landbridge_collectives_total{job=\"train\",op=\"sum\",outcome=\"completed\"} 1",
        "landbridge_collective_seconds_count{job=\"train\",op=\"sum\"} 1",
        "landbridge_dropped_segments_total{reason=\"other_epoch\"} 1",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn a_link_that_is_down_has_a_gauge() {
    let metrics = MetricsRegistry::new();
    metrics.link_down("east-west").set(1);
    metrics.link_down("east-south").set(0);
    let text = metrics.render();
    for line in [
        "landbridge_link_down{link=\"east-west\"} 1",
        "landbridge_link_down{link=\"east-south\"} 0",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}

#[test]
fn a_lane_has_counters_of_its_packets_and_calls() {
    let metrics = MetricsRegistry::new();
    let lane = metrics.lane_metrics(1, SocketAddr::from(([10, 0, 0, 1], 7401)));
    lane.send_calls.inc();
    lane.sent_packets.inc_by(40);
    let text = metrics.render();
    for line in [
        "landbridge_udp_send_calls_total{lane=\"1\",address=\"10.0.0.1:7401\"} 1",
        "landbridge_udp_sent_packets_total{lane=\"1\",address=\"10.0.0.1:7401\"} 40",
    ] {
        assert!(text.lines().any(|found| found == line), "no `{line}` in\n{text}");
    }
}
