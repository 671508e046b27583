//! Connections over TLS that are cut behind any byte: the gateway and all other ranks go on.
//!
//! Cuts before a rank is attached are told to nobody. Later ones are told as docs/failures.md says:
//! whoever waits for the rank hears that it is lost, or that its epoch ended, and a new rank goes on.

use super::super::{LAYOUT, ONE_AT_A_TIME, round, running};
use super::attach_address;
use super::cutting_relay::{Cut, CuttingRelay, RelayWay};
use crate::deployment::{Deployment, Team};
use crate::raw::tls_way;
use gateway::client::{AttachOptions, AttachTlsGateway, Client, GatewayAddress, PostError};
use gateway::local::protocol::{PIECE_BYTES_MAX, Token};
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::Epoch;
use hier_collectives::post::{Failure, FailureCode};
use scenarios::collectives::data::SplitMix64;
use std::ops::Range;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use units::Span;

/// Numbers of an all-reduce: two pieces, of which the second is short.
const ELEMENTS: u64 = PIECE_BYTES_MAX as u64 / 8 + 9;
/// 4 MiB: the arena of each rank. A gateway that kept those of a few cut connections would show it.
const ARENA: u64 = 4 << 20;
/// The values of ranks 1 and 2.
const OTHERS: [i64; 2] = [20, 300];
/// The value of a rank 0 whose connection is cut.
const CUT: i64 = 1;
/// The value of the rank 0 that takes its place at last.
const LAST: i64 = 5;
/// All-reduces of each connection that is to be cut.
const ROUNDS: u64 = 2;
/// Bytes around the beginning of each message, all of which are tried.
const MESSAGE_BYTES: u64 = 160;
/// 4 descriptors: a lane may open another UDP socket meanwhile. A gateway that kept the connections
/// that were cut would hold dozens.
const LANE_SOCKETS: usize = 4;
/// 60 s: a gateway has closed what was cut long before.
const CLOSED_WITHIN: Duration = Duration::from_secs(60);

/// The bytes of an uncut connection, one way, at some of its moments.
#[derive(Debug, Clone, Copy)]
struct Landmarks {
    /// When TLS stands.
    secured: u64,
    /// When the rank is attached and in an epoch.
    attached: u64,
    /// When it has the results of all rounds.
    done: u64,
}

/// A running job whose rank 0 attaches through a relay.
struct CutJob {
    deployment: Deployment,
    relay: CuttingRelay,
    others: Vec<Client>,
}

/// Attaches a rank of the job by a way.
async fn attach(
    way: GatewayAddress,
    token: Token,
    rank: u32,
) -> Result<Client, gateway::client::AttachError> {
    let options = AttachOptions::new("other", token, rank, ARENA);
    // One attempt each.
    let options = AttachOptions { gateway_timeout: Span::ZERO, ..options };
    Client::attach(&way, options).await
}

/// All-reduces the value of a rank; returns the sum, which must be the same everywhere.
async fn sum(client: &Client, value: i64) -> Result<i64, Failure> {
    let mut tensor = client.allocate(Dtype::I64, ELEMENTS).expect("room");
    tensor.write(&value.to_le_bytes().repeat(ELEMENTS as usize));
    let posted = client.all_reduce(tensor, ReduceOp::Sum).await;
    let mut operation = posted.map_err(PostError::into_failure)?;
    operation.ready().await?;
    let bytes = operation.result();
    operation.reclaim().await?;
    let first = i64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    assert!(bytes == first.to_le_bytes().repeat(ELEMENTS as usize), "not one sum");
    Ok(first)
}

/// Waits until a client is in another epoch.
async fn wait_for_other_epoch(client: &Client, epoch: Epoch) {
    while client.epoch() == epoch {
        assert_eq!(client.disconnect_reason(), None, "rank {}", client.rank());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// All-reduces the value of a rank until the last rank 0 has taken part. Failures must be those of a
/// rank that was lost.
async fn sum_until_last(client: &Client, value: i64) {
    let with = |rank_0: i64| OTHERS.iter().sum::<i64>() + rank_0;
    loop {
        let epoch = client.epoch();
        match sum(client, value).await {
            Ok(got) if got == with(LAST) => return,
            Ok(got) => assert_eq!(got, with(CUT), "a part of a contribution counted"),
            Err(failure) => {
                let told = [FailureCode::RankLost, FailureCode::EpochEnded];
                assert!(told.contains(&failure.code), "rank {}: {failure}", client.rank());
                wait_for_other_epoch(client, epoch).await;
            }
        }
    }
}

impl CutJob {
    /// Starts gateways, and attaches ranks 1 and 2.
    async fn start() -> Self {
        let deployment = running();
        let relay = CuttingRelay::open(attach_address(&deployment)).await;
        let token = deployment.token("other");
        let socket =
            |region: &str| GatewayAddress::Socket(deployment.path(&format!("{region}.sock")));
        // An epoch begins without rank 0.
        let (one, two) =
            tokio::join!(attach(socket("east"), token, 1), attach(socket("west"), token, 2));
        let others = vec![one.expect("attaches"), two.expect("attaches")];
        Self { deployment, relay, others }
    }

    /// Returns the way to the gateway, directly or through the relay.
    fn way(&self, is_relayed: bool) -> AttachTlsGateway {
        let direct = tls_way(&self.deployment, "east");
        let address = if is_relayed {
            format!("tls://{}", self.relay.address()).parse().expect("an address")
        } else {
            direct.address.clone()
        };
        AttachTlsGateway { address, ..direct }
    }

    /// Attaches rank 0.
    async fn attach_first(&self, is_relayed: bool) -> Option<Client> {
        let way = GatewayAddress::Tls(self.way(is_relayed));
        attach(way, self.deployment.token("other"), 0).await.ok()
    }

    /// Attaches rank 0 through the relay, and all-reduces as long as its connection stands.
    async fn train_until_cut(&self) {
        let Some(client) = self.attach_first(true).await else { return };
        for _ in 0..ROUNDS {
            match sum(&client, CUT).await {
                Ok(got) => assert_eq!(got, OTHERS.iter().sum::<i64>() + CUT),
                Err(failure) => {
                    assert_eq!(failure.code, FailureCode::GatewayLost, "{failure}");
                    return;
                }
            }
        }
    }

    /// Cuts connections of rank 0, one after the other, while the other ranks all-reduce. Then lets a
    /// rank 0 take part whose connection stands. Returns how many connections were cut.
    async fn survive(&self, cuts: &[Cut]) -> usize {
        let first = async {
            let mut struck = 0;
            for cut in cuts {
                let (is_cut, ()) =
                    tokio::join!(self.relay.relay(Some(*cut)), self.train_until_cut());
                struck += usize::from(is_cut);
            }
            let last = self.attach_first(false).await.expect("the gateway serves others");
            sum_until_last(&last, LAST).await;
            struck
        };
        let [one, two] = [0, 1].map(|at| sum_until_last(&self.others[at], OTHERS[at]));
        tokio::join!(first, one, two).0
    }

    /// Measures a connection that is not cut: the bytes to the gateway, and those to the trainer.
    async fn measure(&self) -> [Landmarks; 2] {
        let passed =
            || [RelayWay::ToGateway, RelayWay::ToTrainer].map(|way| self.relay.passed(way));
        let connect = async {
            let way = self.way(true);
            let stream = way.connect_unattached().await.expect("connects");
            (passed(), stream).0
        };
        let secured = tokio::join!(self.relay.relay(None), connect).1;
        let train = async {
            let client = self.attach_first(true).await.expect("attaches");
            let attached = passed();
            for _ in 0..ROUNDS {
                sum(&client, CUT).await.expect("a sum");
            }
            (attached, passed())
        };
        let follow = async |at: usize| {
            for _ in 0..ROUNDS {
                sum(&self.others[at], OTHERS[at]).await.expect("a sum");
            }
        };
        let (_, (attached, done), (), ()) =
            tokio::join!(self.relay.relay(None), train, follow(0), follow(1));
        [0, 1].map(|at| Landmarks { secured: secured[at], attached: attached[at], done: done[at] })
    }

    /// Cuts connections before they are attached, beside a rank 0 that is. Nobody hears of them: the
    /// epoch goes on.
    async fn ignore_early_cuts(&self, cuts: &[Cut]) {
        let own = self.attach_first(false).await.expect("attaches");
        let [one, two] = [0, 1].map(|at| sum_until_last(&self.others[at], OTHERS[at]));
        tokio::join!(sum_until_last(&own, LAST), one, two);
        let epoch = own.epoch();
        for cut in cuts {
            let connect = async {
                match cut.way {
                    RelayWay::ToGateway => drop(self.attach_first(true).await),
                    RelayWay::ToTrainer => drop(self.way(true).connect_unattached().await),
                }
            };
            tokio::join!(self.relay.relay(Some(*cut)), connect);
        }
        let [one, two] = [0, 1].map(|at| sum(&self.others[at], OTHERS[at]));
        let (own_sum, one, two) = tokio::join!(sum(&own, LAST), one, two);
        for sum in [own_sum, one, two] {
            assert_eq!(sum, Ok(OTHERS.iter().sum::<i64>() + LAST), "nobody hears of the cuts");
        }
        assert_eq!(own.epoch(), epoch, "a connection that was never attached ended the epoch");
    }

    /// Returns the descriptors and the resident bytes of the gateway.
    fn held(&self) -> (usize, u64) {
        let id = self.deployment.gateways[0].process.id();
        let files = std::fs::read_dir(format!("/proc/{id}/fd")).expect("it runs").count();
        let pages = std::fs::read_to_string(format!("/proc/{id}/statm")).expect("it runs");
        let pages: u64 = pages.split(' ').nth(1).expect("resident").parse().expect("a number");
        (files, pages * rustix::param::page_size() as u64)
    }

    /// Waits until the gateway holds no more than before, but for the noise of its allocator.
    async fn holds_no_more_than(&self, before: (usize, u64)) {
        let begin = Instant::now();
        loop {
            let now = self.held();
            if now.0 <= before.0 + LANE_SOCKETS && now.1 <= before.1 + 4 * ARENA {
                return;
            }
            assert!(begin.elapsed() < CLOSED_WITHIN, "{now:?} held, {before:?} before");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Returns cuts one way behind these numbers of bytes; every other one is a reset.
fn cuts(way: RelayWay, behind: impl IntoIterator<Item = u64>) -> Vec<Cut> {
    let resets = [false, true].into_iter().cycle();
    behind.into_iter().zip(resets).map(|(behind, is_reset)| Cut { way, behind, is_reset }).collect()
}

/// Returns a range whole, or so many numbers drawn of it.
fn chosen(range: Range<u64>, drawn: Option<u64>, dice: &mut SplitMix64) -> Vec<u64> {
    match drawn {
        None => range.collect(),
        Some(count) => {
            let length = (range.end - range.start).max(1);
            (0..count).map(|_| range.start + dice.roll() % length).collect()
        }
    }
}

/// Cuts connections: behind each byte, or behind so many of each kind drawn by `seed`; and behind
/// `inside` bytes drawn of the pieces each way.
fn cut_connections(drawn: Option<u64>, inside: u64, seed: u64) {
    let _one_at_a_time = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let job = CutJob::start().await;
        let team = Team::attach(&job.deployment, &LAYOUT, "train").await;
        let marks = job.measure().await;
        let ways = [RelayWay::ToGateway, RelayWay::ToTrainer];
        let mut dice = SplitMix64(seed);
        assert_eq!(job.survive(&[]).await, 0);
        let before = job.held();
        // The attach is the last message before the rank is attached.
        let early =
            [marks[0].attached, marks[1].secured].map(|end| chosen(0..end, drawn, &mut dice));
        for (way, early) in ways.into_iter().zip(early) {
            job.ignore_early_cuts(&cuts(way, early)).await;
        }
        for (way, mark) in ways.into_iter().zip(marks) {
            let from = if way == RelayWay::ToGateway { mark.attached } else { mark.secured };
            let half = (mark.attached + mark.done) / 2;
            let mut late = chosen(from..mark.attached + MESSAGE_BYTES, drawn, &mut dice);
            late.extend(chosen(half - MESSAGE_BYTES..half + MESSAGE_BYTES, drawn, &mut dice));
            late.extend(chosen(mark.attached..mark.done, Some(inside), &mut dice));
            let struck = job.survive(&cuts(way, late.iter().copied())).await;
            println!("{way:?}: {struck} of {} connections were cut", late.len());
            assert!(struck * 10 >= late.len() * 9, "{struck} of {} were cut", late.len());
        }
        job.holds_no_more_than(before).await;
        round(&team, 1000).await;
    });
}

#[test]
fn a_connection_over_tls_may_be_cut_behind_drawn_bytes() {
    cut_connections(Some(12), 4, 1);
}

#[test]
#[ignore = "long: cargo xtask test --long"]
fn a_connection_over_tls_may_be_cut_behind_each_byte() {
    cut_connections(None, 200, 2);
}
