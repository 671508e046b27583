use crate::wan::connect::tls::explain_connection_alert;
use quinn::{ConnectionClose, ConnectionError, TransportErrorCode};

#[test]
fn refused_certificates_are_told_with_their_remedy() {
    let closed = |code| {
        let close =
            ConnectionClose { error_code: code, frame_type: None, reason: bytes::Bytes::new() };
        explain_connection_alert(&ConnectionError::ConnectionClosed(close))
    };
    for (alert, remedy) in [(45, "correct the clock"), (48, "certificates of one CA")] {
        let text = closed(TransportErrorCode::crypto(alert));
        assert!(text.contains(remedy), "{text}");
    }
    let text = closed(TransportErrorCode::crypto(120));
    assert!(!text.contains(';'), "{text}");
    let text = explain_connection_alert(&ConnectionError::TimedOut);
    assert_eq!(text, ConnectionError::TimedOut.to_string());
}
