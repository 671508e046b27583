//! The part of one rank in the group and the sends of an attempt.

use crate::faults::deployment::pending::{Outcome, PendingCollectives};
use crate::faults::deployment::world::World;
use crate::faults::judge::collective::CollectiveId;
use crate::faults::judge::side_load::{GroupOrigin, SIDE_TIMEOUT, SideGroup, SideLoad, SideSends};
use gateway::client::{Client, CollectiveSpec, GroupError, Operation, PostError, SendSpec};
use gateway::host::{Host, VirtualHost};
use hier_collectives::ids::{RankId, Tag};
use hier_collectives::post::{Failure, FailureCode};
use std::sync::Arc;
use units::Span;

/// One rank in one attempt.
#[derive(Clone)]
pub(super) struct SideWork {
    pub world: Arc<World>,
    pub host: Arc<VirtualHost>,
    pub client: Client,
    pub job: usize,
    pub attempt: u64,
    pub rank: u32,
}

/// A group that a rank has made, if it is one of its ranks.
type MadeGroup = Result<Option<Client>, GroupError>;

/// Posts a collective on a rank of a job or group; returns it with the contribution.
pub(super) async fn post_on(
    client: &Client,
    world: &World,
    tag: CollectiveId,
    rank: u32,
    timeout: Span,
) -> Result<(Operation, Vec<u8>), PostError> {
    let oracle = &world.oracle;
    let shape = oracle.shape(tag);
    let slots = oracle.collectives().slots(tag, rank);
    let tensor = client.allocate_slots(shape.dtype, slots);
    let mut tensor = tensor.expect("room for a round; the last one's slots came back");
    let contribution = oracle.contribution(tag, rank);
    tensor.write(&contribution);
    let weight = oracle.weight(tag, rank);
    let spec = CollectiveSpec { pattern: shape.pattern, op: shape.op, weight, timeout };
    oracle.posted(tag, rank, world.now());
    let operation = client.post(tensor, spec).await?;
    world.say(tag.job, rank, || format!("posts collective {}: {shape}", operation.sequence()));
    Ok((operation, contribution))
}

impl SideWork {
    /// Begins the group and the sends of the attempt, which are under way then.
    pub async fn begin(&self, under_way: &mut PendingCollectives) {
        let SideLoad { group, sends } =
            self.world.oracle.collectives().side_load(self.job, self.attempt);
        if let Some(sends) = sends {
            under_way.add(self.clone().send_or_receive(sends));
        }
        let Some(group) = group else { return };
        if group.origin != GroupOrigin::Split {
            let work = self.clone();
            under_way.add(async move {
                let made = work.make(&group).await;
                work.use_group(group, made).await
            });
            return;
        }
        // The exchange of colors has its place among the collectives of the job.
        let (client, is_in) = (self.client.clone(), group.ranks.contains(&self.rank));
        let color = is_in.then_some(1);
        let timeout = self.world.scenario.load.timeout;
        let split = async move { client.split_with(color, 0, timeout).await };
        let made = under_way.during(Box::pin(split)).await;
        under_way.add(self.clone().use_group(group, made));
    }

    /// Makes the group by its tag or by counting.
    async fn make(&self, group: &SideGroup) -> MadeGroup {
        let tag = match group.origin {
            GroupOrigin::Tag(_) if !group.ranks.contains(&self.rank) => return Ok(None),
            GroupOrigin::Tag(tag) => Some(tag),
            GroupOrigin::Count | GroupOrigin::Split => None,
        };
        self.client.new_group_with(&group.ranks, tag, SIDE_TIMEOUT).await
    }

    /// Posts the collectives of a group that was made, waits for them, and leaves the group.
    async fn use_group(self, group: SideGroup, made: MadeGroup) -> bool {
        let first = self.world.oracle.collectives().group_collective(self.job, self.attempt, 0);
        let is_made_by_members = matches!(group.origin, GroupOrigin::Tag(_));
        let client = match made {
            Ok(Some(client)) => client,
            Ok(None) => return true,
            Err(error) => {
                let failure = match error {
                    GroupError::Failed(failure) => failure,
                    // Gateways that do not meet are those of a link or gateway that is lost.
                    GroupError::NotMet(_) => Failure::new(FailureCode::TimedOut, error.to_string()),
                    other => Failure::new(FailureCode::BadPost, other.to_string()),
                };
                // All ranks of the job take part in making any other group.
                let of_job = CollectiveId { index: 0, ..first };
                self.refused(if is_made_by_members { first } else { of_job }, &failure);
                return false;
            }
        };
        let mut under_way = PendingCollectives::none();
        for place in 0..group.collectives {
            let tag = CollectiveId { index: first.index + place, ..first };
            match post_on(&client, &self.world, tag, self.rank, SIDE_TIMEOUT).await {
                Ok((operation, contribution)) => {
                    let (world, rank) = (Arc::clone(&self.world), self.rank);
                    under_way.add(Outcome { world, rank, tag, contribution }.wait(operation));
                }
                Err(error) => {
                    self.refused(tag, &error.into_failure());
                    under_way.all().await;
                    return false;
                }
            }
        }
        under_way.all().await
    }

    /// Posts this rank's ends of the sends, if it has any, and waits for them.
    async fn send_or_receive(self, sends: SideSends) -> bool {
        let (order, peer) = match self.rank {
            rank if rank == sends.from => ((0..sends.tags.len() as u32).collect(), sends.to),
            rank if rank == sends.to => (sends.order_of_receiver(), sends.from),
            _ => return true,
        };
        let (world, rank) = (&self.world, self.rank);
        let (oracle, mut under_way) = (&world.oracle, PendingCollectives::none());
        for place in order {
            let tag = oracle.collectives().send(self.job, self.attempt, place);
            let shape = oracle.shape(tag);
            let slots = oracle.collectives().slots(tag, rank);
            let mut tensor = self.client.allocate_slots(shape.dtype, slots).expect("room");
            let contribution = oracle.contribution(tag, rank);
            tensor.write(&contribution);
            let (peer, send_tag) = (RankId(peer), Tag(sends.tags[place as usize]));
            let spec = SendSpec { peer, tag: send_tag, timeout: SIDE_TIMEOUT };
            let called = self.host.now();
            let posted = if rank == sends.from {
                self.client.send(tensor, spec).await
            } else {
                self.client.receive(tensor, spec).await
            };
            match posted {
                Ok(operation) => {
                    // Its timeout counts while both gateways meet.
                    oracle.posted(tag, rank, called);
                    let sequence = operation.sequence();
                    world.say(self.job, rank, || format!("posts send {sequence}: {shape}"));
                    let world = Arc::clone(world);
                    under_way.add(Outcome { world, rank, tag, contribution }.wait(operation));
                }
                Err(error) => {
                    self.refused(tag, &error.into_failure());
                    under_way.all().await;
                    return false;
                }
            }
        }
        under_way.all().await
    }

    /// Tells of an operation that could not be posted.
    fn refused(&self, tag: CollectiveId, failure: &Failure) {
        self.world.say(self.job, self.rank, || format!("cannot begin {tag}: {failure}"));
        self.world.oracle.refused(tag, self.rank, failure, self.host.now());
    }
}
