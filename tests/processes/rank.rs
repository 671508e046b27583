//! A trainer that all-reduces for ever, checks every result itself, and after a failure posts
//! again as a trainer would: in the next epoch, attached anew when its gateway is gone.
//!
//! One line of output for each event: `attached EPOCH`, `done EPOCH SEQUENCE MILLIS DIGEST`,
//! `failed EPOCH MILLIS TEXT`, `wrong TEXT`.

use clap::Args;
use gateway::client::{AttachOptions, Client, DEFAULT_TIMEOUT, GatewayAddress};
use hier_collectives::codec::fnv1a_hash;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use units::Span;

#[derive(Debug, Args)]
pub struct Rank {
    #[arg(long)]
    socket: PathBuf,
    /// The job's token, hexadecimal
    #[arg(long)]
    token: PathBuf,
    #[arg(long)]
    rank: u32,
    #[arg(long)]
    world_size: u32,
    #[arg(long)]
    elements: u64,
}

#[derive(Debug, Default)]
struct Steps {
    /// Steps of this rank.
    mine: i64,
    /// Sum of the steps of all ranks in the last result.
    last_sum: i64,
}

/// 200 ms between attempts to attach, and to post after a failure within an epoch.
const RETRY: Duration = Duration::from_millis(200);
/// 120 s for the gateway to begin an epoch; after that the rank attaches anew.
const PATIENCE: Span = Span::from_secs(120);

impl Rank {
    pub fn run(self) -> ExitCode {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let text = std::fs::read_to_string(&self.token).expect("the token's file");
        let mut token = [0; 32];
        for (byte, pair) in token.iter_mut().zip(text.trim().as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(pair).expect("hexadecimal");
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal");
        }
        runtime.expect("a runtime").block_on(self.train(token))
    }

    /// Attaches and all-reduces without end.
    async fn train(&self, token: [u8; 32]) -> ! {
        let address = GatewayAddress::Socket(self.socket.clone());
        let mut steps = Steps::default();
        loop {
            let attach = AttachOptions {
                epoch_timeout: PATIENCE,
                ..AttachOptions::new("train", token, self.rank, 32 * self.elements + 4096)
            };
            if let Ok(client) = Client::attach(&address, attach).await {
                println!("attached {}", client.epoch());
                self.all_reduce_until_lost(&client, &mut steps).await;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// All-reduces and prints outcomes until the connection to the gateway is lost.
    async fn all_reduce_until_lost(&self, client: &Client, steps: &mut Steps) {
        let mut tensor = client.allocate(Dtype::I64, self.elements).expect("room for one");
        loop {
            steps.mine += 1;
            let contribution = self.contribution(steps.mine);
            let contribution: &[u8] = bytemuck::cast_slice(&contribution);
            tensor.write(contribution);
            let (begun, epoch) = (Instant::now(), client.epoch());
            let posted = client.all_reduce_with(tensor, ReduceOp::Sum, 1.0, DEFAULT_TIMEOUT).await;
            let mut operation = match posted {
                Ok(operation) => operation,
                Err(error) => {
                    let failure = error.into_failure();
                    return println!("failed {epoch} 0 {} {failure}", failure.code as u8);
                }
            };
            let (outcome, sequence) = (operation.ready().await, operation.sequence());
            let millis = begun.elapsed().as_millis();
            match &outcome {
                Ok(_) => {
                    let bytes = operation.result();
                    if let Some(wrong) = self.check_result(&bytes, steps) {
                        println!("wrong epoch {epoch}, collective {sequence}: {wrong}");
                    }
                    println!("done {epoch} {sequence} {millis} {:016x}", fnv1a_hash(&bytes));
                }
                Err(failure) => {
                    println!("failed {epoch} {millis} {} {failure}", failure.code as u8);
                }
            }
            let Ok(reclaimed) = operation.reclaim().await else { return };
            if reclaimed.read() != contribution {
                println!("wrong epoch {epoch}, collective {sequence}: the contribution changed");
            }
            tensor = reclaimed;
            let again = Instant::now() + RETRY;
            while outcome.is_err() && client.epoch() == epoch && Instant::now() < again {
                tokio::time::sleep(RETRY / 20).await;
            }
        }
    }

    /// Returns the contribution of a step: element `i` is a pattern of rank and `i`, plus `step *
    /// (2i + 1)`. The first element of a result then tells the steps that were added, and every
    /// other element must agree.
    fn contribution(&self, step: i64) -> Vec<i64> {
        (0..self.elements).map(|i| pattern(self.rank, i).wrapping_add(step_part(step, i))).collect()
    }

    /// Returns what is wrong with a result; `None` if it is right.
    fn check_result(&self, bytes: &[u8], steps: &mut Steps) -> Option<String> {
        let result: Vec<i64> = bytemuck::pod_collect_to_vec(bytes);
        let ranks = || 0..self.world_size;
        let base = |i| ranks().fold(0i64, |sum, rank| sum.wrapping_add(pattern(rank, i)));
        let added = result[0].wrapping_sub(base(0));
        if added <= steps.last_sum {
            let last = steps.last_sum;
            return Some(format!("steps add up to {added}, to {last} in the result before"));
        }
        steps.last_sum = added;
        let right = |i: u64| base(i).wrapping_add(step_part(added, i));
        let off = (0..).zip(&result).find(|(i, got)| **got != right(*i));
        off.map(|(i, got)| format!("element {i} is {got}, {} expected", right(i)))
    }
}

/// Returns the part of an element that no step changes.
fn pattern(rank: u32, index: u64) -> i64 {
    let z = (index ^ (u64::from(rank) << 40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((z ^ (z >> 29)) >> 8).cast_signed()
}

/// Returns the part of an element that a step adds.
fn step_part(step: i64, index: u64) -> i64 {
    step.wrapping_mul((2 * index + 1).cast_signed())
}
