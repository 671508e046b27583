//! Tables and keys of a region file.

use crate::config::key::Need::{Optional, Required};
use crate::config::key::{Key, Table};
use crate::config::values::{Bind, Budget, LaneBind};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// The file itself.
pub(in crate::config) static FILE: Table = Table {
    name: "",
    placeholder: "",
    about: "The keys before the first table.",
    accepted: "a region file",
    keys: &[FABRIC.row()],
    tables: &[&GATEWAY, &JOB],
};

/// The tables `[gateway.GATEWAY]`.
pub(super) static GATEWAY: Table = Table {
    name: "gateway",
    placeholder: "GATEWAY",
    about: "One table for each gateway that this file configures, at least one. The names are \
            those of the fabric file, and all gateways are of one region.",
    accepted: "a table such as [gateway.east-0]",
    keys: &[
        SOCKET.row(),
        STATUS.row(),
        CERTIFICATE.row(),
        PRIVATE_KEY.row(),
        CA.row(),
        GATEWAY_MEMORY.row(),
        LISTEN.row(),
        SEGMENTATION_OFFLOAD.row(),
    ],
    tables: &[],
};

/// The tables `[job.JOB]`.
pub(super) static JOB: Table = Table {
    name: "job",
    placeholder: "JOB",
    about: "One table for each training job whose ranks may attach, at least one. A job needs its \
            table in the file of every region.",
    accepted: "a table such as [job.train]",
    keys: &[TOKEN.row(), JOB_MEMORY.row(), WEIGHT.row()],
    tables: &[],
};

pub(super) const FABRIC: Key<PathBuf> =
    Key::new("fabric", Required, "\"fabric.toml\"", "The fabric file.");

pub(super) const SOCKET: Key<PathBuf> = Key::new(
    "socket",
    Required,
    "\"/run/landbridge/east-0.sock\"",
    "Unix socket at which ranks attach. With the folder of this file, its path has at most 107 \
     bytes.",
);

pub(super) const STATUS: Key<Bind> = Key::new(
    "status",
    Required,
    "\"127.0.0.1:9400\"",
    "TCP address of the HTTP server for `/metrics`, `/status`, `/healthz` and `/readyz`. It asks \
     for no password: choose loopback or a private address.",
);

pub(super) const CERTIFICATE: Key<PathBuf> = Key::new(
    "certificate",
    Required,
    "\"keys/east-0.pem\"",
    "Certificate chain of the gateway, PEM. `landbridge certs` makes it.",
);

pub(super) const PRIVATE_KEY: Key<PathBuf> =
    Key::new("key", Required, "\"keys/east-0.key\"", "Private key of the certificate, PEM.");

pub(super) const CA: Key<PathBuf> = Key::new(
    "ca",
    Required,
    "\"keys/ca.pem\"",
    "Certificate of the CA that signed the certificates of all gateways, PEM.",
);

pub(super) const GATEWAY_MEMORY: Key<Budget> = Key::new(
    "memory",
    Required,
    "\"1 GiB\"",
    "Memory for QUIC windows, lanes and the partial sums of all jobs. Partial sums get what \
     windows and lanes leave, and at least half. `landbridge check` prints what windows and lanes \
     take, and warns when `memory` is too small. Arenas of ranks are not part of it.",
);

pub(super) const LISTEN: Key<LaneBind> = Key::new(
    "listen",
    Optional("the fabric's `wan`"),
    "\"0.0.0.0:7400\"",
    "Address that lanes bind, where it is not the one that peers reach: behind NAT or a relay. \
     Only for a gateway with a WAN port.",
);

pub(super) const SEGMENTATION_OFFLOAD: Key<bool> = Key::new(
    "segmentation_offload",
    Optional("true"),
    "false",
    "Whether lanes hand several packets to the system at once (UDP GSO). Set it to `false` where \
     a netem qdisc on this host delays or drops packets, since netem drops them together.",
);

pub(super) const TOKEN: Key<PathBuf> = Key::new(
    "token",
    Required,
    "\"keys/train.token\"",
    "File with the secret that the job's ranks present. `landbridge certs --job` makes it.",
);

pub(super) const JOB_MEMORY: Key<Budget> = Key::new(
    "memory",
    Required,
    "\"4 GiB\"",
    "Sum of the arenas of the job's ranks on one gateway, at most.",
);

pub(super) const WEIGHT: Key<NonZeroU32> = Key::new(
    "weight",
    Optional("1"),
    "2",
    "The job's share of a link, in relation to the weights of the other jobs that use it.",
);
