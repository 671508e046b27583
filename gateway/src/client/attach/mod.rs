//! Attaching a rank to its gateway, with retries while the gateway starts.

pub(super) mod arena_handover;
mod attach_error;
mod attach_options;
mod tls_gateway;

pub use arena_handover::GatewayAddress;
pub use attach_error::{AttachEpochTimeout, AttachError};
pub use attach_options::{AttachOptions, DUMPS_VARIABLE, GATEWAY_TIMEOUT};
pub use tls_gateway::{AttachTlsGateway, NoTlsAddress, TlsAddress};

use super::arena_buffer::ArenaBufferAllocator;
use super::client_handle::Client;
use super::connection::request_queue::RequestQueue;
use super::connection::{
    ClientConnection, ClientConnectionState, read_client_connection_events,
    write_client_connection_requests,
};
use super::recorder::RankRecorderHold;
use super::store::STORE_WAITS_MAX;
use crate::access::TrustedSocketUsers;
use crate::client::connection::group_handle::GroupHandle;
use crate::events::GroupNumber;
use crate::local::protocol::{
    self, LOCAL_VERSION, ProtocolRequest, ProtocolResponse, STORE_REQUESTS_MAX,
    read_protocol_message, write_protocol_message,
};
use crate::local::refusal::{Refusal, RefusalReason};
use crate::local::trainer_listener::TrainerStream;
use arena_handover::{ArenaHandover, HandoverError};
use std::io;
use std::sync::{Arc, Mutex};
use tls_gateway::tls_gateway_mismatch;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use units::Span;

/// 50 ms: the pause after the first failed attempt to attach; each further pause is twice as long,
/// up to [`ATTACH_RETRY_PAUSE_MAX`]. The pause is chosen short, to find a starting gateway soon.
const ATTACH_RETRY_PAUSE_MIN: Span = Span::from_ms(50);

/// 2 s: the longest pause between two attempts to attach. So a rank's next attempt begins at most 2
/// s after its gateway has come up.
const ATTACH_RETRY_PAUSE_MAX: Span = Span::from_secs(2);

/// The arena and the flight recorder of a rank, which outlive its connections.
struct RankBelongings {
    handover: Arc<ArenaHandover>,
    slots: Arc<Mutex<ArenaBufferAllocator>>,
    recorder: Arc<RankRecorderHold>,
}

impl From<HandoverError> for AttachError {
    /// Converts the error of an arena that could not be made for the gateway.
    fn from(error: HandoverError) -> Self {
        match error {
            HandoverError::Memory(error) => Self::Memory(error),
            HandoverError::Credentials(error) => Self::Credentials(error),
        }
    }
}

impl Client {
    /// Attaches a rank, and waits until its job's first epoch begins. Retries while no gateway answers, or
    /// while one refuses for a reason that passes.
    ///
    /// Ranks in C and Python then meet all others at a barrier. A rank beside them calls
    /// [`Client::barrier`] before any other collective.
    ///
    /// # Errors
    /// [`AttachError`]: the rank is not attached.
    pub async fn attach(
        gateway: &GatewayAddress,
        options: AttachOptions,
    ) -> Result<Self, AttachError> {
        let handover = Arc::new(ArenaHandover::new(gateway, options.arena_bytes)?);
        let slots = Arc::new(Mutex::new(ArenaBufferAllocator::new(options.arena_bytes)));
        let recorder = Arc::new(RankRecorderHold::new(&options));
        Self::attach_with(&RankBelongings { handover, slots, recorder }, options).await
    }

    /// Attaches the rank again with the arena of this client, whose connection ends here, and waits
    /// until all gateways have met. An epoch that goes on ends, if this rank has posted in it.
    ///
    /// Collectives of this client fail. Its buffers and tensors serve the client that is returned.
    /// A gateway that lost the connection may write results until the epoch of the returned client
    /// begins. `options` are those with which the rank attached before; timeouts may differ. The flight
    /// recorder goes on.
    ///
    /// # Errors
    /// [`AttachError`]: the rank is not attached. Another call may try again.
    pub async fn attach_again(&self, options: AttachOptions) -> Result<Self, AttachError> {
        self.connection.give_up("the rank attaches again");
        let ClientConnection { handover, slots, recorder, .. } = &*self.connection;
        let (handover, slots) = (Arc::clone(handover), Arc::clone(slots));
        let recorder = Arc::clone(recorder);
        Self::attach_with(&RankBelongings { handover, slots, recorder }, options).await
    }

    /// Attaches a rank that brings its arena; retries as [`Client::attach`] does.
    async fn attach_with(
        belongings: &RankBelongings,
        options: AttachOptions,
    ) -> Result<Self, AttachError> {
        let mut unanswered_since = Instant::now();
        let (mut deadline, mut pause) = (None, ATTACH_RETRY_PAUSE_MIN);
        loop {
            let lost = match Self::try_attach(belongings, &options, &mut deadline).await {
                Err(error @ AttachError::NoGateway { .. }) => error,
                Err(AttachError::Refused(refusal)) if refusal.reason.is_temporary() => {
                    AttachError::Refused(refusal)
                }
                Err(error @ AttachError::Lost(_)) => {
                    // A gateway that answered has just gone. A process that closes without an
                    // answer is no gateway, and the time counts on.
                    if deadline.is_some() {
                        (unanswered_since, pause) = (Instant::now(), ATTACH_RETRY_PAUSE_MIN);
                    }
                    error
                }
                outcome => return outcome,
            };
            let waited = unanswered_since.elapsed() + pause.duration();
            if waited > options.gateway_timeout.duration() {
                return Err(lost);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                let timeout = options.epoch_timeout;
                return Err(AttachError::NoEpoch(AttachEpochTimeout { timeout, why: None }));
            }
            tokio::time::sleep(pause.duration()).await;
            pause = (pause + pause).min(ATTACH_RETRY_PAUSE_MAX);
        }
    }

    /// Attempts to attach once. Sets `deadline`, by which the first epoch must begin, at the first
    /// answer of a gateway.
    async fn try_attach(
        belongings: &RankBelongings,
        options: &AttachOptions,
        deadline: &mut Option<Instant>,
    ) -> Result<Self, AttachError> {
        let trusted = TrustedSocketUsers::new(options.gateway_user);
        let handover = &belongings.handover;
        let connected = handover.connect(trusted).await;
        let mut stream =
            connected.map_err(|error| AttachError::of_connect(error, || handover.address()))?;
        let (world_size, fabric) = send_attach_request(&mut stream, options).await?;
        belongings.recorder.note_job(&fabric, world_size);
        let connection = start_attached_connection(stream, belongings, options, world_size);
        let epoch_timeout = options.epoch_timeout;
        let deadline = *deadline.get_or_insert_with(|| Instant::now() + epoch_timeout.duration());
        let mut settled = connection.settled.subscribe();
        let waiting = settled.wait_for(|settled| *settled);
        match tokio::time::timeout_at(deadline, waiting).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) | Err(_) => {
                let (timeout, why) = (
                    epoch_timeout,
                    connection.lock_state().group_mut(GroupNumber::JOB).awaited.clone(),
                );
                return Err(AttachError::NoEpoch(AttachEpochTimeout { timeout, why }));
            }
        }
        if let Some(why) = connection.lock_state().ended.clone() {
            return Err(AttachError::Lost(why));
        }
        let group = Arc::new(GroupHandle::of_job(&connection));
        Ok(Self { connection, group })
    }
}

/// Sends the attach request, and returns the world size and the fabric's name that the gateway answers.
async fn send_attach_request(
    stream: &mut Box<dyn TrainerStream>,
    options: &AttachOptions,
) -> Result<(u32, String), AttachError> {
    let request = ProtocolRequest::Attach(protocol::Attach {
        version: LOCAL_VERSION,
        job: options.job.clone(),
        token: options.token,
        rank: options.rank,
        arena_bytes: options.arena_bytes,
    });
    // In TLS 1.3 a client hears only now that its certificate was refused.
    let lost = |error: io::Error| match tls_gateway_mismatch(&error) {
        Some(why) => AttachError::Untrusted(why),
        None => AttachError::Lost(error.to_string()),
    };
    let sent = write_protocol_message(stream, &request.encode()).await;
    // A gateway that has closed the connection may have said why.
    let answer = match (read_protocol_message(stream).await, sent) {
        (Ok(answer), _) => answer,
        (Err(error), _) if tls_gateway_mismatch(&error).is_some() => return Err(lost(error)),
        (_, Err(error)) | (Err(error), Ok(())) => return Err(lost(error)),
    };
    match ProtocolResponse::decode(&answer) {
        Ok(ProtocolResponse::Attached { world_size, fabric, .. }) => Ok((world_size, fabric)),
        Ok(ProtocolResponse::Refused(refusal)) => Err(AttachError::Refused(refusal)),
        other => {
            let why = format!("unexpected answer: {other:?}");
            Err(AttachError::Refused(Refusal::new(RefusalReason::BadRequest, why)))
        }
    }
}

/// Spawns the tasks that read and write the connection of an attached rank.
fn start_attached_connection(
    stream: Box<dyn TrainerStream>,
    belongings: &RankBelongings,
    options: &AttachOptions,
    world_size: u32,
) -> Arc<ClientConnection> {
    let (requests, queued) = RequestQueue::open();
    let (over, listening) = (CancellationToken::new(), CancellationToken::new());
    let connection = Arc::new(ClientConnection {
        rank: options.rank,
        world_size,
        slots: Arc::clone(&belongings.slots),
        handover: Arc::clone(&belongings.handover),
        recorder: Arc::clone(&belongings.recorder),
        requests,
        state: Mutex::new(ClientConnectionState::of_rank(options.rank)),
        store_places: Arc::new(Semaphore::new(STORE_REQUESTS_MAX)),
        store_waits: Arc::new(Semaphore::new(STORE_WAITS_MAX)),
        pair_making: tokio::sync::Mutex::default(),
        changed: Notify::new(),
        settled: watch::Sender::new(false),
        over: over.clone(),
        listening: listening.clone(),
        _stop_listening: listening.clone().drop_guard(),
    });
    let (reader, writer) = tokio::io::split(stream);
    let write = write_client_connection_requests(Arc::downgrade(&connection), writer, queued);
    let read = read_client_connection_events(Arc::downgrade(&connection), reader);
    tokio::spawn(over.run_until_cancelled_owned(write));
    tokio::spawn(listening.run_until_cancelled_owned(read));
    connection
}

#[cfg(test)]
mod tests {
    use super::*;
    use hier_collectives::ids::{Epoch, Sequence};
    use hier_collectives::post::RankEvent;
    use std::path::Path;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixListener;

    /// Answers one connection after the other, each with the next of these lists of responses.
    fn answer_in_turn(
        path: &Path,
        answers: Vec<Vec<ProtocolResponse>>,
    ) -> tokio::task::JoinHandle<()> {
        let listener = UnixListener::bind(path).expect("listens");
        tokio::spawn(async move {
            let mut attached = Vec::new();
            for responses in answers {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                stream.read_u8().await.expect("the first byte");
                read_protocol_message(&mut stream).await.expect("a request");
                for response in responses {
                    let sent = write_protocol_message(&mut stream, &response.encode()).await;
                    sent.expect("the client reads");
                }
                attached.push(stream);
            }
            std::future::pending().await
        })
    }

    /// Attaches to a gateway that answers in turn, within a minute.
    async fn attach_to(answers: Vec<Vec<ProtocolResponse>>) -> Result<Client, AttachError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let answering = answer_in_turn(&path, answers);
        let gateway = GatewayAddress::Socket(path);
        let attaching = Client::attach(&gateway, AttachOptions::new("train", [0; 32], 0, 4096));
        let attached = tokio::time::timeout(Duration::from_secs(60), attaching).await;
        answering.abort();
        attached.expect("ends in time")
    }

    /// The answers of a gateway that takes the rank into its first epoch.
    fn welcome() -> Vec<ProtocolResponse> {
        let (version, fabric) = (LOCAL_VERSION, "two".to_owned());
        let (epoch, next) = (Epoch(1), Sequence(0));
        vec![
            ProtocolResponse::Attached { version, world_size: 2, fabric },
            ProtocolResponse::Event(RankEvent::EpochBegan {
                epoch,
                next,
                committed: None,
                ended: None,
            }),
        ]
    }

    #[tokio::test]
    async fn refusals_that_pass_are_tried_again() {
        let temporary = RefusalReason::ALL.into_iter().filter(|reason| reason.is_temporary());
        for reason in temporary {
            let refused = vec![ProtocolResponse::Refused(Refusal::new(reason, "for this test"))];
            let client = attach_to(vec![refused, welcome()]).await.expect("attaches");
            assert_eq!(client.epoch(), Epoch(1), "{reason:?}");
        }
    }

    #[tokio::test]
    async fn refusals_that_last_end_the_attempt_at_once() {
        let lasting = RefusalReason::ALL.into_iter().filter(|reason| !reason.is_temporary());
        for reason in lasting {
            let refused = vec![ProtocolResponse::Refused(Refusal::new(reason, "for this test"))];
            let error = attach_to(vec![refused, welcome()]).await.expect_err("refused for good");
            let is_it = |refusal: &Refusal| refusal.reason == reason;
            assert!(matches!(&error, AttachError::Refused(refusal) if is_it(refusal)), "{error}");
        }
    }

    #[tokio::test]
    async fn a_rank_attaches_again_with_the_same_arena() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let answering = answer_in_turn(&path, vec![welcome(), welcome()]);
        let options = AttachOptions::new("train", [0; 32], 0, 4096);
        let gateway = GatewayAddress::Socket(path);
        let client = Client::attach(&gateway, options.clone()).await.expect("attaches");
        let buffer = client.reserve(4096).expect("all of it");
        let again = client.attach_again(options).await.expect("attaches again");
        answering.abort();
        assert_eq!(client.disconnect_reason().as_deref(), Some("the rank attaches again"));
        assert_eq!(again.disconnect_reason(), None);
        assert!(again.reserve(64).is_err(), "the buffer still holds its place");
        let start = again.reserve(0).expect("no bytes").address();
        assert_eq!(start, buffer.address(), "the arena is the same");
        drop(buffer);
        assert!(again.reserve(4096).is_ok());
    }

    #[tokio::test]
    async fn a_server_that_closes_every_connection_is_lost() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).expect("listens");
        tokio::spawn(async move {
            loop {
                drop(listener.accept().await);
            }
        });
        let options = AttachOptions::new("train", [0; 32], 0, 4096);
        let options = AttachOptions { gateway_timeout: Span::from_ms(300), ..options };
        let gateway = GatewayAddress::Socket(path);
        let attaching = Client::attach(&gateway, options);
        let attaching = tokio::time::timeout(Duration::from_secs(60), attaching);
        let error = attaching.await.expect("gives up").expect_err("no gateway");
        assert!(matches!(error, AttachError::Lost(_)), "{error}");
    }
}
