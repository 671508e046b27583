//! The client for programs in C: programs are compiled with strict warnings, and run under
//! AddressSanitizer as ranks of gateways that are processes.

mod library;

use super::deployment::{Deployment, Layout};
use super::skipping;
use gateway::client::{AttachOptions, Client, ClientDump, GatewayAddress};
use library::{Linkage, Program, declared_functions, exported_functions, soname};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Starts both gateways of a deployment with these ranks.
fn running(east: u32, west: u32) -> Deployment {
    let mut deployment = super::deployment(east, west);
    deployment.run_gateways();
    deployment
}

/// Starts a rank of a region.
fn start_rank(program: &Program, deployment: &Deployment, region: &str, number: u32) -> Child {
    let config = deployment.path(&format!("{region}.toml"));
    let mut command = program.command();
    command.arg(config).args([region, &number.to_string()]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("starts")
}

/// Runs three ranks to their end. Each must succeed; returns what they printed.
fn run_three_ranks(program: &Program) -> String {
    let deployment = running(2, 1);
    let ranks = [("east", 0), ("east", 1), ("west", 0)];
    let ranks = ranks.map(|(region, number)| start_rank(program, &deployment, region, number));
    let outputs = ranks.map(|rank| rank.wait_with_output().expect("ends"));
    outputs.iter().map(printed).collect()
}

/// Returns what a program that succeeded printed.
fn printed(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {stderr}", output.status);
    String::from_utf8(output.stdout.clone()).expect("text")
}

#[test]
fn the_example_all_reduces_with_the_shared_library() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c/all_reduce.c");
    let text = run_three_ranks(&Program::compile(&example, Linkage::Shared));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} of 3 has the mean 2\n")), "{text}");
    }
}

#[test]
fn the_example_exchanges_records_under_the_address_sanitizer() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c/all_to_all.c");
    let text = run_three_ranks(&Program::compile(&example, Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} of 3 sent ")), "{text}");
    }
}

#[test]
fn every_operation_passes_under_the_address_sanitizer() {
    let text = run_three_ranks(&Program::of_test("operations", Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} is done\n")), "{text}");
    }
}

#[test]
fn ranks_make_groups_and_use_them_at_once() {
    let text = run_three_ranks(&Program::of_test("groups", Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} is done\n")), "{text}");
    }
}

#[test]
fn ranks_send_to_each_other_by_tag() {
    let text = run_three_ranks(&Program::of_test("sends", Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} is done\n")), "{text}");
    }
}

#[test]
fn ranks_share_the_store_of_their_job() {
    let text = run_three_ranks(&Program::of_test("store", Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} is done\n")), "{text}");
    }
}

#[test]
fn a_post_without_room_ends_with_its_timeout() {
    let text = run_three_ranks(&Program::of_test("room", Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("rank {rank} is done\n")), "{text}");
    }
}

#[test]
fn the_example_passes_micro_batches_under_the_address_sanitizer() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/c/pipeline.c");
    let text = run_three_ranks(&Program::compile(&example, Linkage::Sanitized));
    for rank in 0..3 {
        assert!(text.contains(&format!("stage {rank} of 3: the sum is ")), "{text}");
    }
}

#[test]
fn threads_use_groups_of_two_jobs_in_one_process() {
    let layout = Layout { jobs: &["train", "zoo"], ..Layout::of(1, 1) };
    let mut deployment = Deployment::new(&layout);
    deployment.run_gateways();
    let program = Program::of_test("threads", Linkage::Sanitized);
    let mut command = program.command();
    command.args([deployment.path("east.sock"), deployment.path("west.sock")]);
    for job in layout.jobs {
        command.arg(job).arg(deployment.path(&format!("keys/{job}.token")));
    }
    let text = printed(&command.output().expect("runs"));
    assert_eq!(text, "all ranks are done\n");
}

#[test]
fn ranks_on_other_hosts_attach_by_address_and_ca() {
    let mut deployment = super::deployment(1, 1);
    let ways = ["east", "west"].map(|region| deployment.serve_hosts(region, ""));
    deployment.certs("other", &["train"]);
    deployment.run_gateways();
    let program = Program::of_test("remote", Linkage::Sanitized);
    let ranks = [(&ways[0], "0"), (&ways[1], "1")].map(|(way, rank)| {
        let mut command = program.command();
        command.arg(way.address.to_string()).arg(&way.ca).arg(deployment.path("other/ca.pem"));
        command.arg(deployment.path("keys/train.token")).arg(rank);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    });
    let text: String = ranks.map(|rank| printed(&rank.wait_with_output().expect("ends"))).concat();
    assert!(text.contains("rank 0 is done\n") && text.contains("rank 1 is done\n"), "{text}");
}

#[test]
fn ranks_recover_when_a_gateway_is_killed() {
    let mut deployment = running(1, 1);
    let program = Program::of_test("recover", Linkage::Sanitized);
    let ranks = ["east", "west"].map(|region| start_rank(&program, &deployment, region, 0));
    let mut attached = ranks.map(|mut rank| {
        let lines = BufReader::new(rank.stdout.take().expect("piped")).lines();
        (rank, lines)
    });
    for (rank, lines) in &mut attached {
        for step in 1..=3 {
            let line = lines.next().map(|line| line.expect("text"));
            if line.as_deref() != Some(format!("step {step}").as_str()) {
                let _ = rank.kill();
                panic!("{line:?} instead of step {step}: {:?}", rank.wait());
            }
        }
    }
    let west = deployment.gateways.pop();
    let mut west = west.expect("the gateway of west is the second");
    west.process.kill().expect("runs");
    west.process.wait().expect("ends");
    deployment.run_gateway("west");
    for (rank, _) in &mut attached {
        rank.stdin.take().expect("piped").write_all(b"\n").expect("it waits");
    }
    for (rank, mut lines) in attached {
        let rest: Vec<String> = lines.by_ref().map_while(Result::ok).collect();
        printed(&rank.wait_with_output().expect("ends"));
        assert_eq!(rest, ["step 4", "step 5", "step 6"]);
    }
}

#[test]
fn a_store_that_is_busy_refuses_and_goes_on() {
    let deployment = running(6, 1);
    let program = Program::of_test("busy", Linkage::Sanitized);
    let mut command = program.command();
    command.args([deployment.path("east.sock"), deployment.path("west.sock")]);
    command.arg("train").arg(deployment.path("keys/train.token"));
    let text = printed(&command.output().expect("runs"));
    assert_eq!(text, "some were refused\n");
}

/// Returns the dump of a rank, which only its user can read and which holds no token.
fn client_dump(path: &Path, token: &[u8; 32]) -> ClientDump {
    let mode = std::fs::metadata(path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    let bytes = std::fs::read(path).expect("readable");
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let holds = |needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    assert!(!holds(token) && !holds(hex.as_bytes()), "the token");
    serde_json::from_slice(&bytes).expect("a dump")
}

#[test]
fn ranks_dump_what_they_posted_and_failures() {
    let deployment = running(1, 1);
    let folder = tempfile::tempdir().expect("a folder");
    let program = Program::of_test("dump", Linkage::Sanitized);
    let ranks = ["east", "west"].map(|region| {
        let mut command = program.command();
        command.arg(deployment.path(&format!("{region}.toml"))).arg(region).arg(folder.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts")
    });
    let text: String = ranks.map(|rank| printed(&rank.wait_with_output().expect("ends"))).concat();
    assert_eq!(text, "east is done\nwest is done\n");
    let token = deployment.token("train").0;
    for (rank, region) in [(0, "east"), (1, "west")] {
        let dump = client_dump(&folder.path().join(format!("{region}.json")), &token);
        assert_eq!(
            (&*dump.fabric, &*dump.job, dump.rank, dump.world_size),
            ("two", "train", rank, 2)
        );
        let last = dump.collectives.last().expect("one");
        assert_eq!((&*last.operation, last.op.as_deref()), ("all_reduce", Some("max")));
        assert_eq!((&*last.dtype, &*last.shape, last.contribution_bytes), ("f32", &[3][..], 12));
        assert!(last.ended_seconds >= Some(last.posted_seconds) && last.code.is_none(), "{last:?}");
    }
    let failures = std::fs::read_dir(folder.path().join("east-failures")).expect("made");
    let files: Vec<_> = failures.map(|file| file.expect("read").path()).collect();
    assert_eq!(files.len(), 1, "{files:?}");
    let last = client_dump(&files[0], &token).collectives.pop().expect("one");
    assert_eq!((&*last.operation, last.code), ("barrier", Some(3)), "{last:?}");
    assert!(!folder.path().join("west-failures").exists());
}

/// Attaches rank 1 in the region west, meets rank 0 at a barrier as a program in C does, and makes a
/// group of both under tag 2. The client keeps the rank attached.
async fn meet_as_other_rank(address: GatewayAddress, attach: AttachOptions) -> (Client, Client) {
    let client = Client::attach(&address, attach).await.expect("attached");
    client.agree_to_epoch();
    client.barrier().await.expect("the other rank comes");
    let made = client.new_group_with_tag(&[0, 1], 2).await.expect("made");
    (client, made.expect("it has this rank"))
}

#[test]
fn gateways_that_do_not_meet_have_codes() {
    let mut deployment = super::deployment(1, 1);
    deployment.run_gateway("east");
    let program = Program::of_test("unmet", Linkage::Sanitized);
    let mut rank = start_rank(&program, &deployment, "east", 0);
    let mut lines = BufReader::new(rank.stdout.take().expect("piped")).lines();
    let mut stdin = rank.stdin.take().expect("piped");
    let mut stderr = rank.stderr.take().expect("piped");
    let mut hears = |word: &str| {
        let line = lines.next().map(|line| line.expect("text"));
        if line.as_deref() != Some(word) {
            let mut text = String::new();
            let _ = (rank.kill(), stderr.read_to_string(&mut text));
            panic!("{line:?} instead of {word}: {text}");
        }
    };
    hears("alone");
    deployment.run_gateway("west");
    let address = GatewayAddress::Socket(deployment.path("west.sock"));
    let attach = AttachOptions::new("train", deployment.token("train"), 1, 1 << 20);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let other = runtime.spawn(meet_as_other_rank(address, attach));
    stdin.write_all(b"\n").expect("it waits");
    hears("met");
    let west = Pid::from_child(&deployment.gateways[1].process);
    kill_process(west, Signal::STOP).expect("signalled");
    // On a busy machine its threads work on for a moment.
    let state = waitpid(Some(west), WaitOptions::UNTRACED).expect("a child");
    assert!(state.is_some_and(|(_, status)| status.stopped()), "{state:?}");
    stdin.write_all(b"\n").expect("it waits");
    hears("stopped");
    kill_process(west, Signal::CONT).expect("goes on");
    stdin.write_all(b"\n").expect("it waits");
    hears("done");
    assert!(rank.wait().expect("ends").success());
    drop(runtime.block_on(other).expect("no panic"));
}

#[test]
fn the_shared_library_exports_what_the_header_declares() {
    let declared = declared_functions();
    assert!(declared.len() > 10, "{declared:?}");
    assert_eq!(exported_functions(), declared);
    assert_eq!(soname(), "liblandbridge.so.0");
}

#[test]
fn a_program_in_cpp_can_include_the_header() {
    if Command::new("c++").arg("--version").output().is_err() {
        return skipping::skip("no C++ compiler");
    }
    library::check_header_in_cpp();
}
