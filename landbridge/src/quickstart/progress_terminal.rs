//! The progress bar of a quickstart.
//!
//! The bar is drawn through the queue of [`stdio`], so that the quickstart never waits for a
//! terminal that takes nothing. Such a terminal misses frames.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle, TermLike};
use std::io;
use std::sync::{Mutex, PoisonError};
use terminal_size::{Width, terminal_size_of};

/// 20 frames a second: the most that a quickstart's progress bar draws; changes between two frames
/// are not drawn. It is the default of the crate `indicatif`.
const FRAMES_PER_SECOND: u8 = 20;

/// 80 columns: the width of a quickstart's progress bar where the terminal does not tell its own.
const COLUMNS_DEFAULT: u16 = 80;

/// Returns a progress bar over `length` steps; a hidden one where stderr draws nothing.
pub(super) fn quickstart_progress_terminal(length: u64) -> ProgressBar {
    let target = if stdio::is_drawing_terminal(&io::stderr()) {
        let terminal = Box::new(ProgressTerminal::default());
        ProgressDrawTarget::term_like_with_hz(terminal, FRAMES_PER_SECOND)
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg} [{elapsed}]");
    let bar = ProgressBar::with_draw_target(Some(length), target);
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// The terminal at stderr, which gets whole frames or none.
#[derive(Debug, Default)]
struct ProgressTerminal {
    frame: Mutex<String>,
}

impl ProgressTerminal {
    /// Adds a text to the frame.
    fn draw(&self, text: &str) -> io::Result<()> {
        self.frame.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    /// Adds a move of the cursor by `n` cells to the frame; `way` ends the control sequence.
    fn draw_move(&self, n: usize, way: char) -> io::Result<()> {
        if n == 0 { Ok(()) } else { self.draw(&format!("\x1b[{n}{way}")) }
    }
}

impl TermLike for ProgressTerminal {
    /// Returns the columns of the terminal.
    fn width(&self) -> u16 {
        terminal_size_of(io::stderr()).map_or(COLUMNS_DEFAULT, |(Width(columns), _)| columns)
    }

    /// Moves the cursor up by `n` lines.
    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.draw_move(n, 'A')
    }

    /// Moves the cursor down by `n` lines.
    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.draw_move(n, 'B')
    }

    /// Moves the cursor right by `n` columns.
    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.draw_move(n, 'C')
    }

    /// Moves the cursor left by `n` columns.
    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.draw_move(n, 'D')
    }

    /// Draws a text and a line break.
    fn write_line(&self, s: &str) -> io::Result<()> {
        self.draw(s)?;
        self.draw("\n")
    }

    /// Draws a text.
    fn write_str(&self, s: &str) -> io::Result<()> {
        self.draw(s)
    }

    /// Clears the line of the cursor, which moves to its beginning.
    fn clear_line(&self) -> io::Result<()> {
        self.draw("\r\x1b[2K")
    }

    /// Shows the frame unless an earlier text still waits for the terminal.
    fn flush(&self) -> io::Result<()> {
        let mut frame = self.frame.lock().unwrap_or_else(PoisonError::into_inner);
        stdio::show_stderr_progress(&std::mem::take(&mut *frame));
        Ok(())
    }
}
