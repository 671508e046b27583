//! The host: kernel limits, the local socket, secrets.

use super::Finding;
use crate::cli::CommandError;
use crate::config::{GatewayConfig, JobConfig};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Whether lanes get the socket buffers that they ask for.
pub(super) fn socket_buffers() -> Vec<Finding> {
    ["net.core.rmem_max", "net.core.wmem_max"].into_iter().map(socket_buffer).collect()
}

fn socket_buffer(setting: &'static str) -> Finding {
    let file = format!("/proc/sys/{}", setting.replace('.', "/"));
    let limit = std::fs::read_to_string(&file);
    let limit = limit.ok().and_then(|text| text.trim().parse::<u64>().ok());
    let check = "socket buffers";
    match limit {
        None => Finding::ok(check, setting, format!("{file} cannot be read here")).skipped(),
        Some(bytes) if bytes >= BUFFER_WANTED_BYTES => Finding::ok(check, setting, bytes),
        Some(bytes) => {
            let found = format!("{bytes}, below {BUFFER_WANTED_BYTES}: bursts will be lost");
            let advice = format!("sudo sysctl -w {setting}={BUFFER_WANTED_BYTES}");
            Finding::ok(check, setting, found).warning(advice)
        }
    }
}

/// Whether the gateway can make its socket, or a gateway has made it.
pub(super) fn local_socket(gateway: &GatewayConfig) -> Finding {
    let (check, path) = ("local socket", gateway.socket.as_path());
    let finding = |found: &str| Finding::ok(check, path.display(), found);
    match UnixStream::connect(path) {
        Ok(_) => return finding("a gateway is listening"),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let advice = "run as the user of the gateway, or let that user's group in";
            return finding("not allowed to connect").failed(advice);
        }
        Err(_) => {}
    }
    let Some(directory) = path.ancestors().skip(1).find(|directory| directory.is_dir()) else {
        return finding("no directory on its path is there").failed("make its directory");
    };
    // Writing is the one proof that counts: modes, mounts and ACLs all have their say.
    let probe = directory.join(format!(".landbridge-doctor-{}", std::process::id()));
    match std::fs::OpenOptions::new().write(true).create_new(true).open(&probe) {
        Ok(_) => {
            // It is empty and has a name of its own; left behind it would harm nobody.
            let _ = std::fs::remove_file(&probe);
            finding("can be made; no gateway is listening")
        }
        Err(error) => {
            let advice = format!("let the gateway's user write to {}", directory.display());
            finding(&format!("{}: {error}", directory.display())).failed(advice)
        }
    }
}

/// Whether a job's token is there and secret.
pub(super) fn token(job: &JobConfig) -> Finding {
    match crate::cli::token::load(&job.token) {
        Err(CommandError::Token(_)) => {
            let found = "is no job token: 64 hexadecimal digits";
            let finding = Finding::ok("job token", job.token.display(), found);
            finding.failed("make one with `landbridge certs`")
        }
        // What cannot be read is told of below.
        _ => secret("job token", &job.token),
    }
}

/// Whether a secret file is there and readable by its owner only.
pub(super) fn secret(check: &'static str, path: &Path) -> Finding {
    let finding = |found: &str| Finding::ok(check, path.display(), found);
    let opened = std::fs::File::open(path).and_then(|file| file.metadata());
    match opened {
        Err(error) => finding(&error.to_string()).failed("make it with `landbridge certs`"),
        Ok(metadata) => {
            let (mode, owner) = (metadata.permissions().mode() & 0o777, metadata.uid());
            let found = format!("mode {mode:03o}, owner {owner}");
            if mode & 0o077 == 0 {
                finding(&found)
            } else {
                finding(&format!("{found}: others may read it"))
                    .failed(format!("chmod 600 {}", path.display()))
            }
        }
    }
}

/// What each lane asks of the kernel for each direction.
const BUFFER_WANTED_BYTES: u64 = 16 << 20;
