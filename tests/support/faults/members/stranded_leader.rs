//! A leader that alone enters an epoch, and a gateway that falls silent as the leader is back.
//!
//! Two epochs get one number then, in two terms: that of the leader, which nobody else has heard of, and
//! the first one of the others. What the silent gateway has heard confirmed in the second one, the leader
//! and the others must not do again.

use super::event_schedule::Stranding;
use super::members_run::MembersRun;
use gateway::host::Host;
use hier_collectives::ids::GatewayId;
use units::Span;

/// 20 s: all gateways meet within it, and a silent one is lost within it.
const NOTICED_WITHIN: Span = Span::from_secs(20);
/// 3 s: a term begins within it, once a loss is certain. Votes take a round trip, 160 ms at most.
const TERM_WITHIN: Span = Span::from_secs(3);
/// 2 ms: the time between two looks at the leader's term. Its first epoch begins a round trip after the
/// term does, and the leader must be mute by then.
const LOOK_EVERY: Span = Span::from_ms(2);
/// 2 steps: so many are done before and after the leader is back.
const STEPS: u64 = 2;

impl MembersRun {
    /// Lets the first gateway enter an epoch alone: nothing that it sends arrives from the beginning of its
    /// term on. Lets the others go on without it, and takes it in as another gateway falls silent.
    pub async fn strand_leader(&mut self, stranding: Stranding) {
        let Stranding { away, silent, after } = stranding;
        self.mend_all().await;
        self.pass(NOTICED_WITHIN).await;
        let Some(leader) = self.world.first() else { return };
        let (before, changes) = (self.world.membership(leader).await.term, self.judge.changes());
        self.cut_all(|from, to| from == away || to == away);
        let heard = |run: &Self| run.judge.changes() > changes;
        if !self.pass_until(NOTICED_WITHIN, heard).await {
            return self.mend();
        }
        let until = self.world.host.now() + TERM_WITHIN;
        let is_next = |term: Option<u64>| term.is_some() && term != before;
        while !is_next(self.world.membership(leader).await.term) {
            if self.world.host.now() > until {
                return self.mend();
            }
            self.pass(LOOK_EVERY).await;
        }
        self.mend();
        self.cut_all(|from, _| from == leader);
        self.judge.happened("leader stranded");
        self.pass_until_steps(silent).await;
        self.pass(after).await;
        self.mend();
        self.cut_all(|from, _| from == silent);
        self.judge.happened("gateway silent as the leader is back");
        self.pass_until_steps(leader).await;
        self.mend();
    }

    /// Lets time pass until a rank of a gateway has done some more steps, or they take too long.
    async fn pass_until_steps(&mut self, id: GatewayId) {
        let rank = self.world.fabric.gateway(id).ranks.start;
        let enough = self.judge.steps_done(rank) + STEPS;
        let has_done = |run: &Self| run.judge.steps_done(rank) >= enough;
        self.pass_until(Span::from_ns(2 * NOTICED_WITHIN.ns()), has_done).await;
    }

    /// Lets time pass until something is so, but so long at most; returns whether it is.
    async fn pass_until(&mut self, most: Span, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = self.world.host.now() + most;
        while !is_so(self) && self.world.host.now() < until {
            self.pass(Span::from_ms(10)).await;
        }
        is_so(self)
    }
}
