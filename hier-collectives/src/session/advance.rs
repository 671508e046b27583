//! A segment on its way from partials to result, as far as its inputs let it go.

use super::*;
use crate::plan::Upstream;

impl Session {
    /// A job is done.
    pub fn handle_job_done(&mut self, job: JobId, now: TimeNs) {
        let Some((key, kind)) = self.core.jobs.remove(&job) else {
            return;
        };
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        collective.busy -= 1;
        if collective.failure.is_none() {
            self.core.progress = now;
            let part = &mut collective.parts[usize::from(key.tree.0)];
            let segment = part.segment(key.segment.0);
            match kind {
                Job::Local => {
                    let input = segment.scratch.last().cloned();
                    let weight = collective.posts.values().sum();
                    segment.local = input.map(|view| Input { view, weight });
                    self.advance(key, now);
                    self.send_everywhere(now);
                }
                Job::Partial => self.partial_made(key, now),
                Job::Result => {
                    segment.combining = false;
                    let peers = match part.role.upstream {
                        Upstream::Parent(parent) => vec![parent],
                        Upstream::RootSet(_) => part.remote_operands(self.config.me),
                    };
                    self.consume_inputs(key, &peers);
                    self.result_in_place(key, now);
                }
                Job::Deliver => part.delivered += 1,
            }
        }
        self.tell_if_moving(now);
        self.settle(key.sequence, now);
    }

    /// The partial of a subtree is in our scratch.
    fn partial_made(&mut self, key: SegmentKey, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&key.sequence) else { return };
        let part = &mut collective.parts[usize::from(key.tree.0)];
        let children = part.role.children.clone();
        let weights = children.iter().filter_map(|child| {
            let incoming = collective.incoming.get(&(*child, key.tree, key.segment));
            incoming.map(|incoming| incoming.weight)
        });
        let segment = part.segment(key.segment.0);
        let own = segment.local.as_ref().map_or(0.0, |input| input.weight);
        let weight = weights.sum::<f64>() + own;
        segment.combining = false;
        segment.partial = segment.scratch.last().map(|view| Input { view: view.clone(), weight });
        self.consume_inputs(key, &children);
        self.advance(key, now);
        self.send_everywhere(now);
    }

    /// Takes a segment as far as it can go.
    pub(super) fn advance(&mut self, key: SegmentKey, now: TimeNs) {
        let me = self.config.me;
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let Some(part) = collective.parts.get_mut(usize::from(key.tree.0)) else {
            return;
        };
        let index = key.segment.0;
        if !part.phases.up {
            return self.take_result(key, now);
        }
        if part.segment(index).partial.is_none() {
            if part.needs_partial_job() {
                // Its memory is held until the result is here.
                let open = collective.granted.get(&(me, key.tree)).copied().unwrap_or(0);
                if index >= open {
                    return;
                }
                let children = part.role.children.clone();
                return self.combine(key, Job::Partial, &children);
            }
            part.segment(index).partial = part.segment(index).local.clone();
        }
        while part.local_prefix < part.count()
            && part.segments[part.local_prefix as usize].partial.is_some()
        {
            part.local_prefix += 1;
        }
        let operands = part.remote_operands(me);
        let from_above = match part.role.upstream {
            Upstream::Parent(parent) => {
                collective.incoming.get(&(parent, key.tree, key.segment)).is_some_and(|i| i.landed)
            }
            Upstream::RootSet(_) => false,
        };
        let streamed = operands.iter().any(|peer| {
            let incoming = collective.incoming.get(&(*peer, key.tree, key.segment));
            incoming.is_some_and(|i| i.landed && i.landed_in.is_none())
        });
        if from_above || streamed {
            self.result_in_place(key, now);
        } else if !matches!(part.role.upstream, Upstream::Parent(_)) {
            self.combine(key, Job::Result, &operands);
        }
    }

    /// What came down of a broadcast: in place, or to be copied from where it landed before the
    /// local ranks had posted.
    fn take_result(&mut self, key: SegmentKey, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&key.sequence) else { return };
        let slot = collective.result_slot(key.sequence);
        let part = &mut collective.parts[usize::from(key.tree.0)];
        let Upstream::Parent(parent) = part.role.upstream else { return };
        let incoming = collective.incoming.get(&(parent, key.tree, key.segment));
        let Some(from) = incoming.filter(|i| i.landed).and_then(|i| i.landed_in.clone()) else {
            return;
        };
        if from.buffer == slot {
            return self.result_in_place(key, now);
        }
        let to = vec![part.view(key.segment.0, slot)];
        let segment = part.segment(key.segment.0);
        if !segment.result && !std::mem::replace(&mut segment.combining, true) {
            collective.busy += 1;
            let job = self.core.job(key, Job::Result);
            self.core.actions.push_back(Action::Copy { job, from, to });
        }
    }

    /// Reduces our operand and the landed ones of `peers` in gateway order, once all are here.
    pub(super) fn combine(&mut self, key: SegmentKey, kind: Job, peers: &[GatewayId]) {
        let me = self.config.me;
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let Some((_, descriptor)) = collective.descriptor else {
            return;
        };
        let slot = collective.result_slot(key.sequence);
        let part = &mut collective.parts[usize::from(key.tree.0)];
        let segment = &part.segments[key.segment.0 as usize];
        let own = if kind == Job::Partial { &segment.local } else { &segment.partial };
        let Some(own) = own.clone() else { return };
        if segment.combining || segment.result {
            return;
        }
        let mut operands = BTreeMap::from([(me, own)]);
        for peer in peers {
            let incoming = collective.incoming.get(&(*peer, key.tree, key.segment));
            let Some(incoming) = incoming.filter(|incoming| incoming.landed) else {
                return;
            };
            let Some(view) = incoming.landed_in.clone() else {
                return;
            };
            operands.insert(*peer, Input { view, weight: incoming.weight });
        }
        let out = if kind == Job::Partial {
            let range = part.part.segment(key.segment.0);
            let out = self.core.scratch(range.end - range.start);
            part.segment(key.segment.0).scratch.push(out.clone());
            out
        } else {
            part.view(key.segment.0, slot)
        };
        part.segment(key.segment.0).combining = true;
        collective.busy += 1;
        let job = self.core.job(key, kind);
        let (op, dtype) = (descriptor.op, descriptor.dtype);
        let inputs = operands.into_values().collect();
        self.core.actions.push_back(Action::Reduce { job, op, dtype, inputs, out });
    }

    /// Landed inputs of a finished job: their memory is free, their senders may forget them.
    fn consume_inputs(&mut self, key: SegmentKey, peers: &[GatewayId]) {
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let mut receipts = Vec::new();
        for from in peers {
            let incoming = collective.incoming.get_mut(&(*from, key.tree, key.segment));
            let Some(incoming) = incoming else { continue };
            if let Some(view) = &incoming.landed_in {
                self.core.release(view);
            }
            if let Some(peer) = self.peers.get_mut(from) {
                peer.early_in -= incoming.early_bytes;
            }
            incoming.early_bytes = 0;
            if !std::mem::replace(&mut incoming.receipted, true) {
                receipts.push(*from);
            }
        }
        for from in receipts {
            self.send_receipt(from, key);
        }
    }

    /// A segment's result is in the first slot for it; or none is due here along this tree, and the
    /// partial is with the parent.
    pub(super) fn result_in_place(&mut self, key: SegmentKey, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let ranks = collective.result_ranks();
        let part = &mut collective.parts[usize::from(key.tree.0)];
        if std::mem::replace(&mut part.segment(key.segment.0).result, true) {
            return;
        }
        while part.result_prefix < part.count() && part.segments[part.result_prefix as usize].result
        {
            part.result_prefix += 1;
        }
        // Results along a tree of their own are in place here as those of the tree before it are.
        let elsewhere = part.only_hands_up() || part.follows && part.is_top();
        let slot = |rank: RankId| part.view(key.segment.0, Buffer::Result(key.sequence, rank));
        let mut views = ranks.into_iter().filter(|_| !elsewhere).map(slot);
        let (from, to) = (views.next(), views.collect::<Vec<View>>());
        match from {
            Some(from) if !to.is_empty() => {
                collective.busy += 1;
                let job = self.core.job(key, Job::Deliver);
                self.core.actions.push_back(Action::Copy { job, from, to });
            }
            _ => part.delivered += 1,
        }
        let made = part.phases.up && part.is_top();
        let behind = TreeIndex(key.tree.0 + 1);
        let follows = collective.parts.get(usize::from(behind.0)).is_some_and(|part| part.follows);
        self.release_if_done(key, now);
        if made && follows {
            return self.result_in_place(SegmentKey { tree: behind, ..key }, now);
        }
        self.send_everywhere(now);
    }

    /// Frees a segment's partials once its result is in and whoever adds them has them.
    pub(super) fn release_if_done(&mut self, key: SegmentKey, now: TimeNs) {
        let Some(collective) = self.live.get_mut(&key.sequence) else {
            return;
        };
        let (several, class) = (collective.posts.len() > 1, collective.class());
        let part = &mut collective.parts[usize::from(key.tree.0)];
        let scratch = part.take_done(key.segment.0);
        for view in &scratch {
            self.core.release(view);
        }
        if several && let Some(local) = scratch.first() {
            self.core.partial_bytes[class as usize] -= local.range.end;
            self.start_locals(now);
        }
    }
}
