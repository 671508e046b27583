//! Checks of the host: kernel limits, the local socket, secret files.

use super::finding::Finding;
use gateway::access::{
    self, SocketAccessError, TrustedSocketUsers, check_trusted_socket_folder,
    check_trusted_socket_peer, denied_trusted_socket,
};
use gateway::config::{GatewayConfig, JobConfig, RegionFile};
use gateway::daemon::{descriptor_needs, process_memory_budget_needs};
use gateway::limits::descriptor_limit::check_descriptor_limit;
use gateway::limits::memory_limits::{MemoryLimitNeeds, memory_limit_below_needs};
use gateway::local::socket::{
    GatewaySocketSpec, ListenError, check_gateway_socket_folder_mode, check_gateway_socket_path,
};
use gateway::local::token_file::{self, TokenFileError};
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::path::Path;
use units::ByteCount;

/// Checks that the limits of the kernel allow the socket buffers of a lane.
pub(super) fn diagnose_host_socket_buffers() -> Vec<Finding> {
    ["net.core.rmem_max", "net.core.wmem_max"]
        .into_iter()
        .map(diagnose_host_socket_buffer)
        .collect()
}

/// Checks that a `net.core` limit of the kernel is at least [`SOCKET_BUFFER_BYTES`]. A lower one is
/// a warning, and one that cannot be read is skipped.
fn diagnose_host_socket_buffer(setting: &'static str) -> Finding {
    let file = format!("/proc/sys/{}", setting.replace('.', "/"));
    let limit = std::fs::read_to_string(&file);
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let check = "socket buffers";
    match limit {
        None => Finding::ok(check, setting, format!("{file} cannot be read")).into_skipped(),
        Some(bytes) if bytes >= SOCKET_BUFFER_BYTES => Finding::ok(check, setting, bytes),
        Some(bytes) => {
            let found = format!("{bytes}, below {SOCKET_BUFFER_BYTES}: bursts will be dropped");
            let advice = format!("as root: sysctl -w {setting}={SOCKET_BUFFER_BYTES}");
            Finding::ok(check, setting, found).into_warning(advice)
        }
    }
}

/// Checks that no limit of the host, of cgroups or of the process is below the memory of the gateway
/// and the arenas of its jobs. The doctor's own limits are the gateway's only if both run alike.
pub(super) fn diagnose_host_memory(region: &RegionFile, gateway: &GatewayConfig) -> Finding {
    let arenas = region.arenas_memory();
    let finding =
        |found: String| Finding::ok("memory limits", "`memory` of gateway and jobs", found);
    let (fabric, networks) = (region.fabric(), region.fabric().count_lane_networks(gateway.id));
    let needs = process_memory_budget_needs(gateway.memory, arenas, fabric.fabric(), networks);
    if let Some(short) = memory_limit_below_needs(&needs) {
        let advice = short.remedy_for(gateway.memory);
        return finding(format!("gateway: {}; {short}", gateway.memory)).into_failure(advice);
    }
    let sum = ByteCount::new(gateway.memory.get().saturating_add(arenas.get()));
    // Gateway and trainers share one host.
    let resident = needs.resident.saturating_add(arenas.get());
    match memory_limit_below_needs(&MemoryLimitNeeds { resident, ..needs }) {
        Some(limit) => {
            let advice = format!("{}, or lower `memory` of jobs", limit.limit.remedy);
            finding(format!("gateway and jobs: {}; {limit}", sum.rounded())).into_warning(advice)
        }
        None => finding(format!("gateway and jobs: {}, below every limit", sum.rounded())),
    }
}

/// Checks that the limit on descriptors allows all ranks and lanes of the gateway.
pub(super) fn diagnose_host_descriptors(region: &RegionFile, gateway: &GatewayConfig) -> Finding {
    let of = (region.jobs().count(), region.fabric().count_lane_networks(gateway.id));
    let needed =
        descriptor_needs(region.fabric().fabric(), gateway.id, of, gateway.attach.is_some());
    let finding = |found: String| Finding::ok("descriptors", "ulimit -Hn", found);
    match check_descriptor_limit(needed) {
        Ok(()) => finding(format!("up to {needed} are needed, and allowed")),
        Err(error) => finding(error.to_string())
            .into_warning("raise the hard limit: ulimit -Hn, or LimitNOFILE= of the service"),
    }
}

/// Checks that a gateway listens on its local socket, or can create it, where no other user can
/// replace it. Call it within a runtime.
pub(super) fn diagnose_host_socket(gateway: &GatewayConfig) -> Finding {
    let (check, path) = ("local socket", gateway.socket.as_path());
    let finding = |found: &str| Finding::ok(check, path.display(), found);
    let ids = gateway.user_id().and_then(|user| gateway.group_id().map(|group| (user, group)));
    let (user, group) = match ids {
        Ok(ids) => ids,
        Err(error) => return finding(&error.to_string()).into_failure("correct the region file"),
    };
    let spec = GatewaySocketSpec::new(path.to_owned(), group, gateway.mode);
    if let Err(error) = check_gateway_socket_folder_mode(&spec) {
        return finding(&error.to_string()).into_failure("remove the folder, or change its mode");
    }
    let trusted = TrustedSocketUsers::new(user);
    let listening = match UnixStream::connect(path) {
        Ok(stream) => diagnose_host_socket_user(stream).map(Some),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error),
        Err(_) => Ok(None),
    };
    let judged = match listening {
        Err(_) => Err(denied_trusted_socket(path)),
        Ok(user) => check_trusted_socket_folder(path, trusted).and_then(|()| match user {
            Some(user) => check_trusted_socket_peer(path, user, trusted).map(|()| true),
            None => Ok(false),
        }),
    };
    let other_user = user.filter(|user| *user != access::own_user_account());
    match (judged, other_user) {
        (Ok(false), Some(user)) => {
            let user = access::user_account_label(user);
            finding(&format!("the gateway has to run as user {user}, and this is another"))
                .into_warning("start `landbridge run` as that user; run this command as the same")
        }
        (Ok(is_listening), _) => match check_gateway_socket_path(path) {
            Err(ListenError::Held { .. }) => finding("a gateway is listening"),
            // Only the gateway's own user can read its lock file.
            Err(ListenError::File { source, .. })
                if is_listening && source.kind() == ErrorKind::PermissionDenied =>
            {
                finding("a gateway is listening")
            }
            Ok(()) => diagnose_unmade_host_socket(path, &finding),
            // Its folder is not there yet, or cannot be entered: the check says which.
            Err(ListenError::File { source, .. })
                if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) =>
            {
                diagnose_unmade_host_socket(path, &finding)
            }
            Err(error) => {
                let advice = "remove what is in the way, or give the gateway another `socket`";
                finding(&error.to_string()).into_failure(advice)
            }
        },
        (Err(error), _) => {
            let advice = match error {
                SocketAccessError::Denied { .. } => {
                    "run as the user of the gateway, or give your group access to the socket"
                }
                SocketAccessError::ForeignPeer { .. } => {
                    "stop that process, or name its user in `user` of the gateway"
                }
                SocketAccessError::ForeignFolder { .. } | SocketAccessError::OpenFolder { .. } => {
                    "use a folder that only the gateway's user can make and write"
                }
            };
            finding(&error.to_string()).into_failure(advice)
        }
    }
}

/// Returns the user of the process that listens at the other end of a connection.
fn diagnose_host_socket_user(stream: UnixStream) -> std::io::Result<u32> {
    stream.set_nonblocking(true)?;
    Ok(tokio::net::UnixStream::from_std(stream)?.peer_cred()?.uid())
}

/// Checks that the gateway can create its local socket, by making and removing a file in the
/// nearest folder of the path that exists.
fn diagnose_unmade_host_socket(path: &Path, finding: &dyn Fn(&str) -> Finding) -> Finding {
    // The last folder above a relative path is the working directory, whose name is empty there.
    let above = path.ancestors().skip(1);
    let mut above =
        above.map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
    let Some(directory) = above.find(|directory| directory.is_dir()) else {
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
            let folder = directory.display();
            let advice = match error.kind() {
                ErrorKind::ReadOnlyFilesystem => format!(
                    "let `socket` name a path on another file system: {folder} is on one that is \
                     mounted read-only"
                ),
                _ => format!("give the gateway's user write access to {folder}"),
            };
            finding(&format!("{}: {error}", directory.display())).into_failure(advice)
        }
    }
}

/// Checks that the token file of a job can be loaded, and that only its owner and the group of the
/// socket can read it.
pub(super) fn diagnose_host_token_file(job: &JobConfig, group: Option<u32>) -> Finding {
    match token_file::load_token_file(&job.token) {
        Err(TokenFileError::Malformed(_)) => {
            let found = "not a job token, which is 64 hexadecimal digits";
            let finding = Finding::ok("job token", job.token.display(), found);
            finding.into_failure("make one with `landbridge certs`")
        }
        // The check below reports a file that cannot be read.
        _ => diagnose_host_secret_file("job token", &job.token, group),
    }
}

/// Checks that a secret file exists and that only its owner, and `group` if it is given, can read
/// the file. `landbridge run` uses the same rule. `check` is the name of the finding.
pub(super) fn diagnose_host_secret_file(
    check: &'static str,
    path: &Path,
    group: Option<u32>,
) -> Finding {
    match access::check_secret_file(path, group) {
        Ok(found) => Finding::ok(check, path.display(), found),
        Err(error) => {
            Finding::ok(check, path.display(), error.found()).into_failure(error.advice())
        }
    }
}

/// 16 MiB: the socket buffer that each lane requests for each direction. `landbridge doctor` warns
/// where the kernel's limit is lower, since the kernel then grants less and bursts are dropped.
const SOCKET_BUFFER_BYTES: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::super::finding::FindingVerdict;
    use super::*;

    #[test]
    fn a_socket_below_the_working_directory_can_be_made() {
        for path in ["no-such-folder/east-0.sock", "east-0.sock", "./a/b/east-0.sock"] {
            let finding = |found: &str| Finding::ok("local socket", path, found);
            let found = diagnose_unmade_host_socket(Path::new(path), &finding);
            assert_eq!(found.verdict, FindingVerdict::Ok, "{found:?}");
        }
    }
}
