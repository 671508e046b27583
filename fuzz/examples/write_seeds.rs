//! Writes the seeds and dictionaries of all targets.
//!
//! Run it after a change of the wire, a config or an example; `tests/short.rs` fails until then.

use fuzz::TARGETS;
use std::fs;
use std::io;

fn main() -> io::Result<()> {
    for target in &TARGETS {
        fs::create_dir_all(target.corpus_folder())?;
        for entry in fs::read_dir(target.corpus_folder())? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with("seed-") {
                fs::remove_file(entry.path())?;
            }
        }
        for (path, bytes) in target.seed_files() {
            fs::create_dir_all(path.parent().expect("in a folder"))?;
            fs::write(path, bytes)?;
        }
    }
    Ok(())
}
