//! The oracle: expected results, the harm each fault may do, and the outcome of a run.

pub(super) mod collective;
pub(super) mod crossing;
pub(super) mod harm;
pub(super) mod oracle;
pub(super) mod outcomes;
pub(super) mod side_load;
pub(super) mod store_history;
