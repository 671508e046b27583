//! Judges signed fabrics by what the gateway runs with: who has signed, what a restart alone can change,
//! and whether plan and memory suffice.

use super::kept_fabric::KeptFabric;
use super::memory_budget::{least_memory_budget, partials_memory_budget, reserved_memory_budget};
use super::spec::GatewaySpec;
use crate::config::{FabricFile, sha256_of_fabric};
use crate::events::{CheckedFabric, FabricJudge, FabricRefusal};
use crate::wan::connect::peer_addresses::PeerAddresses;
use crate::wan::connect::tls::{Credentials, FabricSignature, FabricSignatureError};
use crate::wan::link::controller_policy::LinkPolicies;
use hier_collectives::ids::{GatewayId, RegionId};
use hier_collectives::membership::{FabricVersion, SignedFabric};
use hier_collectives::plan::{self, Plan};
use hier_collectives::topology::{Fabric, Quorum};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use tokio::sync::watch;
use units::ByteCount;

/// The name of a fabric in faults of its text, which has come without a file.
const FABRIC_NAME_IN_FAULTS: &str = "fabric.toml";

/// The judge of a running gateway.
pub(super) struct RunningFabricJudge {
    fabric: Arc<Fabric>,
    policies: LinkPolicies,
    addresses: BTreeMap<GatewayId, PeerAddresses>,
    lan_addresses: BTreeMap<GatewayId, PeerAddresses>,
    mtu_pinned: bool,
    me: GatewayId,
    /// Its segments stay as long as they are.
    plan: Plan,
    memory: ByteCount,
    /// Number of networks (WAN and LAN) on which the gateway has lanes.
    networks: usize,
    /// The CA that the gateway trusts now.
    credentials: watch::Receiver<Arc<Credentials>>,
    kept: Option<Arc<KeptFabric>>,
    signed: Option<SignedFabric>,
}

impl RunningFabricJudge {
    /// Makes the judge of a gateway that has lanes on `networks` networks.
    pub(super) fn of_spec(
        spec: &GatewaySpec,
        networks: usize,
        credentials: &watch::Receiver<Arc<Credentials>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            fabric: Arc::clone(&spec.fabric),
            policies: spec.policies.clone(),
            addresses: spec.addresses.clone(),
            lan_addresses: spec.lan_addresses.clone(),
            mtu_pinned: spec.mtu_pinned,
            me: spec.me,
            plan: spec.plan.clone(),
            memory: spec.memory,
            networks,
            credentials: credentials.clone(),
            kept: spec.kept.clone(),
            signed: spec.signed.clone(),
        })
    }

    /// Makes the judge of a gateway that is about to start.
    pub(super) fn of_start(spec: &GatewaySpec) -> Arc<Self> {
        let listens = [spec.listen.wan.is_some(), spec.listen.lan.is_some()];
        let networks = listens.into_iter().filter(|listens| *listens).count();
        Self::of_spec(spec, networks, &watch::channel(Arc::clone(&spec.credentials)).1)
    }

    /// Checks a fabric with its signature, and that it is of the version that a gateway has `named`, if
    /// one has.
    fn judge(
        &self,
        text: &str,
        signature: FabricSignature,
        named: Option<FabricVersion>,
        jobs: usize,
    ) -> Result<CheckedFabric, FabricRefusal> {
        let length = FabricSignature::BYTES + text.len();
        if length > SignedFabric::BYTES_MAX {
            return Err(FabricRefusal::TooLong(ByteCount::new(length as u64)));
        }
        self.credentials.borrow().verify_fabric(text, signature)?;
        if named.is_some_and(|named| named.digest != sha256_of_fabric(text)) {
            return Err(FabricRefusal::OtherVersion);
        }
        let file = FabricFile::parse(Path::new(FABRIC_NAME_IN_FAULTS), text)
            .map_err(|faults| FabricRefusal::Faults(faults.to_string()))?;
        let version = file.version();
        if named.is_some_and(|named| named != version) {
            return Err(FabricRefusal::OtherVersion);
        }
        if version.number == 0 {
            return Err(FabricRefusal::NoVersion);
        }
        let keys = self.keys_that_need_a_restart(&file);
        if !keys.is_empty() {
            let line = |key: &String| match file.line_of_key(key) {
                Some(line) => format!("line {line}: `{key}`"),
                None => format!("`{key}`"),
            };
            return Err(FabricRefusal::RestartNeeded(keys.iter().map(line).collect()));
        }
        let fabric = Arc::new(file.fabric().clone());
        let plan = self.plan_for(&fabric)?;
        self.check_memory(&fabric, &plan, jobs)?;
        let bytes = [&signature.0[..], text.as_bytes()].concat().into();
        let signed = SignedFabric { version, bytes };
        Ok(CheckedFabric { signed, fabric, plan, policies: file.policies().clone() })
    }

    /// Makes the plan for a fabric, with segments as long as those in use.
    fn plan_for(&self, fabric: &Fabric) -> Result<Plan, FabricRefusal> {
        let planned = plan::make_plan(fabric);
        let plan = planned.map_err(|error| FabricRefusal::NoPlan(error.to_string()))?;
        let plan = Plan { segment: self.plan.segment, ..plan };
        Ok(plan.with_express_limit(&fabric.without_witness()))
    }

    /// Checks that windows for a fabric fit the memory, unless those in use do not either.
    fn check_memory(&self, fabric: &Fabric, plan: &Plan, jobs: usize) -> Result<(), FabricRefusal> {
        let least = |fabric: &Fabric, plan: &Plan| {
            let reserved = reserved_memory_budget(plan, fabric, self.me, (jobs, self.networks));
            least_memory_budget(self.memory, reserved)
        };
        match least(fabric, plan) {
            Some(needed) if Some(needed) > least(&self.fabric, &self.plan) => {
                let gateway = self.fabric.gateway(self.me).name.clone();
                Err(FabricRefusal::Memory { gateway, least: needed })
            }
            _ => Ok(()),
        }
    }

    /// Returns the keys of a fabric file whose values differ from those in use, but for rates, round trips,
    /// losses and schedules.
    fn keys_that_need_a_restart(&self, file: &FabricFile) -> Vec<String> {
        let (here, there) = (&*self.fabric, file.fabric());
        let mut keys = Vec::new();
        let root = [
            ("name", here.name() != there.name()),
            ("mtu", (here.mtu(), self.mtu_pinned) != (there.mtu(), file.mtu_pinned())),
            ("lanes", here.lanes_min() != there.lanes_min()),
            ("patience", here.patience() != there.patience()),
            ("silence", here.silence() != there.silence()),
        ];
        keys.extend(root.iter().filter(|(_, differs)| *differs).map(|(key, _)| (*key).to_owned()));
        keys.extend(self.regions_that_differ(file));
        keys.extend(self.links_that_differ(file));
        // Quorums of other regions cannot be compared.
        if region_names(here) == region_names(there) && here.quorum() != there.quorum() {
            keys.extend(self.votes_that_differ(there));
        }
        keys
    }

    /// Returns the keys of votes that another quorum of the same regions has, or else that of the quorum.
    fn votes_that_differ(&self, there: &Fabric) -> Vec<String> {
        let (Quorum::Votes { votes, .. }, Quorum::Votes { votes: others, .. }) =
            (self.fabric.quorum(), there.quorum())
        else {
            return vec!["quorum".to_owned()];
        };
        let regions = self.fabric.regions().iter().zip(votes.iter().zip(others));
        let differing = regions.filter(|(_, (one, other))| one != other);
        let keys: Vec<String> =
            differing.map(|(region, _)| format!("region.{}.votes", region.name)).collect();
        if keys.is_empty() { vec!["quorum".to_owned()] } else { keys }
    }

    /// Returns the keys of regions and gateways that only one of both files has, or whose ranks, speeds or
    /// addresses differ.
    fn regions_that_differ(&self, file: &FabricFile) -> Vec<String> {
        let (here, there) = (&*self.fabric, file.fabric());
        let only_one = &region_names(here) ^ &region_names(there);
        let mut keys: Vec<String> =
            only_one.iter().map(|region| format!("region.{region}")).collect();
        if !keys.is_empty() {
            return keys;
        }
        let numbers = (0..).map(RegionId);
        for (id, (one, other)) in numbers.zip(here.regions().iter().zip(there.regions())) {
            let table = format!("region.{}", one.name);
            let is_witness = |fabric: &Fabric| {
                fabric.witness().is_some_and(|witness| fabric.gateway(witness).region == id)
            };
            if is_witness(here) != is_witness(there) {
                keys.push(format!("{table}.witness"));
            }
            if one.ranks.len() != other.ranks.len() {
                keys.push(format!("{table}.ranks"));
            } else if one.speeds != other.speeds {
                keys.push(format!("{table}.speeds"));
            }
            keys.extend(self.gateways_that_differ(id, file));
        }
        keys
    }

    /// Returns the keys of gateways of a region that differ.
    fn gateways_that_differ(&self, region: RegionId, file: &FabricFile) -> Vec<String> {
        let (here, there) = (&*self.fabric, file.fabric());
        let ids = |fabric: &Fabric| -> BTreeMap<String, GatewayId> {
            let ids = fabric.region(region).gateways.clone().map(GatewayId);
            ids.map(|id| (fabric.gateway(id).name.clone(), id)).collect()
        };
        let (ours, theirs) = (ids(here), ids(there));
        let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let mut keys = Vec::new();
        for name in names {
            let table = format!("region.{}.gateway.{name}", here.region(region).name);
            let (Some(one), Some(other)) = (ours.get(name), theirs.get(name)) else {
                keys.push(table);
                continue;
            };
            let (this, that) = (here.gateway(*one), there.gateway(*other));
            if this.ranks.len() != that.ranks.len() {
                keys.push(format!("{table}.ranks"));
            }
            let has_other_port = this.wan.is_some() != that.wan.is_some();
            if has_other_port || self.addresses.get(one) != file.lane_addresses(*other) {
                keys.push(format!("{table}.wan"));
            }
            if self.lan_addresses.get(one) != file.lan_addresses(*other) {
                keys.push(format!("{table}.lan"));
            }
        }
        keys
    }

    /// Returns the keys of links that only one of both files has, or that have another controller.
    fn links_that_differ(&self, file: &FabricFile) -> Vec<String> {
        let links = |fabric: &Fabric, policies: &LinkPolicies| -> BTreeMap<String, &'static str> {
            let named = fabric.links().iter().map(|link| {
                let ends = [link.a, link.b].map(|end| &*fabric.region(end).name).join("-");
                let policy = policies.get(&(link.a, link.b)).cloned().unwrap_or_default();
                (ends, policy.controller.name())
            });
            named.collect()
        };
        let (ours, theirs) =
            (links(&self.fabric, &self.policies), links(file.fabric(), file.policies()));
        let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differing =
            names.into_iter().filter_map(|name| match (ours.get(name), theirs.get(name)) {
                (Some(one), Some(other)) if one == other => None,
                (Some(_), Some(_)) => Some(format!("link.{name}.controller")),
                _ => Some(format!("link.{name}")),
            });
        differing.collect()
    }
}

/// Returns the names of a fabric's regions.
fn region_names(fabric: &Fabric) -> BTreeSet<String> {
    fabric.regions().iter().map(|region| region.name.clone()).collect()
}

impl FabricJudge for RunningFabricJudge {
    fn judge_file(
        &self,
        text: &str,
        signature: &str,
        jobs: usize,
    ) -> Result<CheckedFabric, FabricRefusal> {
        self.judge(text, FabricSignature::parse(signature)?, None, jobs)
    }

    fn judge_signed(
        &self,
        signed: &SignedFabric,
        jobs: usize,
    ) -> Result<CheckedFabric, FabricRefusal> {
        let malformed = || FabricRefusal::Signature(FabricSignatureError::Malformed);
        let (signature, text) = signed.bytes.split_first_chunk().ok_or_else(malformed)?;
        let text = std::str::from_utf8(text).map_err(|_| malformed())?;
        self.judge(text, FabricSignature(*signature), Some(signed.version), jobs)
    }

    fn signed_at_start(&self) -> Option<SignedFabric> {
        self.signed.clone()
    }

    fn keep(&self, signed: &SignedFabric) -> Result<(), String> {
        let Some(kept) = &self.kept else { return Ok(()) };
        kept.keep(signed).map_err(|error| format!("{}: {error}", kept.applied_path().display()))
    }

    fn partials_of_job(&self, fabric: &Fabric, plan: &Plan, jobs: usize) -> ByteCount {
        partials_memory_budget(self.memory, plan, fabric, self.me, (jobs, self.networks))
    }
}
