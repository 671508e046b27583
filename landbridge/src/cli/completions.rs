//! `landbridge completions`: the completions of a shell.
//!
//! They are made of the descriptions that `--help` prints, so that packages hold what the program of
//! the same version takes.

use super::output::command_error::CommandError;
use super::output::exit::Exit;
use super::output::print::print_verbatim;
use clap::{Args, Command};
use clap_complete::Shell;

/// Print the completions of a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example: landbridge completions bash > \
    ~/.local/share/bash-completion/completions/landbridge")]
pub(super) struct CompletionsCommand {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    shell: Shell,
}

impl CompletionsCommand {
    /// Runs `landbridge completions`: prints a script that completes the commands of `line`.
    pub(super) fn run(self, line: Command) -> Result<Exit, CommandError> {
        print_verbatim(completions(self.shell, line).trim_end())?;
        Ok(Exit::Good)
    }
}

/// Returns a script by which `shell` completes the commands of `line`.
fn completions(shell: Shell, mut line: Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut line, "landbridge", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::LandbridgeArguments;
    use clap::{CommandFactory, ValueEnum};

    #[test]
    fn each_shell_completes_each_command() {
        for shell in Shell::value_variants() {
            let script = completions(*shell, LandbridgeArguments::command());
            for command in LandbridgeArguments::command().get_subcommands() {
                let name = command.get_name();
                assert!(command.is_hide_set() || script.contains(name), "{shell}: {name}");
            }
        }
    }
}
