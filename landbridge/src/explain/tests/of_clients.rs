//! Dumps of ranks that show one fault each.

use super::dumps::{collective, met};
use crate::explain::causes::{Cause, find_causes};
use crate::explain::client_dumps::ranks_without_dump;
use gateway::client::{ClientDump, DumpedCollective};

/// Returns an all-reduce of a rank in a group, with the seconds of its post and of its end.
fn posted(group: u64, sequence: u64, at: f64, ended_seconds: Option<f64>) -> DumpedCollective {
    DumpedCollective {
        group,
        epoch: 4,
        sequence,
        operation: "all_reduce".to_owned(),
        op: Some("sum".to_owned()),
        root: None,
        dtype: "f32".to_owned(),
        shape: vec![256],
        contribution_bytes: 1024,
        result_bytes: 1024,
        posted_seconds: at,
        ended_seconds,
        code: None,
        error_text: None,
    }
}

/// Returns a collective that failed at second 60 with this code and text.
fn failed(sequence: u64, at: f64, code: u8, text: &str) -> DumpedCollective {
    let error_text = Some(text.to_owned());
    DumpedCollective { code: Some(code), error_text, ..posted(0, sequence, at, Some(60.0)) }
}

/// Returns the dump of a rank of three at second 100.
fn client(rank: u32, collectives: Vec<DumpedCollective>) -> ClientDump {
    ClientDump {
        fabric: "two".to_owned(),
        job: "train".to_owned(),
        rank,
        world_size: 3,
        dumped_seconds: 100.0,
        collectives,
    }
}

/// Returns what the dumps of ranks show by themselves.
fn causes(clients: &[ClientDump]) -> Vec<Cause> {
    find_causes(&[], clients)
}

/// Returns culprit and observation of the only cause.
fn only_cause(clients: &[ClientDump]) -> (String, String) {
    let mut causes = causes(clients);
    assert_eq!(causes.len(), 1, "{causes:?}");
    let cause = causes.remove(0);
    (cause.culprit, cause.found)
}

#[test]
fn a_rank_without_a_post_is_named_with_its_place() {
    let done = || posted(0, 6, 90.0, Some(90.1));
    let waits = || vec![done(), posted(0, 7, 95.0, None)];
    let stuck = client(2, vec![done(), posted(3, 0, 91.0, None)]);
    let (culprit, found) = only_cause(&[client(0, waits()), client(1, waits()), stuck]);
    assert_eq!(culprit, "rank 2");
    assert_eq!(
        found,
        "it had not posted collective 7 (all-reduce, f32, 1 KiB) of job train 5 s after rank 0, as the \
         ranks' own dumps say; by its own dump it had waited 9 s for collective 0 (all-reduce, f32, 1 KiB) \
         of a group"
    );
    // It is in the script itself.
    let (_, found) = only_cause(&[client(0, waits()), client(1, waits()), client(2, vec![done()])]);
    assert!(found.ends_with("nothing was under way, and collective 6 (all-reduce, f32, 1 KiB) had ended 9.9 s before"), "{found}");
    // Its dump came a moment after the others' posts.
    let early = ClientDump { dumped_seconds: 95.5, ..client(2, vec![done()]) };
    assert_eq!(causes(&[client(0, waits()), client(1, waits()), early]), []);
    // It has long gone on, and its recorder has forgotten the collective.
    let ahead = client(2, vec![posted(0, 600, 99.0, None)]);
    let found = causes(&[client(0, waits()), client(1, waits()), ahead]);
    assert!(found.iter().all(|cause| cause.culprit != "rank 2"), "{found:?}");
}

#[test]
fn ranks_that_wait_for_nobody_are_no_trouble() {
    let waits = |at| vec![posted(0, 7, at, None)];
    assert_eq!(causes(&[client(0, waits(99.5)), client(1, vec![]), client(2, vec![])]), []);
    let done = || vec![posted(0, 7, 90.0, Some(95.0))];
    assert_eq!(causes(&[client(0, done()), client(1, done()), client(2, done())]), []);
}

#[test]
fn a_late_post_is_named_once_others_gave_up() {
    let late = "timed out waiting for ranks (cause: caller): rank 2 has not posted";
    let waited = || vec![failed(7, 50.0, 3, late)];
    let clients =
        [client(0, waited()), client(1, waited()), client(2, vec![failed(7, 59.0, 3, late)])];
    let (culprit, found) = only_cause(&clients);
    assert_eq!(culprit, "rank 2");
    assert!(
        found.starts_with("it posted collective 7") && found.contains("9 s after rank 0"),
        "{found}"
    );
    // Without its dump the text tells.
    let (culprit, found) = only_cause(&clients[..2]);
    assert_eq!(culprit, "rank 2");
    assert!(found.contains("failed first on rank 0: timed out"), "{found}");
    assert_eq!(ranks_without_dump(&clients[..2]).into_iter().collect::<Vec<_>>(), [2]);
}

#[test]
fn contradicting_posts_of_ranks_name_the_script() {
    let text = "ranks disagree (cause: caller): collective 7: rank 0 posts f32, rank 2 posts f64";
    let disagrees = || client(0, vec![failed(7, 59.0, 1, text)]);
    let (culprit, found) = only_cause(&[disagrees()]);
    assert_eq!((&*culprit, &*found), ("the script of job train", text));
    // It was mended.
    let mut mended = disagrees();
    mended.collectives.push(posted(0, 8, 90.0, Some(91.0)));
    assert_eq!(causes(&[mended]), []);
}

#[test]
fn an_exchange_of_clients_alone_is_told() {
    let waits = |rank, at| client(rank, vec![posted(0, 7, at, None)]);
    let (culprit, found) = only_cause(&[waits(0, 88.0), waits(1, 89.0), waits(2, 90.0)]);
    assert_eq!(culprit, "job train");
    assert!(found.starts_with("all ranks have posted collective 7"), "{found}");
    assert_eq!(causes(&[waits(0, 92.0), waits(1, 92.0), waits(2, 92.0)]), []);
    let (_, found) = only_cause(&[waits(0, 92.0), waits(1, 92.0)]);
    assert!(found.ends_with("no dump tells of ranks 2"), "{found}");
    // Gateways know better.
    assert_eq!(find_causes(&[met(&serde_json::json!({}))], &[waits(0, 88.0), waits(1, 88.0)]), []);
}

#[test]
fn a_lost_gateway_is_named_where_the_fabric_is_known() {
    let lost = || client(2, vec![failed(7, 59.0, 9, "gateway lost (cause: gateway): it is gone")]);
    let healthy = met(&serde_json::json!({}));
    let named = find_causes(&[healthy], &[lost()]);
    assert_eq!(named[0].culprit, "gateway west-0 (west)");
    assert_eq!(only_cause(&[lost()]).0, "job train");
}

#[test]
fn a_rank_that_gateways_name_is_told_with_its_dump() {
    let waiting = met(&collective("awaiting", &[2], 12.0));
    let stuck = client(2, vec![posted(3, 0, 91.0, None)]);
    let found = find_causes(&[waiting], &[stuck]);
    assert_eq!(found[0].culprit, "rank 2 (west)");
    assert!(found[0].found.contains("by its own dump it had waited 9 s"), "{found:?}");
}
