//! What a gateway is doing, as `/status` and `landbridge status` show it.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// A gateway's state at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub gateway: String,
    /// The fabric's name.
    pub fabric: String,
    /// The other gateways that it exchanges with.
    pub peers: Vec<PeerStatus>,
    /// The links of its region.
    pub links: Vec<LinkStatus>,
    /// The jobs that it serves, in name order.
    pub jobs: Vec<JobStatus>,
}

/// One job's group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobStatus {
    /// The job's name.
    pub job: String,
    /// The epoch under way; `None` while the members have not met.
    pub epoch: Option<u64>,
    /// The plan of the epoch.
    pub plan: Option<PlanStatus>,
    /// The ranks that this gateway serves.
    pub ranks: Vec<RankStatus>,
    /// Who held the others up in the last collectives, as seen from here.
    #[serde(default)]
    pub straggler: Option<StragglerStatus>,
    /// Collectives under way, oldest first.
    pub collectives: Vec<CollectiveStatus>,
    /// Commits of local ranks that wait, each rank's in order.
    #[serde(default)]
    pub commits: Vec<CommitStatus>,
    /// Set while the gateway shuts down in order.
    #[serde(default)]
    pub draining: Option<DrainStatus>,
}

/// One commit that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitStatus {
    /// Whose.
    pub rank: u32,
    /// The step that it commits.
    pub step: u64,
    /// Regions that are not known to have all of the step's results.
    pub awaited: Vec<String>,
    /// Seconds since the rank asked.
    pub seconds: f64,
}

/// What a gateway that shuts down still waits for, beside the commits that wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainStatus {
    /// Seconds until it ends in any case.
    pub seconds_left: f64,
    /// Numbers of the collectives that are to be finished.
    pub collectives: Vec<u64>,
    /// Local ranks that commit their steps and have not committed the last one.
    pub uncommitted: Vec<u32>,
}

/// Which plan is followed, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Its algorithm's name.
    pub algorithm: String,
    /// Why it was chosen.
    pub reason: String,
    /// Its hash, in hexadecimal: equal hashes give equal bits.
    pub hash: String,
}

/// Whether a peer can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// No lane is connected.
    Connecting,
    /// Some lanes are connected, or all are and it is not of the epoch yet.
    Meeting,
    /// A member of the epoch, all lanes connected.
    Up,
    /// A member of the epoch that lost some lanes.
    Degraded,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub gateway: String,
    /// Whether it can be reached.
    pub state: PeerState,
    /// Lanes connected.
    pub lanes_up: u16,
    /// Lanes wanted.
    pub lanes: u16,
    /// Smoothed round-trip time in milliseconds.
    pub rtt_ms: Option<f64>,
    /// Payload sent for the first time, in bytes.
    pub sent_bytes: u64,
    /// Payload that arrived for the first time, in bytes.
    pub received_bytes: u64,
    /// Packets that its lanes declared lost.
    pub lost_packets: u64,
    /// Share of packets to it that were lost in the last ten seconds, from 0 to 1.
    pub loss: f64,
    /// Whether that is more than the fabric expects.
    pub loss_alarm: bool,
    /// Why lanes to it are missing: the last thing that went wrong with one of them.
    pub problem: Option<String>,
}

/// A link as configured, and what it is held to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkStatus {
    /// The two regions, in name order.
    pub between: [String; 2],
    /// Capacity each way in bits per second, as the fabric says.
    pub rate_bits_per_second: u64,
    /// What its schedule holds it to now.
    pub scheduled_bits_per_second: Option<u64>,
    /// What operators hold it to, at either end: the lowest.
    pub operator_bits_per_second: Option<u64>,
    /// At which gateway that was said.
    pub operator_gateway: Option<String>,
    /// What it was found to carry from here, when that is less than the fabric says.
    #[serde(default)]
    pub measured_bits_per_second: Option<u64>,
    /// What it is held to: an operator's word, else the schedule, else its capacity; and never
    /// more than what it was found to carry.
    pub effective_bits_per_second: u64,
    /// Round-trip time in milliseconds.
    pub rtt_ms: f64,
    /// Random loss expected, from 0 to 1.
    pub loss: f64,
}

/// One local rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its number in the fabric.
    pub rank: u32,
    /// Whether its trainer is attached.
    pub attached: bool,
    /// What it computes in a second, in units of the weights that it posts: measured between the
    /// last result and its next post.
    #[serde(default)]
    pub samples_per_second: Option<f64>,
}

/// Who holds the others up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StragglerStatus {
    /// `rank`, `region` or `link`.
    pub kind: String,
    /// The rank's number, the region's name, the link's name.
    pub name: String,
    /// The last time, in seconds.
    pub behind_seconds: f64,
    /// In how many collectives one after the other.
    pub collectives: u32,
}

/// How far a collective is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveState {
    /// Some rank has not posted.
    Awaiting,
    /// All have posted; segments are under way.
    Running,
    /// The result is in place; receipts are outstanding.
    Settling,
}

/// One collective under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveStatus {
    /// Its number in its group.
    pub sequence: u64,
    /// Its operation.
    pub op: String,
    /// Its element type.
    pub dtype: String,
    /// Its buffer in bytes.
    pub bytes: u64,
    /// How far it is.
    pub state: CollectiveState,
    /// Ranks that have not posted, as far as is known here.
    pub awaited: Vec<u32>,
    /// Seconds since its first post.
    pub seconds: f64,
}

/// A question to the engine; it answers when it comes by.
pub type StatusRequest = oneshot::Sender<Status>;

/// Asks the engine for its status without ever holding it up: questions queue to a small
/// maximum, and whoever asks gives up by itself.
#[derive(Debug, Clone)]
pub struct StatusDoor {
    requests: mpsc::Sender<StatusRequest>,
}

/// Why there is no status. Ours: the engine is busy or gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoStatus {
    /// Too many questions wait already.
    #[error("{REQUESTS_MAX} status requests are waiting already")]
    Busy,
    /// The engine did not come by in time.
    #[error("the engine did not answer within {} s", ANSWER_WITHIN.as_secs())]
    Late,
    /// There is no engine any more.
    #[error("the gateway is stopping")]
    Gone,
}

impl StatusDoor {
    /// A door, and the questions that the engine takes from it with `try_recv` or `recv`.
    pub fn new() -> (Self, mpsc::Receiver<StatusRequest>) {
        let (requests, questions) = mpsc::channel(REQUESTS_MAX);
        (Self { requests }, questions)
    }

    /// The engine's status, if it answers in time.
    ///
    /// # Errors
    /// The engine is busy or gone.
    pub async fn ask(&self) -> Result<Status, NoStatus> {
        let (answer, status) = oneshot::channel();
        self.requests.try_send(answer).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => NoStatus::Busy,
            mpsc::error::TrySendError::Closed(_) => NoStatus::Gone,
        })?;
        match tokio::time::timeout(ANSWER_WITHIN, status).await {
            Ok(Ok(status)) => Ok(status),
            Ok(Err(_)) => Err(NoStatus::Gone),
            Err(_) => Err(NoStatus::Late),
        }
    }
}

/// Status requests that may wait for the engine.
const REQUESTS_MAX: usize = 8;

/// How long a request waits for the engine, which comes by many times a second.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
