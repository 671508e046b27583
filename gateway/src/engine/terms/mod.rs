//! Terms in the engine: the agreement on who goes on, and the worlds of a job.
//!
//! `engine_terms` does what the agreement asks for. Jobs leave and enter terms (`job::job_terms`)
//! and keep their worlds in `term_worlds`. `engine_fabrics` puts signed fabrics in force with terms.

pub(super) mod engine_fabric_set;
mod engine_fabrics;
mod engine_terms;
pub(super) mod term_worlds;
