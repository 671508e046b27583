use super::*;
use crate::client::{AttachOptions, Client, CollectiveSpec, GatewayAddress, PostErrorKind, Tensor};
use crate::local::protocol::{LOCAL_VERSION, PIECE_BYTES_MAX, POSTS_MAX};
use crate::local::trainer_listener::{TrainerListener as _, in_process_trainer_listener};
use hier_collectives::descriptor::{Dtype, Pattern, ReduceOp};
use hier_collectives::ids::Epoch;
use hier_collectives::post::Post;
use tokio::io::AsyncReadExt;
use units::Span;

/// Four pieces.
const CONTRIBUTION: u64 = 4 * PIECE_BYTES_MAX as u64;

/// Writes a message of the gateway.
async fn respond(stream: &mut Box<dyn TrainerStream>, response: ProtocolResponse) {
    write_protocol_message(stream, &response.encode()).await.expect("the client reads");
}

/// Begins an epoch, whose first collective is always 0.
async fn begin_epoch(stream: &mut Box<dyn TrainerStream>, epoch: u64) {
    let (epoch, next) = (Epoch(epoch), Sequence(0));
    let begun = RankEvent::EpochBegan { epoch, next, committed: None, ended: None };
    respond(stream, ProtocolResponse::Event(begun)).await;
}

/// Reads a request of the client, and the bytes of a piece.
async fn request_with_bytes(stream: &mut Box<dyn TrainerStream>) -> (ProtocolRequest, Vec<u8>) {
    let message = read_protocol_message(stream).await.expect("a request");
    let request = ProtocolRequest::decode(&message).expect("valid");
    let ProtocolRequest::ContributionPiece { bytes, .. } = request else {
        return (request, vec![]);
    };
    let mut piece = vec![0; bytes as usize];
    stream.read_exact(&mut piece).await.expect("whole");
    (request, piece)
}

/// Attaches a client with an arena of this many bytes to the test, which is its gateway and begins
/// epoch 1. Returns the gateway's end too.
async fn attach_to_test(arena_bytes: u64) -> (Client, Box<dyn TrainerStream>) {
    let (listener, connector) = in_process_trainer_listener();
    let options = AttachOptions::new("train", [0; 32], 0, arena_bytes);
    let way = GatewayAddress::InProcessStreamed(connector);
    let attaching = tokio::spawn(async move { Client::attach(&way, options).await });
    let mut stream = listener.accept().await.expect("one").handshake.await.expect("made").stream;
    read_protocol_message(&mut stream).await.expect("an attach");
    let (version, fabric) = (LOCAL_VERSION, "one".to_owned());
    respond(&mut stream, ProtocolResponse::Attached { version, world_size: 2, fabric }).await;
    begin_epoch(&mut stream, 1).await;
    let client = attaching.await.expect("no panic").expect("attaches");
    (client, stream)
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_room_is_part_of_a_posts_timeout() {
    let (client, mut stream) = attach_to_test(1 << 16).await;
    let timeout = Span::from_secs(30);
    let spec = CollectiveSpec { timeout, ..CollectiveSpec::new(Pattern::Barrier, ReduceOp::Sum) };
    let empty = || -> Tensor { client.allocate(Dtype::U8, 0).expect("room") };
    let posted = |request| match request {
        ProtocolRequest::Post { post: Post { sequence, timeout, .. }, .. } => (sequence, timeout),
        other => panic!("{other:?} instead of a post"),
    };
    for number in 0..POSTS_MAX as u64 {
        client.post(empty(), spec).await.expect("room");
        let request = request_with_bytes(&mut stream).await.0;
        assert_eq!(posted(request), (Sequence(number), timeout));
    }
    let begun = tokio::time::Instant::now();
    let error = client.post(empty(), spec).await.expect_err("no room");
    assert_eq!(error.kind, PostErrorKind::TimedOut);
    assert_eq!(begun.elapsed().as_secs(), 30);
    let failure = error.into_failure();
    assert_eq!(failure.code, FailureCode::TimedOut);
    assert!(failure.text.contains("nothing was posted"), "{failure}");
    let end_first = async {
        tokio::time::sleep(Span::from_secs(20).duration()).await;
        let failure = Failure::new(FailureCode::TimedOut, "for this test");
        let failed = RankEvent::Failed { sequence: Sequence(0), failure };
        respond(&mut stream, ProtocolResponse::Event(failed)).await;
        posted(request_with_bytes(&mut stream).await.0)
    };
    let (waited, (sequence, left)) = tokio::join!(client.post(empty(), spec), end_first);
    waited.expect("room by now");
    assert_eq!((sequence, left.ns() / 1_000_000_000), (Sequence(POSTS_MAX as u64), 10));
}

#[tokio::test]
async fn a_slot_given_back_is_not_sent_from() {
    let (client, mut stream) = attach_to_test(2 * CONTRIBUTION).await;
    let mut tensor = client.allocate(Dtype::U8, CONTRIBUTION).expect("room");
    tensor.write(&vec![1; CONTRIBUTION as usize]);
    let mut operation = client.all_reduce(tensor, ReduceOp::Max).await.expect("posted");
    let posted = request_with_bytes(&mut stream).await.0;
    assert!(matches!(posted, ProtocolRequest::Post { .. }), "{posted:?}");
    // The writer is in the first piece when the collective fails, and its number comes again.
    let failure = Failure::new(FailureCode::EpochEnded, "for this test".to_owned());
    let failed = RankEvent::Failed { sequence: Sequence(0), failure };
    respond(&mut stream, ProtocolResponse::Event(failed)).await;
    begin_epoch(&mut stream, 2).await;
    operation.ready().await.expect_err("it failed");
    let mut tensor = operation.reclaim().await.expect("given back");
    tensor.write(&vec![2; CONTRIBUTION as usize]);
    while client.epoch() != Epoch(2) {
        tokio::task::yield_now().await;
    }
    let _operation = client.all_reduce(tensor, ReduceOp::Max).await.expect("posted");
    let (piece, bytes) = request_with_bytes(&mut stream).await;
    assert!(matches!(piece, ProtocolRequest::ContributionPiece { offset: 0, .. }), "{piece:?}");
    assert!(bytes.iter().all(|byte| *byte == 1), "of the first collective");
    let again = request_with_bytes(&mut stream).await.0;
    assert!(matches!(again, ProtocolRequest::Post { .. }), "{again:?}");
    for piece in piece_ranges(CONTRIBUTION) {
        let (request, bytes) = request_with_bytes(&mut stream).await;
        let offset = piece.start;
        assert_eq!(request, ProtocolRequest::ContributionPiece { offset, bytes: PIECE_BYTES_MAX });
        assert!(bytes.iter().all(|byte| *byte == 2), "of the second collective");
    }
}
