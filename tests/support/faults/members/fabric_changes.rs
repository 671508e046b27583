//! Fabrics that operators apply in a run.

use super::event_schedule::{FabricEvent, FabricNumber};
use super::members_run::MembersRun;
use units::BitRate;

impl MembersRun {
    /// Lets an operator apply a fabric, which the gateway may refuse, at a gateway that runs.
    pub(super) async fn change_fabric(&mut self, event: FabricEvent) {
        let version = match event.number {
            FabricNumber::Next => self.fabric_version + 1,
            FabricNumber::Same => self.fabric_version.max(1),
            FabricNumber::Old => self.fabric_version.saturating_sub(1),
        };
        let Some(gateway) = self.world.gateway(event.at).filter(|_| version > 0) else { return };
        let known = self.world.fabric_version(event.at).await;
        let known = known.waiting.map_or(known.version, |waiting| waiting.version);
        let mut mesh = self.mesh.clone();
        let link = &mut mesh.links[event.link];
        link.rate =
            BitRate::from_bits_per_second(link.rate.bits_per_second() / 100 * event.percent);
        let change = mesh.fabric_change(version);
        let change = gateway::events::FabricChange { within: event.within, ..change };
        match gateway.change_fabric(change).await.expect("it runs") {
            Ok(_) => {
                self.judge.happened("fabric accepted");
                if version < known {
                    self.judge.wrong(format!("version {version} is accepted after {known}"));
                }
                self.fabric_version = self.fabric_version.max(version);
            }
            Err(error) => {
                self.judge.happened("fabric refused");
                self.timeline.say("EVENT", || error.to_string());
            }
        }
    }
}
