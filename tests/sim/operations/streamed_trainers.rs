//! Trainers without shared memory, as those of other hosts: their bytes are sent in pieces.

use gateway::client::{AttachOptions, Client, CollectiveSpec, GatewayAddress, Operation};
use gateway::events::GroupNumber;
use gateway::local::protocol::{
    Attach, LOCAL_VERSION, PIECE_BYTES_MAX, ProtocolRequest, ProtocolResponse,
    frame_protocol_message, read_protocol_message, write_protocol_message,
};
use gateway::local::trainer_listener::TrainerStream;
use hier_collectives::descriptor::{
    AgreedCounts, ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp,
};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{FailureCode, Post, RankEvent};
use scenarios::collectives::batch::{Case, succeeds};
use scenarios::{JOB, Lab, Shape, TOKEN, simulate};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Instant;
use units::{BitRate, Span};

/// Bytes of each arena.
const ARENA: u64 = 16 << 20;

#[test]
fn streamed_and_shared_ranks_get_the_same_bits() {
    simulate(async {
        let shape = Shape::new(3, 2);
        let lab = Lab::start(&shape, 1).await;
        let clients = lab.mixed_clients(ARENA).await;
        for op in ReduceOp::ALL {
            for dtype in Dtype::ALL {
                if op.accepts(dtype) {
                    succeeds(&clients, 3, &Case::new(op, dtype, 1003, 7)).await;
                }
            }
        }
        // Several pieces of which the last is short, and no piece at all.
        let odd = u64::from(PIECE_BYTES_MAX) / 2 + 3;
        for elements in [odd, 0, 1] {
            succeeds(&clients, 3, &Case::new(ReduceOp::Sum, Dtype::F32, elements, 8)).await;
        }
    });
}

#[test]
fn streamed_ranks_broadcast_reduce_and_commit() {
    simulate(async {
        let lab = Lab::start(&Shape::new(3, 2), 2).await;
        let clients = lab.mixed_clients(ARENA).await;
        for root in [0, 1, 4].map(RankId) {
            for pattern in [Pattern::Broadcast { from: root }, Pattern::Reduce { to: root }] {
                let mut operations = Vec::new();
                for client in &clients {
                    let mut tensor = client.allocate(Dtype::F32, 100_003).expect("room");
                    tensor.write_f32(&vec![1.5 + client.rank().0 as f32; 100_003]);
                    let spec = CollectiveSpec::new(pattern, ReduceOp::Sum);
                    operations.push(client.post(tensor, spec).await.expect("posted"));
                }
                let wanted = match pattern {
                    Pattern::Broadcast { from } => 1.5 + from.0 as f32,
                    _ => 5.0 * 1.5 + 10.0,
                };
                for (client, mut operation) in clients.iter().zip(operations) {
                    operation.ready().await.expect("a result");
                    if matches!(pattern, Pattern::Broadcast { .. }) || client.rank() == root {
                        let result = operation.result_f32();
                        assert!(result.iter().all(|value| *value == wanted), "{pattern}");
                    }
                    operation.reclaim().await.expect("free");
                }
            }
        }
        let commits: Vec<_> = clients
            .iter()
            .map(|client| {
                let client = client.clone();
                tokio::spawn(async move { client.commit(Step(1)).await })
            })
            .collect();
        for commit in commits {
            commit.await.expect("no panic").expect("all regions have the step");
        }
    });
}

/// Elements of the all-reduce of the cut connections: two pieces.
const ELEMENTS: u64 = PIECE_BYTES_MAX as u64 / 4 + 9;

/// Attaches rank 0 without the client; returns the stream in an epoch, and the epoch.
async fn attach_raw(lab: &Lab) -> (Box<dyn TrainerStream>, Epoch, Sequence) {
    let connector = lab.connector(0).expect("a rank").clone();
    let mut stream = connector.connect_streamed().await.expect("connects");
    let attach = Attach {
        version: LOCAL_VERSION,
        job: JOB.to_owned(),
        token: TOKEN.into(),
        rank: RankId(0),
        arena_bytes: ARENA,
    };
    write_protocol_message(&mut stream, &ProtocolRequest::Attach(attach).encode())
        .await
        .expect("sent");
    loop {
        let message = read_protocol_message(&mut stream).await.expect("an answer");
        match ProtocolResponse::decode(&message).expect("a response") {
            ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, .. }) => {
                return (stream, epoch, next);
            }
            ProtocolResponse::Refused(refusal) => panic!("{refusal}"),
            _ => {}
        }
    }
}

/// The frame of a post of an all-reduce of F32 whose result lies in the second half of the arena.
fn post_frame(epoch: Epoch, sequence: Sequence, elements: u64) -> Vec<u8> {
    let descriptor = Descriptor {
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        elements,
        layout_hash: 0,
        shape: ArrayShape::FLAT,
        pattern: Pattern::AllReduce,
        counts: AgreedCounts::Even,
    };
    let timeout = Span::from_secs(60);
    let post = Post { epoch, sequence, descriptor, counts: Counts::Even, weight: 1.0, timeout };
    let request = ProtocolRequest::Post {
        post,
        contribution_offset: 0,
        result_offset: ARENA / 2,
        streamed_bytes: 4 * elements,
    };
    frame_protocol_message(&request.encode())
}

/// The frame of a piece.
fn piece_frame(offset: u64, bytes: u32) -> Vec<u8> {
    frame_protocol_message(&ProtocolRequest::ContributionPiece { offset, bytes }.encode())
}

/// The bytes of a whole all-reduce of ones: the post and two pieces.
fn all_reduce_bytes(epoch: Epoch, sequence: Sequence) -> Vec<u8> {
    let mut sent = post_frame(epoch, sequence, ELEMENTS);
    let contribution: Vec<u8> = bytes_of_ones(ELEMENTS);
    for (at, piece) in (0..).zip(contribution.chunks(PIECE_BYTES_MAX as usize)) {
        let bytes = u32::try_from(piece.len()).expect("short");
        sent.extend(piece_frame(at * u64::from(PIECE_BYTES_MAX), bytes));
        sent.extend(piece);
    }
    sent
}

/// The bytes of ones as F32.
fn bytes_of_ones(elements: u64) -> Vec<u8> {
    (0..elements).flat_map(|_| 1.0f32.to_le_bytes()).collect()
}

/// Posts an all-reduce of twos.
async fn post_twos(client: &Client) -> Operation {
    let mut tensor = client.allocate(Dtype::F32, ELEMENTS).expect("room");
    tensor.write_f32(&vec![2.0; ELEMENTS as usize]);
    client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted")
}

/// Reads a result of threes in pieces, until both slots are free.
async fn read_result(stream: &mut Box<dyn TrainerStream>) {
    let mut arrived = Vec::new();
    loop {
        let message = read_protocol_message(stream).await.expect("a message");
        match ProtocolResponse::decode(&message).expect("a response") {
            ProtocolResponse::ResultPiece { offset, bytes, .. } => {
                assert_eq!(offset, arrived.len() as u64, "in order");
                let mut piece = vec![0; bytes as usize];
                stream.read_exact(&mut piece).await.expect("whole");
                arrived.extend(piece);
            }
            ProtocolResponse::Event(RankEvent::ResultReady { .. }) => {
                assert_eq!(arrived, 3.0f32.to_le_bytes().repeat(ELEMENTS as usize));
            }
            ProtocolResponse::Event(RankEvent::ContributionFree { .. }) => return,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_connection_cut_at_any_byte_ends_its_rank() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 3).await;
        let way = GatewayAddress::InProcess(lab.connector(1).expect("a rank").clone());
        let attaching = Client::attach(&way, AttachOptions::new(JOB, TOKEN, 1, ARENA));
        let (first, peer) = tokio::join!(attach_raw(&lab), attaching);
        let peer = peer.expect("attaches");
        let whole = all_reduce_bytes(first.1, first.2).len();
        let post = post_frame(first.1, first.2, ELEMENTS).len();
        let mut attached = Some(first);
        let piece = post + 4 + 13 + PIECE_BYTES_MAX as usize;
        let of_post = [0, 3, 5, 17, post - 1, post, post + 3, post + 17, post + 1000];
        let later = [piece - 1, piece, piece + 20, whole - 30, whole - 1, whole];
        for cut in of_post.into_iter().chain(later) {
            let (mut stream, epoch, next) = match attached.take() {
                Some(first) => first,
                None => attach_raw(&lab).await,
            };
            while peer.epoch() < epoch {
                lab.sleep(Span::from_ms(10)).await;
            }
            // A rank that ends before its first post of an epoch is awaited, so it posts once before.
            let mut operation = post_twos(&peer).await;
            stream.write_all(&all_reduce_bytes(epoch, next)).await.expect("sent");
            operation.ready().await.expect("all have posted");
            assert!(operation.result_f32().iter().all(|value| *value == 3.0));
            operation.reclaim().await.expect("free");
            read_result(&mut stream).await;
            let mut operation = post_twos(&peer).await;
            let bytes = all_reduce_bytes(epoch, Sequence(next.0 + 1));
            stream.write_all(&bytes[..cut]).await.expect("sent");
            drop(stream);
            match operation.ready().await {
                Ok(_) => {
                    assert_eq!(cut, whole, "a part of a post counted");
                    assert!(operation.result_f32().iter().all(|value| *value == 3.0));
                    return;
                }
                Err(failure) => {
                    assert!(cut < whole, "{cut} of {whole}: {failure}");
                    assert_eq!(failure.code, FailureCode::RankLost, "{cut}: {failure}");
                }
            }
            operation.reclaim().await.expect("free");
        }
        panic!("a whole post counts");
    });
}

#[test]
fn pieces_out_of_place_end_the_connection_with_a_reason() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 4).await;
        let way = GatewayAddress::InProcess(lab.connector(1).expect("a rank").clone());
        let attaching = Client::attach(&way, AttachOptions::new(JOB, TOKEN, 1, ARENA));
        let (first, peer) = tokio::join!(attach_raw(&lab), attaching);
        let peer = peer.expect("attaches");
        let mut attached = Some(first);
        let (most, whole) = (PIECE_BYTES_MAX, u32::try_from(4 * ELEMENTS).expect("short"));
        let detach =
            || frame_protocol_message(&ProtocolRequest::LeaveGroup(GroupNumber(7)).encode());
        for (is_posted, then, words) in [
            (false, piece_frame(0, 8), "nothing was posted"),
            (false, piece_frame(0, 0), "malformed request"),
            (false, piece_frame(0, most + 1), "malformed request"),
            (true, piece_frame(64, 8), "a piece at 64, though 0 bytes have come"),
            (true, piece_frame(u64::MAX, 8), "though 0 bytes have come"),
            (true, [piece_frame(0, 8), vec![0; 8], piece_frame(0, 8)].concat(), "though 8 bytes"),
            (
                true,
                [piece_frame(0, most), vec![0; most as usize], piece_frame(most.into(), 37)]
                    .concat(),
                "beyond the contribution",
            ),
            (true, detach(), "another request behind 0 bytes"),
            (true, [piece_frame(0, 8), vec![0; 8], detach()].concat(), "another request behind 8"),
        ] {
            assert_eq!(whole, most + 36);
            let (mut stream, epoch, next) = match attached.take() {
                Some(first) => first,
                None => attach_raw(&lab).await,
            };
            if is_posted {
                stream.write_all(&post_frame(epoch, next, ELEMENTS)).await.expect("sent");
            }
            stream.write_all(&then).await.expect("sent");
            let why = refusal_at_end(&mut stream).await;
            assert!(why.contains(words), "{words}: {why}");
        }
        assert_eq!(peer.disconnect_reason(), None);
    });
}

/// Reads until the gateway closes a connection; returns its last refusal.
async fn refusal_at_end(stream: &mut Box<dyn TrainerStream>) -> String {
    let mut last = String::new();
    while let Ok(message) = read_protocol_message(stream).await {
        if let Ok(ProtocolResponse::Refused(refusal)) = ProtocolResponse::decode(&message) {
            last = refusal.why;
        }
    }
    last
}

/// Elements of the long all-reduce: 8 MiB.
const LONG_ELEMENTS: u64 = ARENA / 8;

/// Sends a long contribution of ones in pieces, with this pause before each.
async fn send_long_ones(stream: &mut (impl AsyncWrite + Unpin), pause: Duration) {
    let bytes = bytes_of_ones(LONG_ELEMENTS);
    for (at, piece) in (0..).zip(bytes.chunks(PIECE_BYTES_MAX as usize)) {
        tokio::time::sleep(pause).await;
        let length = u32::try_from(piece.len()).expect("short");
        let frame = piece_frame(at * u64::from(PIECE_BYTES_MAX), length);
        stream.write_all(&frame).await.expect("sent");
        stream.write_all(piece).await.expect("sent");
    }
}

/// Reads the parts of a long result, with this pause before each piece, until all is ready.
async fn read_long_result(stream: &mut (impl AsyncRead + Unpin), pause: Duration) {
    let mut result = vec![0; 4 * LONG_ELEMENTS as usize];
    loop {
        let message = read_protocol_message(stream).await.expect("a message");
        match ProtocolResponse::decode(&message).expect("a response") {
            ProtocolResponse::ResultPiece { offset, bytes, .. } => {
                tokio::time::sleep(pause).await;
                let place = offset as usize..offset as usize + bytes as usize;
                stream.read_exact(&mut result[place]).await.expect("whole");
            }
            ProtocolResponse::Event(RankEvent::ResultReady { .. }) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(result == 3.0f32.to_le_bytes().repeat(LONG_ELEMENTS as usize));
}

/// Runs a long all-reduce of rank 0, whose bytes come in `transfer` and go in `reading`, and rank 1,
/// which shares memory. Returns the time from the posts to the result on rank 0.
async fn time_of_streamed_all_reduce(transfer: Duration, reading: Duration) -> Duration {
    let rate = BitRate::from_bits_per_second(100_000_000);
    let shape = Shape { rate, rtt: Span::from_ms(10), ..Shape::new(1, 1) };
    let lab = Lab::start(&shape, 5).await;
    let way = GatewayAddress::InProcess(lab.connector(1).expect("a rank").clone());
    let attaching = Client::attach(&way, AttachOptions::new(JOB, TOKEN, 1, ARENA));
    let ((mut stream, epoch, next), peer) = tokio::join!(attach_raw(&lab), attaching);
    let peer = peer.expect("attaches");
    let mut tensor = peer.allocate(Dtype::F32, LONG_ELEMENTS).expect("room");
    tensor.write_f32(&vec![2.0; LONG_ELEMENTS as usize]);
    let mut operation = peer.all_reduce(tensor, ReduceOp::Sum).await.expect("posted");
    let begin = Instant::now();
    stream.write_all(&post_frame(epoch, next, LONG_ELEMENTS)).await.expect("sent");
    let (mut read, mut write) = tokio::io::split(stream);
    let pieces = (4 * LONG_ELEMENTS).div_ceil(PIECE_BYTES_MAX.into());
    let pause = |whole: Duration| whole / u32::try_from(pieces).expect("few");
    tokio::join!(
        send_long_ones(&mut write, pause(transfer)),
        read_long_result(&mut read, pause(reading)),
    );
    let took = begin.elapsed();
    operation.ready().await.expect("a sum");
    assert!(operation.result_f32().iter().all(|value| *value == 3.0));
    took
}

#[test]
fn bytes_of_contribution_and_result_overlap_with_their_exchange() {
    simulate(async {
        let none = Duration::ZERO;
        let exchange = time_of_streamed_all_reduce(none, none).await;
        // One after the other they take as many times the exchange as parts take that long.
        for (transfer, reading, most) in
            [(exchange, none, 13), (none, exchange, 13), (exchange, exchange, 14)]
        {
            let all = time_of_streamed_all_reduce(transfer, reading).await;
            assert!(all >= exchange, "{all:?} in place of {exchange:?}");
            assert!(all < exchange * most / 10, "{transfer:?} {reading:?}: {all:?}");
        }
    });
}

#[test]
fn a_rank_without_bytes_holds_others_until_their_deadline() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 6).await;
        let way = GatewayAddress::InProcess(lab.connector(1).expect("a rank").clone());
        let attaching = Client::attach(&way, AttachOptions::new(JOB, TOKEN, 1, ARENA));
        let ((mut stream, epoch, next), peer) = tokio::join!(attach_raw(&lab), attaching);
        let peer = peer.expect("attaches");
        // One post counts only with its first bytes; and one whose bytes stop is stalled.
        let first = [piece_frame(0, PIECE_BYTES_MAX), vec![0; PIECE_BYTES_MAX as usize]].concat();
        for (number, sent, code, words, most) in [
            (0, vec![], FailureCode::TimedOut, "waiting for rank 0 (east)", 1801),
            (
                1,
                first.clone(),
                FailureCode::Stalled,
                "contribution of rank 0 (east) behind its first",
                12,
            ),
        ] {
            let begin = Instant::now();
            let mut operation = post_twos(&peer).await;
            stream
                .write_all(&post_frame(epoch, Sequence(next.0 + number), ELEMENTS))
                .await
                .expect("sent");
            stream.write_all(&sent).await.expect("sent");
            let failure = operation.ready().await.expect_err("its bytes are missing");
            assert_eq!(failure.code, code, "{failure}");
            assert!(begin.elapsed() < Duration::from_secs(most), "{:?}", begin.elapsed());
            operation.reclaim().await.expect("free");
            // What comes late is thrown away, and what is left out is not missed.
            if number == 0 {
                stream.write_all(&first).await.expect("sent");
            }
            loop {
                let message = read_protocol_message(&mut stream).await.expect("a message");
                let response = ProtocolResponse::decode(&message).expect("a response");
                if let ProtocolResponse::Event(RankEvent::Failed { failure, .. }) = response {
                    assert!(failure.text.contains(words), "{failure}");
                    break;
                }
            }
        }
        let mut operation = post_twos(&peer).await;
        let bytes = all_reduce_bytes(epoch, Sequence(next.0 + 2));
        stream.write_all(&bytes).await.expect("sent");
        operation.ready().await.expect("all have posted");
        read_result(&mut stream).await;
    });
}

#[test]
fn a_client_dropped_after_its_post_sends_its_whole_contribution() {
    simulate(async {
        let lab = Lab::start(&Shape::new(1, 1), 7).await;
        let connector = |rank| lab.connector(rank).expect("a rank").clone();
        let streamed = GatewayAddress::InProcessStreamed(connector(0));
        let shared = GatewayAddress::InProcess(connector(1));
        let (first, peer) = tokio::join!(
            Client::attach(&streamed, AttachOptions::new(JOB, TOKEN, 0, ARENA)),
            Client::attach(&shared, AttachOptions::new(JOB, TOKEN, 1, ARENA)),
        );
        let (first, peer) = (first.expect("attaches"), peer.expect("attaches"));
        drop((post_twos(&first).await, first));
        let mut operation = post_twos(&peer).await;
        operation.ready().await.expect("what was posted goes on");
        assert!(operation.result_f32().iter().all(|value| *value == 4.0));
    });
}
