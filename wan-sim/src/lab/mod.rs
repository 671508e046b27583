//! Sites as network namespaces on this machine, with links between them.
//!
//! Each site has one device, `wan0`, through which it reaches every other site. Any
//! program runs there unmodified; TCP and UDP segmentation offload stay on, and every
//! segment meets its link by itself. Needs the privilege to make namespaces and devices.

mod error;
mod frame;
mod hosts;
mod links;
mod namespace;
mod pump;
mod running;
mod status;
mod tun;

pub use error::{LabError, NO_IP};
pub use namespace::{may_enter, namespace_name, namespaces, remove_orphans};
pub use running::Lab;
pub use status::LinkStatus;
