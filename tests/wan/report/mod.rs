//! The results for people and programs: pages, the plot, and a verdict for each bound.

pub mod figures;
pub mod pages;
pub mod plot;
pub mod verdict;

#[cfg(test)]
mod tests;
