//! Dumps that show one fault each.

use crate::explain::causes::find_causes;
use crate::explain::dump::{Dump, DumpedGateway, DumpedPlace};
use crate::explain::dump_view::regions_without_dump;
use crate::explain::party::CulpritKind;
use gateway::observe::status::JobFlightsReport;
use serde_json::{Value, json};

/// Returns a dump of the gateways east-0, with ranks 0 and 1, and west-0, with rank 2. Each is given
/// as the status that it answers with, or as nothing.
fn dump(east: Option<Value>, west: Option<Value>) -> Dump {
    let gateway = |region: &str, status: Option<Value>| {
        let name = format!("{region}-0");
        let status = status.map(|status| serde_json::from_value(status).expect("a status"));
        let error = status.is_none().then(|| "nothing answers".to_owned());
        let is_absent = status.is_none();
        DumpedGateway {
            gateway: name,
            region: region.to_owned(),
            status,
            error,
            is_absent,
            asked_unix_seconds: 100.0,
            clock_ahead_seconds: None,
            flights: Vec::new(),
        }
    };
    let place = |region: &str, first_rank, ranks| DumpedPlace {
        gateway: format!("{region}-0"),
        region: region.to_owned(),
        first_rank,
        ranks,
    };
    Dump {
        taken_unix_seconds: 0.0,
        fabric: "two".to_owned(),
        places: vec![place("east", 0, 2), place("west", 2, 1)],
        gateways: vec![gateway("east", east), gateway("west", west)],
    }
}

/// Returns the status of a gateway whose peer is in `state`, with these fields of its job.
fn status(region: &str, state: &str, job: &Value) -> Value {
    let peer = if region == "east" { "west" } else { "east" };
    let ranks: &[u32] = if region == "east" { &[0, 1] } else { &[2] };
    let rank = |rank: &u32| json!({"rank": rank, "attached": *rank != 1});
    let mut all = json!({
        "job": "train", "epoch": 1, "plan": null, "collectives": [],
        "ranks": ranks.iter().map(rank).collect::<Vec<_>>(),
    });
    for (key, value) in job.as_object().expect("fields") {
        all[key] = value.clone();
    }
    json!({
        "gateway": format!("{region}-0"), "region": region, "fabric": "two", "links": [],
        "peers": [{"gateway": format!("{peer}-0"), "region": peer, "state": state, "lanes_up": 1,
                   "lanes": 1, "rtt_ms": 80.0, "sent_bytes": 0, "received_bytes": 0,
                   "lost_packets": 0, "loss": 0.0, "loss_alarm": false, "problem": null}],
        "jobs": [all],
    })
}

/// Returns kind and culprit of the first cause, and the text of what shows it.
fn first_cause(dump: Dump) -> (CulpritKind, String, String) {
    let causes = find_causes(&[dump], &[]);
    let first = causes.into_iter().next().expect("a cause");
    (first.kind, first.culprit, first.found)
}

/// Returns a job's collective 7 in `state` for so many seconds.
pub(super) fn collective(state: &str, awaited: &[u32], seconds: f64) -> Value {
    json!({"collectives": [{"sequence": 7, "op": "sum", "dtype": "f32", "bytes": 1 << 20,
                            "state": state, "awaited": awaited, "seconds": seconds}]})
}

/// Returns a dump of two gateways that reach each other, with the same fields of their job.
pub(super) fn met(job: &Value) -> Dump {
    dump(Some(status("east", "up", job)), Some(status("west", "up", job)))
}

#[test]
fn ranks_that_post_soon_are_no_trouble() {
    assert_eq!(find_causes(&[met(&json!({}))], &[]), []);
    assert_eq!(find_causes(&[met(&collective("awaiting", &[2], 0.5))], &[]), []);
    assert_eq!(find_causes(&[met(&collective("running", &[], 9.0))], &[]), []);
}

#[test]
fn an_awaited_rank_is_named_with_its_region() {
    let (kind, culprit, found) = first_cause(met(&collective("awaiting", &[2], 12.0)));
    assert_eq!((kind, &*culprit), (CulpritKind::Rank, "rank 2 (west)"));
    assert!(found.starts_with("it is attached and has not posted") && found.contains("12 s"));
    let (_, culprit, found) = first_cause(met(&collective("awaiting", &[1], 12.0)));
    assert_eq!(culprit, "rank 1 (east)");
    assert!(found.starts_with("it is not attached"), "{found}");
}

#[test]
fn a_gateway_that_is_gone_explains_its_peers_problem() {
    let problem = json!({"cause": "peer", "blocks": true, "subject": "gateway west-0",
                         "found": "no lane is connected", "remedy": null});
    let mut east = status("east", "connecting", &json!({"epoch": null}));
    east["problems"] = json!([problem]);
    let (kind, culprit, _) = first_cause(dump(Some(east.clone()), None));
    assert_eq!((kind, &*culprit), (CulpritKind::Gateway, "gateway west-0 (west)"));
    assert_eq!(find_causes(&[dump(Some(east.clone()), None)], &[]).len(), 1);
    // The other gateway runs: the path is at fault.
    let mut west = status("west", "connecting", &json!({"epoch": null}));
    west["problems"] = json!([{"cause": "peer", "blocks": true, "subject": "gateway east-0",
                               "found": "no lane is connected", "remedy": null}]);
    let both = dump(Some(east), Some(west));
    assert_eq!(find_causes(std::slice::from_ref(&both), &[]).len(), 1, "told once");
    let (kind, culprit, _) = first_cause(both);
    assert_eq!((kind, &*culprit), (CulpritKind::Link, "the path between east-0 and west-0"));
}

#[test]
fn contradicting_posts_come_before_a_waiting_rank() {
    let mut job = collective("awaiting", &[2], 3.0);
    job["incidents"] = json!([{"kind": "collective_failed", "group": null, "number": 6, "code": 1,
        "text": "rank 0 posts 4 elements, rank 2 posts 8", "count": 1, "seconds_ago": 2.0}]);
    job["completed_seconds_ago"] = json!(30.0);
    let (kind, culprit, found) = first_cause(met(&job));
    assert_eq!((kind, &*culprit), (CulpritKind::Script, "the script of job train"));
    assert!(found.contains("rank 2 posts 8"), "{found}");
    // What has completed since shows that the script was mended.
    job["completed_seconds_ago"] = json!(1.0);
    assert_eq!(first_cause(met(&job)).0, CulpritKind::Rank);
}

/// Returns the culprits of a dump, in order.
fn culprits(dump: Dump) -> Vec<String> {
    find_causes(&[dump], &[]).into_iter().map(|cause| cause.culprit).collect()
}

/// Returns what the flight recorder of a gateway has of collective 7: the posts of ranks with their ages,
/// and the bytes that are due from a peer.
fn flights(posts: &[(u32, f64)], awaited: &[(&str, u64)]) -> Vec<JobFlightsReport> {
    let post = |(rank, ago): &(u32, f64)| json!({"rank": rank, "seconds_ago": ago});
    let missing = |(gateway, bytes): &(&str, u64)| {
        let mut due = json!({"gateway": gateway, "unreceipted_bytes": 0});
        due["awaited_bytes"] = json!(bytes);
        due
    };
    let flights = json!([{"job": "train", "collectives": [{
        "sequence": 7, "op": "sum", "bytes": 1 << 20, "end": null,
        "posts": posts.iter().map(post).collect::<Vec<_>>(),
        "missing": awaited.iter().map(missing).collect::<Vec<_>>(),
    }]}]);
    serde_json::from_value(flights).expect("flights")
}

#[test]
fn a_post_whose_news_is_late_names_the_path() {
    let dump_with = |west_posted_ago: f64| {
        let east = status("east", "up", &collective("awaiting", &[2], 6.0));
        let west = status("west", "up", &collective("awaiting", &[0, 1], 6.0));
        let mut dump = dump(Some(east), Some(west));
        dump.gateways[0].flights = flights(&[(0, 6.0), (1, 6.0)], &[]);
        dump.gateways[1].flights = flights(&[(2, west_posted_ago)], &[]);
        dump
    };
    assert_eq!(culprits(dump_with(5.0)), ["the path between east-0 and west-0"]);
    // The post was one of a collective of that number which failed.
    let mut failed = dump_with(5.0);
    let end = json!({"code": 4, "seconds_ago": 4.0});
    failed.gateways[1].flights[0].collectives[0].end = serde_json::from_value(end).expect("an end");
    assert_eq!(culprits(failed)[0], "rank 2 (west)");
    // East's posts are 6 s old, and that of west is on its way.
    let mut dump = dump_with(0.1);
    dump.gateways[1].status.as_mut().expect("one").jobs[0].collectives[0].awaited.clear();
    assert_eq!(culprits(dump), [""; 0]);
    // The rank's own gateway has no post either.
    let mut dump = dump_with(5.0);
    dump.gateways[1].flights = flights(&[], &[]);
    let west = dump.gateways[1].status.as_mut().expect("one");
    west.jobs[0].collectives[0].awaited = vec![2];
    assert_eq!(culprits(dump), ["rank 2 (west)"]);
}

#[test]
fn a_path_without_acknowledgements_is_named() {
    let silent = |seconds: f64| {
        let mut east = status("east", "up", &json!({}));
        east["peers"][0]["silent_seconds"] = json!(seconds);
        culprits(dump(Some(east), Some(status("west", "up", &json!({})))))
    };
    // 1 s, and two round trips of 80 ms.
    assert_eq!(silent(1.1), [""; 0]);
    assert_eq!(silent(1.2), ["the path between east-0 and west-0"]);
}

#[test]
fn ranks_of_a_stopped_gateway_are_not_at_fault() {
    let east = status("east", "up", &collective("awaiting", &[2], 6.0));
    assert_eq!(culprits(dump(Some(east), None)), ["gateway west-0 (west)"]);
}

#[test]
fn a_rank_comes_before_a_lossy_path() {
    let mut east = status("east", "up", &collective("awaiting", &[1], 6.0));
    let loss = |subject: &str| {
        json!([{"cause": "loss", "blocks": false, "subject": subject,
                "found": "the way to it loses 3 %", "remedy": null}])
    };
    east["problems"] = loss("gateway west-0");
    let mut west = status("west", "up", &json!({}));
    west["problems"] = loss("gateway east-0");
    let both = culprits(dump(Some(east), Some(west)));
    assert_eq!(both, ["rank 1 (east)", "the path between east-0 and west-0"]);
}

#[test]
fn a_path_explains_a_job_without_an_epoch() {
    let mut east = status("east", "connecting", &json!({"epoch": null}));
    let problem = |cause: &str, subject: &str, found: &str| {
        let mut problem = json!({"cause": cause, "blocks": true, "remedy": null});
        (problem["subject"], problem["found"]) = (json!(subject), json!(found));
        problem
    };
    let job = problem("job", "job train", "no epoch: it waits for west-0");
    east["problems"] = json!([problem("peer", "gateway west-0", "no lane is connected"), job]);
    let west = status("west", "connecting", &json!({"epoch": null}));
    let path = dump(Some(east.clone()), Some(west.clone()));
    assert_eq!(culprits(path), ["the path between east-0 and west-0"]);
    // The certificate of whoever was refused explains it better.
    let refused = "no lane is connected: aborted by peer: invalid peer certificate";
    east["problems"][0] = problem("peer", "gateway west-0", refused);
    let refused = dump(Some(east.clone()), Some(west.clone()));
    assert_eq!(culprits(refused), ["the certificate of gateway east-0 (east)"]);
    east["problems"][0]["found"] = json!("no lane is connected: invalid peer certificate");
    let refuses = dump(Some(east.clone()), Some(west));
    assert_eq!(culprits(refuses), ["the certificate of gateway west-0 (west)"]);
}

#[test]
fn a_late_region_is_explained_by_its_rank() {
    let straggler = |kind: &str, name: &str| {
        json!({"straggler": {"kind": kind, "name": name, "behind_seconds": 0.5, "collectives": 20,
                             "since_seconds": 60.0}})
    };
    let east = status("east", "up", &straggler("region", "west"));
    let west = status("west", "up", &straggler("rank", "2"));
    let both = dump(Some(east), Some(west.clone()));
    assert_eq!(culprits(both), ["rank 2 (west)"]);
    // A gateway without processor time reads the posts of its ranks late.
    let mut held_back = west;
    held_back["processor_problem"] = json!("held back");
    held_back["problems"] = json!([{"cause": "processor", "blocks": false, "remedy": null,
                                    "subject": "gateway west-0", "found": "held back"}]);
    let east = status("east", "up", &straggler("region", "west"));
    assert_eq!(culprits(dump(Some(east), Some(held_back))), ["gateway west-0 (west)"]);
}

#[test]
fn a_straggler_is_told_with_its_delay() {
    let straggler = json!({"straggler": {"kind": "rank", "name": "1", "behind_seconds": 0.5,
                                         "collectives": 20, "since_seconds": 60.0}});
    let (kind, culprit, found) = first_cause(met(&straggler));
    assert_eq!((kind, &*culprit), (CulpritKind::Rank, "rank 1 (east)"));
    assert!(found.contains("20 collectives") && found.contains("500 ms"), "{found}");
}

#[test]
fn a_long_exchange_is_told() {
    let (kind, _, found) = first_cause(met(&collective("running", &[], 25.0)));
    assert_eq!(kind, CulpritKind::Link);
    assert!(found.contains("has run for 25 s"), "{found}");
}

/// Returns a link of this rate, on which a gateway measures another rate.
fn links(rate: u64, measured: Option<u64>) -> Value {
    json!([{"between": ["east", "west"], "rate_bits_per_second": rate,
            "scheduled_bits_per_second": null, "operator_bits_per_second": null,
            "operator_gateway": null, "measured_bits_per_second": measured,
            "effective_bits_per_second": measured.unwrap_or(rate), "rtt_ms": 80.0, "loss": 0.0}])
}

#[test]
fn an_exchange_of_many_bytes_may_be_long() {
    let with_rate = |rate: u64| {
        let mut both =
            ["east", "west"].map(|region| status(region, "up", &collective("running", &[], 25.0)));
        both.iter_mut().for_each(|status| status["links"] = links(rate, None));
        let [east, west] = both;
        culprits(dump(Some(east), Some(west)))
    };
    // 1 MiB takes 17 s.
    assert_eq!(with_rate(500_000), [""; 0]);
    assert_eq!(with_rate(5_000_000), ["the path between east-0 and west-0"]);
}

#[test]
fn an_exchange_counts_from_the_last_post() {
    let posted = |ago: f64| {
        let mut dump = met(&collective("running", &[], 60.0));
        dump.gateways[0].flights = flights(&[(0, 60.0), (1, ago)], &[("west-0", 1 << 20)]);
        dump
    };
    assert_eq!(culprits(posted(2.0)), [""; 0]);
    let (kind, culprit, found) = first_cause(posted(20.0));
    assert_eq!((kind, &*culprit), (CulpritKind::Link, "the path between east-0 and west-0"));
    assert!(found.contains("run for 20 s; gateway east-0 waits for 1 MiB"), "{found}");
}

#[test]
fn a_link_below_its_rate_is_named() {
    let with_measured = |measured| {
        let mut east = status("east", "up", &json!({}));
        east["links"] = links(1_000_000_000, Some(measured));
        culprits(dump(Some(east), Some(status("west", "up", &json!({})))))
    };
    assert_eq!(with_measured(790_000_000), ["link east-west"]);
    assert_eq!(with_measured(810_000_000), [""; 0]);
}

#[test]
fn a_clock_that_is_apart_is_named() {
    let mut dump = met(&json!({}));
    dump.gateways[0].clock_ahead_seconds = Some(-2.0);
    dump.gateways[1].clock_ahead_seconds = Some(59.0);
    assert_eq!(culprits(dump.clone()), [""; 0]);
    dump.gateways[1].clock_ahead_seconds = Some(-3602.0);
    let (kind, culprit, found) = first_cause(dump.clone());
    assert_eq!((kind, &*culprit), (CulpritKind::Gateway, "the clock of gateway west-0 (west)"));
    assert!(found.contains("1 h behind the others"), "{found}");
    // Whoever took the dump has the wrong clock.
    dump.gateways[0].clock_ahead_seconds = Some(-3603.0);
    assert_eq!(culprits(dump), [""; 0]);
}

#[test]
fn differing_fabric_files_are_named() {
    let with_digest = |region: &str, digest: &str| {
        let mut status = status(region, "up", &json!({}));
        status["fabric_identity"] = json!(digest);
        Some(status)
    };
    let one = dump(with_digest("east", "01"), with_digest("west", "01"));
    assert_eq!(culprits(one), [""; 0]);
    let other = dump(with_digest("east", "01"), with_digest("west", "02"));
    assert_eq!(culprits(other), ["the fabric file of gateways east-0 and west-0"]);
}

#[test]
fn a_commit_that_waits_names_the_region() {
    let commit = |seconds: f64| {
        let commit = json!({"rank": 0, "step": 7, "awaited": ["west"], "seconds": seconds});
        json!({ "commits": [commit] })
    };
    let waits = |seconds| {
        let east = status("east", "up", &commit(seconds));
        dump(Some(east), Some(status("west", "up", &json!({}))))
    };
    assert_eq!(culprits(waits(9.0)), [""; 0]);
    let (kind, culprit, found) = first_cause(waits(12.0));
    assert_eq!((kind, &*culprit), (CulpritKind::Region, "region west"));
    assert!(found.contains("12 s until it confirms step 7"), "{found}");
}

#[test]
fn lost_lines_of_a_log_are_told_last() {
    let lossy = |job: &Value| {
        let mut west = status("west", "up", job);
        west["lost_log_lines"] = json!(3);
        culprits(dump(Some(status("east", "up", job)), Some(west)))
    };
    assert_eq!(lossy(&json!({})), ["gateway west-0 (west)"]);
    assert_eq!(lossy(&collective("awaiting", &[1], 6.0)), ["rank 1 (east)"]);
}

#[test]
fn a_failure_that_nothing_explains_is_repeated() {
    let incident = json!({"kind": "collective_failed", "group": null, "number": 6, "code": 4,
                          "text": "rank 2 (west) was lost", "count": 1, "seconds_ago": 2.0});
    let job = json!({"incidents": [incident], "completed_seconds_ago": 3.0});
    let (kind, culprit, found) = first_cause(met(&job));
    assert_eq!((kind, &*culprit), (CulpritKind::Rank, "rank 2 (west)"));
    assert!(found.contains("rank 2 (west) was lost"), "{found}");
    let mut down = job;
    down["incidents"][0]["code"] = json!(5);
    down["incidents"][0]["text"] =
        json!("gateway west-0 cannot be reached: link east-west is down");
    assert_eq!(first_cause(met(&down)).1, "link east-west");
    down["incidents"][0]["text"] = json!("gateway west-0 is gone, and link east-west-2 is up");
    assert_eq!(first_cause(met(&down)).1, "gateway west-0 (west)");
}

#[test]
fn regions_without_a_dump_are_told() {
    let mut east = dump(Some(status("east", "up", &json!({}))), None);
    east.gateways.pop();
    assert_eq!(regions_without_dump(&[east.clone()]), ["west"]);
    let mut west = dump(None, Some(status("west", "up", &json!({}))));
    west.gateways.remove(0);
    assert!(regions_without_dump(&[east, west]).is_empty());
}
