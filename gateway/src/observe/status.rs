//! The state of a gateway, as `/status` and `landbridge status` show it. The engine writes it.

use super::fabric_report::FabricVersionReport;
use super::membership_report::MembershipReport;
use super::problem_cause::ProblemReport;
use serde::{Deserialize, Serialize};

/// A gateway's state at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GatewayReport {
    /// The gateway's name.
    pub gateway: String,
    /// The name of its region.
    #[serde(default)]
    pub region: String,
    /// The version of its program.
    #[serde(default)]
    pub program_version: String,
    /// Seconds since its start.
    #[serde(default)]
    pub uptime_seconds: f64,
    /// The fabric's name.
    pub fabric: String,
    /// The digest of the parts of the fabric file on which all gateways must agree, in hexadecimal.
    #[serde(default)]
    pub fabric_identity: String,
    /// The problems that keep it from being ready, or that make it work less well than it could, as
    /// [`judge_readiness`](super::readiness::judge_readiness) finds them.
    #[serde(default)]
    pub problems: Vec<ProblemReport>,
    /// The TCP address at which trainers of other hosts attach, if it serves them. The status server
    /// adds it to what the engine says.
    #[serde(default)]
    pub attach: Option<String>,
    /// The gateways with which it exchanges.
    pub peers: Vec<PeerReport>,
    /// The links of its region.
    pub links: Vec<LinkReport>,
    /// The links of the fabric that are down, also those of other regions.
    #[serde(default)]
    pub links_down: Vec<LinkOutageReport>,
    /// The regions that go on together, and the quorum; `None` from an older gateway.
    #[serde(default)]
    pub membership: Option<MembershipReport>,
    /// The version of the fabric in force, and one that is to come into force.
    #[serde(default)]
    pub fabric_version: FabricVersionReport,
    /// The jobs that it serves, in name order.
    pub jobs: Vec<JobReport>,
    /// Jobs in which it differs from gateways that it can reach.
    #[serde(default)]
    pub job_differences: Vec<JobDifference>,
    /// Log lines lost since its start, because they could not be written or nobody read them.
    #[serde(default)]
    pub lost_log_lines: u64,
    /// The reason why trainers cannot attach at its socket, while there is one. The status server
    /// adds it to what the engine says.
    #[serde(default)]
    pub socket_problem: Option<String>,
    /// The limit on processors that holds the gateway back, while one does. The status server adds
    /// it to what the engine says.
    #[serde(default)]
    pub processor_problem: Option<String>,
    /// Keys of its files whose values have changed since the start and need a restart.
    #[serde(default)]
    pub restart_needed: Vec<String>,
    /// The faults that keep its changed files from being taken up.
    #[serde(default)]
    pub file_faults: Vec<String>,
}

/// A job in which the gateway and another one differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDifference {
    /// The job's name.
    pub job: String,
    /// The name of the other gateway.
    pub gateway: String,
    /// The difference.
    pub kind: JobDifferenceKind,
}

/// The difference between a job's entries in the region files of two gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobDifferenceKind {
    /// The file of the other gateway does not have the job, which therefore has no epoch.
    MissingThere,
    /// The file of this gateway does not have the job, which therefore has no epoch elsewhere.
    MissingHere,
    /// The tokens differ.
    OtherToken,
    /// The weights differ.
    OtherWeight {
        /// The weight in the file of this gateway.
        here: u32,
        /// The weight in the file of the other gateway.
        there: u32,
    },
}

/// One job on this gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobReport {
    /// The job's name.
    pub job: String,
    /// The current epoch; `None` while there is none.
    pub epoch: Option<u64>,
    /// The plan of the epoch.
    pub plan: Option<EpochPlanReport>,
    /// The ranks that this gateway serves.
    pub ranks: Vec<RankReport>,
    /// The straggler of the collectives that go on now, as this gateway sees it.
    #[serde(default)]
    pub straggler: Option<StragglerReport>,
    /// Collectives under way, oldest first.
    pub collectives: Vec<CollectiveReport>,
    /// Seconds since the last collective completed; `None` before the first.
    #[serde(default)]
    pub completed_seconds_ago: Option<f64>,
    /// The work that it has done on this gateway.
    #[serde(default)]
    pub totals: TotalsReport,
    /// The last collectives that failed and epochs that ended, the oldest first.
    #[serde(default)]
    pub incidents: Vec<IncidentReport>,
    /// Groups that its ranks have made and not all left.
    #[serde(default)]
    pub groups: u64,
    /// Commits of local ranks without an answer, each rank's in order.
    #[serde(default)]
    pub commits: Vec<CommitReport>,
    /// Whether the region file has the job no more, so that no trainer may attach.
    #[serde(default)]
    pub removed: bool,
    /// Set while the gateway finishes posted collectives before it exits.
    #[serde(default)]
    pub draining: Option<DrainReport>,
}

/// The work that a job has done on a gateway since the gateway's start. A difference of two reports
/// gives throughput and efficiency of the time between them.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct TotalsReport {
    /// Number of collectives that completed.
    pub completed: u64,
    /// Number of collectives that failed.
    pub failed: u64,
    /// Bytes of the buffers of completed collectives.
    pub bytes: u64,
    /// Seconds that completed all-reduces of 1 MiB and more took, each from the last local post to
    /// the last local result.
    pub seconds: f64,
    /// Lower bounds of the times of these all-reduces on the fabric, in seconds. Divided by
    /// `seconds` they are the efficiency.
    pub bound_seconds: f64,
}

/// The kind of an incident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentKind {
    /// A collective failed.
    CollectiveFailed,
    /// An epoch ended.
    EpochEnded,
}

/// A collective that failed or an epoch that ended, or several of them in a row for one reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct IncidentReport {
    /// The kind.
    pub kind: IncidentKind,
    /// The ranks of the group in words; `None` for the job itself.
    pub group: Option<String>,
    /// The number of the collective or epoch, of the first if there are several.
    pub number: u64,
    /// The failure's code in docs/failures.md.
    pub code: u8,
    /// The reason, as ranks hear it.
    pub text: String,
    /// The number of incidents in a row that it stands for.
    pub count: u64,
    /// Seconds since the last of them.
    pub seconds_ago: f64,
}

/// One commit without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CommitReport {
    /// The rank that committed.
    pub rank: u32,
    /// The step that it commits.
    pub step: u64,
    /// Regions that have not confirmed all results of the step.
    pub awaited: Vec<String>,
    /// Seconds since the rank asked.
    pub seconds: f64,
}

/// The work that a gateway still finishes before it exits, besides commits without an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Seconds until it exits in any case.
    pub seconds_left: f64,
    /// Numbers of the collectives that it finishes.
    pub collectives: Vec<u64>,
    /// Local ranks that commit steps and have not committed their last one.
    pub uncommitted: Vec<u32>,
}

/// The plan of an epoch, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochPlanReport {
    /// Its algorithm's name.
    pub algorithm: String,
    /// Why it was chosen.
    pub reason: String,
    /// Its hash, in hexadecimal. Plans of equal hash give equal results, bit for bit.
    pub hash: String,
}

/// Whether a peer can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerState {
    /// No lane is connected.
    Connecting,
    /// Some lanes are connected, or all are, but the peer is not a member of the epoch yet.
    Meeting,
    /// The peer is a member of the epoch, and all lanes are connected.
    Up,
    /// The peer is a member of the epoch, and some lanes are missing.
    Degraded,
}

/// One peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerReport {
    /// The peer's gateway name.
    pub gateway: String,
    /// The name of its region.
    #[serde(default)]
    pub region: String,
    /// Whether it can be reached.
    pub state: PeerState,
    /// The version of the messages with it, the highest that both gateways speak; `None` while no lane
    /// is connected.
    #[serde(default)]
    pub wire_version: Option<u16>,
    /// Number of lanes in use that are connected.
    pub lanes_up: u16,
    /// Number of lanes that are in use now.
    pub lanes: u16,
    /// The most lanes that may be in use, whose ports are reserved.
    #[serde(default)]
    pub lanes_most: u16,
    /// The reason for the number in use.
    #[serde(default)]
    pub lanes_reason: String,
    /// Smoothed round-trip time in milliseconds; `None` while no lane is connected.
    pub rtt_ms: Option<f64>,
    /// Payload sent, without retransmissions, in bytes.
    pub sent_bytes: u64,
    /// Payload received, without duplicates, in bytes.
    pub received_bytes: u64,
    /// Packets that its lanes declared lost.
    pub lost_packets: u64,
    /// Fraction of the packets to it that were lost in the last 10 s, from 0 to 1.
    pub loss: f64,
    /// Whether the loss exceeds what the fabric file expects.
    pub loss_alarm: bool,
    /// The least round-trip time of the last half minute in seconds, where it is longer than the fabric
    /// says.
    #[serde(default)]
    pub long_rtt_seconds: Option<f64>,
    /// Seconds for which bytes in flight have had no acknowledgement on any lane; 0 while one lane is
    /// heard, and while none is connected.
    #[serde(default)]
    pub silent_seconds: f64,
    /// The reason why lanes to it are missing, while they are: what the last check of the path
    /// found, or else the last error of a lane.
    pub problem: Option<String>,
    /// The action that makes the lanes come up, where the check of the path tells one.
    #[serde(default)]
    pub remedy: Option<String>,
    /// Its UDP ports that did not answer in the last check of the path, while lanes are missing.
    #[serde(default)]
    pub silent_ports: Vec<u16>,
    /// The longest IP packet in bytes that got to it in the last check of the path, at most the
    /// fabric's MTU. `None` while all lanes are up.
    #[serde(default)]
    pub path_mtu: Option<u16>,
    /// The longest IP packet in bytes that all its lanes send now; `None` while no lane is
    /// connected.
    #[serde(default)]
    pub mtu: Option<u16>,
    /// The state of the lanes on a `shared` link; `None` on others, and while no lane is connected.
    #[serde(default)]
    pub shared: Option<SharedLanesReport>,
}

/// The lanes of a `shared` link to a peer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharedLanesReport {
    /// The phase of the first lane: `startup`, `packet-trains`, `drain`, `probe-down`, `cruise`,
    /// `probe-up` or `probe-rtt`.
    pub phase: String,
    /// Whether others seem to fill the queue of the link.
    pub rivals: bool,
    /// The delivery rate of all lanes in bits per second, in IP bytes; `None` before it is found.
    pub found_bits_per_second: Option<u64>,
    /// The round-trip time without a queue in seconds; `None` before it is found.
    pub min_rtt_seconds: Option<f64>,
    /// Bytes lost at random.
    pub random_lost_bytes: u64,
    /// Bytes that a queue dropped.
    pub queue_lost_bytes: u64,
    /// Bytes lost in outages of the path.
    pub outage_lost_bytes: u64,
}

/// A link: its configuration, and the rate limits that apply now.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The two regions, in name order.
    pub between: [String; 2],
    /// Capacity in each direction in bits per second, from the fabric file.
    pub rate_bits_per_second: u64,
    /// Rate limit of its schedule now, in bits per second.
    pub scheduled_bits_per_second: Option<u64>,
    /// The lowest rate limit that an operator set at either end, in bits per second.
    pub operator_bits_per_second: Option<u64>,
    /// The gateway at which the operator set it.
    pub operator_gateway: Option<String>,
    /// Measured capacity from here in bits per second, when it is below the fabric file's rate.
    #[serde(default)]
    pub measured_bits_per_second: Option<u64>,
    /// The rate limit that applies, in bits per second: the operator's, else the schedule's, else
    /// the capacity; and never more than the measured capacity.
    pub effective_bits_per_second: u64,
    /// Round-trip time in milliseconds, from the fabric file.
    pub rtt_ms: f64,
    /// Expected random loss, from 0 to 1, from the fabric file.
    pub loss: f64,
}

/// A link that is down and gone round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LinkOutageReport {
    /// The two regions, in name order.
    pub between: [String; 2],
    /// Seconds since this gateway knows that it is down.
    pub seconds: f64,
    /// The reason, as far as known.
    pub why: String,
    /// The gateway by way of which both regions reach each other, if it is one alone.
    pub way_round: Option<String>,
}

/// One local rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankReport {
    /// Its number in the fabric.
    pub rank: u32,
    /// Whether a trainer is attached for it.
    pub attached: bool,
    /// The compute speed of the attached trainer: the weight that it posts, per second between the
    /// last result and its next post.
    #[serde(default)]
    pub samples_per_second: Option<f64>,
}

/// The rank, region or link that delays the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StragglerReport {
    /// `rank`, `region` or `link`.
    pub kind: String,
    /// The rank's number, the region's name, or the link's name.
    pub name: String,
    /// Delay that it caused in the last collective, in seconds.
    pub behind_seconds: f64,
    /// Number of consecutive collectives that it delayed.
    pub collectives: u32,
    /// Seconds since it became the straggler.
    #[serde(default)]
    pub since_seconds: f64,
}

/// The progress of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveState {
    /// Some rank has not posted.
    Awaiting,
    /// All have posted; segments are under way.
    Running,
    /// The result is in place; receipts of peers are outstanding.
    Settling,
}

/// One collective under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectiveReport {
    /// Its number in its job.
    pub sequence: u64,
    /// Its operation.
    pub op: String,
    /// Its element type.
    pub dtype: String,
    /// Size of its buffer in bytes.
    pub bytes: u64,
    /// Its progress.
    pub state: CollectiveState,
    /// Ranks that have not posted, as far as this gateway knows.
    pub awaited: Vec<u32>,
    /// Seconds since its first post.
    pub seconds: f64,
}

/// A gateway's state for `landbridge dump`: its status, and what its flight recorders hold.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DumpReport {
    /// The status.
    pub status: GatewayReport,
    /// The flight recorders of its jobs, in name order.
    pub flights: Vec<JobFlightsReport>,
}

/// The flight recorder of a job on a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobFlightsReport {
    /// The job's name.
    pub job: String,
    /// Its last collectives that local ranks posted, in the order of their numbers.
    pub collectives: Vec<FlightReport>,
    /// The last collectives of its groups, by the groups' ids; none in dumps of earlier versions.
    #[serde(default)]
    pub groups: Vec<GroupFlightsReport>,
}

/// The last collectives of one group of a job on a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GroupFlightsReport {
    /// The group's id, hexadecimal: equal on all gateways of the group.
    pub group: String,
    /// Its ranks, by their numbers in the job.
    pub ranks: Vec<u32>,
    /// Its last collectives that local ranks posted, in the order of their numbers.
    pub collectives: Vec<FlightReport>,
}

/// One collective of a flight recorder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightReport {
    /// Its number in its job.
    pub sequence: u64,
    /// The epoch of its posts; 0 in dumps of earlier versions.
    #[serde(default)]
    pub epoch: u64,
    /// Its operation.
    pub op: String,
    /// Size of its buffer in bytes.
    pub bytes: u64,
    /// Operation, type and shape as the first local rank posted them; `None` in dumps of earlier versions.
    #[serde(default)]
    pub buffer: Option<FlightBufferReport>,
    /// The posts of local ranks.
    pub posts: Vec<FlightPostReport>,
    /// How it ended here; `None` while it is under way.
    pub end: Option<FlightEndReport>,
    /// The peers of which bytes are missing while it is under way.
    pub missing: Vec<MissingBytesReport>,
}

/// The post of a local rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightPostReport {
    /// The rank.
    pub rank: u32,
    /// Seconds since it posted.
    pub seconds_ago: f64,
    /// Bytes of its contribution.
    #[serde(default)]
    pub contribution_bytes: u64,
    /// Bytes of its result.
    #[serde(default)]
    pub result_bytes: u64,
    /// Operation, type and shape that it posted, where they or another property differ from the first post.
    #[serde(default)]
    pub differing: Option<FlightBufferReport>,
}

/// The operation of a collective, and the array on which its ranks agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlightBufferReport {
    /// The operation, such as `all-reduce`.
    pub operation: String,
    /// The element type, such as `f32`.
    pub dtype: String,
    /// The size of each dimension; of blocks the elements of all together.
    pub shape: Vec<u64>,
}

/// The end of a collective on a gateway.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlightEndReport {
    /// The failure's code in docs/failures.md; `None` where all local ranks have the result.
    pub code: Option<u8>,
    /// Seconds since then.
    pub seconds_ago: f64,
}

/// The bytes of a collective for which a gateway waits at a peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingBytesReport {
    /// The peer's gateway name.
    pub gateway: String,
    /// Bytes that are due from it and have not arrived.
    pub awaited_bytes: u64,
    /// Bytes that were sent to it and have no receipt.
    pub unreceipted_bytes: u64,
}
