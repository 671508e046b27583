//! Dumps of gateways' states, and the cause of a job's trouble by them.
//!
//! `landbridge dump` collects a [`dump::Dump`] in each region. `landbridge explain` reads those of all
//! regions, and dumps that ranks have written, and names the party at fault by [`causes::find_causes`], which
//! asks nobody. [`party`] says which fault explains which. [`torch_trace`] has flight recorders in PyTorch's
//! format.

pub(crate) mod causes;
pub(crate) mod client_dumps;
pub(crate) mod dump;
pub(crate) mod dump_view;
mod files;
mod party;
mod past;
mod problems;
mod slowness;
pub(crate) mod torch_trace;
mod waits;

#[cfg(test)]
mod tests;
