//! A bounded queue of lines for a descriptor that may be full, closed or unread.
//!
//! Any thread offers lines and never waits. One thread, which [`LineQueue::start`] starts, writes
//! them; it alone blocks on the descriptor. A line is lost where the queue is full or the
//! descriptor refuses it. The queue counts lost lines, and says how many where they are missing.

use super::write_whole::write_whole;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// 1 MiB: the most bytes of text that wait in the queue, some thousand lines. A line that does not
/// fit is lost and counted. The limit of memory is chosen.
const QUEUE_BYTES_MAX: usize = 1 << 20;

/// A bounded queue of lines, and the thread that writes them. Dropping it ends the thread once the
/// thread has written what waits.
pub struct LineQueue {
    shared: Arc<SharedLineQueue>,
}

/// Makes one line, without its line break, of a message or of the notice that lines are missing.
pub type OwnFormat = fn(&str) -> String;

/// The parts that callers and the writing thread share.
#[derive(Default)]
struct SharedLineQueue {
    state: Mutex<LineQueueState>,
    /// Signals a new text, or the end of the queue.
    arrived: Condvar,
    /// Signals that nothing waits any more.
    idle: Condvar,
}

#[derive(Default)]
struct LineQueueState {
    texts: VecDeque<QueuedText>,
    /// Bytes of all texts that wait, without the one that is being written.
    bytes: usize,
    /// Whether the thread is writing a text.
    is_writing: bool,
    /// Whether the queue was dropped.
    is_closed: bool,
    /// Lines lost since the start.
    lost: u64,
    /// Lines lost and not reported by a text that waits or was written.
    unreported: u64,
    /// Is told the number of lines at each loss.
    observer: Option<Box<dyn Fn(u64) + Send>>,
    /// Makes a line of a text of the program's own; without it the text is the line.
    own_format: Option<OwnFormat>,
}

/// A text that waits.
struct QueuedText {
    bytes: Vec<u8>,
    /// Lines that count as lost with this text: 1, or 0 for progress.
    lines: u64,
    /// Lost lines that the text reports at its beginning.
    reports: u64,
}

impl LineQueue {
    /// Starts a thread that writes to `descriptor`.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(thread: &str, descriptor: impl AsFd + Send + 'static) -> io::Result<Self> {
        let shared = Arc::<SharedLineQueue>::default();
        let writer = Arc::clone(&shared);
        let body = move || write_queued_lines(&writer, &descriptor);
        std::thread::Builder::new().name(thread.to_owned()).spawn(body)?;
        Ok(Self { shared })
    }

    /// Queues a line, which ends in a line break, behind a notice of the lines lost before it.
    /// Returns false where the queue is full: the line is lost.
    pub fn offer(&self, line: &[u8]) -> bool {
        let mut state = self.shared.lock();
        let notice = match state.unreported {
            0 => String::new(),
            lost => state.describe_losses(lost),
        };
        if state.bytes + notice.len() + line.len() > QUEUE_BYTES_MAX {
            state.lose(1, 0);
            return false;
        }
        let reports = std::mem::take(&mut state.unreported);
        let bytes = [notice.as_bytes(), line].concat();
        self.shared.push(state, QueuedText { bytes, lines: 1, reports });
        true
    }

    /// Queues a message of the program, in the format of its own lines. Returns false where the
    /// queue is full: the message is lost.
    pub fn offer_message(&self, text: &str) -> bool {
        let format = self.shared.lock().own_format;
        let line = format.map_or_else(|| text.to_owned(), |format| format(text));
        self.offer(format!("{line}\n").as_bytes())
    }

    /// Gives messages, and notices of missing lines, the format of all other lines from now on.
    pub fn set_own_format(&self, format: OwnFormat) {
        self.shared.lock().own_format = Some(format);
    }

    /// Queues progress if nothing waits. Returns whether it was queued; progress is never counted
    /// as lost.
    pub fn offer_progress(&self, text: &[u8]) -> bool {
        let state = self.shared.lock();
        if !state.is_idle() {
            return false;
        }
        self.shared.push(state, QueuedText { bytes: text.to_vec(), lines: 0, reports: 0 });
        true
    }

    /// Returns the number of lines lost since the start.
    pub fn lost_lines(&self) -> u64 {
        self.shared.lock().lost
    }

    /// Tells `observer` the lines lost so far, and from now on those of each loss. It must not
    /// offer lines.
    pub fn observe_losses(&self, observer: impl Fn(u64) + Send + 'static) {
        let mut state = self.shared.lock();
        observer(state.lost);
        state.observer = Some(Box::new(observer));
    }

    /// Waits until nothing waits any more, at most `timeout`. Returns whether that is so.
    pub fn flush(&self, timeout: Duration) -> bool {
        let state = self.shared.lock();
        let waited = self.shared.idle.wait_timeout_while(state, timeout, |state| !state.is_idle());
        waited.unwrap_or_else(PoisonError::into_inner).0.is_idle()
    }
}

impl fmt::Debug for LineQueue {
    /// Prints the number of lines lost.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LineQueue").field("lost_lines", &self.lost_lines()).finish()
    }
}

impl Drop for LineQueue {
    /// Lets the thread end once it has written what waits.
    fn drop(&mut self) {
        self.shared.lock().is_closed = true;
        self.shared.arrived.notify_one();
    }
}

impl SharedLineQueue {
    /// Locks the state. A panic of an observer leaves it whole.
    fn lock(&self) -> MutexGuard<'_, LineQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a text to the queue and wakes the thread.
    fn push(&self, mut state: MutexGuard<'_, LineQueueState>, text: QueuedText) {
        state.bytes += text.bytes.len();
        state.texts.push_back(text);
        self.arrived.notify_one();
    }

    /// Waits for the next text, which the caller must write; `None` at the end of the queue.
    fn next_text(&self) -> Option<QueuedText> {
        let mut state = self.lock();
        loop {
            if let Some(text) = state.texts.pop_front() {
                state.bytes -= text.bytes.len();
                state.is_writing = true;
                return Some(text);
            }
            if state.is_closed {
                return None;
            }
            state = self.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Ends the writing of a text, which was lost unless it was `written`.
    fn finish_text(&self, text: &QueuedText, written: bool) {
        let mut state = self.lock();
        state.is_writing = false;
        if !written {
            state.lose(text.lines, text.reports);
        }
        if state.is_idle() {
            self.idle.notify_all();
        }
    }
}

impl LineQueueState {
    /// Returns whether nothing waits and nothing is being written.
    fn is_idle(&self) -> bool {
        self.texts.is_empty() && !self.is_writing
    }

    /// Returns the line that says how many are missing where it stands.
    fn describe_losses(&self, lost: u64) -> String {
        let text = format!("{lost} lines are missing here: nobody read or stored them");
        let line = self.own_format.map_or_else(|| format!("[{text}]"), |format| format(&text));
        format!("{line}\n")
    }

    /// Counts lost lines: `lines` new ones, and `reports` that a lost text had announced in vain.
    fn lose(&mut self, lines: u64, reports: u64) {
        self.lost += lines;
        self.unreported += lines + reports;
        if let Some(observer) = self.observer.as_ref().filter(|_| lines > 0) {
            observer(lines);
        }
    }
}

/// Writes the texts of a queue to `descriptor` until the queue ends. A text that follows the part
/// of another begins on a new line.
fn write_queued_lines(shared: &SharedLineQueue, descriptor: &impl AsFd) {
    let mut is_torn = false;
    while let Some(mut text) = shared.next_text() {
        if is_torn {
            text.bytes.insert(0, b'\n');
        }
        let (written, outcome) = write_whole(descriptor.as_fd(), &text.bytes);
        is_torn = outcome.is_err() && (is_torn || written > 0);
        shared.finish_text(&text, outcome.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::sync::atomic::{AtomicU64, Ordering};

    /// A limit that ends no sound test.
    const LONG: Duration = Duration::from_secs(60);

    /// Returns a line of 1,000 bytes that begins with `number`.
    fn line(number: usize) -> Vec<u8> {
        format!("{number:<999}\n").into_bytes()
    }

    /// Counts the lines that `queue` loses.
    fn count_losses(queue: &LineQueue) -> Arc<AtomicU64> {
        let counted = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&counted);
        queue.observe_losses(move |lines| {
            counter.fetch_add(lines, Ordering::Relaxed);
        });
        counted
    }

    #[test]
    fn lines_that_nobody_reads_are_lost_and_counted() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue = LineQueue::start("test", writer).expect("a thread");
        let counted = count_losses(&queue);
        // Far more than queue and pipe hold; none of it waits for the reader.
        let offered = 4 * QUEUE_BYTES_MAX / 1000;
        let taken = (0..offered).filter(|number| queue.offer(&line(*number))).count();
        let lost = queue.lost_lines();
        assert_eq!((lost, counted.load(Ordering::Relaxed)), ((offered - taken) as u64, lost));
        assert!(lost > 0 && taken > 0, "{lost} lost, {taken} taken");
        assert!(!queue.flush(Duration::from_millis(1)), "nobody reads");
        assert!(!queue.offer_progress(b"progress"), "others wait");
        assert_eq!(queue.lost_lines(), lost, "progress does not count");
        // A reader comes: it finds whole lines, and notices where others are missing.
        let reading = std::thread::spawn(move || {
            BufReader::new(reader).lines().map(|line| line.expect("text")).collect::<Vec<_>>()
        });
        assert!(queue.flush(LONG));
        assert!(queue.offer(&line(offered)));
        drop(queue);
        let read = reading.join().expect("no panic");
        let (notices, lines): (Vec<_>, Vec<_>) = read.iter().partition(|line| line.contains('['));
        assert_eq!(lines.len(), taken + 1);
        assert!(lines.iter().all(|line| line.len() == 999));
        let number = |notice: &String| {
            let digits: String = notice.chars().filter(char::is_ascii_digit).collect();
            digits.parse::<u64>().expect("a number")
        };
        assert_eq!(notices.into_iter().map(number).sum::<u64>(), lost);
    }

    #[test]
    fn messages_and_notices_have_the_format_of_lines() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let queue = LineQueue::start("test", writer).expect("a thread");
        assert!(queue.offer_message("as it is"));
        queue.set_own_format(|text| format!("<{text}>"));
        assert!(queue.offer_message("in the format"));
        assert!(queue.flush(LONG));
        // Nobody reads, until a line is lost.
        while queue.offer(&line(0)) {}
        let lost = queue.lost_lines();
        let reading = std::thread::spawn(move || {
            BufReader::new(reader).lines().map(|line| line.expect("text")).collect::<Vec<_>>()
        });
        assert!(queue.flush(LONG) && queue.offer(&line(1)));
        drop(queue);
        let read = reading.join().expect("no panic");
        assert_eq!(read[..2], ["as it is", "<in the format>"]);
        let notice = format!("<{lost} lines are missing here: nobody read or stored them>");
        assert_eq!(read[read.len() - 2], notice);
    }

    #[test]
    fn refused_lines_are_counted_once() {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let queue = LineQueue::start("test", full).expect("a thread");
        for number in 0..10 {
            assert!(queue.offer(&line(number)), "there is room");
        }
        assert!(queue.flush(LONG), "nothing waits");
        assert_eq!(queue.lost_lines(), 10);
        assert!(queue.offer_progress(b"progress") && queue.flush(LONG));
        assert_eq!(queue.lost_lines(), 10, "progress does not count");
        let counted = count_losses(&queue);
        assert!(queue.offer(&line(10)) && queue.flush(LONG));
        assert_eq!(counted.load(Ordering::Relaxed), 11, "with those of before");
    }
}
