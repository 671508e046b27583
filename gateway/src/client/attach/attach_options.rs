//! The parameters of attaching a rank.

use crate::client::collective_spec::DEFAULT_TIMEOUT;
use crate::local::protocol::Token;
use hier_collectives::ids::RankId;
use std::path::PathBuf;
use units::Span;

/// 60 s: how long a rank by default retries to attach while no gateway answers; after that time the
/// attach fails. A restart of a gateway takes less.
/// Tested by `a_trainer_waits_for_a_gateway_that_starts_later`.
pub const GATEWAY_TIMEOUT: Span = Span::from_secs(60);

/// The environment variable with the folder into which ranks dump failures by default. An empty one counts
/// as none.
pub const DUMPS_VARIABLE: &str = "LANDBRIDGE_DUMPS";

/// The parameters of attaching a rank.
#[derive(Debug, Clone)]
pub struct AttachOptions {
    /// Name of the job.
    pub job: String,
    /// The job's token.
    pub token: Token,
    /// The rank for which to attach.
    pub rank: RankId,
    /// Size of the arena in bytes. Each tensor takes twice its length, in whole cache lines.
    pub arena_bytes: u64,
    /// How long to retry while no gateway answers, while one refuses for a reason that passes, and
    /// when one goes away before the first epoch.
    pub gateway_timeout: Span,
    /// How long to wait for the first epoch, which begins when all gateways have met.
    pub epoch_timeout: Span,
    /// The number of the user as whom the gateway runs, as its region file says. Without it, only
    /// this process's user and root are trusted with the token.
    pub gateway_user: Option<u32>,
    /// The folder into which the rank writes its flight recorder when a collective fails; `None` for none.
    pub dumps: Option<PathBuf>,
}

impl AttachOptions {
    /// Makes options for a rank of a job, with [`GATEWAY_TIMEOUT`], [`DEFAULT_TIMEOUT`] for the
    /// epoch, a gateway of this process's user or root, and the folder for dumps in
    /// [`DUMPS_VARIABLE`]. `arena_bytes` is the size of the arena in bytes.
    pub fn new(job: &str, token: impl Into<Token>, rank: u32, arena_bytes: u64) -> Self {
        Self {
            job: job.to_owned(),
            token: token.into(),
            rank: RankId(rank),
            arena_bytes,
            gateway_timeout: GATEWAY_TIMEOUT,
            epoch_timeout: DEFAULT_TIMEOUT,
            gateway_user: None,
            dumps: std::env::var_os(DUMPS_VARIABLE)
                .filter(|folder| !folder.is_empty())
                .map(Into::into),
        }
    }
}
