//! Fabrics in a world: operators sign them, gateways refuse some, and some start with files of their own.

use super::world::{Event, FAULTS_MS, World};
use super::world_parts::Gateway;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::membership::{FabricVersion, SignedFabric};
use std::collections::BTreeSet;
use units::Span;

/// The time within which the others go on without a gateway that has another fabric, and with it once it
/// has theirs.
const SETTLED_MS: u64 = 20_000;
/// The time for which they are watched then.
const WATCHED_MS: u64 = 8_000;

impl World {
    /// Lets an operator offer a fabric of a new version, or now and then another one of the last, to a
    /// gateway. Some gateways may refuse it.
    pub(super) fn sign_fabric(&mut self) {
        let count = self.gateways.len() as u64 - 1;
        let gateway = self.random.range(0, count) as usize;
        self.signed += u64::from(self.signed == 0 || self.random.chance(80));
        let digest = [self.random.next_u64() as u8; 32];
        let version = FabricVersion { number: self.signed, digest };
        if self.random.chance(30) {
            let refusing = self.random.range(0, count) as usize;
            self.refusing.extend((refusing != gateway).then_some((version, refusing)));
        }
        let fabric = SignedFabric { version, bytes: [1].into() };
        let within = Span::from_secs(self.random.range(1, 6));
        let boot = self.gateways[gateway].boot;
        self.trace.push(format!("{} {version:?} at {gateway}", self.now_ms));
        self.tally.offers += 1;
        self.schedule(0, Event::FabricChecked { gateway, boot, fabric, within });
    }

    /// Offers a fabric to a gateway that has checked it, which must not take an old one, or refuses it.
    pub(super) fn judge_fabric(&mut self, gateway: usize, fabric: SignedFabric, within: Span) {
        let version = fabric.version;
        if self.refusing.contains(&(version, gateway)) {
            self.tally.refusals += 1;
            self.trace.push(format!("{} {gateway} refuses {version:?}", self.now_ms));
            return self.with(gateway, |agreement, _| agreement.refuse_fabric(version));
        }
        self.gateways[gateway].checked.insert(version);
        let mut is_old = false;
        self.with(gateway, |agreement, now| {
            let is_newer = version > agreement.newest_fabric();
            is_old = agreement.offer_fabric(fabric, within, now).is_ok() && !is_newer;
        });
        if is_old {
            self.wrong.push(format!("{gateway} takes an old fabric"));
        }
    }

    /// Returns the version of the file that a gateway starts with: now and then another one than the others
    /// have, which nobody has signed.
    pub(super) fn version_at_start(&mut self) -> FabricVersion {
        if self.now_ms >= FAULTS_MS || !self.random.chance(15) {
            return FabricVersion::default();
        }
        self.tally.other_files += 1;
        // Below the last one or above, or of the same number.
        self.other_version(1)
    }

    /// Returns a version of at least this number that no signed fabric has.
    fn other_version(&mut self, least: u64) -> FabricVersion {
        let number = self.random.range(least, self.signed + 2);
        FabricVersion { number, digest: [self.random.next_u64() as u8; 32] }
    }

    /// Ends what keeps gateways from having the fabric of the others.
    pub(super) fn mend_fabrics(&mut self) {
        self.refusing.clear();
        for index in 0..self.gateways.len() {
            if self.gateways[index].of_file != FabricVersion::default() {
                self.stop(index);
            }
            self.with(index, |agreement, _| agreement.reconsider_fabrics());
        }
    }

    /// Starts a gateway with a file of its own, without which the others go on undisturbed if they may, and
    /// then with the common one again.
    pub(super) fn run_with_another_fabric(&mut self) {
        let count = self.fabric.ranked_region_count() as u64 - 1;
        let region = RegionId(self.random.range(0, count) as u16);
        let gateways = self.fabric.region(region).gateways.clone();
        let other = usize::from(gateways.start)
            + self.random.range(0, u64::from(gateways.end - gateways.start) - 1) as usize;
        // Those that must know what was done last do. A witness may have voted for others meanwhile.
        let knows = |gateway: &Gateway| gateway.witness.is_some() || gateway.is_in_epoch;
        let others: BTreeSet<RegionId> =
            (0..=count as u16).map(RegionId).filter(|id| *id != region).collect();
        let may_go_on = self.fabric.is_quorum(&others) && self.gateways.iter().all(knows);
        if !self.wrong.is_empty() || !may_go_on {
            return;
        }
        let version = self.other_version(self.signed + 1);
        self.restart_with(other, version);
        let left = |world: &Self| -> u64 {
            let of_others = |(id, _): &(GatewayId, _)| !gateways.contains(&id.0);
            let with_id = world.fabric.gateway_ids().zip(&world.gateways);
            with_id.filter(of_others).map(|(_, gateway)| gateway.left).sum()
        };
        let before = left(self);
        for (id, gateway) in self.fabric.gateway_ids().zip(&self.gateways) {
            let regions = gateway.term.as_ref().map(|term| &term.regions);
            let goes_on = regions == Some(&others);
            let is_other = gateways.contains(&id.0);
            let is_right =
                gateway.witness.is_some() || if is_other { regions.is_none() } else { goes_on };
            if !is_right {
                self.wrong.push(format!("{id} is in {regions:?} while {other} has another fabric"));
            }
        }
        self.run_until(self.now_ms + WATCHED_MS);
        if left(self) != before {
            self.wrong.push(format!("others are disturbed while {other} has another fabric"));
        }
        self.restart_with(other, FabricVersion::default());
        self.judge_whole("with the same fabric");
        self.tally.left_out += 1;
    }

    /// Starts a gateway again with a file of this version, and lets all settle.
    fn restart_with(&mut self, index: usize, version: FabricVersion) {
        self.stop(index);
        self.start_with(index, version);
        self.run_until(self.now_ms + SETTLED_MS);
    }
}
