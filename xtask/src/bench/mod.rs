//! `cargo xtask bench NAME`: figures for the documents, with where they come from.

mod core;
mod efficiency;
mod faults;
mod fuzz;
mod hostile;
mod page;
mod quickstart;
mod simulate;
mod train;
mod wan;
mod wan_sim;

use crate::command::Failure;
use page::{Page, commit, machine};
use std::path::Path;
use std::process::ExitCode;

/// A bench's name, and what runs it from the workspace's root.
type Bench = (&'static str, fn(&Path) -> Result<Page, Failure>);

const BENCHES: [Bench; 12] = [
    ("efficiency", efficiency::measure),
    ("faults", faults::measure),
    ("fuzz", fuzz::measure),
    ("hostile", hostile::measure),
    ("plan", core::measure_plan),
    ("quickstart", quickstart::measure),
    ("reduce", core::measure_reduce),
    ("shape", core::measure_shape),
    ("simulate", simulate::measure),
    ("train", train::measure),
    ("wan", wan::measure),
    ("wan-sim", wan_sim::measure),
];

/// Runs a bench and writes its page; `None` when there is none of that name.
pub fn run(name: &str) -> Option<ExitCode> {
    let (name, measure) = BENCHES.iter().find(|(known, _)| *known == name)?;
    let page = if *name == "wan" { "wan/whole" } else { name };
    Some(write_to(page, name, measure))
}

/// Some fuzz targets anew.
pub fn fuzz_some(targets: &[&str]) -> ExitCode {
    write_to("fuzz", "fuzz", |root| fuzz::measure_targets(root, targets))
}

/// The few rows of `wan --quick`.
pub fn wan_quick() -> ExitCode {
    write_to("wan/quick", "wan --quick", wan::measure_quick)
}

/// Runs a bench, or the part of it that flags after its name choose, and writes it to `page`.
fn write_to(
    page_name: &str,
    name: &str,
    measure: impl Fn(&Path) -> Result<Page, Failure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    // Before anything is measured: who waits for it may change files meanwhile.
    let (command, commit) = (format!("cargo xtask bench {name}"), commit());
    let page = match measure(root) {
        Ok(page) => page,
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            return ExitCode::FAILURE;
        }
    };
    let machine = machine();
    let text = format!(
        "# {}\n\nWritten by `{command}` at commit {commit}, on {machine}.\n\n{}",
        page.title, page.text,
    );
    let mut files = vec![(format!("{page_name}.md"), text.clone())];
    if let Some(mut json) = page.json {
        for (key, value) in [("command", command), ("commit", commit), ("machine", machine)] {
            json[key] = value.into();
        }
        files.push((format!("{page_name}.json"), format!("{json}\n")));
    }
    let folder = root.join("docs/results");
    for (file, text) in files {
        let file = folder.join(file);
        let parent = file.parent().expect("a file's folder");
        let written = std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&file, &text));
        if let Err(error) = written {
            eprintln!("{}: {error}", file.display());
            return ExitCode::FAILURE;
        }
    }
    println!("{text}");
    page.missed.iter().for_each(|missed| eprintln!("NOT MET: {missed}"));
    if page.missed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A short run of `train`, shown and not written.
pub fn train_quick() -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    match train::quick(root) {
        Ok(page) => {
            println!("{}", page.text);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
            ExitCode::FAILURE
        }
    }
}

/// Parts of `wan`, shown and not written.
pub fn wan_shown(flags: &[&str]) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    wan::show(root, flags).unwrap_or_else(|failure| {
        eprintln!("{}\nRepeat with:\n  {}", failure.why, failure.repeat);
        ExitCode::FAILURE
    })
}
