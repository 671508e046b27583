//! Groups that ranks make at run time: their results, their failures, and their end.

mod crowds;
mod disagreements;
mod failures;
pub mod members;
mod missing_links;
mod relayed_failures;
mod relayed_sends;
mod restarts;
mod results;
pub mod sends;
mod turnover;
