use super::flight_recorder::{RECORDED_COLLECTIVES_MAX, unix_seconds};
use super::*;
use crate::events::GroupNumber;
use crate::lock::lock_ignoring_poison;
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp, SlotElements};
use hier_collectives::ids::Tag;
use hier_collectives::ids::{Epoch, RankId, Sequence};
use hier_collectives::sequence::SendSeries;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

#[path = "../../../tests/golden_file/mod.rs"]
mod golden_file;

/// Returns a time of 2023 by its seconds.
fn second(seconds: f64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs_f64(1_700_000_000.0 + seconds)
}

/// Returns a recorder of rank 1 of the job `train`, with dumps in a folder if one is given.
fn recorder(dumps: Option<PathBuf>) -> RankRecorderHold {
    let options = AttachOptions { dumps, ..AttachOptions::new("train", [7; 32], 1, 4096) };
    let recorder = RankRecorderHold::new(&options);
    recorder.note_job("two", 3);
    recorder
}

/// Returns the post of an all-reduce of 6 elements in the job.
fn all_reduce(sequence: u64) -> RecordedPost {
    RecordedPost {
        group: GroupNumber::JOB,
        epoch: Epoch(3),
        sequence: Sequence(sequence),
        pattern: Pattern::AllReduce,
        op: ReduceOp::Avg,
        dtype: Dtype::F32,
        elements: SlotElements { contribution: 6, result: 6 },
    }
}

/// Returns one collective of each kind that records tell apart: of the job, which ended well or badly,
/// and of two groups, which are under way.
fn golden_posts() -> Vec<(RecordedPost, Option<Option<Failure>>)> {
    let post = |sequence, pattern, op, dtype, [contribution, result]: [u64; 2]| RecordedPost {
        sequence: Sequence(sequence),
        pattern,
        op,
        dtype,
        elements: SlotElements { contribution, result },
        ..all_reduce(0)
    };
    let in_group =
        |number, post| RecordedPost { group: GroupNumber(number), epoch: Epoch(1), ..post };
    let late = Failure::new(FailureCode::TimedOut, "rank 2 has not posted".to_owned());
    let send = SendSeries { from: RankId(0), tag: Tag(7) }.sequence_at(0);
    let [to, from] = [RankId(0); 2];
    let sum = ReduceOp::Sum;
    vec![
        (all_reduce(17), Some(None)),
        (post(18, Pattern::Barrier, sum, Dtype::U8, [0, 0]), Some(None)),
        (post(19, Pattern::AllGather, sum, Dtype::U8, [3, 9]), Some(None)),
        (post(20, Pattern::ReduceScatter, sum, Dtype::I32, [9, 3]), Some(None)),
        (post(21, Pattern::AllToAll, sum, Dtype::F64, [6, 6]), Some(None)),
        (post(22, Pattern::Gather { to }, sum, Dtype::U8, [2, 0]), Some(None)),
        (post(23, Pattern::Reduce { to }, ReduceOp::Max, Dtype::Bf16, [5, 0]), Some(Some(late))),
        (in_group(2, post(0, Pattern::Broadcast { from }, sum, Dtype::I64, [4, 4])), None),
        (in_group(3, post(send.0, Pattern::Send { from }, sum, Dtype::I16, [0, 2])), None),
    ]
}

#[test]
fn a_dump_equals_that_of_the_client_in_python() {
    let recorder = recorder(None);
    for ((post, end), at) in golden_posts().into_iter().zip(0_u32..) {
        let posted = second(f64::from(at));
        let number = recorder.recorder.add(post, posted);
        if let Some(failure) = end {
            let ended = posted + Duration::from_millis(250);
            recorder.recorder.note_end(number, ended, failure.as_ref());
        }
    }
    let dumped_seconds = unix_seconds(second(60.5));
    let dump = ClientDump { dumped_seconds, ..recorder.dump() };
    let value: Value = serde_json::from_str(&dump.to_json()).expect("JSON");
    golden_file::compare("client_dump.jsonl", &[value]);
}

#[test]
fn the_last_collectives_of_a_rank_are_kept() {
    let recorder = recorder(None);
    let records: Vec<_> = (0..515).map(|number| recorder.record_post(all_reduce(number))).collect();
    // The first three are forgotten.
    records[2].note_end(None);
    records[3].note_end(Some(&Failure::new(FailureCode::Stalled, "for this test".to_owned())));
    records[3].note_end(None);
    let kept = recorder.dump().collectives;
    assert_eq!(kept.len(), RECORDED_COLLECTIVES_MAX);
    assert_eq!((kept[0].sequence, kept[511].sequence), (3, 514));
    assert_eq!((kept[0].code, kept[1].ended_seconds), (Some(7), None));
}

#[test]
fn a_dump_replaces_a_file_for_its_user_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rank.json");
    std::fs::write(&path, "older").expect("written");
    recorder(None).dump().write(&path).expect("written");
    let mode = std::fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let text = std::fs::read_to_string(&path).expect("text");
    let read: ClientDump = serde_json::from_str(&text).expect("a dump");
    assert_eq!((&*read.fabric, &*read.job, read.rank, read.world_size), ("two", "train", 1, 3));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
    recorder(None).dump().write(&folder.path().join("no/rank.json")).expect_err("no folder");
}

#[test]
fn a_failure_is_dumped_before_its_rank_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let recorder = recorder(Some(folder.path().join("dumps")));
    let record = recorder.record_post(all_reduce(4));
    for code in [FailureCode::EpochEnded, FailureCode::ShuttingDown, FailureCode::BadPost] {
        recorder.note_failure(code);
    }
    assert!(!folder.path().join("dumps").exists(), "no reason to look");
    let failure = Failure::new(FailureCode::GatewayLost, "for this test".to_owned());
    record.note_end(Some(&failure));
    recorder.note_failure(failure.code);
    drop(recorder);
    let mut files = std::fs::read_dir(folder.path().join("dumps")).expect("made");
    let file = files.next().expect("a dump").expect("read");
    assert!(files.next().is_none(), "one alone");
    assert!(file.file_name().to_str().expect("text").starts_with("train-rank-1-"), "{file:?}");
    let text = std::fs::read_to_string(file.path()).expect("text");
    let read: ClientDump = serde_json::from_str(&text).expect("a dump");
    assert_eq!(read.collectives[0].code, Some(9));
}

#[test]
fn failures_soon_after_a_dump_share_the_next() {
    let folder = tempfile::tempdir().expect("a folder");
    let recorder = recorder(Some(folder.path().to_owned()));
    let dumps = recorder.dumps.as_ref().expect("a folder");
    let is_written = || {
        let progress = lock_ignoring_poison(&dumps.progress);
        progress.is_running && !progress.is_writing && !progress.is_due
    };
    recorder.note_failure(FailureCode::RankLost);
    while !is_written() {
        std::thread::yield_now();
    }
    let file = std::fs::read_dir(folder.path()).expect("a folder").next().expect("one");
    std::fs::remove_file(file.expect("read").path()).expect("removed");
    for _ in 0..3 {
        recorder.note_failure(FailureCode::RankLost);
    }
    assert!(lock_ignoring_poison(&dumps.progress).is_due, "not yet");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
    drop(recorder);
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1, "at its end");
}

#[test]
fn a_folder_that_takes_no_dump_harms_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").expect("written");
    let recorder = recorder(Some(file.join("dumps")));
    let record = recorder.record_post(all_reduce(4));
    recorder.note_failure(FailureCode::RankLost);
    record.note_end(None);
    let dumps = recorder.dumps.as_ref().expect("a folder");
    dumps.end();
    assert!(!lock_ignoring_poison(&dumps.progress).is_writing, "the thread goes on");
    drop(recorder);
    assert_eq!(std::fs::read_to_string(&file).expect("as it was"), "no folder");
}
