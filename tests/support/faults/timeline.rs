//! The events of a run, in order, by the simulation's clock.

use crate::observe::log_capture::listen;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::time::Instant;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

/// The events of a run; clones share them.
#[derive(Debug, Clone)]
pub struct Timeline {
    /// The lines; `None` where they are not recorded.
    lines: Option<Arc<Mutex<Vec<String>>>>,
    origin: Instant,
}

/// 15 characters: the width to which names are padded in the printed events of a run.
const NAME_WIDTH: usize = 15;

impl Timeline {
    /// A timeline that records nothing, at no cost.
    pub fn off() -> Self {
        Self { lines: None, origin: Instant::now() }
    }

    /// A timeline that begins now.
    pub fn on() -> Self {
        Self { lines: Some(Arc::default()), origin: Instant::now() }
    }

    /// Adds an event of `who` at the current time.
    pub fn say<T: fmt::Display>(&self, who: impl fmt::Display, what: impl FnOnce() -> T) {
        if let Some(lines) = &self.lines {
            let seconds = self.origin.elapsed().as_secs_f64();
            let who = who.to_string();
            let line = format!("{seconds:8.3} s  {who:NAME_WIDTH$}  {}", what());
            lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }

    /// All lines so far.
    pub fn text(&self) -> String {
        let lines = self.lines.as_ref();
        lines.map_or_else(String::new, |lines| {
            lines.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
        })
    }

    /// Adds the gateways' logs of this thread, until the guards are dropped.
    pub fn listen(&self) -> (Dispatch, DefaultGuard) {
        listen(|| Dispatch::new(Logs { timeline: self.clone(), spans: Mutex::default() }))
    }
}

/// Logs become lines; the span that a process runs in names it.
struct Logs {
    timeline: Timeline,
    spans: Mutex<Spans>,
}

#[derive(Default)]
struct Spans {
    names: Vec<String>,
    entered: Vec<u64>,
}

impl Subscriber for Logs {
    /// Accepts spans and events of gateways at level INFO, WARN or ERROR.
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("gateway")
    }

    /// Keeps the text of the span's fields as its name, and numbers the span from 1.
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut name = Text::default();
        span.record(&mut name);
        let mut spans = self.spans();
        spans.names.push(name.0);
        Id::from_u64(spans.names.len() as u64)
    }

    /// Does nothing: a span keeps the name that it began with.
    fn record(&self, _: &Id, _: &Record<'_>) {}

    /// Does nothing: relations of spans are not shown.
    fn record_follows_from(&self, _: &Id, _: &Id) {}

    /// Adds the event to the timeline, under the name of the span entered last.
    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let name = {
            let spans = self.spans();
            let entered = spans.entered.last();
            entered.map_or_else(String::new, |id| spans.names[*id as usize - 1].clone())
        };
        self.timeline.say(name, || text.0);
    }

    /// Adds the span to those entered.
    fn enter(&self, span: &Id) {
        self.spans().entered.push(span.into_u64());
    }

    /// Removes the span entered last.
    fn exit(&self, _: &Id) {
        self.spans().entered.pop();
    }
}

impl Logs {
    fn spans(&self) -> std::sync::MutexGuard<'_, Spans> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The message of an event, or the name of a process.
#[derive(Default)]
struct Text(String);

impl Visit for Text {
    /// Takes the name of a process. Other fields repeat parts of the message.
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "name" {
            self.0.push_str(value);
        }
    }

    /// Takes the message of an event. Other fields repeat parts of it.
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.0, "{value:?}");
        }
    }
}
