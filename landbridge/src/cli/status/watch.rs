//! `landbridge status --watch`: fetches the status each second and shows an overview.
//!
//! On a terminal that can move its cursor the overview is drawn over the last one. Elsewhere each one
//! is a block of its own.

use super::overview::describe_overview;
use crate::cli::output::command_error::CommandError;
use crate::cli::output::print::{print_json, print_verbatim};
use gateway::host::current_thread_runtime;
use gateway::observe::fetch_status::fetch_status_async;
use gateway::observe::status::GatewayReport;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;
use terminal_size::{Height, Width, terminal_size};
use tokio::time::MissedTickBehavior;

/// 1 s: the time between two overviews of `landbridge status --watch`, as gateways make one status
/// a second.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// 10 intervals of [`WATCH_INTERVAL`], 10 s: rates of the overview are means over so long, so that
/// they do not jump. A shorter watch has means since its beginning.
const RATE_SPAN_INTERVALS: usize = 10;

/// Shows the status of a gateway each second until the process ends. With `json` prints one JSON
/// object a line instead.
///
/// Returns the error that ends it: no gateway answers the first time, or stdout takes no more. A
/// gateway that is away later is waited for.
pub(super) fn watch_status(address: SocketAddr, json: bool) -> CommandError {
    match current_thread_runtime() {
        Ok(runtime) => runtime.block_on(watch_each_second(address, json)),
        Err(error) => error.into(),
    }
}

/// Shows the status each second, until an error ends it.
async fn watch_each_second(address: SocketAddr, json: bool) -> CommandError {
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = VecDeque::new();
    let mut screen = WatchScreen::new();
    let mut has_answered = false;
    loop {
        ticks.tick().await;
        let shown = match fetch_status_async(address).await {
            Ok(report) => {
                has_answered = true;
                keep_watched_report(&mut reports, report);
                show_watched_reports(&reports, json, &mut screen)
            }
            Err(error) if !has_answered => return error.into(),
            Err(error) => {
                reports.clear();
                if json {
                    stdio::print_stderr_message(&error);
                    Ok(())
                } else {
                    screen.show(&format!("{error}\n"))
                }
            }
        };
        if let Err(error) = shown {
            return error;
        }
    }
}

/// Shows the overview of the newest report, with rates since the oldest. With `json` prints the
/// newest report alone. Does nothing without a report.
fn show_watched_reports(
    reports: &VecDeque<GatewayReport>,
    json: bool,
    screen: &mut WatchScreen,
) -> Result<(), CommandError> {
    let Some(now) = reports.back() else { return Ok(()) };
    if json {
        return print_json(now);
    }
    let before = reports.front().filter(|_| reports.len() > 1);
    screen.show(&describe_overview(before, now))
}

/// Adds a report to `reports`, which keeps the last [`RATE_SPAN_INTERVALS`] plus one. A report with less
/// uptime than the one before comes from a gateway that was started again, and removes all earlier
/// ones.
fn keep_watched_report(reports: &mut VecDeque<GatewayReport>, report: GatewayReport) {
    if reports.back().is_some_and(|last| last.uptime_seconds > report.uptime_seconds) {
        reports.clear();
    }
    if reports.len() > RATE_SPAN_INTERVALS {
        reports.pop_front();
    }
    reports.push_back(report);
}

/// The place where overviews are shown.
struct WatchScreen {
    is_drawn: bool,
    has_shown: bool,
}

impl WatchScreen {
    /// Makes the screen of stdout.
    fn new() -> Self {
        Self { is_drawn: stdio::is_drawing_terminal(&std::io::stdout()), has_shown: false }
    }

    /// Shows a text in place of the last one, or below it where stdout draws nothing.
    ///
    /// # Errors
    /// [`CommandError::Unwritten`]: the text was not written whole.
    fn show(&mut self, text: &str) -> Result<(), CommandError> {
        let is_first = !std::mem::replace(&mut self.has_shown, true);
        if self.is_drawn {
            return print_verbatim(&watch_screen_text(text, is_first, terminal_size()));
        }
        print_verbatim(&if is_first { text.to_owned() } else { format!("\n{text}") })
    }
}

/// Returns a text with the control codes that draw it from the first row on. Lines that do not fit
/// are left out, and counted in the last one; the cursor needs a row, too.
fn watch_screen_text(text: &str, is_first: bool, size: Option<(Width, Height)>) -> String {
    let rows = size.map_or(ROWS_DEFAULT, |(_, Height(rows))| usize::from(rows)).max(3) - 1;
    let mut lines: Vec<String> =
        text.lines().map(|line| line.replace(char::is_control, " ")).collect();
    if lines.len() > rows {
        let more = lines.len() - (rows - 1);
        lines.truncate(rows - 1);
        lines.push(format!("{more} more lines: make the window higher"));
    }
    let begin = if is_first { CLEAR_SCREEN } else { "" };
    format!("{begin}{CURSOR_HOME}{}{CLEAR_BELOW}", lines.join(NEXT_LINE))
}

/// 24 rows: the assumed height of a terminal that does not tell its own, as the VT100 had it. Lines
/// of an overview beyond the height are left out.
const ROWS_DEFAULT: usize = 24;
/// The control code ESC [2J, which clears the whole terminal before the first overview.
const CLEAR_SCREEN: &str = "\x1b[2J";
/// The control code ESC [H, which puts the cursor into the first row and column before each
/// overview.
const CURSOR_HOME: &str = "\x1b[H";
/// The control code ESC [J, which clears the terminal from the cursor on, behind each overview.
const CLEAR_BELOW: &str = "\x1b[J";
/// The control code ESC [K and a line break, between two lines of an overview. The code clears a
/// line behind its text, where that of an earlier overview was longer.
const NEXT_LINE: &str = "\x1b[K\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawn_text_fits_its_terminal() {
        let text: String = (0..40).map(|line| format!("line {line}\x1b[31m\n")).collect();
        let drawn = watch_screen_text(&text, false, Some((Width(80), Height(10))));
        assert!(drawn.starts_with("\x1b[Hline 0 [31m\x1b[K\n"), "{drawn:?}");
        assert!(drawn.ends_with("32 more lines: make the window higher\x1b[J"), "{drawn:?}");
        assert_eq!(drawn.lines().count(), 9);
        let first = watch_screen_text("one\n", true, None);
        assert_eq!(first, "\x1b[2J\x1b[Hone\x1b[J");
    }

    #[test]
    fn reports_of_before_a_restart_are_forgotten() {
        let report = |uptime_seconds: f64| {
            let report = serde_json::json!({
                "gateway": "east-0", "fabric": "two", "uptime_seconds": uptime_seconds,
                "peers": [], "links": [], "jobs": [],
            });
            serde_json::from_value(report).expect("a report")
        };
        let mut reports = VecDeque::new();
        (0..30).for_each(|second| keep_watched_report(&mut reports, report(f64::from(second))));
        assert_eq!(reports.len(), RATE_SPAN_INTERVALS + 1);
        assert_eq!(reports[0].uptime_seconds, 19.0);
        keep_watched_report(&mut reports, report(0.5));
        assert_eq!(reports.len(), 1);
    }
}
