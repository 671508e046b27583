//! Which packets are lost at random.

use super::packet::packet_fate::DropReason;
use crate::random_stream::RandomStream;
use units::Fraction;

/// How packets are lost at random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Each independently, with this probability.
    Random(Fraction),
    /// In bursts.
    GilbertElliott(GilbertElliott),
}

impl Loss {
    /// Returns whether the model can ever lose a packet.
    pub fn is_lossy(&self) -> bool {
        let may = |chance: Fraction| chance.ppb() > 0;
        match self {
            Self::Random(chance) => may(*chance),
            Self::GilbertElliott(chain) => {
                may(chain.loss_in_good) || may(chain.to_bad) && may(chain.loss_in_bad)
            }
        }
    }
}

/// A chain of two states, good and bad. Each packet is lost with its state's probability;
/// then the state may change.
///
/// Starts good. In the long run the share of packets met by the bad state is
/// `to_bad / (to_bad + to_good)`, and a stay in it lasts `1 / to_good` packets on average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GilbertElliott {
    /// Probability of turning bad after a packet in the good state.
    pub to_bad: Fraction,
    /// Probability of turning good after a packet in the bad state.
    pub to_good: Fraction,
    /// Probability of losing a packet in the bad state.
    pub loss_in_bad: Fraction,
    /// Probability of losing a packet in the good state.
    pub loss_in_good: Fraction,
}

#[derive(Debug)]
pub(super) struct LossProcess {
    stream: RandomStream,
    bad: bool,
}

impl LossProcess {
    /// Makes a loss process in the good state, which draws from `stream`.
    pub(super) fn new(stream: RandomStream) -> Self {
        Self { stream, bad: false }
    }

    /// Draws whether the next packet is lost, and whether in a burst; `None` where it is not.
    /// `loss` may differ from packet to packet.
    pub(super) fn draw(&mut self, loss: &Loss) -> Option<DropReason> {
        match loss {
            Loss::Random(probability) => {
                self.stream.random_bool(*probability).then_some(DropReason::Loss)
            }
            Loss::GilbertElliott(chain) => {
                let (probability, change, reason) = if self.bad {
                    (chain.loss_in_bad, chain.to_good, DropReason::Burst)
                } else {
                    (chain.loss_in_good, chain.to_bad, DropReason::Loss)
                };
                let lost = self.stream.random_bool(probability);
                self.bad ^= self.stream.random_bool(change);
                lost.then_some(reason)
            }
        }
    }
}
