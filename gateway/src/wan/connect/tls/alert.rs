//! TLS alerts that end a handshake, with what an operator has to do.

use quinn::{ConnectionError, TransportErrorCode};
use time::OffsetDateTime;

/// TLS alert 45, `certificate_expired`, also sent for a certificate that is not valid yet. The text
/// of an error with it tells the operator to renew the certificate or correct a clock.
const CERTIFICATE_EXPIRED_ALERT: u8 = 45;
/// TLS alert 48, `unknown_ca`: a certificate of another CA was refused. The text of an error with
/// it tells the operator to give both gateways certificates of one CA.
const UNKNOWN_CA_ALERT: u8 = 48;

/// Returns the text of a connection's error; for a certificate that one side refused, with the
/// action to take.
pub fn explain_connection_alert(error: &ConnectionError) -> String {
    let code = match error {
        ConnectionError::TransportError(error) => Some(error.code),
        ConnectionError::ConnectionClosed(close) => Some(close.error_code),
        _ => None,
    };
    let is_alert = |alert| code == Some(TransportErrorCode::crypto(alert));
    let text = error.to_string();
    if is_alert(CERTIFICATE_EXPIRED_ALERT) {
        let text = alert_text_with_dates(&text).unwrap_or(text);
        format!("{text}; renew the certificate, or correct the clock of either host")
    } else if is_alert(UNKNOWN_CA_ALERT) {
        format!("{text}; give both gateways certificates of one CA")
    } else {
        text
    }
}

/// Returns the text of an expired certificate with dates in place of the seconds since 1970 that
/// rustls writes; `None` for a text of another form, as that of another program.
fn alert_text_with_dates(text: &str) -> Option<String> {
    let (before, times) = text.split_once("verification time ")?;
    let (now, bound) = times.split_once(" (UNIX), but certificate is not valid ")?;
    let (side, bound) = bound.split_once(' ')?;
    let side = if side == "before" { "from" } else { "until" };
    let (bound, after) = bound.split_once(" (")?;
    let (_, after) = after.split_once(')')?;
    let date = |seconds: &str| {
        let at = OffsetDateTime::from_unix_timestamp(seconds.parse().ok()?).ok()?;
        Some(format!("{} {:02}:{:02} UTC", at.date(), at.hour(), at.minute()))
    };
    let (now, bound) = (date(now)?, date(bound)?);
    Some(format!(
        "{before}it is valid {side} {bound}, and {now} by the clock of the host that checked it{after}"
    ))
}

/// Returns whether the program that dialled a connection closed it by itself, without a TLS alert or
/// a transport error. During the handshake QUIC hides the program's own code.
pub fn is_close_without_alert(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::ApplicationClosed(_) => true,
        ConnectionError::ConnectionClosed(close) => {
            [TransportErrorCode::NO_ERROR, TransportErrorCode::APPLICATION_ERROR]
                .contains(&close.error_code)
        }
        _ => false,
    }
}
