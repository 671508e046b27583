//! Dumps that show one fault each.

use super::causes::{CulpritKind, find_causes};
use super::dump::{Dump, DumpedGateway, DumpedPlace};
use super::dump_view::regions_without_dump;
use serde_json::{Value, json};

/// Returns a dump of the gateways east-0, with ranks 0 and 1, and west-0, with rank 2. Each is given
/// as the status that it answers with, or as nothing.
fn dump(east: Option<Value>, west: Option<Value>) -> Dump {
    let gateway = |region: &str, status: Option<Value>| {
        let name = format!("{region}-0");
        let status = status.map(|status| serde_json::from_value(status).expect("a status"));
        let error = status.is_none().then(|| "nothing answers".to_owned());
        let is_absent = status.is_none();
        DumpedGateway { gateway: name, region: region.to_owned(), status, error, is_absent }
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
    let causes = find_causes(&[dump]);
    let first = causes.into_iter().next().expect("a cause");
    (first.kind, first.culprit, first.found)
}

/// Returns a job's collective 7 in `state` for so many seconds.
fn collective(state: &str, awaited: &[u32], seconds: f64) -> Value {
    json!({"collectives": [{"sequence": 7, "op": "sum", "dtype": "f32", "bytes": 1 << 20,
                            "state": state, "awaited": awaited, "seconds": seconds}]})
}

/// Returns a dump of two gateways that reach each other, with the same fields of their job.
fn met(job: &Value) -> Dump {
    dump(Some(status("east", "up", job)), Some(status("west", "up", job)))
}

#[test]
fn ranks_that_post_soon_are_no_trouble() {
    assert_eq!(find_causes(&[met(&json!({}))]), []);
    assert_eq!(find_causes(&[met(&collective("awaiting", &[2], 0.5))]), []);
    assert_eq!(find_causes(&[met(&collective("running", &[], 9.0))]), []);
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
    assert_eq!(find_causes(&[dump(Some(east.clone()), None)]).len(), 1);
    // The other gateway runs: the path is at fault.
    let mut west = status("west", "connecting", &json!({"epoch": null}));
    west["problems"] = json!([{"cause": "peer", "blocks": true, "subject": "gateway east-0",
                               "found": "no lane is connected", "remedy": null}]);
    let both = dump(Some(east), Some(west));
    assert_eq!(find_causes(std::slice::from_ref(&both)).len(), 1, "told once");
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

#[test]
fn a_failure_that_nothing_explains_is_repeated() {
    let incident = json!({"kind": "collective_failed", "group": null, "number": 6, "code": 4,
                          "text": "rank 2 (west) was lost", "count": 1, "seconds_ago": 2.0});
    let job = json!({"incidents": [incident], "completed_seconds_ago": 3.0});
    let (kind, _, found) = first_cause(met(&job));
    assert_eq!(kind, CulpritKind::Rank);
    assert!(found.contains("rank 2 (west) was lost"), "{found}");
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
