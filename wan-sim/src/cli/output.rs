//! Reports on standard output, and the exit code of a command that has printed one.

use super::exit_codes::EXIT_FAILED;

/// Prints a report and returns `code`, the exit code of the command; [`EXIT_FAILED`] where the
/// report was not written.
pub(super) fn print_wan_sim_output(report: &str, code: u8) -> u8 {
    match stdio::write_stdout_report(report) {
        Ok(()) => code,
        Err(unwritten) => {
            if !unwritten.is_reader_gone() {
                stdio::print_stderr_message(unwritten);
            }
            EXIT_FAILED
        }
    }
}
