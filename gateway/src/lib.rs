//! The Landbridge gateway.
