//! The results for people and programs: pages, pictures, bounds, and cores on paper.

pub mod bars;
pub mod flame_graph;
pub mod pages;
pub mod paper;
pub mod svg;
pub mod verdict;
