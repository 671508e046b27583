//! Logs on stderr, filtered by LANDBRIDGE_LOG.

use super::exit::CommandError;
use super::log_line::OneLine;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Target of the log lines of the binary itself: a filter such as `gateway=debug` covers the
/// library and the command line alike.
pub(crate) const LOG_TARGET: &str = "gateway::cli";

/// Environment variable with the log filter.
const LOG_VARIABLE: &str = "LANDBRIDGE_LOG";

/// Log filter in force when LANDBRIDGE_LOG is unset or empty.
const DEFAULT_LOG_FILTER: &str = "info";

/// Sends log lines to stderr from now on, filtered by LANDBRIDGE_LOG.
///
/// # Errors
/// [`CommandError::Usage`] when the variable holds no filter.
pub(crate) fn log_to_stderr() -> Result<(), CommandError> {
    let text = std::env::var_os(LOG_VARIABLE).unwrap_or_default();
    let filter = parse_log_filter(&text.to_string_lossy()).ok_or_else(|| {
        CommandError::Usage(format!(
            "{LOG_VARIABLE}={text:?}: not a log filter; accepted: error, warn, info, debug, trace \
             or off, and TARGET=LEVEL, with commas between several"
        ))
    })?;
    let stderr = || OneLine(std::io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    tracing_subscriber::registry().with(lines).with(filter).init();
    Ok(())
}

/// Parses a log filter; `None` if it is malformed. A word by itself must be a level: [`Targets`]
/// takes any other word for a target, so that a misspelt level would silence the log.
fn parse_log_filter(text: &str) -> Option<Targets> {
    let is_level = |word: &str| {
        let levels = ["error", "warn", "info", "debug", "trace", "off"];
        levels.iter().any(|level| word.eq_ignore_ascii_case(level))
    };
    let text = if text.is_empty() { DEFAULT_LOG_FILTER } else { text };
    let mut words = text.split(',');
    let valid = words.all(|word| match word.rsplit_once('=') {
        Some((target, level)) => !target.is_empty() && is_level(level),
        None => is_level(word),
    });
    let targets: Targets = text.parse().ok().filter(|_| valid)?;
    // Without a level of its own, the rest of the program still logs errors.
    let has_default = targets.default_level().is_some();
    Some(if has_default { targets } else { targets.with_default(LevelFilter::ERROR) })
}

#[cfg(test)]
mod tests {
    use super::parse_log_filter;

    #[test]
    fn a_misspelt_level_is_no_filter() {
        for good in ["", "info", "DEBUG", "off", "warn,gateway::wan=trace", "quinn=off"] {
            assert!(parse_log_filter(good).is_some(), "{good}");
        }
        for bad in ["debgu", "info,", "gateway", "gateway=loud", "=info", "info;debug", " "] {
            assert!(parse_log_filter(bad).is_none(), "{bad}");
        }
    }
}
