//! The duration of a training step over two regions. Computation follows a formula; the exchange
//! is simulated with whole gateways.

use super::error::SimulateError;
use super::simulated_clock::run_with_simulated_clock;
use super::simulation::{Simulation, TimedCollective};
use super::simulation_spec::SimulationSpec;
use hier_collectives::descriptor::{Dtype, Pattern};
use hier_collectives::plan;
use hier_collectives::topology::{
    Fabric, FabricGatewaySpec, FabricLinkSpec, FabricRegionSpec, WanPort,
};
use units::{BitRate, ByteCount, Fraction, Span};

/// A training step whose gradients are all-reduced in buckets during the backward pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TrainingStep {
    /// Duration of the forward pass.
    pub forward: Span,
    /// Duration of the backward pass; buckets become ready at equal intervals of it.
    pub backward: Span,
    /// Size of all gradients, in bytes.
    pub gradient_bytes: f64,
    /// Number of buckets of equal size.
    pub buckets: u32,
    /// Time that a bucket takes inside a region, before the exchange and again after it.
    pub local: Span,
}

/// The link of a step, between two regions whose ports have its rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLink {
    /// Rate in each direction in bits per second, counted in IP bytes.
    pub bits_per_second: f64,
    /// Round-trip time without queueing.
    pub rtt: Span,
}

impl TrainingStep {
    /// Returns how many bytes of the step one simulated byte stands for. Sizes and rates are both
    /// divided by this number, which changes no time: S/rate, S/BDP and computation/communication
    /// stay equal.
    pub fn scale_factor(&self) -> f64 {
        (self.gradient_bytes / SIMULATED_GRADIENT_BYTES_MAX as f64).max(1.0)
    }

    /// Returns the duration of the forward and the backward pass together.
    pub fn compute_time(&self) -> Span {
        self.forward + self.backward
    }

    /// Simulates the step over two regions; returns its duration from the start of the forward pass
    /// until the last rank has the last gradient.
    ///
    /// # Errors
    /// [`SimulateError`]: the simulation did not start, or a collective failed.
    pub fn simulate(&self, link: StepLink, seed: u64) -> Result<Span, SimulateError> {
        self.simulate_on(self.two_region_fabric(link), seed)
    }

    /// Simulates the step on one cluster, whose gateway has no peer; returns its duration. The
    /// backward pass hides everything but the last bucket's time inside the cluster, before and
    /// after the exchange.
    ///
    /// # Errors
    /// [`SimulateError`]: the simulation did not start, or a collective failed.
    pub fn simulate_one_cluster(&self, seed: u64) -> Result<Span, SimulateError> {
        let fabric =
            Fabric::new("step", STEP_LINK_MTU, vec![training_step_region("one", None)], Vec::new());
        self.simulate_on(fabric.expect("one region"), seed)
    }

    /// Simulates the step on a fabric; returns its duration.
    fn simulate_on(&self, fabric: Fabric, seed: u64) -> Result<Span, SimulateError> {
        let posts = self.bucket_posts();
        let total = posts.iter().map(|post| post.bytes.get()).sum();
        let plan = plan::make_plan(&fabric).map_err(crate::daemon::StartError::from)?;
        let spec = SimulationSpec::of_fabric(fabric, plan)?;
        let done = run_with_simulated_clock(async {
            let simulation = Simulation::start(spec, ByteCount::new(total), seed).await?;
            simulation.run_collectives(&posts, Dtype::Bf16, || {}).await
        })??;
        Ok(self.gather_time(&done))
    }

    /// Returns the time from the start of the step until all accelerators have all gradients.
    /// `done` has the times, from the start of the step, at which each bucket of gradients was
    /// reduced over all regions. Inside a region buckets are distributed one after the other.
    fn gather_time(&self, done: &[Span]) -> Span {
        let gathered = done.iter().fold(Span::ZERO, |free, done| free.max(*done) + self.local);
        gathered.max(self.compute_time())
    }

    /// Returns the collectives of all buckets, each posted when its bucket is ready.
    fn bucket_posts(&self) -> Vec<TimedCollective> {
        let bucket = self.gradient_bytes / self.scale_factor() / f64::from(self.buckets);
        // A whole number of elements and cache lines.
        let bytes = ByteCount::new((bucket as u64).max(64) / 64 * 64);
        let mut free = Span::ZERO;
        let post = |index: u32| {
            let part = u128::from(self.backward.ns()) * u128::from(index + 1);
            let made = u64::try_from(part / u128::from(self.buckets)).unwrap_or(u64::MAX);
            free = free.max(self.forward + Span::from_ns(made)) + self.local;
            TimedCollective { after: free, bytes, pattern: Pattern::AllReduce }
        };
        (0..self.buckets).map(post).collect()
    }

    /// Makes a fabric of two regions of one rank, whose ports have the rate of the link.
    fn two_region_fabric(&self, link: StepLink) -> Fabric {
        let bits = (link.bits_per_second / self.scale_factor()).clamp(1.0, 1e15);
        let rate = BitRate::from_bits_per_second(bits as u64);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let between = ("one".to_owned(), "other".to_owned());
        let link = FabricLinkSpec { between, rate, rtt: link.rtt, loss: Fraction::default() };
        let regions = vec![training_step_region("one", wan), training_step_region("other", wan)];
        Fabric::new("step", STEP_LINK_MTU, regions, vec![link]).expect("two regions and their link")
    }
}

/// Makes a region whose accelerators are one rank; [`TrainingStep::local`] covers what they do
/// among themselves.
fn training_step_region(name: &str, wan: Option<WanPort>) -> FabricRegionSpec {
    let gateways = vec![FabricGatewaySpec::new(format!("{name}-0"), 1, wan)];
    FabricRegionSpec { name: name.to_owned(), speeds: vec![1.0], gateways }
}

/// 64 MiB: the size of all gradients of a simulated training step together, at most, which bounds
/// its memory and its run time. Longer gradients are scaled down to this size, and rates by the same factor.
const SIMULATED_GRADIENT_BYTES_MAX: u64 = 64 << 20;

/// 1,500 bytes: the longest IP packet (MTU) on the link of a simulated training step. It is the
/// common MTU, and takes more packets for the same bytes than jumbo packets do.
const STEP_LINK_MTU: u16 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> TrainingStep {
        TrainingStep {
            forward: Span::from_ms(1000),
            backward: Span::from_ms(2000),
            gradient_bytes: 16e9,
            buckets: 32,
            local: Span::ZERO,
        }
    }

    #[test]
    fn one_cluster_hides_everything_but_the_last_local_bucket() {
        let step = TrainingStep { local: Span::from_ms(10), ..step() };
        let took = step.simulate_one_cluster(1).expect("a step").as_secs_f64();
        assert!((3.020..3.0201).contains(&took), "{took}");
    }

    #[test]
    fn a_wide_short_link_hides_everything_but_the_last_bucket() {
        let link = StepLink { bits_per_second: 1.6e12, rtt: Span::from_ms(5) };
        let took = step().simulate(link, 1).expect("a step").as_secs_f64();
        // 500 MB at 191 GB/s, and one way.
        assert!((3.004..3.012).contains(&took), "{took}");
    }

    #[test]
    fn a_narrow_link_adds_the_time_that_computation_cannot_hide() {
        let link = StepLink { bits_per_second: 16e9, rtt: Span::from_ms(5) };
        let took = step().simulate(link, 1).expect("a step").as_secs_f64();
        // 16 GB at 1.91 GB/s from the first bucket on.
        let least = 1.0625 + 16e9 / (16e9 / 8.0 * 1433.0 / 1500.0);
        assert!((least..1.04 * least).contains(&took), "{took}, {least} at least");
    }
}
