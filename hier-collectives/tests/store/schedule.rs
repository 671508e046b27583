//! Random faults and sizes, all of which follow from a seed.

use hier_collectives::testing::SplitMix64;

/// The sizes and faults of one run.
#[derive(Debug, Clone)]
pub struct Schedule {
    pub numbers: SplitMix64,
    pub gateways: u64,
    pub clients: u64,
    /// Requests of each client.
    pub requests: u64,
    /// Messages of 100 that are lost.
    pub lost_percent: u64,
    /// Messages of 100 that come twice.
    pub twice_percent: u64,
    /// The longest time of a message on its way.
    pub delay_ms_max: u64,
    /// Starts of gateways, at random times.
    pub restarts: u64,
    /// Cuts between two halves of the gateways.
    pub cuts: u64,
}

impl Schedule {
    /// Makes the schedule of a seed.
    pub fn random(seed: u64) -> Self {
        let mut numbers = SplitMix64(seed);
        let gateways = numbers.range(1, 4);
        let is_lossy = numbers.chance(50);
        Self {
            gateways,
            clients: numbers.range(2, 4),
            requests: numbers.range(4, 9),
            lost_percent: if is_lossy { numbers.range(1, 25) } else { 0 },
            twice_percent: if is_lossy { numbers.range(0, 20) } else { 0 },
            delay_ms_max: numbers.range(1, 300),
            restarts: numbers.range(0, 5),
            cuts: if gateways > 1 { numbers.range(0, 3) } else { 0 },
            numbers,
        }
    }
}
