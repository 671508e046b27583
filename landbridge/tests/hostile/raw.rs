//! A trainer that sends any bytes it likes.

use crate::deployment::Deployment;
use gateway::access::TrustedSocketUsers;
use gateway::client::AttachTlsGateway;
use gateway::config::RegionFile;
use gateway::local::protocol::{
    Attach, LOCAL_VERSION, ProtocolRequest, ProtocolResponse, read_protocol_message,
    write_protocol_message,
};
use gateway::local::remote::pieces::piece_ranges;
use gateway::local::trainer_listener::{TrainerStream, connect_to_trainer_listener};
use gateway::memory::arena::Arena;
use hier_collectives::descriptor::{
    AgreedCounts, ArrayShape, Counts, Descriptor, Dtype, Pattern, ReduceOp,
};
use hier_collectives::ids::{Epoch, RankId, Sequence, Step};
use hier_collectives::post::{Commit, Post, RankEvent};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use units::Span;

/// 1 MiB, the bytes of an arena.
pub const ARENA: u64 = 1 << 20;

/// A way to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Its Unix socket, with shared memory.
    Socket,
    /// TLS, as from another host.
    Tls,
}

impl Way {
    /// Both ways.
    pub const ALL: [Self; 2] = [Self::Socket, Self::Tls];

    /// Connects to the gateway of a region. A socket gets the descriptor of `memory`.
    pub async fn connect(
        self,
        deployment: &Deployment,
        region: &str,
        memory: &OwnedFd,
    ) -> Box<dyn TrainerStream> {
        match self {
            Self::Socket => {
                let path = deployment.path(&format!("{region}.sock"));
                let trusted = TrustedSocketUsers::new(None);
                Box::new(
                    connect_to_trainer_listener(&path, memory, trusted).await.expect("connects"),
                )
            }
            Self::Tls => tls_way(deployment, region).connect_unattached().await.expect("connects"),
        }
    }
}

/// Returns the way to the gateway of a region for trainers of other hosts.
pub fn tls_way(deployment: &Deployment, region: &str) -> AttachTlsGateway {
    let file = RegionFile::load(&deployment.path(&format!("{region}.toml"))).expect("valid");
    let attach = file.gateway(None).expect("one").attach.expect("it serves other hosts");
    let address = format!("tls://{attach}").parse().expect("an address");
    AttachTlsGateway::new(address, deployment.path("keys/ca.pem"))
}

/// A connection of a rank of `other`, without the checks of the client library.
pub struct RawClient {
    way: Way,
    pub stream: Box<dyn TrainerStream>,
    pub arena: Arc<Arena>,
    pub memory: OwnedFd,
    pub epoch: Epoch,
    pub next: Sequence,
}

/// Fields of a post.
#[derive(Debug, Clone, Copy)]
pub struct PostFields {
    pub contribution: u64,
    pub result: u64,
    pub elements: u64,
    pub timeout: Span,
}

/// Fields of a valid post.
pub const VALID_POST: PostFields = PostFields {
    contribution: 0,
    result: ARENA / 2,
    elements: ARENA / 16,
    timeout: Span::from_secs(60),
};

/// Returns a request to attach to `job` with the token of another job.
pub fn request(deployment: &Deployment, job: &str, token_of: &str, rank: u32) -> Vec<u8> {
    let attach = Attach {
        version: LOCAL_VERSION,
        job: job.to_owned(),
        token: deployment.token(token_of),
        rank: RankId(rank),
        arena_bytes: ARENA,
    };
    ProtocolRequest::Attach(attach).encode()
}

/// Sends a descriptor of memory and a request. Returns the response.
pub async fn ask(deployment: &Deployment, memory: &OwnedFd, request: &[u8]) -> ProtocolResponse {
    ask_by(Way::Socket, deployment, memory, request).await
}

/// Sends a request by a way to east. Returns the response.
pub async fn ask_by(
    way: Way,
    deployment: &Deployment,
    memory: &OwnedFd,
    request: &[u8],
) -> ProtocolResponse {
    let mut stream = way.connect(deployment, "east", memory).await;
    write_protocol_message(&mut stream, request).await.expect("sent");
    let answer = read_protocol_message(&mut stream).await.expect("an answer");
    ProtocolResponse::decode(&answer).expect("a response")
}

/// Sends a request that the gateway must refuse. Returns its reason.
pub async fn refusal(deployment: &Deployment, memory: &OwnedFd, request: &[u8]) -> String {
    refusal_by(Way::Socket, deployment, memory, request).await
}

/// Sends a request by a way to east, which the gateway must refuse. Returns its reason.
pub async fn refusal_by(
    way: Way,
    deployment: &Deployment,
    memory: &OwnedFd,
    request: &[u8],
) -> String {
    match ask_by(way, deployment, memory, request).await {
        ProtocolResponse::Refused(refusal) => refusal.why,
        other => panic!("not refused: {other:?}"),
    }
}

impl RawClient {
    /// Attaches as a rank of `other` by the socket, before an epoch begins.
    pub async fn attach(deployment: &Deployment, rank: u32) -> Self {
        Self::attach_by(Way::Socket, deployment, rank).await
    }

    /// Attaches as a rank of `other`, before an epoch begins.
    pub async fn attach_by(way: Way, deployment: &Deployment, rank: u32) -> Self {
        let (arena, memory) = Arena::create_memfd(ARENA).expect("memory");
        let region = if rank < 2 { "east" } else { "west" };
        let mut stream = way.connect(deployment, region, &memory).await;
        let request = request(deployment, "other", "other", rank);
        write_protocol_message(&mut stream, &request).await.expect("sent");
        let mut raw = Self { way, stream, arena, memory, epoch: Epoch(0), next: Sequence(0) };
        match raw.receive().await {
            Some(ProtocolResponse::Attached { .. }) => raw,
            other => panic!("not attached: {other:?}"),
        }
    }

    /// Attaches as every rank of `other` and waits for the epoch.
    pub async fn attach_all(deployment: &Deployment) -> [Self; 3] {
        Self::attach_all_by(Way::Socket, deployment).await
    }

    /// Attaches as every rank of `other` by one way, and waits for the epoch.
    pub async fn attach_all_by(way: Way, deployment: &Deployment) -> [Self; 3] {
        let mut all = [
            Self::attach_by(way, deployment, 0).await,
            Self::attach_by(way, deployment, 1).await,
            Self::attach_by(way, deployment, 2).await,
        ];
        for raw in &mut all {
            raw.wait_for_epoch().await;
        }
        all
    }

    /// Waits until an epoch begins.
    pub async fn wait_for_epoch(&mut self) {
        while self.epoch == Epoch(0) {
            assert!(self.receive().await.is_some(), "cut off");
        }
    }

    /// Returns the next response; `None` once the gateway has closed the connection.
    pub async fn receive(&mut self) -> Option<ProtocolResponse> {
        let bytes = read_protocol_message(&mut self.stream).await.ok()?;
        let response = ProtocolResponse::decode(&bytes).expect("a response");
        if let ProtocolResponse::Event(RankEvent::EpochBegan { epoch, next, .. }) = response {
            (self.epoch, self.next) = (epoch, next);
        }
        if let ProtocolResponse::ResultPiece { bytes, .. } = response {
            self.stream.read_exact(&mut vec![0; bytes as usize]).await.ok()?;
        }
        Some(response)
    }

    /// Reads until the gateway closes the connection. Returns its last refusal, or an empty text.
    pub async fn refusal_at_end(&mut self) -> String {
        let mut last = String::new();
        while let Some(response) = self.receive().await {
            if let ProtocolResponse::Refused(refusal) = response {
                last = refusal.why;
            }
        }
        last
    }

    /// Posts without reading the response, and sends zeros where no memory is shared. Errors mean that
    /// the gateway closed the connection.
    pub async fn post(&mut self, claim: PostFields) -> std::io::Result<()> {
        let streamed = self.announce(claim).await?;
        if claim.contribution.saturating_add(streamed) <= ARENA {
            // The gateway may have refused the post.
            let _ = self.send_zeros(streamed).await;
        }
        Ok(())
    }

    /// Sends a post alone. Returns the bytes that it announces.
    pub async fn announce(&mut self, claim: PostFields) -> std::io::Result<u64> {
        let streamed = match self.way {
            Way::Socket => 0,
            Way::Tls => claim.elements.saturating_mul(8),
        };
        self.announce_bytes(claim, streamed).await?;
        Ok(streamed)
    }

    /// Sends a post alone, which announces this many bytes.
    pub async fn announce_bytes(
        &mut self,
        claim: PostFields,
        streamed_bytes: u64,
    ) -> std::io::Result<()> {
        let descriptor = Descriptor {
            op: ReduceOp::Sum,
            dtype: Dtype::I64,
            elements: claim.elements,
            layout_hash: 0,
            shape: ArrayShape::FLAT,
            pattern: Pattern::AllReduce,
            counts: AgreedCounts::Even,
        };
        let (epoch, sequence) = (self.epoch, self.next);
        self.next = Sequence(sequence.0 + 1);
        let (counts, timeout) = (Counts::Even, claim.timeout);
        let post = Post { epoch, sequence, descriptor, counts, weight: 1.0, timeout };
        let request = ProtocolRequest::Post {
            post,
            contribution_offset: claim.contribution,
            result_offset: claim.result,
            streamed_bytes,
        };
        write_protocol_message(&mut self.stream, &request.encode()).await
    }

    /// Sends a contribution of zeros, in pieces.
    async fn send_zeros(&mut self, bytes: u64) -> std::io::Result<()> {
        for range in piece_ranges(bytes) {
            let (offset, bytes) = (range.start, (range.end - range.start) as u32);
            let piece = ProtocolRequest::ContributionPiece { offset, bytes };
            write_protocol_message(&mut self.stream, &piece.encode()).await?;
            self.stream.write_all(&vec![0; bytes as usize]).await?;
        }
        self.stream.flush().await
    }

    /// Sends a commit of an old epoch, which the gateway answers at once.
    pub async fn commit(&mut self, step: u64) -> std::io::Result<()> {
        let timeout = Span::from_secs(1);
        let commit = Commit { epoch: Epoch(0), step: Step(step), timeout };
        write_protocol_message(&mut self.stream, &ProtocolRequest::Commit(commit).encode()).await
    }

    /// Waits until the gateway has read all posts.
    pub async fn wait_until_read(&mut self) {
        self.commit(0).await.expect("sent");
        let is_answer = |response: &_| {
            matches!(response, ProtocolResponse::Event(RankEvent::CommitFailed { .. }))
        };
        while !is_answer(&self.receive().await.expect("not cut off")) {}
    }

    /// Reads until the last post ends. Returns true if it succeeded.
    pub async fn outcome(&mut self) -> bool {
        loop {
            match self.receive().await.expect("not cut off") {
                ProtocolResponse::Event(RankEvent::ContributionFree { .. }) => return true,
                ProtocolResponse::Event(RankEvent::Failed { .. }) => return false,
                _ => {}
            }
        }
    }
}
