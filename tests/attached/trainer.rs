//! A rank that attaches as from another host, and one at the gateway's own.
//!
//! To the gateway, a run lasts from the post until the gateway has all bytes: it answers a request that
//! is sent behind them. Only then the other rank posts, so that no copy for it is counted. From the
//! gateway, a run lasts from the other rank's post until the trainer has all bytes.

use super::runs::{Instants, Runs, Way};
use gateway::client::{
    AttachOptions, AttachTlsGateway, Client, GatewayAddress, Tensor, TlsAddress,
};
use gateway::host::{Host as _, RealHost, current_thread_runtime};
use gateway::local::token_file::load_token_file;
use hier_collectives::descriptor::{Counts, Dtype, SlotElements};
use hier_collectives::ids::RankId;
use std::error::Error;
use std::path::PathBuf;

/// The two ranks of a gateway.
#[derive(Debug, clap::Args)]
pub struct Trainer {
    /// Address at which the gateway accepts trainers of other hosts
    #[arg(long)]
    attach: TlsAddress,
    /// Unix socket of the gateway
    #[arg(long)]
    socket: PathBuf,
    /// The folder that `landbridge certs` made
    #[arg(long)]
    keys: PathBuf,
    #[command(flatten)]
    runs: Runs,
}

/// The job of both ranks.
const JOB: &str = "train";

/// The rank that attaches as from another host.
const REMOTE: RankId = RankId(0);
/// The rank at the gateway's own host.
const LOCAL: RankId = RankId(1);

/// More bytes of an arena than those of a run, for the barrier and whole cache lines.
const SPARE_BYTES: u64 = 4096;

/// Two attached ranks, and the numbers of elements that each contributes.
struct Pair {
    remote: Client,
    local: Client,
    counts: Counts,
}

impl Trainer {
    /// Moves the bytes of all runs, and checks that those of the last are right.
    pub fn move_bytes(&self) -> Result<Instants, Box<dyn Error>> {
        current_thread_runtime()?.block_on(self.move_all())
    }

    async fn move_all(&self) -> Result<Instants, Box<dyn Error>> {
        let token = load_token_file(&self.keys.join("train.token"))?;
        let bytes = self.runs.size.get();
        let options = |rank: RankId| AttachOptions::new(JOB, token, rank.0, bytes + SPARE_BYTES);
        let far = AttachTlsGateway::new(self.attach.clone(), self.keys.join("ca.pem"));
        let (far, near) = (GatewayAddress::Tls(far), GatewayAddress::Socket(self.socket.clone()));
        let remote = Client::attach(&far, options(REMOTE));
        let (remote, local) = tokio::join!(remote, Client::attach(&near, options(LOCAL)));
        let (remote, local) = (remote?, local?);
        let giver = if self.runs.way == Way::Up { REMOTE } else { LOCAL };
        let given = |rank: RankId| if rank == giver { bytes } else { 0 };
        let slots = |rank| SlotElements { contribution: given(rank), result: bytes - given(rank) };
        let far = remote.allocate_slots(Dtype::U8, slots(REMOTE))?;
        let near = local.allocate_slots(Dtype::U8, slots(LOCAL))?;
        let pair = Pair { remote, local, counts: Counts::ByRank([bytes, 0].into()) };
        let written = self.runs.touched_memory();
        match self.runs.way {
            Way::Up => pair.move_up((far, near), &written, self.runs.iterations).await,
            Way::Down => pair.move_down((far, near), &written, self.runs.iterations).await,
        }
    }
}

impl Pair {
    /// Gathers the remote rank's bytes at the local one, run after run.
    async fn move_up(
        &self,
        (mut far, mut near): (Tensor, Tensor),
        written: &[u8],
        iterations: u32,
    ) -> Result<Instants, Box<dyn Error>> {
        far.write(written);
        let mut instants = Instants::of_beginning_runs();
        for _ in 0..iterations {
            instants.posted_ns.push(RealHost.now().ns());
            let given = self.remote.gather(far, LOCAL, self.counts.clone()).await?;
            self.remote.store().set("behind", b"the bytes").await?;
            instants.ready_ns.push(RealHost.now().ns());
            let mut gathered = self.local.gather(near, LOCAL, self.counts.clone()).await?;
            gathered.ready().await?;
            if instants.ready_ns.len() == iterations as usize {
                check_bytes(&gathered.result(), written)?;
            }
            (far, near) = (given.reclaim().await?, gathered.reclaim().await?);
        }
        Ok(instants)
    }

    /// Scatters the local rank's bytes to the remote one, run after run.
    async fn move_down(
        &self,
        (mut far, mut near): (Tensor, Tensor),
        written: &[u8],
        iterations: u32,
    ) -> Result<Instants, Box<dyn Error>> {
        near.write(written);
        let mut instants = Instants::of_beginning_runs();
        for _ in 0..iterations {
            let mut got = self.remote.scatter(far, LOCAL, self.counts.clone()).await?;
            self.remote.store().set("behind", b"the post").await?;
            instants.posted_ns.push(RealHost.now().ns());
            let scattered = self.local.scatter(near, LOCAL, self.counts.clone()).await?;
            got.ready().await?;
            instants.ready_ns.push(RealHost.now().ns());
            if instants.ready_ns.len() == iterations as usize {
                check_bytes(&got.result(), written)?;
            }
            (far, near) = (got.reclaim().await?, scattered.reclaim().await?);
        }
        Ok(instants)
    }
}

/// Fails unless all bytes that came are those that were sent.
fn check_bytes(came: &[u8], written: &[u8]) -> Result<(), Box<dyn Error>> {
    if came == written { Ok(()) } else { Err("other bytes came than were sent".into()) }
}
