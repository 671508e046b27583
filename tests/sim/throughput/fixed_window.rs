//! The control: a congestion window that does not follow the link.

use scenarios::Shape;
use scenarios::collectives::quinn_only::{Settings, simulated};
use units::Span;

const BYTES: u64 = 64 << 20;

/// Mbit/s of QUIC packets through a window of this size. Data flows one way, since quinn's
/// acknowledgements wait for the window where there is data too.
fn mbit(rtt: Span, window: u64) -> f64 {
    let shape = Shape { rtt, ..Shape::new(1, 1) };
    let settings = Settings { mtu: Some(1452), window: Some(window) };
    let ran = simulated(&shape, settings, [BYTES, 0], Span::from_secs(100)).expect("no faults");
    ran.sent_bytes.get() as f64 * 8e-6 / ran.seconds.expect("it is not that slow")
}

#[test]
fn a_fixed_window_sends_itself_once_in_a_round_trip() {
    for (rtt_ms, window) in [(40, 1_250_000), (80, 1_250_000), (200, 1_250_000), (80, 2_500_000)] {
        let expected = window as f64 * 8e-3 / rtt_ms as f64;
        let got = mbit(Span::from_ms(rtt_ms), window);
        println!("{window} bytes in {rtt_ms} ms: {got:.1} Mbit/s, W/RTT {expected:.1}");
        assert!((got / expected - 1.0).abs() < 0.1, "{got} Mbit/s, W/RTT {expected}");
    }
}
