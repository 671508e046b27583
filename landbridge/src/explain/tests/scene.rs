//! A deployment in virtual time whose ranks train until a fault strikes, and its dump.

use crate::explain::causes::{Cause, find_causes};
use crate::explain::dump::{Dump, DumpedGateway, DumpedPlace};
use crate::explain::party::CulpritKind;
use gateway::client::{Client, Operation};
use gateway::observe::readiness::judge_readiness;
use hier_collectives::descriptor::{Dtype, ReduceOp};
use hier_collectives::ids::GatewayId;
use scenarios::Lab;
use scenarios::lab::mesh::Mesh;
use std::collections::BTreeMap;
use units::Span;

/// 1,024 elements of a short collective.
const ELEMENTS: u64 = 1024;

/// A kind of fault.
pub struct SeededFault {
    /// Its name in the messages of tests.
    pub name: &'static str,
    /// Lets it strike whomever the seed draws, and returns the verdict.
    pub strike: fn(u64) -> Verdict,
}

/// The causes that `explain` names for one fault, and those that it should name.
pub struct Verdict {
    /// The causes that it names.
    pub causes: Vec<Cause>,
    /// The kind of the party at fault.
    pub kind: CulpritKind,
    /// The names that the party may have.
    pub culprits: Vec<String>,
    /// A part of the text that shows the fault.
    pub found: String,
}

/// Random choices that follow from a seed.
pub struct Draw(u64);

impl Draw {
    /// Makes the choices of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `bound`, by SplitMix64.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }
}

/// Gateways, the trainers that are attached, and what a dump cannot learn in virtual time.
pub struct Scene {
    pub lab: Lab,
    /// The trainer of each rank; `None` once it has ended.
    pub clients: Vec<Option<Client>>,
    pub draw: Draw,
    /// Gateways that give no status, each with whether nothing listens at its address.
    pub gone: BTreeMap<GatewayId, bool>,
    /// Gateways with clocks of their own, in seconds ahead.
    pub clocks: BTreeMap<GatewayId, f64>,
    /// Gateways that a limit on processors holds back.
    pub held_back: Vec<GatewayId>,
}

impl Scene {
    /// Starts three regions, a with two ranks, b and c with one each, whose trainers do some steps.
    pub async fn of_three_regions(seed: u64) -> Self {
        let lab = Mesh::of_ranks(&[2, 1, 1]).start(seed).await;
        let mut scene = Self::without_trainers(lab, seed);
        scene.attach_all(1 << 20).await;
        for _ in 0..1 + scene.draw.below(3) {
            scene.step(&[]).await;
        }
        scene.wait_up_to(Span::from_secs(3)).await;
        scene
    }

    /// Makes a scene of gateways without trainers.
    pub fn without_trainers(lab: Lab, seed: u64) -> Self {
        let (gone, clocks) = (BTreeMap::new(), BTreeMap::new());
        let draw = Draw::of_seed(seed);
        Self { lab, clients: Vec::new(), draw, gone, clocks, held_back: Vec::new() }
    }

    /// Attaches a trainer for each rank.
    pub async fn attach_all(&mut self, arena_bytes: u64) {
        let clients = self.lab.clients(arena_bytes).await;
        self.clients = clients.into_iter().map(Some).collect();
    }

    /// Draws a rank.
    pub fn draw_rank(&mut self) -> u32 {
        let ranks = u64::from(self.lab.fabric.world_size());
        u32::try_from(self.draw.below(ranks)).expect("a few ranks")
    }

    /// Draws a gateway.
    pub fn draw_gateway(&mut self) -> GatewayId {
        let gateways = self.lab.fabric.gateway_ids().count() as u64;
        GatewayId(u16::try_from(self.draw.below(gateways)).expect("a few gateways"))
    }

    /// Waits for a drawn time below `most`.
    pub async fn wait_up_to(&mut self, most: Span) {
        let wait = self.draw.below(most.ns());
        self.lab.sleep(Span::from_ns(wait)).await;
    }

    /// Posts an all-reduce on each rank but those in `absent`.
    pub async fn post_without(&self, absent: &[u32]) -> Vec<Operation> {
        self.post_of(ELEMENTS, absent).await
    }

    /// Posts an all-reduce of f32 on each rank but those in `absent`.
    pub async fn post_of(&self, elements: u64, absent: &[u32]) -> Vec<Operation> {
        let mut operations = Vec::new();
        for client in self.clients.iter().flatten() {
            if !absent.contains(&client.rank().0) {
                let tensor = client.allocate(Dtype::F32, elements).expect("room");
                operations.push(client.all_reduce(tensor, ReduceOp::Sum).await.expect("posted"));
            }
        }
        operations
    }

    /// Does a step, in which the ranks in `late` post 400 ms after the others.
    pub async fn step(&self, late: &[u32]) {
        let others: Vec<u32> =
            (0..self.lab.fabric.world_size()).filter(|rank| !late.contains(rank)).collect();
        let mut operations = self.post_without(late).await;
        if !late.is_empty() {
            self.lab.sleep(Span::from_ms(400)).await;
            operations.extend(self.post_without(&others).await);
        }
        for operation in &mut operations {
            operation.ready().await.expect("a result");
        }
    }

    /// Returns the name of a gateway with its region, as `explain` prints it.
    pub fn gateway_name(&self, id: GatewayId) -> String {
        let gateway = self.lab.fabric.gateway(id);
        let region = &self.lab.fabric.region(gateway.region).name;
        format!("gateway {} ({region})", gateway.name)
    }

    /// Returns the name of a rank with its region, as `explain` prints it.
    pub fn rank_name(&self, rank: u32) -> String {
        let fabric = &self.lab.fabric;
        let region = fabric.regions().iter().find(|region| region.ranks.contains(&rank));
        format!("rank {rank} ({})", region.expect("a region").name)
    }

    /// Returns the names of the path between two gateways: of the path itself, and of its link.
    pub fn path_names(&self, one: GatewayId, other: GatewayId) -> Vec<String> {
        let fabric = &self.lab.fabric;
        let [first, second] = if one < other { [one, other] } else { [other, one] };
        let [first, second] = [first, second].map(|id| fabric.gateway(id));
        let [a, b] = [first, second].map(|gateway| &fabric.region(gateway.region).name);
        vec![
            format!("the path between {} and {}", first.name, second.name),
            format!("link {a}-{b}"),
        ]
    }

    /// Takes a dump of all regions at this moment.
    pub async fn dump(&self) -> Dump {
        let fabric = &self.lab.fabric;
        let now = self.lab.host.now().ns() as f64 / 1e9;
        let places = DumpedPlace::all_of_fabric(fabric);
        let mut gateways = Vec::new();
        for (id, place) in fabric.gateway_ids().zip(&places) {
            let mut dumped = DumpedGateway {
                gateway: place.gateway.clone(),
                region: place.region.clone(),
                status: None,
                error: None,
                is_absent: false,
                asked_unix_seconds: now,
                clock_ahead_seconds: Some(self.clocks.get(&id).copied().unwrap_or_default()),
                flights: Vec::new(),
            };
            match self.gone.get(&id) {
                Some(is_absent) => {
                    dumped.is_absent = *is_absent;
                    dumped.error = Some("no answer".to_owned());
                    dumped.clock_ahead_seconds = None;
                }
                None => {
                    let mut dump = self.lab.dump(id).await.expect("a dump");
                    if self.held_back.contains(&id) {
                        let limit = "the cgroup / holds it back for 60 % of the time";
                        dump.status.processor_problem = Some(limit.to_owned());
                        dump.status.problems = judge_readiness(&dump.status);
                    }
                    dumped.status = Some(dump.status);
                    dumped.flights = dump.flights;
                }
            }
            gateways.push(dumped);
        }
        Dump { taken_unix_seconds: now, fabric: fabric.name().to_owned(), places, gateways }
    }

    /// Returns what `explain` says now, beside what it should say.
    pub async fn verdict(
        &self,
        kind: CulpritKind,
        culprits: Vec<String>,
        found: impl Into<String>,
    ) -> Verdict {
        // A dump is a file between both commands.
        let text = serde_json::to_string(&self.dump().await).expect("JSON");
        let dump: Dump = serde_json::from_str(&text).expect("a dump");
        Verdict { causes: find_causes(&[dump], &[]), kind, culprits, found: found.into() }
    }
}
