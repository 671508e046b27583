//! A training step over two regions: computed by formula, exchanged by the production session.

use super::{Deployment, Post, SimulateError, Simulation, run};
use hier_collectives::descriptor::{Dtype, Pattern};
use hier_collectives::plan;
use hier_collectives::topology::{Fabric, GatewaySpec, LinkSpec, RegionSpec, WanPort};
use units::{BitRate, ByteCount, Fraction, Span};

/// A step whose gradients are all-reduced bucket by bucket while the backward pass goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Of the forward pass.
    pub forward: Span,
    /// Of the backward pass; buckets are ready at even distances through it.
    pub backward: Span,
    /// All gradients.
    pub gradient_bytes: f64,
    /// How many buckets they are cut into.
    pub buckets: u32,
    /// What a bucket takes inside a region, before it is exchanged and again after.
    pub local: Span,
}

/// The long haul of a step, one link between two regions that fill it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Haul {
    /// In IP bytes, each way.
    pub bits_per_second: f64,
    /// Without queueing.
    pub rtt: Span,
}

impl Step {
    /// How many of the step's bytes one simulated byte stands for. Sizes and rates are divided
    /// by it alike, so that every time stays what it is: S over the rate, S over the BDP, and
    /// computation over communication.
    pub fn scale(&self) -> f64 {
        (self.gradient_bytes / SIMULATED_BYTES as f64).max(1.0)
    }

    /// Forward and backward pass.
    pub fn compute(&self) -> Span {
        self.forward + self.backward
    }

    /// From the start of the forward pass until the last rank has the last gradient, over two
    /// regions.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub fn simulate(&self, haul: Haul, seed: u64) -> Result<Span, SimulateError> {
        self.over(self.two_regions(haul), seed)
    }

    /// The same on one cluster, whose gateway has nobody to exchange with: what the last bucket
    /// takes inside it, before and after, is all that the backward pass does not hide.
    ///
    /// # Errors
    /// [`SimulateError`].
    pub fn on_one_cluster(&self, seed: u64) -> Result<Span, SimulateError> {
        let fabric = Fabric::new("step", MTU, vec![region("one", None)], Vec::new());
        self.over(fabric.expect("one region"), seed)
    }

    fn over(&self, fabric: Fabric, seed: u64) -> Result<Span, SimulateError> {
        let posts = self.posts();
        let total = posts.iter().map(|post| post.bytes.get()).sum();
        let plan = plan::plan(&fabric).map_err(crate::daemon::StartError::from)?;
        let deployment = Deployment::of(fabric, plan)?;
        let done = run(async {
            let room = ByteCount::new(total);
            let simulation = Simulation::start(deployment, room, seed).await?;
            simulation.collectives(&posts, Dtype::Bf16, || {}).await
        })??;
        Ok(self.gathered(&done))
    }

    /// When the last of the buckets that came at these times is on all cards: inside a region,
    /// too, one is gathered after the other.
    fn gathered(&self, done: &[Span]) -> Span {
        let gathered = done.iter().fold(Span::ZERO, |free, done| free.max(*done) + self.local);
        gathered.max(self.compute())
    }

    /// When each bucket is ready to be exchanged.
    fn posts(&self) -> Vec<Post> {
        let bucket = self.gradient_bytes / self.scale() / f64::from(self.buckets);
        // A whole number of elements and cache lines.
        let bytes = ByteCount::new((bucket as u64).max(64) / 64 * 64);
        let mut free = Span::ZERO;
        let post = |index: u32| {
            let part = u128::from(self.backward.ns()) * u128::from(index + 1);
            let made = u64::try_from(part / u128::from(self.buckets)).unwrap_or(u64::MAX);
            free = free.max(self.forward + Span::from_ns(made)) + self.local;
            Post { after: free, bytes, pattern: Pattern::AllReduce }
        };
        (0..self.buckets).map(post).collect()
    }

    fn two_regions(&self, haul: Haul) -> Fabric {
        let bits = (haul.bits_per_second / self.scale()).clamp(1.0, 1e15);
        let rate = BitRate::from_bits_per_second(bits as u64);
        let wan = Some(WanPort { egress: rate, ingress: rate });
        let between = ("one".to_owned(), "other".to_owned());
        let link = LinkSpec { between, rate, rtt: haul.rtt, loss: Fraction::default() };
        let regions = vec![region("one", wan), region("other", wan)];
        Fabric::new("step", MTU, regions, vec![link]).expect("two regions and their link")
    }
}

/// All cards of a region as one rank: what they do among themselves has a rate of its own.
fn region(name: &str, wan: Option<WanPort>) -> RegionSpec {
    let gateways = vec![GatewaySpec::new(format!("{name}-0"), 1, wan)];
    RegionSpec { name: name.to_owned(), speeds: vec![1.0], gateways }
}

/// Gradients are simulated as so many bytes, or as they are when they are less.
const SIMULATED_BYTES: u64 = 64 << 20;

/// Of the simulated link: the one that packets are smallest and most with.
const MTU: u16 = 1500;

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> Step {
        Step {
            forward: Span::from_ms(1000),
            backward: Span::from_ms(2000),
            gradient_bytes: 16e9,
            buckets: 32,
            local: Span::ZERO,
        }
    }

    #[test]
    fn one_cluster_hides_everything_but_the_last_bucket_inside_it() {
        let step = Step { local: Span::from_ms(10), ..step() };
        let took = step.on_one_cluster(1).expect("a step").as_secs_f64();
        assert!((3.020..3.0201).contains(&took), "{took}");
    }

    #[test]
    fn a_wide_short_link_hides_everything_but_the_last_bucket() {
        let haul = Haul { bits_per_second: 1.6e12, rtt: Span::from_ms(5) };
        let took = step().simulate(haul, 1).expect("a step").as_secs_f64();
        // 500 MB at 191 GB/s, and one way.
        assert!((3.004..3.012).contains(&took), "{took}");
    }

    #[test]
    fn a_narrow_link_shows_all_that_the_backward_pass_does_not_hide() {
        let haul = Haul { bits_per_second: 16e9, rtt: Span::from_ms(5) };
        let took = step().simulate(haul, 1).expect("a step").as_secs_f64();
        // 16 GB at 1.91 GB/s from the first bucket on.
        let least = 1.0625 + 16e9 / (16e9 / 8.0 * 1433.0 / 1500.0);
        assert!((least..1.04 * least).contains(&took), "{took}, {least} at least");
    }
}
