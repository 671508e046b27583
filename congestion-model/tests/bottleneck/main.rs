//! Lanes of the model before a bottleneck: alone, as it changes, and beside others.

mod alone;
mod changes;
mod network;
mod shared;
