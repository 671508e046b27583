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

/// One page of figures.
struct Bench {
    /// The words after `cargo xtask bench`.
    name: &'static str,
    /// The page below `docs/results`, without its extension.
    page: &'static str,
    /// Measures it from the workspace's root.
    measure: fn(&Path) -> Result<Page, Failure>,
}

const BENCHES: [Bench; 13] = [
    Bench { name: "efficiency", page: "efficiency", measure: efficiency::measure },
    Bench { name: "faults", page: "faults", measure: faults::measure },
    Bench { name: "fuzz", page: "fuzz", measure: fuzz::measure },
    Bench { name: "hostile", page: "hostile", measure: hostile::measure },
    Bench { name: "plan", page: "plan", measure: core::measure_plan },
    Bench { name: "quickstart", page: "quickstart", measure: quickstart::measure },
    Bench { name: "reduce", page: "reduce", measure: core::measure_reduce },
    Bench { name: "shape", page: "shape", measure: core::measure_shape },
    Bench { name: "simulate", page: "simulate", measure: simulate::measure },
    Bench { name: "train", page: "train", measure: train::measure },
    Bench { name: "wan", page: "wan/whole", measure: wan::measure },
    Bench { name: "wan --quick", page: "wan/quick", measure: wan::measure_quick },
    Bench { name: "wan-sim", page: "wan-sim", measure: wan_sim::measure },
];

/// Runs a bench and writes its page; `None` when there is none of that name.
pub fn run(name: &str) -> Option<ExitCode> {
    let bench = BENCHES.iter().find(|bench| bench.name == name)?;
    Some(write(bench.page, name, bench.measure))
}

/// Runs some fuzz targets and replaces their rows of the page.
pub fn fuzz_some(targets: &[&str]) -> ExitCode {
    write("fuzz", "fuzz", |root| fuzz::measure_targets(root, targets))
}

/// Measures, and writes the page with the command, the commit and the machine in its second line.
fn write(
    page_name: &str,
    name: &str,
    measure: impl Fn(&Path) -> Result<Page, Failure>,
) -> ExitCode {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a member's folder");
    // Read before the measurement, since files may change meanwhile.
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
