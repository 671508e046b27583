//! Fields of log lines as text: the sentence alone, whose parts the other fields repeat.

use std::fmt;
use tracing::field::{Field, Visit};
use tracing_subscriber::field::{MakeVisitor, RecordFields, VisitOutput};
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};

/// The name of the field that has the sentence of a log line, as the crate `tracing` gives it.
pub(super) const MESSAGE: &str = "message";

/// Writes the message of an event, or all fields where there is no message.
pub(super) struct SentenceFields;

impl<'writer> FormatFields<'writer> for SentenceFields {
    /// Writes the fields of one event.
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut search = SentenceSearch { is_found: false };
        fields.record(&mut search);
        if !search.is_found {
            return DefaultFields::new().format_fields(writer, fields);
        }
        let mut visitor = DefaultFields::new().make_visitor(writer);
        fields.record(&mut SentenceOnly(&mut visitor));
        visitor.finish()
    }
}

/// Finds out whether an event has a message.
struct SentenceSearch {
    is_found: bool,
}

impl Visit for SentenceSearch {
    /// Records whether this field is the message.
    fn record_debug(&mut self, field: &Field, _: &dyn fmt::Debug) {
        self.is_found |= field.name() == MESSAGE;
    }
}

/// Hands on the message, and no other field.
struct SentenceOnly<'a, V>(&'a mut V);

impl<V: Visit> Visit for SentenceOnly<'_, V> {
    /// Passes a text on to the inner visitor if the field is the message.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == MESSAGE {
            self.0.record_str(field, value);
        }
    }

    /// Passes a formatted value on to the inner visitor if the field is the message.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == MESSAGE {
            self.0.record_debug(field, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::json_log::tests::Lines;

    #[test]
    fn text_has_the_sentence_and_traces_have_their_fields() {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_target(false)
            .with_ansi(false)
            .without_time()
            .fmt_fields(SentenceFields);
        tracing::subscriber::with_default(log.finish(), || {
            tracing::warn!(job = %"train", collective = 7_u64, "job train: collective 7 failed");
            tracing::info!(what = "sent", bytes = 12_u64);
        });
        let expected = " WARN job train: collective 7 failed\n INFO what=\"sent\" bytes=12\n";
        assert_eq!(lines.text(), expected);
    }
}
