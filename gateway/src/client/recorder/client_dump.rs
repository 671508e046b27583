//! The form of a rank's dump. Clients in all languages write it; `landbridge explain` reads it.

use crate::dump_folder::replace_private_file;
use crate::observe::versioned::Versioned;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

/// The records of a rank's flight recorder. The field names are keys of the JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClientDump {
    /// The fabric's name, as the gateway says it.
    pub fabric: String,
    /// The job's name.
    pub job: String,
    /// The number of the rank in the fabric.
    pub rank: u32,
    /// The number of ranks with which the job goes on.
    pub world_size: u32,
    /// Seconds from the start of 1970 to the dump, by the clock of the rank's host, as are all times here.
    pub dumped_seconds: f64,
    /// The last collectives of all groups of the rank, in the order of their posts.
    pub collectives: Vec<DumpedCollective>,
}

impl ClientDump {
    /// Returns the dump as one object of JSON, with its version.
    pub(in crate::client) fn to_json(&self) -> String {
        Versioned::new(self).to_json() + "\n"
    }

    /// Writes the dump into a file that only the user of this process can read, in the place of one
    /// that may be there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(in crate::client) fn write(&self, path: &Path) -> io::Result<()> {
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(format!(".{}.unfinished", std::process::id()));
        replace_private_file(path, &PathBuf::from(unfinished), &self.to_json())
    }
}

/// One collective of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DumpedCollective {
    /// The number by which this rank knows the group; 0 is the job itself.
    pub group: u64,
    /// The epoch of the group.
    pub epoch: u64,
    /// Its number in the group.
    pub sequence: u64,
    /// Its operation, such as `all_reduce`.
    pub operation: String,
    /// Its reduction, such as `sum`; `None` where nothing is reduced.
    pub op: Option<String>,
    /// The rank that has the data or gets the result, by its number in the group; `None` without one.
    pub root: Option<u32>,
    /// Its element type, such as `f32`.
    pub dtype: String,
    /// The shape of the array that the rank contributes, or gets if it contributes none.
    pub shape: Vec<u64>,
    /// Bytes of the contribution.
    pub contribution_bytes: u64,
    /// Bytes of the result.
    pub result_bytes: u64,
    /// The time of the post.
    pub posted_seconds: f64,
    /// The time at which the result was there or the failure was known; `None` while it is under way.
    pub ended_seconds: Option<f64>,
    /// The code of the failure in docs/failures.md; `None` without one.
    pub code: Option<u8>,
    /// The text of the failure; `None` without one.
    pub error_text: Option<String>,
}
