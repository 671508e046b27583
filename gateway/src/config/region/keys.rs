//! Tables and keys of a region file.

use crate::access::Account;
use crate::config::config_value::{BindAddress, LaneBindAddress, MemorySize};
use crate::config::key::KeyNeed::{Optional, Required};
use crate::config::key::{Key, TableKeys};
use crate::local::socket::GatewaySocketMode;
use crate::observe::spans::otlp_endpoint::OtlpEndpoint;
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Keys and tables of a whole region file: the reader accepts these alone, and docs list them.
pub(in crate::config) static REGION_FILE_TABLE: TableKeys = TableKeys {
    name: "",
    placeholder: "",
    about: "The keys before the first table.",
    accepted: "a region file",
    keys: &[FABRIC_PATH.description()],
    tables: &[&GATEWAY_TABLE, &JOB_TABLE],
};

/// Keys of the tables `[gateway.GATEWAY]`: the reader accepts these alone, and docs list them.
pub(super) static GATEWAY_TABLE: TableKeys = TableKeys {
    name: "gateway",
    placeholder: "GATEWAY",
    about: "One table for each gateway that this file configures, at least one. The names are \
            those of the fabric file, and all gateways are of one region.",
    accepted: "a table such as [gateway.east-0]",
    keys: &[
        GATEWAY_SOCKET.description(),
        GATEWAY_USER.description(),
        GATEWAY_GROUP.description(),
        SOCKET_MODE.description(),
        GATEWAY_ATTACH.description(),
        TRAINERS_CA.description(),
        GATEWAY_STATUS.description(),
        GATEWAY_DUMPS.description(),
        GATEWAY_OTLP.description(),
        GATEWAY_CERTIFICATE.description(),
        GATEWAY_PRIVATE_KEY.description(),
        CA_CERTIFICATE.description(),
        GATEWAY_MEMORY.description(),
        GATEWAY_LISTEN.description(),
        SEGMENTATION_OFFLOAD.description(),
    ],
    tables: &[],
};

/// Keys of the tables `[job.JOB]`: the reader accepts these alone, and docs list them.
pub(super) static JOB_TABLE: TableKeys = TableKeys {
    name: "job",
    placeholder: "JOB",
    about: "One table for each training job whose ranks may attach, at least one. A job needs its \
            table in the file of every region but that of a witness, which has no job.",
    accepted: "a table such as [job.train]",
    keys: &[JOB_TOKEN.description(), JOB_MEMORY.description(), JOB_WEIGHT.description()],
    tables: &[],
};

/// Key `fabric`: path of the fabric file.
pub(super) const FABRIC_PATH: Key<PathBuf> =
    Key::new("fabric", Required, "\"fabric.toml\"", "The fabric file.");

/// Key `socket` of a gateway: path of the Unix socket at which ranks attach.
pub(super) const GATEWAY_SOCKET: Key<PathBuf> = Key::new(
    "socket",
    Required,
    "\"/run/landbridge/east-0.sock\"",
    "Unix socket at which ranks attach. With the folder of this file, its path has at most 107 \
     bytes. Only the gateway's user and root may own its folder or write to it, as in \
     `/run/landbridge` or `/run/user/1000`; a folder that is missing is made. Beside it the gateway \
     keeps a lock file of the same name with `.lock` behind it.",
);

/// Key `user` of a gateway: the user as whom the gateway runs, whom trainers of other users trust.
pub(super) const GATEWAY_USER: Key<Account> = Key::new(
    "user",
    Optional("each trainer's own user"),
    "\"landbridge\"",
    "User as whom the gateway runs, where trainers run as others: they trust its socket only if \
     that user, their own or root listens there. The gateway does not start as another user.",
);

/// Key `group` of a gateway: the group whose members may use its socket.
pub(super) const GATEWAY_GROUP: Key<Account> = Key::new(
    "group",
    Optional("the gateway's user alone"),
    "\"train\"",
    "Group whose members may connect to the socket, which then has mode 0660 instead of 0600. The \
     gateway's user must be a member. Token files of this group may have mode 0640.",
);

/// Key `mode` of a gateway: the users whose processes may use its socket.
pub(super) const SOCKET_MODE: Key<GatewaySocketMode> = Key::new(
    "mode",
    Optional("0660 with `group`, else 0600"),
    "\"0666\"",
    "Mode of the socket. With `0666` trainers of every user of the host may connect, and a job's token \
     alone admits them; they name the gateway's user in `user`. A folder that the gateway makes can \
     then be entered by all. `0660` needs `group`.",
);

/// Key `attach` of a gateway: the TCP address for trainers on other hosts.
pub(super) const GATEWAY_ATTACH: Key<BindAddress> = Key::new(
    "attach",
    Optional("trainers of this host alone"),
    "\"192.0.2.10:7480\"",
    "TCP address at which ranks on other hosts of the site attach, with TLS 1.3: they are given \
     `tls://HOST:PORT` and the file `ca`. Their arenas are memory of the gateway then, within the \
     `memory` of their job.",
);

/// Key `trainers_ca` of a gateway: the CA whose certificates trainers must show at `attach`.
pub(super) const TRAINERS_CA: Key<PathBuf> = Key::new(
    "trainers_ca",
    Optional("the job's token alone admits"),
    "\"keys/trainers-ca.pem\"",
    "Certificate of the CA, PEM, whose certificates ranks on other hosts must show at `attach`. It may \
     be the file of `ca`. The job's token is asked for as well.",
);

/// Key `status` of a gateway: TCP address of its HTTP server for metrics and status.
pub(super) const GATEWAY_STATUS: Key<BindAddress> = Key::new(
    "status",
    Required,
    "\"127.0.0.1:9400\"",
    "TCP address of the HTTP server for the status page at `/`, and for `/status`, `/dump`, \
     `/history`, `/fabric`, `/metrics`, `/healthz` and `/readyz`. It asks for no password: choose \
     loopback or a private address.",
);

/// Key `dumps` of a gateway: the folder into which it writes dumps of failures.
pub(super) const GATEWAY_DUMPS: Key<PathBuf> = Key::new(
    "dumps",
    Optional("failures are not dumped"),
    "\"/var/lib/landbridge/dumps\"",
    "Folder into which the gateway writes its dump when a collective fails with code 1, 3, 4, 5 or 7, for \
     `landbridge explain` afterwards: one a minute at most, 32 files and 64 MiB at most, of which the oldest go \
     first. Only the gateway's user can read them. A folder that is missing is made. Without this key a \
     gateway writes no file but its socket and lock.",
);

/// Key `otlp` of a gateway: the collector to which it posts spans of collectives.
pub(super) const GATEWAY_OTLP: Key<OtlpEndpoint> = Key::new(
    "otlp",
    Optional("no spans are exported"),
    "\"http://127.0.0.1:4318\"",
    "Collector of OpenTelemetry (OTLP over HTTP, as JSON) to which the gateway posts a span for each collective that \
     ends here, with its phases. It is plain HTTP: choose a collector on this host or on a private network, which \
     may pass spans on with TLS.",
);

/// Key `certificate` of a gateway: path of its certificate chain, PEM.
pub(super) const GATEWAY_CERTIFICATE: Key<PathBuf> = Key::new(
    "certificate",
    Required,
    "\"keys/east-0.pem\"",
    "Certificate chain of the gateway, PEM. `landbridge certs` makes it.",
);

/// Key `key` of a gateway: path of its private key, PEM.
pub(super) const GATEWAY_PRIVATE_KEY: Key<PathBuf> =
    Key::new("key", Required, "\"keys/east-0.key\"", "Private key of the certificate, PEM.");

/// Key `ca` of a gateway: path of the certificate of the CA, PEM.
pub(super) const CA_CERTIFICATE: Key<PathBuf> = Key::new(
    "ca",
    Required,
    "\"keys/ca.pem\"",
    "Certificate of the CA that signed the certificates of all gateways, PEM.",
);

/// Key `memory` of a gateway: the memory for windows, lanes and partial sums, as a size with a unit.
/// Partial sums get at least half. Where windows and lanes need more than half, the gateway warns,
/// and may exceed this size.
pub(super) const GATEWAY_MEMORY: Key<MemorySize> = Key::new(
    "memory",
    Required,
    "\"1 GiB\"",
    "Memory for QUIC windows, lanes and the partial sums of all jobs. Partial sums get what \
     windows and lanes leave, and at least half. `landbridge check` prints what windows and lanes \
     take, and warns when `memory` is too small. Arenas of ranks are not part of it.",
);

/// Key `listen` of a gateway: the address that its lanes bind, or an array of several.
pub(super) const GATEWAY_LISTEN: Key<LaneBindAddress> = Key::new(
    "listen",
    Optional("the fabric's `wan`"),
    "\"0.0.0.0:7400\"",
    "Address and UDP port that lanes bind, where it is not the one that peers reach: behind NAT or a \
     relay. Where `wan` is a host name, lanes bind its port at all IPv4 addresses of the host \
     without this key; \"[::]:7400\" takes IPv4 and IPv6. Only for a gateway with a WAN port. One \
     without `wan` dials from that address and any port, and states port 0: \"0.0.0.0:0\".",
);

/// Key `segmentation_offload` of a gateway: whether lanes use UDP GSO.
pub(super) const SEGMENTATION_OFFLOAD: Key<bool> = Key::new(
    "segmentation_offload",
    Optional("true"),
    "false",
    "Whether lanes hand several packets to the system at once (UDP GSO). Set it to `false` where \
     a netem qdisc on this host delays or drops packets, since netem drops them together.",
);

/// Key `token` of a job: path of the file with the job's secret.
pub(super) const JOB_TOKEN: Key<PathBuf> = Key::new(
    "token",
    Required,
    "\"keys/train.token\"",
    "File with the secret that the job's ranks present. `landbridge certs --job` makes it.",
);

/// Key `memory` of a job: the most memory, as a size with a unit, that its ranks' arenas on one
/// gateway may take together. A rank whose arena would exceed it is refused.
pub(super) const JOB_MEMORY: Key<MemorySize> = Key::new(
    "memory",
    Required,
    "\"4 GiB\"",
    "Sum of the arenas of the job's ranks on one gateway, at most.",
);

/// Key `weight` of a job: a number from 1 to 1000. Jobs share a link in proportion to their
/// weights.
pub(super) const JOB_WEIGHT: Key<NonZeroU32> = Key::new(
    "weight",
    Optional("1"),
    "2",
    "The job's share of a link, in relation to the weights of the other jobs that use it.",
);
