use crate::wan::connect::tls::explain_connection_alert;
use quinn::{ConnectionClose, ConnectionError, TransportErrorCode};

#[test]
fn refused_certificates_are_told_with_their_remedy() {
    let closed = |code| closed_connection_text(code, "");
    for (alert, remedy) in [(45, "correct the clock"), (48, "certificates of one CA")] {
        let text = closed(TransportErrorCode::crypto(alert));
        assert!(text.contains(remedy), "{text}");
    }
    let text = closed(TransportErrorCode::crypto(120));
    assert!(!text.contains(';'), "{text}");
    let text = explain_connection_alert(&ConnectionError::TimedOut);
    assert_eq!(text, ConnectionError::TimedOut.to_string());
}

#[test]
fn expired_certificates_are_told_with_dates() {
    let expired = TransportErrorCode::crypto(45);
    for (side, bound) in [("after", "until 2027-11-28"), ("before", "from 2027-11-28")] {
        let reason = format!(
            "invalid peer certificate: verification time 2426581680 (UNIX), but certificate is not \
             valid {side} 1827397604 (599184076 seconds ago)"
        );
        let text = closed_connection_text(expired, &reason);
        assert!(text.contains(&format!("it is valid {bound}")), "{text}");
        assert!(text.contains("and 2046-11-23 10:28 UTC by the clock of the host"), "{text}");
        assert!(!text.contains("UNIX") && text.contains("correct the clock"), "{text}");
    }
    for other in ["verification time x (UNIX), but certificate is not valid after 1 (2)", "bad"] {
        assert!(closed_connection_text(expired, other).contains(other));
    }
}

/// Returns the text of a connection that the peer closed with this code and reason.
fn closed_connection_text(error_code: TransportErrorCode, reason: &str) -> String {
    let reason = bytes::Bytes::copy_from_slice(reason.as_bytes());
    let close = ConnectionClose { error_code, frame_type: None, reason };
    explain_connection_alert(&ConnectionError::ConnectionClosed(close))
}
