//! Every limit of `setrlimit` at its edge, on a gateway and on a client.

use super::deployment::{BINARY, UP_LINE};
use super::limited::{
    Limit, Outcome, held, held_as, judge_client, judge_gateway, release, set_limit, sum_everywhere,
    wait_for_lanes,
};
use super::skipping::skip;
use super::{Deployment, ELEMENTS, LAYOUT, ONE_AT_A_TIME, TEST_TIMEOUT, Team, running};
use gateway::access::own_user_account;
use rustix::process::{Resource, getrlimit};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::PoisonError;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// A user that has no process on any machine.
const UNUSED_USER: u32 = 54_321;

/// A limit with its values from the lowest up, of which the last must suffice.
struct Edges {
    resource: Resource,
    /// The setting that a refusal names.
    setting: &'static str,
    values: &'static [u64],
    /// Whether the lowest value is too low for sure.
    refuses: bool,
}

/// The limits of a gateway that decide whether it starts. The program itself needs 60 MiB of
/// addresses before it can say anything.
const OF_GATEWAYS: [Edges; 3] = [
    Edges {
        resource: Resource::As,
        setting: "ulimit -v",
        values: &[100 * MIB, 256 * MIB, 300 * MIB, 400 * MIB, 700 * MIB, 64 << 30],
        refuses: true,
    },
    Edges {
        resource: Resource::Data,
        setting: "ulimit -d",
        values: &[16 * MIB, 64 * MIB, 256 * MIB, 384 * MIB, 2048 * MIB],
        refuses: true,
    },
    Edges {
        resource: Resource::Stack,
        setting: "ulimit -Hs",
        values: &[64 * KIB, 256 * KIB, 1024 * KIB],
        refuses: true,
    },
];

/// The limits of a client that decide whether it works.
const OF_CLIENTS: [Edges; 5] = [
    Edges {
        resource: Resource::As,
        setting: "ulimit -v",
        values: &[64 * MIB, 100 * MIB, 128 * MIB, 64 << 30],
        refuses: true,
    },
    Edges {
        resource: Resource::Data,
        setting: "ulimit -d",
        values: &[8 * MIB, 16 * MIB, 1024 * MIB],
        refuses: false,
    },
    Edges {
        resource: Resource::Stack,
        setting: "ulimit -Hs",
        values: &[64 * KIB, 1024 * KIB],
        refuses: true,
    },
    Edges {
        resource: Resource::Fsize,
        setting: "ulimit -f",
        values: &[0, 4 * KIB, MIB, 1024 * MIB],
        refuses: true,
    },
    Edges {
        resource: Resource::Nofile,
        setting: "ulimit -n",
        values: &[5, 6, 7, 8, 9, 10, 11, 12, 64],
        refuses: true,
    },
];

/// Limits that nothing here needs, so that 0 of them changes nothing.
const UNUSED: [Resource; 8] = [
    Resource::Core,
    Resource::Memlock,
    Resource::Msgqueue,
    Resource::Sigpending,
    Resource::Locks,
    Resource::Rss,
    Resource::Nice,
    Resource::Rtprio,
];

/// Judges a program at each edge. A limit that is too low is refused, the last one suffices.
fn judge_edges(edges: &Edges, judge: impl Fn(&Limit<'_>) -> Outcome) {
    for (number, value) in edges.values.iter().enumerate() {
        let apply = |process: &Child| set_limit(process, edges.resource, *value);
        let words = vec![edges.setting.to_owned(), value.to_string()];
        let outcome = judge(&Limit { words, apply: &apply });
        println!("{} {value}: {outcome:?}", edges.setting);
        let is_last = number + 1 == edges.values.len();
        assert!(!is_last || outcome == Outcome::Works, "{} {value}: {outcome:?}", edges.setting);
        let must_refuse = number == 0 && edges.refuses;
        assert!(!must_refuse || outcome != Outcome::Works, "{} {value}", edges.setting);
    }
}

/// Starts west's gateway alone.
fn west_alone() -> Deployment {
    let mut deployment = Deployment::new(&LAYOUT);
    deployment.run_gateway("west");
    deployment
}

#[test]
fn a_gateway_works_or_refuses_at_every_limit() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deployment = west_alone();
    for edges in &OF_GATEWAYS {
        judge_edges(edges, |limit| judge_gateway(&deployment, limit, held(), sum_everywhere));
    }
}

/// A gateway that is up refuses trainers for whom no descriptor is left.
#[test]
fn a_gateway_with_few_descriptors_is_up_or_refuses() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deployment = west_alone();
    for most in [5, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48] {
        let apply = |process: &Child| set_limit(process, Resource::Nofile, most);
        let limit = Limit { words: vec!["ulimit -Hn".to_owned(), most.to_string()], apply: &apply };
        let outcome = judge_gateway(&deployment, &limit, held(), |_| {});
        println!("ulimit -n {most}: {outcome:?}");
        assert!(most > 8 || outcome != Outcome::Works, "{most} descriptors");
    }
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_client_works_or_refuses_at_every_limit() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let deployment = running();
    for edges in &OF_CLIENTS {
        judge_edges(edges, |limit| judge_client(&deployment, limit));
    }
}

#[test]
fn limits_that_nothing_needs_may_be_0() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut deployment = west_alone();
    let apply = |process: &Child| {
        UNUSED.iter().for_each(|resource| set_limit(process, *resource, 0));
    };
    let limit = Limit { words: vec!["no limit".to_owned()], apply: &apply };
    assert_eq!(judge_gateway(&deployment, &limit, held(), sum_everywhere), Outcome::Works);
    deployment.run_gateway("east");
    assert_eq!(judge_client(&deployment, &limit), Outcome::Works);
}

/// The kernel would kill it at the hard limit, 5 s above the soft one.
#[test]
fn a_gateway_without_processor_time_ends_cleanly() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut deployment = west_alone();
    let mut east = deployment.spawn_gateway_by("east", held());
    set_limit(&east.process, Resource::Cpu, 7);
    release(east.process.stdin.take());
    east.log.line_with(UP_LINE);
    deployment.gateways.push(east);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let rounds = async {
        let team = Team::attach(&deployment, &LAYOUT, "train").await;
        while team.sum(&[1, 20, 300], ELEMENTS).await.is_ok() {}
    };
    let in_time = runtime.block_on(async { tokio::time::timeout(TEST_TIMEOUT, rounds).await });
    assert!(in_time.is_ok(), "two seconds of processor time are never used");
    let east = deployment.gateways.last_mut().expect("east's");
    let code = east.process.wait().expect("ends").code();
    assert_eq!(code, Some(1), "{}", east.log.text());
    assert!(east.log.text().contains("the limit on processor time is reached (ulimit -t)"));
}

/// Gives a file or folder and all that is in it to a user.
fn give_all(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).expect("allowed to root");
    if path.is_dir() {
        for entry in std::fs::read_dir(path).expect("readable") {
            give_all(&entry.expect("readable").path(), user);
        }
    }
}

/// Root has no limit on processes, so the gateway runs as a user without any.
#[test]
fn a_gateway_works_or_refuses_with_few_threads() {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    if own_user_account() != 0 {
        return skip("becoming another user needs root");
    }
    let deployment = west_alone();
    let folder = deployment.path("east.toml");
    let folder = folder.parent().expect("a folder");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder, open).expect("ours");
    if !can_run_as(UNUSED_USER) {
        return skip("another user cannot run the program");
    }
    give_all(folder, UNUSED_USER);
    let mut refused = 0;
    for most in 1.. {
        let apply = |process: &Child| set_limit(process, Resource::Nproc, most);
        let limit = Limit { words: vec!["ulimit -u".to_owned(), most.to_string()], apply: &apply };
        // Trainers of another user would have to be told of this one.
        match judge_gateway(&deployment, &limit, held_as(UNUSED_USER), wait_for_lanes) {
            Outcome::Works => break,
            Outcome::Refused(_) => refused += 1,
        }
        assert!(most < getrlimit(Resource::Nproc).current.unwrap_or(u64::MAX), "never enough");
    }
    assert!(refused > 3, "a gateway with {} threads works", refused + 1);
}

/// Returns whether a user can run the program.
fn can_run_as(user: u32) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &user.to_string(), "--clear-groups", BINARY, "--version"]);
    command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}
