//! Sizes and times as tables show them.

use units::Span;

/// Formats a number of bytes in three significant digits, such as `1.50 MiB`.
pub(super) fn format_bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    let decimals = match value {
        _ if unit == 0 => 0,
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {}", units[unit])
}

/// Formats a time: to 10 us below 10 ms, otherwise to 1 ms.
pub(super) fn format_seconds(seconds: f64) -> String {
    let ms = (seconds * 1000.0).round() as u64;
    if ms < 10 { format!("{:.2} ms", seconds * 1000.0) } else { Span::from_ms(ms).to_string() }
}

#[cfg(test)]
mod tests {
    use super::format_bytes;

    #[test]
    fn sizes_have_three_digits() {
        let cases = [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1 << 30, "1.00 GiB")];
        for (size, text) in cases {
            assert_eq!(format_bytes(size), text);
        }
        assert_eq!(format_bytes(u64::MAX), "16.0 EiB");
    }
}
