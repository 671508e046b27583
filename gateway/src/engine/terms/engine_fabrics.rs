//! The engine's part in changes of the fabric: signed fabrics are judged, travel with the agreement on
//! terms, and come into force when a term begins.

use crate::engine::engine_task::Engine;
use crate::events::{
    CheckedFabric, Event, FabricAsked, FabricChange, FabricChangeError, FabricChangeReply,
    FabricChangeReport, FabricJudge, FabricRefusal,
};
use crate::host::TaskPanicked;
use crate::observe::fabric_report::{
    FabricVersionReport, OtherFabricReport, WaitingFabricReport, fabric_digest_text,
    fabric_version_text,
};
use crate::warn_if_due;
use crate::warnings::WarningCause;
use hier_collectives::membership::{FabricVersion, SignedFabric, TermAgreement};
use hier_collectives::topology::{Fabric, Link};
use std::sync::Arc;
use tokio::sync::oneshot;
use tracing::info;
use units::{Span, TimeNs};

impl Engine {
    /// Handles a request of an operator about the fabric, or a fabric that was judged.
    pub(in crate::engine) fn handle_fabric_event(&mut self, event: Event, now: TimeNs) {
        match event {
            Event::ChangeFabric { change, reply } => self.change_fabric(change, reply),
            Event::FabricVersion(reply) => drop(reply.send(self.fabric_version_report())),
            Event::FabricJudged { asked, judged } => self.handle_fabric_judged(asked, judged, now),
            _ => unreachable!("an event of another kind"),
        }
    }

    /// Has a fabric of an operator judged, which then begins to come into force.
    fn change_fabric(&mut self, change: FabricChange, reply: FabricChangeReply) {
        if self.terms.is_none() {
            let is_witness = self.witness.is_some();
            let error = if is_witness {
                FabricChangeError::AtWitness
            } else {
                FabricChangeError::AllNeeded
            };
            let _ = reply.send(Err(error));
            return;
        }
        let FabricChange { text, signature, within, dry_run } = change;
        let asked = FabricAsked::Operator { within, dry_run, reply };
        self.judge_fabric(asked, move |judge, jobs| judge.judge_file(&text, &signature, jobs));
    }

    /// Has a fabric of another gateway judged, unless another one is being judged. Others send it again.
    pub(in crate::engine) fn check_fabric(&mut self, fabric: SignedFabric, within: Span) {
        let version = fabric.version;
        if self.fabrics.is_judging {
            return;
        }
        self.fabrics.is_judging = true;
        let asked = FabricAsked::Peer { version, within };
        self.judge_fabric(asked, move |judge, jobs| judge.judge_signed(&fabric, jobs));
    }

    /// Judges a fabric on a blocking thread, since a plan takes a while. The result comes back as an event.
    fn judge_fabric(
        &self,
        asked: FabricAsked,
        judge: impl FnOnce(&dyn FabricJudge, usize) -> Result<CheckedFabric, FabricRefusal>
        + Send
        + 'static,
    ) {
        let (by, jobs) = (Arc::clone(&self.fabrics.judge), self.served_job_count());
        let (events, host) = (self.shared.events.clone(), &self.shared.host);
        let (done, judged) = oneshot::channel();
        let judging = host.run_blocking(Box::new(move || {
            let _ = done.send(judge(&*by, jobs).map(Box::new));
        }));
        host.spawn(Box::pin(async move {
            let event = match (judging.await, judged.await) {
                (Ok(()), Ok(judged)) => Event::FabricJudged { asked, judged },
                (Err(TaskPanicked), _) | (_, Err(_)) => Event::TaskPanicked,
            };
            let _ = events.send(event).await;
        }));
    }

    /// Returns the number of jobs that the region file has.
    fn served_job_count(&self) -> usize {
        self.jobs.values().filter(|job| !job.removed).count()
    }

    /// Takes up a fabric that was judged, or says why it is refused.
    fn handle_fabric_judged(
        &mut self,
        asked: FabricAsked,
        judged: Result<Box<CheckedFabric>, FabricRefusal>,
        now: TimeNs,
    ) {
        match asked {
            FabricAsked::Operator { within, dry_run, reply } => {
                let judged = judged.map_err(FabricChangeError::from);
                let answer =
                    judged.and_then(|fabric| self.apply_fabric(*fabric, (within, dry_run), now));
                let _ = reply.send(answer);
            }
            FabricAsked::Peer { version, within } => {
                self.fabrics.is_judging = false;
                match judged {
                    Ok(fabric) => self.offer_fabric(*fabric, within, now),
                    Err(refusal) => self.refuse_fabric(version, refusal, now),
                }
            }
        }
    }

    /// Begins to put an operator's fabric in force, unless it is that already or only to be checked.
    fn apply_fabric(
        &mut self,
        fabric: CheckedFabric,
        (within, dry_run): (Span, bool),
        now: TimeNs,
    ) -> Result<FabricChangeReport, FabricChangeError> {
        let terms = self.terms.as_ref().ok_or(FabricChangeError::AllNeeded)?;
        let version = fabric.signed.version;
        let changes = fabric_changes(&self.fabric, &fabric.fabric);
        let newest = terms.newest_fabric();
        let is_known = version == newest;
        if !is_known && version.number == newest.number {
            return Err(FabricChangeError::OtherText(version.number));
        }
        if !is_known {
            terms.check_offered_version(version)?;
        }
        if !is_known && !dry_run {
            let number = version.number;
            info!(
                version = number,
                "version {number} of the fabric comes, as an operator asks here"
            );
            self.offer_fabric(fabric, within, now);
        }
        Ok(FabricChangeReport { changes, fabric: self.fabric_version_report() })
    }

    /// Hands a fabric that this gateway could put in force to the agreement.
    fn offer_fabric(&mut self, fabric: CheckedFabric, within: Span, now: TimeNs) {
        let Some(terms) = &mut self.terms else { return };
        let signed = fabric.signed.clone();
        let (before, version) = (terms.newest_fabric(), signed.version);
        // One that came meanwhile may be newer.
        if terms.offer_fabric(signed, within, now).is_ok() {
            self.fabrics.refused = None;
            self.fabrics.keep(fabric, terms);
            if before.number == version.number {
                let [new, old] = [version, before].map(fabric_version_text);
                let is_due =
                    self.metrics.warnings.is_due(WarningCause::Files, "texts of a version", now);
                warn_if_due!(
                    is_due,
                    "the fabric has two texts: {new} replaces {old}; apply one with a higher `version`"
                );
            }
        }
        self.follow_terms("", now);
    }

    /// Lets a fabric that was refused be judged again, since files were read anew.
    pub(in crate::engine) fn reconsider_fabrics(&mut self, now: TimeNs) {
        if self.fabrics.refused.take().is_some()
            && let Some(terms) = &mut self.terms
        {
            terms.reconsider_fabrics();
            self.follow_terms("", now);
        }
    }

    /// Notes that a newer fabric of another gateway cannot come into force. It is judged again when it comes
    /// again, unless the CA has signed just this one.
    fn refuse_fabric(&mut self, version: FabricVersion, refusal: FabricRefusal, now: TimeNs) {
        let number = version.number;
        let is_due =
            self.metrics.warnings.is_due(WarningCause::Files, "version of the fabric", now);
        warn_if_due!(
            is_due,
            "version {number} of the fabric, which another gateway has, cannot come into force: {refusal}"
        );
        if refusal.is_of_signed_version() {
            if let Some(terms) = &mut self.terms {
                terms.refuse_fabric(version);
            }
        } else if self.fabrics.refused.is_some() {
            return;
        }
        self.fabrics.refused = Some((version, refusal));
    }

    /// Puts the fabric of a term in force that this gateway enters: links, shares and plans follow. All
    /// sessions of the jobs are suspended.
    pub(in crate::engine) fn adopt_fabric(&mut self, version: FabricVersion) {
        if version == self.fabrics.version {
            return;
        }
        // The agreement enters a term only with a fabric that it was offered.
        let Some(checked) = self.fabrics.checked.get(&version).cloned() else { return };
        let number = version.number;
        let changes = fabric_changes(&self.fabric, &checked.fabric).join("; ");
        info!(version = number, "version {number} of the fabric is in force: {changes}");
        let fabric = Arc::clone(&checked.fabric);
        if let Some(terms) = &mut self.terms {
            terms.replace_fabric(Arc::clone(&fabric));
        }
        self.links.replace_fabric(Arc::clone(&fabric), &checked.policies);
        self.shared.peers.replace_fabric(Arc::clone(&fabric));
        self.shared.bound = Arc::default();
        let of_data = Arc::new(fabric.without_witness());
        let jobs = self.served_job_count();
        let partials = self.fabrics.judge.partials_of_job(&fabric, &checked.plan, jobs);
        for job in self.jobs.values_mut() {
            job.replace_fabric(&of_data, &checked.plan, partials);
        }
        self.fabric = fabric;
        self.fabrics.version = version;
        self.keep_fabric(checked.signed.clone());
        self.fabrics.in_force = Some(checked);
        self.compute_bound();
        self.apply_link_rate_limits();
    }

    /// Keeps a fabric for the next start, on a blocking thread.
    fn keep_fabric(&self, signed: SignedFabric) {
        let (judge, host) = (Arc::clone(&self.fabrics.judge), &self.shared.host);
        let (warnings, clock) = (self.metrics.warnings.clone(), Arc::clone(host));
        let keeping = host.run_blocking(Box::new(move || {
            if let Err(why) = judge.keep(&signed) {
                let is_due = warnings.is_due(WarningCause::Files, "kept fabric", clock.now());
                let number = signed.version.number;
                warn_if_due!(
                    is_due,
                    "version {number} of the fabric is in force and not kept for the next start, {why}: put the \
                     file and its signature in place by hand, or let the gateway write there"
                );
            }
        }));
        // A panic there ends no gateway.
        host.spawn(Box::pin(async move {
            let _ = keeping.await;
        }));
    }

    /// Returns the versions of the fabric, as this gateway sees them.
    pub(in crate::engine) fn fabric_version_report(&self) -> FabricVersionReport {
        let version = self.fabrics.version;
        let newest = self.terms.as_ref().map(|terms| (terms.newest_fabric(), terms));
        let waiting = newest.filter(|(newest, _)| *newest != version).map(|(newest, terms)| {
            let missing = terms.gateways_without_newest_fabric().into_iter();
            WaitingFabricReport {
                version: newest.number,
                digest: fabric_digest_text(newest),
                missing: missing.map(|id| self.fabric.gateway(id).name.clone()).collect(),
            }
        });
        let apart = self.terms.iter().flat_map(TermAgreement::gateways_apart);
        let apart = apart.map(|(id, version)| OtherFabricReport {
            gateway: self.fabric.gateway(id).name.clone(),
            version: version.number,
            digest: fabric_digest_text(version),
        });
        let refused = self.fabrics.refused.as_ref();
        FabricVersionReport {
            version: version.number,
            digest: fabric_digest_text(version),
            waiting,
            refused: refused.map(|(of, why)| format!("version {}: {why}", of.number)),
            apart: apart.collect(),
        }
    }
}

/// Returns what another fabric changes, a line for each link and port. Both have the same links and
/// gateways.
fn fabric_changes(before: &Fabric, after: &Fabric) -> Vec<String> {
    let name = |link: &Link| [link.a, link.b].map(|region| &*before.region(region).name).join("-");
    let links = before.links().iter().zip(after.links()).filter(|(was, is)| was != is);
    let links = links.map(|(was, is)| {
        let values = [
            (was.rate != is.rate).then(|| format!("rate {} to {}", was.rate, is.rate)),
            (was.rtt != is.rtt).then(|| format!("rtt {} to {}", was.rtt, is.rtt)),
            (was.loss != is.loss).then(|| format!("loss {} to {}", was.loss, is.loss)),
        ];
        format!(
            "link {}: {}",
            name(was),
            values.into_iter().flatten().collect::<Vec<_>>().join(", ")
        )
    });
    let gateways = before.gateways().iter().zip(after.gateways());
    let ports = gateways.filter_map(|(was, is)| {
        let (old, new) = was.wan.zip(is.wan).filter(|(old, new)| old != new)?;
        let values = [
            (old.egress != new.egress).then(|| format!("egress {} to {}", old.egress, new.egress)),
            (old.ingress != new.ingress)
                .then(|| format!("ingress {} to {}", old.ingress, new.ingress)),
        ];
        let values = values.into_iter().flatten().collect::<Vec<_>>().join(", ");
        Some(format!("gateway {}: {values}", was.name))
    });
    links.chain(ports).collect()
}
