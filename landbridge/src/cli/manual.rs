//! `landbridge man`: manual pages.
//!
//! They are made of the descriptions that `--help` prints, so that packages hold what the program of
//! the same version takes.

use super::output::exit::Exit;
use crate::cli::output::command_error::CommandError;
use clap::{Args, Command};
use std::path::PathBuf;

/// Write a manual page for each command.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge man --out ~/.local/share/man/man1")]
pub(super) struct ManCommand {
    /// The directory for the pages; created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

impl ManCommand {
    /// Runs `landbridge man`: writes one page for the program, and one for each command of `line`.
    pub(super) fn run(self, line: Command) -> Result<Exit, CommandError> {
        let written = std::fs::create_dir_all(&self.out)
            .and_then(|()| clap_mangen::generate_to(line, &self.out));
        written.map_err(|source| CommandError::Path { path: self.out, source })?;
        Ok(Exit::Good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::LandbridgeArguments;
    use clap::CommandFactory;

    /// Returns a command and all below it that users see, as they print help.
    fn with_subcommands(command: &Command) -> Vec<Command> {
        let shown = command.get_subcommands().filter(|below| !below.is_hide_set());
        let below = shown.flat_map(with_subcommands);
        std::iter::once(command.clone()).chain(below).collect()
    }

    #[test]
    fn every_help_fits_its_terminal() {
        let whole = helps(1000);
        assert!(whole.len() > 30, "{} texts found", whole.len());
        for columns in [40, 60, 80, 200] {
            for ((name, help), (_, whole)) in std::iter::zip(helps(columns), &whole) {
                // A path in an example is one word.
                let is_too_long = |line: &&str| {
                    line.chars().count() > columns.into() && line.trim().contains(' ')
                };
                let long = help.lines().find(is_too_long);
                assert_eq!(long, None, "{name} in {columns} columns:\n{help}");
                let words =
                    |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                assert_eq!(words(&help), words(whole), "{name} in {columns} columns");
            }
        }
    }

    /// Returns the names of all commands with their short and long help at a width.
    fn helps(columns: u16) -> Vec<(String, String)> {
        let mut line = wan_sim::cli::fit_usage_help(LandbridgeArguments::command(), columns);
        line.build();
        let texts = with_subcommands(&line).into_iter().flat_map(|mut command| {
            let texts = [command.render_help(), command.render_long_help()];
            let wrapped = texts.map(|text| stdio::wrap_words(&text.to_string(), columns));
            wrapped.map(|text| (command.get_name().to_owned(), text))
        });
        texts.collect()
    }

    #[test]
    fn each_command_has_a_manual_page() {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().join("man1");
        ManCommand { out: out.clone() }.run(LandbridgeArguments::command()).expect("written");
        let page = |name: &str| std::fs::read_to_string(out.join(name)).expect("a page");
        assert!(page("landbridge.1").contains("Exit codes"));
        assert!(page("landbridge-bench-all-reduce.1").contains("LANDBRIDGE_CONFIG"));
        for command in
            LandbridgeArguments::command().get_subcommands().filter(|found| !found.is_hide_set())
        {
            let name = command.get_name();
            assert!(page(&format!("landbridge-{name}.1")).contains(".SH SYNOPSIS"), "{name}");
        }
        assert!(!out.join("landbridge-quickstart-rank.1").exists());
    }
}
