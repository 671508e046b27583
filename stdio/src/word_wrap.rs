//! Lines of a text, broken at words.

/// Returns a text with its lines broken at spaces where they are longer than `columns`. Words are
/// never broken: a longer one stands alone in its line. Escape sequences take no column.
///
/// The broken-off part of a line stands below its second column if it has two, else below its first
/// letter, behind a `* `. An indent beyond half of `columns` is not kept.
pub fn wrap_words(text: &str, columns: u16) -> String {
    let columns = usize::from(columns);
    let mut wrapped = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if wrapped_word_width(line) <= columns {
            wrapped += line
        } else {
            wrap_line(line, columns, &mut wrapped)
        }
    }
    wrapped
}

/// Appends a line to `wrapped`, broken at spaces.
fn wrap_line(line: &str, columns: usize, wrapped: &mut String) {
    let indent = wrap_indent(line, columns);
    let mut width = 0;
    let mut is_first = true;
    for word in line.split(' ') {
        let added = wrapped_word_width(word);
        if !is_first && width + 1 + added > columns && !word.is_empty() && width > indent {
            wrapped.truncate(wrapped.trim_end_matches(' ').len());
            *wrapped += "\n";
            *wrapped += &" ".repeat(indent);
            width = indent;
        } else if !is_first {
            wrapped.push(' ');
            width += 1;
        }
        *wrapped += word;
        width += added;
        is_first = false;
    }
}

/// Returns the column at which the broken-off parts of a long line begin.
fn wrap_indent(line: &str, columns: usize) -> usize {
    let leading = line.len() - line.trim_start_matches(' ').len();
    let body = &line[leading..];
    let second = body.find("  ").map(|end| {
        let gap = body[end..].len() - body[end..].trim_start_matches(' ').len();
        wrapped_word_width(&body[..end]) + gap
    });
    let bullet = if body.starts_with("* ") { 2 } else { 0 };
    let indent = leading + second.unwrap_or(bullet);
    if indent <= columns / 2 { indent } else { leading.min(columns / 2) }
}

/// Returns the number of columns that a text takes, without line breaks and escape sequences.
fn wrapped_word_width(text: &str) -> usize {
    let mut in_escape = false;
    let mut width = 0;
    for c in text.chars() {
        let begins = c == '\x1b';
        // A letter ends a sequence; the bracket behind ESC is none.
        let ends = in_escape && c.is_ascii_alphabetic();
        if !begins && !in_escape && !c.is_control() {
            width += 1;
        }
        in_escape = begins || (in_escape && !ends);
    }
    width
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_at_spaces_only() {
        let cases = [
            ("short", "short"),
            ("one two three\n\nfour", "one two\nthree\n\nfour"),
            ("  one two three", "  one two\n  three"),
            ("* one two three", "* one two\n  three"),
            ("ab  one two three\n", "ab  one\n    two\n    three\n"),
            ("a /very/long/path b", "a\n/very/long/path\nb"),
            ("/very/long/path", "/very/long/path"),
            ("\x1b[1mone\x1b[0m two\x1b[0m", "\x1b[1mone\x1b[0m two\x1b[0m"),
        ];
        for (text, wanted) in cases {
            assert_eq!(wrap_words(text, 9), wanted, "{text:?}");
        }
        assert_eq!(wrap_words("one two", 1), "one\ntwo");
    }
}
