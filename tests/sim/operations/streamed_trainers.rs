//! Trainers without shared memory, as those of other hosts: their bytes are sent in pieces.

use gateway::client::{AttachOptions, Client, CollectiveSpec, GatewayAddress, Operation};
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
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use units::Span;

/// Bytes of each arena.
const ARENA: u64 = 16 << 20;

/// Attaches all ranks: those with even numbers are sent bytes, the others share memory.
async fn attach_mixed(lab: &Lab) -> Vec<Client> {
    let mut attaching = Vec::new();
    for rank in 0..lab.fabric.world_size() {
        let connector = lab.connector(rank).expect("a rank").clone();
        let way = match rank % 2 {
            0 => GatewayAddress::InProcessStreamed(connector),
            _ => GatewayAddress::InProcess(connector),
        };
        attaching.push(tokio::spawn(async move {
            Client::attach(&way, AttachOptions::new(JOB, TOKEN, rank, ARENA)).await
        }));
    }
    let mut clients = Vec::new();
    for attached in attaching {
        clients.push(attached.await.expect("no panic").expect("attaches"));
    }
    clients
}

#[test]
fn streamed_and_shared_ranks_get_the_same_bits() {
    simulate(async {
        let shape = Shape::new(3, 2);
        let lab = Lab::start(&shape, 1).await;
        let clients = attach_mixed(&lab).await;
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
        let clients = attach_mixed(&lab).await;
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

/// The bytes of a whole all-reduce of ones: two pieces and the post.
fn all_reduce_bytes(epoch: Epoch, sequence: Sequence) -> Vec<u8> {
    let contribution: Vec<u8> = bytes_of_ones(ELEMENTS);
    let mut sent = Vec::new();
    for (at, piece) in contribution.chunks(PIECE_BYTES_MAX as usize).enumerate() {
        let offset = at as u64 * u64::from(PIECE_BYTES_MAX);
        let bytes = u32::try_from(piece.len()).expect("short");
        sent.extend(frame_protocol_message(
            &ProtocolRequest::ContributionPiece { offset, bytes }.encode(),
        ));
        sent.extend(piece);
    }
    let descriptor = Descriptor {
        op: ReduceOp::Sum,
        dtype: Dtype::F32,
        elements: ELEMENTS,
        layout_hash: 0,
        shape: ArrayShape::FLAT,
        pattern: Pattern::AllReduce,
        counts: AgreedCounts::Even,
    };
    let timeout = Span::from_secs(60);
    let post = Post { epoch, sequence, descriptor, counts: Counts::Even, weight: 1.0, timeout };
    let request = ProtocolRequest::Post { post, contribution_offset: 0, result_offset: ARENA / 2 };
    sent.extend(frame_protocol_message(&request.encode()));
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
        let mut attached = Some(first);
        let piece = 4 + 13 + PIECE_BYTES_MAX as usize;
        let cuts = [0, 3, 5, 17, 1000, piece - 1, piece, piece + 20, whole - 30, whole - 1, whole];
        for cut in cuts {
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
        for (offset, bytes, words) in [
            (ARENA, 1, "beyond the arena"),
            (u64::MAX, 8, "beyond the arena"),
            (0, 0, "malformed request"),
            (0, PIECE_BYTES_MAX + 1, "malformed request"),
        ] {
            let (mut stream, ..) = match attached.take() {
                Some(first) => first,
                None => attach_raw(&lab).await,
            };
            let request = ProtocolRequest::ContributionPiece { offset, bytes }.encode();
            write_protocol_message(&mut stream, &request).await.expect("sent");
            let why = refusal_at_end(&mut stream).await;
            assert!(why.contains(words), "{offset} {bytes}: {why}");
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
