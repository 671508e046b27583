//! Collectives come close to the lower bound on every fabric, and share links by weight.

mod congestion_controllers;
mod fabric_shapes;
mod fixed_window;
mod group_ports;
mod link_sharing;
mod lower_bound;
mod packet_size;
mod quic_limits;
mod several_gateways;
mod shared_links;
mod small_operations;
