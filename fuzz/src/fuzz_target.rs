//! A fuzz target, its files, and the list of all.

use crate::{config, links, local, seeds, store, wire};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// A decoder under test.
#[derive(Debug, Clone, Copy)]
pub struct FuzzTarget {
    /// Name of its program and of its folder of seeds.
    pub name: &'static str,
    /// Panics when the decoder breaks a promise.
    pub check: fn(&[u8]),
    /// Valid inputs of every kind.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

impl FuzzTarget {
    /// Returns the folder of the target's seeds, where libFuzzer also stores interesting inputs.
    pub fn corpus_folder(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name)
    }

    /// Returns the files that the project keeps for the target, with their contents: seeds, and for
    /// texts a dictionary for libFuzzer.
    pub fn seed_files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let seeds = (self.seeds)();
        let words = dictionary(&seeds);
        let named = (0..).zip(seeds);
        let folder = self.corpus_folder();
        let named = named.map(|(n, seed)| (folder.join(format!("seed-{n:02}")), seed));
        let mut files: Vec<_> = named.collect();
        if let Some(words) = words {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("dictionaries").join(self.name);
            files.push((path, words.into_bytes()));
        }
        files
    }
}

/// Returns the dictionary of seeds that are texts, one word a line; `None` for other seeds.
fn dictionary(seeds: &[Vec<u8>]) -> Option<String> {
    let texts: Option<Vec<&str>> =
        seeds.iter().map(|seed| std::str::from_utf8(seed).ok()).collect();
    let lines = texts?.into_iter().flat_map(str::lines).filter(|line| !line.starts_with('#'));
    let words = lines.flat_map(|line| line.split(|c: char| " =\"'[]{},".contains(c)));
    let plain = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_graphic());
    let words: BTreeSet<&str> = words.filter(plain).collect();
    Some(words.into_iter().map(|word| format!("\"{word}\"\n")).collect())
}

/// All 20 fuzz targets, in the order of the fuzz programs in `Cargo.toml`.
pub const TARGETS: [FuzzTarget; 20] = [
    FuzzTarget {
        name: "segment_header",
        check: wire::segment_header,
        seeds: seeds::segment_header_seeds,
    },
    FuzzTarget {
        name: "control_message",
        check: wire::control_message,
        seeds: seeds::control_message_seeds,
    },
    FuzzTarget {
        name: "link_message",
        check: wire::link_message,
        seeds: seeds::link_message_seeds,
    },
    FuzzTarget {
        name: "train_message",
        check: wire::train_message,
        seeds: seeds::train_message_seeds,
    },
    FuzzTarget {
        name: "parity_stream",
        check: wire::parity_stream,
        seeds: seeds::parity_stream_seeds,
    },
    FuzzTarget { name: "hello", check: wire::hello, seeds: seeds::hello_seeds },
    FuzzTarget {
        name: "store_message",
        check: store::store_message,
        seeds: store::store_message_seeds,
    },
    FuzzTarget {
        name: "store_request",
        check: store::store_request,
        seeds: store::store_request_seeds,
    },
    FuzzTarget {
        name: "store_answer",
        check: store::store_answer,
        seeds: store::store_answer_seeds,
    },
    FuzzTarget {
        name: "store_snapshot",
        check: store::store_snapshot,
        seeds: store::store_snapshot_seeds,
    },
    FuzzTarget {
        name: "local_request",
        check: local::local_request,
        seeds: seeds::local_request_seeds,
    },
    FuzzTarget {
        name: "local_response",
        check: local::local_response,
        seeds: seeds::local_response_seeds,
    },
    FuzzTarget {
        name: "piece_stream",
        check: local::piece_stream,
        seeds: seeds::piece_stream_seeds,
    },
    FuzzTarget {
        name: "operator_request",
        check: local::operator_request,
        seeds: seeds::operator_request_seeds,
    },
    FuzzTarget {
        name: "fabric_config",
        check: config::fabric_config,
        seeds: seeds::fabric_config_seeds,
    },
    FuzzTarget {
        name: "region_config",
        check: config::region_config,
        seeds: seeds::region_config_seeds,
    },
    FuzzTarget { name: "quantities", check: links::quantities, seeds: seeds::quantities_seeds },
    FuzzTarget { name: "netem_words", check: links::netem_words, seeds: seeds::netem_words_seeds },
    FuzzTarget { name: "lab_file", check: links::lab_file, seeds: seeds::lab_file_seeds },
    FuzzTarget { name: "recording", check: links::recording, seeds: seeds::recording_seeds },
];
