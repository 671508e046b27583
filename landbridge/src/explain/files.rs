//! Files and clocks that differ between gateways: fabric files, jobs and tokens, the time of hosts.

use super::dump_view::DumpView;
use super::party::{Finding, Party};
use gateway::observe::status::JobDifferenceKind;
use std::collections::{BTreeMap, BTreeSet};
use units::Span;

/// 60 s: `landbridge explain` names a clock that is apart from the others by this time or more. It is
/// far above the 10 s that asking takes, and a sixtieth of the hour that new certificates allow.
/// Tested by `a_clock_that_is_apart_is_named`.
const CLOCK_TOLD_FROM_S: f64 = 60.0;

/// Finds gateways whose clocks are apart from most clocks, that of whoever took the dump included.
pub(super) fn find_wrong_clocks(view: &DumpView<'_>) -> Vec<Finding> {
    let known: Vec<(&str, f64)> = view
        .gateways()
        .filter_map(|gateway| Some((&*gateway.gateway, gateway.clock_ahead_seconds?)))
        .collect();
    let mut all: Vec<f64> = known.iter().map(|(_, ahead)| *ahead).chain([0.0]).collect();
    all.sort_by(f64::total_cmp);
    // Of two clocks that of whoever asked counts as right.
    let right = if all.len() == 2 { 0.0 } else { all[all.len() / 2] };
    let wrong = known.into_iter().filter(|(_, ahead)| (ahead - right).abs() >= CLOCK_TOLD_FROM_S);
    let finding = |(gateway, ahead): (&str, f64)| {
        let side = if ahead > right { "ahead of" } else { "behind" };
        let apart = Span::from_secs_f64((ahead - right).abs()).rounded();
        Finding::of_party(
            Party::Clock(gateway.to_owned()),
            format!("it is {apart} {side} the others, and certificates are judged by it"),
            "correct the clock of its host, and keep it by NTP",
        )
    };
    wrong.map(finding).collect()
}

/// Finds gateways whose fabric file differs from that of most gateways; all of them where no file is
/// that of most.
pub(super) fn find_differing_fabrics(view: &DumpView<'_>) -> Vec<Finding> {
    let mut by_digest: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for status in view.statuses().filter(|status| !status.fabric_identity.is_empty()) {
        by_digest.entry(&status.fabric_identity).or_default().push(&status.gateway);
    }
    if by_digest.len() < 2 {
        return Vec::new();
    }
    let count = by_digest.values().map(Vec::len).sum::<usize>();
    let is_of_most = |gateways: &Vec<&str>| 2 * gateways.len() > count;
    let of_most = by_digest.values().find(|gateways| is_of_most(gateways));
    let odd: Vec<&str> =
        by_digest.values().filter(|of_one| !is_of_most(of_one)).flatten().copied().collect();
    let digests: Vec<String> = by_digest
        .iter()
        .map(|(digest, of_one)| {
            format!("{} at {}", digest.get(..16).unwrap_or(digest), of_one.join(", "))
        })
        .collect();
    let found = format!("fabric files differ; their digests: {}", digests.join("; "));
    let finding = |gateways: &[&str]| {
        Finding::of_party(
            Party::of_files("fabric file", gateways),
            found.clone(),
            "give all regions one fabric file, and restart the gateways whose file changed",
        )
    };
    match of_most {
        Some(_) => odd.into_iter().map(|gateway| finding(&[gateway])).collect(),
        None => vec![finding(&odd)],
    }
}

/// Finds differences between the region files of gateways in a job: jobs that are missing somewhere, if
/// `is_missing`; otherwise tokens and weights. Where one gateway differs from several, it alone is
/// named.
pub(super) fn find_differing_jobs(view: &DumpView<'_>, is_missing: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut pairs: BTreeMap<String, BTreeSet<[&str; 2]>> = BTreeMap::new();
    for status in view.statuses() {
        let own = &*status.gateway;
        for difference in &status.job_differences {
            let (job, other) = (&difference.job, &*difference.gateway);
            let what = match difference.kind {
                JobDifferenceKind::MissingThere | JobDifferenceKind::MissingHere if is_missing => {
                    let is_there = difference.kind == JobDifferenceKind::MissingThere;
                    let lacking = if is_there { other } else { own };
                    findings.push(Finding::of_party(
                        Party::of_files("region file", &[lacking]),
                        format!("it has no job {job}, so that the job gets no epoch"),
                        "add the job there and send that gateway SIGHUP, or remove it elsewhere",
                    ));
                    continue;
                }
                JobDifferenceKind::OtherToken if !is_missing => format!("token of job {job}"),
                JobDifferenceKind::OtherWeight { .. } if !is_missing => {
                    format!("weight of job {job}")
                }
                _ => continue,
            };
            let pair = if own < other { [own, other] } else { [other, own] };
            pairs.entry(what).or_default().insert(pair);
        }
    }
    for (what, pairs) in pairs {
        let found = format!("the {what} is not the same in all region files");
        let remedy = "give all region files the same value, and send SIGHUP where it changed";
        let odd = odd_gateways_of_pairs(&pairs);
        findings.push(Finding::of_party(Party::of_files(&what, &odd), found, remedy));
    }
    findings
}

/// Returns the one gateway that is in each of several pairs that differ, or else all gateways of the
/// pairs.
fn odd_gateways_of_pairs<'a>(pairs: &BTreeSet<[&'a str; 2]>) -> Vec<&'a str> {
    let all: BTreeSet<&str> = pairs.iter().flatten().copied().collect();
    let common: Vec<&str> =
        all.iter().filter(|name| pairs.iter().all(|pair| pair.contains(name))).copied().collect();
    if pairs.len() > 1 && common.len() == 1 { common } else { all.into_iter().collect() }
}
