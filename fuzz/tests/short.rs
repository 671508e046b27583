//! Every target over its seeds, over earlier findings, and over seeded mutations of both.
//!
//! The inputs are the same every time, and the project's toolchain suffices.

use fuzz::mutate::Mutator;
use fuzz::{FuzzTarget, TARGETS};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

/// 20,000 mutations of each target's corpus, which take the slowest a second or two.
const MUTATIONS: u64 = 20_000;

fn target(name: &str) -> &'static FuzzTarget {
    TARGETS.iter().find(|target| target.name == name).expect("a target of that name")
}

/// Files that the project keeps in the corpus.
fn kept(target: &FuzzTarget) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(target.corpus_folder()).expect("every target has a corpus");
    let mut kept: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    kept.retain(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("seed-") || name.starts_with("found-")
    });
    kept.sort();
    kept
}

fn run(name: &str) {
    let target = target(name);
    let files = kept(target);
    let corpus: Vec<Vec<u8>> =
        files.iter().map(|file| std::fs::read(file).expect("readable")).collect();
    assert!(!corpus.is_empty(), "{name} has no seeds");
    for (file, bytes) in files.iter().zip(&corpus) {
        check(target, bytes, file);
    }
    for seed in 0..MUTATIONS {
        let bytes = Mutator::new(&corpus, seed).next_input();
        let file = format!("artifacts/{name}/short-{seed}");
        check(target, &bytes, &Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
    }
    println!("{name}: {} files, {MUTATIONS} mutations", files.len());
}

/// Runs a target on one input. After a panic it stores the input in `file` and says how to replay
/// it.
fn check(target: &FuzzTarget, bytes: &[u8], file: &Path) {
    if catch_unwind(|| (target.check)(bytes)).is_err() {
        if !file.exists() {
            std::fs::create_dir_all(file.parent().expect("in a folder")).expect("writable");
            std::fs::write(file, bytes).expect("writable");
        }
        let file = file.display();
        panic!("reproduce it with: cargo run -p fuzz --bin {} -- {file}", target.name);
    }
}

macro_rules! short_runs {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        #[test]
        fn every_target_has_a_short_run() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

short_runs! {
    segment_header control_message link_message train_message parity_stream hello store_message store_request
    store_answer store_snapshot local_request local_response
    piece_stream operator_request fabric_config region_config quantities netem_words lab_file recording
}

#[test]
fn the_seeds_on_disk_are_those_of_the_code() {
    let hint = "write the seeds again: cargo run -p fuzz --example write_seeds";
    for target in &TARGETS {
        let files = target.seed_files();
        for (path, bytes) in &files {
            let there = std::fs::read(path).unwrap_or_default();
            assert!(there == *bytes, "{} is out of date; {hint}", path.display());
        }
        for path in kept(target) {
            let known = files.iter().any(|(known, _)| *known == path);
            let found = path.to_string_lossy().contains("found-");
            assert!(known || found, "{} is no longer a seed; {hint}", path.display());
        }
    }
}

/// Mutations would hardly reach a new kind of message that has no seed.
#[test]
fn every_kind_of_message_has_a_seed() {
    use gateway::local::protocol::{ProtocolRequest, ProtocolResponse};
    use hier_collectives::codec::DecodeError;
    use hier_collectives::wire::Message;

    type Known = fn(&[u8]) -> bool;
    let kinds: [(&str, usize, Known); 3] = [
        ("control_message", 14, |bytes| {
            Message::decode(bytes) != Err(DecodeError::Unknown("message"))
        }),
        ("local_request", 0, |bytes| {
            ProtocolRequest::decode(bytes) != Err(DecodeError::Unknown("request"))
        }),
        ("local_response", 0, |bytes| {
            ProtocolResponse::decode(bytes) != Err(DecodeError::Unknown("response"))
        }),
    ];
    for (name, offset, known) in kinds {
        let seeds = (target(name).seeds)();
        for kind in (0..=u8::MAX).filter(|kind| known(&[*kind])) {
            let seeded = seeds.iter().any(|seed| seed[offset] == kind);
            assert!(seeded, "no seed of {name} is of kind {kind}");
        }
        let kinds = (0..=u8::MAX).filter(|kind| known(&[*kind])).count();
        assert!(kinds > 2, "{kinds} kinds of {name}");
    }
}
