//! Log lines that stay one line each, whatever text of peers, trainers and unauthenticated
//! connections they quote.

use std::io::{self, Write};

/// Writer that takes each event as one write and writes it as one line: control characters inside
/// are escaped.
pub(super) struct LogLineWriter<W>(pub W);

impl<W: Write> Write for LogLineWriter<W> {
    /// Writes one log event as one line. Control characters but ESC and the tab are escaped; a line
    /// break at the end stays.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let (text, end) = match event.strip_suffix(b"\n") {
            Some(text) => (text, &b"\n"[..]),
            None => (event, &[][..]),
        };
        // Colour escapes are the subscriber's own; it removes those in the text.
        let must_escape =
            |byte: &u8| byte.is_ascii_control() && *byte != ESCAPE_BYTE && *byte != b'\t';
        if text.iter().any(must_escape) {
            let mut line = Vec::with_capacity(event.len() + 16);
            for byte in text {
                if must_escape(byte) {
                    line.extend(byte.escape_ascii());
                } else {
                    line.push(*byte);
                }
            }
            line.extend(end);
            self.0.write_all(&line)?;
        } else {
            self.0.write_all(event)?;
        }
        Ok(event.len())
    }

    /// Flushes the writer that takes the lines.
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// 0x1b: the ASCII control character (ESC) that begins a colour code of a terminal. Log lines keep
/// this character and the tab, and escape all other control characters.
const ESCAPE_BYTE: u8 = 0x1b;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("whole").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_quoted_line_break_adds_no_line() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let log = tracing_subscriber::fmt().with_writer(move || LogLineWriter(writer.clone()));
        tracing::subscriber::with_default(log.finish(), || {
            let reason = "closed by peer: x\r\n2026-01-01 ERROR job train: lost\u{1b}[2J\n";
            tracing::warn!("refused a connection: {reason}");
            tracing::info!("as it is: \u{e9}, \\n");
        });
        let text = String::from_utf8(buffer.0.lock().expect("whole").clone()).expect("text");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains(r"x\r\n2026-01-01 ERROR") && !text.contains("\u{1b}[2J"), "{text}");
        assert!(text.contains("as it is: \u{e9}, \\n"), "{text}");
    }
}
