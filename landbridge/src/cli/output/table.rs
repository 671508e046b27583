//! Tables and lists of fields that fit the terminal, by comfy-table.

use comfy_table::{ContentArrangement, Table, presets};
use std::io::IsTerminal;

/// 80 columns: the width of printed tables where output is no terminal; terminals are commonly no
/// narrower.
const COLUMNS_DEFAULT: u16 = 80;

/// Returns the number of columns that output may use: those of the terminal, or 80.
pub(crate) fn output_columns() -> u16 {
    let size = std::io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
    size.map_or(COLUMNS_DEFAULT, |(terminal_size::Width(columns), _)| columns)
}

/// Returns a table as text: columns two spaces apart, the header in capitals. Long cells are wrapped
/// where the table would be wider than the terminal.
pub(crate) fn render_table<const COLUMNS: usize>(
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    render_table_within(output_columns(), header, rows)
}

/// 12 characters of a word in a cell stand in one line. A table that is too narrow for that is
/// printed as lists.
const WORD_CHARS_MIN: usize = 12;

/// Returns a table as text that is at most `columns` wide. Where the columns would break short
/// words, each row is a list of fields instead.
fn render_table_within<const COLUMNS: usize>(
    columns: u16,
    header: [&str; COLUMNS],
    rows: &[[String; COLUMNS]],
) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].as_str());
        let words = cells.chain([header[column]]).flat_map(str::split_whitespace);
        words.map(|word| word.chars().count()).max().unwrap_or(0).min(WORD_CHARS_MIN)
    };
    let needed = (0..COLUMNS).map(width).sum::<usize>() + 2 * COLUMNS.saturating_sub(1);
    if needed > columns.into() {
        let list = |row: &[String; COLUMNS]| {
            let fields: Vec<[String; 2]> = std::iter::zip(header, row)
                .map(|(name, cell)| [name.to_uppercase(), cell.clone()])
                .collect();
            space_table_columns(&mut plain_table(&fields, columns))
        };
        return rows.iter().map(list).collect::<Vec<_>>().join("\n");
    }
    let mut table = plain_table(rows, columns);
    table.set_header(header.map(str::to_uppercase));
    space_table_columns(&mut table)
}

/// Returns a list of names and values as text, one field to a line. Long values are wrapped.
pub(crate) fn render_field_table(fields: &[[String; 2]]) -> String {
    space_table_columns(&mut plain_table(fields, output_columns()))
}

/// Makes a table without lines that is at most `columns` wide.
fn plain_table<const COLUMNS: usize>(rows: &[[String; COLUMNS]], columns: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns);
    table.add_rows(rows.iter().map(|row| row.each_ref().map(|cell| table_cell_on_one_line(cell))));
    table
}

/// Returns a table as text, with two spaces between its columns and none after the last.
fn space_table_columns(table: &mut Table) -> String {
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if index < last { 2 } else { 0 }));
    }
    let mut text = table.trim_fmt();
    text.push('\n');
    text
}

/// Returns a table cell with spaces in place of control characters: a cell may quote a text of a
/// peer.
fn table_cell_on_one_line(cell: &str) -> String {
    cell.replace(char::is_control, " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["a".to_owned(), "1\n3".to_owned()], ["long".to_owned(), "2".to_owned()]];
        assert_eq!(render_table_within(80, ["x", "y"], &rows), "X     Y\na     1 3\nlong  2\n");
    }

    #[test]
    fn long_cells_are_wrapped_within_the_width() {
        let summary = "3 regions, 5 gateways, 14 ranks ".repeat(8);
        let rows = [["configs/fabric.toml".to_owned(), "fabric".to_owned(), summary]];
        let text = render_table_within(80, ["file", "kind", "summary"], &rows);
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(text.lines().count() > 3 && text.matches("14 ranks").count() > 5, "{text}");
    }

    #[test]
    fn tables_of_any_width_break_no_short_word() {
        let header = ["peer", "region", "lanes", "rtt", "sent", "state"];
        let row = ["west-0", "west", "1 of 4", "80.2 ms", "13.4 GiB", "1 of 4 ports answer"];
        let rows = [row.map(str::to_owned), row.map(str::to_owned)];
        for columns in [20, 24, 40, 45, 60, 80, 200, u16::MAX] {
            let text = render_table_within(columns, header, &rows);
            let widest = text.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns.into()), "{columns}:\n{text}");
            for word in row.iter().flat_map(|cell| cell.split(' ')) {
                assert!(text.split_whitespace().any(|found| found == word), "{word}:\n{text}");
            }
            assert!(text.contains("PEER") && text.contains("STATE"), "{text}");
        }
    }

    #[test]
    fn long_fields_are_wrapped_below_their_value() {
        let fields = [["reason".to_owned(), "two regions ".repeat(12)]];
        let text = space_table_columns(&mut plain_table(&fields, 80));
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.len() == 2 && lines[0].starts_with("reason  two regions"), "{text}");
        assert!(lines[1].starts_with("        two regions"), "{text}");
    }
}
