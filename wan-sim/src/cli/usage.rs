//! The message for a wrong command line: one line, with what would be accepted.

use super::exit_codes::{EXIT_GOOD, EXIT_USAGE};
use super::output::print_wan_sim_output;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
use std::ffi::OsString;
use std::io::{self, IsTerminal};

/// 60 columns: the narrowest help text in which descriptions stand beside their flags. In a
/// narrower one they stand below the flags. The width is chosen.
const BESIDE_COLUMNS_MIN: u16 = 60;

/// Parses the command line of this process. Its help fits the terminal.
///
/// # Errors
/// The command line is wrong, or asks for help: see [`explain_usage_error`].
pub fn parse_arguments_or_usage<C: Parser>() -> Result<C, clap::Error> {
    let mut command = fit_usage_help(C::command(), stdio::help_columns());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    C::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// Makes the help of a command at most `columns` wide, but for lines of usage.
pub fn fit_usage_help(command: clap::Command, columns: u16) -> clap::Command {
    command.term_width(columns.into()).next_line_help(columns < BESIDE_COLUMNS_MIN)
}

/// Prints the help that was asked for, or the error in a command line of `C`. Returns the exit
/// code.
pub fn explain_usage_error<C: CommandFactory>(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            if !error.use_stderr() {
                return print_wan_sim_output(
                    &render_usage_help(error, io::stdout().is_terminal()),
                    EXIT_GOOD,
                );
            }
            stdio::print_stderr_message(render_usage_help(error, io::stderr().is_terminal()));
            return EXIT_USAGE;
        }
        _ => {}
    }
    // One line, which names the word and what would be accepted. The word may be anything.
    let text = error.to_string();
    let text = text.split("\n\nFor more").next().unwrap_or_default();
    let (what, usage) = text.split_once("\n\nUsage: ").unwrap_or((text, ""));
    let mut line = match error.kind() {
        ErrorKind::ValueValidation => what.trim().to_owned(),
        _ => what.trim().replace("\n\n", "; ").replace(":\n", ":").replace('\n', ", "),
    };
    for (of_the_parser, plain) in NUMBER_PROBLEMS {
        line = line.replace(of_the_parser, plain);
    }
    if let Some(negative) = negative_value_usage_text(error, std::env::args_os()) {
        line = negative;
    } else if let Some(accepted) = accepted_usage_words(error.kind(), C::command(), usage) {
        line += &format!("; accepted: {accepted}");
    } else if !usage.is_empty() {
        line += &format!("; usage: {usage}");
    }
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    let escaped = line.chars().map(escaped).collect::<String>();
    stdio::print_stderr_message(escaped.split_whitespace().collect::<Vec<_>>().join(" "));
    EXIT_USAGE
}

/// Returns the text about a negative value, which the parser takes for an unknown option. `None`
/// for other errors, and where the unknown option is no negative number.
fn negative_value_usage_text(
    error: &clap::Error,
    words: impl Iterator<Item = OsString>,
) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let digits =
        unknown.strip_prefix('-').filter(|_| error.kind() == ErrorKind::UnknownArgument)?;
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let mut option = None;
    for word in words.map(|word| word.to_string_lossy().into_owned()) {
        // The parser names the first character of an option with one hyphen.
        if word.starts_with(unknown) {
            let place = option.map_or(String::new(), |option| format!(" for '{option}'"));
            return Some(format!("error: invalid value '{word}'{place}: it is below zero"));
        }
        option = word.starts_with("--").then_some(word);
    }
    None
}

/// Pairs of texts on a wrong number in a command line: the words of Rust's parsers, and the plain
/// words that users read instead.
const NUMBER_PROBLEMS: [(&str, &str); 5] = [
    ("cannot parse integer from empty string", "it is empty"),
    ("number would be zero for non-zero type", "it must be at least 1"),
    ("number too large to fit in target type", "it is too large"),
    ("number too small to fit in target type", "it is too small"),
    ("invalid digit found in string", "it is no whole number"),
];

/// Returns a help text, with its styles where a terminal shows them and the user forbids none.
fn render_usage_help(error: &clap::Error, is_terminal: bool) -> String {
    let is_unstyled = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
        || std::env::var_os("TERM").is_none_or(|terminal| terminal == "dumb");
    let help = error.render();
    let text = if is_terminal && !is_unstyled { help.ansi().to_string() } else { help.to_string() };
    stdio::wrap_words(&text, stdio::help_columns())
}

/// Lists the flags or subcommands that are accepted in place of an unknown one; `None` for other
/// errors. `usage` names the subcommand.
fn accepted_usage_words(
    kind: ErrorKind,
    mut command: clap::Command,
    usage: &str,
) -> Option<String> {
    for word in usage.split_whitespace() {
        if let Some(inner) = command.find_subcommand(word) {
            command = inner.clone();
        }
    }
    let names: Vec<_> = match kind {
        ErrorKind::UnknownArgument => {
            let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
            flags.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
        }
        ErrorKind::InvalidSubcommand => {
            let inner = command.get_subcommands().filter(|inner| !inner.is_hide_set());
            inner.map(|inner| inner.get_name().to_owned()).collect()
        }
        _ => return None,
    };
    (!names.is_empty()).then(|| names.join(", "))
}
