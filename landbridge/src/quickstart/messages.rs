//! Names and messages that the quickstart and its ranks share.
//!
//! A rank prints a [`RankMessage`] a line on stdout. It reads two lines from stdin: one starts the
//! all-reduces, the other ends the process.

use serde::{Deserialize, Serialize};

/// The name of the job of a quickstart, in config files and status.
pub(super) const JOB_NAME: &str = "quickstart";

/// A line of JSON that a rank prints.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankMessage {
    /// A training step is complete.
    Step {
        /// Number of the step, from 1.
        step: u32,
        /// Mean loss over its global batch.
        loss: f32,
    },
    /// The training is complete, and the weights are in their file.
    Trained {
        /// SHA-256 of the weights, in hexadecimal.
        digest: String,
    },
    /// One all-reduce is complete.
    Iteration(RankTimes),
    /// All all-reduces are complete.
    Done {
        /// SHA-256 of the last result, in hexadecimal.
        digest: String,
    },
}

/// Times of one rank in one all-reduce, on the machine's monotonic clock.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct RankTimes {
    /// Time of the rank's post.
    pub posted_ns: u64,
    /// Time at which the rank had the result.
    pub ready_ns: u64,
    /// Time at which its gateway had the first segment to send.
    pub wan_begin_ns: u64,
    /// Time at which its gateway had received the last segment.
    pub wan_end_ns: u64,
}
