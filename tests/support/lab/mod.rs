//! Fabrics of whole gateways under virtual time, their jobs, and the credentials they present.

pub mod credentials;
pub mod expected;
pub mod fabric_text;
pub mod jobs;
pub mod mesh;
pub mod running;
pub mod shape;
