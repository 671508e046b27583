//! Log lines as JSON, one object a line, for programs that collect logs.
//!
//! An object has `time`, `level`, `target`, `module` and `message`, then the fields of the event:
//! `job`, `collective`, `peer` and `region` where they are known, and others by event.

use super::sentence_fields::MESSAGE;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// The value of the key `target` in JSON log lines of this program's own modules. Lines of
/// libraries have the library's name there.
const OWN_TARGET: &str = "landbridge";

/// The crates of this program: the first part of the names of its modules. JSON log lines of
/// modules of other crates have the crate's name as `target`.
const OWN_CRATES: [&str; 2] = ["gateway", "landbridge"];

/// Writes each event as one JSON object, with the time of its clock.
pub(super) struct JsonLogLines<T>(pub T);

impl<S, N, T> FormatEvent<S, N> for JsonLogLines<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
{
    /// Writes one event and a line break.
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = JsonLogFields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let module = metadata.target();
        let crate_name = module.split("::").next().unwrap_or_default();
        let is_own = OWN_CRATES.contains(&crate_name);
        let line = JsonLogLine {
            time: json_log_time(&self.0)?,
            level: json_log_level(*metadata.level()),
            target: if is_own { OWN_TARGET } else { crate_name },
            module: Some(module),
            message: &fields.message,
            fields: &fields.others,
        };
        writeln!(writer, "{}", line.to_json())
    }
}

/// Returns a line of level `error` for a text that is no event. Such texts are error messages of
/// the program, panics, and the notice that lines are missing.
pub(super) fn own_json_log_line(text: &str) -> String {
    let line = JsonLogLine {
        time: json_log_time(&SystemTime).unwrap_or_default(),
        level: json_log_level(Level::ERROR),
        target: OWN_TARGET,
        module: None,
        message: text,
        fields: &BTreeMap::new(),
    };
    line.to_json()
}

/// One line of the log.
#[derive(Serialize)]
struct JsonLogLine<'a> {
    time: String,
    level: &'static str,
    target: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    module: Option<&'a str>,
    message: &'a str,
    #[serde(flatten)]
    fields: &'a BTreeMap<&'static str, Value>,
}

impl JsonLogLine<'_> {
    /// Returns the log line as one JSON object, without a line break.
    fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers have a form in JSON")
    }
}

/// The fields of one event.
#[derive(Default)]
struct JsonLogFields {
    message: String,
    others: BTreeMap<&'static str, Value>,
}

impl JsonLogFields {
    /// Keeps a field. The message is a text of its own.
    fn keep(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            (MESSAGE, Value::String(text)) => self.message = text,
            (name, value) => {
                self.others.insert(name, value);
            }
        }
    }
}

impl Visit for JsonLogFields {
    /// Keeps a real number; one that JSON cannot hold is null.
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value.into());
    }

    /// Keeps a whole number.
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value.into());
    }

    /// Keeps a whole number.
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value.into());
    }

    /// Keeps a truth value.
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value.into());
    }

    /// Keeps a text.
    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value.into());
    }

    /// Keeps anything else as its text.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}").into());
    }
}

/// Returns the time of a clock as a text. Fails if the clock does.
fn json_log_time(clock: &impl FormatTime) -> Result<String, fmt::Error> {
    let mut text = String::new();
    clock.format_time(&mut Writer::new(&mut text))?;
    Ok(text.trim_end().to_owned())
}

/// Returns the name of a level in JSON, which LANDBRIDGE_LOG takes too.
fn json_log_level(level: Level) -> &'static str {
    match level {
        Level::ERROR => "error",
        Level::WARN => "warn",
        Level::INFO => "info",
        Level::DEBUG => "debug",
        Level::TRACE => "trace",
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    /// A log in memory. Clones share it.
    #[derive(Clone, Default)]
    pub struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        /// Returns the log so far.
        pub fn text(&self) -> String {
            String::from_utf8(self.0.lock().expect("whole").clone()).expect("text")
        }
    }

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("whole").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A clock that stands.
    struct NoonOfTest;

    impl FormatTime for NoonOfTest {
        fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
            write!(writer, "2026-01-02T12:00:00.000000Z")
        }
    }

    /// Returns the JSON lines that `events` logs.
    fn logged(events: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(JsonLogLines(NoonOfTest));
        tracing::subscriber::with_default(log.finish(), events);
        lines.text()
    }

    #[test]
    fn a_json_line_is_this_one() {
        let (name, failure) = ("train", "rank lost (cause: peer): rank 3 is gone");
        let text = logged(|| {
            tracing::warn!(
                target: "gateway::engine::job::report",
                job = %name,
                collective = 7_u64,
                peer = "west-0",
                region = %"west",
                "job {name}: collective 7 failed: {failure}"
            );
        });
        let expected = concat!(
            r#"{"time":"2026-01-02T12:00:00.000000Z","level":"warn","target":"landbridge","#,
            r#""module":"gateway::engine::job::report","#,
            r#""message":"job train: collective 7 failed: rank lost (cause: peer): rank 3 is gone","#,
            r#""collective":7,"job":"train","peer":"west-0","region":"west"}"#,
            "\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn hostile_texts_stay_in_one_object() {
        let text = logged(|| {
            let reason = "closed: x\"}\r\n{\"level\":\"error\"}\u{1b}[2J";
            tracing::info!(target: "quinn::endpoint", ratio = f64::NAN, "refused: {reason}");
            tracing::info!(target: "gateway::wan", what = "sent", is_late = true);
        });
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!(lines.len(), 2, "{text}");
        assert_eq!((&lines[0]["target"], &lines[0]["ratio"]), (&"quinn".into(), &Value::Null));
        let message = lines[0]["message"].as_str().expect("a text");
        assert!(message.contains("\r\n{\"level\""), "{message}");
        assert_eq!((&lines[1]["message"], &lines[1]["what"]), (&"".into(), &"sent".into()));
    }

    #[test]
    fn messages_without_an_event_are_objects_too() {
        let line: Value = serde_json::from_str(&own_json_log_line("a\n\"b\"")).expect("JSON");
        assert_eq!(line["message"], "a\n\"b\"");
        assert_eq!((&line["level"], &line["target"]), (&"error".into(), &"landbridge".into()));
        assert!(line["time"].as_str().is_some_and(|time| time.ends_with('Z')), "{line}");
    }
}
