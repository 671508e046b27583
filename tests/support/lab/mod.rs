//! Fabrics of whole gateways under virtual time, and the credentials they show.

pub mod credentials;
pub mod mesh;
