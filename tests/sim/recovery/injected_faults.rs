//! Under any fault: no wrong sum, no wait past its deadline, memory within its budget, and full
//! recovery afterwards. These are a fixed share of the seeds; `cargo xtask simulate` runs more.

use scenarios::faults::{
    IN_FLIGHT_MIN, MEMBERS, RANDOM, RunSummary, Scenario, named, replay, sweep, threads,
};

/// 100 seeds of random scenarios.
const SEEDS: u64 = 100;
/// 12 seeds of random scenarios in the short tests, which take some seconds.
const SHORT_SEEDS: u64 = 12;
/// 400 seeds of regions that leave, join and are lost.
const MEMBERS_SEEDS: u64 = 400;
/// 19 seeds of them in the short tests, which take some seconds.
const SHORT_MEMBERS_SEEDS: u64 = 19;
/// Seeds that long runs have found something wrong with, in gateways or in what was expected of them.
const FOUND_SEEDS: [u64; 1] = [21_134];
/// Such seeds of regions that leave, join and are lost.
const FOUND_MEMBERS_SEEDS: [u64; 4] = [40_105, 40_871, 42_036, 42_698];
/// 3 seeds of each named scenario.
const SEEDS_EACH: u64 = 3;

/// The operations that a few seeds carry out.
const OPERATIONS: [&str; 10] = [
    "all-reduce",
    "reduce",
    "broadcast",
    "barrier",
    "all-gather",
    "gather",
    "scatter",
    "reduce-scatter",
    "all-to-all",
    "send",
];

/// Asserts that all scenarios pass; a failure has the events, and the command that repeats the run.
fn all_right(scenarios: impl Iterator<Item = Scenario> + Send) -> RunSummary {
    let (mut wrong, mut total) = (Vec::new(), RunSummary::default());
    sweep(scenarios, threads(), |scenario, told| {
        total.add(told);
        if !told.wrong.is_empty() {
            wrong.push((scenario.clone(), told.clone()));
        }
        true
    });
    if let Some((scenario, told)) = wrong.first() {
        println!("{scenario}{}", replay(scenario).1);
        let seeds: Vec<u64> = wrong.iter().map(|(scenario, _)| scenario.seed).collect();
        panic!("{:#?}\n  {}\n  all seeds: {seeds:?}", told.wrong, scenario.replay());
    }
    total
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn random_faults_do_no_more_harm_than_they_may() {
    let total = all_right((0..SEEDS).map(Scenario::random));
    for kind in ["relayed send", "blocks over trees"] {
        assert!(total.outcomes.get(kind).is_some_and(|count| *count > 0), "{total:?}");
    }
    let share = total.struck_in_flight();
    assert!(share >= IN_FLIGHT_MIN, "only {share} of the faults struck anything under way");
}

/// Returns seeds in which regions leave, join and are lost.
fn members(
    seeds: impl IntoIterator<Item = u64, IntoIter: Send>,
) -> impl Iterator<Item = Scenario> + Send {
    seeds.into_iter().map(|seed| Scenario::named(MEMBERS, seed).expect("it is known"))
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn regions_leave_join_and_are_lost_in_many_seeds() {
    all_right(members(0..MEMBERS_SEEDS));
}

#[test]
fn regions_leave_join_and_are_lost_in_a_few_seeds() {
    let total = all_right(members(0..SHORT_MEMBERS_SEEDS));
    for kind in [
        "leave accepted",
        "join accepted",
        "gateway cut off",
        "gateways parted",
        "link cut one way",
        "link flaps",
        "gateway killed",
        "leader killed as a term forms",
        "MembershipChanged",
    ] {
        assert!(total.outcomes.get(kind).is_some_and(|count| *count > 0), "{total:?}");
    }
}

#[test]
fn a_few_seeds_do_no_more_harm_than_they_may() {
    let total = all_right((0..SHORT_SEEDS).map(Scenario::random));
    for (kind, least) in [("store answered", 100), ("completed", 100), ("relayed send", 5)] {
        assert!(total.outcomes.get(kind).is_some_and(|count| *count > least), "{total:?}");
    }
    for operation in OPERATIONS {
        let has = |kind: &String| kind.split(' ').next() == Some(operation);
        assert!(total.completed.keys().any(has), "{operation}: {total:?}");
    }
}

#[test]
fn seeds_of_long_runs_that_went_wrong_go_right() {
    all_right(FOUND_SEEDS.into_iter().map(Scenario::random));
    all_right(members(FOUND_MEMBERS_SEEDS));
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn named_faults_do_no_more_harm_than_they_may() {
    let names = named().into_iter().map(|known| known.name);
    let each = |name: String| {
        (0..SEEDS_EACH).map(move |seed| Scenario::named(&name, seed).expect("it is named"))
    };
    all_right(names.flat_map(each));
}

#[test]
fn a_seed_tells_the_same_story_twice() {
    for name in [RANDOM, "gateway-killed", "one-way-cut-then-disorder"] {
        let scenario = Scenario::named(name, 5).expect("it is named");
        let (first, second) = (replay(&scenario).1, replay(&scenario).1);
        let differs = first.lines().zip(second.lines()).find(|(one, other)| one != other);
        assert_eq!(differs, None, "{name}");
        assert!(first.lines().count() > 50, "{first}");
    }
}
