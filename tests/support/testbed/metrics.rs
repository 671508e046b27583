//! The metrics of a running gateway, as a scraper reads them.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// 5 s: the longest wait for a gateway's metrics, which it answers at once.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Fetches the metrics of the gateway whose HTTP server listens at `address`, as text.
///
/// # Errors
/// No gateway answers there.
pub fn fetch_metrics(address: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    write!(stream, "GET /metrics HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the sum of a counter over all its labels; `None` if the text has no such counter.
pub fn counter_sum(text: &str, name: &str) -> Option<f64> {
    let value = |line: &str| -> Option<f64> {
        let rest = line.strip_prefix(name)?;
        let labelled = rest.starts_with('{').then(|| rest.rsplit_once("} ")).flatten();
        let value = labelled.map(|(_, value)| value).or_else(|| rest.strip_prefix(' '))?;
        value.split_ascii_whitespace().next()?.parse().ok()
    };
    let values: Vec<f64> = text.lines().filter_map(value).collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_summed_over_its_labels() {
        let text = "# TYPE landbridge_x counter\nlandbridge_x_total{peer=\"a} b\"} 3\n\
                    landbridge_x_total{peer=\"c\"} 4 1700000000\nlandbridge_xy_total 9\n\
                    landbridge_plain_total 5\n";
        assert_eq!(counter_sum(text, "landbridge_x_total"), Some(7.0));
        assert_eq!(counter_sum(text, "landbridge_plain_total"), Some(5.0));
        assert_eq!(counter_sum(text, "landbridge_none_total"), None);
    }
}
