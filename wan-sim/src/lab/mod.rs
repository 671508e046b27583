//! Sites as network namespaces on this machine, with links between them.
//!
//! Each site has one device, `wan0`, through which it reaches every other site. Any
//! program runs there unmodified; TCP and UDP segmentation offload stay on, and every
//! segment meets its link by itself. Needs the privilege to make namespaces and devices.

mod error;
mod frame;
mod host_receipts;
mod lab_links;
mod namespace;
mod running_lab;
mod segment_runs;
mod site_pump;
mod status;
mod tun;

pub use error::{IP_COMMAND_MISSING, LabError};
pub use namespace::{
    check_namespace_entry, list_namespaces, namespace_name, remove_orphan_namespaces,
};
pub use running_lab::RunningLab;
pub use status::LinkStatus;
