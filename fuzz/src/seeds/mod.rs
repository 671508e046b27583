//! Seeds of the targets: every kind of message, the example files, and the spellings of the docs.

mod file_seeds;
mod local_seeds;
mod seed_facts;
mod wire_seeds;

pub use file_seeds::{
    fabric_config_seeds, lab_file_seeds, netem_words_seeds, quantities_seeds, recording_seeds,
    region_config_seeds,
};
pub use local_seeds::{
    local_request_seeds, local_response_seeds, operator_request_seeds, piece_stream_seeds,
};
pub use wire_seeds::{
    control_message_seeds, hello_seeds, link_message_seeds, parity_stream_seeds,
    segment_header_seeds, train_message_seeds,
};
