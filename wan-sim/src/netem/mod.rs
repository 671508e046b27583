//! Links in netem's words: `delay 40ms 2ms distribution normal loss 1% rate 1gbit`.
//!
//! Every word has netem's meaning or is refused; docs/netem.md lists them all, with the few
//! of our own that netem lacks.

mod error;
mod netem_link;
mod netem_parser;
mod netem_words;
mod parse_value;
mod print;

pub use error::NetemError;
pub use netem_link::Netem;
pub(crate) use parse_value::{parse_netem_rate_value, parse_netem_span_value};
pub(crate) use print::{print_netem_rate, print_netem_span};

#[cfg(test)]
mod tests;
