//! Groups that ranks make at run time: their results, their failures, and their end.

mod disagreements;
mod failures;
mod members;
mod memory;
mod results;
mod turnover;
