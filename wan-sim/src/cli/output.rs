//! Lines on standard output.

/// Prints a line, and ignores that standard output may be closed.
macro_rules! print_line {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}
