//! Checks of the host: kernel limits, the local socket, secret files.

use super::finding::Finding;
use gateway::config::{GatewayConfig, JobConfig, RegionFile};
use gateway::daemon::{check_descriptor_limit, descriptors_needed};
use gateway::local::token_file::{self, TokenFileError};
use gateway::memory::limits::budget_limit_below;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use units::ByteCount;

/// Checks that the limits of the kernel allow the socket buffers of a lane.
pub(super) fn check_socket_buffers() -> Vec<Finding> {
    ["net.core.rmem_max", "net.core.wmem_max"].into_iter().map(check_socket_buffer).collect()
}

/// Checks that a `net.core` limit of the kernel is at least [`SOCKET_BUFFER_BYTES`].
fn check_socket_buffer(setting: &'static str) -> Finding {
    let file = format!("/proc/sys/{}", setting.replace('.', "/"));
    let limit = std::fs::read_to_string(&file);
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let check = "socket buffers";
    match limit {
        None => Finding::ok(check, setting, format!("{file} cannot be read")).into_skipped(),
        Some(bytes) if bytes >= SOCKET_BUFFER_BYTES => Finding::ok(check, setting, bytes),
        Some(bytes) => {
            let found = format!("{bytes}, below {SOCKET_BUFFER_BYTES}: bursts will be dropped");
            let advice = format!("sudo sysctl -w {setting}={SOCKET_BUFFER_BYTES}");
            Finding::ok(check, setting, found).into_warning(advice)
        }
    }
}

/// Checks that no limit of the host, of cgroups or of the process is below the memory of the gateway
/// and the arenas of its jobs. The doctor's own limits are the gateway's only if both run alike.
pub(super) fn check_memory_limits(region: &RegionFile, gateway: &GatewayConfig) -> Finding {
    let own = gateway.memory.get();
    let arenas: u64 = region.jobs().map(|job| job.memory.get()).fold(0, u64::saturating_add);
    let finding =
        |found: String| Finding::ok("memory limits", "`memory` of gateway and jobs", found);
    if let Some(limit) = budget_limit_below(own) {
        let advice = format!("{}, or lower `memory` of the gateway", limit.remedy);
        return finding(format!("gateway: {}; {limit}", gateway.memory)).into_failure(advice);
    }
    let sum = ByteCount::new(own.saturating_add(arenas));
    match budget_limit_below(sum.get()) {
        Some(limit) => {
            let advice = format!("{}, or lower `memory` of jobs", limit.remedy);
            finding(format!("gateway and jobs: {sum}; {limit}")).into_warning(advice)
        }
        None => finding(format!("gateway and jobs: {sum}, below every limit")),
    }
}

/// Checks that the limit on descriptors allows all ranks and lanes of the gateway.
pub(super) fn check_descriptors(region: &RegionFile, gateway: &GatewayConfig) -> Finding {
    let of = (region.jobs().count(), region.fabric().count_lane_networks(gateway.id));
    let needed = descriptors_needed(region.fabric().fabric(), gateway.id, of);
    let finding = |found: String| Finding::ok("descriptors", "ulimit -Hn", found);
    match check_descriptor_limit(needed) {
        Ok(()) => finding(format!("{needed} are enough, and allowed")),
        Err(error) => finding(error.to_string())
            .into_warning("raise the hard limit: ulimit -Hn, or LimitNOFILE= of the service"),
    }
}

/// Checks that the gateway can create its local socket, or that a gateway listens on it.
pub(super) fn check_local_socket(gateway: &GatewayConfig) -> Finding {
    let (check, path) = ("local socket", gateway.socket.as_path());
    let finding = |found: &str| Finding::ok(check, path.display(), found);
    match UnixStream::connect(path) {
        Ok(_) => return finding("a gateway is listening"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let advice = "run as the user of the gateway, or give your group access to the socket";
            return finding("not allowed to connect").into_failure(advice);
        }
        Err(_) => {}
    }
    let Some(directory) = path.ancestors().skip(1).find(|directory| directory.is_dir()) else {
        return finding("no directory of its path exists").into_failure("create its directory");
    };
    // Only writing proves it: modes, mounts and ACLs all matter.
    let probe = directory.join(format!(".landbridge-doctor-{}", std::process::id()));
    match std::fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => {
            // An empty file of a unique name is harmless if it cannot be removed.
            let _ = std::fs::remove_file(&probe);
            finding("can be created; no gateway is listening")
        }
        Err(error) => {
            let advice = format!("give the gateway's user write access to {}", directory.display());
            finding(&format!("{}: {error}", directory.display())).into_failure(advice)
        }
    }
}

/// Checks that the token file of a job can be loaded and that only its owner can read it.
pub(super) fn check_token_file(job: &JobConfig) -> Finding {
    match token_file::load_token(&job.token) {
        Err(TokenFileError::Malformed(_)) => {
            let found = "not a job token, which is 64 hexadecimal digits";
            let finding = Finding::ok("job token", job.token.display(), found);
            finding.into_failure("make one with `landbridge certs`")
        }
        // The check below reports a file that cannot be read.
        _ => check_secret_file("job token", &job.token),
    }
}

/// Checks that a secret file exists and that only its owner can read it.
pub(super) fn check_secret_file(check: &'static str, path: &Path) -> Finding {
    let finding = |found: &str| Finding::ok(check, path.display(), found);
    let opened = std::fs::File::open(path).and_then(|file| file.metadata());
    match opened {
        Err(error) => finding(&error.to_string()).into_failure("make it with `landbridge certs`"),
        Ok(metadata) => {
            let (mode, owner) = (metadata.permissions().mode() & 0o777, metadata.uid());
            let found = format!("mode {mode:03o}, owner {owner}");
            if mode & 0o077 == 0 {
                finding(&found)
            } else {
                finding(&format!("{found}: others may read it"))
                    .into_failure(format!("chmod 600 {}", path.display()))
            }
        }
    }
}

/// 16 MiB: the socket buffer that each lane requests of the kernel for each direction.
const SOCKET_BUFFER_BYTES: u64 = 16 << 20;
