//! Accepts the connections of trainers and operators, and admits trainers to their ranks.
//!
//! [`LocalServer::serve`] runs in one task of the gateway for each listener. Each connection gets a
//! task of its own, which must authenticate within `ATTACH_TIMEOUT`. Then it serves one operator
//! request, or becomes a trainer's task (`trainer`). The engine hears of a trainer only once it has
//! attached.

use super::attachments::Attachment;
use super::attachments::{AttachmentReservation, Attachments};
use super::job_spec::{JobSpec, LocalSpec};
use super::operator::{OperatorRequest, OperatorResponse};
use super::protocol::{
    Attach, LOCAL_VERSION, ProtocolRequest, ProtocolResponse, TOKEN_BYTES, Token,
    read_protocol_message, write_protocol_message,
};
use super::refusal::{Refusal, RefusalReason};
pub use super::trainer::LAST_WRITE_TIMEOUT;
use super::trainer::{self, TrainerContext};
use super::trainer_listener::{
    AcceptedConnection, ConnectionSource, IncomingConnection, TrainerListener,
    TrainerListenerArena, TrainerStream,
};
use crate::accept_errors::{ACCEPT_RETRY_PAUSE, AcceptErrors};
use crate::admission::{AdmissionControl, AdmissionSlot};
use crate::events::{Event, EventSender, FabricChange, RateChange, RateError};
use crate::host::Host;
use crate::log_throttle::LogThrottle;
use crate::memory::arena::{Arena, ArenaError};
use crate::warn_if_due;
use crate::warnings::WarningCause;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::debug;
use units::{BitRate, Span};

/// 256 connections of one listener that have not attached yet: at one more, the user or host with
/// the most loses its oldest connection. The number is chosen. Attached connections are bounded by
/// the ranks of jobs.
/// Tested by `ten_thousand_silent_connections_keep_no_trainer_out`.
pub const PENDING_CONNECTIONS_MAX: usize = 256;
/// 0.5 ms, and up to 1 ms of timer delay: shortest time between accepts while 128 or more accepted
/// connections have not attached. So many are half of the limit. Further connections wait in the
/// kernel. Without the interval a connection flood took half a core.
/// Tested by `a_connection_flood_is_accepted_at_a_bounded_rate`.
const FLOOD_ACCEPT_INTERVAL: Span = Span::from_ns(500_000);
/// 10 s: the longest time from the accept of a connection until its trainer is admitted, or its
/// operator answered. Then the gateway closes the connection, so that a silent one takes none of
/// the 256 admission slots for longer.
const ATTACH_TIMEOUT: Span = Span::from_secs(10);

/// The server of a gateway's trainers and operators, for all its listeners.
pub struct LocalServer {
    host: Arc<dyn Host>,
    spec: LocalSpec,
    events: EventSender,
    shutdown: CancellationToken,
    next_attachment: AtomicU64,
    attachments: Arc<Attachments>,
    refusals: LogThrottle,
}

/// A trainer that may attach, and the arena that it offers.
struct PendingAttachment {
    reservation: AttachmentReservation,
    memory: TrainerListenerArena,
    arena_bytes: u64,
}

impl LocalServer {
    /// Makes the server of a gateway. It sends the engine `events`, and serves until `shutdown`.
    pub fn new(
        host: Arc<dyn Host>,
        spec: LocalSpec,
        events: EventSender,
        shutdown: CancellationToken,
    ) -> Arc<Self> {
        Arc::new(Self {
            host,
            spec,
            events,
            shutdown,
            next_attachment: AtomicU64::new(1),
            attachments: Arc::default(),
            refusals: LogThrottle::default(),
        })
    }

    /// Returns a guard whose drop shuts the gateway down.
    pub fn shutdown_guard(&self) -> DropGuard {
        self.shutdown.clone().drop_guard()
    }

    /// Accepts connections of trainers and operators until shutdown, and spawns a task for each.
    pub async fn serve(self: Arc<Self>, listener: Box<dyn TrainerListener>) {
        let (host, shutdown) = (Arc::clone(&self.host), self.shutdown.clone());
        let admission = AdmissionControl::new(PENDING_CONNECTIONS_MAX);
        let errors = AcceptErrors::new("a trainer's connection", self.spec.warnings.clone());
        loop {
            let accepted = tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok(incoming) => {
                    let (server, slot) = (Arc::clone(&self), admission.take_slot(incoming.source));
                    host.spawn(Box::pin(server.handle_connection(incoming, slot)));
                    if admission.is_half_full() {
                        host.sleep_until(host.now() + FLOOD_ACCEPT_INTERVAL).await;
                    } else {
                        // Other tasks run between two accepts.
                        tokio::task::yield_now().await;
                    }
                }
                Err(error) => {
                    errors.log(&error, host.now());
                    host.sleep_until(host.now() + ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
    }

    /// Authenticates a connection within [`ATTACH_TIMEOUT`], then serves its trainer to the end.
    async fn handle_connection(
        self: Arc<Self>,
        incoming: IncomingConnection,
        slot: AdmissionSlot<ConnectionSource>,
    ) {
        let authenticated = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => return,
            authenticated = self.authenticate(incoming) => authenticated,
            () = slot.wait_for_revocation() => return debug!("a pending connection lost its slot to another"),
            () = self.host.sleep_until(self.host.now() + ATTACH_TIMEOUT) => {
                return debug!("a pending connection did not attach in time");
            }
        };
        // The connection holds its rank from here on, and mapping the arena has no deadline.
        drop(slot);
        let ended = match authenticated {
            Ok(Some((pending, mut stream))) => match self.attach_trainer(pending).await {
                Ok(attachment) => {
                    trainer::serve_trainer(self.trainer_context(), attachment, stream).await;
                    return;
                }
                Err(refusal) => self.refuse_trainer(&mut stream, refusal).await,
            },
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        if let Err(error) = ended {
            debug!("a connection ended before it attached: {error}");
        }
    }

    /// Returns the parts of the gateway that the task of one trainer uses.
    fn trainer_context(&self) -> TrainerContext<'_> {
        TrainerContext {
            host: &*self.host,
            spec: &self.spec,
            events: &self.events,
            shutdown: &self.shutdown,
        }
    }

    /// Reads the first request of a connection; returns the trainer that may attach. `None` if a
    /// trainer was refused, or if an operator asked and was answered.
    async fn authenticate(
        &self,
        incoming: IncomingConnection,
    ) -> io::Result<Option<(PendingAttachment, Box<dyn TrainerStream>)>> {
        let IncomingConnection { source, handshake } = incoming;
        let AcceptedConnection { mut stream, memory } = handshake.await?;
        let Some(memory) = memory else {
            let response =
                self.serve_operator(source, &read_protocol_message(&mut stream).await?).await;
            let response = serde_json::to_vec(&response).expect("keys are strings");
            write_protocol_message(&mut stream, &response).await?;
            return Ok(None);
        };
        let request = ProtocolRequest::decode(&read_protocol_message(&mut stream).await?);
        let admitted = match request {
            Ok(request) => self.admit_trainer(request, memory).await,
            Err(error) => Err(Refusal::bad_request(error.to_string())),
        };
        match admitted {
            Ok(pending) => Ok(Some((pending, stream))),
            Err(refusal) => self.refuse_trainer(&mut stream, refusal).await.map(|()| None),
        }
    }

    /// Tells a trainer why it is refused, and logs the reason.
    async fn refuse_trainer(
        &self,
        stream: &mut Box<dyn TrainerStream>,
        refusal: Refusal,
    ) -> io::Result<()> {
        let now = self.host.now();
        if let Some(suppressed) = self.refusals.permit(now) {
            let subject = format!("{:?}", refusal.reason);
            warn_if_due!(
                self.spec.warnings.is_due(WarningCause::Trainer, &subject, now),
                "a trainer was refused: {refusal}{suppressed}"
            );
        }
        write_protocol_message(stream, &ProtocolResponse::Refused(refusal).encode()).await
    }

    /// Answers an operator. The socket's mode may admit trainers of other users, but only the
    /// gateway's own user and root may change rates and members.
    async fn serve_operator(&self, source: ConnectionSource, request: &[u8]) -> OperatorResponse {
        let own = [0, rustix::process::geteuid().as_raw()].map(ConnectionSource::User);
        if !own.contains(&source) {
            let why = "only the gateway's own user may do that".to_owned();
            return OperatorResponse::Refused(why);
        }
        let request: OperatorRequest = match serde_json::from_slice(request) {
            Ok(request) => request,
            Err(error) => return OperatorResponse::Refused(format!("malformed request: {error}")),
        };
        let answered = match request {
            OperatorRequest::SetRate { link, bits_per_second } => {
                let rate = bits_per_second.map(BitRate::from_bits_per_second);
                let (reply, result) = oneshot::channel();
                let change = RateChange { link, rate };
                let _ = self.events.send(Event::ChangeRate { change, reply }).await;
                let set = |link: Result<_, RateError>| link.map_err(|error| error.to_string());
                result.await.map(|link| set(link).map(OperatorResponse::RateSet))
            }
            OperatorRequest::Fabric { text, signature, within_seconds, dry_run } => {
                let (reply, result) = oneshot::channel();
                let within = Span::from_secs(within_seconds.into());
                let change = FabricChange { text, signature, within, dry_run };
                let _ = self.events.send(Event::ChangeFabric { change, reply }).await;
                let changed = result.await;
                changed.map(|changed| match changed {
                    Ok(changes) => Ok(OperatorResponse::Fabric(changes)),
                    Err(error) => Err(error.to_string()),
                })
            }
            OperatorRequest::FabricVersion => {
                let (reply, result) = oneshot::channel();
                let _ = self.events.send(Event::FabricVersion(reply)).await;
                result.await.map(|fabric| Ok(OperatorResponse::FabricVersion(fabric)))
            }
            request => {
                let (reply, result) = oneshot::channel();
                let change = request.membership_change();
                let _ = self.events.send(Event::ChangeMembership { change, reply }).await;
                let members = result.await;
                members.map(|members| match members {
                    Ok(members) => Ok(OperatorResponse::Membership(members)),
                    Err(error) => Err(error.to_string()),
                })
            }
        };
        let answered = answered.unwrap_or_else(|_| Err("the gateway is stopping".to_owned()));
        answered.unwrap_or_else(OperatorResponse::Refused)
    }

    /// Checks an attach request, waits for an earlier trainer of the rank to detach, and reserves
    /// rank and memory.
    ///
    /// # Errors
    /// The answer to the trainer.
    async fn admit_trainer(
        &self,
        request: ProtocolRequest,
        memory: TrainerListenerArena,
    ) -> Result<PendingAttachment, Refusal> {
        let ProtocolRequest::Attach(attach) = request else {
            return Err(Refusal::bad_request("the first request must be an attach"));
        };
        let theirs = attach.version;
        if theirs != LOCAL_VERSION {
            let why = format!("the client speaks version {theirs}, the gateway {LOCAL_VERSION}");
            return Err(Refusal::new(RefusalReason::Version, why));
        }
        let job = &self.find_authenticated_job(&attach)?;
        if !self.spec.ranks.contains(&attach.rank.0) {
            let (rank, served) = (attach.rank, describe_local_server_ranks(&self.spec.ranks));
            let why = format!(
                "rank {rank} is not served here, but {served}; name its own gateway, or correct the rank"
            );
            return Err(Refusal::new(RefusalReason::OtherGateway, why));
        }
        self.attachments.wait_for_predecessor(&*self.host, job.group(), attach.rank).await;
        let reservation = self.attachments.reserve_rank(job, attach.rank, attach.arena_bytes)?;
        Ok(PendingAttachment { reservation, memory, arena_bytes: attach.arena_bytes })
    }

    /// Maps the arena of a trainer that may attach, and numbers the attachment.
    ///
    /// # Errors
    /// The answer to the trainer.
    async fn attach_trainer(&self, pending: PendingAttachment) -> Result<Attachment, Refusal> {
        let PendingAttachment { mut reservation, memory, arena_bytes } = pending;
        let transport = memory.transport();
        let arena = self.map_arena(memory, arena_bytes).await?;
        reservation.set_arena(&arena);
        let id = self.next_attachment.fetch_add(1, Ordering::Relaxed);
        Ok(Attachment { reservation, id, arena, transport })
    }

    /// Finds the job of an attach request if its token is right. An unknown job and a wrong token
    /// take the same time and give the same answer, so that nobody learns which jobs exist.
    fn find_authenticated_job(&self, attach: &Attach) -> Result<JobSpec, Refusal> {
        let jobs = Arc::clone(&self.spec.jobs.borrow());
        let known = jobs.iter().find(|known| known.name == attach.job);
        let token = known.map_or(Token([0; TOKEN_BYTES]), |known| known.token);
        let same = token == attach.token;
        let authenticated = known.filter(|_| same);
        authenticated.cloned().ok_or_else(|| {
            let why = format!(
                "job `{}`: no such job, or a wrong token; copy the job's token here, and send the \
                 gateway SIGHUP if its region file has changed",
                attach.job
            );
            Refusal::new(RefusalReason::Unauthorized, why)
        })
    }

    /// Maps an arena on a blocking thread, since a large one takes a while.
    async fn map_arena(
        &self,
        memory: TrainerListenerArena,
        bytes: u64,
    ) -> Result<Arc<Arena>, Refusal> {
        let (done, opened) = oneshot::channel();
        let open = move || {
            // The connection may be gone by now.
            let _ = done.send(memory.open(bytes));
        };
        let _ = self.host.run_blocking(Box::new(open)).await;
        let opened = opened.await.map_err(|_| {
            Refusal::new(RefusalReason::NoResources, "the arena could not be mapped")
        })?;
        opened.map_err(|error| {
            let is_of_host = matches!(
                error,
                ArenaError::System(_)
                    | ArenaError::Undeliverable
                    | ArenaError::NoDescriptor { .. }
                    | ArenaError::Limited { .. }
            );
            let reason =
                if is_of_host { RefusalReason::NoResources } else { RefusalReason::BadArena };
            Refusal::new(reason, error.to_string())
        })
    }
}

/// Returns the ranks that a gateway serves, in words for a refusal.
fn describe_local_server_ranks(ranks: &Range<u32>) -> String {
    match ranks.len() {
        0 => "no rank is".to_owned(),
        1 => format!("rank {} is", ranks.start),
        _ => format!("ranks {} to {} are", ranks.start, ranks.end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{BoxFuture, VirtualHost};
    use crate::warnings::Warnings;
    use tokio::sync::mpsc;
    use wan_sim::VirtualNet;

    /// Most accepts of a flood within five seconds.
    const ACCEPTS_MAX: u64 =
        PENDING_CONNECTIONS_MAX as u64 / 2 + 5_000_000_000 / FLOOD_ACCEPT_INTERVAL.ns() + 1;

    /// A listener with a silent connection always waiting.
    struct Flooded(AtomicU64);

    impl TrainerListener for Arc<Flooded> {
        fn accept(&self) -> BoxFuture<io::Result<IncomingConnection>> {
            // Virtual time stands still for a server that accepts without pause.
            assert!(self.0.fetch_add(1, Ordering::Relaxed) < ACCEPTS_MAX, "too many accepts");
            Box::pin(async {
                Ok(IncomingConnection {
                    source: ConnectionSource::User(1),
                    handshake: Box::pin(std::future::pending()),
                })
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_flood_is_accepted_at_a_bounded_rate() {
        let host = Arc::new(VirtualHost::new(VirtualNet::new(), 1));
        let listener = Arc::new(Flooded(AtomicU64::new(0)));
        let (_jobs, jobs) = tokio::sync::watch::channel(Arc::default());
        let (fabric, warnings) = ("one".to_owned(), Warnings::default());
        let spec = LocalSpec { ranks: 0..1, world_size: 1, fabric, jobs, warnings };
        let (events, _inbox) = mpsc::channel(1);
        let server =
            LocalServer::new(Arc::clone(&host) as _, spec, events, CancellationToken::new());
        let serving = server.serve(Box::new(Arc::clone(&listener)));
        tokio::select! {
            () = serving => panic!("nobody shut it down"),
            () = host.sleep_until(host.now() + Span::from_secs(5)) => {}
        }
        let accepts = listener.0.load(Ordering::Relaxed);
        assert!(accepts > ACCEPTS_MAX / 4, "only {accepts} accepts");
    }
}
